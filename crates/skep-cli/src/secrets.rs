//! Reading the values of secrets from where the user keeps them.
//!
//! A value goes from here to the keeper's memory and nowhere else; what goes wrong is told without
//! it.

use rustix::process::{Resource, Rlimit, setrlimit};
use skep_types::{SecretSource, SecretValue};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use zeroize::Zeroizing;

/// No key is longer.
const LONGEST: u64 = 64 << 10;

/// The value, or why there is none.
pub(crate) fn read(source: &SecretSource) -> Result<SecretValue, String> {
    // From here on a core file of this process would hold it.
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none)
        .map_err(|error| format!("core files cannot be switched off: {error}"))?;
    let text = Zeroizing::new(match source {
        SecretSource::Env(name) => match std::env::var(name) {
            Ok(value) => value,
            Err(std::env::VarError::NotPresent) => return Err("the variable is not set".into()),
            Err(std::env::VarError::NotUnicode(_)) => return Err("it is not text".into()),
        },
        SecretSource::File(path) => file(path.as_path())?,
        SecretSource::Cmd(command) => output_of(command)?,
    });
    let value = text.strip_suffix('\n').unwrap_or(&text);
    let value = value.strip_suffix('\r').unwrap_or(value);
    if value.is_empty() {
        return Err("it is empty".into());
    }
    if value.contains(['\n', '\r', '\0']) {
        return Err("it has more than one line; a secret is one line of text".into());
    }
    Ok(SecretValue::new(value.to_owned()))
}

fn file(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    limited(file)
}

/// As the user would run it: with the terminal's errors and questions, and nothing of ours.
fn output_of(command: &str) -> Result<String, String> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::inherit())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let text = match child.stdout.take() {
        Some(output) => limited(output),
        None => Err("it has no output".into()),
    };
    let status = child.wait().map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(format!("the command failed ({status})"));
    }
    text
}

fn limited(from: impl Read) -> Result<String, String> {
    let mut text = String::new();
    let read = from.take(LONGEST + 1).read_to_string(&mut text);
    // The error of bytes that are no text would not hold them, but says no more than this either.
    read.map_err(|error| error.kind().to_string())?;
    if text.len() as u64 > LONGEST {
        return Err("it is longer than 64 KiB".into());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_commands() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        std::fs::write(&path, "sk-1\r\n").unwrap();
        let file = SecretSource::File(path.as_path().into());
        assert_eq!(read(&file).unwrap().expose(), "sk-1");
        let command = |text: &str| read(&SecretSource::Cmd(text.into()));
        assert_eq!(command("echo sk-2").unwrap().expose(), "sk-2");
        assert!(command("echo sk-3; false").unwrap_err().contains("failed"));
        assert!(command("true").unwrap_err().contains("empty"));
        assert!(command("printf 'a\\nb\\n'").unwrap_err().contains("line"));
        assert!(read(&SecretSource::Env("SKEP_NOT_SET".into())).is_err());
        assert!(read(&SecretSource::File("/nowhere".into())).is_err());
    }
}
