//! The contract: what a store keeps, and what every method leaves behind.
//!
//! [`Store`] is the sum of six traits, one per kind of thing. All of them are safe to use as
//! `dyn Store` and from several threads. Three rules hold for every method and are not repeated:
//!
//! - a method is one transaction: it happens wholly or not at all, and the events handed to it are
//!   in the same transaction;
//! - on error nothing is left behind; the one exception is a commit that failed with the disk or the
//!   connection, whose outcome only a restart can tell (the store then takes no more changes);
//! - times are RFC 3339 texts of the caller, ids are the caller's; lists are in order of insertion
//!   unless said otherwise.

use crate::StoreError;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use skep_types::{
    Approval, ApprovalId, ApprovalState, Base, ByteString, ChangeRules, ContentHash, Event, Exec,
    ExecEnd, ExecId, LayerId, RelPath, Sandbox, SandboxId, SandboxName, SandboxState, Selection,
    WorkspaceDriver,
};
use std::collections::{BTreeMap, BTreeSet};

/// The result of a store method.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Everything skep remembers.
pub trait Store:
    SandboxStore + ExecStore + ApprovalStore + LayerStore + LedgerStore + Housekeeping
{
}

impl<T> Store for T where
    T: SandboxStore + ExecStore + ApprovalStore + LayerStore + LedgerStore + Housekeeping
{
}

/// Something that happened, before the store gave it a number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewEvent {
    /// When (RFC 3339).
    pub at: String,
    /// What: `sandbox.created`, `exec.ended`, …
    pub kind: String,
    /// To which sandbox.
    pub sandbox: Option<SandboxId>,
    /// To which exec.
    pub exec: Option<ExecId>,
    /// More.
    pub data: Value,
}

/// Whether a new sandbox shares its scope with others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ScopeMode {
    /// Any number of sandboxes may share it.
    #[default]
    Shared,
    /// No other exclusive sandbox may have the same scope, one above or one below, in this project or in one that
    /// lies around it or in it.
    Exclusive,
}

/// A sandbox that stands in the way of an exclusive one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScopeConflict {
    /// Which.
    pub sandbox: SandboxId,
    /// Its name.
    pub sandbox_name: SandboxName,
    /// The scope it holds.
    pub scope: RelPath,
}

/// Whether deleted sandboxes are wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeletedRows {
    /// As if they were gone.
    #[default]
    Hidden,
    /// Their rows are listed until they are purged.
    Included,
}

/// Of which nodes sandboxes are wanted, where several share a database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Nodes {
    /// Only those of the node the store was opened for.
    #[default]
    Own,
    /// Of all. What is on another node can be looked at and not changed.
    All,
}

/// Which sandboxes to list; the default is every one of this node that is not deleted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SandboxFilter {
    /// Only of this project.
    pub project: Option<ByteString>,
    /// Only in one of these states; empty means any.
    pub states: BTreeSet<SandboxState>,
    /// Whether deleted ones are wanted; naming [`SandboxState::Deleted`] in `states` is not enough.
    pub deleted: DeletedRows,
    /// Of which nodes.
    pub nodes: Nodes,
}

/// What must still be true for an update to happen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Expect {
    /// The version that was read.
    pub version: Option<u64>,
    /// The lease epoch the caller holds.
    pub lease_epoch: Option<u64>,
}

/// What becomes of execs in the same moment as something of their sandbox.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExecMoves<'a> {
    /// Those that are about to start.
    pub begun: &'a [Exec],
    /// Those whose end is known now, each with the event that tells it; of one that had ended
    /// before, neither is written.
    pub ended: &'a [(ExecId, ExecEnd, NewEvent)],
}

/// Which node may act on a sandbox; a higher epoch fences off the holders of lower ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The node.
    pub node: String,
    /// Grows by one each time the lease is taken.
    pub epoch: u64,
}

/// Sandboxes: rows, states, names, scope locks, leases.
pub trait SandboxStore: Send + Sync {
    /// Writes the intent to make a sandbox: its row, its layer references, its scope locks and the
    /// events, before anything is made on the host. The stored version is 1, whatever `sandbox`
    /// says. The locks stay until the sandbox is deleted.
    ///
    /// Errors: `AlreadyExists` when a sandbox that is not deleted has the name (or any has the
    /// id); `ScopeLocked` with all conflicts.
    fn insert_sandbox(
        &self,
        sandbox: &Sandbox,
        scope: ScopeMode,
        events: &[NewEvent],
    ) -> Result<u64>;

    /// The sandbox with this id, deleted or not. Errors: `NotFound`, `OtherNode`.
    fn sandbox(&self, id: &SandboxId) -> Result<Sandbox>;

    /// What a person means: the sandbox with exactly this name, else with this id, else the only
    /// one whose id starts so; deleted ones do not count. Errors: `NotFound`, `Ambiguous`, `OtherNode`.
    fn find_sandbox(&self, text: &str) -> Result<Sandbox>;

    /// The newest of the deleted sandboxes that had this name, else the one with this id, else the only one
    /// whose id starts so, as long as its row is kept.
    fn deleted_sandbox(&self, text: &str) -> Result<Option<Sandbox>>;

    /// The sandboxes a filter lets through.
    fn list_sandboxes(&self, filter: &SandboxFilter) -> Result<Vec<Sandbox>>;

    /// The sandbox of the project that was inserted last and is not deleted.
    fn newest_sandbox(&self, project: &ByteString) -> Result<Option<Sandbox>>;

    /// Reads a sandbox, lets `change` edit it, and writes it back with the version grown by one,
    /// all under the write lock. Returns what was written. `change` runs once; it cannot change
    /// the id, the version or the instant of creation. A sandbox that becomes deleted loses its
    /// name, its locks and its layer references.
    ///
    /// Errors: `NotFound`; `OtherNode`, `StaleVersion` or `StaleLease` before `change` runs;
    /// `IllegalState` when the move is not in the table; `AlreadyExists` when a new name is taken.
    fn update_sandbox(
        &self,
        id: &SandboxId,
        expect: Expect,
        events: &[NewEvent],
        change: &mut dyn FnMut(&mut Sandbox),
    ) -> Result<Sandbox> {
        self.update_with_execs(id, expect, ExecMoves::default(), events, change)
    }

    /// The same, and execs of the sandbox that begin or end with it, in one transaction: what
    /// happens at once is written at once, for the price of one.
    ///
    /// Errors: those of [`SandboxStore::update_sandbox`], [`ExecStore::insert_exec`] and
    /// [`ExecStore::finish_exec`].
    fn update_with_execs(
        &self,
        id: &SandboxId,
        expect: Expect,
        execs: ExecMoves<'_>,
        events: &[NewEvent],
        change: &mut dyn FnMut(&mut Sandbox),
    ) -> Result<Sandbox>;

    /// A sandbox that was made ahead becomes somebody's: as [`SandboxStore::update_sandbox`], and it
    /// counts as inserted now. It is the newest of its project, and was created when `change` says.
    ///
    /// Errors: those of [`SandboxStore::update_sandbox`].
    fn claim_sandbox(
        &self,
        id: &SandboxId,
        expect: Expect,
        events: &[NewEvent],
        change: &mut dyn FnMut(&mut Sandbox),
    ) -> Result<Sandbox>;

    /// Removes the rows of sandboxes that are deleted and last changed before `before`, with their
    /// execs and rejections. Approvals and snapshots stay. Returns whom it removed.
    fn purge_deleted(&self, before: &str) -> Result<Vec<SandboxId>>;

    /// Forgets a sandbox that is deleted, with its execs, rejections and events, as if it had never been.
    /// Returns whether there was one. For what nobody will ask about: the history has a gap there.
    fn forget_sandbox(&self, id: &SandboxId) -> Result<bool>;

    /// Gives up the exclusive locks of a sandbox; succeeds if it holds none.
    fn release_scope(&self, id: &SandboxId) -> Result<()>;

    /// Who may act on a sandbox. Error: `NotFound`.
    fn lease(&self, id: &SandboxId) -> Result<Lease>;

    /// Takes the lease of a sandbox for a node: the epoch grows by one, so that updates with an
    /// older epoch are refused. Error: `NotFound`.
    fn take_lease(&self, id: &SandboxId, node: &str) -> Result<Lease>;
}

/// What became of the end of an exec.
#[derive(Debug, Clone, PartialEq)]
pub enum Finish {
    /// This end is the one that is remembered.
    Recorded,
    /// It had ended before; the first end stands and no event was written.
    AlreadyEnded(ExecEnd),
}

/// Execs.
pub trait ExecStore: Send + Sync {
    /// Remembers an exec before it starts. Errors: `AlreadyExists`; `NotFound` when its sandbox is
    /// not there or deleted.
    fn insert_exec(&self, exec: &Exec, events: &[NewEvent]) -> Result<()>;

    /// Remembers execs of a sandbox that were started without asking the store, all in one
    /// transaction, with the events that tell of them, in the order given. An exec that is known is
    /// left as it is, and its events are not written. Returns how many were new. Errors: `NotFound`
    /// when the sandbox is not there or deleted.
    fn adopt_execs(&self, sandbox: &SandboxId, execs: &[Exec], events: &[NewEvent]) -> Result<u64>;

    /// Remembers how an exec ended; only the first end counts. Error: `NotFound`.
    fn finish_exec(&self, id: &ExecId, end: &ExecEnd, events: &[NewEvent]) -> Result<Finish>;

    /// The exec with this id, or the only one whose id starts so. Errors: `NotFound`, `Ambiguous`.
    fn find_exec(&self, text: &str) -> Result<Exec>;

    /// The execs of a sandbox, oldest first.
    fn list_execs(&self, sandbox: &SandboxId) -> Result<Vec<Exec>>;

    /// Every exec without an end, in one sandbox or in all.
    fn running_execs(&self, sandbox: Option<&SandboxId>) -> Result<Vec<Exec>>;

    /// Forgets execs of a sandbox that have ended; others stay. Returns how many went.
    fn forget_execs(&self, sandbox: &SandboxId, ids: &[ExecId]) -> Result<u64>;
}

/// Which approvals to list; the default is all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApprovalFilter {
    /// Only into this project.
    pub project: Option<ByteString>,
    /// Only from this sandbox.
    pub sandbox: Option<SandboxId>,
    /// Only those that touched this path or something below it.
    pub path: Option<RelPath>,
    /// Only in one of these states; empty means any.
    pub states: Vec<ApprovalState>,
}

/// Every legal move of an approval. A move to the same state is always legal.
///
/// `Committed → Aborted` is the roll-back of an apply that met a foreign edit half way: past the
/// commit point the way is forward, but when the project cannot take it, back is the other end.
/// `Applying → NeedsAttention` is a store that is behind its journals (brought back from a copy): steps
/// were made that it never heard of, and the user has changed something since.
pub const APPROVAL_MOVES: &[(ApprovalState, ApprovalState)] = &[
    (ApprovalState::Applying, ApprovalState::Committed),
    (ApprovalState::Applying, ApprovalState::Aborted),
    (ApprovalState::Applying, ApprovalState::NeedsAttention),
    (ApprovalState::Committed, ApprovalState::Applied),
    (ApprovalState::Committed, ApprovalState::Aborted),
    (ApprovalState::Committed, ApprovalState::NeedsAttention),
    (ApprovalState::NeedsAttention, ApprovalState::Applied),
    (ApprovalState::NeedsAttention, ApprovalState::Aborted),
    (ApprovalState::Applied, ApprovalState::Undone),
];

/// Approvals and undos. Every change here is on the disk when the method returns: it survives
/// power loss, and so does everything that was committed before it.
pub trait ApprovalStore: Send + Sync {
    /// Remembers an approval that is about to be staged; its state must be
    /// [`ApprovalState::Applying`]. Errors: `AlreadyExists`, `IllegalApprovalMove`.
    fn insert_approval(&self, approval: &Approval, events: &[NewEvent]) -> Result<()>;

    /// Moves an approval and lets `change` edit it (the commit, the paths); returns what was
    /// written. `change` cannot change the id, the state, the kind, the sandbox or the project. An
    /// undo that becomes applied moves the approval it reverses to [`ApprovalState::Undone`] in the
    /// same transaction; only one undo of an approval, and only of one that is applied, becomes
    /// committed.
    ///
    /// Errors: `NotFound`; `IllegalApprovalMove`, also for the approval an undo reverses.
    fn move_approval(
        &self,
        id: &ApprovalId,
        to: ApprovalState,
        events: &[NewEvent],
        change: &mut dyn FnMut(&mut Approval),
    ) -> Result<Approval>;

    /// Forgets an approval that was refused before anything was staged: nothing came of it that a history could
    /// tell. What happened stays in the events. Errors: `NotFound`; `IllegalApprovalMove` for one that is not
    /// [`ApprovalState::Applying`].
    fn refuse_approval(&self, id: &ApprovalId, events: &[NewEvent]) -> Result<()>;

    /// The approval with this id, or the only one whose id starts so. Errors: `NotFound`,
    /// `Ambiguous`.
    fn find_approval(&self, text: &str) -> Result<Approval>;

    /// The approvals a filter lets through, newest first.
    fn list_approvals(&self, filter: &ApprovalFilter) -> Result<Vec<Approval>>;

    /// The newest approval of a project that is applied and whose backups are still there. The undo
    /// of an undo counts as one: it has applied the approval again.
    fn newest_undoable(&self, project: &ByteString) -> Result<Option<Approval>>;

    /// Approvals whose backups may go: not among the newest `keep` of their project, older than
    /// `before`, and neither half done nor in need of attention. Newest first.
    fn undo_expired(&self, keep: u32, before: &str) -> Result<Vec<Approval>>;

    /// Remembers that the backups of an approval are gone: it stays in the history and can no
    /// longer be undone. Succeeds if it was so already. Error: `NotFound`.
    fn drop_undo(&self, id: &ApprovalId) -> Result<()>;

    /// Forgets approvals from before that cannot be undone any more and are done with. Returns how
    /// many went.
    fn forget_approvals(&self, before: &str) -> Result<u64>;
}

/// A frozen state of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Of which sandbox.
    pub sandbox: SandboxId,
    /// Its label, unique in the sandbox.
    pub label: String,
    /// The layers, topmost first.
    pub layers: Vec<LayerId>,
    /// Which overlay markers the layers hold; reading the other family could be led astray.
    pub driver: WorkspaceDriver,
    /// What the project was.
    pub base: Base,
    /// The project.
    pub project: ByteString,
    /// Which of its changes may be approved.
    #[serde(default, skip_serializing_if = "ChangeRules::is_empty")]
    pub rules: ChangeRules,
    /// Where commands start, if the sandbox named a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<ByteString>,
    /// How far the sandbox's memory of its base reached: what moved later is not the base of this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reach: Option<u64>,
    /// When (RFC 3339).
    pub created_at: String,
}

/// A named snapshot that new sandboxes can start from. It lives on without its sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// Its unique name.
    pub name: String,
    /// What it holds.
    pub snapshot: Snapshot,
    /// When (RFC 3339).
    pub created_at: String,
}

/// Snapshots, templates, and who stands on which layer.
pub trait LayerStore: Send + Sync {
    /// Remembers a snapshot and its layer references. Error: `AlreadyExists`.
    fn insert_snapshot(&self, snapshot: &Snapshot, events: &[NewEvent]) -> Result<()>;

    /// The snapshot of a sandbox with this label. Error: `NotFound`.
    fn snapshot(&self, sandbox: &SandboxId, label: &str) -> Result<Snapshot>;

    /// The snapshots of one sandbox, or all.
    fn list_snapshots(&self, sandbox: Option<&SandboxId>) -> Result<Vec<Snapshot>>;

    /// Forgets a snapshot and its references. Succeeds if it is already gone.
    fn remove_snapshot(&self, sandbox: &SandboxId, label: &str) -> Result<()>;

    /// Remembers a template and its layer references. Error: `AlreadyExists`.
    fn insert_template(&self, template: &Template, events: &[NewEvent]) -> Result<()>;

    /// The template with this name. Error: `NotFound`.
    fn template(&self, name: &str) -> Result<Template>;

    /// All templates.
    fn list_templates(&self) -> Result<Vec<Template>>;

    /// Forgets a template and its references. Succeeds if it is already gone.
    fn remove_template(&self, name: &str) -> Result<()>;

    /// Every layer some sandbox (not deleted), snapshot or template stands on, and how many do. A
    /// layer that is not here may be removed from the disk.
    fn layers_in_use(&self) -> Result<BTreeMap<LayerId, u64>>;

    /// Whether somebody stands on a layer.
    fn is_layer_in_use(&self, layer: &LayerId) -> Result<bool>;
}

/// A selection that was dropped from a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rejection {
    /// In which sandbox.
    pub sandbox: SandboxId,
    /// When (RFC 3339).
    pub at: String,
    /// What was named.
    pub selection: Selection,
    /// What it came to.
    pub paths: Vec<RelPath>,
    /// What the reviewer said.
    pub reason: Option<String>,
}

/// Which events to list, and from where.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EventFilter {
    /// Only those after this sequence number; 0 is from the start.
    pub after: u64,
    /// Only those of this sandbox.
    pub sandbox: Option<SandboxId>,
    /// At most this many; `None` is all.
    pub limit: Option<u32>,
}

/// What a request finds under its idempotency key.
#[derive(Debug, Clone, PartialEq)]
pub enum KeyClaim {
    /// Nobody used the key; it is now this request's, without a result.
    New,
    /// The same request was begun and has no result yet.
    InProgress,
    /// The same request was done; this was its result.
    Done(Value),
}

/// What happened: rejections, events, idempotency keys, facts about the store itself.
pub trait LedgerStore: Send + Sync {
    /// Remembers a rejection.
    fn insert_rejection(&self, rejection: &Rejection, events: &[NewEvent]) -> Result<()>;

    /// The rejections in a sandbox, oldest first.
    fn list_rejections(&self, sandbox: &SandboxId) -> Result<Vec<Rejection>>;

    /// Appends events that go with no other change; returns the sequence number of the last event
    /// in the store.
    fn append_events(&self, events: &[NewEvent]) -> Result<u64>;

    /// Events in order of their number. Numbers have no gaps until events are pruned or a sandbox is
    /// forgotten, and are never given twice.
    fn list_events(&self, filter: &EventFilter) -> Result<Vec<Event>>;

    /// Removes events older than `before`; returns how many.
    fn prune_events(&self, before: &str) -> Result<u64>;

    /// Claims an idempotency key for the request with this hash. A key that expired by `now` is as
    /// good as unused. Error: `KeyReused` when the hash is another one.
    fn claim_key(
        &self,
        key: &str,
        body: &ContentHash,
        now: &str,
        expires_at: &str,
    ) -> Result<KeyClaim>;

    /// Remembers the result of the request under a key. Error: `NotFound`.
    fn finish_key(&self, key: &str, result: &Value) -> Result<()>;

    /// Forgets a key whose request failed, so that it may be tried again; succeeds if it is gone.
    fn drop_key(&self, key: &str) -> Result<()>;

    /// Keys that were claimed and have no result: in progress, or left behind by a crash.
    fn unfinished_keys(&self) -> Result<Vec<String>>;

    /// Removes keys that expired by `now`; returns how many.
    fn prune_keys(&self, now: &str) -> Result<u64>;

    /// A fact by its name. `instance` and `node` are there from the first open.
    fn meta(&self, key: &str) -> Result<Option<String>>;

    /// Remembers a fact, replacing what was there.
    fn set_meta(&self, key: &str, value: &str) -> Result<()>;
}

/// What [`Housekeeping::upkeep`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Upkeep {
    /// Size of the log before.
    pub log_bytes: u64,
    /// Whether the log was folded into the database and started again.
    pub folded: bool,
}

/// Up to when rows of each kind are kept (RFC 3339); `None` keeps all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptSince {
    /// For [`LedgerStore::prune_events`].
    pub events: Option<String>,
    /// For [`SandboxStore::purge_deleted`].
    pub deleted: Option<String>,
    /// For [`ApprovalStore::forget_approvals`].
    pub approvals: Option<String>,
    /// For [`LedgerStore::prune_keys`].
    pub keys: Option<String>,
}

/// How many rows of each kind would go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outdated {
    /// Events.
    pub events: u64,
    /// Sandboxes that were deleted.
    pub deleted: u64,
    /// Approvals.
    pub approvals: u64,
    /// Idempotency keys.
    pub keys: u64,
}

/// Why a handle takes no more changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// A sync failed: what was written before may be lost, and no later success would prove the
    /// opposite. Whoever shares the database with this handle is to stop too, until skep is started
    /// again.
    Unsynced,
    /// It is not known whether a change happened. Another handle may go on.
    Unsure,
    /// Another holder acts for this node.
    Fenced,
    /// A part of what is remembered cannot be read. Whoever shares the database with this handle is to
    /// stop too, until it is sound again.
    Damaged,
}

/// Held by whoever is at something ([`Housekeeping::begin_work`]).
#[derive(Debug, Default)]
pub struct Work {
    _file: Option<std::fs::File>,
}

impl Work {
    /// Until the file is closed.
    pub(crate) fn held(file: Option<std::fs::File>) -> Self {
        Self { _file: file }
    }
}

/// Care of the store as a whole.
pub trait Housekeeping: Send + Sync {
    /// Gets ready for what is asked at the end of a run: call it where there is nothing to do but
    /// wait for somebody else. Changes nothing, and need not do anything.
    fn rehearse(&self) {}

    /// Whether this is not the store itself, but what stands for it until it must be asked
    /// ([`crate::DeferredStore`]): nothing that it remembers was looked at.
    fn is_deferred(&self) -> bool {
        false
    }

    /// Takes in sandboxes that were made without asking the store; returns how many there were. Cheap
    /// where there are none.
    fn take_in_runs(&self) -> Result<u64> {
        Ok(0)
    }

    /// Looks who is at what. For whoever is about to look at everything and to settle it.
    fn look_around(&self) {}

    /// Remembers that everything was looked at and settled, since [`Housekeeping::look_around`] was called: see
    /// [`Housekeeping::vouch`].
    fn note_settled(&self) {}

    /// Says that nothing is amiss with the store as it is now: as long as nobody changes it, a run need not
    /// open it. For whoever has settled everything ([`Housekeeping::note_settled`]), left nothing undone, and is done
    /// with it. Does nothing if anybody else has changed the store since, is at something, or was when everything was
    /// settled.
    fn vouch(&self) {}

    /// Says that something is begun that takes several steps, and that somebody has to settle if whoever began it
    /// dies: nobody vouches for the store until it has ended, and if it never does, not before somebody has settled
    /// everything.
    fn begin_work(&self) -> Work {
        Work::default()
    }

    /// Says that this node is alive, where others would take it over that hear nothing. For a server, every
    /// few seconds; it writes when half of the time is over.
    fn renew(&self) -> Result<()> {
        Ok(())
    }

    /// Keeps the store small and quick to open. May wait for the disk: call it where nobody waits,
    /// after the answer was given. Does little or nothing when there is little to do.
    fn upkeep(&self) -> Result<Upkeep>;

    /// Why this handle takes no more changes, if it does not. There is no way back.
    fn stop(&self) -> Option<Stop>;

    /// Whether this handle may change anything at all: it was not opened to read, and it did not stop.
    fn takes_changes(&self) -> bool {
        self.stop().is_none()
    }

    /// Returns when everything that was committed survives a loss of power. For what is about to be
    /// removed because a row says so. Waits for the disk.
    fn sync(&self) -> Result<()>;

    /// Counts what pruning with these bounds would remove; changes nothing.
    fn outdated(&self, since: &KeptSince) -> Result<Outdated>;

    /// Reads everything, as it lies on the disk, and returns a sentence per problem. Where there is one,
    /// this handle changes nothing any more. Takes time in proportion to the database: for `skep doctor`,
    /// the start of a server, and now and then while it runs.
    fn check(&self) -> Result<Vec<String>>;
}
