//! Early conflict warnings for lists: paths that two live sandboxes of a project both changed, each in
//! its own way and not decided on yet.
//!
//! Both trees are walked together, into directories that both have, and only so far: sandboxes that
//! work in different places cost one look each, and a huge upper costs no more than a small one.

use crate::Engine;
use crate::problems::OrProblem;
use skep_policy::GitBooks;
use skep_store::SandboxFilter;
use skep_types::{ByteString, Problem, RelPath, Sandbox, SandboxId, SandboxState, WorkspaceDriver};
use skep_workspace::glance::{Approved, Glance, Opened, Reading};
use skep_workspace::tree::TreeRoot;
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

/// How many entries are looked at for one sandbox, and how many siblings.
const ENTRIES: usize = 1000;
const SIBLINGS: usize = 32;
/// How many bytes are read to find that two have the same.
pub(crate) const READ: u64 = 64 << 20;
/// How many paths are named in one warning.
const NAMED: usize = 3;

/// Sandboxes whose work is not decided on.
const LIVE: [SandboxState; 3] = [SandboxState::Ready, SandboxState::Frozen, SandboxState::Stopped];

/// The living sandboxes of projects, newest first and no more than are looked at: read once for a whole list.
#[derive(Default)]
pub(crate) struct Siblings {
    living: HashMap<ByteString, Vec<Sandbox>>,
    approved: HashMap<SandboxId, Approved>,
}

impl Siblings {
    fn find(&mut self, engine: &Engine, project: &ByteString) -> Result<(), Problem> {
        if !self.living.contains_key(project) {
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
            let approved = all.iter().map(|one| (one.id.clone(), Approved::default()));
            self.approved.extend(approved);
            self.living.insert(project.clone(), all);
        }
        Ok(())
    }

    fn of(&self, project: &ByteString) -> &[Sandbox] {
        self.living.get(project).map_or(&[], Vec::as_slice)
    }

    fn approved_of(&self, sandbox: &Sandbox) -> Approved {
        self.approved.get(&sandbox.id).cloned().unwrap_or_default()
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
        let approved = siblings.approved_of(sandbox);
        let Ok(ours) = self.opened(sandbox, approved) else { return Ok(Vec::new()) };
        if ours.levels().iter().all(untouched) {
            return Ok(Vec::new());
        }
        siblings.find(self, &sandbox.project)?;
        let others =
            siblings.of(&sandbox.project).iter().filter(|sibling| sibling.id != sandbox.id);
        let (mut budget, reading) = (ENTRIES, Reading::of(READ));
        let warnings = others.take(SIBLINGS).filter_map(|sibling| {
            // One that is just being removed has nothing to warn of.
            let theirs = self.opened(sibling, siblings.approved_of(sibling)).ok()?;
            let both = ((sandbox, &ours), (sibling, &theirs));
            let paths = both_touched(both, &mut budget, &reading);
            warning(sibling, &paths.iter().collect::<Vec<_>>())
        });
        Ok(warnings.collect())
    }

    /// The directories of a sandbox, for a glance at what it has.
    pub(crate) fn opened(&self, sandbox: &Sandbox, approved: Approved) -> io::Result<Opened> {
        Opened::of(self.workspace(sandbox), approved)
    }
}

/// Paths over which both are at odds, of those that are looked at.
fn both_touched(
    ((sandbox, ours), (sibling, theirs)): ((&Sandbox, &Opened), (&Sandbox, &Opened)),
    budget: &mut usize,
    reading: &Reading,
) -> Vec<RelPath> {
    let own = |sandbox: &Sandbox, other: &Sandbox| {
        let layers = sandbox.layers.iter();
        std::iter::once(true).chain(layers.map(|layer| !other.layers.contains(layer))).collect()
    };
    let own: (Vec<bool>, Vec<bool>) = (own(sandbox, sibling), own(sibling, sandbox));
    let (our_levels, their_levels) = (ours.levels(), theirs.levels());
    let (ours, theirs) = (Glance::new(ours), Glance::new(theirs));
    let found = common(
        &Levels { trees: our_levels, own: &own.0, cuts: &|at| ours.cuts(at, &own.0) },
        &Levels { trees: their_levels, own: &own.1, cuts: &|at| theirs.cuts(at, &own.1) },
        budget,
    );
    let mut found = ours.not_ignored(found);
    found.retain(|path| ours.is_at_odds(&theirs, path, reading));
    found
}

/// The upper and the layers of a sandbox, each with whether the other one does not stand on it, too.
struct Levels<'a> {
    trees: &'a [TreeRoot],
    own: &'a [bool],
    /// Whether one of its own hides what others have in a directory: it was removed, and made anew.
    cuts: &'a dyn Fn(&RelPath) -> bool,
}

/// What the levels have of a name.
#[derive(Clone, Copy, Default)]
struct Name {
    directory: bool,
    other: bool,
    own: bool,
}

impl Levels<'_> {
    /// The names in a directory. One that is shut by its mode cannot be compared; the diff will say so.
    fn list(&self, directory: &RelPath, most: usize) -> BTreeMap<Vec<u8>, Name> {
        let mut names: BTreeMap<Vec<u8>, Name> = BTreeMap::new();
        for (tree, own) in self.trees.iter().zip(self.own) {
            for (name, kind) in tree.list(directory).unwrap_or_default().into_iter().take(most) {
                let name = names.entry(name).or_default();
                name.directory |= kind.is_dir();
                name.other |= !kind.is_dir();
                name.own |= own;
            }
        }
        names
    }
}

/// Paths that both have and that are not directories in both, and what one of them has in a directory that the other
/// replaced. Layers that both stand on were there before they parted: what only these have is the same in both.
fn common(ours: &Levels<'_>, theirs: &Levels<'_>, budget: &mut usize) -> Vec<RelPath> {
    let mut found = Vec::new();
    let mut pending = vec![RelPath::root()];
    while let Some(directory) = pending.pop() {
        let (here, there) = (ours.list(&directory, *budget), theirs.list(&directory, ENTRIES));
        let (hidden_here, hidden_there) = (
            LazyCell::new(|| (ours.cuts)(&directory)),
            LazyCell::new(|| (theirs.cuts)(&directory)),
        );
        let names: BTreeSet<&Vec<u8>> = here.keys().chain(there.keys()).collect();
        for name in names {
            if *budget == 0 {
                break;
            }
            *budget -= 1;
            let Ok(path) = directory.join(name) else { continue };
            let (own, below, other) = match (here.get(name), there.get(name)) {
                (Some(here), Some(there)) => (
                    here.own || there.own,
                    here.directory && there.directory,
                    here.other || there.other,
                ),
                (Some(one), None) if *hidden_there => (one.own, one.directory, one.other),
                (None, Some(one)) if *hidden_here => (one.own, one.directory, one.other),
                _ => continue,
            };
            // Git's own: whoever looks around writes there, and it is never applied as files.
            if !own || GitBooks::default().have(&path) {
                continue;
            }
            if below {
                pending.push(path.clone());
            }
            if other {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Says over which paths somebody is at odds with `sibling`.
pub(crate) fn warning(sibling: &Sandbox, paths: &[&RelPath]) -> Option<String> {
    let shown: Vec<_> = paths.iter().take(NAMED).map(|path| format!("`{path}`")).collect();
    let more = match paths.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!paths.is_empty())
        .then(|| format!("sandbox `{}` also touched {}{more}", sibling.name, shown.join(", ")))
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
        let replaced = std::cell::Cell::new(false);
        let look = |own: bool, mut budget: usize| {
            let (own, uncut, cut) = ([own], |_: &RelPath| false, |_: &RelPath| replaced.get());
            let trees = |tree| std::slice::from_ref(tree);
            let ours = Levels { trees: trees(&one), own: &own, cuts: &uncut };
            let theirs = Levels { trees: trees(&other), own: &own, cuts: &cut };
            let found = common(&ours, &theirs, &mut budget);
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(look(true, 100), ["d/b"]);
        assert!(look(true, 1).is_empty());
        assert!(look(false, 100).is_empty());
        // What is in the way of one's work is gone with the directory that the other replaced.
        replaced.set(true);
        assert_eq!(look(true, 100), ["d/a", "d/b", "only"]);
    }
}
