//! Early conflict warnings: other sandboxes of the project that touched the same paths.

use crate::Engine;
use crate::problems::OrProblem;
use skep_policy::GitBooks;
use skep_store::SandboxFilter;
use skep_types::{Change, Problem, RelPath, Sandbox, SandboxState, WorkspaceDriver};
use skep_workspace::held::Held;

/// How many paths are named in one warning.
const NAMED: usize = 3;

impl Engine {
    /// One warning per sibling. Looks only at the paths that changed here, so the cost follows the
    /// change; a sibling's copy that it did not edit counts too: this is a warning, not a verdict.
    pub(crate) fn sibling_warnings(
        &self,
        sandbox: &Sandbox,
        changes: &[Change],
    ) -> Result<Vec<String>, Problem> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let states = [SandboxState::Ready, SandboxState::Frozen, SandboxState::Stopped];
        let filter = SandboxFilter {
            project: Some(sandbox.project.clone()),
            states: states.into(),
            ..SandboxFilter::default()
        };
        let siblings = self.store.list_sandboxes(&filter).or_problem()?;
        let warnings = siblings.iter().filter(|sibling| sibling.id != sandbox.id);
        Ok(warnings.filter_map(|sibling| self.warn_of(sandbox, sibling, changes)).collect())
    }

    fn warn_of(&self, sandbox: &Sandbox, sibling: &Sandbox, changes: &[Change]) -> Option<String> {
        // A full copy has every path.
        if sibling.driver == WorkspaceDriver::Copy {
            return None;
        }
        let levels = self.own_levels(sibling, &sandbox.layers);
        let levels: Vec<Held<'_>> = levels.iter().map(Held::new).collect();
        // Whoever commits or looks around writes there, and nothing of it is ever applied as files.
        let books = GitBooks::of(changes);
        let touched = |change: &&Change| {
            !books.hold(change)
                && levels
                    .iter()
                    .any(|level| level.meta(&change.path).is_ok_and(|meta| meta.is_some()))
        };
        let paths: Vec<&RelPath> =
            changes.iter().filter(touched).map(|change| &change.path).collect();
        let shown =
            paths.iter().take(NAMED).map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", ");
        match paths.len() {
            0 => None,
            count if count <= NAMED => {
                Some(format!("sandbox `{}` also touched {shown}", sibling.name))
            }
            count => Some(format!(
                "sandbox `{}` also touched {shown} and {} more",
                sibling.name,
                count - NAMED
            )),
        }
    }
}
