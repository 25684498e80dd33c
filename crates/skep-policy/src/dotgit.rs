//! Names that some system reads as `.git`.
//!
//! Git on a case-insensitive, Unicode-folding or Windows filesystem opens `.GIT`, `.git.`,
//! `git~1` or `.g<zero width joiner>it` where it looks for `.git`. A project travels between
//! machines, so all of them count everywhere. Folding is generous on purpose: a name that is
//! wrongly taken for a risky one costs a look, the other mistake costs the machine.

use skep_types::escape::is_deceptive;

/// A name as the most forgiving filesystem compares it: invisible characters dropped, letter case
/// folded, trailing dots and spaces cut. Bytes that are not UTF-8 stay as they are.
pub(crate) fn folded_name(name: &[u8]) -> Vec<u8> {
    let mut folded = Vec::with_capacity(name.len());
    if name.is_ascii() {
        // Nearly every name; DEL is the one invisible character among these.
        folded.extend(name.iter().filter(|byte| **byte != 0x7f).map(u8::to_ascii_lowercase));
    } else {
        push_folded_text(&mut folded, name);
    }
    let kept = folded.iter().rposition(|byte| !matches!(byte, b'.' | b' ')).map_or(0, |at| at + 1);
    // A name of dots and spaces alone would vanish; it is compared as it is.
    if kept > 0 {
        folded.truncate(kept);
    }
    folded
}

fn push_folded_text(folded: &mut Vec<u8>, name: &[u8]) {
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars().filter(|character| !is_deceptive(*character)) {
            push_folded(folded, character);
        }
        folded.extend_from_slice(chunk.invalid());
    }
}

fn push_folded(folded: &mut Vec<u8>, character: char) {
    if character.is_ascii() {
        folded.push(character.to_ascii_lowercase() as u8);
        return;
    }
    // Upper, then lower: also folds the long s, the Kelvin sign and the dotless i.
    let mut buffer = [0; 4];
    for upper in character.to_uppercase() {
        for lower in upper.to_lowercase() {
            folded.extend_from_slice(lower.encode_utf8(&mut buffer).as_bytes());
        }
    }
}

/// A path with every name folded.
pub(crate) fn folded_path(path: &[u8]) -> Vec<u8> {
    let names: Vec<Vec<u8>> = path.split(|byte| *byte == b'/').map(folded_name).collect();
    names.join(&b'/')
}

/// Whether some system takes this name for `.git`.
///
/// `\` separates names on Windows, `:` starts a stream there (`.git::$INDEX_ALLOCATION` is the
/// directory itself), and `git~1` is the short name NTFS gives it.
pub fn is_dot_git(name: &[u8]) -> bool {
    name.split(|byte| *byte == b'\\').any(|part| {
        let before_stream = part.split(|byte| *byte == b':').next().unwrap_or(part);
        let folded = folded_name(before_stream);
        folded == b".git" || is_short_name(&folded)
    })
}

fn is_short_name(folded: &[u8]) -> bool {
    matches!(folded.strip_prefix(b"git~"), Some([b'1'..=b'9']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_dot_git_somewhere() {
        for name in [
            ".git",
            ".GIT",
            ".Git",
            ".git.",
            ".git ",
            ".git. .",
            "git~1",
            "GIT~1",
            "git~4",
            ".g\u{200c}it",
            "\u{feff}.git",
            ".gi\u{202e}t",
            ".git\u{200d}",
            ".git::$INDEX_ALLOCATION",
            ".git:x",
            ".git\\config",
            "a\\.GIT",
            ".g\u{131}t",
        ] {
            assert!(is_dot_git(name.as_bytes()), "{name:?}");
        }
    }

    #[test]
    fn names_that_are_not() {
        for name in [
            "git",
            ".gitignore",
            ".github",
            "x.git",
            ".git2",
            "git~",
            "git~x",
            "git~10",
            "..git",
            "",
            ".",
            "...",
            "a:.git",
        ] {
            assert!(!is_dot_git(name.as_bytes()), "{name:?}");
        }
        assert!(!is_dot_git(b".g\xffit"));
    }

    #[test]
    fn folding_is_total_and_stable() {
        assert_eq!(folded_name("MAKE\u{212a}".as_bytes()), b"makek");
        assert_eq!(folded_name(b"..."), b"...");
        assert_eq!(folded_name(b"a\xffB"), b"a\xffb");
        assert_eq!(folded_name(b".gi\x7ft"), b".git");
        assert_eq!(folded_path(b".VSCode/Tasks.JSON"), b".vscode/tasks.json");
    }
}
