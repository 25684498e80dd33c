//! Directories of the system that can be written inside, while nothing reaches the host.
//!
//! Started by root, the host's directory is the lower of an overlay with its owners mapped, so that
//! what belongs to root on disk belongs to the root-looking user inside and can be copied up. The
//! same mapping would let that user read what only root may read. No id map can tell the two
//! apart: the kernel asks the same question (is this owner known here?) for copying up and for
//! overriding a mode. So a mask lies over the host's directory, in which everything is whited out
//! that a stranger on the host could not read, found by looking at every mode at the start, and
//! the names in `resources/system-secrets.toml`, which are absent even if they come later.
//!
//! What packages own (`/usr` but for `/usr/local`) has most of the files and changes by packages,
//! which move files into their place and so the change time of the directory. There it is
//! remembered for a day what was found, and only directories that have changed are looked at.
//!
//! An ordinary user has one id to map, and files of any other cannot be copied up by the kernel.
//! There fuse-overlayfs does it, with the caller's own rights to read, and shows every file as the
//! user's. In `/etc` and `/var` the same mask is laid there: what is named may be the user's own.

use super::fuse;
use super::plan::CowMethod;
use crate::failure::{Failure, Step};
use crate::identity::IdMap;
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, mknodat, openat2, statat,
};
use rustix::mount::{OpenTreeFlags, open_tree};
use skep_policy::{NameMatch, SystemSecret, system_secrets};
use skep_types::{ContentHash, RelPath};
use skep_workspace::remembered::{self, Content, Memory};
use skep_workspace::tree::TreeRoot;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

/// What becomes copy-on-write, where it is a directory of its own.
pub const COW_PATHS: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/var"];
/// `statfs` types whose owners cannot be mapped.
const NOT_MAPPED: &[i64] = &[0x794c_7630, 0x6573_5546, 0x6969, 0x517b];

/// The directories of [`COW_PATHS`] as they are here, links left out.
pub fn directories() -> Vec<&'static Path> {
    let is_directory = |path: &&Path| path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
    COW_PATHS.iter().map(Path::new).filter(is_directory).collect()
}

/// How they are made copy-on-write, or why they cannot be.
pub fn method(map: IdMap) -> Result<CowMethod, Failure> {
    let mapped = |path: &&Path| {
        rustix::fs::statfs(*path).is_ok_and(|stat| !NOT_MAPPED.contains(&stat.f_type))
    };
    if map == IdMap::Range && directories().iter().all(mapped) {
        return Ok(CowMethod::Overlay);
    }
    match fuse::unavailable() {
        None => Ok(CowMethod::Fuse),
        Some((reason, remedy)) => {
            let kernel = match map {
                IdMap::Range | IdMap::Host => "the filesystem of the system cannot map owners",
                IdMap::Own { .. } => "the kernel copies no files up that belong to other ids",
            };
            let reason = format!("{kernel}, and fuse-overlayfs cannot be used: {reason}");
            Err(Failure::missing("`--system cow`", reason, remedy))
        }
    }
}

/// Where the writes of a directory go.
pub fn area(sandbox: &Path, directory: &Path) -> PathBuf {
    sandbox.join("system").join(directory.strip_prefix("/").unwrap_or(directory))
}

/// Makes the area of one directory: `upper` and `work` are kept over restarts, `mask` is made anew.
pub fn prepare(
    sandbox: &Path,
    directory: &Path,
    how: CowMethod,
    map: IdMap,
) -> Result<(), Failure> {
    let step = || format!("prepare `{}` for copy-on-write", directory.display());
    if std::fs::canonicalize(sandbox).step(step)?.starts_with(directory) {
        return Err(Failure::missing(
            "`--system cow`",
            format!(
                "skep's state lies in `{}`, and no copy can be kept in itself",
                directory.display()
            ),
            "keep it outside of the system's directories: `SKEP_HOME`, for a service `Environment=`",
        ));
    }
    let area = area(sandbox, directory);
    let mask = area.join("mask");
    let mut make = std::fs::DirBuilder::new();
    make.recursive(true).mode(0o700);
    match std::fs::remove_dir_all(&mask) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).step(step),
        _ => {}
    }
    for name in ["upper", "work", "mask"] {
        make.create(area.join(name)).step(step)?;
    }
    let lower = open_lower(directory, map).step(step)?;
    let top = rustix::fs::fstat(&lower).step(step)?;
    for name in ["upper", "mask"] {
        dress(&area.join(name), &top, map, how).step(step)?;
    }
    if map == IdMap::Range {
        let (uid, gid) = map.outside(0, 0);
        lchown(area.join("work"), Some(uid), Some(gid)).step(step)?;
        for place in [sandbox.join("system"), area.clone()] {
            std::fs::set_permissions(place, Permissions::from_mode(0o711)).step(step)?;
        }
    }
    let secrets = system_secrets().map_err(|error| Failure::invalid(skep_types::chain(&error)))?;
    let mut covers = named(&lower, directory, &secrets);
    // By fuse-overlayfs they cannot be read in any case. But a lock or a cache that is there and shut
    // stops a package manager, which makes a new one where there is none.
    let of_packages = !["/etc", "/var", "/opt"].map(Path::new).contains(&directory);
    if how == CowMethod::Overlay && of_packages {
        let state = sandbox.ancestors().nth(2).unwrap_or(sandbox);
        find_closed_again(&lower, directory, &mut covers, &state.join("searched")).step(step)?;
    } else if how == CowMethod::Overlay || ["/etc", "/var"].map(Path::new).contains(&directory) {
        find_closed(&lower, &mut covers).step(step)?;
    }
    Mask { root: &mask, lower: &lower, map, how }.write(&covers).step(step)
}

/// The host's directory, for root without what is mounted on it: just as it will be shown.
fn open_lower(directory: &Path, map: IdMap) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(match map {
        IdMap::Range => open_tree(CWD, directory, flags)?,
        IdMap::Own { .. } | IdMap::Host => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::open(directory, flags, Mode::empty())?
        }
    })
}

/// Gives a directory of ours the owner and mode that it lends to the merged one.
fn dress(ours: &Path, like: &Stat, map: IdMap, how: CowMethod) -> io::Result<()> {
    if map == IdMap::Range {
        let (uid, gid) = match how {
            CowMethod::Overlay => map.outside(like.st_uid, like.st_gid),
            CowMethod::Fuse => map.outside(0, 0),
        };
        lchown(ours, Some(uid), Some(gid))?;
    }
    // Something has to be put into it, by its owner where that is all the right there is.
    let own = if map == IdMap::Range { 0 } else { 0o700 };
    std::fs::set_permissions(ours, Permissions::from_mode(like.st_mode & 0o7777 | own))
}

/// How a path is covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cover {
    /// Absent.
    Absent,
    /// A directory with nothing in it.
    Empty,
}

type Covers = BTreeMap<PathBuf, Cover>;

/// The secrets on the list that lie below `directory`, relative to it.
fn named(lower: &OwnedFd, directory: &Path, secrets: &[SystemSecret]) -> Covers {
    let mut covers = Covers::new();
    for secret in secrets {
        let (parent, name, how) = secret.parts();
        let Ok(parent) = parent.strip_prefix(directory) else { continue };
        let cover = if secret.empty { Cover::Empty } else { Cover::Absent };
        match how {
            NameMatch::Whole => drop(covers.insert(parent.join(name), cover)),
            NameMatch::Start => {
                let found = list(lower, parent).unwrap_or_default().into_iter();
                let found =
                    found.filter(|(entry, _)| entry.as_bytes().starts_with(name.as_bytes()));
                covers.extend(found.map(|(entry, _)| (parent.join(entry), Cover::Absent)));
            }
        }
    }
    covers
}

/// Adds what a stranger could not read; nothing below it has to be looked at.
fn find_closed(lower: &OwnedFd, covers: &mut Covers) -> io::Result<()> {
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        let opened = match open_beneath(lower, &directory) {
            // A stranger's rights may be more than the caller's own: a group that is shut out.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                covers.insert(directory, Cover::Absent);
                continue;
            }
            other => other?,
        };
        for (name, kind) in read(&opened)? {
            let path = directory.join(&name);
            if kind == FileType::Symlink || covers.contains_key(&path) {
                continue;
            }
            // Gone since: nothing to cover. A name that comes later is covered by the list alone.
            let Ok(stat) = statat(&opened, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Symlink => {}
                FileType::Directory if stat.st_mode & 0o005 == 0o005 => directories.push(path),
                FileType::RegularFile if stat.st_mode & 0o004 != 0 => {}
                _ => drop(covers.insert(path, Cover::Absent)),
            }
        }
    }
    Ok(())
}

/// The same, of what packages own: by what was found on this day, where nothing has changed since. A
/// mode can change without the directory; of files that packages brought, nearly none ever does.
fn find_closed_again(
    lower: &OwnedFd,
    directory: &Path,
    covers: &mut Covers,
    memories: &Path,
) -> io::Result<()> {
    let tree = TreeRoot::from_fd(lower.try_clone()?);
    let (device, inode) = tree.identity()?;
    let day = remembered::today();
    let key = format!("system {} {device} {inode} {day} {covers:?}", directory.display());
    let file = memories.join(format!("system-{}", ContentHash::of(key.as_bytes())));
    let believed = remembered::can_be_remembered(&tree);
    let memory = if believed { Memory::load(&file, key.as_bytes()) } else { Memory::default() };
    let mut judge = |path: &RelPath| closed_in(lower, path, covers);
    let looked = remembered::look(&tree, &memory, &mut judge)?;
    if believed {
        // Without it the next look only takes longer.
        let _ = looked.keep(&file, key.as_bytes());
    }
    for hit in looked.hits {
        covers.entry(hit.as_path().to_owned()).or_insert(Cover::Absent);
    }
    Ok(())
}

/// What a stranger could not read in one directory, and where to go on.
fn closed_in(lower: &OwnedFd, path: &RelPath, covers: &Covers) -> io::Result<Content> {
    let opened = match open_beneath(lower, path.as_path()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Content::default()),
        other => other?,
    };
    // What people put there is theirs to close at any time.
    let certain = !path.as_path().starts_with("local");
    let mut content = Content { certain, ..Content::default() };
    for (name, kind) in read(&opened)? {
        if kind == FileType::Symlink || covers.contains_key(&path.as_path().join(&name)) {
            continue;
        }
        let Ok(stat) = statat(&opened, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let name = name.as_bytes().to_vec();
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {}
            FileType::Directory if stat.st_mode & 0o005 == 0o005 => content.enter.push(name),
            FileType::RegularFile if stat.st_mode & 0o004 != 0 => {}
            _ => content.hits.push(name),
        }
    }
    content.enter.sort();
    Ok(content)
}

fn open_beneath(lower: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(openat2(lower, path, flags, Mode::empty(), resolve)?)
}

fn list(lower: &OwnedFd, path: &Path) -> io::Result<Vec<(std::ffi::OsString, FileType)>> {
    read(&open_beneath(lower, path)?)
}

fn read(directory: &OwnedFd) -> io::Result<Vec<(std::ffi::OsString, FileType)>> {
    let mut entries = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            let kind = skep_workspace::tree::kind_of(rustix::fd::AsFd::as_fd(directory), &entry)?;
            entries.extend(kind.map(|kind| (OsStr::from_bytes(name).to_owned(), kind)));
        }
    }
    Ok(entries)
}

/// A layer that covers parts of what lies below it.
struct Mask<'a> {
    root: &'a Path,
    lower: &'a OwnedFd,
    map: IdMap,
    how: CowMethod,
}

impl Mask<'_> {
    fn write(&self, covers: &Covers) -> io::Result<()> {
        for (path, cover) in covers {
            let covered = path.ancestors().skip(1).any(|parent| covers.contains_key(parent));
            // Where the parent is no directory here, nothing can come to light at this name.
            if covered || !self.parents(path)? {
                continue;
            }
            let target = self.root.join(path);
            match (cover, self.stat(path)) {
                (Cover::Empty, Some(stat)) if is_directory(&stat) => self.empty(&target, &stat)?,
                (Cover::Empty, _) => {}
                (Cover::Absent, _) => {
                    mknodat(CWD, &target, FileType::CharacterDevice, Mode::empty(), 0)?;
                }
            }
        }
        Ok(())
    }

    fn stat(&self, path: &Path) -> Option<Stat> {
        statat(self.lower, path, AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Repeats the parents of a path; says whether they are directories on the host.
    fn parents(&self, path: &Path) -> io::Result<bool> {
        let mut parents: Vec<&Path> = path.ancestors().skip(1).collect();
        parents.pop();
        for parent in parents.into_iter().rev() {
            let Some(stat) = self.stat(parent).filter(is_directory) else { return Ok(false) };
            self.directory(&self.root.join(parent), &stat)?;
        }
        Ok(true)
    }

    fn directory(&self, target: &Path, like: &Stat) -> io::Result<()> {
        match std::fs::create_dir(target) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
            Ok(()) => dress(target, like, self.map, self.how),
        }
    }

    fn empty(&self, target: &Path, like: &Stat) -> io::Result<()> {
        self.directory(target, like)?;
        match self.how {
            CowMethod::Overlay => {
                let flags = rustix::fs::XattrFlags::empty();
                Ok(rustix::fs::setxattr(target, "user.overlay.opaque", b"y", flags)?)
            }
            CowMethod::Fuse => std::fs::write(target.join(".wh..wh..opq"), b""),
        }
    }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_strangers_cannot_read_is_found_without_looking_below_it() {
        let root = tempfile::tempdir().unwrap();
        let make = |name: &str, mode: u32| {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "x").unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        };
        make("open/readable", 0o644);
        make("open/for-group", 0o640);
        make("closed/readable", 0o644);
        make("listed", 0o644);
        let closed = root.path().join("closed");
        std::fs::set_permissions(&closed, Permissions::from_mode(0o750)).unwrap();
        std::os::unix::fs::symlink("/etc/shadow", root.path().join("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let lower = rustix::fs::open(root.path(), flags, Mode::empty()).unwrap();
        let secret =
            SystemSecret { path: "/etc/listed".into(), empty: false, reason: "test".into() };
        let mut covers = named(&lower, Path::new("/etc"), &[secret]);
        find_closed(&lower, &mut covers).unwrap();
        let found: Vec<_> = covers.keys().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(found, ["closed", "listed", "open/for-group", "socket"]);
    }

    #[test]
    fn what_packages_own_is_remembered_and_what_people_closed_is_found() {
        let (root, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let close = |name: &str, mode: u32| {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "x").unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        };
        (0..40).for_each(|number| close(&format!("lib/{number}/open"), 0o644));
        close("lib/7/closed", 0o600);
        close("local/etc/open", 0o644);
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let lower = rustix::fs::open(root.path(), flags, Mode::empty()).unwrap();
        let found = || {
            let mut covers = Covers::new();
            find_closed_again(&lower, Path::new("/usr"), &mut covers, state.path()).unwrap();
            covers.keys().map(|path| path.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(found(), ["lib/7/closed"]);
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 1);
        close("lib/9/new", 0o640);
        close("local/etc/open", 0o600);
        assert_eq!(found(), ["lib/7/closed", "lib/9/new", "local/etc/open"]);
    }

    #[test]
    fn a_mask_repeats_the_parents_and_covers_each_path_once() {
        let root = tempfile::tempdir().unwrap();
        let (system, mask) = (root.path().join("system"), root.path().join("mask"));
        std::fs::create_dir_all(system.join("a/b")).unwrap();
        std::fs::create_dir_all(system.join("log")).unwrap();
        std::fs::create_dir(&mask).unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let lower = rustix::fs::open(&system, flags, Mode::empty()).unwrap();
        let covers = Covers::from([
            ("a/b/secret".into(), Cover::Absent),
            ("log".into(), Cover::Empty),
            ("log/old".into(), Cover::Absent),
            ("nowhere/secret".into(), Cover::Absent),
        ]);
        let map = IdMap::Own { user: (0, 0), group: (0, 0), lent: None };
        let writer = Mask { root: &mask, lower: &lower, map, how: CowMethod::Fuse };
        writer.write(&covers).unwrap();
        let whiteout = rustix::fs::lstat(mask.join("a/b/secret")).unwrap();
        assert_eq!(FileType::from_raw_mode(whiteout.st_mode), FileType::CharacterDevice);
        assert_eq!(whiteout.st_rdev, 0);
        assert!(mask.join("log/.wh..wh..opq").is_file());
        assert!(!mask.join("log/old").exists() && !mask.join("nowhere").exists());
    }
}
