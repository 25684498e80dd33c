//! `--env K=V` and `--env-file F`: values are bytes, nothing is quoted or expanded.

use skep_types::{ByteString, Code, Problem, escape};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

/// Variables set inside.
pub(crate) type Environment = BTreeMap<String, ByteString>;

/// The file's variables, then the typed ones over them.
pub(crate) fn resolve(typed: &[OsString], file: Option<&[u8]>) -> Result<Environment, Problem> {
    let mut environment = Environment::new();
    if let Some(file) = file {
        parse_file(file, &mut environment)?;
    }
    for word in typed {
        let (name, value) = assignment("--env", word.as_bytes())?;
        environment.insert(name, value);
    }
    Ok(environment)
}

fn parse_file(file: &[u8], environment: &mut Environment) -> Result<(), Problem> {
    for (number, line) in file.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let start = line.trim_ascii_start();
        if start.is_empty() || start.starts_with(b"#") {
            continue;
        }
        let option = format!("--env-file, line {}", number + 1);
        let (name, value) = assignment(&option, start)?;
        environment.insert(name, value);
    }
    Ok(())
}

/// `K=V`; the name is text without blanks, the value any bytes but NUL.
fn assignment(option: &str, word: &[u8]) -> Result<(String, ByteString), Problem> {
    let refuse = |why: &str| {
        let message = format!("{option}: `{}` {why}", escape::visible(word));
        Problem::new(Code::Usage, message).hint("write K=V")
    };
    let at = word.iter().position(|byte| *byte == b'=').ok_or_else(|| refuse("has no `=`"))?;
    let (name, value) = (&word[..at], &word[at + 1..]);
    let name = std::str::from_utf8(name).map_err(|_| refuse("has a name that is not text"))?;
    if name.is_empty() || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(refuse("has no usable name before the `=`"));
    }
    if value.contains(&0) {
        return Err(refuse("holds a NUL byte"));
    }
    Ok((name.to_owned(), value.into()))
}

/// `K=V` of text, for labels.
pub(crate) fn label(word: &str) -> Result<(String, String), Problem> {
    match word.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => {
            let message = format!("--label: `{}` is not K=V", escape::visible(word.as_bytes()));
            Err(Problem::new(Code::Usage, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt as _;

    #[test]
    fn values_are_bytes_and_typed_ones_win() {
        let file = b"# a comment\n\nA=from file\r\nB='quoted' # kept\n";
        let typed = [OsString::from_vec(b"A=\xff=x".to_vec()), "C=".into()];
        let found = resolve(&typed, Some(file)).unwrap();
        assert_eq!(found["A"].as_bytes(), b"\xff=x");
        assert_eq!(found["B"].as_bytes(), b"'quoted' # kept");
        assert_eq!(found["C"].as_bytes(), b"");
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn what_is_no_assignment_is_named_with_its_line() {
        for bad in ["A", "=x", "A B=x"] {
            assert_eq!(resolve(&[bad.into()], None).unwrap_err().code, Code::Usage, "{bad}");
        }
        let problem = resolve(&[], Some(b"A=1\nexport\n")).unwrap_err();
        assert!(problem.message.contains("line 2"), "{}", problem.message);
    }
}
