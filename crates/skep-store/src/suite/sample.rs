//! Values to store: small, whole, different where a seed differs.

use crate::{NewEvent, Snapshot};
use skep_types::{
    AppliedPath, Approval, ApprovalId, ApprovalKind, ApprovalState, Base, ChangeRules,
    ChangeSetDigest, ContentHash, EnforcementReport, EntryState, Exec, ExecEnd, ExecId, ExecSpec,
    Instant, Layer, LayerId, Policy, RelPath, Sandbox, SandboxId, SandboxName, SandboxState,
    Selection, WorkspaceDriver,
};
use std::collections::BTreeMap;

/// Ten bytes from a number; ids of different numbers differ in their first characters.
pub fn random(seed: u64) -> [u8; 10] {
    let hash = ContentHash::of(&seed.to_le_bytes());
    let mut bytes = [0; 10];
    bytes.copy_from_slice(&hash.as_bytes()[..10]);
    bytes
}

/// A sandbox id.
pub fn sandbox_id(seed: u64) -> SandboxId {
    SandboxId::from_random(random(seed))
}

/// A layer id.
pub fn layer(seed: u64) -> LayerId {
    LayerId::from_random(random(seed))
}

/// A time: `second` seconds into a day.
pub fn time(second: u32) -> String {
    format!("2026-03-04T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// A path.
pub fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

/// What a project was.
pub fn base() -> Base {
    let instant =
        Instant { wall_ns: 1_772_582_400_123_456_789, boot_ns: 99, boot_id: "boot".into() };
    Base { instant, device: 7, inode: u64::MAX, commit: Some("c0ffee".into()) }
}

/// A sandbox that is being created.
pub fn sandbox(seed: u64, name: &str) -> Sandbox {
    let mut enforcement = EnforcementReport::default();
    enforcement.on(Layer::Filesystem, "overlay");
    Sandbox {
        id: sandbox_id(seed),
        name: SandboxName::parse(name).unwrap(),
        state: SandboxState::Creating,
        state_reason: None,
        provider: "namespace".into(),
        project: "/home/bee/garden".into(),
        driver: WorkspaceDriver::OverlayUserns,
        base: base(),
        policy: Policy::default(),
        enforcement,
        layers: Vec::new(),
        hidden: vec![path(".env")],
        keeper: None,
        labels: BTreeMap::from([("task".into(), "π".into())]),
        created_at: time(0),
        updated_at: time(0),
        version: 1,
    }
}

/// A running exec.
pub fn exec(seed: u64, sandbox: &SandboxId) -> Exec {
    Exec {
        id: ExecId::from_random(random(seed)),
        sandbox: sandbox.clone(),
        spec: ExecSpec { argv: vec!["sh".into(), b"\xff\n".as_slice().into()], ..<_>::default() },
        started_at: time(1),
        end: None,
        enforcement: EnforcementReport::default(),
    }
}

/// An end.
pub fn end(exit_code: i32) -> ExecEnd {
    ExecEnd::exited(exit_code)
}

/// An approval of these paths that is about to be staged.
pub fn approval(seed: u64, from: &Sandbox, paths: &[&str]) -> Approval {
    let applied = |text: &&str| AppliedPath {
        path: path(text),
        before: EntryState::Absent,
        after: EntryState::File { hash: ContentHash::of(b"honey"), size: 5, mode: 0o644 },
        exec: None,
    };
    Approval {
        id: ApprovalId::from_random(random(seed)),
        sandbox: from.id.clone(),
        sandbox_name: from.name.clone(),
        project: from.project.clone(),
        kind: ApprovalKind::Approve,
        state: ApprovalState::Applying,
        digest: ChangeSetDigest::from_bytes([3; 32]),
        selection: Selection::default(),
        paths: paths.iter().map(applied).collect(),
        commit: None,
        approver: "bee".into(),
        at: time(2),
    }
}

/// A snapshot on these layers.
pub fn snapshot(sandbox: &SandboxId, label: &str, layers: &[LayerId]) -> Snapshot {
    Snapshot {
        sandbox: sandbox.clone(),
        label: label.into(),
        layers: layers.to_vec(),
        driver: WorkspaceDriver::OverlayUserns,
        base: base(),
        project: "/home/bee/garden".into(),
        rules: ChangeRules { allow: vec!["src/**".into()], deny: vec!["*.lock".into()] },
        workdir: Some("/home/bee/garden/beds".into()),
        reach: Some(4_096),
        created_at: time(3),
    }
}

/// An event.
pub fn event(kind: &str, second: u32) -> NewEvent {
    NewEvent {
        at: time(second),
        kind: kind.into(),
        sandbox: None,
        exec: None,
        data: serde_json::json!({"kind": kind}),
    }
}
