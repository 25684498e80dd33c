//! Values to show and to answer with.

use skep_engine::api::{ApproveReport, SandboxView};
use skep_types::{
    Approval, ApprovalId, ApprovalKind, ApprovalState, Base, Change, ChangeKind, ChangeSet,
    Conflict, ContentHash, Drift, EnforcementReport, EntryState, ExecEnd, ExecStats, Hunk,
    HunkLine, Instant, Policy, RelPath, Risk, Sandbox, SandboxId, SandboxName, SandboxState,
    Selection, SpecialKind, Totals, WorkspaceDriver,
};
use std::collections::BTreeMap;

/// A stopped sandbox of project `/p`.
pub(crate) fn sandbox(name: &str) -> Sandbox {
    let mut random = [0; 10];
    for (slot, byte) in random.iter_mut().zip(name.bytes()) {
        *slot = byte;
    }
    Sandbox {
        id: SandboxId::from_random(random),
        name: SandboxName::parse(name).unwrap(),
        state: SandboxState::Stopped,
        state_reason: None,
        provider: "namespace".into(),
        project: "/p".into(),
        driver: WorkspaceDriver::OverlayUserns,
        base: Base {
            instant: Instant { wall_ns: 0, boot_ns: 0, boot_id: String::new() },
            device: 0,
            inode: 0,
            commit: None,
        },
        policy: Policy::default(),
        enforcement: EnforcementReport::default(),
        layers: Vec::new(),
        hidden: Vec::new(),
        keeper: None,
        labels: BTreeMap::new(),
        created_at: "2026-11-15T21:00:00Z".into(),
        updated_at: "2026-11-15T21:00:00Z".into(),
        version: 1,
    }
}

/// The same, looked at.
pub(crate) fn view(name: &str) -> SandboxView {
    SandboxView {
        sandbox: sandbox(name),
        upper_bytes: 4096,
        upper_inodes: 3,
        base_bytes: 0,
        system_bytes: 0,
        largest: Vec::new(),
        running: Vec::new(),
        warnings: Vec::new(),
        facts: Default::default(),
    }
}

/// An exec that exited.
pub(crate) fn end(exit_code: i32) -> ExecEnd {
    ExecEnd {
        stats: ExecStats {
            began_at_ns: None,
            ended_at_ms: None,
            duration_ms: Some(1_200),
            cpu_ms: 10,
            memory_peak_bytes: 3 << 20,
            stdout_bytes: 0,
            stderr_bytes: 0,
        },
        ..ExecEnd::exited(exit_code)
    }
}

fn file(bytes: &[u8], mode: u32) -> EntryState {
    EntryState::File { hash: ContentHash::of(bytes), size: bytes.len() as u64, mode }
}

fn change(path: &[u8], kind: ChangeKind, old: EntryState, new: EntryState) -> Change {
    Change::new(RelPath::parse(path).unwrap(), kind, old, new)
}

fn set(changes: Vec<Change>) -> ChangeSet {
    let ignored = changes.iter().filter(|change| change.ignored).count() as u64;
    ChangeSet {
        sandbox: SandboxName::parse("bar1").unwrap(),
        base: "none".into(),
        digest: ChangeSet::digest_of(&changes, &Default::default()),
        beside: None,
        conflicts: Vec::new(),
        drift: Vec::new(),
        warnings: Vec::new(),
        totals: Totals {
            files: changes.len() as u64 - ignored,
            added: changes.iter().map(|change| change.added).sum(),
            removed: changes.iter().map(|change| change.removed).sum(),
            ignored,
        },
        changes,
    }
}

/// Nothing changed.
pub(crate) fn empty_change_set() -> ChangeSet {
    set(Vec::new())
}

/// One change of each kind that is shown in its own way; `a.txt` first.
pub(crate) fn change_set() -> ChangeSet {
    let absent = || EntryState::Absent;
    let text = Change {
        added: 1,
        removed: 1,
        hunks: vec![Hunk {
            id: "0123456789abcdef".parse().unwrap(),
            old_start: 1,
            old_lines: 1,
            new_start: 1,
            new_lines: 1,
            lines: vec![HunkLine::Removed("one\n".into()), HunkLine::Added("ONE".into())],
        }],
        ..change(b"a.txt", ChangeKind::Modified, file(b"one\n", 0o644), file(b"ONE", 0o644))
    };
    let hook = Change {
        risk: Risk::Block,
        risk_reasons: vec!["runs on the host".into()],
        ..change(b".git/hooks/post-commit", ChangeKind::Added, absent(), file(b"#!", 0o755))
    };
    let mode = change(b"tool", ChangeKind::Mode, file(b"t", 0o644), file(b"t", 0o755));
    let link = EntryState::Symlink { target: "/etc/passwd".into() };
    let link = Change {
        risk: Risk::Ask,
        risk_reasons: vec!["leaves the project".into()],
        ..change(b"out", ChangeKind::Added, absent(), link)
    };
    let binary = Change {
        binary: true,
        ..change(b"bad\xff", ChangeKind::Added, absent(), file(b"\0ab", 0o644))
    };
    let renamed = Change {
        renamed_from: Some(RelPath::parse(b"old").unwrap()),
        ..change(b"new", ChangeKind::Renamed, file(b"r", 0o644), file(b"r", 0o644))
    };
    let fifo = EntryState::Special { what: SpecialKind::Fifo };
    let fifo = change(b"pipe", ChangeKind::Special, absent(), fifo);
    let built = Change {
        ignored: true,
        binary: true,
        ..change(b"target/out.o", ChangeKind::Added, absent(), file(b"\0", 0o644))
    };
    set(vec![text, hook, mode, link, binary, renamed, fifo, built])
}

/// Names, targets, lines and reasons that try to reach the terminal.
pub(crate) fn hostile_change_set() -> ChangeSet {
    let evil: &[u8] = b"x\x1b[2J\r\n+++ b/forged\x07\xe2\x80\xae\xe2\x80\x8b\xff";
    let line = b"\x1b]52;c;Zm9v\x07 \xe2\x80\xae \xc2\x9b31m\rforged\n".to_vec();
    let text = Change {
        added: 1,
        risk: Risk::Block,
        risk_reasons: vec!["\x1b[31mreason\u{202e}".into()],
        renamed_from: Some(RelPath::parse(evil).unwrap()),
        hunks: vec![Hunk {
            id: "0123456789abcdef".parse().unwrap(),
            old_start: 0,
            old_lines: 0,
            new_start: 1,
            new_lines: 1,
            lines: vec![HunkLine::Added(line.into())],
        }],
        ..change(evil, ChangeKind::Renamed, file(b"", 0o644), file(b"x", 0o644))
    };
    let link = EntryState::Symlink { target: evil.into() };
    let link = change(b"link", ChangeKind::Added, EntryState::Absent, link);
    let mut set = set(vec![text, link]);
    let path = RelPath::parse(evil).unwrap();
    set.conflicts.push(Conflict { path: path.clone(), reason: "\x1b[0m".into() });
    set.drift.push(Drift { path, merges: true, reason: "\x1b[0m".into() });
    set.warnings.push("\x1b[0m\u{200b}".into());
    set
}

/// An approval of everything, as it is remembered.
pub(crate) fn approval(name: &str) -> Approval {
    Approval {
        id: ApprovalId::from_random([1; 10]),
        sandbox: sandbox(name).id,
        sandbox_name: SandboxName::parse(name).unwrap(),
        project: "/p".into(),
        kind: ApprovalKind::Approve,
        state: ApprovalState::Committed,
        digest: change_set().digest,
        selection: Selection::default(),
        paths: Vec::new(),
        commit: None,
        approver: "somebody".into(),
        at: "2026-11-15T21:00:00Z".into(),
    }
}

/// An approval of `a.txt`.
pub(crate) fn approve_report() -> ApproveReport {
    ApproveReport {
        approval: Some(ApprovalId::from_random([1; 10])),
        digest: change_set().digest,
        applied: vec![RelPath::parse(b"a.txt").unwrap()],
        remaining: 7,
        remaining_ignored: 1,
        commit: None,
        notes: Vec::new(),
    }
}
