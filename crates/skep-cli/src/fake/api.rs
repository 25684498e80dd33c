//! The double itself.

use super::samples;
use serde_json::Value;
use skep_engine::Stats;
use skep_engine::api::{
    Answer, Api, ApproveReport, ApproveRequest, Capabilities, Comparison, CopyReport,
    CreateRequest, EgressChange, EgressChanged, Finding, GcDecision, GcRequest, ListFilter,
    LogChunk, LogStream, ProviderView, PullReport, RebaseReport, RebasedView, RejectReport,
    SandboxView, SnapshotView, StartedExec,
};
use skep_provider::capabilities::{SHARED_KERNEL_LAYERS, Selection as Chosen};
use skep_provider::{Boundary, ExecStream, StreamEvent};
use skep_types::{
    Approval, ApprovalId, ChangeSet, ChangeSetDigest, Code, Drift, Event, Exec, ExecEnd, ExecId,
    ExecSpec, NetworkMode, Problem, RelPath, Sandbox, SandboxId, SandboxName, Selection,
    TerminalSize,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

/// What was asked, in order, one line each.
#[derive(Clone, Default)]
pub(crate) struct Asked(Rc<RefCell<Vec<String>>>);

impl Asked {
    fn note(&self, line: impl Into<String>) {
        self.0.borrow_mut().push(line.into());
    }

    /// The lines.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.borrow().clone()
    }
}

/// Answers from memory.
pub(crate) struct FakeApi {
    /// What was asked.
    pub(crate) asked: Asked,
    /// The sandboxes there are; the first is the newest.
    pub(crate) sandboxes: Vec<Sandbox>,
    /// What each of them changed.
    pub(crate) changes: ChangeSet,
    /// What an exec prints.
    pub(crate) prints: Vec<u8>,
    /// Whether output was dropped behind what it printed.
    pub(crate) drops_output: bool,
    /// How an exec ends.
    pub(crate) end: ExecEnd,
    /// What `create` and `exec` fail with.
    pub(crate) create_fails: Option<Problem>,
    /// What `exec` fails with.
    pub(crate) exec_fails: Option<Problem>,
    /// The names of the templates there are.
    pub(crate) templates: Vec<&'static str>,
    /// What `approve` fails with.
    pub(crate) approve_fails: Option<Problem>,
}

impl Default for FakeApi {
    fn default() -> Self {
        Self {
            asked: Asked::default(),
            sandboxes: vec![samples::sandbox("bar1"), samples::sandbox("older")],
            changes: samples::change_set(),
            prints: b"hello\n".to_vec(),
            drops_output: false,
            end: samples::end(0),
            create_fails: None,
            exec_fails: None,
            templates: vec!["node22"],
            approve_fails: None,
        }
    }
}

impl FakeApi {
    fn by_id(&self, id: &SandboxId) -> Sandbox {
        let found = self.sandboxes.iter().find(|sandbox| sandbox.id == *id).cloned();
        found.unwrap_or_else(|| samples::sandbox("made"))
    }

    fn remembered(&self) -> Exec {
        Exec {
            id: exec_id(),
            sandbox: self.sandboxes[0].id.clone(),
            spec: ExecSpec { argv: vec!["make".into(), "te\x1bst".into()], ..Default::default() },
            started_at: "2026-11-15T21:00:00Z".into(),
            end: Some(self.end.clone()),
            enforcement: Default::default(),
        }
    }
}

fn exec_id() -> ExecId {
    ExecId::from_random([2; 10])
}

fn fail(problem: &Option<Problem>) -> Answer<()> {
    problem.clone().map_or(Ok(()), Err)
}

struct FakeStream {
    readable: OwnedFd,
    events: VecDeque<StreamEvent>,
}

impl ExecStream for FakeStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
    fn next(&mut self) -> io::Result<Option<StreamEvent>> {
        Ok(self.events.pop_front())
    }
    fn stdin(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn close_stdin(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn resize(&mut self, _: TerminalSize) -> io::Result<()> {
        Ok(())
    }
    fn signal(&mut self, _: i32) -> io::Result<()> {
        Ok(())
    }
}

impl Api for FakeApi {
    fn create(&self, request: &CreateRequest) -> Answer<Sandbox> {
        fail(&self.create_fails)?;
        self.asked.note(format!("create {}", request.project.display()));
        let name = request.name.as_ref().map_or("made", SandboxName::as_str);
        let provider = request.provider.clone().unwrap_or_else(|| "namespace".into());
        Ok(Sandbox { provider, ..samples::sandbox(name) })
    }
    fn change_egress(&self, id: &SandboxId, change: &EgressChange) -> Answer<EgressChanged> {
        let (allow, deny) = (&change.allow, &change.deny);
        self.asked.note(format!("egress {} +{allow:?} -{deny:?}", self.by_id(id).name));
        Ok(EgressChanged { allow: allow.clone(), cut: 0, version: 2 })
    }
    fn revoke_secret(&self, id: &SandboxId, name: &str) -> Answer<u64> {
        self.asked.note(format!("revoke {} {name}", self.by_id(id).name));
        Ok(0)
    }
    fn find(&self, name: &str) -> Answer<Sandbox> {
        let is = |sandbox: &&Sandbox| {
            sandbox.name.as_str() == name
                || (name.len() >= 6 && sandbox.id.as_str().starts_with(name))
        };
        let found = self.sandboxes.iter().find(is).cloned();
        found.ok_or_else(|| Problem::new(Code::NotFound, format!("no sandbox `{name}`")))
    }
    fn newest(&self, _: &Path) -> Answer<Option<Sandbox>> {
        Ok(self.sandboxes.first().cloned())
    }
    fn show(&self, id: &SandboxId) -> Answer<SandboxView> {
        Ok(samples::view(self.by_id(id).name.as_str()))
    }
    fn list(&self, filter: &ListFilter) -> Answer<Vec<SandboxView>> {
        self.asked.note(format!("list {:?}", filter.project));
        Ok(self.sandboxes.iter().map(|sandbox| samples::view(sandbox.name.as_str())).collect())
    }
    fn start(&self, id: &SandboxId) -> Answer<Sandbox> {
        self.asked.note("start");
        Ok(self.by_id(id))
    }
    fn stop(&self, id: &SandboxId) -> Answer<Sandbox> {
        self.asked.note("stop");
        Ok(self.by_id(id))
    }
    fn freeze(&self, id: &SandboxId) -> Answer<Sandbox> {
        self.asked.note("freeze");
        Ok(self.by_id(id))
    }
    fn thaw(&self, id: &SandboxId) -> Answer<Sandbox> {
        self.asked.note("thaw");
        Ok(self.by_id(id))
    }
    fn remove(&self, id: &SandboxId, discard: bool) -> Answer<()> {
        self.asked.note(format!("remove {} discard={discard}", self.by_id(id).name));
        Ok(())
    }
    fn exec(&self, id: &SandboxId, spec: &ExecSpec, attach: bool) -> Answer<StartedExec> {
        fail(&self.exec_fails)?;
        let words: Vec<_> = spec.argv.iter().map(ToString::to_string).collect();
        self.asked.note(format!("exec {} {words:?} attach={attach}", self.by_id(id).name));
        let (readable, _) = rustix::pipe::pipe().unwrap();
        let events = [
            StreamEvent::Stdout(self.prints.clone()),
            StreamEvent::Stderr(b"to stderr\n".to_vec()),
            StreamEvent::Ended(Box::new(self.end.clone())),
        ];
        let stream: Box<dyn ExecStream> = Box::new(FakeStream { readable, events: events.into() });
        Ok(StartedExec { id: exec_id(), stream: attach.then_some(stream) })
    }
    fn find_exec(&self, id: &str) -> Answer<Exec> {
        if exec_id().as_str().starts_with(id) {
            Ok(self.remembered())
        } else {
            Err(Problem::new(Code::NotFound, format!("no exec `{id}`")))
        }
    }
    fn execs(&self, _: &SandboxId) -> Answer<Vec<Exec>> {
        Ok(vec![self.remembered()])
    }
    fn logs(&self, _: &ExecId, from: u64, _: usize) -> Answer<Vec<LogChunk>> {
        let rest = self.prints.get(from as usize..).unwrap_or_default();
        let kept = LogChunk { offset: from, stream: LogStream::Stdout, bytes: rest.into() };
        let end = self.prints.len() as u64;
        let gap = LogChunk { offset: end, stream: LogStream::Dropped, bytes: "".into() };
        let chunks = [(!rest.is_empty()).then_some(kept), self.drops_output.then_some(gap)];
        Ok(chunks.into_iter().flatten().collect())
    }
    fn kill(&self, _: &ExecId, signal: i32) -> Answer<()> {
        self.asked.note(format!("kill {signal}"));
        Ok(())
    }
    fn diff(&self, id: &SandboxId) -> Answer<ChangeSet> {
        self.asked.note(format!("diff {}", self.by_id(id).name));
        Ok(self.changes.clone())
    }
    fn approve(&self, id: &SandboxId, request: &ApproveRequest) -> Answer<ApproveReport> {
        fail(&self.approve_fails)?;
        self.asked.note(format!(
            "approve {} {:?} {:?} digest={} risky={:?}",
            self.by_id(id).name,
            request.selection.paths,
            request.selection.hunks,
            request.digest == Some(self.changes.digest),
            request.allow_risky,
        ));
        Ok(samples::approve_report())
    }
    fn reject(
        &self,
        id: &SandboxId,
        selection: &Selection,
        _: Option<ChangeSetDigest>,
        reason: Option<&str>,
    ) -> Answer<RejectReport> {
        let name = self.by_id(id).name;
        self.asked.note(format!("reject {name} {:?} {reason:?}", selection.paths));
        Ok(RejectReport { rejected: Vec::new(), remaining: 0, not_taken_in: Vec::new() })
    }
    fn undo(&self, approval: Option<&ApprovalId>, project: &Path) -> Answer<ApproveReport> {
        self.asked.note(format!("undo {approval:?} {}", project.display()));
        Ok(samples::approve_report())
    }
    fn finish(&self, approval: &ApprovalId) -> Answer<ApproveReport> {
        self.asked.note(format!("finish {approval}"));
        Ok(samples::approve_report())
    }
    fn abandon(&self, approval: &ApprovalId) -> Answer<ApproveReport> {
        self.asked.note(format!("abandon {approval}"));
        Ok(samples::approve_report())
    }
    fn conflicts(&self, _: &SandboxId) -> Answer<Vec<Drift>> {
        let path = RelPath::parse(b"a.txt").unwrap();
        Ok(vec![Drift { path, merges: false, reason: "both changed line 1".into() }])
    }
    fn rebase(&self, _: &SandboxId) -> Answer<RebaseReport> {
        let view = RebasedView::AsItIs;
        let (merged, conflicts, put_off) = (Vec::new(), Vec::new(), Vec::new());
        Ok(RebaseReport { merged, conflicts, put_off, view })
    }
    fn sides(&self, _: &SandboxId, _: &RelPath) -> Answer<[Option<skep_types::ByteString>; 3]> {
        Ok([Some("base\n".into()), None, Some("inside\n".into())])
    }
    fn history(&self, _: &Path, _: Option<&RelPath>) -> Answer<Vec<Approval>> {
        Ok(Vec::new())
    }
    fn find_approval(&self, id: &str) -> Answer<Approval> {
        Err(Problem::new(Code::NotFound, format!("no approval `{id}`")))
    }
    fn receipt(&self, _: &ApprovalId) -> Answer<Value> {
        Ok(Value::Null)
    }
    fn pull(&self, id: &SandboxId, branch: Option<&str>) -> Answer<PullReport> {
        self.asked.note(format!("pull {} {branch:?}", self.by_id(id).name));
        Ok(PullReport { refs: Vec::new(), objects: 0 })
    }
    fn copy_out(&self, id: &SandboxId, path: &RelPath, to: &Path) -> Answer<CopyReport> {
        self.asked.note(format!("copy {}:{path} {}", self.by_id(id).name, to.display()));
        Ok(CopyReport { entries: 1, bytes: 5, skipped: Vec::new() })
    }
    fn copy_in(&self, id: &SandboxId, from: &Path, path: &RelPath) -> Answer<CopyReport> {
        self.asked.note(format!("copy {} {}:{path}", from.display(), self.by_id(id).name));
        Ok(CopyReport { entries: 1, bytes: 5, skipped: Vec::new() })
    }
    fn snapshot(&self, id: &SandboxId, label: Option<&str>) -> Answer<SnapshotView> {
        self.asked.note(format!("snapshot {} {label:?}", self.by_id(id).name));
        Ok(snapshot(label.unwrap_or("s1")))
    }
    fn restore(&self, id: &SandboxId, label: &str) -> Answer<Sandbox> {
        self.asked.note(format!("restore {} {label}", self.by_id(id).name));
        Ok(self.by_id(id))
    }
    fn fork(&self, id: &SandboxId, count: u32, _: Option<&SandboxName>) -> Answer<Vec<Sandbox>> {
        self.asked.note(format!("fork {} {count}", self.by_id(id).name));
        Ok((0..count).map(|number| samples::sandbox(&format!("f{number}"))).collect())
    }
    fn compare(&self, _: &[SandboxId]) -> Answer<Comparison> {
        Ok(Comparison { rows: Vec::new(), execs: Default::default() })
    }
    fn snapshots(&self, _: &SandboxId) -> Answer<Vec<SnapshotView>> {
        Ok(vec![snapshot("before")])
    }
    fn templates(&self) -> Answer<Vec<SnapshotView>> {
        Ok(self.templates.iter().map(|name| snapshot(name)).collect())
    }
    fn save_template(&self, id: &SandboxId, name: &SandboxName) -> Answer<SnapshotView> {
        self.asked.note(format!("save {} {name}", self.by_id(id).name));
        Ok(snapshot(name.as_str()))
    }
    fn remove_template(&self, name: &SandboxName) -> Answer<()> {
        self.asked.note(format!("forget {name}"));
        Ok(())
    }
    fn doctor(&self) -> Answer<Vec<Finding>> {
        let finding = |name: &str, ok: bool| Finding {
            name: name.into(),
            ok,
            tried: true,
            how: "probed".into(),
            reason: (!ok).then(|| "not installed".into()),
            remedy: (!ok).then(|| "apt install docker.io".into()),
        };
        Ok(vec![
            finding("overlay", true),
            finding("provider namespace", true),
            finding("provider docker", false),
        ])
    }
    fn providers(&self) -> Answer<Vec<ProviderView>> {
        let view = |name: &str, ok: bool| ProviderView {
            name: name.into(),
            ok,
            tried: true,
            how: "probed".into(),
            reason: (!ok).then(|| "not installed".into()),
            remedy: (!ok).then(|| "apt install docker.io".into()),
            capabilities: Capabilities {
                boundary: Boundary::SharedKernel,
                layers: SHARED_KERNEL_LAYERS.to_vec(),
                networks: vec![NetworkMode::None],
                system_cow: true,
                images: false,
                unprivileged: true,
                selection: Chosen::Always,
            },
        };
        Ok(vec![view("namespace", true), view("docker", false)])
    }
    fn gc(&self, request: &GcRequest) -> Answer<Vec<GcDecision>> {
        self.asked.note(format!("gc dry_run={}", request.dry_run));
        Ok(vec![GcDecision {
            what: "sandbox".into(),
            name: "old".into(),
            action: "remove".into(),
            reason: "approved 2 d ago".into(),
            bytes: 1024,
        }])
    }
    fn events(&self, after: u64, _: usize) -> Answer<Vec<Event>> {
        let event = Event {
            sequence: 1,
            at: "2026-11-15T21:00:00Z".into(),
            kind: "sandbox.created".into(),
            sandbox: None,
            exec: None,
            data: Value::Null,
        };
        Ok(if after == 0 { vec![event] } else { Vec::new() })
    }
    fn stats(&self) -> Answer<Stats> {
        let states = BTreeMap::from([("ready".to_owned(), 2)]);
        Ok(Stats { states, execs: 1, changed: 2048, ..Stats::default() })
    }
    fn config(&self, _: Option<&Path>) -> Answer<Vec<(String, Value, String)>> {
        Ok(vec![("limits.pids".into(), 4096.into(), "default".into())])
    }
}

fn snapshot(label: &str) -> SnapshotView {
    SnapshotView {
        label: label.into(),
        sandbox: "bar1".into(),
        created_at: "2026-11-15T21:00:00Z".into(),
        layers: 1,
    }
}
