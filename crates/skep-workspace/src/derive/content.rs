//! The bytes behind the states, and the hunks between them.

use super::judge::Entry;
use crate::base::BaseBytes;
use crate::base::memory::{Memory, Partial};
use crate::error::DeriveError;
use crate::held::Held;
use crate::hunk_ids::Origin;
use crate::hunks::{TextDiff, apply_hunks, diff_lines, diff_lines_since, is_binary, without_taken};
use crate::spec::HeldTrees;
use skep_types::{Change, ContentHash, EntryState, RelPath};

/// Reads content, up to a limit.
pub(crate) struct Contents<'a> {
    pub trees: &'a HeldTrees<'a>,
    pub memory: &'a Memory,
    pub limit: u64,
}

/// Content as a diff wants it.
enum Text {
    /// Nothing there, or no file: an empty text.
    Empty,
    Bytes(Vec<u8>),
    /// Above the limit, or not kept.
    TooLarge,
}

impl Contents<'_> {
    /// The base's bytes; `None` when it is no file, too large, or not kept.
    pub(crate) fn base(&self, entry: &Entry) -> Result<Option<Vec<u8>>, DeriveError> {
        match (entry.base.bytes, &entry.base.state) {
            (BaseBytes::Project, Some(state)) => self.project(&entry.path, state),
            (BaseBytes::Blob, Some(EntryState::File { hash, size, .. })) => {
                if *size > self.limit {
                    return Ok(None);
                }
                match self.memory.blob(hash)? {
                    None => self.standing(entry, hash),
                    kept => Ok(kept),
                }
            }
            _ => Ok(None),
        }
    }

    /// Bytes with this hash that stand on either side: the mode alone is another one there.
    fn standing(&self, entry: &Entry, hash: &ContentHash) -> Result<Option<Vec<u8>>, DeriveError> {
        let has =
            |state: &EntryState| matches!(state, EntryState::File { hash: has, .. } if has == hash);
        match () {
            () if has(&entry.project) => self.project(&entry.path, &entry.project),
            () if has(&entry.sandbox) => self.sandbox(entry),
            () => Ok(None),
        }
    }

    /// The project's bytes at `path`, which must still hash to what `state` says.
    pub(crate) fn project(
        &self,
        path: &RelPath,
        state: &EntryState,
    ) -> Result<Option<Vec<u8>>, DeriveError> {
        self.read("project", &self.trees.project, path, state)
    }

    /// The sandbox's bytes.
    pub(crate) fn sandbox(&self, entry: &Entry) -> Result<Option<Vec<u8>>, DeriveError> {
        self.inside(entry.level, &entry.path, &entry.sandbox)
    }

    /// The same of a state at a level.
    pub(crate) fn inside(
        &self,
        level: Option<usize>,
        path: &RelPath,
        state: &EntryState,
    ) -> Result<Option<Vec<u8>>, DeriveError> {
        match level {
            None => Ok(None),
            Some(level) => self.read("sandbox", &self.trees.levels[level], path, state),
        }
    }

    fn read(
        &self,
        side: &'static str,
        root: &Held<'_>,
        path: &RelPath,
        state: &EntryState,
    ) -> Result<Option<Vec<u8>>, DeriveError> {
        let EntryState::File { hash, size, .. } = state else { return Ok(None) };
        if *size > self.limit {
            return Ok(None);
        }
        if let Some(bytes) = self.trees.kept.get(hash) {
            return Ok(Some(bytes.to_vec()));
        }
        let bytes =
            root.read(path, self.limit).map_err(|source| DeriveError::read(side, path, source))?;
        if ContentHash::of(&bytes) == *hash {
            Ok(Some(bytes))
        } else {
            Err(DeriveError::Moved { path: path.clone() })
        }
    }

    /// Whether a file that is too large to be diffed is binary, by its first bytes.
    fn large_is_binary(&self, entry: &Entry) -> Result<bool, DeriveError> {
        use std::io::Read;
        let inside = entry.level.filter(|_| matches!(entry.sandbox, EntryState::File { .. }));
        let (side, root) = match inside {
            Some(level) => ("sandbox", &self.trees.levels[level]),
            None => ("project", &self.trees.project),
        };
        let error = |source| DeriveError::read(side, &entry.path, source);
        let (file, _) = match root.open_file(&entry.path) {
            Ok(opened) => opened,
            Err(_) if inside.is_none() => return Ok(false),
            Err(source) => return Err(error(source)),
        };
        let mut head = Vec::new();
        file.take(8000).read_to_end(&mut head).map_err(error)?;
        Ok(is_binary(&head))
    }

    /// Fills in what a change says of its content; how many lines were looked at for it.
    pub(crate) fn describe(&self, entry: &Entry, change: &mut Change) -> Result<u64, DeriveError> {
        // What is no file has no text: one in the place of a link or a directory is all new.
        let file = |state: &EntryState| matches!(state, EntryState::File { .. });
        if !file(&change.old) && !file(&change.new) {
            return Ok(0);
        }
        let old = self.text(&change.old, || self.old_bytes(entry))?;
        let new = self.text(&change.new, || self.sandbox(entry))?;
        let (old, new) = match (old, new) {
            (Text::TooLarge, _) | (_, Text::TooLarge) => {
                change.binary = self.large_is_binary(entry)?;
                change.too_large = !change.binary;
                return Ok(0);
            }
            (old, new) => (old.into_bytes(), new.into_bytes()),
        };
        if is_binary(&old) || is_binary(&new) {
            change.binary = true;
            return Ok(0);
        }
        let diff = self.diff(entry, &old, &new)?;
        (change.hunks, change.added, change.removed) = (diff.hunks, diff.added, diff.removed);
        let lines = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count() as u64;
        Ok(lines(&old) + lines(&new))
    }

    /// The bytes of what the change starts from (see [`Entry::old`]).
    fn old_bytes(&self, entry: &Entry) -> Result<Option<Vec<u8>>, DeriveError> {
        match entry.base.state {
            Some(_) => self.base(entry),
            None => self.project(&entry.path, &entry.project),
        }
    }

    fn text(
        &self,
        state: &EntryState,
        read: impl FnOnce() -> Result<Option<Vec<u8>>, DeriveError>,
    ) -> Result<Text, DeriveError> {
        match state {
            EntryState::File { size: 0, .. } => Ok(Text::Empty),
            EntryState::File { .. } => Ok(read()?.map_or(Text::TooLarge, Text::Bytes)),
            _ => Ok(Text::Empty),
        }
    }

    /// The hunks from the base; when some of a file's hunks were taken before and the sandbox has
    /// not touched it since, those that are left of the diff that was reviewed.
    pub(crate) fn diff(
        &self,
        entry: &Entry,
        old: &[u8],
        new: &[u8],
    ) -> Result<TextDiff, DeriveError> {
        let Some(partial) = &entry.base.partial else {
            return Ok(diff_lines(&entry.path, old, new));
        };
        let Some(root) = self.memory.blob(&partial.root)? else {
            return Ok(diff_lines(&entry.path, old, new));
        };
        let earlier = self.earlier(partial, &root)?;
        let mut origins: Vec<Origin<'_>> = earlier
            .iter()
            .zip(&partial.earlier)
            .map(|(bytes, step)| Origin { bytes, stretches: &step.stretches })
            .collect();
        if partial.new == ContentHash::of(new) {
            let reviewed = diff_lines_since(&entry.path, &origins, &root, new);
            let left = without_taken(reviewed, &partial.taken);
            let fits = apply_hunks(old, &left.hunks.iter().collect::<Vec<_>>());
            if fits.as_deref() == Ok(new) {
                return Ok(left);
            }
        }
        // The sandbox went on since: what was not taken keeps its id all the same.
        let last = Origin { bytes: &root, stretches: &partial.stretches };
        match last.became(old) {
            true => origins.insert(0, last),
            false => origins.clear(),
        }
        Ok(diff_lines_since(&entry.path, &origins, old, new))
    }

    /// The bases that `root` came from, as far as they are kept and led to it.
    fn earlier(&self, partial: &Partial, root: &[u8]) -> Result<Vec<Vec<u8>>, DeriveError> {
        let mut bases: Vec<Vec<u8>> = Vec::new();
        for step in &partial.earlier {
            let Some(bytes) = self.memory.blob(&step.base)? else { break };
            let led_to = bases.last().map_or(root, Vec::as_slice);
            if !(Origin { bytes: &bytes, stretches: &step.stretches }).became(led_to) {
                break;
            }
            bases.push(bytes);
        }
        Ok(bases)
    }
}

impl Text {
    fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Empty | Self::TooLarge => Vec::new(),
        }
    }
}
