//! Landlock as a second fence: should a mistake in the view, or a hole in the kernel's mounts,
//! show more of the file system than it ought to, this still holds.
//!
//! The rights are those of the newest interface this kernel and the `landlock` crate both know, and
//! every one of them is a hard requirement: the crate must not leave one out silently. A kernel
//! whose Landlock cannot say "may rename between directories" (before version 2) refuses every
//! such rename, which breaks ordinary work: there is no fence then, and [`FenceError`] says so.
//!
//! TCP is not restricted here: the network is the business of the network namespace.

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// What may be done below a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceAccess {
    /// Reading, listing and executing.
    Read,
    /// Everything but making device nodes and device requests.
    ReadWrite,
    /// Using devices: reading, writing, and their requests (`ioctl`).
    Device,
}

/// One rule: below this path, this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceRule {
    /// A file or directory of the view as it stands.
    pub path: PathBuf,
    /// What may be done there.
    pub access: FenceAccess,
}

impl FenceRule {
    /// Short for building lists of them.
    pub fn new(path: impl Into<PathBuf>, access: FenceAccess) -> Self {
        Self { path: path.into(), access }
    }
}

/// Whether processes outside the fence can be reached by signals and abstract sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceScope {
    /// Not restricted. For a fence that every exec puts on by itself: two of them would otherwise
    /// be strangers and could not signal each other.
    FilesOnly,
    /// Abstract sockets of others cannot be connected to, where the kernel has that (version 6).
    /// For execs that share the host's network, and with it the sockets of its session.
    FilesSockets,
    /// Only what is inside the same fence can be signalled or connected to by an abstract socket,
    /// where the kernel has that (version 6). For a fence that pid 1 puts on once, before it
    /// starts anything.
    FilesSignalsSockets,
}

/// Why there is no fence.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    /// Not in this kernel, or not enabled.
    #[error("this kernel has no Landlock")]
    Unavailable {
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// Too old to be useful.
    #[error("Landlock of this kernel (version {version}) refuses every rename between directories")]
    NoRefer {
        /// Its version.
        version: i32,
    },
    /// A path of a rule.
    #[error("cannot open `{}` for a Landlock rule", path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The rules were refused.
    #[error("cannot make the Landlock rules")]
    Rules {
        /// Why not.
        #[source]
        source: Box<RulesetError>,
    },
    /// They were not put on.
    #[error("cannot put on the Landlock rules")]
    PutOn {
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// A set of rules, made once, put on by any number of processes.
#[derive(Debug)]
pub struct Fence {
    rules: OwnedFd,
    version: i32,
    scope: FenceScope,
}

fn refused(source: RulesetError) -> FenceError {
    FenceError::Rules { source: Box::new(source) }
}

impl Fence {
    /// Makes the rules for the view as this process sees it. What no rule names is out of reach.
    pub fn prepare(rules: &[FenceRule], scope: FenceScope) -> Result<Self, FenceError> {
        let version = skep_sys::landlock::abi_version()
            .map_err(|source| FenceError::Unavailable { source })?;
        let abi = ABI::from(version);
        if abi < ABI::V2 {
            return Err(FenceError::NoRefer { version });
        }
        let scope = if abi >= ABI::V6 { scope } else { FenceScope::FilesOnly };
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(abi))
            .map_err(refused)?;
        let scopes = match scope {
            FenceScope::FilesOnly => BitFlags::EMPTY,
            FenceScope::FilesSockets => Scope::AbstractUnixSocket.into(),
            FenceScope::FilesSignalsSockets => Scope::from_all(abi),
        };
        if !scopes.is_empty() {
            ruleset = ruleset.scope(scopes).map_err(refused)?;
        }
        let mut created = ruleset.create().map_err(refused)?;
        for rule in rules {
            let (file, kind) = open_path(&rule.path)?;
            let beneath = PathBeneath::new(file, rights(rule.access, abi, kind))
                .set_compatibility(CompatLevel::HardRequirement);
            created = created.add_rule(beneath).map_err(refused)?;
        }
        // Every requirement is a hard one, so that what was made holds as a whole.
        let rules: Option<OwnedFd> = created.into();
        let missing = || FenceError::Unavailable { source: io::ErrorKind::Unsupported.into() };
        Ok(Self { rules: rules.ok_or_else(missing)?, version, scope })
    }

    /// Puts the fence on this process and all it starts, for good. Sets `no_new_privs`.
    pub fn restrict_self(&self) -> Result<(), FenceError> {
        rustix::thread::set_no_new_privs(true)
            .map_err(io::Error::from)
            .and_then(|()| skep_sys::landlock::restrict_self(self.rules.as_fd()))
            .map_err(|source| FenceError::PutOn { source })
    }

    /// The rules, for a process that puts them on itself.
    pub fn rules(&self) -> BorrowedFd<'_> {
        self.rules.as_fd()
    }

    /// For the report: `Landlock version 7, with signals and abstract sockets`.
    pub fn describe(&self) -> String {
        let scoped = match self.scope {
            FenceScope::FilesOnly => "",
            FenceScope::FilesSockets => ", with abstract sockets",
            FenceScope::FilesSignalsSockets => ", with signals and abstract sockets",
        };
        format!("Landlock version {}{scoped}", self.version)
    }
}

fn open_path(path: &Path) -> Result<(OwnedFd, FileType), FenceError> {
    let open = || {
        let file = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let kind = FileType::from_raw_mode(fstat(&file)?.st_mode);
        Ok((file, kind))
    };
    open().map_err(|source: rustix::io::Errno| FenceError::Open {
        path: path.to_owned(),
        source: source.into(),
    })
}

fn rights(access: FenceAccess, abi: ABI, kind: FileType) -> BitFlags<AccessFs> {
    let known = AccessFs::from_all(abi);
    let wanted = match access {
        FenceAccess::Read => AccessFs::from_read(abi),
        FenceAccess::ReadWrite => {
            known & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev)
        }
        FenceAccess::Device => {
            AccessFs::ReadFile
                | AccessFs::ReadDir
                | AccessFs::WriteFile
                | AccessFs::Truncate
                | AccessFs::IoctlDev
        }
    };
    // A rule for a file may not name rights that only directories have.
    let possible = if kind == FileType::Directory { known } else { AccessFs::from_file(abi) };
    wanted & possible
}
