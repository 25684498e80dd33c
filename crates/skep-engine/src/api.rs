//! What the edges may ask of skep: one trait, served in process by the engine and, with
//! `--host`, by the typed client.

use crate::Stats;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use skep_provider::ExecStream;
pub use skep_provider::{Capabilities, Finding};
use skep_types::{
    Access, Approval, ApprovalId, ByteSize, ByteString, ChangeSet, ChangeSetDigest, Conflict,
    ContentHash, Drift, EgressDeath, EgressEntry, Event, Exec, ExecId, ExecSpec, InsideUser, Layer,
    Limits, NetworkMode, PlainSecret, Problem, PublishedPort, RelPath, Sandbox, SandboxId,
    SandboxName, SandboxState, Secret, Selection, SystemView,
};
pub use skep_workspace::PutOff;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

/// What every method answers with.
pub type Answer<T> = Result<T, Problem>;

/// What becomes of a sandbox when its only command has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disposal {
    /// Whether it goes if nothing was changed.
    pub without_changes: bool,
    /// Whether it goes if something was.
    pub with_changes: bool,
    /// Whether changes that nobody reviewed may go with it.
    pub discard: bool,
}

impl Disposal {
    /// Whether the sandbox is to go.
    pub fn goes(self, changes: &ChangeSet) -> bool {
        if changes.changes.is_empty() { self.without_changes } else { self.with_changes }
    }
}

/// What was left after a run.
#[derive(Debug)]
pub struct SettledRun {
    /// What it changed.
    pub changes: ChangeSet,
    /// How deleting it went, if it was to go.
    pub removal: Option<Answer<()>>,
}

/// A host path to be shown inside, as typed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountRequest {
    /// On the host.
    pub source: PathBuf,
    /// Inside.
    pub target: PathBuf,
    /// Read-only unless said.
    pub access: Access,
}

/// What was typed to create a sandbox. `None` and empty mean: not typed.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CreateRequest {
    /// Otherwise one is made up.
    pub name: Option<SandboxName>,
    /// The project's directory, already found.
    pub project: PathBuf,
    /// Writable parts.
    pub scope: Vec<PathBuf>,
    /// `auto`, `namespace`, …
    pub provider: Option<String>,
    /// A snapshot (`NAME:LABEL`) or template to start from.
    pub from: Option<String>,
    /// A trial of the server's own, for a moment: no quota is held against it. No caller can say so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub trial: bool,
    /// Recreate under the same name.
    pub fresh: bool,
    /// Unreviewed changes of the one to be recreated may go.
    pub discard: bool,
    /// Lock the scope.
    pub exclusive: bool,
    /// Who the processes look like.
    pub user: Option<InsideUser>,
    /// System directories.
    pub system: Option<SystemView>,
    /// An image whose system is seen instead of the host's.
    pub image: Option<String>,
    /// Named policy.
    pub profile: Option<String>,
    /// Network.
    pub network: Option<NetworkMode>,
    /// Rules and presets that were typed; with one, the network is `allow` unless said otherwise.
    pub allow: Vec<String>,
    /// Secrets put in at the edge.
    pub secrets: Vec<Secret>,
    /// Secrets given in the clear.
    pub secret_env: Vec<PlainSecret>,
    /// Ports of the host that lead inside.
    pub publish: Vec<PublishedPort>,
    /// Environment set inside.
    pub env: BTreeMap<String, ByteString>,
    /// Where commands start that name no directory; absolute.
    pub workdir: Option<ByteString>,
    /// Extra mounts.
    pub mounts: Vec<MountRequest>,
    /// Read-only at `/candidate`.
    pub archive: Option<PathBuf>,
    /// Read-only at `/datasets/NAME`.
    pub datasets: BTreeMap<String, PathBuf>,
    /// Globs to hide.
    pub hide: Vec<String>,
    /// Globs not to hide.
    pub show: Vec<String>,
    /// Globs of the only changes that may be approved, instead of those of the settings.
    pub allow_changes: Vec<String>,
    /// Globs of changes that may not be approved, beside those of the settings.
    pub deny_changes: Vec<String>,
    /// Typed limits.
    pub limits: Limits,
    /// How long it may live.
    pub ttl: Option<Duration>,
    /// Refuse unless enforced.
    pub require: BTreeSet<Layer>,
    /// What was typed may weaken.
    pub best_effort: bool,
    /// Free words; those that begin with `skep.` are skep's own.
    pub labels: BTreeMap<String, String>,
    /// It stays although nothing was changed in it.
    pub keep: bool,
    /// Same key and body: the same sandbox.
    pub idempotency_key: Option<String>,
    /// Environment of the caller, from which the allow-list takes.
    pub host_env: BTreeMap<String, ByteString>,
    /// The caller's home directory.
    pub home: PathBuf,
}

/// Which sandboxes to list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListFilter {
    /// Of this project only.
    pub project: Option<PathBuf>,
    /// In this state only.
    pub state: Option<SandboxState>,
}

/// A sandbox with what is computed on asking.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxView {
    /// As remembered.
    #[serde(flatten)]
    pub sandbox: Sandbox,
    /// Bytes in the upper.
    pub upper_bytes: u64,
    /// Inodes in the upper.
    pub upper_inodes: u64,
    /// Bytes that are kept of the base, beside the upper.
    #[serde(default)]
    pub base_bytes: u64,
    /// Bytes in the copy of the system (`--system cow`), beside the upper and under the same limit.
    #[serde(default)]
    pub system_bytes: u64,
    /// The largest things in it, by size.
    pub largest: Vec<(RelPath, u64)>,
    /// Execs that have not ended.
    pub running: Vec<ExecId>,
    /// Paths that another live sandbox changed too, size warnings, …
    pub warnings: Vec<String>,
    /// What its provider knows of it while it runs; only in `show`.
    #[serde(default)]
    pub facts: BTreeMap<String, String>,
}

/// One way to run sandboxes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProviderView {
    /// What is typed for it.
    pub name: String,
    /// Whether it works here, as far as a quick look tells.
    pub ok: bool,
    /// Whether enough was tried to tell.
    #[serde(default)]
    pub tried: bool,
    /// What was done to find out.
    #[serde(default)]
    pub how: String,
    /// Why not.
    pub reason: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// An exec that was started.
pub struct StartedExec {
    /// Its id.
    pub id: ExecId,
    /// Its live end, when attached.
    pub stream: Option<Box<dyn ExecStream>>,
}

/// A sandbox that was made for one command.
pub struct StartedRun {
    /// The sandbox. It is there, whatever became of the command.
    pub sandbox: Sandbox,
    /// The command, attached, or why it could not be started.
    pub exec: Answer<StartedExec>,
}

/// A piece of an exec's kept output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogChunk {
    /// Offset of the first byte in the whole output of this exec (both streams counted together).
    pub offset: u64,
    /// `stdout` or `stderr`.
    pub stream: LogStream,
    /// The bytes.
    pub bytes: ByteString,
}

/// Which stream a piece of output came from; `Dropped` stands for bytes that were not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogStream {
    /// Standard output, or the terminal.
    Stdout,
    /// Standard error.
    Stderr,
    /// Not kept: over the output limit. `bytes` is empty, the next offset tells how many.
    Dropped,
}

/// What to approve, and on which conditions.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApproveRequest {
    /// Which part.
    pub selection: Selection,
    /// The reviewed change set; refuse if it is another one now.
    pub digest: Option<ChangeSetDigest>,
    /// What stood in the project beside it then ([`ChangeSet::beside`]): with a digest, nothing else is
    /// merged with.
    pub beside: Option<ContentHash>,
    /// Say what would happen, change nothing.
    pub dry_run: bool,
    /// Risky paths that are meant.
    pub allow_risky: Vec<ByteString>,
    /// Make a commit of it.
    pub commit: Option<CommitRequest>,
    /// A command that must succeed in a fork with the selection applied.
    pub check: Option<String>,
}

/// How to commit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitRequest {
    /// The message.
    pub message: String,
    /// Undo the apply if no commit can be made; otherwise it stands, and a note says why.
    #[serde(default)]
    pub or_undo: bool,
}

/// What an approval did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ApproveReport {
    /// Its id; `None` for a dry run.
    pub approval: Option<ApprovalId>,
    /// The change set it was bound to.
    pub digest: ChangeSetDigest,
    /// What was applied.
    pub applied: Vec<RelPath>,
    /// How many changes are left.
    pub remaining: u64,
    /// How many of those are ignored paths.
    pub remaining_ignored: u64,
    /// The commit that was made.
    pub commit: Option<String>,
    /// What is worth saying (merged paths, stripped bits, a commit that failed).
    pub notes: Vec<String>,
}

/// What a rejection did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RejectReport {
    /// The paths.
    pub rejected: Vec<RelPath>,
    /// How many changes are left.
    pub remaining: u64,
    /// Of the paths those that you changed, too, and that have what they had before in the sandbox, and not your newer
    /// version: somebody is inside who may not have seen it.
    #[serde(default)]
    pub not_taken_in: Vec<RelPath>,
}

/// What a rebase did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RebaseReport {
    /// Paths brought up to date or merged.
    pub merged: Vec<RelPath>,
    /// Paths that need a person.
    pub conflicts: Vec<Conflict>,
    /// Paths that are left as they are until nobody is inside, each with why. They are no conflicts.
    #[serde(default)]
    pub put_off: Vec<PutOff>,
    /// What those inside see of the project.
    #[serde(default)]
    pub view: RebasedView,
}

/// What those inside see of files that were replaced in the project, after a rebase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RebasedView {
    /// The project as it is. Nobody inside has seen it before: it is the base of every file that they
    /// change from now on.
    AsItIs,
    /// The same, but for what commands that are running have open. These may have read files before, so files
    /// that they change for the first time have the base that they had.
    ButForWhatIsOpen,
    /// What was looked at before may be seen as it was.
    #[default]
    AsItWas,
}

/// What a copy between the host and a workspace did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CopyReport {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// Special files that were left out.
    pub skipped: Vec<String>,
}

/// A reference that arrived from inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PulledRef {
    /// In the project's repository.
    pub name: String,
    /// What it points to now.
    pub commit: String,
    /// Whether it pointed elsewhere before.
    pub changed: bool,
    /// Paths that are hidden inside and that commits made there delete, because git saw no such file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deletes_hidden: Vec<RelPath>,
}

/// What a pull did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PullReport {
    /// Every branch inside, and the branch that was moved forward.
    pub refs: Vec<PulledRef>,
    /// How many objects came.
    pub objects: u64,
}

/// One side-by-side row of a comparison.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CompareRow {
    /// Where.
    pub path: RelPath,
    /// By sandbox name: what it did (kind and short hash), absent if nothing.
    pub by: BTreeMap<String, String>,
    /// Whether two of them did different things here.
    pub collides: bool,
}

/// A comparison of several sandboxes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Comparison {
    /// Per path.
    pub rows: Vec<CompareRow>,
    /// Last exec of each: command and how it ended.
    pub execs: BTreeMap<String, Vec<String>>,
}

/// A named snapshot or template.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SnapshotView {
    /// Label or template name.
    pub label: String,
    /// Of which sandbox.
    pub sandbox: String,
    /// When.
    pub created_at: String,
    /// How many layers it stands on.
    pub layers: usize,
}

/// What gc would do, or did, with one thing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GcDecision {
    /// What: a sandbox, a layer, an undo backup, trash.
    pub what: String,
    /// Which.
    pub name: String,
    /// `remove`, `archive` (and then remove), `stop` or `keep`.
    pub action: String,
    /// Why.
    pub reason: String,
    /// Bytes freed.
    pub bytes: u64,
}

/// One job of gc, that can be run alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GcPart {
    /// Sandboxes whose time is over.
    Sandboxes,
    /// Of these only what was approved or rejected, past its age.
    Reviewed,
    /// Backups of approvals that can no longer be undone.
    Undo,
    /// Layers nobody stands on.
    Layers,
    /// Archives past their age.
    Archives,
    /// What was thrown away and could not be removed then.
    Trash,
    /// Events, rows of deleted sandboxes, expired keys.
    Rows,
}

/// How gc shall go about it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GcRequest {
    /// Only say what would be done.
    pub dry_run: bool,
    /// Also sandboxes idle for this long (never unreviewed work).
    pub older_than: Option<Duration>,
    /// Until all together is at most this.
    pub max_size: Option<ByteSize>,
    /// With one of the two above: unreviewed work may be put into an archive, and then go.
    pub archive: bool,
    /// Only these jobs; empty is all.
    pub only: BTreeSet<GcPart>,
}

/// The way out of a sandbox, and what was tried there.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EgressView {
    /// Its network.
    pub network: NetworkMode,
    /// Rules and presets in force.
    pub allow: Vec<String>,
    /// What was tried, oldest first.
    pub entries: Vec<EgressEntry>,
    /// How its egress process last died, if it did.
    pub death: Option<EgressDeath>,
}

/// Rules to add and to take away.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EgressChange {
    /// Allowed from now on.
    pub allow: Vec<String>,
    /// Not any more; taken away first.
    pub deny: Vec<String>,
}

/// What came of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EgressChanged {
    /// All rules in force now.
    pub allow: Vec<String>,
    /// Connections that were cut.
    pub cut: u64,
    /// The sandbox's new version.
    pub version: u64,
}

pub use skep_provider::EgressProbe;
pub use skep_provider::capabilities::word_for;

/// The first command of a sandbox that was just made for it. Where its caller stands, which is what
/// it names if no directory was typed, gives way to what the sandbox took over from its template.
pub fn first_spec<'a>(
    request: &CreateRequest,
    sandbox: &Sandbox,
    spec: &'a ExecSpec,
) -> Cow<'a, ExecSpec> {
    if request.workdir.is_none() && sandbox.policy.workdir.is_some() {
        Cow::Owned(ExecSpec { workdir: None, ..spec.clone() })
    } else {
        Cow::Borrowed(spec)
    }
}

/// Everything the edges may ask.
pub trait Api {
    /// Creates a sandbox and starts it.
    fn create(&self, request: &CreateRequest) -> Answer<Sandbox>;
    /// Finds a sandbox by name, id, or unique prefix of an id.
    fn find(&self, name: &str) -> Answer<Sandbox>;
    /// The newest sandbox of a project, if there is one.
    fn newest(&self, project: &std::path::Path) -> Answer<Option<Sandbox>>;
    /// With sizes, running execs and warnings.
    fn show(&self, id: &SandboxId) -> Answer<SandboxView>;
    /// Lists, newest first.
    fn list(&self, filter: &ListFilter) -> Answer<Vec<SandboxView>>;
    /// Starts a stopped sandbox again.
    fn start(&self, id: &SandboxId) -> Answer<Sandbox>;
    /// Ends everything inside; the changes are kept.
    fn stop(&self, id: &SandboxId) -> Answer<Sandbox>;
    /// Pauses every process.
    fn freeze(&self, id: &SandboxId) -> Answer<Sandbox>;
    /// Lets them go on.
    fn thaw(&self, id: &SandboxId) -> Answer<Sandbox>;
    /// Deletes; unreviewed changes need `discard`.
    fn remove(&self, id: &SandboxId, discard: bool) -> Answer<()>;

    /// Before a run: creates a sandbox and starts its command, attached.
    ///
    /// The same as creating and running one after the other, in one go.
    fn begin_run(&self, request: &CreateRequest, spec: &ExecSpec) -> Answer<StartedRun> {
        let sandbox = self.create(request)?;
        let exec = self.exec(&sandbox.id, &first_spec(request, &sandbox, spec), true);
        Ok(StartedRun { sandbox, exec })
    }

    /// After a run: stops it, looks at what changed, and deletes it where `disposal` says so.
    ///
    /// The same as stopping, looking and removing one after the other, in one go.
    fn settle_run(&self, id: &SandboxId, disposal: Disposal) -> Answer<SettledRun> {
        // Stopped first: what is looked at then cannot change any more.
        self.stop(id)?;
        let changes = self.diff_without_lines(id)?;
        let removal = disposal.goes(&changes).then(|| self.remove(id, disposal.discard));
        Ok(SettledRun { changes, removal })
    }

    /// Runs a command in a sandbox, starting the sandbox if it is stopped.
    fn exec(&self, id: &SandboxId, spec: &ExecSpec, attach: bool) -> Answer<StartedExec>;
    /// One exec by id or unique prefix, its end included once it is known.
    fn find_exec(&self, id: &str) -> Answer<Exec>;
    /// The execs of a sandbox, oldest first.
    fn execs(&self, id: &SandboxId) -> Answer<Vec<Exec>>;
    /// Kept output from an offset on, at most about `limit` bytes.
    fn logs(&self, exec: &ExecId, from: u64, limit: usize) -> Answer<Vec<LogChunk>>;
    /// Ends an exec with everything it started.
    fn kill(&self, exec: &ExecId, signal: i32) -> Answer<()>;

    /// What a sandbox changed.
    fn diff(&self, id: &SandboxId) -> Answer<ChangeSet>;
    /// The same for whoever looks at no lines: as JSON they can be many times as large as the files.
    fn diff_without_lines(&self, id: &SandboxId) -> Answer<ChangeSet> {
        self.diff(id).map(ChangeSet::without_hunks)
    }
    /// Takes a selection over.
    fn approve(&self, id: &SandboxId, request: &ApproveRequest) -> Answer<ApproveReport>;
    /// Drops a selection from the sandbox.
    fn reject(
        &self,
        id: &SandboxId,
        selection: &Selection,
        digest: Option<ChangeSetDigest>,
        reason: Option<&str>,
    ) -> Answer<RejectReport>;
    /// Reverses an approval (or an undo); without an id the newest of the project.
    fn undo(
        &self,
        approval: Option<&ApprovalId>,
        project: &std::path::Path,
    ) -> Answer<ApproveReport>;
    /// Finishes an approval that needs attention (the user edited during an outage): the approved
    /// versions are put in place, the user's become the backups. Undoing it reverts instead.
    fn finish(&self, approval: &ApprovalId) -> Answer<ApproveReport>;
    /// Gives up an approval that can be neither finished nor taken back; everything is kept.
    fn abandon(&self, approval: &ApprovalId) -> Answer<ApproveReport>;
    /// Where the project moved since create.
    fn conflicts(&self, id: &SandboxId) -> Answer<Vec<Drift>>;
    /// Takes the project's newer state in.
    fn rebase(&self, id: &SandboxId) -> Answer<RebaseReport>;
    /// The three sides of a drifted path: base, project, sandbox; absent ones are `None`.
    fn sides(&self, id: &SandboxId, path: &RelPath) -> Answer<[Option<ByteString>; 3]>;
    /// Approvals of a project, newest first, of one path if given.
    fn history(&self, project: &std::path::Path, path: Option<&RelPath>) -> Answer<Vec<Approval>>;
    /// Finds an approval by id or unique prefix.
    fn find_approval(&self, id: &str) -> Answer<Approval>;
    /// The signed statement of an approval.
    fn receipt(&self, approval: &ApprovalId) -> Answer<Value>;
    /// Fetches the commits made inside as `refs/skep/<name>/*`; may move one branch forward.
    fn pull(&self, id: &SandboxId, branch: Option<&str>) -> Answer<PullReport>;

    /// Copies what the view shows at `path` to the host; never into the project.
    fn copy_out(&self, id: &SandboxId, path: &RelPath, to: &std::path::Path) -> Answer<CopyReport>;
    /// Copies something of the host into the view.
    fn copy_in(&self, id: &SandboxId, from: &std::path::Path, path: &RelPath)
    -> Answer<CopyReport>;

    /// Freezes the upper as a layer with a label.
    fn snapshot(&self, id: &SandboxId, label: Option<&str>) -> Answer<SnapshotView>;
    /// Goes back to a label.
    fn restore(&self, id: &SandboxId, label: &str) -> Answer<Sandbox>;
    /// Starts new sandboxes on the same layers.
    fn fork(&self, id: &SandboxId, count: u32, name: Option<&SandboxName>) -> Answer<Vec<Sandbox>>;
    /// Side by side.
    fn compare(&self, ids: &[SandboxId]) -> Answer<Comparison>;
    /// Snapshots of a sandbox.
    fn snapshots(&self, id: &SandboxId) -> Answer<Vec<SnapshotView>>;
    /// Named snapshots for `create --from`.
    fn templates(&self) -> Answer<Vec<SnapshotView>>;
    /// Saves a sandbox's state under a name.
    fn save_template(&self, id: &SandboxId, name: &SandboxName) -> Answer<SnapshotView>;
    /// Forgets a template.
    fn remove_template(&self, name: &SandboxName) -> Answer<()>;

    /// Where sandboxes can run, by a quick look.
    fn providers(&self) -> Answer<Vec<ProviderView>>;
    /// What a sandbox may reach, and what it tried.
    fn egress(&self, id: &SandboxId) -> Answer<EgressView> {
        Err(not_here(id))
    }
    /// Changes what a sandbox may reach, running or not. Connections that the new rules do not
    /// allow are cut.
    fn change_egress(&self, id: &SandboxId, change: &EgressChange) -> Answer<EgressChanged> {
        let _ = change;
        Err(not_here(id))
    }
    /// Forgets a secret; returns how many connections were cut.
    fn revoke_secret(&self, id: &SandboxId, name: &str) -> Answer<u64> {
        let _ = name;
        Err(not_here(id))
    }
    /// Tries from inside whether hosts can be reached.
    fn probe_egress(&self, id: &SandboxId, targets: &[(String, u16)]) -> Answer<Vec<EgressProbe>> {
        let _ = targets;
        Err(not_here(id))
    }

    /// Probes the host.
    fn doctor(&self) -> Answer<Vec<Finding>>;
    /// Upkeep.
    fn gc(&self, request: &GcRequest) -> Answer<Vec<GcDecision>>;
    /// Events after a sequence number.
    fn events(&self, after: u64, limit: usize) -> Answer<Vec<Event>>;
    /// Sums over all sandboxes.
    fn stats(&self) -> Answer<Stats>;
    /// The settings in force for a project: key, value, origin.
    fn config(&self, project: Option<&std::path::Path>) -> Answer<Vec<(String, Value, String)>>;
}

/// Whether a word is the whole name or the whole id of a sandbox. What destroys or widens wants that:
/// the beginning of an id may belong to a sandbox that nobody was thinking of.
pub fn is_called(sandbox: &Sandbox, word: &str) -> bool {
    sandbox.name.as_str() == word || sandbox.id.as_str() == word
}

/// What an implementation answers that has no way out to speak of.
fn not_here(id: &SandboxId) -> Problem {
    Problem::new(
        skep_types::Code::ProviderUnavailable,
        format!("the network of sandbox `{id}` cannot be looked at from here"),
    )
}
