//! The engine as an [`Api`]: one line per question.

use crate::api::{
    Answer, Api, ApproveReport, ApproveRequest, Comparison, CopyReport, CreateRequest, Disposal,
    EgressChange, EgressChanged, EgressProbe, EgressView, Finding, GcDecision, GcRequest,
    ListFilter, LogChunk, ProviderView, PullReport, RebaseReport, RejectReport, SandboxView,
    SettledRun, SnapshotView, StartedExec, StartedRun,
};
use crate::problems::OrProblem;
use crate::{Engine, Stats};
use serde_json::Value;
use skep_provider::Attach;
use skep_store::{ApprovalFilter, EventFilter};
use skep_types::{
    Approval, ApprovalId, ByteString, ChangeSet, ChangeSetDigest, Code, Drift, Event, Exec, ExecId,
    ExecSpec, Problem, RelPath, Sandbox, SandboxId, SandboxName, Selection,
};
use skep_workspace::apply::Resolution;
use std::path::Path;

impl Api for Engine {
    fn create(&self, request: &CreateRequest) -> Answer<Sandbox> {
        self.whole(self.create_once(request))
    }
    fn find(&self, name: &str) -> Answer<Sandbox> {
        self.take_in_runs();
        let found = self.store.find_sandbox(name).or_problem();
        found.map_err(|problem| self.or_deleted(name, problem))
    }
    fn newest(&self, project: &Path) -> Answer<Option<Sandbox>> {
        self.take_in_runs();
        let real = std::fs::canonicalize(project).unwrap_or_else(|_| project.to_owned());
        self.newest_of(&ByteString::from(real))
    }
    fn show(&self, id: &SandboxId) -> Answer<SandboxView> {
        let sandbox = self.look_up(id)?;
        let facts = self.facts_of(&sandbox);
        Ok(SandboxView { facts, ..self.view(sandbox)? })
    }
    fn list(&self, filter: &ListFilter) -> Answer<Vec<SandboxView>> {
        self.list_views(filter)
    }
    fn start(&self, id: &SandboxId) -> Answer<Sandbox> {
        self.whole(self.start_sandbox(id))
    }
    fn stop(&self, id: &SandboxId) -> Answer<Sandbox> {
        self.whole(self.stop_sandbox(id))
    }
    fn freeze(&self, id: &SandboxId) -> Answer<Sandbox> {
        self.whole(self.freeze_sandbox(id))
    }
    fn thaw(&self, id: &SandboxId) -> Answer<Sandbox> {
        self.whole(self.thaw_sandbox(id))
    }
    fn remove(&self, id: &SandboxId, discard: bool) -> Answer<()> {
        self.whole(self.remove_sandbox(id, discard))
    }
    fn begin_run(&self, request: &CreateRequest, spec: &ExecSpec) -> Answer<StartedRun> {
        self.whole(self.create_for_run(request, spec))
    }
    fn settle_run(&self, id: &SandboxId, disposal: Disposal) -> Answer<SettledRun> {
        self.whole(self.settle_after_run(id, disposal))
    }

    fn exec(&self, id: &SandboxId, spec: &ExecSpec, attach: bool) -> Answer<StartedExec> {
        let attach = if attach { Attach::Yes } else { Attach::No };
        self.whole(self.start_exec(id, spec, attach))
    }
    fn find_exec(&self, id: &str) -> Answer<Exec> {
        self.exec_by(id)
    }
    fn execs(&self, id: &SandboxId) -> Answer<Vec<Exec>> {
        self.execs_of(id)
    }
    fn logs(&self, exec: &ExecId, from: u64, limit: usize) -> Answer<Vec<LogChunk>> {
        self.exec_logs(exec, from, limit)
    }
    fn kill(&self, exec: &ExecId, signal: i32) -> Answer<()> {
        self.whole(self.kill_exec(exec, signal))
    }

    fn diff(&self, id: &SandboxId) -> Answer<ChangeSet> {
        self.whole(self.change_set(id))
    }
    fn approve(&self, id: &SandboxId, request: &ApproveRequest) -> Answer<ApproveReport> {
        self.whole(self.approve_selection(id, request))
    }
    fn reject(
        &self,
        id: &SandboxId,
        selection: &Selection,
        digest: Option<ChangeSetDigest>,
        reason: Option<&str>,
    ) -> Answer<RejectReport> {
        self.whole(self.reject_selection(id, selection, digest, reason))
    }
    fn undo(&self, approval: Option<&ApprovalId>, project: &Path) -> Answer<ApproveReport> {
        self.whole(self.undo_approval(approval, project))
    }
    fn finish(&self, approval: &ApprovalId) -> Answer<ApproveReport> {
        self.whole(self.resolve_approval(approval, Resolution::Finish))
    }
    fn abandon(&self, approval: &ApprovalId) -> Answer<ApproveReport> {
        self.whole(self.abandon_approval(approval))
    }
    fn conflicts(&self, id: &SandboxId) -> Answer<Vec<Drift>> {
        self.whole(self.drift_of(id))
    }
    fn rebase(&self, id: &SandboxId) -> Answer<RebaseReport> {
        self.whole(self.rebase_sandbox(id))
    }
    fn sides(&self, id: &SandboxId, path: &RelPath) -> Answer<[Option<ByteString>; 3]> {
        self.whole(self.sides_of(id, path))
    }
    fn history(&self, project: &Path, path: Option<&RelPath>) -> Answer<Vec<Approval>> {
        let real = std::fs::canonicalize(project).unwrap_or_else(|_| project.to_owned());
        let filter = ApprovalFilter {
            project: Some(real.into()),
            path: path.cloned(),
            ..ApprovalFilter::default()
        };
        self.store.list_approvals(&filter).or_problem()
    }
    fn find_approval(&self, id: &str) -> Answer<Approval> {
        self.store.find_approval(id).or_problem()
    }
    fn receipt(&self, approval: &ApprovalId) -> Answer<Value> {
        self.signed_receipt(approval)
    }
    fn pull(&self, id: &SandboxId, branch: Option<&str>) -> Answer<PullReport> {
        self.whole(self.pull_commits(id, branch))
    }
    fn copy_out(&self, id: &SandboxId, path: &RelPath, to: &Path) -> Answer<CopyReport> {
        self.whole(self.copy_from(id, path, to))
    }
    fn copy_in(&self, id: &SandboxId, from: &Path, path: &RelPath) -> Answer<CopyReport> {
        self.whole(self.copy_to(id, from, path))
    }

    fn snapshot(&self, id: &SandboxId, label: Option<&str>) -> Answer<SnapshotView> {
        self.whole(self.take_snapshot(id, label))
    }
    fn restore(&self, id: &SandboxId, label: &str) -> Answer<Sandbox> {
        self.whole(self.restore_snapshot(id, label))
    }
    fn fork(&self, id: &SandboxId, count: u32, name: Option<&SandboxName>) -> Answer<Vec<Sandbox>> {
        self.whole(self.fork_sandbox(id, count, name))
    }
    fn compare(&self, ids: &[SandboxId]) -> Answer<Comparison> {
        self.whole(self.compare_sandboxes(ids))
    }
    fn snapshots(&self, id: &SandboxId) -> Answer<Vec<SnapshotView>> {
        self.list_snapshots(id)
    }
    fn templates(&self) -> Answer<Vec<SnapshotView>> {
        self.list_templates()
    }
    fn save_template(&self, id: &SandboxId, name: &SandboxName) -> Answer<SnapshotView> {
        self.whole(self.make_template(id, name))
    }
    fn remove_template(&self, name: &SandboxName) -> Answer<()> {
        self.whole(self.forget_template(name))
    }

    fn egress(&self, id: &SandboxId) -> Answer<EgressView> {
        self.egress_view(id)
    }

    fn change_egress(&self, id: &SandboxId, change: &EgressChange) -> Answer<EgressChanged> {
        self.whole(self.change_egress_of(id, change))
    }

    fn revoke_secret(&self, id: &SandboxId, name: &str) -> Answer<u64> {
        self.whole(self.revoke_secret_of(id, name))
    }

    fn probe_egress(&self, id: &SandboxId, targets: &[(String, u16)]) -> Answer<Vec<EgressProbe>> {
        self.whole(self.probe_egress_of(id, targets))
    }

    fn doctor(&self) -> Answer<Vec<Finding>> {
        let found = self.providers.iter().flat_map(|provider| provider.findings());
        let own = [self.settings_finding(), self.store_finding()];
        Ok(own
            .into_iter()
            .chain(self.provider_findings())
            .chain(found)
            .chain(self.room())
            .collect())
    }
    fn providers(&self) -> Answer<Vec<ProviderView>> {
        Ok(self.list_providers())
    }
    fn gc(&self, request: &GcRequest) -> Answer<Vec<GcDecision>> {
        self.whole(self.collect(request))
    }
    fn events(&self, after: u64, limit: usize) -> Answer<Vec<Event>> {
        self.take_in_all();
        let limit = Some(u32::try_from(limit).unwrap_or(u32::MAX));
        let filter = EventFilter { after, limit, ..EventFilter::default() };
        self.store.list_events(&filter).or_problem()
    }
    fn stats(&self) -> Answer<Stats> {
        self.sums()
    }
    fn config(&self, project: Option<&Path>) -> Answer<Vec<(String, Value, String)>> {
        if let Some(missing) = project.filter(|project| !project.is_dir()) {
            let message = format!("there is no directory `{}`", missing.display());
            return Err(Problem::new(Code::NotFound, message));
        }
        let (settings, origins) = self.settings(project, None)?;
        let rows = settings.rows(&origins).into_iter();
        Ok(rows.map(|row| (row.key, Value::String(row.value), row.origin.to_string())).collect())
    }
}
