//! Every entry of the data file, and every decision that is not in it.

use super::*;
use skep_types::{ByteString, ChangeKind, ContentHash, SpecialKind};

fn path(bytes: &[u8]) -> RelPath {
    RelPath::parse(bytes).unwrap()
}

fn file(mode: u32) -> EntryState {
    EntryState::File { hash: ContentHash::from_bytes([0; 32]), size: 0, mode }
}

fn link(target: &str) -> EntryState {
    EntryState::Symlink { target: ByteString::from(target) }
}

fn change(bytes: &[u8], old: EntryState, new: EntryState) -> Change {
    Change::new(path(bytes), ChangeKind::Modified, old, new)
}

fn classify(change: &Change) -> (Risk, Vec<String>) {
    RiskTable::builtin().classify(change, &ChangeFacts::default())
}

fn added(bytes: &[u8]) -> Risk {
    classify(&change(bytes, EntryState::Absent, file(0o644))).0
}

#[test]
fn the_data_file_is_sound() {
    let table = RiskTable::builtin();
    assert!(table.version() >= 1);
    assert!(table.entries().len() > 150);
    for entry in table.entries() {
        assert_ne!(entry.class, Risk::None, "{}", entry.pattern);
        assert!(entry.reason.len() > 5, "{}", entry.pattern);
        // Paths are folded before they are compared, so an upper-case pattern could never match.
        assert_eq!(entry.pattern, entry.pattern.to_lowercase());
        assert!(!entry.pattern.starts_with('/') && !entry.pattern.starts_with("**"));
    }
    let mut patterns: Vec<_> = table.entries().iter().map(|entry| &entry.pattern).collect();
    patterns.sort();
    patterns.dedup();
    assert_eq!(patterns.len(), table.entries().len(), "a pattern stands twice");
}

#[test]
fn every_entry_matches_its_sample_at_every_depth_and_in_capitals() {
    for entry in RiskTable::builtin().entries() {
        for prefix in ["", "a/", "a/b/c/d/e/", "a/b/c/d/e/f/g/h/i/"] {
            for sample in [entry.sample.to_owned(), entry.sample.to_uppercase()] {
                let at = format!("{prefix}{sample}");
                for new in [file(0o644), EntryState::Absent] {
                    let (risk, reasons) = classify(&change(at.as_bytes(), file(0o644), new));
                    assert!(risk >= entry.class, "{at}");
                    assert!(
                        reasons.iter().any(|reason| reason == entry.reason),
                        "{at}: {reasons:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_entry_is_needed_for_its_sample() {
    // With the entry taken out, the sample loses its reason: the test above can fail.
    let table = RiskTable::builtin();
    for (index, entry) in table.entries().iter().enumerate() {
        let mut less = table.clone();
        let mut entries = table.entries().to_vec();
        entries[index].reason = "gone";
        less.entries = entries.leak();
        let change = change(entry.sample.as_bytes(), EntryState::Absent, file(0o644));
        let (_, reasons) = less.classify(&change, &ChangeFacts::default());
        assert!(reasons.contains(&"gone".into()), "{}", entry.pattern);
    }
}

#[test]
fn ordinary_files_carry_no_risk() {
    for plain in [
        "src/main.rs",
        "README.md",
        "docs/git.md",
        "x.git/readme",
        "gitignore",
        ".github/FUNDING.yml",
        "environment.ts",
        "src/vscode/tasks.json",
        "claude.rs",
        "notes/agents.txt",
        "a/b/c/d/e/f.py",
    ] {
        assert_eq!(
            classify(&change(plain.as_bytes(), file(0o644), file(0o644))),
            (Risk::None, vec![]),
            "{plain}"
        );
    }
}

#[test]
fn the_git_handoff_set_is_blocked() {
    for blocked in [
        ".git",
        ".git/config",
        ".git/config.worktree",
        ".git/info/attributes",
        ".git/modules/x/config",
        ".git/worktrees/w/gitdir",
        ".git/objects/info/alternates",
        "vendor/lib/.git/hooks/post-checkout",
        "vendor/lib/.git",
        ".GIT/config",
        ".git./config",
        ".git /config",
        "git~1/config",
        "GIT~2/hooks/x",
        ".g\u{200c}it/config",
        "a/b/c/d/e/.g\u{200d}IT/hooks/pre-commit",
        ".git::$INDEX_ALLOCATION/config",
        ".git\\hooks\\pre-commit",
    ] {
        assert_eq!(added(blocked.as_bytes()), Risk::Block, "{blocked}");
        let deleted = change(blocked.as_bytes(), file(0o644), EntryState::Absent);
        assert_eq!(classify(&deleted).0, Risk::Block, "{blocked}");
    }
    assert_eq!(added(b".gitmodules"), Risk::Ask);
    assert_eq!(added(b".gitattributes"), Risk::Ask);
}

#[test]
fn moving_a_risky_file_away_counts_too() {
    let mut moved = change(b"plain.txt", EntryState::Absent, file(0o644));
    moved.kind = ChangeKind::Renamed;
    moved.renamed_from = Some(path(b".git/hooks/pre-commit"));
    let (risk, reasons) = classify(&moved);
    assert_eq!(risk, Risk::Block);
    assert!(reasons[0].starts_with("moved away from `.git/hooks/pre-commit`: "), "{reasons:?}");
}

#[test]
fn bare_repositories_come_from_the_facts() {
    let change = change(b"vendor/x/config", EntryState::Absent, file(0o644));
    let facts = ChangeFacts { in_bare_repository: true, ..ChangeFacts::default() };
    assert_eq!(RiskTable::builtin().classify(&change, &facts).0, Risk::Block);
    assert_eq!(classify(&change).0, Risk::None);
}

#[test]
fn links_that_leave_ask() {
    for (target, expected) in [
        ("../shared", Risk::None),
        ("../../outside", Risk::Ask),
        ("/etc/passwd", Risk::Ask),
        ("/proc/1/environ", Risk::Ask),
        ("../.git/hooks", Risk::Ask),
        ("sibling", Risk::None),
        ("sib\u{200b}ling", Risk::Note),
    ] {
        let (risk, reasons) = classify(&change(b"dir/link", EntryState::Absent, link(target)));
        assert_eq!(risk, expected, "{target}: {reasons:?}");
    }
}

#[test]
fn a_link_in_place_of_a_risky_directory_has_its_class() {
    for (at, expected) in [
        (".claude", Risk::Ask),
        (".vscode", Risk::Ask),
        ("a/b/.cargo", Risk::Ask),
        (".github", Risk::Ask),
        (".git", Risk::Block),
        ("gradle", Risk::Ask),
    ] {
        let change = change(at.as_bytes(), EntryState::Absent, link("payload"));
        assert_eq!(classify(&change).0, expected, "{at}");
    }
    let directory = change(b".github", EntryState::Absent, EntryState::Dir { mode: 0o755 });
    assert_eq!(classify(&directory).0, Risk::None);
}

#[test]
fn permission_bits_and_special_files() {
    let judge = |old: EntryState, new: EntryState| classify(&change(b"tool", old, new)).0;
    assert_eq!(judge(file(0o644), file(0o755)), Risk::Note);
    assert_eq!(judge(EntryState::Absent, file(0o755)), Risk::Note);
    assert_eq!(judge(file(0o755), file(0o755)), Risk::None);
    assert_eq!(judge(file(0o700), file(0o755)), Risk::None);
    assert_eq!(judge(file(0o644), file(0o666)), Risk::Note);
    assert_eq!(judge(file(0o755), file(0o4755)), Risk::Ask);
    assert_eq!(judge(file(0o755), file(0o2755)), Risk::Ask);
    let directory = |mode| EntryState::Dir { mode };
    assert_eq!(judge(directory(0o2755), directory(0o2775)), Risk::None);
    assert_eq!(judge(directory(0o755), directory(0o2755)), Risk::Ask);
    assert_eq!(judge(directory(0o755), directory(0o1777)), Risk::Note);
    assert_eq!(judge(directory(0o755), directory(0o777)), Risk::Note);
    for what in
        [SpecialKind::Fifo, SpecialKind::Socket, SpecialKind::CharDevice, SpecialKind::BlockDevice]
    {
        assert_eq!(judge(EntryState::Absent, EntryState::Special { what }), Risk::Ask);
    }
}

#[test]
fn deceptive_characters_are_noted() {
    for name in ["a\u{202e}b", "a\u{200b}", "line\nbreak", "\u{1b}[2J"] {
        assert_eq!(added(name.as_bytes()), Risk::Note, "{name:?}");
    }
    assert_eq!(added(b"\xff\xfe"), Risk::Note);
    let change = change(b"a.c", file(0o644), file(0o644));
    let with = |text: &str| {
        let facts = ChangeFacts { text: Some(text.as_bytes()), ..ChangeFacts::default() };
        RiskTable::builtin().classify(&change, &facts).0
    };
    assert_eq!(with("if (admin\u{202e}) {"), Risk::Note);
    assert_eq!(with("\u{1b}]52;c;x\u{7}"), Risk::Note);
    assert_eq!(with("\u{feff}plain"), Risk::None);
    assert_eq!(with("plain é"), Risk::None);
}

#[test]
fn the_gravest_reason_stands_first() {
    let (risk, reasons) = classify(&change(b".GIT/Makefile", EntryState::Absent, file(0o755)));
    assert_eq!(risk, Risk::Block);
    assert!(reasons[0].contains("`.git`"), "{reasons:?}");
    assert_eq!(reasons.last().unwrap(), "becomes executable");
}

#[test]
fn the_tables_are_in_the_order_in_which_they_are_searched() {
    let table = RiskTable::builtin();
    let bare = |entry: &RiskEntry| entry.pattern.strip_suffix("/**").unwrap_or(entry.pattern);
    let names: Vec<&[u8]> = table.entries().iter().map(|entry| bare(entry).as_bytes()).collect();
    let (leading_entry, leading): (Vec<usize>, Vec<&[u8]>) = names
        .iter()
        .enumerate()
        .flat_map(|(index, name)| parents(name).map(move |parent| (index, parent)))
        .unzip();
    assert_eq!(table.patterns, NameTable::new(names));
    assert_eq!(table.leading, NameTable::new(leading));
    assert_eq!(table.leading_entry, leading_entry);
}

proptest::proptest! {
    #[test]
    fn no_path_panics_and_git_never_slips_through(
        before in proptest::collection::vec("[a-z][a-zA-Z.]{0,5}", 0..4),
        dots in "[. ]{0,3}", letters in "[.][gG][iI][tT]", after in "[a-z]{0,5}",
    ) {
        let mut names = before;
        names.push(format!("{letters}{dots}"));
        if !after.is_empty() { names.push(after); }
        proptest::prop_assert_eq!(added(names.join("/").as_bytes()), Risk::Block);
    }

    #[test]
    fn any_bytes_are_classified(bytes in proptest::collection::vec(1u8.., 0..40)) {
        if let Ok(path) = RelPath::parse(&bytes) && !path.is_root() {
            added(path.as_bytes());
        }
    }
}
