//! Projects whose root directory cannot be written inside.
//!
//! Inside, the project's root is the user's own, with the mode it has on the host: without the
//! owner's right to write nothing can be made, removed or renamed there. The report says so, before
//! somebody wonders.

use skep_types::{EnforcementReport, Layer, RelPath, Sandbox};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

const SHUT: &str = "the project's root directory cannot be written inside";
const OWNER_WRITES: u32 = 0o200;

/// Notes it, if the upper, which lends its mode to the root, has none of the right. What was asked
/// for by a scope is no surprise; and root without a fence writes everywhere.
pub(crate) fn note_shut(report: &mut EnforcementReport, sandbox: &Sandbox, upper: &Path) {
    let all = sandbox.policy.scope.iter().all(RelPath::is_root);
    let Ok(metadata) = std::fs::metadata(upper) else { return };
    let fenced = report.enforces(Layer::Filesystem) || !rustix::process::geteuid().is_root();
    if !all || !fenced || metadata.mode() & OWNER_WRITES != 0 {
        return;
    }
    let Some(layer) = report.0.get_mut(&Layer::Filesystem) else { return };
    let mode = metadata.mode() & 0o7777;
    let more = format!("{SHUT}: its mode is {mode:o}; `chmod u+w .` opens it");
    layer.reason =
        Some(layer.reason.take().into_iter().chain([more]).collect::<Vec<_>>().join("; "));
}

/// What a report says of a root that cannot be written.
pub fn shut(report: &EnforcementReport) -> Option<&str> {
    let reason = report.0.get(&Layer::Filesystem)?.reason.as_deref()?;
    let said = reason.find(SHUT).and_then(|at| reason.get(at..))?;
    // What comes behind it is another matter.
    let end = said.find(" opens it").map_or(said.len(), |at| at + " opens it".len());
    said.get(..end)
}
