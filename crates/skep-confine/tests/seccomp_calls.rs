//! Every refused call, really made once in a child under the filter, by both x86 conventions; and
//! the same calls without the filter where that is harmless, to show that the test can fail.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // A test may.

#[path = "../build/policy.rs"]
#[allow(dead_code)]
mod policy;
mod users;

use policy::{Action, Decision, Policy, Variant};
use skep_confine::seccomp;
use skep_sys::raw::{CallEnd, Convention, call_in_child};
use std::io;

const EPERM: i32 = 1;
const ENOSYS: i32 = 38;
const EAFNOSUPPORT: i32 = 97;
const EPROTONOSUPPORT: i32 = 93;

fn filtered() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    seccomp::install(seccomp::SeccompVariant::Default)
}

fn filtered_for_debugging() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    seccomp::install(seccomp::SeccompVariant::Debug)
}

fn unfiltered() -> io::Result<()> {
    Ok(())
}

fn native(prepare: fn() -> io::Result<()>, number: i64, arguments: [u64; 6]) -> CallEnd {
    call_in_child(prepare, Convention::Native, number, arguments).unwrap()
}

#[cfg(target_arch = "aarch64")]
use syscalls::aarch64::Sysno;
/// The table of this machine.
#[cfg(target_arch = "x86_64")]
use syscalls::x86_64::Sysno;

/// Pointers of -1 fault and descriptors of -1 do not exist: should the filter let one through, the
/// kernel refuses it with another errno, and the test sees that.
const NOTHING: [u64; 6] = [u64::MAX; 6];

fn refused(name: Option<&str>, policy: &Policy) -> Option<i32> {
    match name.and_then(|name| policy.decide(Variant::Default, name)) {
        Some(Decision::Fixed(Action::Errno(errno))) => Some(i32::from(*errno)),
        Some(_) => None,
        None => Some(ENOSYS),
    }
}

fn every_refused_call_answers_its_errno() {
    let policy = Policy::parse(include_str!("../../../resources/seccomp.toml")).unwrap();
    let mut made = 0;
    for number in 0..1024 {
        let name = Sysno::new(number).map(|call| call.name());
        if let Some(errno) = refused(name, &policy) {
            let end = native(filtered, number as i64, NOTHING);
            assert_eq!(end, CallEnd::Failed(errno), "call {number} {name:?}");
            made += 1;
        }
    }
    assert!(made > 600, "only {made} calls were made");
}

#[cfg(target_arch = "x86_64")]
fn every_refused_call_of_i386_answers_its_errno() {
    let control = call_in_child(unfiltered, Convention::I386, 20, [0; 6]).unwrap();
    if control != CallEnd::Returned {
        assert!(std::env::var_os("CI").is_none(), "no i386 emulation in this kernel");
        return;
    }
    let policy = Policy::parse(include_str!("../../../resources/seccomp.toml")).unwrap();
    for number in 0..1024 {
        let name = syscalls::x86::Sysno::new(number).map(|call| call.name());
        if let Some(errno) = refused(name, &policy) {
            let end = call_in_child(filtered, Convention::I386, number as i64, NOTHING).unwrap();
            assert_eq!(end, CallEnd::Failed(errno), "i386 call {number} {name:?}");
        }
    }
    // socketcall(SYS_SOCKET), and getpid still works.
    let socket = call_in_child(filtered, Convention::I386, 102, [1, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(socket, CallEnd::Failed(EAFNOSUPPORT));
    let getpid = call_in_child(filtered, Convention::I386, 20, [0; 6]).unwrap();
    assert_eq!(getpid, CallEnd::Returned);
}

fn x32_does_not_exist() {
    let getpid = Sysno::getpid as i64 | 0x4000_0000;
    assert_eq!(native(filtered, getpid, [0; 6]), CallEnd::Failed(ENOSYS));
}

fn sockets_by_family_and_protocol() {
    let socket = Sysno::socket as i64;
    let ask = |prepare, family, kind, protocol| {
        native(prepare, socket, [family, kind, protocol, 0, 0, 0])
    };
    for family in [1, 2, 10] {
        assert_eq!(ask(filtered, family, 1, 0), CallEnd::Returned, "family {family}");
    }
    assert_eq!(ask(filtered, 16, 3, 0), CallEnd::Returned, "route netlink");
    assert_eq!(ask(filtered, 16, 3, 15), CallEnd::Failed(EPROTONOSUPPORT), "uevent netlink");
    assert_eq!(ask(unfiltered, 16, 3, 15), CallEnd::Returned, "control: uevent netlink");
    assert_eq!(ask(filtered, 2, 1, 132), CallEnd::Failed(EPROTONOSUPPORT), "SCTP");
    assert_eq!(ask(filtered, 2, 5, 0), CallEnd::Failed(EPROTONOSUPPORT), "SCTP by its type");
    // AF_PACKET, AF_ALG, AF_VSOCK, AF_XDP, and one with high bits on top.
    for family in [17, 38, 40, 44, 17 | 1 << 40] {
        assert_eq!(ask(filtered, family, 3, 0), CallEnd::Failed(EAFNOSUPPORT), "family {family}");
    }
    if rustix::process::geteuid().is_root() {
        assert_eq!(ask(unfiltered, 17, 3, 0), CallEnd::Returned, "control: AF_PACKET");
    }
}

/// With no descriptor the kernel says EBADF; the filter answers before it looks.
fn terminal_requests_are_refused_whatever_the_high_bits() {
    let ioctl = Sysno::ioctl as i64;
    for request in [0x5412u64, 0x541c, 0x541d, 0x5423] {
        for dressed in [request, request | 0xffff_ffff_0000_0000, request | 1 << 32] {
            let arguments = [u64::MAX, dressed, 0, 0, 0, 0];
            assert_eq!(native(filtered, ioctl, arguments), CallEnd::Failed(EPERM));
            assert_eq!(native(unfiltered, ioctl, arguments), CallEnd::Failed(9), "control");
        }
    }
    assert_eq!(native(filtered, ioctl, [u64::MAX, 0x5401, 0, 0, 0, 0]), CallEnd::Failed(9));
}

fn no_new_namespace_by_any_door() {
    let user = 0x1000_0000u64;
    let sigchld = 17;
    let clone = Sysno::clone as i64;
    assert_eq!(native(filtered, clone, [user | sigchld, 0, 0, 0, 0, 0]), CallEnd::Failed(EPERM));
    assert_eq!(
        native(filtered, Sysno::unshare as i64, [user, 0, 0, 0, 0, 0]),
        CallEnd::Failed(EPERM)
    );
    assert_eq!(
        native(unfiltered, Sysno::unshare as i64, [user, 0, 0, 0, 0, 0]),
        CallEnd::Returned,
        "control"
    );
    assert_eq!(native(filtered, Sysno::clone3 as i64, [0; 6]), CallEnd::Failed(ENOSYS));
}

fn memory_protection_cannot_be_weakened_by_personality() {
    let personality = Sysno::personality as i64;
    let read_implies_exec = 0x0040_0000;
    for (persona, end) in [
        (0, CallEnd::Returned),
        (0xffff_ffff, CallEnd::Returned),
        (0x0004_0000, CallEnd::Returned),
        (read_implies_exec, CallEnd::Failed(EPERM)),
    ] {
        assert_eq!(native(filtered, personality, [persona, 0, 0, 0, 0, 0]), end, "{persona:#x}");
    }
    let control = native(unfiltered, personality, [read_implies_exec, 0, 0, 0, 0, 0]);
    assert_eq!(control, CallEnd::Returned, "control");
}

fn a_debugger_needs_the_debug_variant() {
    // PTRACE_TRACEME
    let ptrace = Sysno::ptrace as i64;
    assert_eq!(native(filtered, ptrace, [0; 6]), CallEnd::Failed(EPERM));
    assert_eq!(native(filtered_for_debugging, ptrace, [0; 6]), CallEnd::Returned);
    assert_eq!(native(filtered_for_debugging, Sysno::bpf as i64, NOTHING), CallEnd::Failed(EPERM));
}

fn without_no_new_privs_an_ordinary_user_gets_no_filter() {
    let end = skep_sys::process::clone_with(skep_sys::process::Namespaces::NONE, || {
        if rustix::process::geteuid().is_root() {
            return 0;
        }
        i32::from(seccomp::install(seccomp::SeccompVariant::Default).is_ok())
    })
    .unwrap();
    assert_eq!(skep_sys::process::wait_for(&end).unwrap(), 0);
}

fn ordinary_programs_run_under_the_filter() {
    let script = "set -e; d=$(mktemp -d); cd $d; mkfifo p; (echo hi > p &); cat p; \
        if command -v git >/dev/null; then git init -q r; fi; \
        if command -v python3 >/dev/null; then python3 -c 'import threading,subprocess,socket; \
          t=threading.Thread(target=lambda: None); t.start(); t.join(); \
          subprocess.run([\"true\"],check=True); socket.socketpair(); socket.getaddrinfo(\"127.0.0.1\",80)'; fi; \
        if command -v node >/dev/null; then node -e 'require(\"os\").networkInterfaces(); \
          require(\"child_process\").execSync(\"true\"); require(\"fs\").promises.readdir(\"/\")'; fi; \
        if command -v gcc >/dev/null; then echo 'int main(void){return 0;}' > x.c; gcc -pipe -o x x.c; ./x; fi; \
        if command -v java >/dev/null; then java -version 2>/dev/null; fi; \
        cd /; rm -rf $d";
    let child = skep_sys::process::clone_with(skep_sys::process::Namespaces::NONE, || {
        if filtered().is_err() {
            return 99;
        }
        let status = std::process::Command::new("/bin/sh")
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", "/nonexistent")
            .args(["-c", script])
            .status();
        status.ok().and_then(|status| status.code()).unwrap_or(98)
    })
    .unwrap();
    assert_eq!(skep_sys::process::wait_for(&child).unwrap(), 0);
}

fn main() {
    let tests: &[(&str, fn())] = &[
        ("every_refused_call_answers_its_errno", every_refused_call_answers_its_errno),
        #[cfg(target_arch = "x86_64")]
        (
            "every_refused_call_of_i386_answers_its_errno",
            every_refused_call_of_i386_answers_its_errno,
        ),
        ("x32_does_not_exist", x32_does_not_exist),
        ("sockets_by_family_and_protocol", sockets_by_family_and_protocol),
        ("terminal_requests", terminal_requests_are_refused_whatever_the_high_bits),
        ("no_new_namespace_by_any_door", no_new_namespace_by_any_door),
        ("personality", memory_protection_cannot_be_weakened_by_personality),
        ("a_debugger_needs_the_debug_variant", a_debugger_needs_the_debug_variant),
        ("without_no_new_privs", without_no_new_privs_an_ordinary_user_gets_no_filter),
        ("ordinary_programs_run_under_the_filter", ordinary_programs_run_under_the_filter),
    ];
    users::run_as_both(tests);
}
