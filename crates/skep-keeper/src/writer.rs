//! Putting entries into the workspace through the mounted view.
//!
//! The host never writes into the upper of a mounted overlay; what a rejection or a rebase changes
//! goes through the same mount the sandboxed processes use. They stand still meanwhile, but what
//! they left lies there: every path is resolved below the project without following links.

use crate::failure::{Failure, Step};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use skep_types::{EntryState, RelPath};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;

const TEMPORARY: &CStr = c".skep-write";

/// Makes `path` be `state`.
pub fn write(
    project: &OwnedFd,
    path: &RelPath,
    state: &EntryState,
    content: Option<File>,
) -> Result<(), Failure> {
    let step = || format!("put {} at `{path}` in the workspace", state.noun());
    let Some(name) = path.file_name() else {
        return match state {
            EntryState::Dir { mode } => chmod(project, c".", *mode).step(step),
            _ => Err(Failure::invalid("the project's root can only be a directory")),
        };
    };
    let parent = path.parent().unwrap_or_default();
    if state.is_absent() && open_directory(project, &parent).is_err_and(|e| e == Errno::NOENT) {
        return Ok(());
    }
    let parent = make_parents(project, &parent).step(step)?;
    let name =
        CString::new(name).map_err(|_| Failure::invalid(format!("`{path}` holds a NUL byte")))?;
    match state {
        // Nobody could name what is in it: it goes as the one entry that it is in a review.
        EntryState::Absent if path.as_bytes().len() > skep_workspace::LONGEST_PATH => {
            remove_tree(&parent, &name).step(step)
        }
        EntryState::Absent => remove(&parent, &name).step(step),
        EntryState::Dir { mode } => directory(&parent, &name, *mode).step(step),
        EntryState::Symlink { target } => {
            let _ = remove(&parent, TEMPORARY);
            let link = || {
                rustix::fs::symlinkat(target.as_path(), &parent, TEMPORARY)?;
                Ok(replace(&parent, &name)?)
            };
            cleanly(&parent, link()).step(step)
        }
        EntryState::File { mode, .. } => {
            let Some(content) = content else {
                return same_bytes(&parent, &name, *mode).step(step);
            };
            let put = || {
                file(&parent, content, *mode)?;
                Ok(replace(&parent, &name)?)
            };
            cleanly(&parent, put()).step(step)
        }
        EntryState::Special { .. } => {
            Err(Failure::invalid(format!("`{path}`: a {} is never written", state.noun())))
        }
    }
}

/// Whatever stood in the way: our own entry is nobody's change.
fn cleanly(parent: &OwnedFd, written: io::Result<()>) -> io::Result<()> {
    if written.is_err() {
        let _ = remove(parent, TEMPORARY);
    }
    written
}

/// The bytes stay, and get another mode. A link is not followed.
fn same_bytes(parent: &OwnedFd, name: &CStr, mode: u32) -> Result<(), Errno> {
    let found = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(Errno::LOOP);
    }
    chmod(parent, name, mode)
}

fn open_directory(project: &OwnedFd, path: &RelPath) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(project, path.as_path_or_dot(), flags, Mode::empty(), resolve) {
        // gVisor's kernel does not have it: name by name comes to the same.
        Err(Errno::NOSYS) => {
            let start = rustix::fs::openat(project, ".", flags, Mode::empty())?;
            path.components().try_fold(start, |at, name| {
                rustix::fs::openat(&at, name, flags | OFlags::NOFOLLOW, Mode::empty())
            })
        }
        opened => opened,
    }
}

fn make_parents(project: &OwnedFd, path: &RelPath) -> Result<OwnedFd, Errno> {
    let mut at = open_directory(project, &RelPath::root())?;
    for name in path.components() {
        match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        at = rustix::fs::openat(&at, name, flags, Mode::empty())?;
    }
    Ok(at)
}

fn chmod(at: impl AsFd, name: &CStr, mode: u32) -> Result<(), Errno> {
    rustix::fs::chmodat(at, name, Mode::from_raw_mode(mode), AtFlags::empty())
}

fn remove(parent: &OwnedFd, name: &CStr) -> Result<(), Errno> {
    let result = match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR),
        other => other,
    };
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Removes a tree of any depth with two descriptors: down by names, up by `..`. Those inside stand
/// still; that we come up where we went down is looked at all the same.
fn remove_tree(parent: &OwnedFd, name: &CStr) -> Result<(), Errno> {
    let mut at = match remove(parent, name) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => open_to_clear(parent, name)?,
        other => return other,
    };
    let mut way = vec![(name.to_owned(), identity(parent)?)];
    while let Some((name, above)) = way.pop() {
        if let Some(child) = clear(&at)? {
            let here = identity(&at)?;
            at = open_to_clear(&at, &child)?;
            way.extend([(name, above), (child, here)]);
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let up = rustix::fs::openat(&at, c"..", flags, Mode::empty())?;
        if identity(&up)? != above {
            return Err(Errno::STALE);
        }
        rustix::fs::unlinkat(&up, &name, AtFlags::REMOVEDIR)?;
        at = up;
    }
    Ok(())
}

/// Removes everything from a directory but directories with something in them; one of those, if any.
fn clear(directory: &OwnedFd) -> Result<Option<CString>, Errno> {
    loop {
        let mut empty = true;
        let mut entries = rustix::fs::Dir::read_from(directory)?;
        while let Some(entry) = entries.next().transpose()? {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            empty = false;
            match remove(directory, name) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(Some(name.to_owned())),
                other => other?,
            }
        }
        // A directory that is read while names go may leave some out: read until nothing is there.
        if empty {
            return Ok(None);
        }
    }
}

fn open_to_clear(parent: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(parent, name, flags, Mode::empty());
    match open() {
        Err(Errno::ACCESS) => {
            chmod(parent, name, 0o700)?;
            open()
        }
        opened => opened,
    }
}

fn identity(directory: &OwnedFd) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn directory(parent: &OwnedFd, name: &CStr, mode: u32) -> Result<(), Errno> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode)) {
        Err(Errno::EXIST) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if let Err(Errno::NOTDIR | Errno::LOOP) =
                rustix::fs::openat(parent, name, flags, Mode::empty())
            {
                remove(parent, name)?;
                rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode))?;
            }
        }
        other => other?,
    }
    chmod(parent, name, mode)
}

fn file(parent: &OwnedFd, mut content: File, mode: u32) -> io::Result<()> {
    let _ = remove(parent, TEMPORARY);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let out = rustix::fs::openat(parent, TEMPORARY, flags, Mode::from_raw_mode(0o600))?;
    let mut out = File::from(out);
    io::copy(&mut content, &mut out)?;
    rustix::fs::fchmod(&out, Mode::from_raw_mode(mode))?;
    Ok(())
}

/// Renames over what is there; a directory in the way goes if it is empty.
fn replace(parent: &OwnedFd, name: &CStr) -> Result<(), Errno> {
    match rustix::fs::renameat(parent, TEMPORARY, parent, name) {
        Err(Errno::ISDIR) => {
            rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?;
            rustix::fs::renameat(parent, TEMPORARY, parent, name)
        }
        other => other,
    }
}
