//! seccomp(2): putting a filter on this process.

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::io;

/// One step of a classic BPF program; `struct sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// What to do.
    pub code: u16,
    /// Instructions to skip if a test holds.
    pub jump_true: u8,
    /// Instructions to skip if it does not.
    pub jump_false: u8,
    /// The operand.
    pub value: u32,
}

/// Puts a filter on this thread and on everything it starts, for good.
///
/// The caller has set `no_new_privs` before (or has `CAP_SYS_ADMIN`). On error nothing changed.
pub fn set_mode_filter(program: &[Instruction]) -> io::Result<()> {
    set_filter(program, 0).map(drop)
}

/// The same, for a program that answers `SECCOMP_RET_USER_NOTIF` to some calls: whoever holds the
/// returned descriptor answers those. While nobody does they fail with `ENOSYS`.
pub fn set_mode_filter_listening(program: &[Instruction]) -> io::Result<OwnedFd> {
    let listener = set_filter(program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    // SAFETY: with this flag the call returns a new descriptor (marked close-on-exec) that nobody
    // else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

fn set_filter(program: &[Instruction], flags: libc::c_ulong) -> io::Result<RawFd> {
    let length = u16::try_from(program.len())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the filter is too long"))?;
    let program = libc::sock_fprog {
        len: length,
        filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    // SAFETY: `Instruction` has the layout of `sock_filter`; the kernel reads `len` of them and
    // copies the program before it returns. It checks the program itself and refuses a bad one.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    if result >= 0 { Ok(result as RawFd) } else { Err(io::Error::last_os_error()) }
}

/// A call that waits for an answer; `struct seccomp_data` with the id to answer under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Of this call, as long as it waits.
    pub id: u64,
    /// The call's number.
    pub number: u32,
    /// The kernel's audit number of the ABI.
    pub architecture: u32,
    /// What it was called with. Pointers mean nothing here.
    pub arguments: [u64; 6],
}

/// Takes the next waiting call, which must be there (the listener polls as readable); `None` if it
/// has gone meanwhile, killed or interrupted.
pub fn next_waiting(listener: BorrowedFd<'_>) -> io::Result<Option<Waiting>> {
    // SAFETY: all-zero is a valid value of this plain structure, and the one the kernel demands.
    let mut waiting: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the request writes one `seccomp_notif`, which lives until the call returns.
    let result = unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut waiting)
    };
    match result {
        0 => Ok(Some(Waiting {
            id: waiting.id,
            number: waiting.data.nr as u32,
            architecture: waiting.data.arch,
            arguments: waiting.data.args,
        })),
        _ => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => Ok(None),
            error => Err(error),
        },
    }
}

/// Answers a waiting call with an errno. There is no way here to let it be made: a call judged by
/// arguments in somebody else's memory would be another call by the time it is made.
pub fn refuse(listener: BorrowedFd<'_>, id: u64, errno: i32) -> io::Result<()> {
    let answer = libc::seccomp_notif_resp { id, val: 0, error: -errno.abs().max(1), flags: 0 };
    // SAFETY: the request reads one `seccomp_notif_resp`, which lives until the call returns.
    let result = unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer)
    };
    match result {
        0 => Ok(()),
        // It was killed or interrupted while it waited.
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            error => Err(error),
        },
    }
}

/// Whether this kernel can hand calls to a listener.
pub fn listening_is_supported() -> bool {
    let action: u32 = libc::SECCOMP_RET_USER_NOTIF;
    // SAFETY: reads one u32, and sets nothing.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action)
    };
    result == 0
}

/// Whether this kernel takes filters at all: asks for an impossible one.
pub fn filter_is_supported() -> bool {
    // SAFETY: a null program is refused with EFAULT where filters exist; nothing is read or set.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            std::ptr::null::<libc::sock_fprog>(),
        )
    };
    result == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_is_laid_out_as_the_kernel_wants_it() {
        assert_eq!(size_of::<Instruction>(), size_of::<libc::sock_filter>());
        assert_eq!(std::mem::offset_of!(Instruction, jump_true), 2);
        assert_eq!(std::mem::offset_of!(Instruction, value), 4);
    }
}
