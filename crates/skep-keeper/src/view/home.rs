//! Credentials in the pieces of the home that are shown.
//!
//! A piece is shown because somebody named it, not for what else lies in it: `.config` is meant for
//! settings, and holds `.config/gh`. What the hide list names is not shown, where it is known to lie and
//! two levels below each piece; deeper nobody looks, because toolchains hold hundreds of thousands of
//! files. A piece that is itself on the list was asked for.
//!
//! Nothing is mounted over a secret: the kernel takes such a mount away as soon as somebody outside moves
//! another file into its place, and that is how every program writes a new token. A directory with a
//! secret in it is taken apart instead: each of the other entries is shown by itself, and the name of
//! the secret is not there, whatever becomes of it outside.

use crate::failure::{Failure, Step};
use skep_policy::HideRules;
use skep_provider::RunSpec;
use skep_types::RelPath;
use std::collections::BTreeSet;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How far below a piece is looked.
const LEVELS: u32 = 2;

/// How many entries a directory that is taken apart may have: each becomes a mount.
const MOST_ENTRIES: usize = 2000;

/// What of the home is shown. Paths are relative to it, and in the order in which they are made.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// What is shown as it is, with everything below.
    pub pieces: Vec<PathBuf>,
    /// Directories that were taken apart.
    pub directories: Vec<PathBuf>,
    /// Links in them.
    pub links: Vec<Link>,
}

/// A link, repeated.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Link {
    /// Where; relative to the home.
    #[serde(with = "skep_provider::paths::one")]
    pub at: PathBuf,
    /// What it says.
    #[serde(with = "skep_provider::paths::one")]
    pub points_to: PathBuf,
}

/// [`shown`], for whoever builds the view by other means; an error is said in words.
pub fn shown_in_words(spec: &RunSpec) -> Result<Shown, String> {
    let said = |failure| skep_types::chain(&skep_provider::ProviderError::from(failure));
    shown(spec).map_err(said)
}

/// The pieces that exist, without what must not be seen.
pub fn shown(spec: &RunSpec) -> Result<Shown, Failure> {
    let pieces = spec.policy.home.iter().map(|piece| piece.as_path().to_owned());
    let pieces: Vec<PathBuf> =
        pieces.filter(|piece| super::sources::exists(&spec.home.join(piece))).collect();
    let secrets = secrets(spec, &pieces)?;
    let mut shown = Shown::default();
    for piece in &pieces {
        shown.add(&spec.home, piece, &secrets)?;
    }
    Ok(shown)
}

impl Shown {
    fn add(&mut self, home: &Path, path: &Path, secrets: &[PathBuf]) -> Result<(), Failure> {
        let real = home.join(path);
        if secrets.contains(&real) || self.pieces.iter().any(|piece| piece == path) {
            return Ok(());
        }
        if let Ok(points_to) = std::fs::read_link(&real)
            && path.parent().is_some_and(|parent| self.directories.iter().any(|one| one == parent))
        {
            self.links.push(Link { at: path.to_owned(), points_to });
            return Ok(());
        }
        if !secrets.iter().any(|secret| secret.starts_with(&real)) {
            self.pieces.push(path.to_owned());
            return Ok(());
        }
        self.directories.push(path.to_owned());
        for name in names(&real, path)? {
            self.add(home, &path.join(name), secrets)?;
        }
        Ok(())
    }
}

/// What is in a directory that is taken apart. Whoever may not list it finds nothing there.
fn names(directory: &Path, piece: &Path) -> Result<Vec<std::ffi::OsString>, Failure> {
    let listed = std::fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    let mut names: Vec<_> = match listed {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Vec::new(),
        other => other.step(|| format!("list `{}`", directory.display()))?,
    };
    if names.len() > MOST_ENTRIES {
        return Err(Failure::missing(
            format!("`{}` of the home", piece.display()),
            format!("something that must not be seen lies in it, among {} others", names.len()),
            "name parts of it in `sandbox.home`",
        ));
    }
    names.sort();
    Ok(names)
}

/// What of the pieces must not be seen: absolute paths, none inside another.
fn secrets(spec: &RunSpec, pieces: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    if pieces.is_empty() {
        return Ok(Vec::new());
    }
    let rules =
        HideRules::of(&spec.policy).map_err(|error| Failure::invalid(skep_types::chain(&error)))?;
    let mut search = Search { home: &spec.home, pieces, rules: &rules, found: BTreeSet::new() };
    for piece in pieces {
        if search.hides(piece, true) {
            continue;
        }
        search.below(piece, LEVELS);
        let known = rules.builtin_entries().iter().map(|entry| Path::new(&entry.pattern));
        for path in known.filter(|path| path.starts_with(piece) && *path != piece.as_path()) {
            search.judge(path);
        }
    }
    let mut outermost: Vec<PathBuf> = Vec::new();
    // Sorted: what holds others comes before them.
    for path in search.found {
        if !outermost.iter().any(|above| path.starts_with(above)) {
            outermost.push(path);
        }
    }
    Ok(outermost)
}

struct Search<'a> {
    home: &'a Path,
    pieces: &'a [PathBuf],
    rules: &'a HideRules,
    found: BTreeSet<PathBuf>,
}

impl Search<'_> {
    fn hides(&self, path: &Path, is_dir: bool) -> bool {
        let path = RelPath::parse(path.as_os_str().as_bytes());
        path.is_ok_and(|path| self.rules.hides(&path, is_dir).is_some())
    }

    fn below(&mut self, directory: &Path, levels: u32) {
        if levels == 0 {
            return;
        }
        // What we may not list the inside may not either.
        let entries = std::fs::read_dir(self.home.join(directory)).into_iter().flatten().flatten();
        for entry in entries {
            let path = directory.join(entry.file_name());
            if self.judge(&path) && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.below(&path, levels - 1);
            }
        }
    }

    /// Notes a path if it is to be covered; whether what is below it may be looked at.
    fn judge(&mut self, path: &Path) -> bool {
        // One that is named is a piece of its own. A link shows what is shown anyway, or nothing.
        let kind = self.home.join(path).symlink_metadata().map(|metadata| metadata.file_type());
        let Some(kind) = kind.ok().filter(|kind| !kind.is_symlink()) else { return false };
        if self.pieces.iter().any(|piece| piece == path) {
            return false;
        }
        let hidden = self.hides(path, kind.is_dir());
        if hidden {
            self.found.insert(self.home.join(path));
        }
        !hidden
    }
}
