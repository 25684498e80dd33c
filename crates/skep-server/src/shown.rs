//! Output of an exec inside an answer.

use serde_json::{Value, json};

/// Output of a waited-for exec in its answer; all of it is in the log.
const SHOWN: usize = 4 << 20;

/// What was written to both streams, as far as it is shown.
#[derive(Default)]
pub(crate) struct Shown {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    cut: bool,
}

impl Shown {
    /// Takes in what was written to a stream.
    pub(crate) fn add(&mut self, stream: &str, bytes: &[u8]) {
        let kept = match stream {
            "stdout" => &mut self.stdout,
            "stderr" => &mut self.stderr,
            _ => return,
        };
        let room = SHOWN.saturating_sub(kept.len()).min(bytes.len());
        self.cut |= room < bytes.len();
        kept.extend_from_slice(&bytes[..room]);
    }

    /// An exec's document, with its output: as text, or as base64 where it is none.
    pub(crate) fn with(self, mut exec: Value) -> Value {
        for (key, bytes) in [("stdout", self.stdout), ("stderr", self.stderr)] {
            match String::from_utf8(bytes) {
                Ok(text) => exec[key] = json!(text),
                Err(error) => {
                    let text = skep_client::wire::base64(error.as_bytes());
                    exec[format!("{key}_b64")] = json!(text);
                }
            }
        }
        if self.cut {
            exec["truncated"] = json!(true);
        }
        exec
    }
}
