//! Disks that are full or cannot be written: a typed error, nothing half-made, and a way on.

use crate::harness::{Who, for_both, for_each, outside};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn a_state_directory_that_cannot_be_written_is_an_error_without_effect() {
    for_both(|lab| {
        lab.write("a", "a\n");
        lab.create("s");
        lab.exec_script("s", "echo b > b").run().ok();
        lab.skep(["stop", "s"]).run().ok();
        let before = lab.tree();
        let skep = lab.binary.display();
        // In a mount namespace of its own, so that nobody else sees it; as the lab's caller.
        let calls = format!(
            "{skep} create t --json; echo $?; {skep} run --json -- true; echo $?; \
             {skep} approve s --json; echo $?"
        );
        let ran = if lab.who.is_root() {
            let script = format!(
                "mount --bind {0} {0} && mount -o remount,bind,ro {0} && ({calls})",
                lab.state.display()
            );
            lab.program("unshare").args(["--mount", "sh", "-c", &script]).run()
        } else {
            for name in ["", "skep.db", "sandboxes", "trash", "locks", "approvals"] {
                let path = lab.state.join(name);
                let mode = fs::metadata(&path).unwrap().permissions().mode();
                fs::set_permissions(path, fs::Permissions::from_mode(mode & !0o222)).unwrap();
            }
            let ran = lab.program("sh").args(["-c", &calls]).run();
            for (name, mode) in [
                ("", 0o700),
                ("skep.db", 0o600),
                ("sandboxes", 0o700),
                ("trash", 0o700),
                ("locks", 0o700),
                ("approvals", 0o700),
            ] {
                let path = lab.state.join(name);
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            }
            ran
        };
        let text = ran.text();
        let codes: Vec<_> = text.lines().filter(|line| line.parse::<i32>().is_ok()).collect();
        assert_eq!(codes, ["1", "125", "1"], "{}", ran.describe());
        lab.tree().assert_equals(&before, "the project was changed");
        assert_eq!(outside::processes_of(&lab.root), vec![]);
        // Writable again, everything is as before.
        assert_eq!(lab.sandboxes().len(), 1);
        assert_eq!(lab.diff("s")["changes"].as_array().unwrap().len(), 1);
        lab.skep(["approve", "s"]).run().ok();
    });
}

#[test]
fn a_full_disk_is_said_and_survived() {
    for_each([Who::root()], |lab| {
        lab.write("a", "a\n");
        let before = lab.tree();
        let (skep, state) = (lab.binary.display(), lab.state.display());
        let script = format!(
            "mkdir -p {state}; mount -t tmpfs -o size=4m,mode=700 none {state}
             {skep} create s > /dev/null; echo created $?
             {skep} exec s -- dd if=/dev/zero of=big bs=64k count=1000 2> /dev/null; echo filled $?
             {skep} create t --json 2>&1; echo second $?
             {skep} exec s -- true; echo exec $?
             {skep} ls --json > /dev/null; echo listed $?
             {skep} rm --discard s 2>&1; echo removed $?
             {skep} create u > /dev/null; echo third $?
             {skep} exec u -- true; echo works $?
             {skep} rm --discard u 2>&1
             {skep} ls --all; echo end $?; ls -A {state}/sandboxes {state}/trash"
        );
        let line = ["--mount", "--propagation", "private", "sh", "-c", &script];
        let ran = lab.program("unshare").args(line).run().ok();
        let text = ran.text();
        for wanted in [
            "created 0",
            "filled 1",
            "second 1",
            "exec 125",
            "listed 0",
            "removed 0",
            "third 0",
            "works 0",
            "end 0",
        ] {
            assert!(text.lines().any(|line| line == wanted), "no `{wanted}`: {}", ran.describe());
        }
        assert!(text.contains("\"code\":\"no_space\""), "{}", ran.describe());
        lab.tree().assert_equals(&before, "the project was changed");
        assert_eq!(outside::processes_of(&lab.root), vec![]);
    });
}

/// Filled by somebody else, with nothing kept back and something to settle: looking works, and so does
/// removing what takes room.
#[test]
fn on_a_full_disk_sandboxes_are_listed_and_removed() {
    for_each([Who::root()], |lab| {
        lab.write("a", "a\n");
        let (skep, state) = (lab.binary.display(), lab.state.display());
        let script = format!(
            "mkdir -p {state}; mount -t tmpfs -o size=8m,mode=700 none {state}
             {skep} create s > /dev/null; {skep} create t > /dev/null
             for name in s t; do {skep} exec $name -- dd if=/dev/zero of=big bs=64k count=8 2> /dev/null; done
             {skep} exec -d s -- sleep 1000 > /dev/null
             rm {state}/reserve; dd if=/dev/zero of={state}/filler bs=4k 2> /dev/null
             for process in /proc/[0-9]*; do
                 if [ \"$(readlink $process/exe)\" = {skep} ]; then kill -9 ${{process#/proc/}}; fi
             done
             {skep} ls --json > /dev/null; echo listed $?
             {skep} rm --discard s 2>&1; echo first $?
             {skep} rm --discard t 2>&1; echo second $?
             rm {state}/filler
             {skep} create u > /dev/null && {skep} exec u -- true; echo works $?
             {skep} rm --discard u 2>&1
             {skep} ls --all; echo end $?; ls -A {state}/sandboxes {state}/trash"
        );
        let line = ["--mount", "--propagation", "private", "sh", "-c", &script];
        let ran = lab.program("unshare").args(line).run().ok();
        let text = ran.text();
        for wanted in ["listed 0", "first 0", "second 0", "works 0", "end 0"] {
            assert!(text.lines().any(|line| line == wanted), "no `{wanted}`: {}", ran.describe());
        }
        assert_eq!(outside::processes_of(&lab.root), vec![]);
    });
}

#[test]
fn a_state_directory_that_others_can_write_is_refused() {
    for_both(|lab| {
        lab.directory(&lab.state);
        fs::set_permissions(&lab.state, fs::Permissions::from_mode(0o777)).unwrap();
        let ran = lab.skep(["create", "s", "--json"]).run();
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        fs::set_permissions(&lab.state, fs::Permissions::from_mode(0o700)).unwrap();
        lab.create("s");
    });
}
