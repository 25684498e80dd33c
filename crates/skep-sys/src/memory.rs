//! Memory that should not be left lying about.

use std::ffi::c_char;

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Overwrites the text of this process's environment with zeros.
///
/// A forked process keeps the environment of whoever started it, and `/proc/PID/environ` shows
/// it to everyone with the same user id. The keeper and init need none of it.
pub fn wipe_environment() {
    // SAFETY: `environ` is set by the C runtime before main; we read the pointer's value only.
    let mut entry = unsafe { environ };
    if entry.is_null() {
        return;
    }
    loop {
        // SAFETY: `entry` points into the null-terminated array, not past its null.
        let text = unsafe { *entry };
        if text.is_null() {
            return;
        }
        // SAFETY: each entry is a NUL-terminated string.
        let length = unsafe { libc::strlen(text) };
        // SAFETY: writes over the string's own bytes, in memory the process owns (its stack's
        // argument area or its heap). The caller is a single-threaded keeper: nobody reads it.
        unsafe { std::ptr::write_bytes(text, 0, length) };
        // SAFETY: still within the array, since `text` was not its terminating null.
        entry = unsafe { entry.add(1) };
    }
}
