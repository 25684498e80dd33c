//! Directories made, entries removed and moved.

use super::{nothing_at, plain};
use crate::Engine;
use crate::api::CopyReport;
use crate::lifecycle::pend;
use crate::problems::OrProblem;
use crate::review::Bytes;
use serde_json::{Value, json};
use skep_types::{Code, EntryState, Problem, RelPath, Sandbox, SandboxId};
use skep_workspace::apply::Source;
use skep_workspace::{View, ViewWrite};

/// What a directory is made with; the sandbox's own processes may change it.
const MODE: u32 = 0o755;

impl Engine {
    /// Makes a directory; with `parents` those above it too, and one that is there is no error.
    pub fn make_directory(
        &self,
        id: &SandboxId,
        path: &RelPath,
        parents: bool,
    ) -> Result<(), Problem> {
        let data = json!({ "made": path });
        self.change_view(id, data, |view| {
            match view.state(path).or_problem()? {
                EntryState::Dir { .. } if parents => return Ok((Vec::new(), ())),
                EntryState::Absent => {}
                other => return Err(taken(path, &other)),
            }
            let above: Vec<RelPath> = path.ancestors().filter(|above| !above.is_root()).collect();
            let mut writes = Vec::new();
            for above in above.iter().rev() {
                match view.state(above).or_problem()? {
                    EntryState::Dir { .. } => {}
                    EntryState::Absent if parents => writes.push(directory(above)),
                    _ => return Err(no_directory(above)),
                }
            }
            writes.push(directory(path));
            Ok((writes, ()))
        })
    }

    /// Removes an entry; a directory that is not empty only with `recursive`.
    pub fn remove_in(
        &self,
        id: &SandboxId,
        path: &RelPath,
        recursive: bool,
    ) -> Result<CopyReport, Problem> {
        refuse_root(path)?;
        self.change_view(id, json!({ "removed": path }), |view| {
            let (_, entries) = tree_at(view, path)?;
            if entries.len() > 1 && !recursive {
                let message = format!("directory `{path}` is not empty");
                return Err(Problem::new(Code::Conflict, message)
                    .hint("say `recursive` to remove what is in it too"));
            }
            let report = counted(&entries);
            Ok((removals(&entries), report))
        })
    }

    /// Moves an entry to a path where nothing is. The bytes are put at the new place first, so
    /// that whoever dies in between leaves them at both.
    pub fn move_in(
        &self,
        id: &SandboxId,
        from: &RelPath,
        to: &RelPath,
    ) -> Result<CopyReport, Problem> {
        refuse_root(from)?;
        refuse_root(to)?;
        if to.starts_with(from) {
            let message = format!("`{from}` cannot be moved into itself");
            return Err(Problem::new(Code::Usage, message));
        }
        self.change_view(id, json!({ "moved": from, "to": to }), |view| {
            let (_, entries) = tree_at(view, from)?;
            let state = view.state(to).or_problem()?;
            if !state.is_absent() {
                return Err(taken(to, &state));
            }
            let parent = to.parent().unwrap_or_default();
            if !matches!(view.state(&parent).or_problem()?, EntryState::Dir { .. }) {
                return Err(no_directory(&parent));
            }
            let mut writes = Vec::new();
            for (path, state) in &entries {
                if let EntryState::Special { .. } = state {
                    let message = format!("`{path}` is a {}, which is not moved", state.noun());
                    return Err(Problem::new(Code::Refused, message));
                }
                let content = match state {
                    EntryState::File { .. } => {
                        view.source(path).or_problem()?.ok_or_else(|| nothing_at(path))?
                    }
                    _ => Source::None,
                };
                let path = rebased(path, from, to)?;
                writes.push(ViewWrite { path, state: plain(state.clone()), content });
            }
            writes.extend(removals(&entries));
            Ok((writes, counted(&entries)))
        })
    }

    /// Plans and writes while everything inside stands still, and notes it.
    pub(super) fn change_view<T>(
        &self,
        id: &SandboxId,
        data: Value,
        plan: impl FnOnce(&View) -> Result<(Vec<ViewWrite>, T), Problem>,
    ) -> Result<T, Problem> {
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        let plan = |sandbox: &Sandbox| plan(&View::open(&self.workspace(sandbox)).or_problem()?);
        let done = self.through_view(&sandbox, Bytes::AsTheyAre, plan, |_| Ok(()))?;
        self.update(id, "sandbox.files", data, &mut pend)?;
        Ok(done)
    }
}

type Entries = Vec<(RelPath, EntryState)>;

/// What stands at a path, and it with everything below it, parents first.
fn tree_at(view: &View, path: &RelPath) -> Result<(EntryState, Entries), Problem> {
    let state = view.state(path).or_problem()?;
    if state.is_absent() {
        return Err(nothing_at(path));
    }
    let mut found = Vec::new();
    let mut pending = vec![(path.clone(), state.clone())];
    while let Some((path, state)) = pending.pop() {
        if let EntryState::Dir { .. } = state {
            for below in view.list(&path).or_problem()? {
                let state = view.state(&below).or_problem()?;
                pending.push((below, state));
            }
        }
        found.push((path, state));
    }
    Ok((state, found))
}

fn removals(entries: &[(RelPath, EntryState)]) -> Vec<ViewWrite> {
    let absent = |(path, _): &(RelPath, EntryState)| ViewWrite {
        path: path.clone(),
        state: EntryState::Absent,
        content: Source::None,
    };
    // What is in a directory goes before it.
    entries.iter().rev().map(absent).collect()
}

fn counted(entries: &[(RelPath, EntryState)]) -> CopyReport {
    let size = |state: &EntryState| match state {
        EntryState::File { size, .. } => *size,
        _ => 0,
    };
    CopyReport {
        entries: entries.len() as u64,
        bytes: entries.iter().map(|(_, state)| size(state)).sum(),
        skipped: Vec::new(),
    }
}

fn rebased(path: &RelPath, from: &RelPath, to: &RelPath) -> Result<RelPath, Problem> {
    path.components().skip(from.depth()).try_fold(to.clone(), |at, part| {
        at.join(part).map_err(|error| Problem::new(Code::Usage, error.to_string()))
    })
}

pub(super) fn directory(path: &RelPath) -> ViewWrite {
    ViewWrite { path: path.clone(), state: EntryState::Dir { mode: MODE }, content: Source::None }
}

fn refuse_root(path: &RelPath) -> Result<(), Problem> {
    if path.is_root() {
        return Err(Problem::new(Code::Usage, "the project itself is neither moved nor removed"));
    }
    Ok(())
}

fn taken(path: &RelPath, state: &EntryState) -> Problem {
    Problem::new(Code::AlreadyExists, format!("`{path}` is {} inside already", state.noun()))
}

fn no_directory(path: &RelPath) -> Problem {
    Problem::new(Code::NotFound, format!("`{path}` is no directory inside"))
}
