//! The union of the upper and the layers: every path they speak of, and what the view shows there.
//!
//! The project is never walked here; its part of the view is what this union is silent about.

use crate::error::DeriveError;
use crate::markers::{Marked, Markers, Opacity};
use crate::spec::Trees;
use crate::tree::TreeRoot;
use rustix::fs::FileType;
use skep_types::RelPath;
use std::collections::BTreeMap;
use std::io;

/// What the union says of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Deleted.
    Gone,
    /// Something that is no directory, in this level.
    Leaf { level: usize },
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
}

/// Longest path that is looked at. The kernel takes 4,095 bytes; names that are put before or
/// behind it (a staging slot, an ignore file) must fit as well.
const LONGEST: usize = 3_500;

/// Every path of the union, without the root.
pub(crate) type Union = BTreeMap<RelPath, Seen>;

/// A directory still to be read: the levels that take part, topmost first.
struct Pending {
    path: RelPath,
    levels: Vec<(usize, Opacity)>,
    through: bool,
}

/// One level's say on a name.
struct Say {
    level: usize,
    whiteout: bool,
    directory: bool,
}

/// Reads the union. Nothing is opened but directories.
pub(crate) fn read(trees: &Trees, markers: Markers) -> Result<Union, DeriveError> {
    let root = RelPath::root();
    let mut levels = Vec::new();
    for (index, level) in trees.levels.iter().enumerate() {
        let opacity = markers.opacity(level, &root).map_err(|e| error(&root, e))?;
        levels.push((index, opacity));
        if opacity == Opacity::Opaque {
            break;
        }
    }
    let through = levels.iter().all(|(_, opacity)| *opacity != Opacity::Opaque);
    let mut pending = vec![Pending { path: root, levels, through }];
    let mut union = Union::new();
    while let Some(directory) = pending.pop() {
        for (name, says) in read_names(trees, markers, &directory)? {
            let path = directory
                .path
                .join(&name)
                .map_err(|e| error(&directory.path, io::Error::other(e)))?;
            let seen = if path.as_bytes().len() > LONGEST {
                Seen::TooDeep
            } else {
                decide(trees, markers, &directory, &path, &says, &mut pending)?
            };
            union.insert(path, seen);
        }
    }
    Ok(union)
}

fn error(path: &RelPath, source: io::Error) -> DeriveError {
    DeriveError::read("sandbox", path, source)
}

fn read_names(
    trees: &Trees,
    markers: Markers,
    directory: &Pending,
) -> Result<BTreeMap<Vec<u8>, Vec<Say>>, DeriveError> {
    let mut names: BTreeMap<Vec<u8>, Vec<Say>> = BTreeMap::new();
    for (index, opacity) in &directory.levels {
        let level = &trees.levels[*index];
        let path = &directory.path;
        for (name, kind) in level.list(path).map_err(|e| error(path, e))? {
            let kind = known_kind(level, path, &name, kind).map_err(|e| error(path, e))?;
            let marked =
                markers.read(level, path, *opacity, name, kind).map_err(|e| error(path, e))?;
            let (name, whiteout) = match marked {
                Marked::Internal => continue,
                Marked::Whiteout(name) => (name, true),
                Marked::Entry(name) => (name, false),
            };
            let directory = kind == FileType::Directory;
            let says = names.entry(name).or_default();
            match says.last() {
                // fuse-overlayfs may leave a whiteout beside the entry that took its place.
                Some(last) if last.level == *index && whiteout => {}
                Some(last) if last.level == *index => {
                    says.pop();
                    says.push(Say { level: *index, whiteout, directory });
                }
                _ => says.push(Say { level: *index, whiteout, directory }),
            }
        }
    }
    Ok(names)
}

/// Some filesystems leave the type out of a listing.
fn known_kind(
    level: &TreeRoot,
    parent: &RelPath,
    name: &[u8],
    kind: FileType,
) -> io::Result<FileType> {
    if kind != FileType::Unknown {
        return Ok(kind);
    }
    let stat = level.stat(&parent.join(name).map_err(io::Error::other)?)?;
    Ok(stat.map_or(kind, |stat| FileType::from_raw_mode(stat.st_mode)))
}

fn decide(
    trees: &Trees,
    markers: Markers,
    parent: &Pending,
    path: &RelPath,
    says: &[Say],
    pending: &mut Vec<Pending>,
) -> Result<Seen, DeriveError> {
    let Some(top) = says.first() else { return Ok(Seen::Gone) };
    if top.whiteout {
        return Ok(Seen::Gone);
    }
    if !top.directory {
        return Ok(Seen::Leaf { level: top.level });
    }
    let mut levels = Vec::new();
    let mut through = parent.through;
    for say in says {
        if say.whiteout || !say.directory {
            through = false;
            break;
        }
        let level = &trees.levels[say.level];
        let opacity = markers.opacity(level, path).map_err(|e| error(path, e))?;
        levels.push((say.level, opacity));
        if opacity == Opacity::Opaque {
            through = false;
            break;
        }
    }
    pending.push(Pending { path: path.clone(), levels, through });
    Ok(Seen::Dir { level: top.level, through })
}
