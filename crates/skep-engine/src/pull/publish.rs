//! What was received and checked becomes part of the project's repository.

use super::{Tip, failed, refused};
use crate::api::PulledRef;
use gix::refs::Target;
use gix::refs::transaction::{Change, LogChange, PreviousValue, RefEdit, RefLog};
use skep_types::{Code, Problem, RelPath, SandboxName, escape};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What came, and what is wrong with it.
pub(super) struct Received<'a> {
    /// The repository that received it.
    pub(super) receiver: &'a Path,
    pub(super) tips: &'a [Tip],
    /// Per tip, the hidden paths that its commits delete.
    pub(super) lost: &'a [Vec<RelPath>],
}

/// Packs first, references in one transaction afterwards. On error no reference has moved.
pub(super) fn publish(
    project: &gix::Repository,
    received: &Received<'_>,
    sandbox: &SandboxName,
    branch: Option<&str>,
    seconds: i64,
) -> Result<Vec<PulledRef>, Problem> {
    let receiver = received.receiver;
    let tips = || received.tips.iter().zip(received.lost);
    let mut wanted: Vec<(String, gix::ObjectId, &Vec<RelPath>)> = tips()
        .map(|(tip, lost)| (format!("refs/skep/{sandbox}/{}", tip.name), tip.id, lost))
        .collect();
    if let Some(branch) = branch {
        let tip = tips().find(|(tip, _)| tip.name == branch && branch != "HEAD");
        let (tip, lost) = tip.ok_or_else(|| {
            let shown = escape::visible(branch.as_bytes());
            let names = tips().map(|(tip, _)| tip.name.as_str()).filter(|name| *name != "HEAD");
            let names: Vec<String> = names.map(|name| escape::visible(name.as_bytes())).collect();
            Problem::new(Code::NotFound, format!("there is no branch `{shown}` inside"))
                .hint(format!("there are: {}", names.join(", ")))
        })?;
        forward(project, receiver, branch, tip.id).map_err(|problem| match problem.code {
            Code::Refused | Code::Conflict => problem.hint(format!(
                "nothing was changed; pull without `--branch`, look at what it says, then merge it yourself: \
                 `git merge refs/skep/{sandbox}/{branch}`"
            )),
            _ => problem,
        })?;
        super::hidden::refuse(branch, lost)?;
        wanted.push((format!("refs/heads/{branch}"), tip.id, lost));
    }
    let mut pulled = Vec::new();
    let mut edits = Vec::new();
    for (name, id, lost) in wanted {
        let before = read(project, &name)?;
        let changed = before != Some(id);
        if changed {
            edits.push(edit(&name, before, id)?);
        }
        let deletes_hidden = lost.clone();
        pulled.push(PulledRef { name, commit: id.to_string(), changed, deletes_hidden });
    }
    if edits.is_empty() {
        return Ok(pulled);
    }
    let packs = receiver.join("objects/pack");
    put_packs(&packs, &project.objects.store_ref().path().join("pack"))
        .map_err(|error| failed("put what came among the project's objects", &error))?;
    // For the log of a branch: who moved it, and when.
    let at = gix::date::Time { seconds, offset: 0 };
    let who =
        gix::actor::Signature { name: "skep".into(), email: "skep@localhost".into(), time: at };
    let mut time = Default::default();
    let names: Vec<String> = edits.iter().map(|edit| edit.name.to_string()).collect();
    project.edit_references_as(edits, Some(who.to_ref(&mut time))).map_err(|error| {
        Problem::new(Code::Conflict, format!("cannot move references: {error}"))
    })?;
    give_to_owner(project.common_dir(), &names);
    Ok(pulled)
}

fn read(project: &gix::Repository, name: &str) -> Result<Option<gix::ObjectId>, Problem> {
    let found =
        project.try_find_reference(name).map_err(|error| failed("read references", &error))?;
    Ok(found.and_then(|found| found.target().try_id().map(ToOwned::to_owned)))
}

fn edit(name: &str, before: Option<gix::ObjectId>, new: gix::ObjectId) -> Result<RefEdit, Problem> {
    let shown = || skep_types::escape::visible(name.as_bytes()).to_string();
    Ok(RefEdit {
        change: Change::Update {
            // References of skep's own have no log; a branch that moves forward loses nothing.
            log: LogChange {
                mode: RefLog::AndReference,
                force_create_reflog: false,
                message: "skep pull".into(),
            },
            expected: match before {
                Some(id) => PreviousValue::MustExistAndMatch(Target::Object(id)),
                None => PreviousValue::MustNotExist,
            },
            new: Target::Object(new),
        },
        name: name
            .try_into()
            .map_err(|_| refused(format!("`{}` is not a name of a reference", shown())))?,
        deref: false,
    })
}

/// A branch of the project may only move forward, and only if nobody stands on it.
fn forward(
    project: &gix::Repository,
    receiver: &Path,
    branch: &str,
    to: gix::ObjectId,
) -> Result<(), Problem> {
    let name = format!("refs/heads/{branch}");
    if checked_out(project.common_dir()).contains(&name) {
        let message =
            format!("branch `{branch}` is checked out, and the project's files stay as they are");
        return Err(refused(message));
    }
    let Some(from) = read(project, &name)? else { return Ok(()) };
    // The receiver sees both the project's commits and the new ones.
    let repository = super::open(receiver, None)?;
    let mut ancestors = gix::prelude::ObjectIdExt::attach(to, &repository)
        .ancestors()
        .all()
        .map_err(|error| failed("walk the commits", &error))?;
    let is_forward = ancestors.any(|commit| commit.is_ok_and(|commit| commit.id == from));
    if is_forward {
        return Ok(());
    }
    let message =
        format!("branch `{branch}` of the project has commits that the one inside has not");
    Err(Problem::new(Code::Conflict, message))
}

/// The branches that the project or one of its other work trees stands on.
fn checked_out(git: &Path) -> BTreeSet<String> {
    let others = std::fs::read_dir(git.join("worktrees")).into_iter().flatten().flatten();
    let heads = others.map(|entry| entry.path().join("HEAD")).chain([git.join("HEAD")]);
    let name = |path: PathBuf| {
        let text = std::fs::read_to_string(path).ok()?;
        Some(text.trim().strip_prefix("ref: ")?.trim().to_owned())
    };
    heads.filter_map(name).collect()
}

/// Copies packs; an index comes last, for it is what git looks for.
fn put_packs(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    let mut names: Vec<std::ffi::OsString> = std::fs::read_dir(from)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<io::Result<_>>()?;
    names.retain(|name| {
        Path::new(name).extension().is_some_and(|end| end == "pack" || end == "idx")
    });
    names.sort_by_key(|name| Path::new(name).extension().is_some_and(|end| end == "idx"));
    let owner = std::fs::metadata(to)?;
    for name in names {
        let target = to.join(&name);
        if target.exists() {
            continue;
        }
        let new = to.join(format!("tmp_skep_{}", std::process::id()));
        let made = std::fs::copy(from.join(&name), &new).and_then(|_| {
            own(&new, &owner);
            std::fs::File::open(&new)?.sync_all()?;
            std::fs::rename(&new, &target)
        });
        if made.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        made?;
    }
    std::fs::File::open(to)?.sync_all()
}

/// As root, what is made in somebody's repository is theirs.
fn own(path: &Path, like: &std::fs::Metadata) {
    if rustix::process::geteuid().is_root() {
        let _ = std::os::unix::fs::lchown(path, Some(like.uid()), Some(like.gid()));
    }
}

fn give_to_owner(git: &Path, names: &[String]) {
    let Ok(owner) = std::fs::metadata(git) else { return };
    for name in names {
        let parts = Path::new(name).ancestors().filter(|part| part.components().count() > 1);
        parts.for_each(|part| own(&git.join(part), &owner));
    }
}
