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

/// Gives memory that was used and freed back to the system, where the C library can do that.
///
/// A keeper is forked from whoever starts a sandbox, and keeps for its whole life what that process had:
/// pages of the heap that nothing lies in any more too.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: takes no pointer, and the allocator locks itself. malloc_trim(3).
        unsafe { libc::malloc_trim(0) };
    }
}

/// Overwrites the command line that `/proc/PID/cmdline` shows with `text` (cut to what fits).
///
/// A forked keeper would otherwise show the command line of whoever started it, host paths and
/// typed values included, to everything inside.
pub fn set_command_line(text: &str) -> std::io::Result<()> {
    let (start, end) = argument_area()?;
    let length = end.saturating_sub(start);
    let text = &text.as_bytes()[..text.len().min(length.saturating_sub(1))];
    let area = std::ptr::with_exposed_provenance_mut::<u8>(start);
    // SAFETY: the kernel says that the arguments of this process lie there: mapped, writable
    // memory at the far end of the stack that nobody here holds a reference into (the standard
    // library copies arguments when asked for them). The keeper has one thread.
    unsafe { std::ptr::write_bytes(area, 0, length) };
    // SAFETY: the same area, and `text` is shorter than it.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), area, text.len()) };
    Ok(())
}

/// Fields 48 and 49 of `/proc/self/stat`.
fn argument_area() -> std::io::Result<(usize, usize)> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = rest.split_ascii_whitespace().skip(45);
    let mut next = || fields.next().and_then(|field| field.parse().ok());
    match (next(), next()) {
        (Some(start), Some(end)) if start > 0 && end > start => Ok((start, end)),
        _ => Err(std::io::Error::other("the kernel does not say where the arguments are")),
    }
}
