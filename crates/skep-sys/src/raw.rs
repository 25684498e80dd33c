//! System calls by number, made in a child: for probes and for tests of filters.

use crate::process::{Namespaces, clone_with, wait_for};
use std::io;

/// Which calling convention a number belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Convention {
    /// That of this program.
    Native,
    /// `int 0x80` of a 64-bit program: numbers and arguments of i386.
    #[cfg(target_arch = "x86_64")]
    I386,
}

/// How a call made by [`call_in_child`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEnd {
    /// With this value.
    Returned,
    /// With this error number.
    Failed(i32),
    /// The child did not live to say.
    Died,
}

/// Forks, runs `prepare` in the child (to put a filter on, for instance), makes one call there and
/// tells how it ended.
///
/// DANGEROUS by nature: the call is really made. What it does to memory ends with the child; what
/// it does to files, other processes or the machine is on the caller's head.
pub fn call_in_child(
    prepare: impl FnOnce() -> io::Result<()>,
    convention: Convention,
    number: i64,
    arguments: [u64; 6],
) -> io::Result<CallEnd> {
    let (reader, writer) = rustix::pipe::pipe()?;
    let child = clone_with(Namespaces::NONE, || {
        if prepare().is_err() {
            return 2;
        }
        let errno = call(convention, number, arguments);
        let told = rustix::io::write(&writer, &errno.to_ne_bytes());
        i32::from(told.is_err())
    })?;
    drop(writer);
    let code = wait_for(&child)?;
    if code == 2 {
        return Err(io::Error::other("cannot prepare the child that was to make the call"));
    }
    let mut answer = [0u8; 4];
    Ok(match rustix::io::read(&reader, &mut answer) {
        Ok(4) => match i32::from_ne_bytes(answer) {
            0 => CallEnd::Returned,
            errno => CallEnd::Failed(errno),
        },
        _ => CallEnd::Died,
    })
}

/// Zero, or the error number.
fn call(convention: Convention, number: i64, arguments: [u64; 6]) -> i32 {
    let [a, b, c, d, e, f] = arguments;
    match convention {
        Convention::Native => {
            // SAFETY: not safe in general; private to the child above, which only writes eight
            // bytes from its own stack afterwards and ends.
            let result = unsafe { libc::syscall(number as libc::c_long, a, b, c, d, e, f) };
            if result == -1 { io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { 0 }
        }
        #[cfg(target_arch = "x86_64")]
        Convention::I386 => {
            let result = int_0x80(number as i32, arguments.map(|argument| argument as u32));
            if (-4095..0).contains(&result) { -result } else { 0 }
        }
    }
}

/// Arguments in ebx, ecx, edx, esi, edi; the sixth is not passed.
#[cfg(target_arch = "x86_64")]
fn int_0x80(number: i32, arguments: [u32; 6]) -> i32 {
    let result: i32;
    // SAFETY: as in `call`. rbx is reserved by the compiler, so it is exchanged before and after;
    // the kernel clears r8 to r11 on this path.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {first}",
            "int 0x80",
            "xchg rbx, {first}",
            first = inout(reg) u64::from(arguments[0]) => _,
            inlateout("eax") number => result,
            in("ecx") arguments[1],
            in("edx") arguments[2],
            in("esi") arguments[3],
            in("edi") arguments[4],
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    result
}
