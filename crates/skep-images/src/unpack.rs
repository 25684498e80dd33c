//! From an archive to files.
//!
//! Whoever made the archive is not trusted. Every name is resolved from the image's root without following
//! any link, so that no entry can be written through one that came before it; names with `..` are
//! refused. Devices, pipes and sockets are left out, and so are owners (all files are the caller's), set-id
//! bits and extended attributes: none of them has a meaning in a sandbox, and on the host's disk some
//! would be dangerous.

use crate::{At, ImageError};
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, Mode, OFlags, ResolveFlags, linkat, mkdirat, openat2, symlinkat, unlinkat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};
use tar::EntryType;

/// What came of an archive.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    /// Bytes in files.
    pub(crate) size: u64,
    /// Files, links and directories.
    pub(crate) entries: u64,
    /// Devices, pipes and sockets that were left out.
    pub(crate) left_out: u64,
}

/// Unpacks `archive` into the directory `root`, which is empty.
pub(crate) fn unpack(archive: impl Read, root: &Path) -> Result<Unpacked, ImageError> {
    let step = || format!("unpack into `{}`", root.display());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, flags, Mode::empty()).at(step)?;
    let mut target = Target { root, directories: Vec::new(), done: Unpacked::default() };
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries().at(step)? {
        let mut entry = entry.at(step)?;
        let name = entry.path_bytes().into_owned();
        let named = || format!("unpack `{}`", skep_types::escape::visible(&name));
        let path = plain(&name).map_err(|reason| refused(&name, reason))?;
        target.add(&mut entry, &path).map_err(|error| explained(&name, error)).at(named)?;
    }
    target.finish().at(step)
}

fn refused(name: &[u8], reason: &str) -> ImageError {
    ImageError::Unusable { source_name: skep_types::escape::visible(name), reason: reason.into() }
}

/// The kernel's word for a link on the way says little.
fn explained(name: &[u8], error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) if code == Errno::LOOP.raw_os_error() => io::Error::other(format!(
            "a link lies on the way to `{}`, and none is followed",
            skep_types::escape::visible(name)
        )),
        _ => error,
    }
}

/// The path below the root that a name means.
fn plain(name: &[u8]) -> Result<PathBuf, &'static str> {
    let mut path = PathBuf::new();
    for component in Path::new(OsStr::from_bytes(name)).components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err("its name leads out of the image");
            }
        }
    }
    Ok(path)
}

/// An image in the making.
struct Target {
    root: OwnedFd,
    /// Directories with the modes they have in the end: until then something is put into them.
    directories: Vec<(PathBuf, u32)>,
    done: Unpacked,
}

impl Target {
    fn add(&mut self, entry: &mut tar::Entry<'_, impl Read>, path: &Path) -> io::Result<()> {
        let mode = entry.header().mode()? & 0o777;
        let kind = entry.header().entry_type();
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        match kind {
            EntryType::Directory => self.directory(path, mode)?,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.file(entry, path, mode)?;
            }
            EntryType::Symlink => {
                let to = entry.link_name_bytes().unwrap_or_default().into_owned();
                let (parent, name) = self.place(path)?;
                symlinkat(OsStr::from_bytes(&to), &parent, &name)?;
            }
            EntryType::Link => {
                let to = entry.link_name_bytes().unwrap_or_default().into_owned();
                let to = plain(&to).map_err(io::Error::other)?;
                let (from, old) = self.parent(&to)?;
                let (parent, name) = self.place(path)?;
                linkat(&from, &old, &parent, &name, AtFlags::empty())?;
            }
            EntryType::XGlobalHeader => return Ok(()),
            _ => {
                self.done.left_out += 1;
                return Ok(());
            }
        }
        self.done.entries += 1;
        Ok(())
    }

    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    /// The directory that a path lies in, made if it is missing, and the last part of the path.
    fn parent(&self, path: &Path) -> io::Result<(OwnedFd, OsString)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        let parent = path.parent().unwrap_or(Path::new(""));
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let opened = match self.open(parent, flags) {
            Err(Errno::NOENT) => {
                let (above, last) = self.parent(parent)?;
                mkdirat(&above, &last, Mode::from_raw_mode(0o755))?;
                self.open(parent, flags)?
            }
            other => other?,
        };
        Ok((opened, name))
    }

    /// The same, with nothing at the path any more: what comes later in an archive counts.
    fn place(&self, path: &Path) -> io::Result<(OwnedFd, OsString)> {
        let (parent, name) = self.parent(path)?;
        match unlinkat(&parent, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok((parent, name)),
            Err(error) => Err(error.into()),
        }
    }

    fn directory(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let made = mkdirat(&parent, &name, Mode::from_raw_mode(0o755));
        if made == Err(Errno::EXIST) && self.open(path, OFlags::PATH | OFlags::DIRECTORY).is_err() {
            unlinkat(&parent, &name, AtFlags::empty())?;
            mkdirat(&parent, &name, Mode::from_raw_mode(0o755))?;
        } else if made != Err(Errno::EXIST) {
            made?;
        }
        self.directories.push((path.to_owned(), mode));
        Ok(())
    }

    fn file(
        &mut self,
        entry: &mut tar::Entry<'_, impl Read>,
        path: &Path,
        mode: u32,
    ) -> io::Result<()> {
        let (parent, name) = self.place(path)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW;
        let made = rustix::fs::openat(
            &parent,
            &name,
            flags | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o600),
        )?;
        let mut file = File::from(made);
        let (wanted, came) = (entry.size(), io::copy(entry, &mut file)?);
        if came != wanted {
            return Err(io::Error::other("the archive is cut short"));
        }
        let seconds = Duration::from_secs(entry.header().mtime().unwrap_or(0));
        // A date that no clock has is left out.
        if let Some(changed) = SystemTime::UNIX_EPOCH.checked_add(seconds) {
            file.set_modified(changed)?;
        }
        // Its owner is the caller, who must be able to read what is to be shown.
        file.set_permissions(Permissions::from_mode(mode | 0o400))?;
        self.done.size += came;
        Ok(())
    }

    /// The modes of directories. Their owner must be able to take them away again.
    fn finish(self) -> io::Result<Unpacked> {
        for (path, mode) in &self.directories {
            // One that was replaced by something else later has no mode.
            let Ok(directory) = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY) else {
                continue;
            };
            rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode | 0o700))?;
        }
        Ok(self.done)
    }
}

/// Directories that every view puts something of its own at.
const PLACES: &[&str] = &["proc", "sys", "dev", "run", "tmp", "etc", "var", "var/tmp"];

/// Makes the places at which a sandbox has something of its own: directories, and the two files of
/// `/etc` that say what skep says. Where a link stands instead, the image is refused: it could lead
/// what is mounted there somewhere else.
pub(crate) fn make_places(root: &Path) -> Result<(), ImageError> {
    for place in PLACES {
        let path = root.join(place);
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let kind = path.symlink_metadata().at(|| format!("look at `/{place}`"))?;
                if !kind.is_dir() {
                    return Err(refused(place.as_bytes(), "it must be a directory, and no link"));
                }
            }
            made => made.at(|| format!("make `/{place}` in the image"))?,
        }
    }
    for name in ["etc/hosts", "etc/resolv.conf"] {
        let path = root.join(name);
        if path.symlink_metadata().is_ok_and(|found| found.is_file()) {
            continue;
        }
        let step = || format!("make `/{name}` in the image");
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).at(step),
            _ => std::fs::write(&path, "").at(step)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    enum Part<'a> {
        File(&'a str, &'a str),
        Link(&'a str, &'a str),
        Hard(&'a str, &'a str),
        Directory(&'a str, u32),
        Device(&'a str),
    }

    /// Names are written as they are: a builder would refuse the ones that matter here.
    fn archive(parts: &[Part<'_>]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for part in parts {
            let (name, kind, mode, content, to) = match part {
                Part::File(name, content) => (name, EntryType::Regular, 0o6755, *content, ""),
                Part::Link(name, to) => (name, EntryType::Symlink, 0o777, "", *to),
                Part::Hard(name, to) => (name, EntryType::Link, 0o777, "", *to),
                Part::Directory(name, mode) => (name, EntryType::Directory, *mode, "", ""),
                Part::Device(name) => (name, EntryType::Char, 0o666, "", ""),
            };
            let mut header = tar::Header::new_gnu();
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.as_mut_bytes()[157..157 + to.len()].copy_from_slice(to.as_bytes());
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(1);
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn unpacked(parts: &[Part<'_>]) -> (tempfile::TempDir, Result<Unpacked, ImageError>) {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("root")).unwrap();
        std::fs::write(place.path().join("outside"), "as it was").unwrap();
        let done = unpack(archive(parts).as_slice(), &place.path().join("root"));
        assert_eq!(std::fs::read_to_string(place.path().join("outside")).unwrap(), "as it was");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 2);
        (place, done)
    }

    #[test]
    fn files_lose_what_has_no_meaning_inside() {
        let (place, done) = unpacked(&[
            Part::Directory("./shut", 0o500),
            Part::File("./shut/file", "content"),
            Part::File("/absolute", "x"),
            Part::Link("link", "/etc/passwd"),
            Part::Hard("same", "shut/file"),
            Part::Device("null"),
        ]);
        assert_eq!(done.unwrap(), Unpacked { size: 8, entries: 5, left_out: 1 });
        let root = place.path().join("root");
        let file = root.join("shut/file").metadata().unwrap();
        assert_eq!((file.mode() & 0o7777, file.mtime()), (0o755, 1));
        assert_eq!(file.ino(), root.join("same").metadata().unwrap().ino());
        assert_eq!(root.join("shut").metadata().unwrap().mode() & 0o777, 0o700);
        assert!(root.join("absolute").is_file() && !root.join("null").exists());
        assert_eq!(std::fs::read_link(root.join("link")).unwrap(), Path::new("/etc/passwd"));
    }

    #[test]
    fn nothing_leads_out_of_the_image() {
        for parts in [
            &[Part::File("../outside", "new")][..],
            &[Part::File("a/../../outside", "new")],
            &[Part::Link("way", ".."), Part::File("way/outside", "new")],
            &[Part::Link("way", ".."), Part::Directory("way/made", 0o777)],
            &[Part::Hard("inside", "../outside")],
            &[Part::Link("way", ".."), Part::Hard("inside", "way/outside")],
        ] {
            let (_, done) = unpacked(parts);
            assert!(done.is_err());
        }
        // What is written over a link replaces the link.
        let (place, done) =
            unpacked(&[Part::Link("here", "../outside"), Part::File("here", "new")]);
        done.unwrap();
        assert_eq!(std::fs::read_to_string(place.path().join("root/here")).unwrap(), "new");
        // A mode is not given to what a link leads to.
        let (place, done) = unpacked(&[Part::Link("up", ".."), Part::Directory("up", 0o777)]);
        done.unwrap();
        assert!(place.path().join("root/up").symlink_metadata().unwrap().is_dir());
    }

    #[test]
    fn places_are_made_and_links_there_refused() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("etc")).unwrap();
        std::os::unix::fs::symlink("/run/x", place.path().join("etc/resolv.conf")).unwrap();
        make_places(place.path()).unwrap();
        assert!(place.path().join("etc/resolv.conf").symlink_metadata().unwrap().is_file());
        assert!(place.path().join("var/tmp").is_dir());
        let other = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/tmp", other.path().join("run")).unwrap();
        assert!(make_places(other.path()).is_err());
    }
}
