//! Any path and any text get a class. Whatever lies in a `.git` is blocked, however it is written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_policy::{ChangeFacts, PathSelector, RiskTable};
use skep_types::{ByteString, Change, ChangeKind, ContentHash, EntryState, RelPath, Risk};

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(3, |byte| *byte == b'\n');
    let mut part = || parts.next().unwrap_or_default();
    let (name, word, text) = (part(), part(), part());
    if let Ok(selector) = PathSelector::parse(&[ByteString::from(word.to_vec())])
        && let Ok(path) = RelPath::parse(name)
    {
        let _ = selector.matches(&path);
    }
    let Ok(path) = RelPath::parse(name) else { return };
    let new = match word.first() {
        Some(b'l') => EntryState::Symlink { target: text.to_vec().into() },
        Some(b'd') => EntryState::Dir { mode: 0o755 },
        _ => EntryState::File { hash: ContentHash::of(text), size: text.len() as u64, mode: 0o644 },
    };
    let change = Change::new(path.clone(), ChangeKind::Added, EntryState::Absent, new);
    let facts = ChangeFacts { text: Some(text), ..ChangeFacts::default() };
    let (risk, reasons) = RiskTable::builtin().classify(&change, &facts);
    assert_eq!(risk == Risk::None, reasons.is_empty());
    let git = path.components().any(|part| part.eq_ignore_ascii_case(b".git"));
    assert!(!git || risk == Risk::Block, "{path:?} is {risk:?}");
});
