//! What was shown of the project's side.
//!
//! A digest is over the sandbox's work. Where the project moved as well, an approval writes a merge
//! of both, which the digest does not cover. So a look that shows the whole change set notes, for each
//! path that would be merged, what stood in the project then, and who looked (one that serves another
//! command does not: nobody saw it); an approval that names a digest takes a merge only with what its
//! approver was shown beside that digest, and refuses what moved since (DESIGN.md §2, promise 2). An
//! approval that is made from a look of its own says what that look had beside it, and leaves no note.

use crate::Engine;
use serde_json::json;
use skep_types::{ChangeSetDigest, Code, ContentHash, Problem, RelPath, Sandbox};
use skep_workspace::{Derived, Plan};
use std::collections::HashSet;
use std::io;

/// As many looks at merging paths as are remembered.
const KEPT: usize = 4096;

impl Engine {
    /// Notes it. If that fails, an approval asks for another look.
    pub(super) fn note_shown(&self, sandbox: &Sandbox, derived: &Derived) {
        let moved = derived.moved();
        if !moved.is_empty() {
            let _ = self.add_shown(sandbox, derived.digest, &moved);
        }
    }

    fn add_shown(
        &self,
        sandbox: &Sandbox,
        digest: ChangeSetDigest,
        moved: &[(RelPath, ContentHash)],
    ) -> io::Result<()> {
        let file = self.layout().shown(&sandbox.id);
        let before = std::fs::read_to_string(&file).unwrap_or_default();
        let known: HashSet<&str> = before.lines().collect();
        let new: Vec<String> = moved
            .iter()
            .map(|(path, hash)| self.line(digest, path, hash))
            .filter(|line| !known.contains(line.as_str()))
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        let all: Vec<&str> = before.lines().chain(new.iter().map(String::as_str)).collect();
        let kept = all.len().saturating_sub(KEPT.max(new.len()));
        let text: String = all[kept..].iter().map(|line| format!("{line}\n")).collect();
        let temporary = file.with_extension("new");
        std::fs::write(&temporary, text)?;
        std::fs::rename(&temporary, &file)
    }

    /// Refuses a merge with what the project did not have when this digest was shown. `looked` is what it
    /// had at the look that this approval is made from.
    pub(super) fn check_shown(
        &self,
        sandbox: &Sandbox,
        derived: &Derived,
        plan: &Plan,
        looked: Option<ContentHash>,
    ) -> Result<(), Problem> {
        let moved: Vec<_> =
            derived.moved().into_iter().filter(|(path, _)| plan.has(path)).collect();
        if moved.is_empty() {
            return Ok(());
        }
        let shown = match looked {
            Some(looked) if Some(looked) == beside(derived) => return Ok(()),
            Some(_) => String::new(),
            None => std::fs::read_to_string(self.layout().shown(&sandbox.id)).unwrap_or_default(),
        };
        let shown: HashSet<&str> = shown.lines().collect();
        let unseen: Vec<RelPath> = moved
            .into_iter()
            .filter(|(path, hash)| !shown.contains(self.line(derived.digest, path, hash).as_str()))
            .map(|(path, _)| path)
            .collect();
        let Some(first) = unseen.first() else { return Ok(()) };
        let more = match unseen.len() {
            1 => String::new(),
            many => format!(" and {} more", many - 1),
        };
        let name = &sandbox.name;
        let message =
            format!("the project moved since this change set was looked at: `{first}`{more}");
        Err(Problem::new(Code::Conflict, message)
            .hint(format!(
                "nothing was changed; `skep diff {name}` shows it, and the same digest then takes the \
                 merge; `skep conflicts {name} PATH --side project` prints what stands there"
            ))
            .details(json!({ "moved": unseen })))
    }

    /// One line: the digest, which path with what, and who was shown it.
    fn line(&self, digest: ChangeSetDigest, path: &RelPath, project: &ContentHash) -> String {
        let of = |bytes: &[u8]| ContentHash::of(bytes);
        format!("{digest} {} {project} {}", of(path.as_bytes()), of(self.approver().as_bytes()))
    }
}

/// Over everything that an approval would merge with, see [`skep_types::ChangeSet::beside`].
pub(super) fn beside(derived: &Derived) -> Option<ContentHash> {
    let moved = derived.moved();
    if moved.is_empty() {
        return None;
    }
    let each = |(path, project): &(RelPath, ContentHash)| {
        format!("{} {project}\n", ContentHash::of(path.as_bytes()))
    };
    Some(ContentHash::of(moved.iter().map(each).collect::<String>().as_bytes()))
}
