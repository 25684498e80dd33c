//! keyctl(2): leaving the caller's session keyring.

use std::io;

/// Puts this process, and what it starts, into a new and empty session keyring.
///
/// Keyrings belong to no namespace: without this, keys of the session that started skep could be
/// read. A kernel without keyrings has nothing to leave: that is success.
pub fn join_new_session() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name asks for an anonymous keyring; nothing is read from memory.
    let result = unsafe {
        libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>())
    };
    match io::Error::last_os_error() {
        _ if result >= 0 => Ok(()),
        error if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        error => Err(error),
    }
}
