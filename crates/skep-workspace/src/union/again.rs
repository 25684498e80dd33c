//! Reading the union again: directories in which nothing came or went are not listed anew.
//!
//! A keeper reads the union at the end of every exec, to find what has just been changed. Listing
//! everything that was changed before would make an exec as slow as all the work before it was
//! large. A name that comes or goes changes the time of its directory, which no program can set; so
//! one question for each directory is enough. What is written into a file that is there already is
//! no matter of names, and no matter here.

use super::{Pending, Seen, set_through};
use crate::base::{self, Identity};
use crate::held::Held;
use skep_types::RelPath;
use std::collections::HashMap;

/// So many directories are remembered; the rest is listed each time.
const REMEMBERED: usize = 16_384;

/// What earlier readings found.
#[derive(Debug, Default)]
pub(crate) struct Earlier(HashMap<RelPath, Unchanged>);

/// A directory as it was listed.
#[derive(Debug)]
pub(super) struct Unchanged {
    stamp: Stamp,
    through: bool,
    /// The directories in it.
    below: Vec<Pending>,
}

/// What must be the same for a listing to be the same.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    levels: Vec<(usize, Identity)>,
    /// Whether the project shows through what is above it.
    through: bool,
}

/// One more reading, and what it listed.
#[derive(Debug)]
pub(crate) struct Again<'a> {
    earlier: &'a Earlier,
    /// Whatever comes later carries this time or a later one.
    begun: i128,
    listed: Vec<(RelPath, Unchanged)>,
    /// All that were listed, whether or not that tells anything the next time.
    read: Vec<RelPath>,
}

/// The directories that a reading listed.
#[derive(Debug)]
pub(crate) struct Listed(Vec<(RelPath, Unchanged)>);

/// A directory whose turn it is.
#[derive(Debug)]
pub(super) struct Entry {
    path: RelPath,
    stamp: Stamp,
    /// Whether a change after this would show: it would not, in the same tick of the clock.
    tells: bool,
}

impl Earlier {
    /// Takes up what was listed, but for the directories that must be listed again.
    pub(crate) fn learn(&mut self, listed: Listed, unsettled: impl Fn(&RelPath) -> bool) {
        for (path, unchanged) in listed.0 {
            if unsettled(&path) || self.0.len() >= REMEMBERED {
                self.0.remove(&path);
            } else {
                self.0.insert(path, unchanged);
            }
        }
    }

    /// Everything is listed the next time.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }
}

impl<'a> Again<'a> {
    pub(crate) fn new(earlier: &'a Earlier) -> Self {
        Self { earlier, begun: base::clock_ns(), listed: Vec::new(), read: Vec::new() }
    }

    /// What was listed, for [`Earlier::learn`], and every directory that was.
    pub(crate) fn into_listed(self) -> (Listed, Vec<RelPath>) {
        (Listed(self.listed), self.read)
    }

    pub(super) fn has_read(&mut self, directory: &RelPath) {
        self.read.push(directory.clone());
    }

    /// Nothing, where a directory cannot be asked: then it is listed, and that tells why.
    pub(super) fn enter(&self, levels: &[Held<'_>], directory: &Pending) -> Option<Entry> {
        let mut tells = true;
        let mut stamped = Vec::with_capacity(directory.levels.len());
        for level in &directory.levels {
            let meta = levels[*level].meta(&directory.path).ok().flatten()?;
            tells &= base::ctime_ns(&meta) < self.begun;
            stamped.push((*level, Identity::of(&meta)));
        }
        let stamp = Stamp { levels: stamped, through: directory.through };
        Some(Entry { path: directory.path.clone(), stamp, tells })
    }

    pub(super) fn unchanged(&self, entry: &Entry) -> Option<&'a Unchanged> {
        self.earlier.0.get(&entry.path).filter(|known| known.stamp == entry.stamp)
    }

    pub(super) fn note(&mut self, entry: Entry, through: bool, below: &[Pending]) {
        if entry.tells {
            let unchanged = Unchanged { stamp: entry.stamp, through, below: below.to_vec() };
            self.listed.push((entry.path, unchanged));
        }
    }
}

impl Unchanged {
    /// Says of `directory` what listing it would have said, without what is no directory in it.
    pub(super) fn take_up(
        &self,
        directory: &Pending,
        list: &mut Vec<(RelPath, Seen)>,
        pending: &mut Vec<Pending>,
    ) {
        set_through(list, directory.at, self.through);
        for below in &self.below {
            let Some(level) = below.levels.first().copied() else { continue };
            pending.push(Pending { at: Some(list.len()), ..below.clone() });
            list.push((below.path.clone(), Seen::Dir { level, through: below.through }));
        }
    }
}
