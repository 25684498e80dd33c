//! What answers look like, for the OpenAPI document. The documents themselves are made in
//! `documents`; black-box tests and schemathesis compare real answers with these.

use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Why a request was not carried out.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Error {
    /// Stable: `usage`, `not_found`, `conflict`, …
    code: String,
    /// For people.
    message: String,
    /// What to do about it.
    hint: Option<String>,
    /// Whether the same request may succeed later by itself.
    retryable: bool,
    /// Data for programs.
    details: Option<Value>,
    /// Names this request in the server's log and audit.
    request_id: String,
}

/// What is known about one layer of enforcement.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LayerReport {
    enforced: bool,
    how: String,
    reason: Option<String>,
}

/// A sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Sandbox {
    id: String,
    name: String,
    /// `creating`, `ready`, `frozen`, `stopped`, `approved`, `rejected`, `error`.
    state: String,
    state_reason: Option<String>,
    provider: String,
    project: String,
    driver: String,
    base_commit: Option<String>,
    profile: String,
    /// What it may see, reach and use; values of variables are left out.
    #[schema(value_type = Object)]
    policy: Value,
    /// Which layers are really on.
    enforcement: BTreeMap<String, LayerReport>,
    labels: BTreeMap<String, String>,
    created_at: String,
    updated_at: String,
    /// Grows with every change; also the `etag`.
    version: u64,
    /// Bytes in the upper, where it was looked at.
    #[schema(required = false)]
    upper_bytes: u64,
    /// Bytes that are kept of the base beside it, where it was looked at.
    #[schema(required = false)]
    base_bytes: u64,
    /// Bytes in the copy of the system (`--system cow`), where it was looked at.
    #[schema(required = false)]
    system_bytes: u64,
    /// Execs that have not ended, where it was looked at.
    #[schema(required = false)]
    running: Vec<String>,
    /// What is worth knowing, where it was looked at.
    #[schema(required = false)]
    warnings: Vec<String>,
}

/// Some sandboxes, and where the next ones start.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SandboxPage {
    items: Vec<Sandbox>,
    /// To be sent as `cursor`; absent on the last page.
    next_cursor: Option<String>,
}

/// What an exec used.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Stats {
    /// `null` where nobody saw the end.
    duration_ms: Option<u64>,
    cpu_ms: u64,
    memory_peak_bytes: u64,
    stdout_bytes: u64,
    stderr_bytes: u64,
}

/// An exec.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Exec {
    /// Its id, also as `exec`.
    id: String,
    exec: String,
    /// The id of its sandbox.
    sandbox: String,
    /// The command; a word that is not text is `{ "b64": … }`.
    command: Vec<Value>,
    started_at: String,
    running: bool,
    exit_code: Option<i32>,
    signal: Option<i32>,
    /// How it ended: `exited`, `signal`, `timeout`, `oom`, `killed`, `lost`, …
    reason: Option<String>,
    message: Option<String>,
    limits_hit: Vec<String>,
    truncated: bool,
    stats: Option<Stats>,
    enforcement: BTreeMap<String, LayerReport>,
    /// With `wait`: what it printed; `stdout_b64` where that is not text.
    #[schema(required = false)]
    stdout: String,
    /// With `wait`: what it printed; `stderr_b64` where that is not text.
    #[schema(required = false)]
    stderr: String,
}

/// A piece of kept output.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Chunk {
    /// Of the first byte, both streams counted together.
    offset: u64,
    /// `stdout`, `stderr`, or `dropped` for bytes that were not kept.
    stream: String,
    /// The bytes, where they are text.
    #[schema(required = false)]
    text: String,
    /// The bytes in base64, where they are not.
    #[schema(required = false)]
    b64: String,
}

/// Kept output.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Logs {
    exec: String,
    chunks: Vec<Chunk>,
    /// Whether the exec has ended, as of before these chunks were read.
    ended: bool,
}

/// A stretch of changed lines.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Hunk {
    id: String,
    old_start: u32,
    old_lines: u32,
    new_start: u32,
    new_lines: u32,
    /// Each starts with ` `, `-` or `+`; one that is not text is `{ "b64": … }`.
    lines: Vec<Value>,
}

/// A changed path.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Change {
    path: String,
    /// The exact bytes in base64, where the path is not text.
    #[schema(required = false)]
    path_bytes: String,
    /// `added`, `modified`, `deleted`, `renamed`, `mode`, `type`, `special`.
    kind: String,
    old_mode: Option<String>,
    new_mode: Option<String>,
    renamed_from: Option<String>,
    binary: bool,
    too_large: bool,
    size: u64,
    added: u64,
    removed: u64,
    /// `none`, `note`, `ask`, `block`.
    risk: String,
    risk_reasons: Vec<String>,
    ignored: bool,
    exec: Option<String>,
    hunks: Vec<Hunk>,
}

/// A path where the project moved and the sandbox changed too.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Conflict {
    path: String,
    reason: String,
}

/// A path where the project moved.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Drift {
    path: String,
    merges: bool,
    reason: String,
}

/// Sums.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Totals {
    files: u64,
    added: u64,
    removed: u64,
    ignored: u64,
}

/// Everything a sandbox changed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChangeSet {
    sandbox: String,
    base: String,
    digest: String,
    /// Over what stands in the project where an approval would merge; absent where it would not.
    beside: Option<String>,
    changes: Vec<Change>,
    conflicts: Vec<Conflict>,
    drift: Vec<Drift>,
    warnings: Vec<String>,
    totals: Totals,
}

/// What an approval, or an undo, did.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ApproveReport {
    /// Its id; `null` for a dry run.
    approval: Option<String>,
    digest: String,
    /// Paths; one that is not text is `{ "b64": … }`.
    applied: Vec<Value>,
    remaining: u64,
    remaining_ignored: u64,
    commit: Option<String>,
    notes: Vec<String>,
}

/// What a rejection did.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RejectReport {
    rejected: Vec<Value>,
    remaining: u64,
    /// Of these, what changed in the project, too, and is in the sandbox as it was before, because somebody is inside.
    not_taken_in: Vec<Value>,
}

/// What a rebase did.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RebaseReport {
    merged: Vec<Value>,
    conflicts: Vec<Conflict>,
    /// No conflicts: left as they are until nobody is inside.
    put_off: Vec<Conflict>,
    /// What those inside see of files that were replaced in the project: `as_it_is`, `but_for_what_is_open`, `as_it_was`.
    view: String,
}

/// What stands at a path.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Entry {
    path: String,
    /// `file`, `dir`, `symlink`, `special`.
    kind: String,
    /// Type and permission bits in octal, as git writes them.
    mode: Option<String>,
    /// Of a file.
    #[schema(required = false)]
    size: u64,
    /// Of a file: the hash of its bytes.
    #[schema(required = false)]
    hash: String,
    /// Of a link: where it points.
    #[schema(required = false)]
    target: String,
}

/// What a copy did.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CopyReport {
    entries: u64,
    bytes: u64,
    skipped: Vec<String>,
}

/// What a pull did.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PullReport {
    #[schema(value_type = Vec<Object>)]
    refs: Vec<Value>,
    objects: u64,
}

/// The three sides of a drifted path, in base64; `null` where there is nothing.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Sides {
    base_b64: Option<String>,
    project_b64: Option<String>,
    sandbox_b64: Option<String>,
}

/// An approval as remembered.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Approval {
    id: String,
    sandbox: String,
    sandbox_name: String,
    project: String,
    /// `applying`, `committed`, `applied`, `aborted`, `undone`, `needs_attention`.
    state: String,
    digest: String,
    #[schema(value_type = Vec<Object>)]
    paths: Vec<Value>,
    commit: Option<String>,
    approver: String,
    at: String,
}

/// A snapshot or template.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Snapshot {
    label: String,
    sandbox: String,
    created_at: String,
    layers: u64,
}

/// One path of a comparison.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CompareRow {
    path: String,
    by: BTreeMap<String, String>,
    collides: bool,
}

/// Sandboxes side by side.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Comparison {
    rows: Vec<CompareRow>,
    execs: BTreeMap<String, Vec<String>>,
}

/// Something that happened.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Event {
    sequence: u64,
    at: String,
    kind: String,
    sandbox: Option<String>,
    exec: Option<String>,
    data: Value,
}

/// What was found about the host.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Finding {
    name: String,
    ok: bool,
    tried: bool,
    how: String,
    reason: Option<String>,
    remedy: Option<String>,
}

/// Where sandboxes can run.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Provider {
    name: String,
    ok: bool,
    tried: bool,
    how: String,
    reason: Option<String>,
    remedy: Option<String>,
    #[schema(value_type = Object)]
    capabilities: Value,
}

/// What gc would do, or did, with one thing.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GcDecision {
    what: String,
    name: String,
    action: String,
    reason: String,
    bytes: u64,
}

/// A setting in force.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Setting {
    key: String,
    value: Value,
    origin: String,
}

/// What all sandboxes together were promised, and what they use.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StatsDocument {
    sandboxes: u64,
    running: u64,
    /// Memory limits of the running ones.
    memory: u64,
    /// Disk limits of all.
    disk: u64,
    /// How many there are in each state.
    states: BTreeMap<String, u64>,
    /// Execs that have not ended.
    execs: u64,
    /// Bytes of changes that are kept.
    changed: u64,
    /// Sandboxes made ahead, by pool.
    pools: BTreeMap<String, PoolFigures>,
}

/// A pool of sandboxes made ahead.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PoolFigures {
    /// How many are to wait.
    size: u64,
    /// How many do.
    waiting: u64,
    /// How many are somebody's, and not deleted.
    claimed: u64,
}

/// Who asks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WhoAmI {
    pub(crate) name: String,
    pub(crate) role: String,
    /// The only sandbox there is for an agent.
    pub(crate) sandbox: Option<String>,
    pub(crate) version: String,
}

/// A browser's session.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) role: String,
    /// The only sandbox there is for an agent.
    pub(crate) sandbox: Option<String>,
    /// For the header `x-skep-session` of every further request.
    pub(crate) key: String,
    /// When it ends by itself (RFC 3339).
    pub(crate) expires_at: String,
}

/// How the server is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// `ok`, or `failing`.
    pub(crate) status: &'static str,
}
