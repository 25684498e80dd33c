//! One commit of what an approval applied, in the host's repository.
//!
//! No `git` is run: hooks, filters, fsmonitor, signing programs and whatever else a repository's
//! configuration can name are out of reach, because nothing here can execute anything. Objects,
//! the branch and the index are written with a library, the index under git's own lock.
//!
//! The commit holds the applied paths and nothing else: it is the parent's tree with those paths
//! replaced. What the user has staged besides stays staged.

mod attributes;
mod identity;
mod repository;
mod tree;

use crate::Engine;
use crate::api::{ApproveReport, ApproveRequest};
use crate::problems::{OrProblem, io_problem};
use attributes::Conversions;
use identity::Identity;
use repository::Repository;
use serde_json::json;
use skep_sys::file_ids::FileIds;
use skep_types::{
    AppliedPath, Approval, ApprovalState, Code, EntryState, Problem, RelPath, Sandbox,
};
use skep_workspace::tree::TreeRoot;

/// How many files `{files}` names.
const FILES_NAMED: usize = 20;

impl Engine {
    /// Commits what was applied, if that was asked for. The apply stands here in any case: when there
    /// is no commit, a note and the second value say why.
    pub(crate) fn commit_approved(
        &self,
        sandbox: &Sandbox,
        request: &ApproveRequest,
        mut report: ApproveReport,
    ) -> Result<(ApproveReport, Option<Problem>), Problem> {
        let (Some(wanted), Some(id)) = (&request.commit, &report.approval) else {
            return Ok((report, None));
        };
        let approval = self.store.find_approval(id.as_str()).or_problem()?;
        let message = message(&wanted.message, sandbox, &approval);
        match self.commit(sandbox, &approval, &message) {
            Ok(made) => {
                let event = self.event(
                    "approval.committed",
                    &sandbox.id,
                    None,
                    json!({ "approval": id, "commit": made.commit }),
                );
                self.store
                    .move_approval(id, ApprovalState::Applied, &[event], &mut |row| {
                        row.commit = Some(made.commit.clone());
                    })
                    .or_problem()?;
                report.commit = Some(made.commit);
                report.notes.extend(made.notes);
            }
            Err(problem) => {
                report.notes.push(format!(
                    "the changes are applied, but no commit was made: {}",
                    problem.message
                ));
                return Ok((report, Some(problem)));
            }
        }
        Ok((report, None))
    }

    fn commit(
        &self,
        sandbox: &Sandbox,
        approval: &Approval,
        message: &str,
    ) -> Result<Made, Problem> {
        let project = sandbox.project.as_path();
        let repository = Repository::find(project)?;
        let identity = Identity::read(&repository, &self.config.home, &self.now())?;
        repository.check_idle()?;
        let root =
            TreeRoot::open(project).map_err(|error| io_problem("open project", project, &error))?;
        let conversions = Conversions::of(&repository, &identity, &self.config.home);
        let mut contents = Vec::new();
        for path in &approval.paths {
            if let Some(content) = content(&root, path)? {
                conversions.check(repository.path_of(&path.path).as_ref(), &content)?;
                contents.push((&path.path, content));
            }
        }
        // As root, what is made in somebody's repository is theirs.
        let _theirs = owner_of(&root)
            .map_err(|error| io_problem("look at project", project, &error))?
            .map(|(uid, gid)| FileIds::take_on(uid, gid));
        let entry = |(path, content)| repository.entry(path, content);
        let entries = contents.into_iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        let mut notes = repository.remarks(&entries, approval)?;
        if identity.wants_signature {
            notes.push("the commit is not signed: skep runs no signing program".to_owned());
        }
        let commit = repository.commit(&entries, &identity, message)?;
        notes.extend(commit.note);
        Ok(Made { commit: commit.id, notes })
    }
}

/// Who owns the project, where that is another than root and root commits.
fn owner_of(root: &TreeRoot) -> std::io::Result<Option<(u32, u32)>> {
    let owner = root.stat(&RelPath::root())?.map(|stat| (stat.st_uid, stat.st_gid));
    Ok(owner.filter(|(uid, _)| *uid != 0 && rustix::process::geteuid().is_root()))
}

/// A commit that was made, and what is worth saying about it.
struct Made {
    commit: String,
    notes: Vec<String>,
}

/// What a path is to git: bytes with a mode, or gone.
enum Content {
    Removed,
    File { bytes: Vec<u8>, executable: bool },
    Link { target: Vec<u8> },
}

/// What stands at an applied path; `None` for directories, which git does not keep.
///
/// It is read from the project and must be what was applied: an edit made meanwhile is the user's.
fn content(root: &TreeRoot, applied: &AppliedPath) -> Result<Option<Content>, Problem> {
    let moved = || {
        let message = format!("`{}` was edited right after it was applied", applied.path);
        Problem::new(Code::Conflict, message)
    };
    let failed = |error: std::io::Error| io_problem("read", applied.path.as_path(), &error);
    let content = match &applied.after {
        EntryState::Absent if matches!(applied.before, EntryState::Dir { .. }) => return Ok(None),
        EntryState::Absent => Content::Removed,
        EntryState::Dir { .. } => {
            // A file or link that gave way to a directory is gone for git.
            let gone =
                matches!(applied.before, EntryState::File { .. } | EntryState::Symlink { .. });
            return Ok(gone.then_some(Content::Removed));
        }
        EntryState::Special { .. } => return Ok(None),
        EntryState::File { hash, size, mode } => {
            let bytes = root.read(&applied.path, size.saturating_add(1)).map_err(failed)?;
            if skep_types::ContentHash::of(&bytes) != *hash {
                return Err(moved());
            }
            Content::File { bytes, executable: mode & 0o100 != 0 }
        }
        EntryState::Symlink { target } => {
            if root.read_link(&applied.path).map_err(failed)? != *target {
                return Err(moved());
            }
            Content::Link { target: target.as_bytes().to_vec() }
        }
    };
    if matches!(content, Content::Removed) && root.stat(&applied.path).map_err(failed)?.is_some() {
        return Err(moved());
    }
    Ok(Some(content))
}

/// The message with its placeholders filled in, and the co-author's trailer.
fn message(template: &str, sandbox: &Sandbox, approval: &Approval) -> String {
    let directory = |state: &EntryState| matches!(state, EntryState::Dir { .. });
    let paths = approval.paths.iter().filter(|path| {
        let what = if path.after.is_absent() { &path.before } else { &path.after };
        !directory(what)
    });
    let mut files: Vec<_> = paths.map(|path| path.path.to_string()).collect();
    let more = files.len().saturating_sub(FILES_NAMED);
    files.truncate(FILES_NAMED);
    if more > 0 {
        files.push(format!("{more} more"));
    }
    let text = fill(template, sandbox.name.as_str(), &files.join(", "));
    let text = text.trim_end();
    let gap = if ends_in_trailers(text) { "\n" } else { "\n\n" };
    format!("{text}{gap}Co-authored-by: skep sandbox <{}>\n", sandbox.name)
}

/// In one pass, so that a file called `{sandbox}` stays what it is.
fn fill(template: &str, sandbox: &str, files: &str) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("{sandbox}") {
            text.push_str(sandbox);
            rest = after;
        } else if let Some(after) = rest.strip_prefix("{files}") {
            text.push_str(files);
            rest = after;
        } else {
            text.push('{');
            rest = &rest[1..];
        }
    }
    text.push_str(rest);
    text
}

/// Whether the last paragraph (not the subject) consists of lines such as `Signed-off-by: …`.
fn ends_in_trailers(text: &str) -> bool {
    let Some((_, last)) = text.rsplit_once("\n\n") else { return false };
    last.lines().all(|line| {
        line.split_once(": ").is_some_and(|(key, _)| {
            !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_once() {
        assert_eq!(fill("{sandbox}: {files} {x} {", "s", "{sandbox}, b"), "s: {sandbox}, b {x} {");
    }

    #[test]
    fn trailers_stay_one_block() {
        assert!(ends_in_trailers("subject\n\nbody\n\nSigned-off-by: me <me@x>\nFixes: 12"));
        assert!(!ends_in_trailers("fix: something"));
        assert!(!ends_in_trailers("subject\n\nplain words"));
    }
}
