//! Any two texts: all hunks give the new one, none the old one, any subset fits, and hunks of
//! another diff are refused or fit, but never panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_types::{Hunk, RelPath};
use skep_workspace::{apply_hunks, diff_lines};

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(4, |byte| *byte == 0xfe);
    let mut part = || parts.next().unwrap_or_default();
    let (old, new, other, mask) = (part(), part(), part(), part());
    let Ok(path) = RelPath::parse(b"a") else { return };
    let diff = diff_lines(&path, old, new);
    let all: Vec<&Hunk> = diff.hunks.iter().collect();
    assert_eq!(apply_hunks(old, &all).as_deref(), Ok(new));
    assert_eq!(apply_hunks(old, &[]).as_deref(), Ok(old));
    let chosen = |at: usize| mask.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
    let some: Vec<&Hunk> =
        all.iter().enumerate().filter(|(at, _)| chosen(*at)).map(|(_, hunk)| *hunk).collect();
    assert!(apply_hunks(old, &some).is_ok());
    let _ = apply_hunks(other, &some);
    let twice: Vec<&Hunk> = all.iter().chain(&all).copied().collect();
    let _ = apply_hunks(old, &twice);
    // Hunks come back from JSON as they were.
    for hunk in &diff.hunks {
        let text = serde_json::to_string(hunk).unwrap_or_default();
        assert_eq!(serde_json::from_str::<Hunk>(&text).ok().as_ref(), Some(hunk));
    }
    if let Ok(hunk) = serde_json::from_slice::<Hunk>(data) {
        let _ = apply_hunks(old, &[&hunk]);
    }
});
