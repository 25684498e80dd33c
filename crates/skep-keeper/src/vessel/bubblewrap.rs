//! Init in namespaces that an installed `bwrap` makes.
//!
//! For hosts where a security module lets `bwrap` make user namespaces and nobody else. It is told
//! to show the host's tree as it is: init, which keeps its capabilities in the new user namespace,
//! then builds the same view with the same code as in the keeper's own namespaces.
//!
//! Started by root, `bwrap` would map root to itself, and real user 0 reads what root may read. So
//! it is given a user namespace with the unprivileged range, and enters it as one of its ids.

use crate::identity::IdMap;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::FdFlags;
use rustix::process::Signal;
use skep_sys::process::{Child, Namespaces, clone_with, execve};
use skep_types::NetworkMode;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Everything that `bwrap` is told.
pub struct Order<'a> {
    /// The program.
    pub bwrap: &'a Path,
    /// This one.
    pub skep: &'a Path,
    /// Who the processes are.
    pub map: IdMap,
    /// Whether they have a network of their own.
    pub network: NetworkMode,
    /// Where it says why it could not.
    pub said: BorrowedFd<'a>,
    /// The channel, which becomes init's standard input.
    pub channel: BorrowedFd<'a>,
    /// Wait for this before executing.
    pub gate: BorrowedFd<'a>,
}

/// Starts `bwrap`, which starts init.
pub fn start(order: &Order<'_>, namespace: Option<&OwnedFd>) -> io::Result<Child> {
    clone_with(Namespaces::NONE, || {
        let error = execute(order, namespace).err().unwrap_or_else(io::Error::last_os_error);
        let _ = rustix::io::write(order.said, format!("cannot execute bwrap: {error}").as_bytes());
        127
    })
}

fn execute(order: &Order<'_>, namespace: Option<&OwnedFd>) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::io::read(order.gate, &mut [0; 1])? != 1 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut words: Vec<Vec<u8>> = vec![order.bwrap.as_os_str().as_bytes().to_vec()];
    words.extend(arguments(order.map, order.network, namespace.map(|fd| fd.as_raw_fd())));
    words.push(b"--".to_vec());
    words.push(order.skep.as_os_str().as_bytes().to_vec());
    words.push(super::INIT_COMMAND.into());
    let words: Vec<CString> =
        words.into_iter().map(CString::new).collect::<Result<_, _>>().map_err(io::Error::other)?;
    if let Some(namespace) = namespace {
        rustix::io::fcntl_setfd(namespace, FdFlags::empty())?;
    }
    rustix::stdio::dup2_stdin(order.channel)?;
    rustix::stdio::dup2_stdout(order.said)?;
    rustix::stdio::dup2_stderr(order.said)?;
    Err(execve(&words[0], &words, &[]))
}

/// What stands before `--`.
fn arguments(map: IdMap, network: NetworkMode, namespace: Option<i32>) -> Vec<Vec<u8>> {
    let mut words: Vec<String> = match (map, namespace) {
        // Any id of the range but 0: bwrap takes 0 for "as before", and init changes to it anyway.
        (IdMap::Range, Some(namespace)) => {
            ["--userns", &namespace.to_string(), "--uid", "1", "--gid", "1"]
                .map(str::to_owned)
                .into()
        }
        _ => {
            let (uid, gid) = map.inside();
            ["--unshare-user", "--uid", &uid.to_string(), "--gid", &gid.to_string()]
                .map(str::to_owned)
                .into()
        }
    };
    let rest = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"];
    words.extend(rest.map(str::to_owned));
    if network != NetworkMode::Host {
        words.push("--unshare-net".into());
    }
    let rest = ["--die-with-parent", "--as-pid-1", "--cap-add", "ALL", "--dev-bind", "/", "/"];
    words.extend(rest.map(str::to_owned));
    words.into_iter().map(String::into_bytes).collect()
}

/// How much is told of what a program has said: why it ended it has said last.
const LAST_LINES: usize = 4;
const LAST_BYTES: i64 = 2048;

/// What a program has said last into this memory, on one line.
pub fn said(memory: &OwnedFd) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let mut bytes = Vec::new();
    let read = memory.try_clone().map(File::from).and_then(|mut file| {
        file.seek(SeekFrom::End(-LAST_BYTES)).or_else(|_| file.seek(SeekFrom::Start(0)))?;
        file.take(LAST_BYTES as u64).read_to_end(&mut bytes)
    });
    drop(read);
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("; ")
}

/// The gate is opened by one byte.
pub fn open_gate(gate: impl AsFd) -> io::Result<()> {
    rustix::io::write(gate, &[1]).map(drop).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(map: IdMap, network: NetworkMode, namespace: Option<i32>) -> String {
        let words = arguments(map, network, namespace);
        words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_last_words_of_a_program_are_told() {
        use std::io::Write;
        let memory = || {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            File::from(rustix::fs::memfd_create("said", flags).unwrap())
        };
        let mut short = memory();
        short.write_all(b"one\n\ntwo\n").unwrap();
        assert_eq!(said(&short.into()), "one; two");
        let mut long = memory();
        for number in 0..5000 {
            writeln!(long, "line {number}").unwrap();
        }
        assert_eq!(said(&long.into()), "line 4996; line 4997; line 4998; line 4999");
        assert_eq!(said(&memory().into()), "");
    }

    #[test]
    fn root_never_becomes_root_inside() {
        let words = words(IdMap::Range, NetworkMode::None, Some(7));
        assert!(words.starts_with("--userns 7 --uid 1 --gid 1 "), "{words}");
        assert!(!words.contains("--unshare-user"), "{words}");
    }

    #[test]
    fn a_user_keeps_its_ids_and_has_no_network() {
        let map = IdMap::Own { user: (1000, 1000), group: (100, 100), lent: None };
        let with = |network| words(map, network, None);
        assert!(with(NetworkMode::None).starts_with("--unshare-user --uid 1000 --gid 100 "));
        assert!(with(NetworkMode::None).contains("--unshare-net"));
        assert!(!with(NetworkMode::Host).contains("--unshare-net"));
    }
}
