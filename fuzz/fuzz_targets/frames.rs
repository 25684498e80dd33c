//! Bytes on the keeper's socket: frames are taken apart without ever taking more than is there, and
//! what was put together comes apart the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_keeper::{Reply, Request, parse_frame, push_frame};

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    while let Ok(Some((kind, payload, taken))) = parse_frame(rest) {
        assert!(taken > 0 && taken <= rest.len() && payload.len() < taken);
        let mut again = Vec::new();
        push_frame(&mut again, kind, payload);
        assert_eq!(again, &rest[..taken]);
        let _ = serde_json::from_slice::<Request>(payload);
        let _ = serde_json::from_slice::<Result<Reply, serde_json::Value>>(payload);
        rest = &rest[taken..];
    }
    let _ = serde_json::from_slice::<Request>(data);
});
