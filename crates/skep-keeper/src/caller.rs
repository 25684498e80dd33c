//! What a forked process has of its caller, and how it lets go of it.

use rustix::fd::BorrowedFd;
use rustix::fs::{Mode, OFlags};
use std::io;

/// Leads a session of its own, keeps none of the caller's descriptors but these and the first three, and takes signals as
/// programs expect it (whoever is forked from here does, too).
pub fn stand_apart(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    rustix::process::setsid()?;
    skep_sys::process::close_all_but(kept)?;
    skep_sys::signal::reset_all();
    skep_sys::signal::ignore(libc::SIGPIPE);
    Ok(())
}

/// Lets go of the rest: the first three descriptors, directory, environment, command line, and the file mode mask, which
/// is told.
pub fn leave() -> io::Result<u32> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    rustix::process::chdir("/")?;
    skep_sys::memory::wipe_environment();
    // Best effort: a kernel built without checkpointing does not tell where they are.
    let _ = skep_sys::memory::set_command_line("skep: keeper");
    Ok(rustix::process::umask(Mode::from_raw_mode(0o077)).bits())
}
