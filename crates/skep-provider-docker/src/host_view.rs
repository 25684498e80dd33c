//! The image for a sandbox without one: the host's own system, as every provider shows it.
//!
//! The image holds nothing but empty directories and the links of the host's root (`/bin` to
//! `usr/bin`): places for the host's directories to be mounted at. It is made here, in memory, and
//! named after its content.

use crate::engine::Engine;
use crate::error::{At, DockerError};
use skep_keeper::vessel::SystemEntry;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The image's name; its tag tells which host's.
const NAME: &str = "skep/host-view";

/// Directories that the container needs besides those of the host.
const PLACES: &[&str] = &["proc", "sys", "dev", "tmp", "run", "var", "var/tmp", "home", "root"];

/// Makes sure that the image is there. Returns its name.
pub fn ensure(engine: &Engine, system: &[SystemEntry]) -> Result<String, DockerError> {
    let archive = archive(system).at(|| "make the image of the host's view".into())?;
    let name = format!("{NAME}:{:016x}", fingerprint(&archive));
    if engine.image(&name)?.is_none() {
        engine.import_bytes(archive, &name)?;
    }
    Ok(name)
}

fn archive(system: &[SystemEntry]) -> std::io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let relative = |path: &Path| path.to_string_lossy().trim_start_matches('/').to_owned();
    for place in PLACES {
        directory(&mut archive, place)?;
    }
    for entry in system {
        match entry {
            SystemEntry::Directory(path) => directory(&mut archive, &relative(path))?,
            SystemEntry::Link(path, points_to) => link(&mut archive, &relative(path), points_to)?,
        }
    }
    link(&mut archive, "var/run", Path::new("/run"))?;
    archive.into_inner()
}

fn directory(archive: &mut tar::Builder<Vec<u8>>, path: &str) -> std::io::Result<()> {
    let mut header = header(tar::EntryType::Directory, 0o755);
    archive.append_data(&mut header, format!("{path}/"), std::io::empty())
}

fn link(archive: &mut tar::Builder<Vec<u8>>, path: &str, points_to: &Path) -> std::io::Result<()> {
    archive.append_link(&mut header(tar::EntryType::Symlink, 0o777), path, points_to)
}

/// Of an entry of root's without content, and the same every time.
fn header(kind: tar::EntryType, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(0);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// FNV-1a: names differ when contents do; nobody chooses them to be alike.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Files that something is mounted on. They are never replaced: the kernel takes the mounts on a file away with it.
const MOUNTED_ON: &[&str] = &["hosts", "resolv.conf", "hostname"];

/// A copy of those of the host's settings that everybody may read, brought up to date. One serves all containers: it
/// holds nothing that is not everybody's, and to make it anew takes longer than the rest of a start.
///
/// A container of root's has root's id, if none of its capabilities: what belongs to root it could
/// read. A cover over single files would be gone as soon as somebody changes a password, because the new
/// file is moved into the place of the old one and the kernel takes the mounts on that away. In other
/// containers the caller's own rights decide, as everywhere.
pub fn copy_for_all(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let lock = File::options().create(true).append(true).open(to.with_extension("lock"))?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
    if !to.is_dir() {
        std::fs::DirBuilder::new().mode(0o755).create(to)?;
    }
    let mut waiting = vec![PathBuf::new()];
    while let Some(directory) = waiting.pop() {
        let top = directory.as_os_str().is_empty();
        let mounted_on = |name: &OsStr| top && MOUNTED_ON.iter().any(|one| name == *one);
        let mut there = BTreeSet::new();
        for entry in std::fs::read_dir(from.join(&directory))? {
            let entry = entry?.file_name();
            let name = directory.join(&entry);
            if mounted_on(&entry) {
                continue;
            }
            match copy_entry(&from.join(&name), &to.join(&name), &to.with_extension("new")) {
                Ok(Copied::Nothing) => continue,
                Ok(Copied::Directory) => waiting.push(name),
                Ok(Copied::Leaf) => {}
                // Gone meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            }
            there.insert(entry);
        }
        for entry in std::fs::read_dir(to.join(&directory))? {
            let entry = entry?;
            if !there.contains(&entry.file_name()) && !mounted_on(&entry.file_name()) {
                remove(&entry.path())?;
            }
        }
    }
    for name in MOUNTED_ON.iter().map(|name| to.join(name)) {
        File::options().create(true).append(true).open(name)?;
    }
    Ok(())
}

/// What an entry became.
enum Copied {
    /// It is not for everybody, or neither file, link nor directory.
    Nothing,
    Leaf,
    /// One that may be looked into. It is there; what is in it is not looked at.
    Directory,
}

/// Copies a file, a link, or a directory without what is in it, unless that is there already.
fn copy_entry(from: &Path, to: &Path, new: &Path) -> io::Result<Copied> {
    let kind = from.symlink_metadata()?;
    let there = to.symlink_metadata().ok();
    if kind.is_symlink() {
        let points_to = std::fs::read_link(from)?;
        if std::fs::read_link(to).is_ok_and(|now| now == points_to) {
            return Ok(Copied::Leaf);
        }
        remove(new)?;
        std::os::unix::fs::symlink(points_to, new)?;
        return place(new, to);
    }
    if !is_for_all(&kind) || !(kind.is_dir() || kind.is_file()) {
        return Ok(Copied::Nothing);
    }
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let mut file = File::options().read(true).custom_flags(flags.bits() as i32).open(from)?;
    // Of what was opened: another may have been moved into its place.
    let metadata = file.metadata()?;
    if !is_for_all(&metadata) {
        return Ok(Copied::Nothing);
    }
    if metadata.is_dir() {
        if !there.is_some_and(|there| there.is_dir()) {
            remove(to)?;
            std::fs::DirBuilder::new().mode(0o755).create(to)?;
        }
        return Ok(Copied::Directory);
    }
    if !metadata.is_file() {
        return Ok(Copied::Nothing);
    }
    if there.is_some_and(|there| is_copy_of(&there, &metadata)) {
        return Ok(Copied::Leaf);
    }
    remove(new)?;
    let mut copy = File::options().write(true).create_new(true).mode(0o600).open(new)?;
    io::copy(&mut file, &mut copy)?;
    let mode = metadata.permissions().mode() & 0o777;
    copy.set_permissions(std::fs::Permissions::from_mode(mode))?;
    copy.set_modified(changed(&metadata))?;
    place(new, to)
}

/// When a file, or what is known of it, was last changed: no program can set that.
fn changed(metadata: &Metadata) -> SystemTime {
    let seconds = Duration::from_secs(metadata.ctime().max(0) as u64);
    SystemTime::UNIX_EPOCH + seconds + Duration::from_nanos(metadata.ctime_nsec().max(0) as u64)
}

/// Whether a copy was made of this, as it is. A copy's own time is that of the original's last change.
fn is_copy_of(copy: &Metadata, original: &Metadata) -> bool {
    copy.is_file()
        && copy.len() == original.len()
        && copy.mode() & 0o777 == original.mode() & 0o777
        && copy.modified().is_ok_and(|time| time == changed(original))
}

/// Moves what was made into its place, whatever is there.
fn place(new: &Path, to: &Path) -> io::Result<Copied> {
    if to.symlink_metadata().is_ok_and(|there| there.is_dir()) {
        remove(to)?;
    }
    std::fs::rename(new, to)?;
    Ok(Copied::Leaf)
}

/// Removes anything, or nothing.
fn remove(path: &Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(there) if there.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn is_for_all(metadata: &Metadata) -> bool {
    let needed = if metadata.is_dir() { 0o005 } else { 0o004 };
    metadata.mode() & needed == needed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_has_places_and_links_and_no_content() {
        let system = [
            SystemEntry::Directory("/usr".into()),
            SystemEntry::Link("/bin".into(), "usr/bin".into()),
        ];
        let bytes = archive(&system).unwrap();
        assert_eq!(bytes, archive(&system).unwrap());
        let mut read = tar::Archive::new(bytes.as_slice());
        let mut names = Vec::new();
        for entry in read.entries().unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.size(), 0);
            names.push(entry.path().unwrap().display().to_string());
        }
        assert!(
            names.contains(&"usr/".to_owned()) && names.contains(&"bin".to_owned()),
            "{names:?}"
        );
    }

    #[test]
    fn the_copy_has_what_everybody_may_read() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join("etc").join(name);
        std::fs::create_dir_all(path("open")).unwrap();
        std::fs::create_dir(path("closed")).unwrap();
        for (name, mode) in [("open/read", 0o644), ("open/shadow", 0o640), ("closed/key", 0o644)] {
            std::fs::write(path(name), "x").unwrap();
            std::fs::set_permissions(path(name), PermissionsExt::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::symlink("shadow", path("open/link")).unwrap();
        std::fs::set_permissions(path("open"), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::set_permissions(path("closed"), PermissionsExt::from_mode(0o700)).unwrap();
        let to = place.path().join("copy");
        for _again in 0..2 {
            copy_for_all(&path(""), &to).unwrap();
        }
        let names = |below: &str| {
            let entries = std::fs::read_dir(to.join(below)).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(""), ["hostname", "hosts", "open", "resolv.conf"]);
        assert_eq!(names("open"), ["link", "read"]);
        assert_eq!(std::fs::read(to.join("open/read")).unwrap(), b"x");
        // What changes is followed, what is closed goes, and what has something mounted on it stays the file it is.
        let inode = |name: &str| std::fs::metadata(to.join(name)).unwrap().ino();
        let (kept, mounted_on) = (inode("open/read"), inode("hosts"));
        copy_for_all(&path(""), &to).unwrap();
        assert_eq!(inode("open/read"), kept, "nothing was copied again");
        std::fs::write(path("hosts"), "of the host").unwrap();
        std::fs::write(path("open/read"), "y").unwrap();
        std::fs::write(path("open/closed"), "z").unwrap();
        std::fs::set_permissions(path("open/closed"), PermissionsExt::from_mode(0o644)).unwrap();
        copy_for_all(&path(""), &to).unwrap();
        assert_eq!(std::fs::read(to.join("open/read")).unwrap(), b"y");
        assert_eq!(names("open"), ["closed", "link", "read"]);
        assert_eq!(
            (inode("hosts"), std::fs::read(to.join("hosts")).unwrap()),
            (mounted_on, vec![])
        );
        std::fs::set_permissions(path("open/closed"), PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::remove_file(path("open/link")).unwrap();
        std::fs::create_dir(path("open/link")).unwrap();
        std::fs::set_permissions(path("open/link"), PermissionsExt::from_mode(0o755)).unwrap();
        copy_for_all(&path(""), &to).unwrap();
        assert_eq!(names("open"), ["link", "read"]);
        assert!(to.join("open/link").is_dir());
        std::fs::set_permissions(path("open"), PermissionsExt::from_mode(0o700)).unwrap();
        copy_for_all(&path(""), &to).unwrap();
        assert_eq!(names(""), ["hostname", "hosts", "resolv.conf"]);
    }
}
