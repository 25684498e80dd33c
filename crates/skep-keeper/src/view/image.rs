//! The system of an image instead of the host's.
//!
//! The image lies on disk as it was unpacked and is never written. Its root is not mounted as a whole,
//! because places must be made in it that it does not have: the project's path, the home, extra mounts.
//! So the root is skep's own, each entry of the image is shown in it by itself, and a directory that lacks
//! a place below it is taken apart in the same way. A link on the way to a place is refused: it could
//! lead what is mounted there somewhere else.

use super::home::Link;
use super::plan::ViewOp;
use super::sources::{Below, Owners, SourceSpec};
use crate::failure::{Failure, Step};
use crate::vessel::Vessel;
use serde::{Deserialize, Serialize};
use skep_machine::share;
use skep_provider::RunSpec;
use skep_types::Access;
use std::path::{Path, PathBuf};

/// How many entries a directory that is taken apart may have: each becomes a mount.
const MOST_ENTRIES: usize = 2000;

/// Directories at the top that are the sandbox's own, whatever an image has there.
const OWN: &[&str] = &["proc", "sys", "dev", "run", "tmp"];

/// The loader would put what this names into init.
const PRELOAD: &str = "/etc/ld.so.preload";

/// What is shown of an image. Paths are relative to its root, and in the order in which they are made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ImageParts {
    /// Entries that are shown as they are.
    #[serde(with = "skep_provider::paths::many")]
    pub pieces: Vec<PathBuf>,
    /// Directories that were taken apart.
    #[serde(with = "skep_provider::paths::many")]
    pub directories: Vec<PathBuf>,
    /// Links in them.
    pub links: Vec<Link>,
    /// Places in the view that are not the image's.
    #[serde(with = "skep_provider::paths::many")]
    pub places: Vec<PathBuf>,
    /// Index of the first piece among the sources; where a guest sees the image, of the whole.
    pub from: usize,
    /// Whether a guest sees it: then QEMU runs in the host's view, and the image stands beside it.
    pub for_guest: bool,
    /// Where files stand that init brings along; their sources follow the pieces.
    pub brought: Vec<String>,
}

/// What a sandbox shows of an image, and its sources.
pub fn parts(
    spec: &RunSpec,
    vessel: &Vessel,
    root: &Path,
    sources: &mut Vec<SourceSpec>,
) -> Result<ImageParts, Failure> {
    let mut parts = look(root, places(spec))?;
    parts.from = sources.len();
    parts.for_guest = vessel.machine().is_some();
    let plain = |path: PathBuf| SourceSpec {
        path,
        owners: Owners::Plain,
        below: Below::Excluded,
        identity: None,
    };
    if parts.for_guest {
        sources.push(plain(root.to_owned()));
        return Ok(parts);
    }
    sources.extend(parts.pieces.iter().map(|piece| plain(root.join(piece))));
    for (path, inside) in vessel.brought() {
        sources.push(plain(path.clone()));
        parts.brought.push(inside.clone());
    }
    Ok(parts)
}

/// Where the view has something that is not the system's.
fn places(spec: &RunSpec) -> Vec<PathBuf> {
    let own = ["/tmp", "/run", "/var/tmp"].map(PathBuf::from);
    let mounts = spec.policy.mounts.iter().map(|mount| mount.target.as_path().to_owned());
    own.into_iter().chain([spec.home.clone(), spec.project.clone()]).chain(mounts).collect()
}

fn look(root: &Path, places: Vec<PathBuf>) -> Result<ImageParts, Failure> {
    for place in &places {
        refuse_links(root, place)?;
    }
    let mut parts = ImageParts { places, ..ImageParts::default() };
    for name in names(root)? {
        if !OWN.iter().any(|own| name == *own) {
            parts.add(root, Path::new(&name))?;
        }
    }
    Ok(parts)
}

fn below(root: &Path, place: &Path) -> PathBuf {
    root.join(place.strip_prefix("/").unwrap_or(place))
}

fn refuse_links(root: &Path, place: &Path) -> Result<(), Failure> {
    let relative = place.strip_prefix("/").unwrap_or(place);
    let mut on_the_way: Vec<&Path> = relative.ancestors().collect();
    on_the_way.pop();
    let link = on_the_way.iter().rev().find(|path| root.join(path).is_symlink());
    match link {
        None => Ok(()),
        Some(link) => Err(Failure::missing(
            "this image",
            format!("it has a link at `/{}`, on the way to `{}`", link.display(), place.display()),
            "make it a directory in the image, and import it again",
        )),
    }
}

impl ImageParts {
    fn add(&mut self, root: &Path, path: &Path) -> Result<(), Failure> {
        let real = root.join(path);
        let kind = real.symlink_metadata().step(|| format!("look at `{}`", real.display()))?;
        if kind.is_symlink() {
            let points_to =
                std::fs::read_link(&real).step(|| format!("look at `{}`", real.display()))?;
            self.links.push(Link { at: path.to_owned(), points_to });
            return Ok(());
        }
        let shown = Path::new("/").join(path);
        let lacking = |place: &PathBuf| {
            place.starts_with(&shown) && *place != shown && !below(root, place).exists()
        };
        if !kind.is_dir() || !self.places.iter().any(lacking) {
            self.pieces.push(path.to_owned());
            return Ok(());
        }
        self.directories.push(path.to_owned());
        names(&real)?.iter().try_for_each(|name| self.add(root, &path.join(name)))
    }

    /// The steps that show it as the system of the view.
    pub fn system(&self, ops: &mut Vec<ViewOp>) {
        let at = |path: &PathBuf| Path::new("/").join(path);
        let directories = self.directories.iter();
        ops.extend(directories.map(|path| ViewOp::Directory { target: at(path), mode: 0o755 }));
        for Link { at: path, points_to } in &self.links {
            ops.push(ViewOp::Symlink { target: at(path), points_to: points_to.clone() });
        }
        for (index, piece) in self.pieces.iter().enumerate() {
            ops.push(ViewOp::Bind {
                source: self.from + index,
                target: at(piece),
                access: Access::Ro,
            });
        }
        ops.push(ViewOp::Mask { target: PRELOAD, how: super::plan::MaskKind::Hide });
    }

    /// What init brings along, once there is a place for it.
    pub fn programs(&self, ops: &mut Vec<ViewOp>) {
        for (index, inside) in self.brought.iter().enumerate() {
            ops.push(ViewOp::Bind {
                source: self.from + self.pieces.len() + index,
                target: inside.into(),
                access: Access::Ro,
            });
        }
    }

    /// The image beside the view, from which the share of a guest is made.
    pub fn beside(&self, ops: &mut Vec<ViewOp>) {
        ops.push(ViewOp::Bind {
            source: self.from,
            target: share::IMAGE.into(),
            access: Access::Ro,
        });
        ops.push(ViewOp::Directory { target: share::TREE.into(), mode: 0o755 });
    }

    /// The same for whoever shares it with a guest.
    pub fn shared(&self) -> share::SharedImage {
        let links = self.links.iter().map(|link| (link.at.clone(), link.points_to.clone()));
        share::SharedImage {
            pieces: self.pieces.clone(),
            directories: self.directories.clone(),
            links: links.collect(),
            places: self.places.clone(),
        }
    }
}

fn names(directory: &Path) -> Result<Vec<std::ffi::OsString>, Failure> {
    let listed = std::fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    let mut names: Vec<_> = listed.step(|| format!("list `{}`", directory.display()))?;
    if names.len() > MOST_ENTRIES {
        return Err(Failure::missing(
            "this image",
            format!("`{}` has {} entries and lacks a place", directory.display(), names.len()),
            "make the project's path, or that of the mount, a directory in the image",
        ));
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(directories: &[&str], links: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for directory in directories {
            std::fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        for (at, points_to) in links {
            std::os::unix::fs::symlink(points_to, root.path().join(at)).unwrap();
        }
        root
    }

    fn shown(root: &Path, place: &str) -> Result<ImageParts, Failure> {
        look(root, vec!["/var/tmp".into(), place.into()])
    }

    #[test]
    fn a_directory_that_lacks_a_place_is_taken_apart() {
        let directories = ["usr/bin", "home/agent", "var/tmp", "proc", "run/x", "srv/me/project"];
        let root = image(&directories, &[("bin", "usr/bin")]);
        let parts = shown(root.path(), "/home/me/project").unwrap();
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(parts.directories, paths(&["home"]));
        assert_eq!(parts.pieces, paths(&["home/agent", "srv", "usr", "var"]));
        assert_eq!(parts.links, [Link { at: "bin".into(), points_to: "usr/bin".into() }]);
        // One that is there is mounted over.
        let parts = shown(root.path(), "/srv/me/project").unwrap();
        assert!(parts.directories.is_empty() && parts.pieces.contains(&"home".into()));
    }

    #[test]
    fn a_link_on_the_way_to_a_place_is_refused() {
        for (link, place) in [("srv", "/srv/me"), ("var/tmp", "/p"), ("home/me", "/home/me")] {
            let root = image(&["var", "home"], &[(link, "/etc")]);
            assert!(shown(root.path(), place).is_err(), "{link}");
        }
    }
}
