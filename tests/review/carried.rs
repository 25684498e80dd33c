//! What a file of the user's carries beside its bytes: it survives an approval, and comes back with an undo.

use super::desk::paths;
use crate::harness::{Lab, Who, for_both, for_each, running_as_root};
use std::fs;
use std::path::Path;
use std::process::Command;

/// What plain tools say of a path: its access list, its attributes, its owner and mode.
fn seen(path: &Path) -> String {
    let ask = |program: &str, arguments: &[&str]| {
        let answer = Command::new(program).args(arguments).arg(path).output().unwrap();
        assert!(answer.status.success(), "{program}: {}", String::from_utf8_lossy(&answer.stderr));
        String::from_utf8(answer.stdout).unwrap()
    };
    let all = ask("getfacl", &["-c", "-p"])
        + &ask("getfattr", &["-d", "--absolute-names", "-m", "user[.]"])
        + &ask("stat", &["-c", "%u:%g %a"]);
    all.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

fn set(lab: &Lab, program: &str, arguments: &[&str], path: &Path) {
    lab.program(program).args(arguments).arg(path).run().ok();
}

/// With an access list the group bits of the mode are its mask. A file made anew with that mode would
/// let the owning group write.
#[test]
fn access_lists_and_attributes_survive_an_approval_and_an_undo() {
    for_both(|lab| {
        let file = lab.write("f", "a\n");
        set(lab, "chmod", &["640"], &file);
        set(lab, "setfacl", &["-m", "u:daemon:rw"], &file);
        set(lab, "setfattr", &["-n", "user.note", "-v", "keepme"], &file);
        let kept = lab.directory("d");
        set(lab, "setfacl", &["-m", "u:daemon:rwx,d:u:daemon:rwx"], &kept);
        set(lab, "setfattr", &["-n", "user.note", "-v", "dir"], &kept);
        let (before, directory) = (seen(&file), seen(&kept));
        assert!(before.contains("user:daemon:rw-") && before.contains("group::r--"), "{before}");
        lab.worked("s", "echo b >> f; rmdir d");
        assert_eq!(paths(&lab.diff("s")), ["d", "f"]);
        lab.skep(["approve", "s"]).run().ok();
        assert_eq!(fs::read_to_string(&file).unwrap(), "a\nb\n");
        assert_eq!(seen(&file), before);
        lab.skep(["undo"]).run().ok();
        assert_eq!(fs::read_to_string(&file).unwrap(), "a\n");
        assert_eq!(seen(&file), before);
        assert_eq!(seen(&kept), directory);
        // Under another name it is the same file.
        lab.worked("r", "mv f g; echo c >> g");
        lab.skep(["approve", "r"]).run().ok();
        assert_eq!(seen(&lab.project.join("g")), before);
        lab.skep(["undo"]).run().ok();
        assert_eq!(seen(&file), before);
        // A mode that was changed inside is what was reviewed, and the list stays.
        lab.worked("m", "chmod 600 f");
        lab.skep(["approve", "m"]).run().ok();
        let after = seen(&file);
        assert!(after.contains("user:daemon:rw-") && after.contains("mask::---"), "{after}");
        assert!(after.contains("group::r--") && after.contains(" 600"), "{after}");
    });
}

/// A directory with a default list gives what comes from a sandbox no more than what is made on the host.
#[test]
fn what_is_new_has_the_list_that_its_directory_gives() {
    for_both(|lab| {
        let given = lab.directory("da");
        set(lab, "setfacl", &["-d", "-m", "g::---,o::---,u:daemon:r"], &given);
        lab.worked("s", "echo n > da/new; mkdir da/sub; echo n > da/sub/deep");
        lab.skep(["approve", "s"]).run().ok();
        lab.program("sh")
            .args(["-ec", "echo n > da/ref; mkdir da/dir; echo n > da/dir/deep"])
            .run()
            .ok();
        for (new, reference) in [("new", "ref"), ("sub", "dir"), ("sub/deep", "dir/deep")] {
            let (new, reference) = (seen(&given.join(new)), seen(&given.join(reference)));
            assert_eq!(new, reference);
            assert!(new.contains("group::---") && new.contains("user:daemon:r"), "{new}");
        }
        lab.skep(["undo"]).run().ok();
        assert!(!given.join("new").exists() && !given.join("sub").exists());
    });
}

/// Capabilities belong to the bytes: other bytes do not get them, and the same have them again.
#[test]
fn an_undo_brings_file_capabilities_back() {
    if !running_as_root() {
        return crate::harness::skip("only root can give capabilities");
    }
    for_each([Who::root()], |lab| {
        let file = lab.write("tool", "a\n");
        set(lab, "setcap", &["cap_net_raw+ep"], &file);
        let capabilities = || {
            let answer = Command::new("getcap").arg(&file).output().unwrap();
            String::from_utf8(answer.stdout).unwrap()
        };
        assert!(capabilities().contains("cap_net_raw"), "{}", capabilities());
        lab.worked("s", "echo b >> tool");
        lab.skep(["approve", "s"]).run().ok();
        assert_eq!(capabilities(), "");
        lab.skep(["undo"]).run().ok();
        assert_eq!(fs::read_to_string(&file).unwrap(), "a\n");
        assert!(capabilities().contains("cap_net_raw"), "{}", capabilities());
    });
}

/// Nothing of the kind comes out of a sandbox.
#[test]
fn attributes_set_inside_stay_there() {
    for_both(|lab| {
        let file = lab.write("f", "a\n");
        let before = seen(&file);
        lab.worked(
            "s",
            "echo b > f; setfattr -n user.evil -v x f; setfattr -n user.evil -v x . || true",
        );
        lab.skep(["approve", "s"]).run().ok();
        assert_eq!(seen(&file), before);
    });
}

/// What is held fast is refused before anything is changed.
#[test]
fn an_append_only_directory_is_refused_before_any_change() {
    if !running_as_root() {
        return crate::harness::skip("only root can mark a directory append-only");
    }
    for_each([Who::root()], |lab| {
        lab.write("dd/z", "z\n");
        lab.write("other", "o\n");
        let tree = lab.tree();
        lab.worked("s", "echo new > dd/z; echo w > dd/w; echo new > other");
        for (mark, word) in [("+a", "append-only"), ("+i", "immutable")] {
            for path in ["dd", "other"] {
                let chattr = |sign: &str| {
                    let done =
                        Command::new("chattr").arg(sign).arg(lab.project.join(path)).status();
                    done.unwrap().success()
                };
                if !chattr(mark) {
                    return crate::harness::skip("this filesystem knows no such marks");
                }
                let refused = lab.skep(["approve", "s"]).run();
                let unmarked = chattr(&mark.replace('+', "-"));
                assert!(unmarked);
                assert_ne!(refused.code(), 0, "{mark} {path}");
                assert!(refused.errors().contains(word) || path == "dd", "{}", refused.describe());
                lab.tree().assert_equals(&tree, "the project");
            }
        }
        lab.skep(["approve", "s"]).run().ok();
    });
}
