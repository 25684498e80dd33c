//! The staging directory: where new entries wait, and where old ones go first.
//!
//! It is on the project's mount, so that entries move by rename. It is made by us with mode 0700
//! under a name derived from the approval; a thing that waits under that name is never used.

use super::ApplyError;
use super::journal::{Intent, Mark, Place, Record};
use crate::tree::{TreeRoot, list_dir, stat_name};
use rustix::fs::{
    Access, AtFlags, FileType, Mode, OFlags, RenameFlags, StatxFlags, fstat, mkdirat, openat,
    renameat_with, unlinkat,
};
use rustix::io::Errno;
use skep_types::{ApprovalId, EntryState, RelPath};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The staging directory, open.
#[derive(Debug)]
pub(super) struct Staging {
    parent: OwnedFd,
    name: String,
    tree: TreeRoot,
    path: PathBuf,
}

/// The name of an approval's staging directory.
pub(super) fn staging_name(id: &ApprovalId) -> String {
    format!(".skep-{id}")
}

/// Chooses where the staging directory goes.
pub(super) fn choose_place(root: &TreeRoot) -> io::Result<Place> {
    let above = open_above(root)?;
    let same_mount = mount_of(root.fd())? == mount_of(above.as_fd())?;
    let is_itself = fstat(&above)?.st_ino == root.identity()?.1;
    let writable =
        rustix::fs::accessat(&above, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
    let beside = same_mount && !is_itself && writable.is_ok();
    Ok(if beside { Place::Beside } else { Place::Inside })
}

/// Device and mount. Both must agree for a rename: one device can be mounted twice (a bind mount
/// is a border for renames), and one btrfs mount has a device per subvolume.
fn mount_of(fd: BorrowedFd<'_>) -> io::Result<(u32, u32, u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
    let stat = rustix::fs::statx(fd, "", flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_mnt_id))
}

/// The directory above the pinned root: `..` of the descriptor, so a renamed path misleads nobody.
fn open_above(root: &TreeRoot) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(root.fd(), "..", flags, Mode::empty())?)
}

fn open_parent(root: &TreeRoot, place: Place) -> io::Result<OwnedFd> {
    match place {
        Place::Beside => open_above(root),
        Place::Inside => Ok(root.fd().try_clone_to_owned()?),
    }
}

/// Where the staging directory is, as text, for messages and for reading backups.
pub(super) fn staging_path(intent: &Intent) -> PathBuf {
    let project = intent.project.as_path();
    let parent = match intent.place {
        Place::Beside => project.parent().unwrap_or(project),
        Place::Inside => project,
    };
    parent.join(staging_name(&intent.id))
}

impl Staging {
    /// Makes it. Fails if anything has its name.
    pub fn make(root: &TreeRoot, intent: &Intent) -> io::Result<Self> {
        let parent = open_parent(root, intent.place)?;
        let name = staging_name(&intent.id);
        mkdirat(&parent, &name, Mode::RWXU)?;
        let opened = parent.try_clone().and_then(|parent| Self::open_in(parent, intent));
        match opened {
            Ok(Some(staging)) => Ok(staging),
            failed => {
                // It is empty; left here, nothing would find it again.
                let _ = unlinkat(&parent, &name, AtFlags::REMOVEDIR);
                Err(failed.err().unwrap_or_else(|| Errno::NOENT.into()))
            }
        }
    }

    /// Opens it; `None` if it is gone. One that is not ours alone is an error.
    pub fn open(root: &TreeRoot, intent: &Intent) -> io::Result<Option<Self>> {
        Self::open_in(open_parent(root, intent.place)?, intent)
    }

    /// Opens it by the recorded path, for when the project itself may be gone.
    pub fn open_recorded(intent: &Intent) -> io::Result<Option<Self>> {
        let path = staging_path(intent);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = path.parent().unwrap_or(Path::new("/"));
        match rustix::fs::open(parent, flags, Mode::empty()) {
            Ok(parent) => Self::open_in(parent, intent),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn open_in(parent: OwnedFd, intent: &Intent) -> io::Result<Option<Self>> {
        let name = staging_name(&intent.id);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match openat(&parent, &name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let stat = fstat(&fd)?;
        let ours = stat.st_uid == rustix::process::geteuid().as_raw();
        if !ours || stat.st_mode & 0o077 != 0 {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "a directory of another user has this name",
            ));
        }
        Ok(Some(Self { parent, name, tree: TreeRoot::from_fd(fd), path: staging_path(intent) }))
    }

    /// The descriptor; open for reading, so it can be synced.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.tree.fd()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn mark(&self) -> io::Result<Mark> {
        Ok(Mark::of(&fstat(self.fd())?))
    }

    /// What is in a record's slot.
    pub fn slot(&self, record: &Record) -> io::Result<Option<Mark>> {
        Ok(stat_name(self.fd(), record.slot_name().as_bytes())?.map(|stat| Mark::of(&stat)))
    }

    /// What is in a record's slot, with its hash.
    pub fn state(&self, record: &Record) -> io::Result<EntryState> {
        self.tree.state(&slot_path(record)?)
    }

    /// The names in the directory that is in a record's slot.
    pub fn list(&self, record: &Record) -> io::Result<Vec<(Vec<u8>, FileType)>> {
        self.tree.list(&slot_path(record)?)
    }

    /// Whether the step of this record is done: see the text of [`super`].
    pub fn is_moved(&self, record: &Record) -> io::Result<bool> {
        let slot = self.slot(record)?;
        Ok(match record.staged {
            Some(staged) => slot.is_none_or(|slot| slot.ino != staged.ino),
            None => slot.is_some(),
        })
    }

    /// Whether this filesystem can exchange two entries, and refuse to replace one.
    pub fn probe_exchange(&self) -> io::Result<bool> {
        let (one, two) = ("probe-1", "probe-2");
        mkdirat(self.fd(), one, Mode::RWXU)?;
        mkdirat(self.fd(), two, Mode::RWXU)?;
        let exchange = renameat_with(self.fd(), one, self.fd(), two, RenameFlags::EXCHANGE);
        let refuse = renameat_with(self.fd(), one, self.fd(), two, RenameFlags::NOREPLACE);
        unlinkat(self.fd(), one, AtFlags::REMOVEDIR)?;
        unlinkat(self.fd(), two, AtFlags::REMOVEDIR)?;
        match exchange {
            Ok(()) => Ok(refuse == Err(Errno::EXIST)),
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes what was staged and is still here, then the directory if it is empty; says whether
    /// it was. What was taken out of the project is never removed here.
    pub fn remove_staged(&self, records: &[Record]) -> io::Result<bool> {
        for record in records {
            let (Some(staged), Some(slot)) = (record.staged, self.slot(record)?) else {
                continue;
            };
            if staged.ino == slot.ino {
                remove_tree(self.fd(), record.slot_name().as_bytes())?;
            }
        }
        match unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes it with everything in it.
    pub fn remove(self) -> io::Result<()> {
        remove_tree(self.parent.as_fd(), self.name.as_bytes())
    }

    /// Moves the whole directory to another place, if that is on this mount and free.
    pub fn rename_to(&self, dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        Ok(renameat_with(&self.parent, &self.name, dir, name, RenameFlags::NOREPLACE)?)
    }
}

/// The path of a record's slot (and of its backup).
pub(super) fn slot_path(record: &Record) -> io::Result<RelPath> {
    RelPath::parse(record.slot_name().as_bytes()).map_err(io::Error::other)
}

/// Removes an entry and all below it, following nothing; succeeds if it is gone already.
pub(super) fn remove_tree(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    // An empty directory goes whatever its own permission bits say.
    match unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let child = TreeRoot::from_fd(openat(
        dir,
        name,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?);
    set_dir_mode(&child, &RelPath::root(), 0o700)?;
    let listing = child.open_beneath(&RelPath::root(), OFlags::RDONLY | OFlags::DIRECTORY)?;
    for (name, _) in list_dir(listing)? {
        remove_tree(child.fd(), &name)?;
    }
    Ok(unlinkat(dir, name, AtFlags::REMOVEDIR)?)
}

/// Sets the permission bits of a directory, also of one that we may not open for reading.
pub(super) fn set_dir_mode(root: &TreeRoot, path: &RelPath, mode: u32) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let handle = root.open_dir(path)?;
    debug_assert_eq!(FileType::from_raw_mode(fstat(&handle)?.st_mode), FileType::Directory);
    // fchmod(2) takes no O_PATH descriptor and fchmodat2(2) is young (Linux 6.6); the descriptor's
    // name in /proc leads to exactly the pinned directory.
    let name = format!("/proc/self/fd/{}", handle.as_raw_fd());
    Ok(rustix::fs::chmod(name, Mode::from_raw_mode(mode))?)
}

/// Wraps an error with the staging directory's path.
pub(super) fn own(
    operation: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> ApplyError + use<> {
    let path = path.to_owned();
    move |source| ApplyError::Own { operation, path, source }
}
