//! What the HTTP side asks of a worker: one variant per question, as data.

use serde::{Deserialize, Serialize};
use skep_engine::api::{ApproveRequest, CreateRequest, EgressChange, GcRequest, ListFilter};
use skep_engine::{Page, Patch, PoolOwner};
use skep_types::{ChangeSetDigest, ExecSpec, Problem, SandboxId, SandboxName, Selection};
use std::path::PathBuf;
use std::time::Duration;

/// One question. Sandboxes, execs and approvals are named as callers name them; the worker
/// resolves the names.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub(crate) enum Call {
    Create {
        request: Box<CreateRequest>,
    },
    Find {
        sandbox: String,
    },
    Newest {
        project: PathBuf,
    },
    Show {
        sandbox: String,
    },
    List {
        filter: ListFilter,
    },
    Page {
        filter: ListFilter,
        page: Page,
    },
    /// Leaves nothing of a deleted sandbox in the store.
    Forget {
        sandbox: SandboxId,
    },
    Patch {
        sandbox: String,
        patch: Box<Patch>,
    },
    Start {
        sandbox: String,
    },
    Stop {
        sandbox: String,
    },
    Freeze {
        sandbox: String,
    },
    Thaw {
        sandbox: String,
    },
    Remove {
        sandbox: String,
        discard: bool,
    },
    Exec {
        sandbox: String,
        spec: Box<ExecSpec>,
        company: Company,
        /// Whether nobody is attached who would end it: without a wall clock of its own it gets the one
        /// that the settings say.
        clocked: bool,
        /// Whether the sandbox ends with it.
        last: bool,
    },
    FindExec {
        exec: String,
    },
    Execs {
        sandbox: String,
    },
    Logs {
        exec: String,
        from: u64,
        limit: usize,
    },
    Kill {
        exec: String,
        signal: i32,
    },
    Diff {
        sandbox: String,
        /// Without the lines.
        brief: bool,
    },
    Approve {
        sandbox: String,
        request: Box<ApproveRequest>,
    },
    Reject {
        sandbox: String,
        selection: Selection,
        digest: Option<ChangeSetDigest>,
        reason: Option<String>,
    },
    Undo {
        approval: Option<String>,
        project: PathBuf,
    },
    Finish {
        approval: String,
    },
    Egress {
        sandbox: String,
    },
    ChangeEgress {
        sandbox: String,
        change: EgressChange,
    },
    ProbeEgress {
        sandbox: String,
        targets: Vec<(String, u16)>,
    },
    RevokeSecret {
        sandbox: String,
        name: String,
    },
    Abandon {
        approval: String,
    },
    Pull {
        sandbox: String,
        branch: Option<String>,
    },
    CopyOut {
        sandbox: String,
        path: skep_types::ByteString,
        to: PathBuf,
    },
    CopyIn {
        sandbox: String,
        path: skep_types::ByteString,
        from: PathBuf,
    },
    StatFile {
        sandbox: String,
        path: skep_types::ByteString,
    },
    ListFiles {
        sandbox: String,
        path: skep_types::ByteString,
    },
    /// The answer carries the file.
    ReadFile {
        sandbox: String,
        path: skep_types::ByteString,
    },
    /// The question carries the file.
    WriteFile {
        sandbox: String,
        path: skep_types::ByteString,
    },
    MakeDirectory {
        sandbox: String,
        path: skep_types::ByteString,
        parents: bool,
    },
    RemoveFile {
        sandbox: String,
        path: skep_types::ByteString,
        recursive: bool,
    },
    MoveFile {
        sandbox: String,
        from: skep_types::ByteString,
        to: skep_types::ByteString,
    },
    /// The answer carries the archive as a file.
    Pack {
        sandbox: String,
        path: skep_types::ByteString,
    },
    /// The question carries the archive as a file.
    Unpack {
        sandbox: String,
        path: skep_types::ByteString,
    },
    /// The answer carries a socket on which changes are told, a line each.
    Watch {
        sandbox: String,
        path: skep_types::ByteString,
    },
    Conflicts {
        sandbox: String,
    },
    Rebase {
        sandbox: String,
    },
    Sides {
        sandbox: String,
        path: skep_types::ByteString,
    },
    History {
        project: PathBuf,
        path: Option<skep_types::ByteString>,
    },
    Approval {
        approval: String,
    },
    Receipt {
        approval: String,
    },
    Snapshot {
        sandbox: String,
        label: Option<String>,
    },
    Snapshots {
        sandbox: String,
    },
    Restore {
        sandbox: String,
        label: String,
    },
    Fork {
        sandbox: String,
        count: u32,
        name: Option<SandboxName>,
    },
    Compare {
        sandboxes: Vec<String>,
    },
    Templates,
    SaveTemplate {
        sandbox: String,
        name: SandboxName,
    },
    RemoveTemplate {
        name: SandboxName,
    },
    Providers,
    Doctor,
    Gc {
        request: GcRequest,
    },
    Events {
        after: u64,
        limit: usize,
    },
    Config {
        project: Option<PathBuf>,
    },
    Stats,
    Tally,
    Settle,
    CheckStore,
    FillPools {
        owner: PoolOwner,
    },
    DrainPools,
}

/// Who is with an exec while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Company {
    /// Nobody: it is looked at later.
    Nobody,
    /// Somebody who gives input, or wants the output as it comes.
    Attached,
    /// Somebody who wants nothing but its end, with what it said until then.
    Waiting,
}

/// A question with who asks it, and under which conditions.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The question.
    #[serde(flatten)]
    pub(crate) call: Call,
    /// In whose name approvals are given.
    pub(crate) actor: Option<String>,
    /// The only sandbox that may be named; all others do not exist.
    pub(crate) bound: Option<SandboxId>,
    /// Whether the asker may run commands where nothing holds them.
    pub(crate) unfenced: bool,
    /// The version the sandbox must still have.
    pub(crate) version: Option<u64>,
    /// Act once for this key.
    pub(crate) key: Option<Key>,
}

/// An idempotency key and what the request said.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Key {
    /// Unique by asker, route and what was sent.
    pub(crate) key: String,
    /// The request, for the comparison.
    pub(crate) request: String,
}

impl Order {
    /// A question of the server itself.
    pub(crate) fn own(call: Call) -> Self {
        Self { call, actor: None, bound: None, unfenced: true, version: None, key: None }
    }
}

impl Call {
    /// How long a worker may take for it. Looking at a large workspace takes a while; what changes
    /// something may run a check, or carry gigabytes.
    pub(crate) fn patience(&self) -> Duration {
        match self {
            Self::Find { .. }
            | Self::Newest { .. }
            | Self::FindExec { .. }
            | Self::Execs { .. }
            | Self::Logs { .. }
            | Self::Events { .. }
            | Self::Config { .. }
            | Self::Approval { .. }
            | Self::History { .. }
            | Self::Receipt { .. }
            | Self::Tally
            | Self::Egress { .. } => Duration::from_secs(60),
            Self::Show { .. }
            | Self::List { .. }
            | Self::Page { .. }
            | Self::Diff { .. }
            | Self::Conflicts { .. }
            | Self::Compare { .. }
            | Self::Stats
            | Self::Doctor
            | Self::CheckStore
            | Self::Settle => Duration::from_secs(600),
            _ => Duration::from_secs(3600),
        }
    }

    /// Whether it changes nothing that is remembered. To end a command is no such change: that it has
    /// ended is noticed later.
    pub(crate) fn only_reads(&self) -> bool {
        match self {
            Self::Find { .. }
            | Self::Newest { .. }
            | Self::Show { .. }
            | Self::List { .. }
            | Self::Page { .. }
            | Self::FindExec { .. }
            | Self::Execs { .. }
            | Self::Logs { .. }
            | Self::Kill { .. }
            | Self::Diff { .. }
            | Self::Egress { .. }
            | Self::StatFile { .. }
            | Self::ListFiles { .. }
            | Self::ReadFile { .. }
            | Self::Pack { .. }
            | Self::Watch { .. }
            | Self::Conflicts { .. }
            | Self::Sides { .. }
            | Self::History { .. }
            | Self::Approval { .. }
            | Self::Receipt { .. }
            | Self::Snapshots { .. }
            | Self::Compare { .. }
            | Self::Templates
            | Self::Providers
            | Self::Doctor
            | Self::Events { .. }
            | Self::Config { .. }
            | Self::Stats
            | Self::CheckStore
            | Self::Tally => true,
            Self::Gc { request } => request.dry_run,
            Self::Create { .. }
            | Self::Forget { .. }
            | Self::Patch { .. }
            | Self::Start { .. }
            | Self::Stop { .. }
            | Self::Freeze { .. }
            | Self::Thaw { .. }
            | Self::Remove { .. }
            | Self::Exec { .. }
            | Self::Approve { .. }
            | Self::Reject { .. }
            | Self::Undo { .. }
            | Self::Finish { .. }
            | Self::ChangeEgress { .. }
            | Self::ProbeEgress { .. }
            | Self::RevokeSecret { .. }
            | Self::Abandon { .. }
            | Self::Pull { .. }
            | Self::CopyOut { .. }
            | Self::CopyIn { .. }
            | Self::WriteFile { .. }
            | Self::MakeDirectory { .. }
            | Self::RemoveFile { .. }
            | Self::MoveFile { .. }
            | Self::Unpack { .. }
            | Self::Rebase { .. }
            | Self::Snapshot { .. }
            | Self::Restore { .. }
            | Self::Fork { .. }
            | Self::SaveTemplate { .. }
            | Self::RemoveTemplate { .. }
            | Self::Settle
            | Self::FillPools { .. }
            | Self::DrainPools => false,
        }
    }

    /// Whether it is about one sandbox, which has a version.
    pub(crate) fn names_a_sandbox(&self) -> bool {
        serde_json::to_value(self).is_ok_and(|call| call.get("sandbox").is_some())
    }

    /// Which question it is, in one word.
    pub(crate) fn word(&self) -> String {
        let text = format!("{self:?}");
        text.chars().take_while(|letter| letter.is_ascii_alphabetic()).collect()
    }
}

/// What stands before a worker's answer, which follows as JSON behind a newline.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Head {
    /// Why there is no answer.
    pub(crate) problem: Option<Problem>,
    /// Whether the answer is that of an earlier request with the same key.
    pub(crate) replayed: bool,
    /// Whether the worker ends now, having given up something that it cannot take back.
    pub(crate) retires: bool,
    /// Whether a sync of the store failed: nobody is to change anything any more.
    #[serde(default)]
    pub(crate) unsynced: bool,
    /// What of the store is damaged, if something is: nobody is to change anything any more.
    #[serde(default)]
    pub(crate) damaged: Option<String>,
}
