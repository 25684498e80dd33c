//! Landlock: which version of its interface this kernel has.

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
