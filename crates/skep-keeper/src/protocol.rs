//! What clients, the keeper and init say to each other.
//!
//! Between a client and the keeper: frames on a stream socket, a type byte, a length, and so many
//! bytes. The first frame is a [`Request`]; a [`Reply`] answers it. An attached exec goes on with
//! output frames one way and input frames the other, until the end.
//!
//! Between the keeper and init: one message per packet on a socket pair, descriptors attached.

use crate::failure::Failure;
use crate::keeper::Adoption;
use crate::network::inside::Doors;
use crate::view::fuse::FuseOrder;
use serde::{Deserialize, Serialize};
use skep_knock::Question;
use skep_provider::record::Begun;
use skep_provider::{Freshness, Stillness};
use skep_types::{
    ByteString, EnforcementReport, EntryState, ExecEnd, ExecId, ExecSpec, RelPath, SandboxName,
    TerminalSize,
};
use std::collections::BTreeMap;

/// Grows when a message changes its meaning, and when one is added or taken away. A keeper of another
/// version is left alone; it can be ended.
pub const VERSION: u32 = 3;

/// Longest frame. A request (command and environment) may be as large as the kernel takes: 2 MiB where
/// nobody raised the limit of the stack, of which JSON makes at most six times as much.
pub const MAX_FRAME: usize = 16 << 20;

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// JSON: [`Request`].
    Request = 1,
    /// JSON: `Result<Reply, Failure>`.
    Reply = 2,
    /// Bytes of standard output.
    Stdout = 3,
    /// Bytes of standard error.
    Stderr = 4,
    /// JSON: [`ExecEnd`].
    End = 5,
    /// Bytes for standard input.
    Stdin = 6,
    /// End of standard input.
    StdinEnd = 7,
    /// JSON: [`TerminalSize`].
    Resize = 8,
    /// JSON: a signal number.
    Signal = 9,
    /// JSON: [`ExecEnd`] of the last command: the keeper ends too, and closes the connection when nothing inside
    /// can change any more. Only said to whoever started the keeper.
    LastEnd = 10,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<Self> {
        use FrameKind::*;
        [Request, Reply, Stdout, Stderr, End, Stdin, StdinEnd, Resize, Signal, LastEnd]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// Appends a frame.
pub fn push_frame(out: &mut Vec<u8>, kind: FrameKind, payload: &[u8]) {
    out.push(kind as u8);
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(payload);
}

/// A frame that cannot be: unknown type, or too long.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a frame of type {kind} and length {length} is not part of the protocol")]
pub struct BadFrame {
    kind: u8,
    length: usize,
}

/// A frame taken apart: its kind, its payload, and how many bytes it took.
pub type ParsedFrame<'a> = (FrameKind, &'a [u8], usize);

/// Takes the first frame from `bytes`, if it is all there.
pub fn parse_frame(bytes: &[u8]) -> Result<Option<ParsedFrame<'_>>, BadFrame> {
    let Some((head, rest)) = bytes.split_at_checked(5) else { return Ok(None) };
    let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let bad = BadFrame { kind: head[0], length };
    let kind = FrameKind::from_byte(head[0]).ok_or_else(|| bad.clone())?;
    if length > MAX_FRAME {
        return Err(bad);
    }
    Ok(rest.get(..length).map(|payload| (kind, payload, 5 + length)))
}

/// What a client asks.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// The client's [`VERSION`].
    pub version: u32,
    /// What to do.
    pub operation: Operation,
}

/// What a keeper can do.
#[derive(Debug, Serialize, Deserialize)]
pub enum Operation {
    /// Run a command.
    Exec {
        /// Under this id.
        exec: ExecId,
        /// This one.
        command: Box<ExecSpec>,
        /// Whether this connection becomes its terminal.
        attach: bool,
        /// Whether the sandbox is of no use after it: then everything inside ends with it.
        #[serde(default)]
        last: bool,
    },
    /// Run a command that nobody has written down: the record comes first. A keeper that does not
    /// know this says that it is of another version, and nothing has happened.
    Record(Box<RecordOrder>),
    /// Signal every process of an exec.
    Signal {
        /// Which.
        exec: ExecId,
        /// Which signal.
        signal: i32,
    },
    /// Pause everything.
    Freeze,
    /// Go on.
    Thaw,
    /// Has everybody stood since they were paused?
    Stood,
    /// Show the project as it is, also what was replaced in it.
    Refresh,
    /// What is going on?
    Status,
    /// Put something into the workspace; a file's bytes come as a descriptor.
    Write {
        /// Where.
        path: RelPath,
        /// What.
        state: EntryState,
    },
    /// Reach what these rules allow from now on, and nothing else.
    Reach {
        /// All of them.
        rules: Vec<String>,
    },
    /// Forget a secret.
    Revoke {
        /// Its name.
        name: String,
    },
    /// Try from inside whether hosts can be reached; descriptor: where the findings are written.
    Knock {
        /// Host and port.
        targets: Vec<(String, u16)>,
    },
    /// It was made ahead, and is somebody's from now on.
    Adopt(Box<Adoption>),
    /// End everything.
    Stop,
}

/// A command that was asked for without the store.
#[derive(Debug, Serialize, Deserialize)]
pub struct RecordOrder {
    /// What the sandbox must be called.
    pub name: SandboxName,
    /// Under this id.
    pub exec: ExecId,
    /// This one.
    pub begun: Begun,
    /// Whether this connection becomes its terminal.
    pub attach: bool,
    /// Whether its input has ended before it begins.
    pub no_input: bool,
}

/// What a keeper answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// To `Status`.
    Status {
        /// Execs that have not ended.
        running: Vec<ExecId>,
        /// Whether it is frozen.
        frozen: bool,
    },
    /// To `Stood`.
    Stood(Stillness),
    /// To `Refresh`.
    Refreshed(Freshness),
    /// To `Reach` and `Revoke`.
    Reached {
        /// Connections that were cut.
        cut: usize,
    },
    /// To `Record`: not now, or not of this sandbox. Nothing has happened.
    AskTheStore,
    /// The keeper speaks another version.
    OtherVersion(u32),
}

/// From the keeper to init.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToInit {
    /// Some of the sources, as descriptors, in order (root only).
    Sources,
    /// The ids are mapped and the cgroup is joined; where sources come late, a second time when
    /// they are there.
    Go,
    /// The whole plan, for an init that was executed, or forked before there was one. Descriptor: the plan.
    Spec,
    /// The answer to `Serve`; descriptor: the mount.
    Served(Result<(), Failure>),
    /// The answer to `Connect`.
    Connected(Result<(), Failure>),
    /// Start a process. Descriptors: the order if it is too large for a packet, the cgroup files to
    /// join (`joins` of them), then standard input, output and error; with a terminal that is
    /// relayed, its input and its output; with any other none.
    Spawn {
        /// Under this id.
        exec: ExecId,
        /// How many cgroup files.
        joins: usize,
        /// With a terminal of this size.
        terminal: Option<TerminalSize>,
        /// What it shall be.
        order: Option<Box<SpawnOrder>>,
    },
    /// Signal an exec's process group; with `Everyone`, every process but init.
    Signal {
        /// Whom.
        whom: Whom,
        /// With what.
        signal: i32,
    },
    /// Try from inside whether hosts can be reached. Descriptor: where the findings are written.
    Knock(Question),
    /// The guest's connections are led by these rules from here on (where there is a guest).
    Rules(String),
    /// A relayed terminal has another size.
    Resize {
        /// Whose.
        exec: ExecId,
        /// Which size.
        size: TerminalSize,
    },
    /// End everything, then yourself (where no pid namespace does it).
    End,
    /// Stop every process but init, and answer when they stand (where there is no cgroup).
    Pause,
    /// Have those who were stopped stood since?
    Stood,
    /// Let go of what the kernel remembers of the project.
    Refresh,
    /// The same before a command, of which nobody has asked.
    LookAnew,
    /// If anybody may be outside the cgroups of these names, stop everyone, so that nobody can fork
    /// away from being moved; answer when they stand.
    Hold {
        /// Names of cgroups.
        inside: Vec<String>,
        /// Whether whoever is in them is frozen.
        frozen: bool,
    },
    /// Put something into the workspace. Descriptor: the [`WriteOrder`], then a file's bytes.
    Write,
}

/// Who gets a signal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Whom {
    /// The process group of an exec; for its end all of its processes, where they can be told from others'.
    Exec(ExecId),
    /// The same of the only exec that runs, while others have left processes behind: where its own cannot be
    /// told from those, everyone.
    OnlyExec(ExecId),
    /// All but init.
    Everyone,
}

/// From init to the keeper.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromInit {
    /// An executed init is there. Descriptor: a handle on it, where one can be sent.
    Here,
    /// What stands at the project's path, where somebody else has mounted it. Descriptor: that directory.
    Workspace,
    /// The view stands and was probed; with what else was seen. Descriptor: a handle on the process that is
    /// the machine, where there is one.
    Ready(EnforcementReport, BTreeMap<String, String>),
    /// It does not.
    Failed(Failure),
    /// Have this served by fuse-overlayfs; descriptors: init's user and mount namespace.
    Serve(FuseOrder),
    /// Lead connections to these doors and have somebody behind them; descriptors: the doors.
    Connect(Doors),
    /// The answer to `Rules`.
    Ruled(Result<(), Failure>),
    /// A process runs; descriptors: a handle on it, where its refused system calls are answered if
    /// they are noted, and the terminal's other end if it has one.
    Spawned {
        /// Which.
        exec: ExecId,
        /// Whether refused calls are noted.
        noted: bool,
    },
    /// It does not run.
    NotSpawned {
        /// Which.
        exec: ExecId,
        /// At which step.
        stage: SpawnStage,
        /// What the kernel said.
        errno: i32,
    },
    /// The main process of an exec ended.
    Ended {
        /// Which.
        exec: ExecId,
        /// Exit code.
        code: Option<i32>,
        /// Signal.
        signal: Option<i32>,
        /// Processor time of it and the children it waited for.
        cpu_ms: u64,
        /// Largest resident size.
        memory_peak: u64,
        /// Limits of a machine that were felt, which no group of ours counts.
        felt: Vec<String>,
    },
    /// The answer to a hold: whether everyone was stopped.
    Held(Result<bool, Failure>),
    /// The answer to `Stood`.
    Stood(Result<Stillness, Failure>),
    /// The answer to `Refresh`.
    Refreshed(Freshness),
    /// The answer to `LookAnew`.
    Looked(Freshness),
    /// The answer to a write, or to a pause.
    Done(Result<(), Failure>),
}

/// The steps between fork and exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum SpawnStage {
    /// Making the process.
    Fork,
    /// Session and terminal.
    Terminal,
    /// Joining the cgroup.
    Cgroup,
    /// The working directory.
    WorkingDirectory,
    /// Resource limits.
    Limits,
    /// Giving up privileges.
    Privileges,
    /// Landlock.
    Landlock,
    /// The system call filter.
    Seccomp,
    /// The program itself.
    Program,
}

impl SpawnStage {
    const ALL: [Self; 9] = [
        Self::Fork,
        Self::Terminal,
        Self::Cgroup,
        Self::WorkingDirectory,
        Self::Limits,
        Self::Privileges,
        Self::Landlock,
        Self::Seccomp,
        Self::Program,
    ];

    /// The stage with this number.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    /// What was being done.
    pub fn operation(self) -> &'static str {
        match self {
            Self::Fork => "make a process",
            Self::Terminal => "set up the terminal",
            Self::Cgroup => "join the cgroup",
            Self::WorkingDirectory => "enter the working directory",
            Self::Limits => "set the resource limits",
            Self::Privileges => "give up privileges",
            Self::Landlock => "raise the Landlock fence",
            Self::Seccomp => "install the system call filter",
            Self::Program => "run the program",
        }
    }
}

/// Everything a new process needs to know.
#[derive(Debug, Serialize, Deserialize)]
pub struct SpawnOrder {
    /// Command and arguments.
    pub argv: Vec<ByteString>,
    /// The whole environment.
    pub environment: BTreeMap<String, ByteString>,
    /// Where to start; absolute, inside.
    pub workdir: ByteString,
    /// The caller's file mode mask.
    pub umask: u32,
    /// Largest file it may write.
    pub file_size: Option<u64>,
    /// Open files.
    pub open_files: Option<u64>,
    /// Processor seconds per process, where no cgroup counts them.
    pub cpu_seconds: Option<u64>,
    /// Processes, where no cgroup counts them.
    pub processes: Option<u64>,
    /// Whether `ptrace` is allowed inside.
    pub allow_ptrace: bool,
    /// Whether init marks its processes, because no cgroup tells them from another exec's.
    pub marked: bool,
}

/// An order of more bytes travels as a file: a packet holds some times as much, in JSON.
const LARGE_ORDER: usize = 8 << 10;

impl SpawnOrder {
    /// Whether it is too large to travel in a packet.
    pub fn is_large(&self) -> bool {
        let words: usize = self.argv.iter().map(|word| word.as_bytes().len() + 8).sum();
        let variables = self.environment.iter();
        let variables = variables.map(|(name, value)| name.len() + value.as_bytes().len() + 8);
        words + variables.sum::<usize>() + self.workdir.as_bytes().len() > LARGE_ORDER
    }
}

/// Everything a write needs to know.
#[derive(Debug, Serialize, Deserialize)]
pub struct WriteOrder {
    /// Where, below the project.
    pub path: RelPath,
    /// What.
    pub state: EntryState,
}

/// What the caller of the keeper hears once, over a pipe, when it is up or not.
#[derive(Debug, Serialize, Deserialize)]
pub enum StartReport {
    /// It runs.
    Ready(EnforcementReport),
    /// It does not, and nothing is left.
    Failed(Failure),
}

/// Serialises a message; these types cannot fail to.
pub fn to_json<T: Serialize>(message: &T) -> Vec<u8> {
    written(message).unwrap_or_default()
}

/// A message as bytes, with room for most from the start: to grow takes longer than to write.
pub fn written<T: Serialize>(message: &T) -> serde_json::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(4 << 10);
    serde_json::to_writer(&mut bytes, message)?;
    Ok(bytes)
}

/// An end that no process produced.
pub fn no_process(reason: skep_types::EndReason, exit_code: i32, message: String) -> ExecEnd {
    ExecEnd { reason, message: Some(message), ..ExecEnd::exited(exit_code) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What can be asked is part of the version: whoever changes one line changes the other.
    #[test]
    fn every_operation_belongs_to_this_version() {
        let source = include_str!("protocol.rs");
        let (_, rest) = source.split_once("pub enum Operation {").unwrap();
        let (body, _) = rest.split_once("\n}\n").unwrap();
        let names: Vec<&str> = body
            .lines()
            .filter_map(|line| line.strip_prefix("    "))
            .filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase()))
            .map(|line| line.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap())
            .collect();
        let known = "Exec Record Signal Freeze Thaw Stood Refresh Status Write Reach Revoke Knock Adopt Stop";
        assert_eq!((VERSION, names.join(" ")), (3, known.to_owned()));
    }

    proptest! {
        #[test]
        fn frames_survive_any_split(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8)) {
            let mut bytes = Vec::new();
            for payload in &payloads {
                push_frame(&mut bytes, FrameKind::Stdout, payload);
            }
            let mut seen = Vec::new();
            let mut inbox: Vec<u8> = Vec::new();
            for byte in bytes {
                inbox.push(byte);
                while let Some((kind, payload, used)) = parse_frame(&inbox).unwrap() {
                    prop_assert_eq!(kind, FrameKind::Stdout);
                    seen.push(payload.to_vec());
                    inbox.drain(..used);
                }
            }
            prop_assert_eq!(seen, payloads);
        }

        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse_frame(&bytes);
        }
    }
}
