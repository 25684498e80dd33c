//! seccomp(2): putting a filter on this process.

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
    let length = u16::try_from(program.len())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the filter is too long"))?;
    let program = libc::sock_fprog {
        len: length,
        filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    // SAFETY: `Instruction` has the layout of `sock_filter`; the kernel reads `len` of them and
    // copies the program before it returns. It checks the program itself and refuses a bad one.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
