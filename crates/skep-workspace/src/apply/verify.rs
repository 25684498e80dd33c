//! The checks before anything is written: is the request sound, and is the project as reviewed?

use super::staging::staging_name;
use super::{ApplyError, PathConflict, Phase, Progress, Target};
use crate::tree::TreeRoot;
use rustix::fs::{Access, AtFlags, FileType, OFlags, Stat, StatxAttributes, StatxFlags};
use skep_types::{ApprovalId, EntryState, RelPath};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;

/// The targets by path.
pub(super) type Index<'a> = BTreeMap<&'a RelPath, (&'a EntryState, &'a EntryState)>;

/// Checks that the targets fit together: pure, no look at the project.
pub(super) fn check_request<'a>(
    id: &ApprovalId,
    targets: &'a [Target],
) -> Result<Index<'a>, ApplyError> {
    let refuse = |path: &RelPath, reason: &str| {
        Err(ApplyError::Refused { path: path.clone(), reason: reason.to_owned() })
    };
    let staging = staging_name(id);
    let mut index = Index::new();
    for Target { path, before, after, .. } in targets {
        if path.is_root()
            && !matches!((before, after), (EntryState::Dir { .. }, EntryState::Dir { .. }))
        {
            return refuse(path, "the project's root can only change its mode");
        }
        if path.components().next() == Some(staging.as_bytes()) {
            return refuse(path, "its name is the one of the staging directory");
        }
        if matches!(before, EntryState::Special { .. })
            || matches!(after, EntryState::Special { .. })
        {
            return refuse(path, "devices, fifos and sockets are never applied");
        }
        if index.insert(path, (before, after)).is_some() {
            return refuse(path, "it is named twice");
        }
    }
    for (path, (before, after)) in &index {
        for above in path.ancestors() {
            let Some((above_before, above_after)) = index.get(&above) else { continue };
            if !after.is_absent() && !matches!(above_after, EntryState::Dir { .. }) {
                return refuse(path, "a directory above it becomes something else");
            }
            if !before.is_absent() && !matches!(above_before, EntryState::Dir { .. }) {
                return refuse(path, "what stands above it is not a directory");
            }
        }
    }
    Ok(index)
}

/// Compares the project with what the targets expect; gives the `lstat` of each.
///
/// Every conflict is found, not only the first: the person wants to see them all.
pub(super) fn check_project(
    root: &TreeRoot,
    targets: &[Target],
    index: &Index<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Option<Stat>>, ApplyError> {
    let mut conflicts = Vec::new();
    let mut stats = Vec::with_capacity(targets.len());
    let mut writable = HashSet::new();
    let total = targets.len() as u64;
    for (done, target) in targets.iter().enumerate() {
        progress(Progress { phase: Phase::Verify, done: done as u64, total });
        let fail = |operation| {
            move |source| ApplyError::Path { operation, path: target.path.clone(), source }
        };
        let (state, stat) = match root.state_and_stat(&target.path) {
            // The user has closed it, or a directory above it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let reason = "cannot be read any more".to_owned();
                conflicts.push(PathConflict { path: target.path.clone(), reason });
                stats.push(None);
                continue;
            }
            found => found.map_err(fail("look at"))?,
        };
        if state != target.before {
            conflicts.push(differs(&target.path, &target.before, &state));
        } else if let Some(reason) = child_conflict(root, target, index).map_err(fail("list"))? {
            conflicts.push(PathConflict { path: target.path.clone(), reason });
        } else if target.before != target.after {
            check_parent(root, target, index, &mut writable, &mut conflicts)?;
            check_mutable(root, target)?;
        }
        stats.push(stat);
    }
    conflicts.extend(same_inode(targets, &stats));
    if conflicts.is_empty() { Ok(stats) } else { Err(ApplyError::Conflict(conflicts)) }
}

/// What to say when something else stands at a path.
pub(super) fn differs(path: &RelPath, before: &EntryState, now: &EntryState) -> PathConflict {
    let reason = match (before, now) {
        (EntryState::Absent, now) => format!("exists now, as a {}", now.noun()),
        (before, EntryState::Absent) => format!("is gone; a {} was expected", before.noun()),
        (EntryState::File { hash: one, .. }, EntryState::File { hash: two, .. }) if one == two => {
            "has another mode now".to_owned()
        }
        (EntryState::Dir { .. }, EntryState::Dir { .. }) => "has another mode now".to_owned(),
        (before, now) if before.noun() == now.noun() => "was changed".to_owned(),
        (before, now) => format!("is a {} now; a {} was expected", now.noun(), before.noun()),
    };
    PathConflict { path: path.clone(), reason }
}

/// A directory that goes away may hold only what goes away with it.
fn child_conflict(
    root: &TreeRoot,
    target: &Target,
    index: &Index<'_>,
) -> io::Result<Option<String>> {
    uncovered_child(root, &target.path, &target.before, &target.after, index)
}

/// Names an entry of a directory that shall go away which no target removes.
pub(super) fn uncovered_child(
    root: &TreeRoot,
    path: &RelPath,
    before: &EntryState,
    after: &EntryState,
    index: &Index<'_>,
) -> io::Result<Option<String>> {
    if !matches!(before, EntryState::Dir { .. }) || matches!(after, EntryState::Dir { .. }) {
        return Ok(None);
    }
    for (name, _) in root.list(path)? {
        let child = path.join(&name).map_err(io::Error::other)?;
        if !index.get(&child).is_some_and(|(_, after)| after.is_absent()) {
            let name = skep_types::escape::visible(&name);
            return Ok(Some(format!("holds `{name}`, which is not part of the approval")));
        }
    }
    Ok(None)
}

/// The directory of a target must be there (or be made by another target) and be writable by us.
fn check_parent(
    root: &TreeRoot,
    target: &Target,
    index: &Index<'_>,
    writable: &mut HashSet<RelPath>,
    conflicts: &mut Vec<PathConflict>,
) -> Result<(), ApplyError> {
    let Some(parent) = target.path.parent() else { return Ok(()) };
    // A directory that is a target itself is made, or opened for writing, by its own step.
    if index.contains_key(&parent) || writable.contains(&parent) {
        return Ok(());
    }
    let fd = match root.open_dir(&parent) {
        Ok(fd) => fd,
        Err(error) if crate::tree::means_absent(&error) => {
            let reason = format!("cannot be reached: the directory `{parent}` is gone");
            conflicts.push(PathConflict { path: target.path.clone(), reason });
            return Ok(());
        }
        Err(source) => {
            return Err(ApplyError::Path { operation: "open the directory", path: parent, source });
        }
    };
    rustix::fs::accessat(&fd, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).map_err(
        |errno| ApplyError::Refused {
            path: target.path.clone(),
            reason: format!(
                "the directory `{parent}` cannot be written: {}",
                io::Error::from(errno)
            ),
        },
    )?;
    if let Some(closed) = closed_by_its_owner(root, &parent) {
        let reason = format!("the directory `{closed}` is closed by its mode");
        return Err(ApplyError::Refused { path: target.path.clone(), reason });
    }
    if let Some(word) = held_fast(&fd) {
        let reason = format!("the directory `{parent}` is marked {word} (`chattr`)");
        return Err(ApplyError::Refused { path: target.path.clone(), reason });
    }
    writable.insert(parent);
    Ok(())
}

/// In a user namespace of our own the kernel lets us write where the caller has shut a directory.
/// Modes are then asked as if we had not entered one: writing needs `wx`, going through needs `x`.
fn closed_by_its_owner(root: &TreeRoot, parent: &RelPath) -> Option<RelPath> {
    if !skep_sys::process::in_own_user_namespace() {
        return None;
    }
    let us = rustix::process::geteuid().as_raw();
    let closed = |path: &RelPath, needed: u32| {
        let stat = root.stat(path).ok().flatten();
        stat.is_some_and(|stat| stat.st_uid == us && stat.st_mode & needed != needed)
    };
    if closed(parent, 0o300) {
        return Some(parent.clone());
    }
    parent.ancestors().find(|above| closed(above, 0o100))
}

/// What keeps an inode from being changed whatever its mode is: in a directory that is append-only,
/// nothing can be replaced or removed, and no such file can.
fn held_fast(fd: impl AsFd) -> Option<&'static str> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
    let stat = rustix::fs::statx(fd, "", flags, StatxFlags::empty());
    let marks = stat.map(|stat| stat.stx_attributes).unwrap_or(StatxAttributes::empty());
    match marks {
        marks if marks.contains(StatxAttributes::IMMUTABLE) => Some("immutable"),
        marks if marks.contains(StatxAttributes::APPEND) => Some("append-only"),
        _ => None,
    }
}

/// Refuses what is held fast. Ordinary read-only bits do not matter: an entry is replaced, not written.
fn check_mutable(root: &TreeRoot, target: &Target) -> Result<(), ApplyError> {
    if !matches!(target.before, EntryState::File { .. } | EntryState::Dir { .. }) {
        return Ok(());
    }
    let fd =
        root.open_beneath(&target.path, OFlags::PATH | OFlags::NOFOLLOW).map_err(|source| {
            ApplyError::Path { operation: "open", path: target.path.clone(), source }
        })?;
    match held_fast(fd) {
        None => Ok(()),
        Some(word) => Err(ApplyError::Refused {
            path: target.path.clone(),
            reason: format!("it is marked {word} (`chattr`)"),
        }),
    }
}

/// Two names that lead to one inode without being hard links: a filesystem that folds case or
/// normalises names. Applying both would overwrite one with the other.
fn same_inode(targets: &[Target], stats: &[Option<Stat>]) -> Vec<PathConflict> {
    let mut seen: HashMap<u64, &RelPath> = HashMap::new();
    let mut conflicts = Vec::new();
    for (target, stat) in targets.iter().zip(stats) {
        let Some(stat) = stat else { continue };
        let linked =
            stat.st_nlink > 1 && FileType::from_raw_mode(stat.st_mode) != FileType::Directory;
        if linked {
            continue;
        }
        if let Some(first) = seen.insert(stat.st_ino, &target.path) {
            let reason = format!("is the same entry as `{first}` on this filesystem");
            conflicts.push(PathConflict { path: target.path.clone(), reason });
        }
    }
    conflicts
}

/// Refuses when the new bytes cannot fit.
pub(super) fn check_space(root: &TreeRoot, targets: &[Target]) -> Result<(), ApplyError> {
    let space = rustix::fs::fstatvfs(root.fd()).map_err(|errno| ApplyError::Path {
        operation: "ask for the free space of",
        path: RelPath::root(),
        source: errno.into(),
    })?;
    let block = space.f_frsize.max(1);
    let needed: u64 = targets
        .iter()
        .filter_map(|target| match &target.after {
            EntryState::File { size, .. } if target.before != target.after => {
                Some(size.div_ceil(block).saturating_mul(block))
            }
            _ => None,
        })
        .fold(0, u64::saturating_add);
    // The part kept for root is counted only if we are.
    let root_user = rustix::process::geteuid().is_root();
    let free = if root_user { space.f_bfree } else { space.f_bavail };
    let available = free.saturating_mul(block);
    if needed > available { Err(ApplyError::NoSpace { needed, available }) } else { Ok(()) }
}
