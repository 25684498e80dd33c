//! (being written)
use crate::Engine;
use crate::api::*;
use skep_types::*;
#[allow(missing_docs, clippy::unused_self)]
impl Engine {
    pub(crate) fn commit_approved(
        &self,
        _: &Sandbox,
        _: &ApproveRequest,
        report: ApproveReport,
    ) -> Result<ApproveReport, Problem> {
        Ok(report)
    }
}
