//! Every question as a request.

use crate::connection::{Client, escaped};
use crate::lower;
use crate::stream::Stream;
use crate::wire::from_base64;
use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use skep_engine::Stats;
use skep_engine::api::{
    Answer, Api, ApproveReport, ApproveRequest, Comparison, CopyReport, CreateRequest,
    EgressChange, EgressChanged, EgressProbe, EgressView, Finding, GcDecision, GcRequest,
    ListFilter, LogChunk, LogStream, ProviderView, PullReport, RebaseReport, RejectReport,
    SandboxView, SnapshotView, StartedExec, StartedRun, first_spec,
};
use skep_types::{
    Approval, ApprovalId, ByteString, ChangeSet, ChangeSetDigest, Code, Drift, Event, Exec, ExecId,
    ExecSpec, Problem, RelPath, Sandbox, SandboxId, SandboxName, Selection,
};
use std::collections::BTreeMap;
use std::path::Path;

/// Sandboxes asked for in one go.
const PAGE: usize = 1000;

fn sandbox(id: &SandboxId, what: &str) -> String {
    format!("/v1/sandboxes/{id}{what}")
}

impl Api for Client {
    fn create(&self, request: &CreateRequest) -> Answer<Sandbox> {
        let body = lower::create(request, self.reached())?;
        self.keyed(request.idempotency_key.as_deref(), "/v1/sandboxes", &body)
    }
    fn find(&self, name: &str) -> Answer<Sandbox> {
        self.get(&format!("/v1/sandboxes/{}?brief=true", escaped(name)))
    }
    fn newest(&self, project: &Path) -> Answer<Option<Sandbox>> {
        self.get(&format!("/v1/newest?project={}", escaped(lower::path(project)?)))
    }
    fn show(&self, id: &SandboxId) -> Answer<SandboxView> {
        self.get(&sandbox(id, "")).and_then(view)
    }
    fn list(&self, filter: &ListFilter) -> Answer<Vec<SandboxView>> {
        let mut query = format!("/v1/sandboxes?limit={PAGE}");
        if let Some(project) = &filter.project {
            query.push_str(&format!("&project={}", escaped(lower::path(project)?)));
        }
        if let Some(state) = filter.state {
            query.push_str(&format!("&state={}", state.as_str()));
        }
        let mut all = Vec::new();
        let mut cursor = String::new();
        loop {
            let mut page: Value = self.get(&format!("{query}{cursor}"))?;
            for one in page["items"].as_array_mut().into_iter().flatten() {
                all.push(view(one.take())?);
            }
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={}", escaped(next)),
                None => return Ok(all),
            }
        }
    }
    fn start(&self, id: &SandboxId) -> Answer<Sandbox> {
        self.post(&sandbox(id, "/start"), &json!({}))
    }
    fn stop(&self, id: &SandboxId) -> Answer<Sandbox> {
        self.post(&sandbox(id, "/stop"), &json!({}))
    }
    fn freeze(&self, id: &SandboxId) -> Answer<Sandbox> {
        self.post(&sandbox(id, "/freeze"), &json!({}))
    }
    fn thaw(&self, id: &SandboxId) -> Answer<Sandbox> {
        self.post(&sandbox(id, "/thaw"), &json!({}))
    }
    fn remove(&self, id: &SandboxId, discard: bool) -> Answer<()> {
        let path = sandbox(id, &format!("?discard={discard}"));
        self.request(Method::DELETE, &path, None).map(drop)
    }

    fn begin_run(&self, request: &CreateRequest, spec: &ExecSpec) -> Answer<StartedRun> {
        let made = self.create(request)?;
        let mut body = lower::exec(&first_spec(request, &made, spec));
        // Should we be gone when it has ended, nobody else says stop.
        body["last"] = json!(true);
        let exec = Stream::start(self, &sandbox(&made.id, "/attach"), &body)
            .map(|(id, stream)| StartedExec { id, stream: Some(Box::new(stream)) });
        Ok(StartedRun { sandbox: made, exec })
    }

    fn exec(&self, id: &SandboxId, spec: &ExecSpec, attach: bool) -> Answer<StartedExec> {
        let body = lower::exec(spec);
        if attach {
            let (id, stream) = Stream::start(self, &sandbox(id, "/attach"), &body)?;
            return Ok(StartedExec { id, stream: Some(Box::new(stream)) });
        }
        let exec: Exec = self.post(&sandbox(id, "/execs"), &body)?;
        Ok(StartedExec { id: exec.id, stream: None })
    }
    fn find_exec(&self, id: &str) -> Answer<Exec> {
        self.get(&format!("/v1/execs/{}", escaped(id)))
    }
    fn execs(&self, id: &SandboxId) -> Answer<Vec<Exec>> {
        self.get(&sandbox(id, "/execs"))
    }
    fn logs(&self, exec: &ExecId, from: u64, limit: usize) -> Answer<Vec<LogChunk>> {
        #[derive(Deserialize)]
        struct Chunk {
            offset: u64,
            stream: LogStream,
            text: Option<String>,
            b64: Option<String>,
        }
        #[derive(Deserialize)]
        struct Logs {
            chunks: Vec<Chunk>,
        }
        let limit = limit.clamp(1, 8 << 20);
        let logs: Logs = self.get(&format!("/v1/execs/{exec}/logs?from={from}&limit={limit}"))?;
        let chunk = |chunk: Chunk| {
            let bytes = match (chunk.text, chunk.b64) {
                (Some(text), _) => text.into_bytes(),
                (None, Some(b64)) => from_base64(&b64).unwrap_or_default(),
                (None, None) => Vec::new(),
            };
            LogChunk { offset: chunk.offset, stream: chunk.stream, bytes: bytes.into() }
        };
        Ok(logs.chunks.into_iter().map(chunk).collect())
    }
    fn kill(&self, exec: &ExecId, signal: i32) -> Answer<()> {
        let path = format!("/v1/execs/{exec}/signal");
        self.request(Method::POST, &path, Some(&json!({ "signal": signal }))).map(drop)
    }

    fn diff(&self, id: &SandboxId) -> Answer<ChangeSet> {
        self.get(&sandbox(id, "/changes"))
    }
    fn diff_without_lines(&self, id: &SandboxId) -> Answer<ChangeSet> {
        self.get(&sandbox(id, "/changes?brief=true"))
    }
    fn approve(&self, id: &SandboxId, request: &ApproveRequest) -> Answer<ApproveReport> {
        self.post(&sandbox(id, "/approve"), &lower::approve(request))
    }
    fn reject(
        &self,
        id: &SandboxId,
        selection: &Selection,
        digest: Option<ChangeSetDigest>,
        reason: Option<&str>,
    ) -> Answer<RejectReport> {
        let body = json!({ "selection": selection, "digest": digest, "reason": reason });
        self.post(&sandbox(id, "/reject"), &body)
    }
    fn undo(&self, approval: Option<&ApprovalId>, project: &Path) -> Answer<ApproveReport> {
        match approval {
            Some(approval) => self.post(&format!("/v1/approvals/{approval}/undo"), &json!({})),
            None => self.post("/v1/undo", &json!({ "project": lower::path(project)? })),
        }
    }
    fn finish(&self, approval: &ApprovalId) -> Answer<ApproveReport> {
        self.post(&format!("/v1/approvals/{approval}/finish"), &json!({}))
    }
    fn abandon(&self, approval: &ApprovalId) -> Answer<ApproveReport> {
        self.post(&format!("/v1/approvals/{approval}/abandon"), &json!({}))
    }
    fn pull(&self, id: &SandboxId, branch: Option<&str>) -> Answer<PullReport> {
        self.post(&sandbox(id, "/pull"), &json!({ "branch": branch }))
    }
    fn copy_out(&self, id: &SandboxId, path: &RelPath, to: &Path) -> Answer<CopyReport> {
        self.on_this_host("cp")?;
        self.post(&sandbox(id, "/copy"), &json!({ "path": path, "to": lower::path(to)? }))
    }
    fn copy_in(&self, id: &SandboxId, from: &Path, path: &RelPath) -> Answer<CopyReport> {
        self.on_this_host("cp")?;
        self.post(&sandbox(id, "/copy"), &json!({ "path": path, "from": lower::path(from)? }))
    }
    fn conflicts(&self, id: &SandboxId) -> Answer<Vec<Drift>> {
        self.get(&sandbox(id, "/conflicts"))
    }
    fn rebase(&self, id: &SandboxId) -> Answer<RebaseReport> {
        self.post(&sandbox(id, "/rebase"), &json!({}))
    }
    fn sides(&self, id: &SandboxId, path: &RelPath) -> Answer<[Option<ByteString>; 3]> {
        let path = escaped(lower::path(path.as_path())?);
        let sides: Value = self.get(&sandbox(id, &format!("/sides?path={path}")))?;
        let side = |key: &str| sides[key].as_str().and_then(from_base64).map(ByteString::from);
        Ok([side("base_b64"), side("project_b64"), side("sandbox_b64")])
    }
    fn history(&self, project: &Path, path: Option<&RelPath>) -> Answer<Vec<Approval>> {
        let mut query = format!("/v1/approvals?project={}", escaped(lower::path(project)?));
        if let Some(path) = path {
            query.push_str(&format!("&path={}", escaped(lower::path(path.as_path())?)));
        }
        self.get(&query)
    }
    fn find_approval(&self, id: &str) -> Answer<Approval> {
        self.get(&format!("/v1/approvals/{}", escaped(id)))
    }
    fn receipt(&self, approval: &ApprovalId) -> Answer<Value> {
        // As it was signed: nothing in it is turned into an inner form.
        let body = self.request(Method::GET, &format!("/v1/approvals/{approval}/receipt"), None)?;
        serde_json::from_slice(&body)
            .map_err(|error| Problem::new(Code::Refused, format!("a strange receipt: {error}")))
    }

    fn egress(&self, id: &SandboxId) -> Answer<EgressView> {
        self.get(&sandbox(id, "/net"))
    }
    fn change_egress(&self, id: &SandboxId, change: &EgressChange) -> Answer<EgressChanged> {
        self.post(&sandbox(id, "/net"), &json!({ "allow": change.allow, "deny": change.deny }))
    }
    fn revoke_secret(&self, id: &SandboxId, name: &str) -> Answer<u64> {
        let path = sandbox(id, &format!("/secrets/{}", escaped(name)));
        let cut: Value = crate::connection::read(self.request(Method::DELETE, &path, None)?)?;
        Ok(cut["cut"].as_u64().unwrap_or(0))
    }
    fn probe_egress(&self, id: &SandboxId, targets: &[(String, u16)]) -> Answer<Vec<EgressProbe>> {
        self.post(&sandbox(id, "/net/test"), &json!({ "targets": targets }))
    }

    fn snapshot(&self, id: &SandboxId, label: Option<&str>) -> Answer<SnapshotView> {
        self.post(&sandbox(id, "/snapshots"), &json!({ "label": label }))
    }
    fn restore(&self, id: &SandboxId, label: &str) -> Answer<Sandbox> {
        self.post(&sandbox(id, "/restore"), &json!({ "label": label }))
    }
    fn fork(&self, id: &SandboxId, count: u32, name: Option<&SandboxName>) -> Answer<Vec<Sandbox>> {
        self.post(&sandbox(id, "/fork"), &json!({ "count": count, "name": name }))
    }
    fn compare(&self, ids: &[SandboxId]) -> Answer<Comparison> {
        self.post("/v1/compare", &json!({ "sandboxes": ids }))
    }
    fn snapshots(&self, id: &SandboxId) -> Answer<Vec<SnapshotView>> {
        self.get(&sandbox(id, "/snapshots"))
    }
    fn templates(&self) -> Answer<Vec<SnapshotView>> {
        self.get("/v1/templates")
    }
    fn save_template(&self, id: &SandboxId, name: &SandboxName) -> Answer<SnapshotView> {
        let body = json!({ "sandbox": id });
        let path = format!("/v1/templates/{name}");
        crate::connection::read(self.request(Method::PUT, &path, Some(&body))?)
    }
    fn remove_template(&self, name: &SandboxName) -> Answer<()> {
        self.request(Method::DELETE, &format!("/v1/templates/{name}"), None).map(drop)
    }

    fn providers(&self) -> Answer<Vec<ProviderView>> {
        self.get("/v1/providers")
    }
    fn doctor(&self) -> Answer<Vec<Finding>> {
        self.get("/v1/doctor")
    }
    fn gc(&self, request: &GcRequest) -> Answer<Vec<GcDecision>> {
        self.post("/v1/gc", &lower::gc(request))
    }
    fn events(&self, after: u64, limit: usize) -> Answer<Vec<Event>> {
        self.get(&format!("/v1/events?after={after}&limit={}", limit.clamp(1, 5000)))
    }
    fn stats(&self) -> Answer<Stats> {
        self.get("/v1/stats")
    }
    fn config(&self, project: Option<&Path>) -> Answer<Vec<(String, Value, String)>> {
        #[derive(Deserialize)]
        struct Row {
            key: String,
            value: Value,
            origin: String,
        }
        let query = match project {
            Some(project) => format!("/v1/config?project={}", escaped(lower::path(project)?)),
            None => "/v1/config".into(),
        };
        let rows: Vec<Row> = self.get(&query)?;
        Ok(rows.into_iter().map(|row| (row.key, row.value, row.origin)).collect())
    }
}

/// A sandbox that was looked at, in two parts: what is remembered holds numbers of 128 bits, which
/// do not pass through a flattened field.
fn view(document: Value) -> Answer<SandboxView> {
    #[derive(Deserialize)]
    struct Largest {
        path: RelPath,
        bytes: u64,
    }
    #[derive(Deserialize)]
    struct Looked {
        upper_bytes: u64,
        upper_inodes: u64,
        #[serde(default)]
        base_bytes: u64,
        #[serde(default)]
        system_bytes: u64,
        #[serde(default)]
        facts: BTreeMap<String, String>,
        largest: Vec<Largest>,
        running: Vec<ExecId>,
        warnings: Vec<String>,
    }
    let strange = |error: serde_json::Error| {
        Problem::new(Code::Refused, format!("the server described a sandbox strangely: {error}"))
    };
    let looked = Looked::deserialize(&document).map_err(strange)?;
    Ok(SandboxView {
        sandbox: serde_json::from_value(document).map_err(strange)?,
        upper_bytes: looked.upper_bytes,
        upper_inodes: looked.upper_inodes,
        base_bytes: looked.base_bytes,
        system_bytes: looked.system_bytes,
        largest: looked.largest.into_iter().map(|one| (one.path, one.bytes)).collect(),
        running: looked.running,
        facts: looked.facts,
        warnings: looked.warnings,
    })
}
