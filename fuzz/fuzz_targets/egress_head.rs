//! The head of an HTTP/1 request and of a CONNECT: what is taken has exactly one reading, and the parser
//! that reads it later agrees.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_egress::head::{find_end, inspect};

fuzz_target!(|data: &[u8]| {
    let Ok(Some(end)) = find_end(data) else { return };
    let head = &data[..end];
    assert!(head.ends_with(b"\r\n\r\n"));
    if inspect(head).is_err() {
        return;
    }
    let lines = head.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    assert!(lines.clone().all(|line| line.ends_with(b"\r") && !line.starts_with(b" ")));
    let hosts = lines.filter(|line| line.to_ascii_lowercase().starts_with(b"host:"));
    assert!(hosts.count() <= 1);
});
