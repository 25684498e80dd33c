//! The union of the upper and the layers: every path they speak of, and what the view shows there.
//!
//! The project is never walked here; its part of the view is what this union is silent about.

mod again;

pub(crate) use again::{Again, Earlier};

use crate::error::DeriveError;
use crate::held::{Held, Place};
use crate::markers::{Marked, Markers, Opacity};
use crate::tree::Names;
use rustix::fs::FileType;
use skep_types::RelPath;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

/// What the union says of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Deleted.
    Gone,
    /// Something that is no directory, in this level.
    Leaf { level: usize, special: bool },
    /// Something whose path is longer than can be opened; what is below is not looked at.
    TooDeep,
    /// A directory; `level` is the topmost one that has it (its mode counts).
    Dir { level: usize, through: bool },
}

impl Seen {
    /// Whether the project's entries below this path are out of sight.
    pub(crate) fn cuts(self) -> bool {
        !matches!(self, Self::Dir { through: true, .. })
    }

    /// Whether something is there that can be applied.
    pub(crate) fn lands(self) -> bool {
        matches!(self, Self::Leaf { special: false, .. } | Self::Dir { .. })
    }
}

/// The longest path that is looked at; what is deeper is one entry, whatever is in it. The kernel takes 4,095 bytes; names that are put before or
/// behind it (a staging slot, an ignore file) must fit as well.
pub const LONGEST_PATH: usize = 3_500;

/// Every path of the union, without the root, sorted by bytes: a list, as there may be a million.
#[derive(Debug, Default)]
pub(crate) struct Union(Vec<(RelPath, Seen)>);

impl Union {
    /// What is said of a path; nothing, where the project alone speaks.
    pub(crate) fn get(&self, path: &RelPath) -> Option<Seen> {
        let at = self.0.binary_search_by(|(other, _)| other.cmp(path)).ok()?;
        self.0.get(at).map(|(_, seen)| *seen)
    }

    /// Whether the project does not show at a path: something of the sandbox's is there, or above it and in the way.
    pub(crate) fn covers(&self, path: &RelPath) -> bool {
        let cut = |above: RelPath| self.get(&above).is_some_and(Seen::cuts);
        self.get(path).is_some() || path.ancestors().any(cut)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&RelPath, Seen)> {
        self.0.iter().map(|(path, seen)| (path, *seen))
    }

    pub(crate) fn into_paths(self) -> impl Iterator<Item = RelPath> {
        self.0.into_iter().map(|(path, _)| path)
    }
}

/// A directory still to be read.
#[derive(Debug, Clone)]
struct Pending {
    path: RelPath,
    /// Its place in the list; the root has none.
    at: Option<usize>,
    /// The levels that have it and are not covered by a mark above, topmost first.
    levels: Vec<usize>,
    through: bool,
}

/// A directory as one level has it.
struct Part {
    level: usize,
    place: Rc<Place>,
    opacity: Opacity,
}

/// One level's say on a name.
#[derive(Clone, Copy)]
struct Say {
    level: usize,
    whiteout: bool,
    kind: FileType,
}

/// Reads the union. Nothing is opened but directories.
pub(crate) fn read(levels: &[Held<'_>], markers: Markers) -> Result<Union, DeriveError> {
    read_with(levels, markers, None)
}

/// Reads the union without the entries of directories in which nothing came or went since an
/// earlier time, but with the directories among them.
pub(crate) fn read_again(
    levels: &[Held<'_>],
    markers: Markers,
    again: &mut Again<'_>,
) -> Result<Union, DeriveError> {
    read_with(levels, markers, Some(again))
}

fn read_with(
    levels: &[Held<'_>],
    markers: Markers,
    mut again: Option<&mut Again<'_>>,
) -> Result<Union, DeriveError> {
    let root = Pending {
        path: RelPath::root(),
        at: None,
        levels: (0..levels.len()).collect(),
        through: true,
    };
    let mut pending = vec![root];
    let mut list = Vec::new();
    while let Some(mut directory) = pending.pop() {
        let entry = again.as_mut().and_then(|again| again.enter(levels, &directory));
        if let Some(entry) = &entry
            && let Some(unchanged) = again.as_ref().and_then(|again| again.unchanged(entry))
        {
            unchanged.take_up(&directory, &mut list, &mut pending);
            continue;
        }
        let parts = open_parts(levels, markers, &mut directory)?;
        if let Some(again) = &mut again {
            again.has_read(&directory.path);
        }
        set_through(&mut list, directory.at, directory.through);
        let below = pending.len();
        each_name(&parts, markers, &directory.path, &mut |name, says| {
            let path = directory.path.join(&name).map_err(io::Error::other)?;
            let seen = match path.as_bytes().len() > LONGEST_PATH {
                true => Seen::TooDeep,
                false => decide(&directory, &path, says, list.len(), &mut pending),
            };
            list.push((path, seen));
            Ok(())
        })?;
        if let Some((again, entry)) = again.as_mut().zip(entry) {
            again.note(entry, directory.through, &pending[below..]);
        }
    }
    list.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    Ok(Union(list))
}

/// Whether the project shows through a directory is told when it is opened.
fn set_through(list: &mut [(RelPath, Seen)], at: Option<usize>, found: bool) {
    if let Some((_, Seen::Dir { through, .. })) = at.and_then(|at| list.get_mut(at)) {
        *through = found;
    }
}

fn error(path: &RelPath, source: io::Error) -> DeriveError {
    DeriveError::read("sandbox", path, source)
}

/// Opens a directory in each level that takes part, down to one that covers the rest.
fn open_parts(
    levels: &[Held<'_>],
    markers: Markers,
    directory: &mut Pending,
) -> Result<Vec<Part>, DeriveError> {
    let mut parts = Vec::with_capacity(directory.levels.len());
    for level in &directory.levels {
        let open = || {
            let place = levels[*level].enter(&directory.path)?;
            let opacity = markers.opacity(&place)?;
            Ok(Part { level: *level, place, opacity })
        };
        let part = open().map_err(|e| error(&directory.path, e))?;
        let opaque = part.opacity == Opacity::Opaque;
        parts.push(part);
        if opaque {
            directory.through = false;
            break;
        }
    }
    Ok(parts)
}

/// Takes a name.
type Take<'a> = dyn FnMut(Vec<u8>, &[Say]) -> io::Result<()> + 'a;

/// Calls `take` once for each name with what the levels say of it, topmost first.
fn each_name(
    parts: &[Part],
    markers: Markers,
    path: &RelPath,
    take: &mut Take<'_>,
) -> Result<(), DeriveError> {
    let error = |source| error(path, source);
    // Nearly always one level has a directory, and no two of its names are about the same.
    if let [part] = parts
        && !markers.are_names()
    {
        for (name, kind) in part.names().map_err(error)? {
            if let Some((name, say)) = part.say(markers, name, kind).map_err(error)? {
                take(name, &[say]).map_err(error)?;
            }
        }
        return Ok(());
    }
    let mut names: BTreeMap<Vec<u8>, Vec<Say>> = BTreeMap::new();
    for part in parts {
        for (name, kind) in part.names().map_err(error)? {
            let Some((name, say)) = part.say(markers, name, kind).map_err(error)? else { continue };
            let says = names.entry(name).or_default();
            match says.last_mut() {
                // fuse-overlayfs may leave a whiteout beside the entry that took its place.
                Some(last) if last.level == part.level && say.whiteout => {}
                Some(last) if last.level == part.level => *last = say,
                _ => says.push(say),
            }
        }
    }
    names.into_iter().try_for_each(|(name, says)| take(name, &says)).map_err(error)
}

impl Part {
    fn names(&self) -> io::Result<Names> {
        self.place.names()
    }

    /// What a name stands for; nothing, for a mark that is about its directory.
    fn say(
        &self,
        markers: Markers,
        name: Vec<u8>,
        kind: FileType,
    ) -> io::Result<Option<(Vec<u8>, Say)>> {
        let (name, whiteout) = match markers.read(&self.place, self.opacity, name, kind)? {
            Marked::Internal => return Ok(None),
            Marked::Whiteout(name) => (name, true),
            Marked::Entry(name) => (name, false),
        };
        Ok(Some((name, Say { level: self.level, whiteout, kind })))
    }
}

fn decide(
    parent: &Pending,
    path: &RelPath,
    says: &[Say],
    at: usize,
    pending: &mut Vec<Pending>,
) -> Seen {
    let Some(top) = says.first().filter(|top| !top.whiteout) else { return Seen::Gone };
    if top.kind != FileType::Directory {
        let special = !matches!(top.kind, FileType::RegularFile | FileType::Symlink);
        return Seen::Leaf { level: top.level, special };
    }
    let is_directory = |say: &&Say| !say.whiteout && say.kind == FileType::Directory;
    let levels: Vec<usize> = says.iter().take_while(is_directory).map(|say| say.level).collect();
    // Whether one of them covers the rest is told when it is opened.
    let through = parent.through && levels.len() == says.len();
    pending.push(Pending { path: path.clone(), at: Some(at), levels, through });
    Seen::Dir { level: top.level, through }
}
