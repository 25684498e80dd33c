//! A terminal whose other end cannot be sent out: a process inside copies between it and pipes.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::termios::{Winsize, tcsetwinsize};
use skep_sys::process::{Namespaces, clone_with};
use skep_sys::stdio::EndOfInput;
use skep_types::TerminalSize;
use std::io;
use std::time::Instant;

const BUFFER: usize = 16 << 10;

/// Starts the process; it ends when the terminal's last user has gone.
pub fn start(master: &OwnedFd, pipes: Vec<OwnedFd>) -> io::Result<()> {
    let missing = || io::Error::from_raw_os_error(libc::EBADF);
    let mut pipes = pipes.into_iter();
    let (input, output) = (pipes.next().ok_or_else(missing)?, pipes.next().ok_or_else(missing)?);
    clone_with(Namespaces::NONE, || {
        let kept = [master.as_fd(), input.as_fd(), output.as_fd()];
        if skep_sys::process::close_all_but(&kept).is_err() {
            return 1;
        }
        i32::from(copy(master, &input, &output).is_err())
    })
    .map(drop)
}

/// Another size.
pub fn resize(master: &OwnedFd, size: TerminalSize) -> io::Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(master, size)?)
}

fn copy(master: &OwnedFd, input: &OwnedFd, output: &OwnedFd) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    let mut over: Option<EndOfInput> = None;
    loop {
        let mut watched = vec![PollFd::new(master, PollFlags::IN)];
        if over.is_none() {
            watched.push(PollFd::new(input, PollFlags::IN));
        }
        let pause = over.as_ref().map(|end| pause_until(end.next()));
        match poll(&mut watched, pause.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = watched.iter().map(|fd| !fd.revents().is_empty()).collect();
        if let Some(end) = &mut over {
            end.repeat(master, Instant::now());
        }
        if ready.get(1) == Some(&true) && !pass(input.as_fd(), master.as_fd(), &mut buffer)? {
            over = Some(EndOfInput::say(master, Instant::now()));
        }
        if ready[0] && !pass(master.as_fd(), output.as_fd(), &mut buffer)? {
            return Ok(());
        }
    }
}

fn pause_until(when: Instant) -> Timespec {
    let left = when.saturating_duration_since(Instant::now());
    Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
}

/// Moves one buffer; `false` at the end. A terminal that nobody has open any more says EIO.
fn pass(from: BorrowedFd<'_>, to: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<bool> {
    let length = match rustix::io::read(from, &mut *buffer) {
        Ok(0) | Err(Errno::IO) => return Ok(false),
        Ok(length) => length,
        Err(Errno::INTR | Errno::AGAIN) => return Ok(true),
        Err(error) => return Err(error.into()),
    };
    let mut rest = &buffer[..length];
    while !rest.is_empty() {
        match rustix::io::write(to, rest) {
            Ok(taken) => rest = &rest[taken..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}
