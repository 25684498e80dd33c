//! Early conflict warnings for lists: paths that two live sandboxes of a project both touched.
//!
//! Both trees are walked together, into directories that both have, and only so far: sandboxes that
//! work in different places cost one look each, and a huge upper costs no more than a small one.

use crate::Engine;
use crate::problems::OrProblem;
use skep_policy::GitBooks;
use skep_store::SandboxFilter;
use skep_types::{ByteString, LayerId, Problem, RelPath, Sandbox, SandboxState, WorkspaceDriver};
use skep_workspace::tree::TreeRoot;
use std::collections::HashMap;

/// How many entries are looked at for one sandbox, and how many siblings.
const ENTRIES: usize = 1000;
const SIBLINGS: usize = 32;
/// How many paths are named in one warning.
const NAMED: usize = 3;

/// Sandboxes whose work is not decided on.
const LIVE: [SandboxState; 3] = [SandboxState::Ready, SandboxState::Frozen, SandboxState::Stopped];

/// The living sandboxes of projects, newest first and no more than are looked at: read once for a whole list.
#[derive(Default)]
pub(crate) struct Siblings(HashMap<ByteString, Vec<Sandbox>>);

impl Siblings {
    fn of(&mut self, engine: &Engine, project: &ByteString) -> Result<&[Sandbox], Problem> {
        if !self.0.contains_key(project) {
            let filter = SandboxFilter {
                project: Some(project.clone()),
                states: LIVE.into(),
                ..SandboxFilter::default()
            };
            let mut all = engine.store.list_sandboxes(&filter).or_problem()?;
            // A full copy has every path; what it changed cannot be told without a comparison.
            all.retain(|one| one.driver != WorkspaceDriver::Copy);
            all.reverse();
            // One of them may be whoever is looked at.
            all.truncate(SIBLINGS + 1);
            self.0.insert(project.clone(), all);
        }
        Ok(self.0.get(project).map_or(&[], Vec::as_slice))
    }
}

impl Engine {
    /// One warning per sibling, with the first paths that both touched.
    pub(crate) fn touched_by_siblings(
        &self,
        sandbox: &Sandbox,
        siblings: &mut Siblings,
    ) -> Result<Vec<String>, Problem> {
        if !LIVE.contains(&sandbox.state) || sandbox.driver == WorkspaceDriver::Copy {
            return Ok(Vec::new());
        }
        // Of a thousand that wait for their first command, none is compared with any other.
        let untouched =
            |level: &TreeRoot| level.list(&RelPath::root()).is_ok_and(|entries| entries.is_empty());
        if self.own_levels(sandbox, &[]).iter().all(untouched) {
            return Ok(Vec::new());
        }
        let siblings = siblings.of(self, &sandbox.project)?;
        let others = siblings.iter().filter(|sibling| sibling.id != sandbox.id);
        let mut budget = ENTRIES;
        let mut warnings = Vec::new();
        for sibling in others.take(SIBLINGS) {
            let paths = self.both_touched(sandbox, sibling, &mut budget);
            if !paths.is_empty() {
                warnings.push(warning(sibling, &paths));
            }
        }
        Ok(warnings)
    }

    /// Layers that both stand on were there before they parted.
    fn both_touched(
        &self,
        sandbox: &Sandbox,
        sibling: &Sandbox,
        budget: &mut usize,
    ) -> Vec<RelPath> {
        let ours = self.own_levels(sandbox, &sibling.layers);
        let theirs = self.own_levels(sibling, &sandbox.layers);
        let mut found: Vec<RelPath> = Vec::new();
        for one in &ours {
            for other in &theirs {
                common(one, other, budget, &mut found);
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// What a sandbox wrote itself: its upper, and the layers that are not `shared`.
    pub(crate) fn own_levels(&self, sandbox: &Sandbox, shared: &[LayerId]) -> Vec<TreeRoot> {
        let layers = sandbox.layers.iter().filter(|layer| !shared.contains(layer));
        let layers = layers.map(|layer| self.layout().layer(layer));
        let upper = self.layout().sandbox(&sandbox.id).join("upper");
        // One that is just being removed has nothing to warn of.
        [upper].into_iter().chain(layers).filter_map(|path| TreeRoot::open(&path).ok()).collect()
    }
}

/// Paths that both trees have and that are not directories in both.
fn common(one: &TreeRoot, other: &TreeRoot, budget: &mut usize, found: &mut Vec<RelPath>) {
    let mut pending = vec![RelPath::root()];
    while let Some(directory) = pending.pop() {
        // A directory shut by its mode is one we cannot compare; the diff will say so.
        let (Ok(ours), Ok(theirs)) = (one.list(&directory), other.list(&directory)) else {
            continue;
        };
        let theirs: HashMap<Vec<u8>, bool> =
            theirs.into_iter().take(ENTRIES).map(|(name, kind)| (name, kind.is_dir())).collect();
        for (name, kind) in ours {
            if *budget == 0 {
                return;
            }
            *budget -= 1;
            let (Some(directory_there), Ok(path)) = (theirs.get(&name), directory.join(&name))
            else {
                continue;
            };
            // Git's own: whoever looks around writes there, and it is never applied as files.
            if GitBooks::default().have(&path) {
                continue;
            }
            if kind.is_dir() && *directory_there {
                pending.push(path);
            } else {
                found.push(path);
            }
        }
    }
}

fn warning(sibling: &Sandbox, paths: &[RelPath]) -> String {
    let shown: Vec<_> = paths.iter().take(NAMED).map(|path| format!("`{path}`")).collect();
    let more = match paths.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("sandbox `{}` also touched {}{more}", sibling.name, shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_directories_are_no_collision_and_the_walk_is_bounded() {
        let base = tempfile::tempdir().unwrap();
        let make = |name: &str, files: &[&str]| {
            for file in files {
                let path = base.path().join(name).join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "x").unwrap();
            }
            TreeRoot::open(&base.path().join(name)).unwrap()
        };
        let one = make("one", &["d/a", "d/b", "only"]);
        let other = make("other", &["d/b", "d/c", "else"]);
        let look = |mut budget: usize| {
            let mut found = Vec::new();
            common(&one, &other, &mut budget, &mut found);
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(look(100), ["d/b"]);
        assert!(look(1).is_empty());
    }
}
