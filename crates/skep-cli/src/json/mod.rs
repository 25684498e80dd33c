//! The JSON documents whose keys CLI.md promises. Views of their own: a field renamed inside must
//! not rename a key outside.

pub(crate) mod approval;
pub(crate) mod change_set;
pub(crate) mod error;
pub(crate) mod exec;
pub(crate) mod layer;
pub(crate) mod sandbox;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Base64, for bytes that are not text.
pub(crate) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The lossy text, and the exact bytes where the text is not exact.
pub(crate) fn text_and_bytes(bytes: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => (String::from_utf8_lossy(bytes).into_owned(), Some(base64(bytes))),
    }
}
