//! The binary as an egress process: what the keeper starts beside a sandbox with allow rules.

use crate::output::Output;
use std::ffi::OsString;

/// Serves until the keeper is gone. One line on standard error says why it could not.
pub(crate) fn main(words: &[OsString]) -> u8 {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    match skep_egress::main(&words, || jiff::Timestamp::now().to_string()) {
        Ok(()) => 0,
        Err(error) => {
            Output::standard().always(&format!("skep: the egress process cannot run: {error}"));
            125
        }
    }
}
