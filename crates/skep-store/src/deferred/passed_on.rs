//! What is answered from the record of a run, and everything else, which the database is asked for.

use super::DeferredStore;
use crate::{
    ApprovalFilter, ApprovalStore, EventFilter, ExecMoves, ExecStore, Expect, Finish, Housekeeping,
    KeptSince, KeyClaim, LayerStore, Lease, LedgerStore, NewEvent, Outdated, Rejection, Result,
    SandboxFilter, SandboxStore, ScopeMode, Snapshot, Stop, Template, Upkeep, Work,
};
use serde_json::Value;
use skep_types::{
    Approval, ApprovalId, ApprovalState, ByteString, ContentHash, Event, Exec, ExecEnd, ExecId,
    LayerId, Sandbox, SandboxId,
};
use std::collections::BTreeMap;

/// The database is asked.
macro_rules! passed_on {
    ($(fn $name:ident(&self $(, $argument:ident: $kind:ty)*) -> $result:ty;)*) => {
        $(fn $name(&self $(, $argument: $kind)*) -> Result<$result> {
            self.database()?.$name($($argument),*)
        })*
    };
}

impl SandboxStore for DeferredStore {
    fn insert_sandbox(
        &self,
        sandbox: &Sandbox,
        scope: ScopeMode,
        events: &[NewEvent],
    ) -> Result<u64> {
        match self.insert(sandbox, scope, events)? {
            Some(version) => Ok(version),
            None => self.database()?.insert_sandbox(sandbox, scope, events),
        }
    }

    fn sandbox(&self, id: &SandboxId) -> Result<Sandbox> {
        match self.ask(id, |known| known.row.clone())? {
            Some(row) => Ok(row),
            None => self.database()?.sandbox(id),
        }
    }

    fn update_with_execs(
        &self,
        id: &SandboxId,
        expect: Expect,
        moves: ExecMoves<'_>,
        events: &[NewEvent],
        change: &mut dyn FnMut(&mut Sandbox),
    ) -> Result<Sandbox> {
        match self.update(id, expect, moves, events, change)? {
            Some(row) => Ok(row),
            None => self.database()?.update_with_execs(id, expect, moves, events, change),
        }
    }

    passed_on! {
        fn find_sandbox(&self, text: &str) -> Sandbox;
        fn deleted_sandbox(&self, name: &str) -> Option<Sandbox>;
        fn list_sandboxes(&self, filter: &SandboxFilter) -> Vec<Sandbox>;
        fn newest_sandbox(&self, project: &ByteString) -> Option<Sandbox>;
        fn claim_sandbox(
            &self,
            id: &SandboxId,
            expect: Expect,
            events: &[NewEvent],
            change: &mut dyn FnMut(&mut Sandbox)
        ) -> Sandbox;
        fn purge_deleted(&self, before: &str) -> Vec<SandboxId>;
        fn forget_sandbox(&self, id: &SandboxId) -> bool;
        fn release_scope(&self, id: &SandboxId) -> ();
        fn lease(&self, id: &SandboxId) -> Lease;
        fn take_lease(&self, id: &SandboxId, node: &str) -> Lease;
    }
}

impl ExecStore for DeferredStore {
    fn find_exec(&self, text: &str) -> Result<Exec> {
        let known = self.kept().as_ref().map(|known| known.row.id.clone());
        let find = |id: &SandboxId| {
            self.ask(id, |known| known.execs.iter().find(|exec| exec.id.as_str() == text).cloned())
        };
        match known.as_ref().map(find).transpose()?.flatten().flatten() {
            Some(exec) => Ok(exec),
            None => self.database()?.find_exec(text),
        }
    }

    fn running_execs(&self, sandbox: Option<&SandboxId>) -> Result<Vec<Exec>> {
        let runs = |exec: &&Exec| exec.end.is_none();
        let find = |id: &SandboxId| {
            self.ask(id, |known| known.execs.iter().filter(runs).cloned().collect())
        };
        match sandbox.map(find).transpose()?.flatten() {
            Some(execs) => Ok(execs),
            None => self.database()?.running_execs(sandbox),
        }
    }

    passed_on! {
        fn insert_exec(&self, exec: &Exec, events: &[NewEvent]) -> ();
        fn adopt_execs(&self, sandbox: &SandboxId, execs: &[Exec], events: &[NewEvent]) -> u64;
        fn finish_exec(&self, id: &ExecId, end: &ExecEnd, events: &[NewEvent]) -> Finish;
        fn list_execs(&self, sandbox: &SandboxId) -> Vec<Exec>;
        fn forget_execs(&self, sandbox: &SandboxId, ids: &[ExecId]) -> u64;
    }
}

impl ApprovalStore for DeferredStore {
    passed_on! {
        fn insert_approval(&self, approval: &Approval, events: &[NewEvent]) -> ();
        fn move_approval(
            &self,
            id: &ApprovalId,
            to: ApprovalState,
            events: &[NewEvent],
            change: &mut dyn FnMut(&mut Approval)
        ) -> Approval;
        fn refuse_approval(&self, id: &ApprovalId, events: &[NewEvent]) -> ();
        fn find_approval(&self, text: &str) -> Approval;
        fn list_approvals(&self, filter: &ApprovalFilter) -> Vec<Approval>;
        fn newest_undoable(&self, project: &ByteString) -> Option<Approval>;
        fn undo_expired(&self, keep: u32, before: &str) -> Vec<Approval>;
        fn drop_undo(&self, id: &ApprovalId) -> ();
        fn forget_approvals(&self, before: &str) -> u64;
    }
}

impl LayerStore for DeferredStore {
    fn list_snapshots(&self, sandbox: Option<&SandboxId>) -> Result<Vec<Snapshot>> {
        // A snapshot is written into the database, which has taken the record in before.
        match sandbox.map(|id| self.ask(id, |_| Vec::new())).transpose()?.flatten() {
            Some(none) => Ok(none),
            None => self.database()?.list_snapshots(sandbox),
        }
    }

    passed_on! {
        fn insert_snapshot(&self, snapshot: &Snapshot, events: &[NewEvent]) -> ();
        fn snapshot(&self, sandbox: &SandboxId, label: &str) -> Snapshot;
        fn remove_snapshot(&self, sandbox: &SandboxId, label: &str) -> ();
        fn insert_template(&self, template: &Template, events: &[NewEvent]) -> ();
        fn template(&self, name: &str) -> Template;
        fn list_templates(&self) -> Vec<Template>;
        fn remove_template(&self, name: &str) -> ();
        fn is_layer_in_use(&self, layer: &LayerId) -> bool;
        fn layers_in_use(&self) -> BTreeMap<LayerId, u64>;
    }
}

impl LedgerStore for DeferredStore {
    passed_on! {
        fn insert_rejection(&self, rejection: &Rejection, events: &[NewEvent]) -> ();
        fn list_rejections(&self, sandbox: &SandboxId) -> Vec<Rejection>;
        fn append_events(&self, events: &[NewEvent]) -> u64;
        fn list_events(&self, filter: &EventFilter) -> Vec<Event>;
        fn prune_events(&self, before: &str) -> u64;
        fn claim_key(&self, key: &str, body: &ContentHash, now: &str, expires_at: &str) -> KeyClaim;
        fn finish_key(&self, key: &str, result: &Value) -> ();
        fn drop_key(&self, key: &str) -> ();
        fn unfinished_keys(&self) -> Vec<String>;
        fn prune_keys(&self, now: &str) -> u64;
        fn meta(&self, key: &str) -> Option<String>;
        fn set_meta(&self, key: &str, value: &str) -> ();
    }
}

impl Housekeeping for DeferredStore {
    fn is_deferred(&self) -> bool {
        self.opened.get().is_none()
    }

    fn take_in_runs(&self) -> Result<u64> {
        self.opened.get().map_or(Ok(0), Housekeeping::take_in_runs)
    }

    /// What is begun here is in the record.
    fn begin_work(&self) -> Work {
        self.opened.get().map(Housekeeping::begin_work).unwrap_or_default()
    }

    /// Nothing that was not opened needs care.
    fn upkeep(&self) -> Result<Upkeep> {
        self.opened.get().map_or_else(|| Ok(Upkeep::default()), Housekeeping::upkeep)
    }

    fn stop(&self) -> Option<Stop> {
        self.opened.get().and_then(Housekeeping::stop)
    }

    passed_on! {
        fn sync(&self) -> ();
        fn outdated(&self, since: &KeptSince) -> Outdated;
        fn check(&self) -> Vec<String>;
    }
}
