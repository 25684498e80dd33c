//! Capabilities, rlimits and Landlock, asked from inside, with control runs without the fence.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // A test may.

mod users;

use rustix::process::{Resource, Signal, getrlimit};
use skep_confine::landlock::{Fence, FenceAccess, FenceRule, FenceScope};
use skep_confine::privileges::{ProcessLimits, drop_all, leave_keyring, set_limits};
use skep_confine::seccomp::{self, SeccompVariant};
use skep_sys::process::{Namespaces, clone_with, wait_for};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Runs a body in a child of its own; a failed assertion in it fails the test.
fn inside(namespaces: Namespaces, body: impl FnOnce()) {
    let child = clone_with(namespaces, || {
        body();
        0
    });
    assert_eq!(wait_for(&child.unwrap()).unwrap(), 0);
}

fn status(key: &str) -> String {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().to_owned()
}

fn every_capability_is_gone() {
    inside(Namespaces::USER, || {
        assert_ne!(status("CapEff:"), "0000000000000000", "control: a new namespace has them all");
        leave_keyring().unwrap();
        drop_all().unwrap();
        seccomp::install(SeccompVariant::Default).unwrap();
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(status(set), "0000000000000000", "{set}");
        }
        assert_eq!(status("NoNewPrivs:"), "1");
        assert_eq!(status("Seccomp:"), "2");
    });
    // Without a namespace of its own an ordinary user cannot touch the bounding set: no error.
    inside(Namespaces::NONE, || {
        drop_all().unwrap();
        assert_eq!(status("CapEff:"), "0000000000000000");
        assert_eq!(status("NoNewPrivs:"), "1");
    });
}

fn a_setuid_program_gains_nothing() {
    if rustix::process::geteuid().is_root() || !Path::new("/usr/bin/su").exists() {
        return;
    }
    // What a setuid program would run as is shown by the ids of the process after exec.
    let run = |restrict: bool| {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let child = clone_with(Namespaces::NONE, || {
            if restrict {
                drop_all().unwrap();
            }
            rustix::stdio::dup2_stdin(&reader).unwrap();
            let program = c"/usr/bin/su".to_owned();
            drop(skep_sys::process::execve(&program, std::slice::from_ref(&program), &[]));
            99
        })
        .unwrap();
        // Waiting for a password on a pipe that stays empty.
        let path = format!("/proc/{}/status", child.pid.as_raw_nonzero());
        let mut effective = String::new();
        for _ in 0..500 {
            let text = fs::read_to_string(&path).unwrap_or_default();
            if text.starts_with("Name:\tsu") {
                let line = text.lines().find(|line| line.starts_with("Uid:")).unwrap();
                effective = line.split_whitespace().nth(2).unwrap().to_owned();
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(writer);
        let _ = rustix::process::pidfd_send_signal(&child.pidfd, Signal::KILL);
        let _ = wait_for(&child);
        effective
    };
    assert_eq!(run(false), "0", "control");
    assert_eq!(run(true), users::NOBODY.to_string());
}

fn rlimits_hold_and_are_read_back() {
    inside(Namespaces::NONE, || {
        let asked = ProcessLimits { open_files: 40, ..ProcessLimits::default() };
        assert_eq!(set_limits(&asked).unwrap().open_files, 40);
        assert_eq!(getrlimit(Resource::Core).maximum, Some(0));
        let mut held = Vec::new();
        while let Ok(file) = fs::File::open("/dev/null") {
            held.push(file);
        }
        assert!(held.len() < 40);
        // Never more than the hard limit of before.
        let more = ProcessLimits { open_files: 50, ..ProcessLimits::default() };
        assert_eq!(set_limits(&more).unwrap().open_files, 40);
    });
}

/// Counts how many of `wanted` children could not be made.
fn refused_forks(wanted: i32) -> i32 {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let mut children = Vec::new();
    for _ in 0..wanted {
        let child = clone_with(Namespaces::NONE, || {
            let _ = rustix::io::read(&reader, &mut [0u8; 1]);
            0
        });
        children.extend(child.ok());
    }
    let _ = rustix::io::write(&writer, &vec![0u8; children.len()]);
    let made = children.len() as i32;
    children.iter().for_each(|child| drop(wait_for(child)));
    wanted - made
}

/// The user has processes outside; a limit set inside its own user namespace does not count them.
fn a_process_limit_in_a_user_namespace_counts_only_the_inside() {
    if rustix::process::geteuid().is_root() {
        return; // The kernel does not count root.
    }
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let crowd: Vec<_> = (0..20)
        .map(|_| {
            let wait = || i32::from(rustix::io::read(&reader, &mut [0u8; 1]).is_err());
            clone_with(Namespaces::NONE, wait).unwrap()
        })
        .collect();
    let limits = ProcessLimits { processes: Some(10), ..ProcessLimits::default() };
    inside(Namespaces::USER, || {
        assert_eq!(refused_forks(30), 0, "control");
        assert_eq!(set_limits(&limits).unwrap().processes, Some(10));
        drop_all().unwrap();
        assert_eq!(refused_forks(30), 21, "this process and nine more");
    });
    rustix::io::write(&writer, &[0u8; 20]).unwrap();
    crowd.iter().for_each(|child| drop(wait_for(child)));
}

fn workplace() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    for name in ["project/a", "project/b", "outside"] {
        fs::create_dir_all(place.path().join(name)).unwrap();
    }
    fs::write(place.path().join("outside/secret"), "canary").unwrap();
    fs::write(place.path().join("project/a/file"), "text").unwrap();
    place
}

fn rules(place: &Path) -> Vec<FenceRule> {
    vec![
        FenceRule::new(place.join("project"), FenceAccess::ReadWrite),
        FenceRule::new("/usr", FenceAccess::Read),
        FenceRule::new("/dev/null", FenceAccess::Device),
        FenceRule::new("/proc", FenceAccess::Read),
    ]
}

/// Everything an editor or a build does in a project, then what it may not do outside.
fn try_inside_and_outside(place: &Path, fenced: bool) {
    let project = place.join("project");
    fs::write(project.join("a/new"), "x").unwrap();
    fs::rename(project.join("a/new"), project.join("b/moved")).unwrap();
    fs::hard_link(project.join("b/moved"), project.join("a/linked")).unwrap();
    fs::File::options().write(true).open(project.join("b/moved")).unwrap().set_len(0).unwrap();
    std::os::unix::fs::symlink("x", project.join("link")).unwrap();
    std::os::unix::net::UnixListener::bind(project.join("socket")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, project.join("fifo"), rustix::fs::Mode::RWXU).unwrap();
    fs::create_dir(project.join("deep")).unwrap();
    fs::remove_dir(project.join("deep")).unwrap();
    fs::write("/dev/null", "x").unwrap();
    fs::read_dir("/usr/bin").unwrap();
    for name in ["a/linked", "b/moved", "link", "socket", "fifo"] {
        fs::remove_file(project.join(name)).unwrap();
    }
    let outside = [
        ("read", fs::read(place.join("outside/secret")).is_ok()),
        ("list", fs::read_dir(place.join("outside")).is_ok()),
        ("make", fs::write(place.join("outside/new"), "x").is_ok()),
        ("truncate", fs::File::create(place.join("outside/secret")).is_ok()),
        ("write through a link", {
            let link = project.join("way-out");
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(place.join("outside/secret"), &link).unwrap();
            fs::write(link, "x").is_ok()
        }),
        ("move out", fs::rename(project.join("a/file"), place.join("outside/file")).is_ok()),
    ];
    for (what, done) in outside {
        assert_eq!(done, !fenced, "{what}");
    }
}

fn the_fence_lets_work_be_done_and_nothing_else() {
    let place = workplace();
    inside(Namespaces::NONE, || {
        let fence = Fence::prepare(&rules(place.path()), FenceScope::FilesOnly).unwrap();
        fence.restrict_self().unwrap();
        try_inside_and_outside(place.path(), true);
        // More than once is possible: one fence, many processes.
        fence.restrict_self().unwrap();
    });
    assert_eq!(fs::read_to_string(place.path().join("outside/secret")).unwrap(), "canary");
    inside(Namespaces::NONE, || try_inside_and_outside(place.path(), false));
}

/// proc-14: the rules hold on the merged tree of an overlay, for files of the lower as well.
fn the_fence_holds_on_an_overlay() {
    let place = workplace();
    for name in ["upper", "work", "merged"] {
        fs::create_dir(place.path().join(name)).unwrap();
    }
    let namespaces = Namespaces::USER.with(Namespaces::MOUNT);
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    inside(namespaces, || {
        let _ = fs::write("/proc/self/setgroups", "deny");
        fs::write("/proc/self/uid_map", format!("0 {} 1", uid.as_raw())).unwrap();
        fs::write("/proc/self/gid_map", format!("0 {} 1", gid.as_raw())).unwrap();
        let at = |name: &str| place.path().join(name).display().to_string();
        let options = format!(
            "lowerdir={},upperdir={},workdir={},userxattr",
            at("."),
            at("upper"),
            at("work")
        );
        let options = std::ffi::CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("overlay", at("merged"), "overlay", flags, options.as_c_str())
            .unwrap();
        let merged = place.path().join("merged");
        Fence::prepare(&rules(&merged), FenceScope::FilesOnly).unwrap().restrict_self().unwrap();
        try_inside_and_outside(&merged, true);
    });
    assert_eq!(fs::read_to_string(place.path().join("project/a/file")).unwrap(), "text");
}

fn signals_stay_inside_a_fence_with_scope() {
    if skep_sys::landlock::abi_version().unwrap_or(0) < 6 {
        return;
    }
    let victim = clone_with(Namespaces::NONE, || {
        std::thread::sleep(Duration::from_secs(20));
        0
    })
    .unwrap();
    let attack = |scope: FenceScope| {
        let child = clone_with(Namespaces::NONE, || {
            let fence = Fence::prepare(&[FenceRule::new("/proc", FenceAccess::Read)], scope);
            fence.unwrap().restrict_self().unwrap();
            i32::from(rustix::process::kill_process(victim.pid, Signal::CONT).is_ok())
        });
        wait_for(&child.unwrap()).unwrap() == 1
    };
    assert!(!attack(FenceScope::FilesSignalsSockets));
    assert!(attack(FenceScope::FilesOnly), "control");
    rustix::process::pidfd_send_signal(&victim.pidfd, Signal::KILL).unwrap();
    wait_for(&victim).unwrap();
}

fn main() {
    users::run_as_both(&[
        ("every_capability_is_gone", every_capability_is_gone),
        ("a_setuid_program_gains_nothing", a_setuid_program_gains_nothing),
        ("rlimits_hold_and_are_read_back", rlimits_hold_and_are_read_back),
        (
            "a_process_limit_in_a_user_namespace",
            a_process_limit_in_a_user_namespace_counts_only_the_inside,
        ),
        (
            "the_fence_lets_work_be_done_and_nothing_else",
            the_fence_lets_work_be_done_and_nothing_else,
        ),
        ("the_fence_holds_on_an_overlay", the_fence_holds_on_an_overlay),
        ("signals_stay_inside_a_fence_with_scope", signals_stay_inside_a_fence_with_scope),
    ]);
}
