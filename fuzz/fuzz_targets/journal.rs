//! The journal is refused when its checksum is wrong, and understood or refused when it is right.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_workspace::apply::steps_of;

fuzz_target!(|data: &[u8]| {
    let _ = steps_of(data);
    let mut checked = data.to_vec();
    checked.push(b'\n');
    checked.extend_from_slice(blake3::hash(data).to_hex().as_bytes());
    checked.push(b'\n');
    let read = steps_of(&checked);
    // One bit off, and it is no journal.
    if read.is_some() {
        let at = checked.len() / 2;
        checked[at] ^= 1;
        assert_eq!(steps_of(&checked), None);
    }
});
