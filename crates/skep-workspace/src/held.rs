//! A tree whose directories are held open for the time of one look.
//!
//! A review asks about thousands of paths that have a few directories in common. Resolving each from
//! the root, several times, cost more than everything else. Here the directory above a path is
//! resolved once, from the pinned root and behind the same fence as in [`TreeRoot`]; a name in it is
//! then asked of the open directory, in one call and without a way of more than one name. Links are
//! not followed, and a name that another filesystem is mounted on is told by the number of its mount
//! (statx(2), `STATX_MNT_ID`) and refused, as openat2 does with `NO_XDEV`.
//!
//! What is different: a directory that is moved away meanwhile is looked at to the end, as what it
//! was when it was resolved. Whoever has to know that it still stands there resolves it anew: by
//! [`Held::forget`], or by asking the [`TreeRoot`], as the apply does.

use crate::tree::{Meta, Names, TreeRoot, means_absent, open_fenced, require_regular, stat_name};
use rustix::fs::{AtFlags, FileType, OFlags, RawDir, StatxFlags};
use rustix::io::Errno;
use skep_types::{ContentHash, EntryState, RelPath, SpecialKind};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// How many directories of a tree are held at a time. Paths come sorted, so that few are in use; and
/// there may be hundreds of trees.
const HELD: usize = 8;
/// Files up to this size are kept as they are read.
const SMALL: u64 = 64 << 10;
/// And so much of them in all.
const KEPT: u64 = 32 << 20;
/// Names are read from the kernel by so many bytes at a time; the longest takes less than 300.
const LISTING: usize = 32 << 10;

/// Bytes of small files that were read for their hash, found again under it: a diff needs them next.
#[derive(Debug)]
pub struct Kept {
    left: Cell<u64>,
    bytes: RefCell<HashMap<ContentHash, Arc<[u8]>>>,
}

impl Default for Kept {
    fn default() -> Self {
        Self { left: Cell::new(KEPT), bytes: RefCell::default() }
    }
}

impl Kept {
    /// The bytes with this hash, if they were kept.
    pub fn get(&self, hash: &ContentHash) -> Option<Arc<[u8]>> {
        self.bytes.borrow().get(hash).cloned()
    }

    fn has_room(&self, size: u64) -> bool {
        size <= SMALL.min(self.left.get())
    }

    fn put(&self, hash: ContentHash, bytes: &[u8]) {
        let size = bytes.len() as u64;
        if self.has_room(size) && self.bytes.borrow_mut().insert(hash, bytes.into()).is_none() {
            self.left.set(self.left.get() - size);
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Held<'a> {
    root: &'a TreeRoot,
    kept: Option<&'a Kept>,
    /// The one that was used last comes last.
    places: RefCell<Vec<Rc<Place>>>,
    exact_sizes: OnceCell<bool>,
}

/// A directory of the tree, or that there is none.
#[derive(Debug)]
pub(crate) struct Place {
    path: RelPath,
    found: Option<OwnedFd>,
    /// The number of the mount it is on, where the kernel tells.
    mount: OnceCell<Option<u64>>,
}

impl<'a> Held<'a> {
    /// Nothing of this tree is open yet but its root.
    pub fn new(root: &'a TreeRoot) -> Self {
        Self { root, kept: None, places: RefCell::default(), exact_sizes: OnceCell::new() }
    }

    /// The same; bytes of small files that are read are kept.
    pub fn keeping(root: &'a TreeRoot, kept: &'a Kept) -> Self {
        Self { kept: Some(kept), ..Self::new(root) }
    }

    /// The tree itself, which resolves every path anew.
    pub fn root(&self) -> &'a TreeRoot {
        self.root
    }

    /// Lets go of all directories: the next question resolves them anew.
    pub fn forget(&self) {
        self.places.borrow_mut().clear();
    }

    /// What `lstat` says of `path`; `None` when nothing of this tree is there.
    pub fn meta(&self, path: &RelPath) -> io::Result<Option<Meta>> {
        match split(path) {
            None => Ok(Some(Meta::of(&rustix::fs::fstat(self.root.fd())?))),
            Some((parent, name)) => self.place(parent)?.meta(name),
        }
    }

    /// What stands at `path`, with the hash of its bytes when it is a file.
    pub fn state(&self, path: &RelPath) -> io::Result<EntryState> {
        Ok(self.state_and_meta(path)?.0)
    }

    /// As [`Held::state`], with what `lstat` said *before* the bytes were read.
    pub fn state_and_meta(&self, path: &RelPath) -> io::Result<(EntryState, Option<Meta>)> {
        let Some(meta) = self.meta(path)? else { return Ok((EntryState::Absent, None)) };
        let special = |what| EntryState::Special { what };
        let state = match meta.kind() {
            FileType::RegularFile => return self.file_state(path, meta),
            FileType::Directory => EntryState::Dir { mode: meta.permissions() },
            FileType::Symlink => EntryState::Symlink { target: self.link_target(path)?.into() },
            FileType::Fifo => special(SpecialKind::Fifo),
            FileType::Socket => special(SpecialKind::Socket),
            FileType::CharacterDevice => special(SpecialKind::CharDevice),
            FileType::BlockDevice => special(SpecialKind::BlockDevice),
            FileType::Unknown => return Err(Errno::OPNOTSUPP.into()),
        };
        Ok((state, Some(meta)))
    }

    fn link_target(&self, path: &RelPath) -> io::Result<Vec<u8>> {
        let (parent, name) = split(path).ok_or(Errno::INVAL)?;
        let place = self.place(parent)?;
        let target = rustix::fs::readlinkat(place.fd()?, name, Vec::new())?;
        Ok(target.into_bytes())
    }

    fn file_state(&self, path: &RelPath, meta: Meta) -> io::Result<(EntryState, Option<Meta>)> {
        if meta.size == 0 && self.sizes_are_exact() {
            let (hash, mode) = (ContentHash::of(b""), meta.permissions());
            return Ok((EntryState::File { hash, size: 0, mode }, Some(meta)));
        }
        let (parent, name) = split(path).ok_or(Errno::ISDIR)?;
        let (file, meta) = self.place(parent)?.open_known(name, meta)?;
        let (hash, size) = self.hash(file, meta.size)?;
        Ok((EntryState::File { hash, size, mode: meta.permissions() }, Some(meta)))
    }

    /// Whether an empty file may be told by its size. Some filesystems (in user space, of the kernel's
    /// own) say zero and have bytes.
    fn sizes_are_exact(&self) -> bool {
        *self.exact_sizes.get_or_init(|| crate::remembered::can_be_remembered(self.root))
    }

    fn hash(&self, mut file: File, expected: u64) -> io::Result<(ContentHash, u64)> {
        let kept = self.kept.filter(|kept| kept.has_room(expected));
        let Some(kept) = kept else { return crate::holes::hash_file(&file, expected) };
        let bytes = read_about(&mut file, expected)?;
        let (hash, size) = (ContentHash::of(&bytes), bytes.len() as u64);
        kept.put(hash, &bytes);
        Ok((hash, size))
    }

    /// Opens a regular file for reading; see [`TreeRoot::open_file`].
    pub fn open_file(&self, path: &RelPath) -> io::Result<(File, Meta)> {
        let (parent, name) = split(path).ok_or(Errno::ISDIR)?;
        self.place(parent)?.open_file(name)
    }

    /// The bytes of the file at `path`; more than `limit` of them is an error
    /// ([`io::ErrorKind::FileTooLarge`]).
    pub fn read(&self, path: &RelPath, limit: u64) -> io::Result<Vec<u8>> {
        let (file, meta) = self.open_file(path)?;
        let bytes = read_about(&mut file.take(limit.saturating_add(1)), meta.size.min(limit))?;
        if bytes.len() as u64 > limit { Err(Errno::FBIG.into()) } else { Ok(bytes) }
    }

    /// The names in a directory with their types, in no order; `.` and `..` left out.
    pub fn list(&self, path: &RelPath) -> io::Result<Names> {
        self.enter(path)?.names()
    }

    /// Opens a directory to be listed, and holds it.
    pub(crate) fn enter(&self, path: &RelPath) -> io::Result<Rc<Place>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let fd = self.open(path.as_bytes(), flags)?;
        let place = Place { path: path.clone(), found: Some(fd), mount: OnceCell::new() };
        Ok(self.hold(place))
    }

    /// The directory at `path`, or that there is none.
    fn place(&self, path: &[u8]) -> io::Result<Rc<Place>> {
        if let Some(place) = self.held(path) {
            return Ok(place);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let found = match self.open(path, flags) {
            Ok(fd) => Some(fd),
            Err(error) if means_absent(&error) => None,
            Err(error) => return Err(error),
        };
        let path = RelPath::parse(path).map_err(io::Error::other)?;
        Ok(self.hold(Place { path, found, mount: OnceCell::new() }))
    }

    /// From the directory above, if that one is held; else from the root.
    fn open(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let above = split_bytes(path).and_then(|(parent, name)| Some((self.held(parent)?, name)));
        let (place, name);
        let (fd, way) = match above {
            Some(found) => {
                (place, name) = found;
                (place.fd()?, name)
            }
            None if path.is_empty() => (self.root.fd(), &b"."[..]),
            None => (self.root.fd(), path),
        };
        open_fenced(fd, Path::new(OsStr::from_bytes(way)), flags)
    }

    fn held(&self, path: &[u8]) -> Option<Rc<Place>> {
        let mut places = self.places.borrow_mut();
        let at = places.iter().rposition(|place| place.path.as_bytes() == path)?;
        if at + 1 < places.len() {
            let place = places.remove(at);
            places.push(place);
        }
        places.last().cloned()
    }

    fn hold(&self, place: Place) -> Rc<Place> {
        let mut places = self.places.borrow_mut();
        places.retain(|other| other.path != place.path);
        if places.len() == HELD {
            places.remove(0);
        }
        let place = Rc::new(place);
        places.push(Rc::clone(&place));
        place
    }
}

impl Place {
    /// The open directory.
    pub(crate) fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.found.as_ref().ok_or(Errno::NOENT)?.as_fd())
    }

    /// What `lstat` says of a name in it.
    pub(crate) fn meta(&self, name: &[u8]) -> io::Result<Option<Meta>> {
        let Some(fd) = &self.found else { return Ok(None) };
        let Some(mount) = self.mount(fd)? else { return slow_meta(fd, name) };
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        match rustix::fs::statx(fd, name, flags, WANTED) {
            Ok(found) if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 => slow_meta(fd, name),
            Ok(found) if found.stx_mnt_id != mount => Err(Errno::XDEV.into()),
            Ok(found) => Ok(Some(Meta::of_statx(&found))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn mount(&self, fd: &OwnedFd) -> io::Result<Option<u64>> {
        if let Some(mount) = self.mount.get() {
            return Ok(*mount);
        }
        let found = match rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID) {
            Ok(found) => Some(found),
            // A kernel or a fence that knows no statx.
            Err(Errno::NOSYS) => None,
            Err(errno) => return Err(errno.into()),
        };
        let told = found.filter(|found| found.stx_mask & StatxFlags::MNT_ID.bits() != 0);
        Ok(*self.mount.get_or_init(|| told.map(|found| found.stx_mnt_id)))
    }

    /// Opens the regular file of this name for reading. Anything else is refused without being
    /// opened: opening a FIFO or a device can block, or do something.
    pub(crate) fn open_file(&self, name: &[u8]) -> io::Result<(File, Meta)> {
        let before = self.meta(name)?.ok_or(Errno::NOENT)?;
        self.open_known(name, before)
    }

    /// The same, where it was just looked at.
    fn open_known(&self, name: &[u8], before: Meta) -> io::Result<(File, Meta)> {
        require_regular(before.mode)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = open_fenced(self.fd()?, Path::new(OsStr::from_bytes(name)), flags)?;
        let stat = rustix::fs::fstat(&file)?;
        require_regular(stat.st_mode)?;
        let opened = Meta::of(&stat);
        let same = (opened.device, opened.inode) == (before.device, before.inode);
        let made_ns = before.made_ns.filter(|_| same);
        Ok((File::from(file), Meta { made_ns, ..opened }))
    }

    /// The names in it with their types, in no order. Once, as it is not rewound.
    pub(crate) fn names(&self) -> io::Result<Names> {
        let fd = self.fd()?;
        let mut names = Vec::new();
        let mut buffer = Vec::with_capacity(LISTING);
        let mut entries = RawDir::new(fd, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next().transpose()? {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = match entry.file_type() {
                // Not every filesystem says it in its directories, see `tree::kind_of`.
                FileType::Unknown => stat_name(fd, name)?
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                known => known,
            };
            // One that is gone again has no type.
            if kind != FileType::Unknown {
                names.push((name.to_vec(), kind));
            }
        }
        Ok(names)
    }
}

/// Everything that is asked of an entry.
const WANTED: StatxFlags =
    StatxFlags::BASIC_STATS.union(StatxFlags::BTIME).union(StatxFlags::MNT_ID);

/// Where mounts have no numbers: the fence itself.
fn slow_meta(fd: &OwnedFd, name: &[u8]) -> io::Result<Option<Meta>> {
    let way = Path::new(OsStr::from_bytes(name));
    match open_fenced(fd.as_fd(), way, OFlags::PATH | OFlags::NOFOLLOW) {
        Ok(entry) => Meta::of_open(&entry).map(Some),
        Err(error) if means_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The directory above a path, and its name in it; `None` for the root.
fn split(path: &RelPath) -> Option<(&[u8], &[u8])> {
    split_bytes(path.as_bytes())
}

fn split_bytes(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.is_empty() {
        return None;
    }
    Some(match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    })
}

/// All that a reader gives, which is probably so much: one call for it, one for the end.
fn read_about(reader: &mut impl Read, expected: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(expected).unwrap_or(0).saturating_add(1)];
    let mut filled = 0;
    loop {
        if filled == bytes.len() {
            bytes.resize(bytes.len() * 2, 0);
        }
        match reader.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    /// A tree with everything in it, and names that lead nowhere.
    fn scene() -> (tempfile::TempDir, Vec<RelPath>) {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("real/deep")).unwrap();
        std::fs::write(at("real/file"), "bytes").unwrap();
        std::fs::write(at("real/empty"), "").unwrap();
        std::fs::write(at("real/deep/large"), vec![7; 2 * SMALL as usize]).unwrap();
        symlink("real", at("link")).unwrap();
        symlink("/etc/passwd", at("out")).unwrap();
        let fifo = at("real/fifo");
        rustix::fs::mknodat(rustix::fs::CWD, fifo, FileType::Fifo, rustix::fs::Mode::RWXU, 0)
            .unwrap();
        let names = "real real/file real/empty real/deep/large real/fifo link out link/file \
                     out/x real/file/below none none/below real/deep/none";
        let mut paths: Vec<RelPath> = names.split_whitespace().map(path).collect();
        paths.push(RelPath::root());
        (dir, paths)
    }

    #[test]
    fn says_of_every_path_what_the_tree_says() {
        let (dir, paths) = scene();
        let root = TreeRoot::open(dir.path()).unwrap();
        let kept = Kept::default();
        let held = Held::keeping(&root, &kept);
        // Twice: the second time directories are open, and bytes are kept.
        for path in paths.iter().chain(&paths) {
            let (state, stat) = root.state_and_stat(path).unwrap();
            let (found, meta) = held.state_and_meta(path).unwrap();
            assert_eq!(found, state, "{path}");
            assert_eq!(
                meta.map(|meta| Meta { made_ns: None, ..meta }),
                stat.map(|stat| Meta::of(&stat)),
                "{path}"
            );
            assert_eq!(held.open_file(path).is_ok(), root.open_file(path).is_ok(), "{path}");
        }
        assert_eq!(kept.get(&ContentHash::of(b"bytes")).unwrap().as_ref(), b"bytes");
        assert!(kept.get(&ContentHash::of(&vec![7; 2 * SMALL as usize])).is_none());
        let mut names = held.list(&path("real")).unwrap();
        names.sort_by(|one, other| one.0.cmp(&other.0));
        assert_eq!(names, root.list(&path("real")).unwrap());
    }

    #[test]
    fn a_directory_that_gave_way_is_left_when_it_is_looked_for_anew() {
        let (dir, _) = scene();
        let root = TreeRoot::open(dir.path()).unwrap();
        let held = Held::new(&root);
        assert!(held.meta(&path("real/file")).unwrap().is_some());
        std::fs::rename(dir.path().join("real"), dir.path().join("moved")).unwrap();
        symlink("/etc", dir.path().join("real")).unwrap();
        // What was resolved is the directory that was meant, and never what a link leads to.
        assert_eq!(held.read(&path("real/file"), 9).unwrap(), b"bytes");
        assert!(held.meta(&path("real/passwd")).unwrap().is_none());
        held.forget();
        assert!(held.meta(&path("real/file")).unwrap().is_none());
        assert!(held.meta(&path("real/passwd")).unwrap().is_none());
    }

    #[test]
    fn few_directories_are_open_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let root = TreeRoot::open(dir.path()).unwrap();
        let held = Held::new(&root);
        for number in 0..3 * HELD {
            std::fs::create_dir(dir.path().join(number.to_string())).unwrap();
            std::fs::write(dir.path().join(format!("{number}/file")), "").unwrap();
            assert!(held.meta(&path(&format!("{number}/file"))).unwrap().is_some());
        }
        assert_eq!(held.places.borrow().len(), HELD);
    }
}
