//! `skep cp`: single files and trees into a workspace and out of it.
//!
//! Out of it, nothing is written into the project (that is what an approval is for) and nothing is
//! followed: a link comes out as a link, a special file not at all. Into it, entries are put through
//! the mounted view, like everything else that is written there from outside.

mod out;

use crate::Engine;
use crate::api::CopyReport;
use crate::files::plain;
use crate::lifecycle::pend;
use crate::problems::{OrProblem, io_problem};
use crate::review::Bytes;
use serde_json::json;
use skep_types::{ApprovalId, Code, EntryState, Problem, RelPath, Sandbox, SandboxId};
use skep_workspace::apply::Source;
use skep_workspace::tree::TreeRoot;
use skep_workspace::{View, ViewWrite};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

impl Engine {
    /// Copies what the view shows at `path` to `to` on the host.
    pub(crate) fn copy_from(
        &self,
        id: &SandboxId,
        path: &RelPath,
        to: &Path,
    ) -> Result<CopyReport, Problem> {
        let sandbox = self.load(id)?;
        let place = out::Place::find(to, path, &sandbox)?;
        self.refuse_own(&place, &sandbox)?;
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        self.while_still(&sandbox, || {
            let view = View::open(&self.workspace(&sandbox)).or_problem()?;
            match view.holder(path).or_problem()? {
                Some(_) => {
                    // A name that nobody can be waiting under.
                    let random = ApprovalId::from_random((self.config.random)());
                    let temporary = format!(".skep-cp-{random}");
                    out::copy(&view, path, &place, &temporary, || self.refuse_moved(&sandbox))
                }
                None => {
                    let message = format!("nothing is at `{path}` in sandbox `{}`", sandbox.name);
                    Err(Problem::new(Code::NotFound, message))
                }
            }
        })
    }

    /// The project changes by approvals only, and the state directory is ours.
    fn refuse_own(&self, place: &out::Place, sandbox: &skep_types::Sandbox) -> Result<(), Problem> {
        if place.lies_in(sandbox.project.as_path()) {
            let message = format!("`{}` is in the project", place.shown());
            return Err(Problem::new(Code::Refused, message).hint(format!(
                "what reaches the project is reviewed: use `skep approve {}`",
                sandbox.name
            )));
        }
        if place.lies_in(self.layout().root()) {
            let message = format!("`{}` is in skep's state directory", place.shown());
            return Err(Problem::new(Code::Refused, message));
        }
        Ok(())
    }

    /// Copies what stands at `from` on the host into the view at `path`.
    pub(crate) fn copy_to(
        &self,
        id: &SandboxId,
        from: &Path,
        path: &RelPath,
    ) -> Result<CopyReport, Problem> {
        let entries = read_host(from)?;
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        let plan = |sandbox: &Sandbox| {
            let view = View::open(&self.workspace(sandbox)).or_problem()?;
            let target = target_in(&view, path, &entries)?;
            let mut report = CopyReport { entries: 0, bytes: 0, skipped: entries.skipped };
            let mut writes = Vec::new();
            for entry in entries.found {
                let below = entry.below.components().try_fold(target.clone(), |at, part| {
                    at.join(part).map_err(|e| Problem::new(Code::Usage, e.to_string()))
                })?;
                report.entries += 1;
                if let EntryState::File { size, .. } = entry.state {
                    report.bytes += size;
                }
                writes.push(ViewWrite { path: below, state: entry.state, content: entry.source });
            }
            Ok((writes, report))
        };
        let report = self.through_view(&sandbox, Bytes::AsTheyAre, plan, |_| Ok(()))?;
        let data = json!({ "path": path, "entries": report.entries });
        self.update(id, "sandbox.copied_into", data, &mut pend)?;
        Ok(report)
    }
}

/// What is to be copied in: the entry itself (its path is the root) and what is below it.
struct HostEntries {
    name: Vec<u8>,
    found: Vec<HostEntry>,
    skipped: Vec<String>,
}

struct HostEntry {
    below: RelPath,
    state: EntryState,
    source: Source,
}

/// Reads an entry of the host and everything below it; no link is followed.
fn read_host(from: &Path) -> Result<HostEntries, Problem> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Problem::new(Code::NotFound, format!("nothing is at `{}`", shown(from)))
        }
        _ => io_problem("read", from, &error),
    };
    // `..` and a trailing dot have no name of their own: the real directory has.
    let from = match from.file_name() {
        Some(_) => from.to_owned(),
        None => std::fs::canonicalize(from).map_err(failed)?,
    };
    let name = from.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
    let parent = from.parent().unwrap_or(Path::new("/"));
    let root = TreeRoot::open(parent).map_err(failed)?;
    let top = RelPath::parse(&name)
        .map_err(|error| Problem::new(Code::Usage, format!("`{}`: {error}", shown(&from))))?;
    let mut entries = HostEntries { name, found: Vec::new(), skipped: Vec::new() };
    let mut pending = vec![(RelPath::root(), top.clone())];
    while let Some((below, path)) = pending.pop() {
        let state =
            root.state(&path).map_err(|error| io_problem("read", path.as_path(), &error))?;
        let source = match &state {
            EntryState::Absent if below.is_root() => {
                return Err(failed(std::io::ErrorKind::NotFound.into()));
            }
            EntryState::Special { .. } if below.is_root() => {
                let message = format!("`{}` is a {}", shown(&from), state.noun());
                return Err(Problem::new(Code::Refused, message)
                    .hint("only files, directories and links are copied"));
            }
            EntryState::Absent => continue,
            EntryState::Special { .. } => {
                entries.skipped.push(format!("`{path}` is a {}", state.noun()));
                continue;
            }
            EntryState::File { .. } => Source::File { root: parent.to_owned(), path: path.clone() },
            EntryState::Dir { .. } => {
                let list = root.list(&path);
                for (name, _) in
                    list.map_err(|e| io_problem("list", path.as_path(), &e))?.iter().rev()
                {
                    let join = |at: &RelPath| {
                        at.join(name).map_err(|e| Problem::new(Code::Usage, e.to_string()))
                    };
                    pending.push((join(&below)?, join(&path)?));
                }
                Source::None
            }
            EntryState::Symlink { .. } => Source::None,
        };
        entries.found.push(HostEntry { below, state: plain(state), source });
    }
    Ok(entries)
}

/// Where it goes: into a directory that is there, else under the name that was given.
fn target_in(view: &View, path: &RelPath, entries: &HostEntries) -> Result<RelPath, Problem> {
    let state = |path: &RelPath| view.state(path).or_problem();
    let target = match state(path)? {
        EntryState::Dir { .. } => {
            path.join(&entries.name).map_err(|e| Problem::new(Code::Usage, e.to_string()))?
        }
        _ => path.clone(),
    };
    let parent = target.parent().unwrap_or_default();
    if !matches!(state(&parent)?, EntryState::Dir { .. }) {
        return Err(Problem::new(Code::NotFound, format!("`{parent}` is no directory inside")));
    }
    let directory = |state: &EntryState| matches!(state, EntryState::Dir { .. });
    let new = entries.found.first().is_some_and(|entry| directory(&entry.state));
    let old = state(&target)?;
    if !old.is_absent() && new != directory(&old) {
        let message = format!("`{target}` is {} inside and would be replaced", old.noun());
        return Err(Problem::new(Code::AlreadyExists, message).hint("name another place"));
    }
    Ok(target)
}

fn shown(path: &Path) -> skep_types::ByteString {
    skep_types::ByteString::from(path)
}
