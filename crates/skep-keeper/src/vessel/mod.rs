//! What init is put into: how its process comes to be, and what stands around it.
//!
//! There is one keeper, one protocol and one init. Providers on this host differ only in the
//! vessel. In the keeper's own namespaces, with a machine in them or without, init is a fork of
//! the keeper. In every other vessel but the bare one it is `skep __init`, executed by somebody else (bubblewrap, an OCI runtime): it
//! finds the channel to the keeper as its standard input and gets its orders through it.

mod attended;
mod bare;
mod bubblewrap;
mod held;
mod stage;
mod without_cgroups;

pub use crate::network::{NO_RESOLV_CONF, RESOLV_CONF, hosts_file};
pub use crate::view::home::{Shown as ShownHome, shown_in_words as shown_home};
pub use crate::view::plan::{MASKED, MaskKind, SystemEntry};
pub use crate::view::sources::system_entries;
pub use attended::{Attended, DOOR, DOOR_SOCKET};
pub(crate) use attended::{Door, start as start_attended};
pub(crate) use bare::{
    PATIENCE as END_PATIENCE, end_family, signal_family, workspace as bare_workspace,
};
pub(crate) use bubblewrap::{Order as BubblewrapOrder, open_gate, said, start as start_bubblewrap};
pub(crate) use held::{Held, pid_of};
pub(crate) use stage::run as run_stage;

use skep_types::MachineSpec;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The hidden command that is init, when somebody else executes it.
pub const INIT_COMMAND: &str = "__init";
/// Where an OCI runtime finds everything, in a mount namespace that only it sees.
pub const STAGE: &str = "/run";
/// The bundle there.
pub const BUNDLE: &str = "/run/bundle";
/// The root filesystem there: the view, finished but for `/proc` and `/dev`.
pub const ROOT: &str = "/run/rootfs";
/// For the runtime's own state.
pub const RUNTIME_STATE: &str = "/run/runtime";
/// Where the view shows the program that is init.
pub const INIT_PROGRAM: &str = "/run/.skep-init";

/// The fact that tells which file a runtime was.
pub const RUNTIME_FILE: &str = "runtime_file";

/// What init is put into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vessel {
    /// Namespaces that the keeper makes.
    Namespaces,
    /// The same, with a guest in which the commands run.
    Machine(Box<MachineSpec>),
    /// Namespaces that an installed `bwrap` makes.
    Bubblewrap {
        /// Absolute.
        bwrap: PathBuf,
        /// This program, executed again as init.
        skep: PathBuf,
    },
    /// None: ordinary processes of the caller.
    Bare {
        /// Whether a mount namespace can be had, to show the workspace in the project's place.
        mounts: bool,
    },
    /// A container of an OCI runtime, which runs inside namespaces of the keeper's.
    Runtime(Box<Runtime>),
    /// A container that an engine outside makes.
    Attended(Box<Attended>),
}

/// An OCI runtime and what it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// Absolute.
    pub program: PathBuf,
    /// Arguments, program name excluded.
    pub arguments: Vec<String>,
    /// `config.json`.
    pub config: Vec<u8>,
    /// This program, executed again as init.
    pub skep: PathBuf,
    /// Files that init needs where nothing of the host's is: on the host, inside.
    pub brought: Vec<(PathBuf, String)>,
    /// The root filesystem that is shown instead of the host's system.
    pub image: Option<PathBuf>,
    /// Whose processes are inside.
    pub tasks: Tasks,
    /// Whether the runtime sees the host's cgroups.
    pub cgroups: Cgroups,
}

/// Whether a runtime sees the host's cgroups. It can write none of them, and needs none: limits are the keeper's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cgroups {
    /// It does, and leaves them alone.
    Seen,
    /// It would insist on using them.
    Hidden,
}

/// Where an image has the libraries that init brings along.
const LIBRARIES: &str = "/run/.skep-lib";

/// How init is executed where nothing of the host's is: by its own loader, the first of
/// `libraries`, with its own libraries. A static program needs none. The program itself is not
/// among the files.
pub fn brought_program(libraries: &[PathBuf]) -> (Vec<String>, Vec<(PathBuf, String)>) {
    let mut program = vec![INIT_PROGRAM.to_owned()];
    let inside = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        format!("{LIBRARIES}/{name}")
    };
    if let Some(loader) = libraries.first() {
        program.splice(0..0, [inside(loader), "--library-path".to_owned(), LIBRARIES.to_owned()]);
    }
    // Links are followed: a mount would be made where they lead to, under that name.
    let real = |path: &PathBuf| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    (program, libraries.iter().map(|library| (real(library), inside(library))).collect())
}

/// Whose processes those inside are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tasks {
    /// The host's kernel's: it counts, freezes and kills them one by one.
    Host,
    /// Another kernel's: the host knows only the whole. Descriptors go in and none comes out.
    Foreign,
}

impl Vessel {
    /// Whose processes are inside.
    pub fn tasks(&self) -> Tasks {
        match self {
            Self::Runtime(runtime) => runtime.tasks,
            Self::Namespaces
            | Self::Machine(_)
            | Self::Bubblewrap { .. }
            | Self::Bare { .. }
            | Self::Attended(_) => Tasks::Host,
        }
    }

    /// The machine that the commands run in.
    pub fn machine(&self) -> Option<&MachineSpec> {
        match self {
            Self::Machine(machine) => Some(machine),
            _ => None,
        }
    }

    /// This program, where the view has to show it because somebody inside executes it.
    pub fn init_program(&self) -> Option<&Path> {
        match self {
            Self::Runtime(runtime) => Some(&runtime.skep),
            _ => None,
        }
    }

    /// What it is made from, for whoever asks later.
    pub fn facts(&self) -> BTreeMap<String, String> {
        let text = |path: &Path| path.display().to_string();
        let image = self.image().and_then(Path::parent).and_then(Path::file_name);
        let image = image.map(|name| ("image", format!("blake3:{}", name.to_string_lossy())));
        let facts = match self {
            Self::Machine(machine) => vec![
                ("accelerator", machine.accelerator.as_str().to_owned()),
                ("console", text(&machine.console)),
                ("guest_memory", format!("{} MiB", machine.memory_mib)),
                ("guest_processors", machine.processors.to_string()),
                ("kernel", text(&machine.kernel)),
                ("version", machine.version.clone()),
            ],
            Self::Runtime(runtime) => {
                let file = crate::kept::file_identity(&runtime.program);
                vec![("runtime", text(&runtime.program)), (RUNTIME_FILE, file)]
            }
            _ => Vec::new(),
        };
        facts.into_iter().chain(image).map(|(name, fact)| (name.to_owned(), fact)).collect()
    }

    /// What init brings along besides itself: on the host, inside.
    pub fn brought(&self) -> &[(PathBuf, String)] {
        match self {
            Self::Runtime(runtime) => &runtime.brought,
            _ => &[],
        }
    }

    /// The root filesystem of an image that the keeper shows.
    pub fn image(&self) -> Option<&Path> {
        match self {
            Self::Runtime(runtime) => runtime.image.as_deref(),
            Self::Machine(machine) => machine.image.as_deref(),
            _ => None,
        }
    }

    /// Whether servers inside can be reached through the sandbox's network namespace.
    pub fn has_ports(&self) -> bool {
        match self {
            Self::Namespaces | Self::Bubblewrap { .. } => true,
            Self::Runtime(runtime) => runtime.tasks == Tasks::Host,
            Self::Machine(_) | Self::Bare { .. } | Self::Attended(_) => false,
        }
    }

    /// Whether nothing isolates the processes.
    pub fn is_bare(&self) -> bool {
        matches!(self, Self::Bare { .. })
    }

    /// Whether the workspace stands elsewhere than at the project's path.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self, Self::Bare { mounts: false })
    }
}
