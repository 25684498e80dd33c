//! Holding threads by tracing them: who is in a trap of its tracer goes on when that says so, or dies.
//!
//! `ptrace(2)`: a seized thread is left alone until it is interrupted; one that a signal has stopped
//! goes into the trap at once. SIGCONT ends the stop and not the trap.

use rustix::process::Pid;
use std::io;

/// Becomes the tracer of a thread, and leads it into a trap; it is there a moment later.
///
/// Only the calling thread can let it go, and its end does.
pub fn hold(thread: Pid) -> io::Result<()> {
    request(libc::PTRACE_SEIZE as libc::c_long, thread)?;
    request(libc::PTRACE_INTERRUPT as libc::c_long, thread)
}

/// Lets a thread that is in a trap of ours go on, and traces it no more.
pub fn release(thread: Pid) -> io::Result<()> {
    request(libc::PTRACE_DETACH as libc::c_long, thread)
}

/// None of these takes an address, options or a signal.
fn request(request: libc::c_long, thread: Pid) -> io::Result<()> {
    let number = thread.as_raw_nonzero().get();
    // SAFETY: these requests read and write no memory of ours; a wrong number is refused.
    match unsafe { libc::syscall(libc::SYS_ptrace, request, number, 0usize, 0usize) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    fn state(pid: u32) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap()
    }

    fn becomes(pid: u32, wanted: char) -> bool {
        let deadline = Instant::now() + Duration::from_secs(10);
        while state(pid) != wanted && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        state(pid) == wanted
    }

    #[test]
    fn whoever_is_held_is_not_woken_by_a_signal() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        let signal = |signal| rustix::process::kill_process(pid, signal).unwrap();
        for stop_first in [false, true] {
            if stop_first {
                signal(rustix::process::Signal::STOP);
                assert!(becomes(child.id(), 'T'));
            }
            hold(pid).unwrap();
            assert!(becomes(child.id(), 't'));
            signal(rustix::process::Signal::CONT);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(state(child.id()), 't');
            release(pid).unwrap();
            assert!(becomes(child.id(), 'S'));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
