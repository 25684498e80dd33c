//! Making bytes safe to look at.
//!
//! Names and contents come from untrusted code. Every sink for people (terminal, log, page) shows
//! them through here, so that no byte can move a cursor, set a clipboard, reverse the reading
//! direction or hide.

use std::fmt::Write as _;

/// One line, with everything that does not print made visible: `\n`, `\x1b`, `\u{202e}`, and
/// `\xff` for bytes that are not UTF-8. A backslash is doubled, so the text is unambiguous.
pub fn visible(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    push_visible(&mut out, bytes, Keep::Nothing);
    out
}

/// Like [`visible`], for the inside of a file's line: tabs stay, and backslashes are not doubled.
pub fn visible_text(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    push_visible(&mut out, bytes, Keep::TabsAndBackslashes);
    out
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Nothing,
    TabsAndBackslashes,
}

fn push_visible(out: &mut String, bytes: &[u8], keep: Keep) {
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            push_character(out, character, keep);
        }
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
}

fn push_character(out: &mut String, character: char, keep: Keep) {
    let keep_plain = keep == Keep::TabsAndBackslashes;
    match character {
        '\t' | '\\' if keep_plain => out.push(character),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\\' => out.push_str("\\\\"),
        character if character.is_ascii_control() => {
            let _ = write!(out, "\\x{:02x}", character as u32);
        }
        character if is_deceptive(character) => {
            let _ = write!(out, "\\u{{{:x}}}", character as u32);
        }
        character => out.push(character),
    }
}

/// Whether a character is invisible, or changes how its neighbours are shown: C1 controls,
/// bidirectional marks and overrides, zero-width characters, tags, variation selectors and fillers.
pub fn is_deceptive(character: char) -> bool {
    matches!(character as u32,
        0x7f..=0x9f            // DEL and C1 controls
        | 0xad                 // soft hyphen
        | 0x034f               // combining grapheme joiner
        | 0x061c               // Arabic letter mark
        | 0x115f..=0x1160      // Hangul fillers
        | 0x17b4..=0x17b5      // Khmer inherent vowels
        | 0x180b..=0x180f      // Mongolian selectors
        | 0x200b..=0x200f      // zero width, LRM, RLM
        | 0x2028..=0x202e      // separators, embeddings, overrides
        | 0x2060..=0x206f      // word joiner, isolates, deprecated formats
        | 0x3164               // Hangul filler
        | 0xfe00..=0xfe0f      // variation selectors
        | 0xfeff               // byte order mark
        | 0xffa0               // half-width Hangul filler
        | 0xfff0..=0xfffb      // interlinear annotation
        | 0x1bca0..=0x1bca3    // shorthand format controls
        | 0x1d173..=0x1d17a    // musical format controls
        | 0xe0000..=0xe0fff    // tags and variation selectors
    )
}

/// Whether a text holds a character that [`is_deceptive`]; a leading byte order mark is allowed.
pub fn has_deceptive(bytes: &[u8]) -> bool {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    bytes.utf8_chunks().any(|chunk| chunk.valid().chars().any(|c| is_deceptive(c) && c != '\u{7f}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_what_a_terminal_would_act_on() {
        assert_eq!(visible(b"a\x1b[2Jb\x07\nc"), "a\\x1b[2Jb\\x07\\nc");
        assert_eq!(visible("x\u{202e}y\u{200b}".as_bytes()), "x\\u{202e}y\\u{200b}");
        assert_eq!(visible(b"\xff\xfe"), "\\xff\\xfe");
        assert_eq!(visible(b"a\\b"), "a\\\\b");
        assert_eq!(visible_text(b"a\\b\tc"), "a\\b\tc");
        assert_eq!(visible("\u{9b}31m".as_bytes()), "\\u{9b}31m");
    }

    #[test]
    fn a_byte_order_mark_alone_is_no_deception() {
        assert!(!has_deceptive("\u{feff}text".as_bytes()));
        assert!(has_deceptive("te\u{feff}xt".as_bytes()));
    }
}
