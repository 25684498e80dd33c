//! The first bytes of a connection: an answer never changes with more bytes, a hello comes out the same
//! however it is split.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_egress::first_bytes::{FirstBytes, classify};
use skep_egress::hello::{Hello, HelloReader};

fuzz_target!(|data: &[u8]| {
    let Some((cut, data)) = data.split_first() else { return };
    let cut = usize::from(*cut).min(data.len());
    let early = classify(&data[..cut]);
    assert!(early == FirstBytes::NeedMore || early == classify(data));

    let whole = HelloReader::default().look(data);
    let mut split = HelloReader::default();
    let found = match split.look(&data[..cut]) {
        Hello::NeedMore => split.look(data),
        other => other,
    };
    assert_eq!(found, whole);
});
