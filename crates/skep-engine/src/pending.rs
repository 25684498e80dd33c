//! (being written)
use crate::Engine;
use crate::api::*;
use crate::create::Start;
use serde_json::Value;
use skep_types::*;
use std::path::Path;
fn no<T>() -> Result<T, Problem> {
    Err(Problem::new(Code::Internal, "not built yet"))
}
#[allow(missing_docs, clippy::unused_self)]
impl Engine {
    pub(crate) fn resolve_start(&self, _: &str, _: &Path) -> Result<Start, Problem> {
        no()
    }
    pub(crate) fn gate(
        &self,
        _: &Sandbox,
        _: &skep_workspace::Plan,
        _: &str,
    ) -> Result<(), Problem> {
        no()
    }
    pub(crate) fn commit_approved(
        &self,
        _: &Sandbox,
        _: &ApproveRequest,
        report: ApproveReport,
    ) -> Result<ApproveReport, Problem> {
        Ok(report)
    }
    pub(crate) fn signed_receipt(&self, _: &ApprovalId) -> Result<Value, Problem> {
        no()
    }
    pub(crate) fn take_snapshot(
        &self,
        _: &SandboxId,
        _: Option<&str>,
    ) -> Result<SnapshotView, Problem> {
        no()
    }
    pub(crate) fn restore_snapshot(&self, _: &SandboxId, _: &str) -> Result<Sandbox, Problem> {
        no()
    }
    pub(crate) fn fork_sandbox(
        &self,
        _: &SandboxId,
        _: u32,
        _: Option<&SandboxName>,
    ) -> Result<Vec<Sandbox>, Problem> {
        no()
    }
    pub(crate) fn compare_sandboxes(&self, _: &[SandboxId]) -> Result<Comparison, Problem> {
        no()
    }
    pub(crate) fn list_snapshots(&self, _: &SandboxId) -> Result<Vec<SnapshotView>, Problem> {
        no()
    }
    pub(crate) fn list_templates(&self) -> Result<Vec<SnapshotView>, Problem> {
        no()
    }
    pub(crate) fn make_template(
        &self,
        _: &SandboxId,
        _: &SandboxName,
    ) -> Result<SnapshotView, Problem> {
        no()
    }
    pub(crate) fn forget_template(&self, _: &SandboxName) -> Result<(), Problem> {
        no()
    }
    pub(crate) fn collect(&self, _: &GcRequest) -> Result<Vec<GcDecision>, Problem> {
        no()
    }
    pub(crate) fn touched_by_siblings(&self, _: &Sandbox) -> Result<Vec<String>, Problem> {
        Ok(Vec::new())
    }
}
