//! The store: images by what they are, and names for them.
//!
//! ```text
//! images/rootfs/names.json      name:tag → id
//!               lock            held by whoever changes names
//!               HASH/root       the files
//!               HASH/image.json what is known of them
//!               HASH/lock       held, shared, by every keeper whose sandbox shows it
//!               draft-PID       one in the making
//! ```
//!
//! An image has its place only when all of it is there and written down, and its name after that: whoever
//! is interrupted leaves a draft, which goes when its maker is gone and somebody imports again.

use crate::archive::{self, Counted, Plain};
use crate::{At, ImageError, reference, unpack};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// What an id begins with.
const FAMILY: &str = "blake3:";
/// As many digits of an id must be given at least.
const SHORTEST: usize = 12;

/// One image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// `blake3:…` of the archive it was made from.
    pub id: String,
    /// Names with tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Bytes in its files.
    pub size: u64,
    /// Devices, pipes and sockets of the archive that are not in it.
    #[serde(default)]
    pub left_out: u64,
}

/// One that has neither place nor name yet.
#[derive(Debug)]
pub struct Draft<'a> {
    images: &'a Images,
    place: Place,
    image: Image,
    name: String,
}

/// A directory of a draft; removed with it.
#[derive(Debug)]
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Draft<'_> {
    /// What it will be.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Gives it its place and its name.
    pub fn keep(self) -> Result<Image, ImageError> {
        self.images.settle(&self.place.0, &self.image)?;
        self.images.give_name(&self.name, &self.image)
    }
}

/// All of a state directory.
#[derive(Debug, Clone)]
pub struct Images {
    place: PathBuf,
}

type Names = BTreeMap<String, String>;

impl Images {
    /// Those of this state directory. Nothing is looked at or made.
    pub fn new(state_dir: &Path) -> Self {
        Self { place: state_dir.join("images/rootfs") }
    }

    /// All of them, by name.
    pub fn list(&self) -> Result<Vec<Image>, ImageError> {
        let step = || format!("list `{}`", self.place.display());
        let names = self.names()?;
        let mut images = Vec::new();
        let entries = match std::fs::read_dir(&self.place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(images),
            other => other.at(step)?,
        };
        for entry in entries {
            let entry = entry.at(step)?;
            images.extend(self.read(&entry.path(), &names));
        }
        images.sort_by(|one, other| (&one.tags, &one.id).cmp(&(&other.tags, &other.id)));
        Ok(images)
    }

    /// The image of this name or id, if it is here.
    pub fn find(&self, wanted: &str) -> Result<Option<Image>, ImageError> {
        reference::check(wanted)?;
        let names = self.names()?;
        let named = reference::whole(wanted).ok().map(|(name, tag)| format!("{name}:{tag}"));
        if let Some(id) = named.and_then(|name| names.get(&name)) {
            return Ok(self.read(&self.place_of(id), &names));
        }
        let digits = wanted.strip_prefix(FAMILY).unwrap_or(wanted);
        if digits.len() < SHORTEST || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(None);
        }
        let mut fitting =
            self.list()?.into_iter().filter(|image| hash_of(&image.id).starts_with(digits));
        match (fitting.next(), fitting.next()) {
            (Some(_), Some(_)) => Err(ImageError::Invalid(format!(
                "more than one image has an id that begins with `{digits}`"
            ))),
            (found, _) => Ok(found),
        }
    }

    /// Where an image's files are.
    pub fn root_of(&self, image: &Image) -> PathBuf {
        self.place_of(&image.id).join("root")
    }

    /// Makes an image from a root filesystem: a directory, or an archive of one. It has its name only
    /// when all of it is there.
    pub fn import(&self, source: &Path, wanted: &str) -> Result<Image, ImageError> {
        self.draft(source, wanted)?.keep()
    }

    /// The same, but for its place and name: it has them when it is kept.
    pub fn draft(&self, source: &Path, wanted: &str) -> Result<Draft<'_>, ImageError> {
        let (name, tag) = reference::whole(wanted)?;
        let file = archive::of(source)?;
        if archive::holds_images(&file).at(|| format!("read `{}`", source.display()))? {
            return Err(ImageError::Invalid(format!(
                "`{}` holds images with names of their own, not a root filesystem: leave out `{wanted}`",
                source.display()
            )));
        }
        self.forget_drafts();
        let place = Place(self.place.join(format!("draft-{}", std::process::id())));
        let image = self.make(file, &place.0)?;
        Ok(Draft { images: self, place, image, name: format!("{name}:{tag}") })
    }

    /// Removes a name, and the image with its last one; by its id, the image with all of them. Whether it
    /// was here.
    pub fn remove(&self, wanted: &str) -> Result<bool, ImageError> {
        if !self.place.is_dir() {
            reference::check(wanted)?;
            return Ok(false);
        }
        let _lock = self.lock()?;
        let mut names = self.names()?;
        let named = reference::whole(wanted).ok().map(|(name, tag)| format!("{name}:{tag}"));
        let Some(image) = self.find(wanted)? else {
            // A name of nothing, left by somebody who could not write names any more.
            let dangling = named.is_some_and(|name| names.remove(&name).is_some());
            return if dangling { self.write_names(&names).map(|()| true) } else { Ok(false) };
        };
        let one = named.filter(|name| names.get(name) == Some(&image.id));
        let last = image.tags.len() <= 1 || one.is_none();
        if !last {
            names.retain(|name, _| Some(name) != one.as_ref());
            self.write_names(&names)?;
            return Ok(true);
        }
        let Some(gone) = self.take_away(&image.id)? else {
            return Err(ImageError::InUse(wanted.to_owned()));
        };
        // First: on a full disk there is room for the names only afterwards.
        std::fs::remove_dir_all(&gone).at(|| format!("remove `{}`", gone.display()))?;
        names.retain(|_, id| *id != image.id);
        self.write_names(&names)?;
        Ok(true)
    }

    fn place_of(&self, id: &str) -> PathBuf {
        self.place.join(hash_of(id))
    }

    fn read(&self, place: &Path, names: &Names) -> Option<Image> {
        let bytes = std::fs::read(place.join("image.json")).ok()?;
        let image: Image = serde_json::from_slice(&bytes).ok()?;
        // A draft is none.
        if self.place_of(&image.id) != place {
            return None;
        }
        let own = names.iter().filter(|(_, id)| **id == image.id);
        Some(Image { tags: own.map(|(name, _)| name.clone()).collect(), ..image })
    }

    fn names(&self) -> Result<Names, ImageError> {
        let path = self.place.join("names.json");
        let step = || format!("read `{}`", path.display());
        match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Names::new()),
            read => serde_json::from_slice(&read.at(step)?).map_err(io::Error::other).at(step),
        }
    }

    fn write_names(&self, names: &Names) -> Result<(), ImageError> {
        let path = self.place.join("names.json");
        let bytes = serde_json::to_vec(names).map_err(io::Error::other);
        bytes
            .and_then(|bytes| write_whole(&path, &bytes))
            .at(|| format!("write `{}`", path.display()))
    }

    /// Whoever holds it changes names alone.
    fn lock(&self) -> Result<File, ImageError> {
        let path = self.place.join("lock");
        let step = || format!("lock `{}`", path.display());
        let file = File::options().create(true).append(true).open(&path).at(step)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive).at(step)?;
        Ok(file)
    }

    /// Unpacks an archive into a draft.
    fn make(&self, file: File, draft: &Path) -> Result<Image, ImageError> {
        let root = draft.join("root");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(draft)
            .and_then(|()| DirBuilder::new().mode(0o755).create(&root))
            .at(|| format!("make `{}`", root.display()))?;
        let mut bytes = Counted::new(Plain::of(file)?);
        let unpacked = unpack::unpack(&mut bytes, &root)?;
        io::copy(&mut bytes, &mut io::sink()).at(|| "read the rest of the archive".into())?;
        let (plain, hash) = bytes.into_hash();
        plain.finish()?;
        let hash = hash.ok_or_else(|| ImageError::Io {
            operation: "unpack the archive".into(),
            source: io::Error::other("it is cut short"),
        })?;
        if unpacked.entries == 0 {
            return Err(ImageError::Io {
                operation: "unpack the archive".into(),
                source: io::Error::other("there is nothing in it"),
            });
        }
        unpack::make_places(&root)?;
        Ok(Image {
            id: format!("{FAMILY}{hash}"),
            tags: Vec::new(),
            size: unpacked.size,
            left_out: unpacked.left_out,
        })
    }

    /// Gives a draft its place, unless the same is there.
    fn settle(&self, draft: &Path, image: &Image) -> Result<(), ImageError> {
        let place = self.place_of(&image.id);
        let step = || format!("keep the image in `{}`", place.display());
        let _lock = self.lock()?;
        if place.join("image.json").is_file() {
            return Ok(());
        }
        File::create(draft.join("lock")).at(step)?;
        let described = serde_json::to_vec(image).map_err(io::Error::other);
        described.and_then(|bytes| write_whole(&draft.join("image.json"), &bytes)).at(step)?;
        // All of it before its name: after a loss of power half of it must not seem whole.
        File::open(draft).and_then(|draft| Ok(rustix::fs::syncfs(&draft)?)).at(step)?;
        std::fs::rename(draft, &place).at(step)
    }

    /// What had the name and has no other goes, if nobody shows it.
    fn give_name(&self, name: &str, image: &Image) -> Result<Image, ImageError> {
        let _lock = self.lock()?;
        let mut names = self.names()?;
        let before = names.insert(name.to_owned(), image.id.clone());
        self.write_names(&names)?;
        let unnamed = before
            .filter(|before| !names.values().any(|id| id == before))
            .filter(|before| self.place_of(before).is_dir());
        if let Some(gone) = unnamed.map(|id| self.take_away(&id)).transpose()?.flatten() {
            std::fs::remove_dir_all(&gone).at(|| format!("remove `{}`", gone.display()))?;
        }
        let found = self.read(&self.place_of(&image.id), &names);
        found.ok_or_else(|| ImageError::Io {
            operation: format!("name the image `{name}`"),
            source: io::ErrorKind::NotFound.into(),
        })
    }

    /// Moves an image out of its place, for removal; `None` if a sandbox shows it.
    fn take_away(&self, id: &str) -> Result<Option<PathBuf>, ImageError> {
        let place = self.place_of(id);
        let step = || format!("remove `{}`", place.display());
        let lock = File::open(place.join("lock")).at(step)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            other => other.at(step)?,
        }
        let gone = self.place.join(format!("draft-{}-gone", std::process::id()));
        std::fs::rename(&place, &gone).at(step)?;
        Ok(Some(gone))
    }

    /// Takes away what those left who were killed.
    fn forget_drafts(&self) {
        for entry in std::fs::read_dir(&self.place).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let maker = name.strip_prefix("draft-").and_then(|rest| rest.split('-').next());
            if maker.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn hash_of(id: &str) -> &str {
    id.strip_prefix(FAMILY).unwrap_or(id)
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension(std::process::id().to_string());
    let mut file = File::create(&draft)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    let written = written.and_then(|()| std::fs::rename(&draft, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    written
}

/// Keeps an image, named by where its files are, from being removed for as long as what is returned is
/// open.
///
/// # Errors
/// When it is gone, or just going.
pub fn hold(root: &Path) -> io::Result<File> {
    let lock = File::open(root.with_file_name("lock"))?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared)?;
    // Moved away between the two.
    root.metadata().map(|_| lock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn tree(place: &Path, text: &str) -> PathBuf {
        let tree = place.join("tree");
        std::fs::create_dir_all(tree.join("bin")).unwrap();
        std::fs::write(tree.join("bin/sh"), text).unwrap();
        tree
    }

    #[test]
    fn an_image_has_names_and_goes_with_the_last() {
        let place = tempfile::tempdir().unwrap();
        let images = Images::new(place.path());
        assert_eq!(images.list().unwrap(), []);
        let tree = tree(place.path(), "one");
        let image = images.import(&tree, "small:1").unwrap();
        assert_eq!(images.import(&tree, "other").unwrap().tags, ["other:latest", "small:1"]);
        assert_eq!(images.find("other").unwrap().unwrap().id, image.id);
        for id in [&image.id, hash_of(&image.id), &hash_of(&image.id)[..12]] {
            assert_eq!(images.find(id).unwrap().unwrap().id, image.id);
        }
        assert_eq!(images.find("abc").unwrap(), None);
        assert!(images.remove("other").unwrap() && !images.remove("other").unwrap());
        let root = images.root_of(&image);
        assert_eq!(std::fs::read_to_string(root.join("bin/sh")).unwrap(), "one");
        let held = hold(&root).unwrap();
        assert!(matches!(images.remove("small:1"), Err(ImageError::InUse(_))));
        assert!(root.is_dir() && images.find("small:1").unwrap().is_some());
        drop(held);
        assert!(images.remove("small:1").unwrap());
        assert!(hold(&root).is_err());
        assert_eq!(images.list().unwrap(), []);
    }

    #[test]
    fn a_name_that_is_given_anew_leaves_nothing_behind() {
        let place = tempfile::tempdir().unwrap();
        let images = Images::new(place.path());
        let first = images.import(&tree(place.path(), "one"), "small:1").unwrap();
        let held = hold(&images.root_of(&first)).unwrap();
        let second = images.import(&tree(place.path(), "two!"), "small:1").unwrap();
        // The first is still shown by somebody.
        assert!(images.root_of(&first).is_dir());
        drop(held);
        images.import(&tree(place.path(), "three"), "small:1").unwrap();
        assert!(!images.root_of(&second).exists());
        assert!(images.remove(&first.id).unwrap());
        assert_eq!(images.list().unwrap().len(), 1);
    }

    #[test]
    fn a_name_of_nothing_can_be_removed_and_given_anew() {
        let place = tempfile::tempdir().unwrap();
        let images = Images::new(place.path());
        for _ in 0..2 {
            let image = images.import(&tree(place.path(), "one"), "small:1").unwrap();
            std::fs::remove_dir_all(images.place_of(&image.id)).unwrap();
            assert_eq!(images.find("small:1").unwrap(), None);
            assert!(images.import(&tree(place.path(), "two"), "small:1").is_ok());
            let image = images.find("small:1").unwrap().unwrap();
            std::fs::remove_dir_all(images.place_of(&image.id)).unwrap();
            assert!(images.remove("small:1").unwrap() && !images.remove("small:1").unwrap());
        }
    }

    #[test]
    fn a_draft_that_is_not_kept_changes_nothing() {
        let place = tempfile::tempdir().unwrap();
        let images = Images::new(place.path());
        let first = images.import(&tree(place.path(), "one"), "small:1").unwrap();
        drop(images.draft(&tree(place.path(), "two"), "small:1").unwrap());
        assert_eq!(images.find("small:1").unwrap().unwrap().id, first.id);
        assert_eq!(std::fs::read_dir(&images.place).unwrap().count(), 3);
    }

    #[test]
    fn half_an_archive_is_no_image() {
        let place = tempfile::tempdir().unwrap();
        let images = Images::new(place.path());
        let mut bytes = Vec::new();
        archive::of(&tree(place.path(), &"x".repeat(4000)))
            .unwrap()
            .read_to_end(&mut bytes)
            .unwrap();
        // In a file, between two entries, before the end.
        for length in [bytes.len() - 3000, 512, 1024, bytes.len() - 1024] {
            std::fs::write(place.path().join("half.tar"), &bytes[..length]).unwrap();
            assert!(images.import(&place.path().join("half.tar"), "half").is_err(), "{length}");
        }
        assert_eq!(images.list().unwrap(), []);
        std::fs::write(place.path().join("whole.tar"), &bytes).unwrap();
        images.import(&place.path().join("whole.tar"), "whole").unwrap();
        let left = std::fs::read_dir(place.path().join("images/rootfs")).unwrap();
        let drafts =
            left.flatten().filter(|one| one.file_name().to_string_lossy().starts_with("draft"));
        assert_eq!(drafts.count(), 0);
    }
}
