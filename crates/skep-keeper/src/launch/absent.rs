//! Which calls are not there, when one of them was needed.
//!
//! A kernel older than the calls, and a container whose filter does not know them, answer alike. The
//! step that failed says what was to be done; this finds out with which call it could not be.

use crate::failure::Failure;
use skep_sys::raw::{CallEnd, Convention, call_in_child};

/// What a sandbox is made with, and the first release of Linux that has it. Each is made here with
/// arguments that no kernel takes: no such descriptor, no such memory, no such flags.
const NEEDED: [(&str, libc::c_long, &str); 18] = [
    ("mount", libc::SYS_mount, "1.0"),
    ("umount2", libc::SYS_umount2, "2.4"),
    ("pivot_root", libc::SYS_pivot_root, "2.4"),
    ("prctl", libc::SYS_prctl, "2.2"),
    ("fchmod", libc::SYS_fchmod, "1.0"),
    ("symlinkat", libc::SYS_symlinkat, "2.6.16"),
    ("setns", libc::SYS_setns, "3.0"),
    ("memfd_create", libc::SYS_memfd_create, "3.17"),
    ("open_tree", libc::SYS_open_tree, "5.2"),
    ("move_mount", libc::SYS_move_mount, "5.2"),
    ("fsopen", libc::SYS_fsopen, "5.2"),
    ("fsconfig", libc::SYS_fsconfig, "5.2"),
    ("fsmount", libc::SYS_fsmount, "5.2"),
    ("pidfd_open", libc::SYS_pidfd_open, "5.3"),
    ("clone3", libc::SYS_clone3, "5.3"),
    ("openat2", libc::SYS_openat2, "5.6"),
    ("close_range", libc::SYS_close_range, "5.9"),
    ("mount_setattr", libc::SYS_mount_setattr, "5.12"),
];

/// A failure because a call is not there names it, and what to do. Others are as they were.
pub fn explain(failure: Failure) -> Failure {
    match failure {
        // Another driver is tried where this one cannot be mounted.
        Failure::Step { operation, errno: libc::ENOSYS }
            if !operation.contains("workspace overlay") =>
        {
            let release = rustix::system::uname().release().to_string_lossy().into_owned();
            told(&operation, &release, &missing())
        }
        other => other,
    }
}

fn told(operation: &str, release: &str, missing: &[(&str, &str)]) -> Failure {
    let calls: Vec<String> =
        missing.iter().map(|(call, since)| format!("`{call}` (Linux {since})")).collect();
    let what = match calls.is_empty() {
        true => "a system call that is needed for it".to_owned(),
        false => calls.join(", "),
    };
    Failure::missing(
        "a sandbox of namespaces",
        format!(
            "cannot {operation}: kernel {release}, or a filter around skep, does not have {what}"
        ),
        "use Linux 5.12 or newer, or a container whose seccomp profile knows these calls; `skep providers` shows what else works here",
    )
}

fn missing() -> Vec<(&'static str, &'static str)> {
    let is_missing = |number: libc::c_long| {
        let nothing = [u64::MAX; 6];
        call_in_child(|| Ok(()), Convention::Native, number, nothing)
            .is_ok_and(|end| end == CallEnd::Failed(libc::ENOSYS))
    };
    let needed = NEEDED.into_iter().filter(|(_, number, _)| is_missing(*number));
    needed.map(|(call, _, since)| (call, since)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_absent_call_is_explained() {
        let other = Failure::Step { operation: "x".into(), errno: libc::EPERM };
        assert_eq!(explain(other.clone()), other);
        let Failure::Missing { reason, remedy, .. } =
            told("mount `/usr` inside", "5.4.0", &[("mount_setattr", "5.12")])
        else {
            panic!()
        };
        assert!(reason.contains("mount `/usr`") && reason.contains("`mount_setattr` (Linux 5.12)"));
        assert!(remedy.contains("5.12"));
    }
}
