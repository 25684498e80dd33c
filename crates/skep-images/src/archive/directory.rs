//! A directory as an archive.
//!
//! Whoever imports it may be root, and whoever owns it somebody else who works in it meanwhile. So it is walked
//! by descriptors, no link is followed, what was looked at is what is read, and of a file exactly as many
//! bytes as its header says: else what is appended to it would be read as entries of the archive.

use rustix::fd::OwnedFd;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Appends everything below `source` but sockets, pipes and devices: they are of processes and a host that do
/// not come along.
pub(super) fn append(archive: &mut tar::Builder<impl Write>, source: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(source, flags, Mode::empty())?;
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let directory = open_directory(&root, &path)?;
        for name in names(&directory)? {
            let inside = path.join(&name);
            if append_entry(archive, &directory, &name, &inside)? {
                waiting.push(inside);
            }
        }
    }
    Ok(())
}

fn open_directory(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(openat2(root, path, flags, Mode::empty(), resolve)?)
}

/// Sorted.
fn names(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Whether it is a directory.
fn append_entry(
    archive: &mut tar::Builder<impl Write>,
    directory: &OwnedFd,
    name: &OsStr,
    inside: &Path,
) -> io::Result<bool> {
    let open =
        |flags| openat(directory, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    let entry = File::from(open(OFlags::PATH)?);
    let meta = entry.metadata()?;
    let mut header = tar::Header::new_gnu();
    header.set_metadata(&meta);
    if meta.is_dir() {
        archive.append_data(&mut header, inside, io::empty())?;
    } else if meta.is_symlink() {
        let target = readlinkat(&entry, "", Vec::new())?;
        header.set_size(0);
        archive.append_link(&mut header, inside, OsStr::from_bytes(target.to_bytes()))?;
    } else if meta.is_file() {
        // It may be another one by now; a pipe would make us wait.
        let mut file = File::from(open(OFlags::RDONLY | OFlags::NONBLOCK)?);
        let meta = file.metadata()?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        if kind != FileType::RegularFile {
            return Err(changed(inside));
        }
        header.set_metadata(&meta);
        let mut bytes = Exactly { inner: (&mut file).take(meta.len()), came: 0 };
        archive.append_data(&mut header, inside, &mut bytes)?;
        if bytes.came != meta.len() {
            return Err(changed(inside));
        }
    }
    Ok(meta.is_dir())
}

fn changed(path: &Path) -> io::Error {
    let shown = skep_types::escape::visible(path.as_os_str().as_bytes());
    io::Error::other(format!("`{shown}` was changed while it was read"))
}

/// Counts what came.
struct Exactly<R> {
    inner: R,
    came: u64,
}

impl<R: Read> Read for Exactly<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.came += length as u64;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Somebody exchanges a file with a link to what he may not read, as fast as he can.
    #[test]
    fn a_link_that_takes_a_files_place_is_never_followed() {
        let place = tempfile::tempdir().unwrap();
        let tree = place.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        std::fs::write(place.path().join("secret"), "TOPSECRET").unwrap();
        std::fs::write(tree.join("f"), "open").unwrap();
        symlink("../secret", place.path().join("link")).unwrap();
        let (over, other) = (AtomicBool::new(false), place.path().join("link"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    let at = rustix::fs::CWD;
                    rustix::fs::renameat_with(at, tree.join("f"), at, &other, flags).unwrap();
                }
            });
            for _ in 0..400 {
                let mut archive = tar::Builder::new(Vec::new());
                if append(&mut archive, &tree).is_ok() {
                    let bytes = archive.into_inner().unwrap();
                    assert!(!bytes.windows(9).any(|part| part == b"TOPSECRET"));
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    }

    /// A file that grows while it is read adds no entries.
    #[test]
    fn bytes_that_are_appended_meanwhile_are_no_entries() {
        let mut planted = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        planted.append_data(&mut header, "planted", &b"evil"[..]).unwrap();
        let planted = planted.into_inner().unwrap();
        let place = tempfile::tempdir().unwrap();
        let log = place.path().join("log");
        std::fs::write(&log, vec![b'x'; 512 * 2_000]).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let mut file = File::options().append(true).open(&log).unwrap();
                    file.write_all(&planted).unwrap();
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            });
            for _ in 0..30 {
                let mut archive = tar::Builder::new(Vec::new());
                append(&mut archive, place.path()).unwrap();
                let bytes = archive.into_inner().unwrap();
                let mut read = tar::Archive::new(&bytes[..]);
                assert_eq!(read.entries().unwrap().count(), 1);
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
