//! Three texts: a side that did not move gives the other one, equal sides give themselves, and a
//! clean merge does not depend on which side is called which.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_workspace::{Merged, merge_text};

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(3, |byte| *byte == 0xfe);
    let mut part = || parts.next().unwrap_or_default();
    let (base, ours, theirs) = (part(), part(), part());
    let clean = |base, ours, theirs| match merge_text(base, ours, theirs) {
        Merged::Clean(bytes) => Some(bytes),
        _ => None,
    };
    assert_eq!(clean(base, base, theirs).as_deref(), Some(theirs));
    assert_eq!(clean(base, ours, base).as_deref(), Some(ours));
    assert_eq!(clean(base, ours, ours).as_deref(), Some(ours));
    assert_eq!(clean(base, ours, theirs), clean(base, theirs, ours));
});
