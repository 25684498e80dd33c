//! Credentials in the pieces of the home that are shown.
//!
//! A piece is shown because somebody named it, not for what else lies in it: `.config` is meant for
//! settings, and holds `.config/gh`. What the hide list names is covered, where it is known to lie and
//! two levels below each piece; deeper nobody looks, because toolchains hold hundreds of thousands of
//! files. A piece that is itself on the list was asked for.

use crate::failure::Failure;
use skep_policy::HideRules;
use skep_provider::RunSpec;
use skep_types::RelPath;
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How far below a piece is looked.
const LEVELS: u32 = 2;

/// [`secrets`] of all pieces that exist, for whoever builds the view by other means; an error is said in
/// words.
pub fn shown_secrets(spec: &RunSpec) -> Result<Vec<PathBuf>, String> {
    let pieces = spec.policy.home.iter().map(|piece| piece.as_path().to_owned());
    let pieces: Vec<PathBuf> =
        pieces.filter(|piece| super::sources::exists(&spec.home.join(piece))).collect();
    let said = |failure| skep_types::chain(&skep_provider::ProviderError::from(failure));
    secrets(spec, &pieces).map_err(said)
}

/// What of the pieces must not be seen: absolute paths, none inside another.
pub fn secrets(spec: &RunSpec, pieces: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
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
