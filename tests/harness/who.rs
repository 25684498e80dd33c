//! Who calls skep.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// The account that tests make for themselves when they run as root.
const TEST_USER: &str = "skeptest";

/// The caller of skep in a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// The superuser.
    Root,
    /// An ordinary user: `skeptest` if the tests run as root, else whoever runs them.
    User { uid: u32, gid: u32 },
}

impl Who {
    /// Root, if the tests may be root.
    pub(crate) fn root() -> Result<Self, String> {
        if running_as_root() { Ok(Self::Root) } else { Err("root is needed".to_owned()) }
    }

    /// The ordinary user.
    pub(crate) fn user() -> Result<Self, String> {
        if !running_as_root() {
            let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid());
            return Ok(Self::User { uid, gid: gid.as_raw() });
        }
        if let Some(found) = look_up(TEST_USER) {
            return Ok(found);
        }
        // Another test may be making it at this moment: what counts is that it is there.
        let made = Command::new("useradd").args(["-m", TEST_USER]).output();
        look_up(TEST_USER).ok_or_else(|| format!("cannot make the user `{TEST_USER}`: {made:?}"))
    }

    /// User and group id.
    pub(crate) fn ids(self) -> (u32, u32) {
        match self {
            Self::Root => (0, 0),
            Self::User { uid, gid } => (uid, gid),
        }
    }

    /// Whether it is the superuser.
    pub(crate) fn is_root(self) -> bool {
        self == Self::Root
    }

    /// Lets a command run as this user, with no groups but its own.
    pub(crate) fn dress(self, command: &mut Command) {
        if let Self::User { uid, gid } = self
            && running_as_root()
        {
            command.uid(uid).gid(gid);
        }
    }

    /// Gives a path to this user.
    pub(crate) fn own(self, path: &Path) {
        let (uid, gid) = self.ids();
        std::os::unix::fs::lchown(path, Some(uid), Some(gid)).unwrap();
    }
}

/// Whether the tests themselves run as root.
pub(crate) fn running_as_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn look_up(name: &str) -> Option<Who> {
    let accounts = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = accounts.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut ids = line.split(':').skip(2);
    Some(Who::User { uid: ids.next()?.parse().ok()?, gid: ids.next()?.parse().ok()? })
}
