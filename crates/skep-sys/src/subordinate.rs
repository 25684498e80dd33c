//! Subordinate ids: ranges that `/etc/subuid` and `/etc/subgid` lend to a user, put into the map of
//! a user namespace by `newuidmap` and `newgidmap`.
//!
//! The two programs are set-user-id, so they are taken from fixed places and never from `PATH`. A map
//! is written from outside, by a process that is not in the new namespace; the one that is in it
//! waits. Each side takes the end of the other for an error: nobody waits for somebody who is gone.

use crate::process::{Child, Namespaces, clone_with, is_single_threaded, wait_for};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::Signal;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// Where the two programs may be.
const PLACES: &[&str] = &["/usr/bin", "/bin"];
/// Most ids that are taken from a range: those that 16 bits name, without the first.
const WANTED: u32 = 0xffff;
/// Fewer than this are of no use: the users of a system start at 1, daemons and people above 100.
const LEAST: u32 = 1000;

/// Ids that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub start: u32,
    /// How many.
    pub count: u32,
}

/// What a user was lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent {
    /// User ids.
    pub users: Range,
    /// Group ids.
    pub groups: Range,
}

/// One line of an id map: inside, outside, how many.
pub type MapLine = (u32, u32, u32);

/// What the caller was lent, if it can be used: a range for users and one for groups, both programs,
/// and a process that may still gain what they are privileged with.
pub fn lent() -> Option<Lent> {
    let uid = rustix::process::getuid().as_raw();
    let may_gain = !rustix::thread::no_new_privs().unwrap_or(true);
    if uid == 0 || !may_gain || program("newuidmap").is_none() || program("newgidmap").is_none() {
        return None;
    }
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let name = name_of(&read("/etc/passwd"), uid);
    let range = |path| range_in(&read(path), name.as_deref(), uid);
    Some(Lent { users: range("/etc/subuid")?, groups: range("/etc/subgid")? })
}

fn program(name: &str) -> Option<String> {
    let mut places = PLACES.iter().map(|place| format!("{place}/{name}"));
    places.find(|path| Path::new(path).is_file())
}

fn name_of(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// The longest range of a user, cut to what is wanted. Lines name the user or its number.
fn range_in(text: &str, name: Option<&str>, uid: u32) -> Option<Range> {
    let ranges = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [owner, start, count] = fields[..] else { return None };
        if Some(owner) != name && owner.parse() != Ok(uid) {
            return None;
        }
        let (start, count) = (start.parse::<u32>().ok()?, count.trim().parse::<u32>().ok()?);
        start.checked_add(count)?;
        Some(Range { start, count })
    });
    let longest = ranges.filter(|range| range.start > 0).max_by_key(|range| range.count)?;
    let range = Range { count: longest.count.min(WANTED), ..longest };
    (range.count >= LEAST).then_some(range)
}

/// Writes the maps of a process that was just born into a user namespace and waits.
///
/// # Errors
/// With what the programs said, if they refuse, are killed, or the process is gone.
pub fn map_ids(pid: i32, users: &[MapLine], groups: &[MapLine]) -> io::Result<()> {
    // Groups first: once users are mapped the process can do things.
    run("newgidmap", pid, groups)?;
    run("newuidmap", pid, users)
}

fn run(name: &str, pid: i32, lines: &[MapLine]) -> io::Result<()> {
    let program = program(name)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("`{name}` is missing")))?;
    let mut command = Command::new(program);
    command.env_clear().current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
    command.arg(pid.to_string());
    for (inside, outside, count) in lines {
        command.args([inside.to_string(), outside.to_string(), count.to_string()]);
    }
    let ran = command.output()?;
    if ran.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ran.stderr).trim().to_owned();
    Err(io::Error::other(format!("`{name}` failed ({}): {said}", ran.status)))
}

/// Moves this process into a user namespace in which its own ids and those it was lent are mapped to
/// themselves: it stays who it is, and gains power over the files of exactly those ids.
///
/// A helper is started first, outside; it writes the maps when it is asked to (one byte) and says
/// when they are there (one byte). This process must have one thread.
pub fn enter_user_namespace(lent: Lent) -> io::Result<()> {
    if !is_single_threaded()? {
        return Err(io::Error::other(
            "cannot enter a user namespace: this process has several threads",
        ));
    }
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let same = |own: u32, range: Range| [(own, own, 1), (range.start, range.start, range.count)];
    let (users, groups) = (same(uid, lent.users), same(gid, lent.groups));
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let helper = clone_with(Namespaces::NONE, || {
        // The copy of the other end would keep this one from seeing its end.
        let _ = crate::process::close_all_but(&[theirs.as_fd()]);
        i32::from(help(theirs.as_fd(), || map_ids(pid, &users, &groups)).is_err())
    })?;
    drop(theirs);
    let entered = crate::process::unshare(Namespaces::USER).and_then(|()| ask(ours.as_fd()));
    drop(ours);
    let _ = wait_for(&helper);
    entered
}

/// The helper's part: waits to be asked, does it, says so. The end of the other side is an error.
fn help(socket: BorrowedFd<'_>, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    read_byte(socket)?;
    act()?;
    say(socket)
}

/// The other part: asks, and waits for the answer. The end of the helper is an error.
fn ask(socket: BorrowedFd<'_>) -> io::Result<()> {
    say(socket)?;
    read_byte(socket)
}

/// Without the signal that a plain write to somebody who is gone would bring.
fn say(socket: BorrowedFd<'_>) -> io::Result<()> {
    crate::message::send_with(socket, &[1], &[]).map(drop)
}

fn read_byte(socket: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        match rustix::io::read(socket, &mut [0; 1]) {
            Ok(0) => {
                let gone = "the other side ended before it answered";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, gone));
            }
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether the ranges can really be mapped: tried on a process that does nothing else.
pub fn can_map(lent: Lent) -> io::Result<()> {
    let (hold, let_go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let child = Waiting(clone_with(Namespaces::USER, || {
        let _ = crate::process::close_all_but(&[hold.as_fd()]);
        let _ = rustix::io::read(&hold, &mut [0; 1]);
        0
    })?);
    let line = |range: Range| [(1, range.start, range.count)];
    let mapped = map_ids(child.0.pid.as_raw_nonzero().get(), &line(lent.users), &line(lent.groups));
    drop(let_go);
    mapped
}

/// A child that is ended and reaped, whatever happens.
struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = crate::process::send_signal(&self.0.pidfd, Signal::KILL);
        let _ = wait_for(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::OwnedFd;

    #[test]
    fn a_range_is_found_by_name_or_number_and_only_if_it_is_of_use() {
        let text = "other:1:65536\nme:200000:500\nme:300000:70000\n1000:100000:65536\nbad:x:y\n";
        let found = range_in(text, Some("me"), 1000);
        assert_eq!(found, Some(Range { start: 300_000, count: WANTED }));
        assert_eq!(range_in("me:200000:500\n", Some("me"), 1000), None);
        assert_eq!(range_in("me:0:70000\n", Some("me"), 1000), None);
        assert_eq!(range_in("me:4294967295:2000\n", Some("me"), 1000), None);
        assert_eq!(range_in(text, None, 7), None);
        assert_eq!(name_of("root:x:0:0::/:\nme:x:1000:1000::/:\n", 1000).as_deref(), Some("me"));
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    /// The body ends (as by a kill) at each step; the other side must hear of it at once.
    #[test]
    fn a_peer_killed_at_any_step_is_an_error_and_never_a_wait() {
        // The helper, before it was asked; when it was asked; while it acts.
        for step in 0..3 {
            let (ours, theirs) = pair();
            match step {
                0 => drop(theirs),
                1 => {
                    let asked = std::thread::spawn(move || read_byte(theirs.as_fd()));
                    assert!(ask(ours.as_fd()).is_err());
                    asked.join().unwrap().unwrap();
                    continue;
                }
                _ => drop(std::thread::spawn(move || {
                    help(theirs.as_fd(), || Err(io::Error::other("killed")))
                })),
            }
            assert!(ask(ours.as_fd()).is_err(), "step {step}");
        }
        // The asking side, before it asked, and after: the helper ends, its answer goes nowhere.
        let (ours, theirs) = pair();
        drop(ours);
        assert!(help(theirs.as_fd(), || panic!("nobody asked")).is_err());
        let (ours, theirs) = pair();
        say(ours.as_fd()).unwrap();
        drop(ours);
        let _ = help(theirs.as_fd(), || Ok(()));
        let (ours, theirs) = pair();
        let answered = std::thread::spawn(move || help(theirs.as_fd(), || Ok(())));
        ask(ours.as_fd()).unwrap();
        answered.join().unwrap().unwrap();
    }

    /// A process that is gone cannot be mapped, and the programs say so instead of waiting.
    #[test]
    fn the_map_of_a_process_that_is_gone_is_an_error() {
        if program("newuidmap").is_none() {
            return;
        }
        let gone = 0x3fff_ff00;
        assert!(map_ids(gone, &[(0, 1, 1)], &[(0, 1, 1)]).is_err());
    }
}
