//! Where things lie in the state directory. Every name is derived from an id.

use skep_types::{ApprovalId, ByteString, ContentHash, LayerId, SandboxId, SandboxName};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// In the directory of a sandbox: when skep itself wrote into it.
pub(crate) const OWN_WRITES: &str = "own-writes";
/// In the directory of a fork, once its row says that it is one.
pub(crate) const FORKED: &str = "forked";

/// The state directory.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Opens the directory, making it (mode 0700) if it is not there and `may_make` does not object.
    ///
    /// A place that is refused is left as it was.
    pub fn open(root: &Path, may_make: impl FnOnce() -> io::Result<()>) -> io::Result<Self> {
        if !root.join("sandboxes").is_dir() {
            may_make()?;
            crate::state_place::check_filesystem(existing_part(root))?;
            match root.is_dir() {
                true => crate::state_place::check_unused(root)?,
                false => make_private(root)?,
            }
        }
        crate::state_place::check(root)?;
        let layout = Self { root: fs::canonicalize(root)? };
        let sandboxes = layout.sandboxes();
        if !sandboxes.is_dir() {
            make_private(&sandboxes)?;
            spread(&sandboxes);
        }
        for name in ["layers", "approvals", "trash", "locks"] {
            let path = layout.root.join(name);
            if !path.is_dir() {
                make_private(&path)?;
            }
        }
        Ok(layout)
    }

    /// The directory as it is, if it is there and may be used; nothing is made or changed in it.
    pub fn existing(root: &Path) -> Option<Self> {
        crate::state_place::is_fit(root).then(|| Self { root: root.to_owned() })
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Space kept back, so that removing works on a full disk.
    pub fn reserve(&self) -> PathBuf {
        self.root.join("reserve")
    }

    /// The database.
    pub fn database(&self) -> PathBuf {
        self.root.join("skep.db")
    }

    /// All sandboxes.
    pub fn sandboxes(&self) -> PathBuf {
        self.root.join("sandboxes")
    }

    /// One sandbox.
    pub fn sandbox(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes().join(id.as_str())
    }

    /// Is there while the processes of a sandbox are paused for a look.
    pub fn stilled(&self, id: &SandboxId) -> PathBuf {
        self.sandbox(id).join("stilled")
    }

    /// What is about to be written through the view, with the bases that belong to it.
    pub fn settling(&self, id: &SandboxId) -> PathBuf {
        self.sandbox(id).join("settling.json")
    }

    /// When skep itself wrote into the sandbox.
    pub fn own_writes(&self, id: &SandboxId) -> PathBuf {
        self.sandbox(id).join(OWN_WRITES)
    }

    /// Which sandboxes have records of execs that the store has not seen.
    pub fn news(&self) -> PathBuf {
        skep_provider::record::news_in(&self.root)
    }

    /// Records of runs that the store has not seen.
    pub fn runs(&self) -> PathBuf {
        self.root.join("runs")
    }

    /// Where the keeper of a sandbox is found by the sandbox's name.
    pub fn way(&self, name: &SandboxName) -> PathBuf {
        self.root.join("ways").join(name.as_str())
    }

    /// All frozen layers.
    pub fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    /// One frozen layer.
    pub fn layer(&self, id: &LayerId) -> PathBuf {
        self.layers().join(id.as_str())
    }

    /// The journal and backups of one approval.
    pub fn approval(&self, id: &ApprovalId) -> PathBuf {
        self.root.join("approvals").join(id.as_str())
    }

    /// Which approvals and undos are being applied, or were when whoever did it died; it is there only while there are some.
    pub fn applying(&self) -> PathBuf {
        self.root.join("applying")
    }

    /// What is on its way out.
    pub fn trash(&self) -> PathBuf {
        self.root.join("trash")
    }

    /// Directories of removed sandboxes that held nothing, removed when there is time.
    pub fn waste(&self) -> PathBuf {
        self.root.join("waste")
    }

    /// The directories of the next sandbox, made ahead.
    pub fn spare(&self) -> PathBuf {
        self.root.join("spare")
    }

    /// An empty file that was made ahead with them, for the record of the next run; it may be gone in a moment.
    pub fn blank_record(&self) -> Option<PathBuf> {
        crate::spare::blank_record(self)
    }

    /// Work that was put away before its sandbox was removed.
    pub fn archives(&self) -> PathBuf {
        self.root.join("archives")
    }

    /// What searches for secrets remember of projects.
    pub fn searched(&self) -> PathBuf {
        self.root.join("searched")
    }

    /// The key that receipts are signed with.
    pub fn receipt_key(&self) -> PathBuf {
        self.root.join("receipt-key")
    }

    /// The lock under which a project is changed.
    pub fn project_lock(&self, project: &ByteString) -> PathBuf {
        let name = ContentHash::of(project.as_bytes()).to_string();
        self.root.join("locks").join(format!("project-{name}"))
    }

    /// The directory that is locked while it is counted whether one more sandbox may be there.
    pub fn quota_lock(&self) -> PathBuf {
        self.root.join("locks")
    }

    /// The lock under which a dead maker's idempotency key is taken over.
    pub fn key_lock(&self) -> PathBuf {
        self.root.join("locks").join("keys")
    }
}

/// Asks the filesystem to put the directories made in `path` far from each other.
///
/// ext4 puts a directory beside its parent, and passes over every inode there that was freed in the
/// last minutes when it looks for a free one. Each sandbox frees a dozen: after some hundred of
/// them, or beside a build that cleans up, one new file took a millisecond. The mark is that of
/// directories like `/home`; a filesystem that does not know it has no need of it either.
pub(crate) fn spread(path: &Path) {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    let Ok(directory) = fs::File::open(path) else { return };
    if let Ok(flags) = ioctl_getflags(&directory) {
        let _ = ioctl_setflags(&directory, flags | IFlags::TOPDIR);
    }
}

/// As much of a path as is there.
pub fn existing_part(path: &Path) -> &Path {
    path.ancestors().find(|part| part.exists()).unwrap_or(Path::new("/"))
}

/// Whether something may stand at a path: a look that failed does not say that there is nothing.
pub(crate) fn may_be_there(path: &Path) -> bool {
    !matches!(path.try_exists(), Ok(false))
}

/// Whether a directory stands at a path; an error where that cannot be seen.
pub(crate) fn is_directory(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(found) => Ok(found.is_dir()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The same in a directory that is there.
pub(crate) fn make_private_in(path: &Path) -> io::Result<()> {
    match rustix::fs::mkdir(path, rustix::fs::Mode::RWXU) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        other => Ok(other?),
    }
}

/// Makes a directory that nobody else can look into; fine if it is there.
pub fn make_private(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).recursive(true).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}
