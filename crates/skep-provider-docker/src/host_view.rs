//! The image for a sandbox without one: the host's own system, as every provider shows it.
//!
//! The image holds nothing but empty directories and the links of the host's root (`/bin` to
//! `usr/bin`): places for the host's directories to be mounted at. It is made here, in memory, and
//! named after its content.

use crate::container::Covered;
use crate::engine::Engine;
use crate::error::{At, DockerError};
use skep_keeper::vessel::SystemEntry;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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

/// What of the host's settings only root can read.
///
/// A container of root's has root's id, if none of its capabilities: what belongs to root it could
/// read. In other containers the caller's own rights decide, as everywhere.
pub fn only_for_root(directory: &Path) -> Vec<Covered> {
    let mut found = Vec::new();
    let mut waiting: Vec<PathBuf> = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(metadata) = entry.metadata() else { continue };
            match (metadata.is_dir(), is_for_all(&metadata)) {
                (true, true) => waiting.push(path),
                (true, false) => found.push(Covered::Directory(path)),
                (false, false) if metadata.is_file() => found.push(Covered::File(path)),
                (false, _) => {}
            }
        }
    }
    found
}

fn is_for_all(metadata: &Metadata) -> bool {
    let needed = if metadata.is_dir() { 0o005 } else { 0o004 };
    metadata.mode() & needed == needed
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

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
    fn files_that_not_everybody_may_read_are_found() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        std::fs::create_dir(path("open")).unwrap();
        std::fs::create_dir(path("closed")).unwrap();
        for (name, mode) in [("open/read", 0o644), ("open/shadow", 0o640), ("closed/key", 0o644)] {
            std::fs::write(path(name), "x").unwrap();
            std::fs::set_permissions(path(name), PermissionsExt::from_mode(mode)).unwrap();
        }
        std::fs::set_permissions(path("open"), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::set_permissions(path("closed"), PermissionsExt::from_mode(0o700)).unwrap();
        let mut found = only_for_root(place.path());
        found.sort_by_key(|covered| format!("{covered:?}"));
        let expected = vec![Covered::Directory(path("closed")), Covered::File(path("open/shadow"))];
        assert_eq!(found, expected);
    }
}
