//! What the host and the guest say to each other over one serial line.
//!
//! A frame is a line number, a kind, a length and so many bytes. Line 0 is the machine itself;
//! every other line is one exec, or, if the guest has opened it, one connection or question. Nobody may flood a line: whoever sends bytes of a stream may be
//! at most [`WINDOW`] bytes ahead of what the other side said it has passed on, so that one exec
//! that nobody reads from does not hold up the others.
//!
//! Questions on line 0 have numbers, and an answer names the question: one that comes after nobody waited
//! for it any more is not taken for the answer to the next.

use serde::{Deserialize, Serialize};
use skep_types::{ByteString, TerminalSize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Bytes of a stream that may be on their way.
pub const WINDOW: usize = 256 << 10;

/// Longest payload: a command with its environment may be as large as the kernel takes.
pub const MAX_PAYLOAD: usize = 8 << 20;

/// Bytes of a stream that travel in one frame.
pub const PIECE: usize = 32 << 10;

const HEADER: usize = 9;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $byte:literal;)*) => {
        /// What a frame holds.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $name = $byte,)* }

        impl Kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

kinds! {
    /// Guest, line 0: it is up. JSON: [`Ready`].
    Ready = 1;
    /// Host: run this. JSON: [`Order`].
    Start = 2;
    /// Guest: it runs.
    Started = 3;
    /// Guest: it does not. JSON: [`NotStarted`].
    NotStarted = 4;
    /// Guest: bytes of standard output, or of the terminal.
    Stdout = 5;
    /// Guest: bytes of standard error.
    Stderr = 6;
    /// Guest: the end; nothing follows on this line. JSON: [`Outcome`].
    Ended = 7;
    /// Host: bytes for standard input.
    Stdin = 8;
    /// Host: end of standard input.
    StdinEnd = 9;
    /// Host: the terminal's size. JSON: [`TerminalSize`].
    Resize = 10;
    /// Host: a signal for the foreground processes. JSON: its number.
    Signal = 11;
    /// Host: end every process of this exec.
    Kill = 12;
    /// Either: so many more bytes were passed on. JSON: a number.
    Credit = 13;
    /// Host, line 0: stop every process and write everything back. JSON: the question's number.
    Freeze = 14;
    /// Guest, line 0: done. JSON: the number of the question that this answers.
    Frozen = 15;
    /// Host, line 0: go on.
    Thaw = 16;
    /// Host, line 0: this is your network. JSON: a number and a [`Network`].
    Network = 17;
    /// Guest, line 0: it stands, or not. JSON: that number and a [`Networked`].
    Networked = 18;
    /// Host, line 0: take in these rules. JSON: a number and text, as `nft` reads it.
    Rules = 19;
    /// Guest, line 0: done, or why not. JSON: that number and text or null.
    Ruled = 20;
    /// Guest, on a line of its own making: connect it to this. JSON: address and port.
    Dial = 21;
    /// Either: bytes of a connection.
    Bytes = 22;
    /// Either: nothing more will follow from here.
    BytesEnd = 23;
    /// Either: the connection is broken; nothing follows on this line.
    Reset = 24;
    /// Guest, on a line of its own making: a question about a name, as a datagram.
    Ask = 25;
    /// Host: the answer.
    Answer = 26;
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| *kind as u8 == byte)
    }
}

/// What is to run in the guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// The command, as the kernel gets it.
    pub argv: Vec<ByteString>,
    /// Its whole environment.
    pub environment: BTreeMap<String, ByteString>,
    /// Where it starts.
    pub workdir: ByteString,
    /// Its file mode mask.
    pub umask: u32,
    /// Who it is.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// With a terminal of this size.
    pub terminal: Option<TerminalSize>,
    /// Largest file, in bytes.
    pub file_size: Option<u64>,
    /// Open files.
    pub open_files: Option<u64>,
    /// Processes of this exec.
    pub processes: Option<u64>,
    /// Instead of the command: try to reach hosts. What is asked, and answered on standard output,
    /// is whatever the guest's init was given a function for.
    pub knock: Option<ByteString>,
}

/// The guest's network, told by the host: what the sandbox has, one kernel further in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Its own addresses that are no loopback addresses, one of each family.
    pub own: [IpAddr; 2],
    /// Port of the door for IPv4 connections.
    pub tcp4: u16,
    /// And for IPv6.
    pub tcp6: Option<u16>,
    /// Of the proxy.
    pub proxy: u16,
    /// Where names are asked for.
    pub dns: u16,
    /// The program that takes in rules, absolute.
    pub program: String,
    /// They.
    pub rules: String,
    /// Where nobody is: connecting there shows that connections are redirected.
    pub nowhere: Vec<SocketAddr>,
}

/// What became of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Networked {
    /// Why there is none.
    pub failure: Option<String>,
    /// Why only programs that know proxies get out, if so.
    pub unredirected: Option<String>,
}

/// The guest's first words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The configuration it was booted with, from its kernel command line.
    pub configuration: String,
    /// What it read through the share, at the place where the host put it.
    pub nonce: String,
    /// The inode of the project's root, as it found it there.
    pub project: u64,
    /// Its boot.
    pub boot_id: String,
    /// Its kernel.
    pub kernel: String,
    /// What went wrong, if it cannot work.
    pub failure: Option<String>,
}

/// Why a command did not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotStarted {
    /// Whether the working directory was the reason (else the program was).
    pub workdir: bool,
    /// What the guest's kernel said.
    pub errno: i32,
}

/// How an exec ended in the guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Exit code.
    pub code: Option<i32>,
    /// Signal.
    pub signal: Option<i32>,
    /// Processor time of it and its children.
    pub cpu_ms: u64,
    /// Largest resident size.
    pub memory_peak: u64,
    /// Whether the guest's kernel ended processes for want of memory meanwhile.
    pub starved: bool,
    /// Whether forks were refused.
    pub crowded: bool,
}

/// A frame that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a frame of kind {kind} and length {length} is not part of the protocol")]
pub struct BadFrame {
    kind: u8,
    length: usize,
}

/// A frame taken apart.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Which exec, or 0.
    pub line: u32,
    /// What it is.
    pub kind: Kind,
    /// What it says.
    pub payload: &'a [u8],
}

/// Appends a frame.
pub fn push(out: &mut Vec<u8>, line: u32, kind: Kind, payload: &[u8]) {
    out.extend_from_slice(&line.to_le_bytes());
    out.push(kind as u8);
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(payload);
}

/// Appends a frame that says something in JSON.
pub fn push_json<T: Serialize>(out: &mut Vec<u8>, line: u32, kind: Kind, value: &T) {
    // Plain data of our own always has a JSON form; an empty payload would be refused by the reader.
    push(out, line, kind, &serde_json::to_vec(value).unwrap_or_default());
}

/// Takes the first frame from `bytes` if it is all there, and says how many bytes it took.
pub fn parse(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, BadFrame> {
    let Some((head, rest)) = bytes.split_at_checked(HEADER) else { return Ok(None) };
    let line = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let length = u32::from_le_bytes([head[5], head[6], head[7], head[8]]) as usize;
    let bad = BadFrame { kind: head[4], length };
    let kind = Kind::from_byte(head[4]).ok_or_else(|| bad.clone())?;
    if length > MAX_PAYLOAD {
        return Err(bad);
    }
    Ok(rest.get(..length).map(|payload| (Frame { line, kind, payload }, HEADER + length)))
}

/// Bytes that arrive in pieces, and the frames in them.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    taken: usize,
}

impl Inbox {
    /// More bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame.
    pub fn take(&mut self) -> Result<Option<Frame<'_>>, BadFrame> {
        match parse(&self.bytes[self.taken..])? {
            Some((frame, length)) => {
                self.taken += length;
                Ok(Some(frame))
            }
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kind() -> impl Strategy<Value = Kind> {
        proptest::sample::select(Kind::ALL)
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in_however_they_are_cut(
            frames in proptest::collection::vec((any::<u32>(), kind(), proptest::collection::vec(any::<u8>(), 0..300)), 0..12),
            cut in 1_usize..50,
        ) {
            let mut bytes = Vec::new();
            for (line, kind, payload) in &frames {
                push(&mut bytes, *line, *kind, payload);
            }
            let mut inbox = Inbox::default();
            let mut seen = Vec::new();
            for piece in bytes.chunks(cut) {
                inbox.push(piece);
                while let Some(frame) = inbox.take().unwrap() {
                    seen.push((frame.line, frame.kind, frame.payload.to_vec()));
                }
            }
            prop_assert_eq!(seen, frames);
        }

        #[test]
        fn any_bytes_are_a_frame_an_error_or_unfinished(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some((_, length))) = parse(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }

    #[test]
    fn a_frame_longer_than_allowed_is_refused_before_it_is_read() {
        let mut bytes = vec![0, 0, 0, 0, Kind::Stdout as u8];
        bytes.extend_from_slice(&(MAX_PAYLOAD as u32 + 1).to_le_bytes());
        assert!(parse(&bytes).is_err());
    }
}
