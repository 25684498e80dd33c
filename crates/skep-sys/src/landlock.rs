//! Landlock: which version of its interface this kernel has, and putting rules on.

use rustix::fd::{AsRawFd, BorrowedFd};
use std::io;

/// The version, from 1 on. An error says why there is none: not built in, or not enabled at boot.
pub fn abi_version() -> io::Result<i32> {
    const CREATE_RULESET_VERSION: libc::c_uint = 1;
    // SAFETY: with this flag and no attributes the call only tells a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0usize,
            CREATE_RULESET_VERSION,
        )
    };
    if version > 0 { Ok(version as i32) } else { Err(io::Error::last_os_error()) }
}

/// Puts rules on this process and all it starts, for good. `no_new_privs` must be set.
pub fn restrict_self(rules: BorrowedFd<'_>) -> io::Result<()> {
    let flags: libc::c_uint = 0;
    // SAFETY: takes a descriptor and an integer, and touches no memory.
    match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
