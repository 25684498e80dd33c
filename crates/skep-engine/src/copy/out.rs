//! From a workspace to the host: made under a name of our own beside the target, then moved there.

use crate::api::CopyReport;
use crate::problems::{OrProblem, io_problem};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use skep_types::{ByteString, Code, EntryState, Problem, RelPath, Sandbox};
use skep_workspace::View;
use skep_workspace::tree::TreeRoot;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Where something is copied to: a directory that is there, and a name in it.
pub(super) struct Place {
    directory: OwnedFd,
    real: PathBuf,
    name: OsString,
}

impl Place {
    /// `to` itself, or in it if it is a directory.
    pub(super) fn find(to: &Path, path: &RelPath, sandbox: &Sandbox) -> Result<Self, Problem> {
        let is_directory = std::fs::metadata(to).is_ok_and(|found| found.is_dir());
        let (directory, name) = match (is_directory, to.file_name(), to.parent()) {
            (false, Some(name), Some(parent)) => (parent, name.to_owned()),
            (false, ..) => {
                let message = format!("`{}` names nothing to copy to", ByteString::from(to));
                return Err(Problem::new(Code::Usage, message));
            }
            (true, ..) => {
                let own = path.file_name().map(|name| OsString::from_vec(name.to_vec()));
                let project = sandbox.project.as_path().file_name();
                (to, own.or_else(|| project.map(Into::into)).unwrap_or_else(|| "project".into()))
            }
        };
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                let message = format!("there is no directory `{}`", ByteString::from(directory));
                Problem::new(Code::NotFound, message)
            }
            _ => io_problem("open", directory, &error),
        };
        let real = std::fs::canonicalize(directory).map_err(failed)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory =
            rustix::fs::open(&real, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        Ok(Self { directory, real, name })
    }

    pub(super) fn shown(&self) -> ByteString {
        ByteString::from(self.real.join(&self.name))
    }

    pub(super) fn lies_in(&self, tree: &Path) -> bool {
        let tree = std::fs::canonicalize(tree).unwrap_or_else(|_| tree.to_owned());
        self.real.starts_with(&tree) || self.real.join(&self.name) == tree
    }
}

/// Copies; on error nothing is left. What was copied is shown only if `stood` says that it is of one
/// moment.
pub(super) fn copy(
    view: &View,
    path: &RelPath,
    place: &Place,
    temporary: &str,
    stood: impl FnOnce() -> Result<(), Problem>,
) -> Result<CopyReport, Problem> {
    let state = view.state(path).or_problem()?;
    let directory = matches!(state, EntryState::Dir { .. });
    if let EntryState::Special { .. } = state {
        let message = format!("`{path}` is a {}, and special files are not copied", state.noun());
        return Err(Problem::new(Code::Refused, message));
    }
    refuse_taken(place, directory)?;
    let mut report = CopyReport { entries: 0, bytes: 0, skipped: Vec::new() };
    let failed = |error: io::Error| io_problem("copy to", &place.real.join(&place.name), &error);
    let remove = || {
        let left = place.real.join(temporary);
        std::fs::remove_file(&left).or_else(|_| std::fs::remove_dir_all(&left))
    };
    let target = Target { at: &place.directory, name: temporary.as_bytes() };
    let copied = entry(view, path, target, &mut report).and_then(|()| stood()).and_then(|()| {
        // A directory is never put over anything; a file takes the place of a file.
        let flags = if directory { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        let (at, name) = (&place.directory, place.name.as_os_str());
        rustix::fs::renameat_with(at, temporary, at, name, flags)
            .map_err(|errno| failed(errno.into()))
    });
    if copied.is_err() {
        let _ = remove();
    }
    copied.map(|()| report)
}

/// A file takes the place of a file and of nothing else: whoever names a device, a pipe or a link means what is behind
/// it, and would lose it.
fn refuse_taken(place: &Place, directory: bool) -> Result<(), Problem> {
    let found = rustix::fs::statat(&place.directory, &place.name, AtFlags::SYMLINK_NOFOLLOW);
    let message = match found.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        Err(_) => return Ok(()),
        Ok(FileType::RegularFile) if !directory => return Ok(()),
        Ok(FileType::Symlink) => format!("`{}` is a link", place.shown()),
        Ok(FileType::RegularFile | FileType::Directory) => {
            format!("`{}` is there already", place.shown())
        }
        Ok(_) => format!("`{}` is a special file", place.shown()),
    };
    Err(Problem::new(Code::AlreadyExists, message).hint("name another place"))
}

/// A name in a directory of ours.
struct Target<'a> {
    at: &'a OwnedFd,
    name: &'a [u8],
}

fn entry(
    view: &View,
    path: &RelPath,
    target: Target<'_>,
    report: &mut CopyReport,
) -> Result<(), Problem> {
    let Some(tree) = view.holder(path).or_problem()? else { return Ok(()) };
    let failed = |error: io::Error| io_problem("copy", path.as_path(), &error);
    let stat =
        tree.stat(path).map_err(failed)?.ok_or(Errno::NOENT).map_err(|e| failed(e.into()))?;
    let name = Path::new(std::ffi::OsStr::from_bytes(target.name));
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            let errno = |errno: Errno| failed(errno.into());
            rustix::fs::mkdirat(target.at, name, Mode::RWXU).map_err(errno)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let made = rustix::fs::openat(target.at, name, flags, Mode::empty()).map_err(errno)?;
            for child in view.list(path).or_problem()? {
                let name = child.file_name().unwrap_or_default().to_vec();
                entry(view, &child, Target { at: &made, name: &name }, report)?;
            }
            rustix::fs::fchmod(&made, Mode::from_raw_mode(stat.st_mode & 0o777)).map_err(errno)?;
        }
        FileType::RegularFile => {
            report.bytes += file(tree, path, target.at, name).map_err(failed)?;
        }
        FileType::Symlink => {
            let points_to = tree.read_link(path).map_err(failed)?;
            rustix::fs::symlinkat(points_to.as_path(), target.at, name)
                .map_err(|errno| failed(errno.into()))?;
        }
        _ => {
            report.skipped.push(format!("`{path}` is a special file"));
            return Ok(());
        }
    }
    report.entries += 1;
    Ok(())
}

/// Bytes and permission bits; no owner, no set-uid bit, no attribute.
fn file(tree: &TreeRoot, path: &RelPath, at: &OwnedFd, name: &Path) -> io::Result<u64> {
    let (mut from, stat) = tree.open_file(path)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut to = File::from(rustix::fs::openat(at, name, flags, Mode::RUSR | Mode::WUSR)?);
    let bytes = io::copy(&mut from, &mut to)?;
    rustix::fs::fchmod(&to, Mode::from_raw_mode(stat.st_mode & 0o777))?;
    Ok(bytes)
}
