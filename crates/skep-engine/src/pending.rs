//! (being written)
use crate::Engine;
use crate::api::*;
use serde_json::Value;
use skep_types::*;
fn no<T>() -> Result<T, Problem> {
    Err(Problem::new(Code::Internal, "not built yet"))
}
#[allow(missing_docs, clippy::unused_self)]
impl Engine {
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
    pub(crate) fn compare_sandboxes(&self, _: &[SandboxId]) -> Result<Comparison, Problem> {
        no()
    }
    pub(crate) fn collect(&self, _: &GcRequest) -> Result<Vec<GcDecision>, Problem> {
        no()
    }
    pub(crate) fn touched_by_siblings(&self, _: &Sandbox) -> Result<Vec<String>, Problem> {
        Ok(Vec::new())
    }
}
