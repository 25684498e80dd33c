//! How far the writes of a plan came: what is told, noted and settled when not all of them could be made.

use serde_json::json;
use skep_types::{Code, Problem, RelPath, Sandbox};
use skep_workspace::Settlement;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// What became of the writes so far.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    made: RefCell<BTreeSet<RelPath>>,
    stayed: RefCell<Vec<RelPath>>,
}

impl Progress {
    /// A write was made.
    pub(super) fn note(&self, path: RelPath) {
        self.made.borrow_mut().insert(path);
    }

    /// A directory was to go, and something is in it: a view that is up, and in which somebody stands, shows what the
    /// user has moved away. It goes another time.
    pub(super) fn note_stayed(&self, path: RelPath) {
        self.stayed.borrow_mut().push(path);
    }

    /// The directories that stayed.
    pub(super) fn stayed(&self) -> Vec<RelPath> {
        self.stayed.borrow().clone()
    }

    /// Those of some paths that were written.
    pub(super) fn of(&self, paths: &[RelPath]) -> Vec<RelPath> {
        let made = self.made.borrow();
        paths.iter().filter(|path| made.contains(*path)).cloned().collect()
    }

    /// The bases of what was written: a directory that stayed has the one that it had.
    pub(super) fn settled(&self, settlement: &Settlement) -> Settlement {
        let mut settlement = settlement.clone();
        let stayed = self.stayed.borrow();
        settlement.paths.retain(|settled| !stayed.contains(&settled.path));
        settlement
    }

    /// A problem that came after some of the writes: that nothing was changed is not to be said.
    pub(super) fn cut_short(&self, mut problem: Problem, sandbox: &Sandbox) -> Problem {
        let made = self.made.borrow();
        let count = match made.len() {
            0 => return problem,
            1 => "1 path was".to_owned(),
            more => format!("{more} paths were"),
        };
        if problem.code.exit_code() == Code::Conflict.exit_code() {
            problem.code = Code::Io;
        }
        let name = &sandbox.name;
        problem.message = format!("{}; {count} written in `{name}` before that", problem.message);
        let rest = format!("`skep diff {name}` shows what is left; the same command goes on there");
        let hint = problem.hint.take().map_or(rest.clone(), |hint| format!("{hint}; {rest}"));
        problem.hint(hint).details(json!({ "written": *made }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::EntryState;
    use skep_workspace::SettledPath;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_stayed_is_neither_made_nor_settled() {
        let progress = Progress::default();
        progress.note(path("d/f"));
        progress.note_stayed(path("d"));
        assert_eq!(progress.of(&[path("d"), path("d/f"), path("e")]), [path("d/f")]);
        assert_eq!(progress.stayed(), [path("d")]);
        let settled = |at: &str| -> SettledPath {
            let state = serde_json::to_value(EntryState::Absent).unwrap();
            let side = json!({ "state": state });
            serde_json::from_value(json!({ "path": at, "before": side, "after": side })).unwrap()
        };
        let whole =
            Settlement { paths: vec![settled("d"), settled("d/f")], ..Settlement::default() };
        assert_eq!(progress.settled(&whole).paths, [settled("d/f")]);
    }
}
