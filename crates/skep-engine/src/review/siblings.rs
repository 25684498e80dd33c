//! Early conflict warnings: other sandboxes of the project that have another change of the same paths.

use crate::Engine;
use crate::early_warning::{READ, warning};
use crate::problems::OrProblem;
use skep_policy::GitBooks;
use skep_store::SandboxFilter;
use skep_types::{Change, Problem, RelPath, Sandbox, SandboxState, WorkspaceDriver};
use skep_workspace::glance::{Approved, Glance, Reading};
use std::collections::BTreeSet;

impl Engine {
    /// One warning per sibling. Looks only at the paths that changed here, so the cost follows the
    /// change.
    pub(crate) fn sibling_warnings(
        &self,
        sandbox: &Sandbox,
        changes: &[Change],
    ) -> Result<Vec<String>, Problem> {
        // Whoever commits or looks around writes git's books, and nothing of them is ever applied as
        // files; no more than of what is built, unless it is asked for.
        let books = GitBooks::of(changes);
        let meant = changes.iter().filter(|change| !change.ignored && !books.hold(change));
        // What was moved away is gone for those who work on it.
        let paths: BTreeSet<&RelPath> = meant
            .flat_map(|change| std::iter::once(&change.path).chain(&change.renamed_from))
            .collect();
        let paths: Vec<&RelPath> = paths.into_iter().collect();
        if paths.is_empty() {
            return Ok(Vec::new());
        }
        let states = [SandboxState::Ready, SandboxState::Frozen, SandboxState::Stopped];
        let filter = SandboxFilter {
            project: Some(sandbox.project.clone()),
            states: states.into(),
            ..SandboxFilter::default()
        };
        let siblings = self.store.list_sandboxes(&filter).or_problem()?;
        // A full copy has every path.
        let siblings = siblings
            .iter()
            .filter(|one| one.id != sandbox.id && one.driver != WorkspaceDriver::Copy);
        let Ok(ours) = self.opened(sandbox, Approved::default()) else { return Ok(Vec::new()) };
        let (ours, reading) = (Glance::new(&ours), Reading::of(READ));
        Ok(siblings.filter_map(|sibling| self.warn_of(&ours, sibling, &paths, &reading)).collect())
    }

    fn warn_of(
        &self,
        ours: &Glance<'_>,
        sibling: &Sandbox,
        paths: &[&RelPath],
        reading: &Reading,
    ) -> Option<String> {
        // One that is just being removed has nothing to warn of.
        let theirs = self.opened(sibling, Approved::default()).ok()?;
        let theirs = Glance::new(&theirs);
        let at_odds = |path: &&RelPath| ours.is_at_odds(&theirs, path, reading);
        let paths: Vec<&RelPath> = paths.iter().copied().filter(at_odds).collect();
        warning(sibling, &paths)
    }
}
