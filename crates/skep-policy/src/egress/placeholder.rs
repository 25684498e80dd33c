//! What stands inside for a secret: the same shape, nothing of the value but its public prefix.

/// Prefixes by which programs recognise what kind of key it is. Longest first where one begins another.
const PREFIXES: [&str; 19] = [
    "sk-ant-api03-",
    "sk-ant-oat01-",
    "sk-ant-",
    "sk-proj-",
    "sk-svcacct-",
    "sk-or-v1-",
    "sk-",
    "github_pat_",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "glpat-",
    "npm_",
    "pypi-",
    "hf_",
    "xoxb-",
    "AIza",
    "AKIA",
];

/// Below this length a placeholder could be hit by chance, so it is made longer than the value.
pub const SHORTEST: usize = 24;

/// A placeholder for `value`, made of `entropy`: known prefix kept, every digit a digit, every
/// letter a letter of the same case, everything else as it is. At least [`SHORTEST`] bytes long.
///
/// Bytes of `value` that are not plain ASCII become letters: the placeholder goes into header
/// lines and variables.
pub fn placeholder(value: &str, entropy: &[u8; 32]) -> String {
    let prefix = PREFIXES.iter().find(|prefix| value.starts_with(*prefix)).copied().unwrap_or("");
    let mut noise = Noise { state: *entropy, at: 0 };
    let mut text = prefix.to_owned();
    for character in value[prefix.len()..].chars() {
        text.push(match character {
            'a'..='z' => noise.of(b"abcdefghijklmnopqrstuvwxyz"),
            'A'..='Z' => noise.of(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
            '0'..='9' => noise.of(b"0123456789"),
            '-' | '_' | '.' | '+' | '=' | '/' | '~' => character,
            _ => noise.of(b"abcdefghijklmnopqrstuvwxyz"),
        });
    }
    while text.len() < SHORTEST {
        text.push(noise.of(b"abcdefghijklmnopqrstuvwxyz0123456789"));
    }
    text
}

/// The entropy, stretched by repetition with a turn: a placeholder is unguessable because 32
/// random bytes are, and needs to hide nothing.
struct Noise {
    state: [u8; 32],
    at: usize,
}

impl Noise {
    fn of(&mut self, alphabet: &[u8]) -> char {
        let turn = (self.at / self.state.len()) as u8;
        let byte = self.state[self.at % self.state.len()].wrapping_add(turn.wrapping_mul(101));
        self.at += 1;
        alphabet[usize::from(byte) % alphabet.len()].into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_shape_and_nothing_else() {
        let value = "sk-ant-api03-Ab9_xYz-0123456789abcdefABCDEF";
        let shown = placeholder(value, &[7; 32]);
        assert_eq!(shown.len(), value.len());
        assert!(shown.starts_with("sk-ant-api03-") && shown != value);
        let class = |text: &str| -> String {
            text.chars()
                .map(|c| match c {
                    'a'..='z' => 'a',
                    'A'..='Z' => 'A',
                    '0'..='9' => '0',
                    other => other,
                })
                .collect()
        };
        assert_eq!(class(&shown["sk-ant-api03-".len()..]), class(&value["sk-ant-api03-".len()..]));
        assert_ne!(shown, placeholder(value, &[8; 32]));
    }

    #[test]
    fn short_and_odd_values_get_a_long_plain_placeholder() {
        for value in ["", "x", "pässwörd\n\0", "ghp_x"] {
            let shown = placeholder(value, &[200; 32]);
            assert!(
                shown.len() >= SHORTEST && shown.bytes().all(|b| b.is_ascii_graphic()),
                "{shown}"
            );
        }
    }
}
