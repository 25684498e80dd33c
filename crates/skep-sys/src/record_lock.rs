//! Locks on single bytes of a file, which belong to the process and go with it.

use rustix::fd::{AsFd, AsRawFd};
use std::io;

/// Shares one byte of a file that is open for reading, without waiting for it.
///
/// The lock is gone when the process ends, or when it closes *any* descriptor of that file. A fork
/// does not inherit it. `WouldBlock`: somebody has it alone.
pub fn share_byte(file: impl AsFd, byte: u64) -> io::Result<()> {
    let start = i64::try_from(byte).map_err(io::Error::other)?;
    // SAFETY: flock is a plain C structure of integers, for which all zeroes is a value.
    let mut wanted: libc::flock = unsafe { std::mem::zeroed() };
    wanted.l_type = libc::F_RDLCK as libc::c_short;
    wanted.l_whence = libc::SEEK_SET as libc::c_short;
    wanted.l_start = start;
    wanted.l_len = 1;
    let number = file.as_fd().as_raw_fd();
    // SAFETY: F_SETLK reads one flock, which lives until the call returns.
    match unsafe { libc::fcntl(number, libc::F_SETLK, &raw const wanted) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn others_can_share_the_byte_and_not_have_it_alone() {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("shared", flags).unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        // One's own locks never stand in the way: another process asks.
        let program = "import fcntl, sys; file = open(sys.argv[1], 'r+');                        fcntl.lockf(file, getattr(fcntl, sys.argv[2]) | fcntl.LOCK_NB, 1, 128)";
        let gets = |kind: &str| {
            let mut python = Command::new("python3");
            python.args(["-c", program, &path, kind]).output().unwrap().status.success()
        };
        assert!(gets("LOCK_EX"));
        share_byte(&file, 128).unwrap();
        assert!(gets("LOCK_SH"));
        assert!(!gets("LOCK_EX"));
    }
}
