//! Root in a project that belongs to somebody else: the owner is the user inside.

use crate::harness::{Call, EVERY_KIND, Lab, Tree, Who, for_each, outside, plant_every_kind, skip};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};

/// Runs a test as root in a project that is given to an ordinary user once it was planted.
fn in_anothers(plant: impl Fn(&Lab), test: impl Fn(&Lab, (u32, u32))) {
    let Ok(user) = Who::user() else { return skip("no ordinary user can be had") };
    for_each([Who::root()], |lab| {
        plant(lab);
        give(&lab.project, user.ids());
        test(lab, user.ids());
    });
}

/// Gives a tree to its new owner.
pub(crate) fn give(path: &Path, (uid, gid): (u32, u32)) {
    for entry in Tree::read(path).nodes.keys() {
        lchown(path.join(entry), Some(uid), Some(gid)).unwrap();
    }
}

/// Entries of the project that do not belong to these.
fn strange(lab: &Lab, (uid, gid): (u32, u32)) -> Vec<PathBuf> {
    let nodes = lab.tree().nodes.into_iter();
    nodes.filter(|(_, node)| (node.uid, node.gid) != (uid, gid)).map(|(path, _)| path).collect()
}

/// Work of every kind, made by `run` under this name: the same change set as its owner gets, and
/// when it is approved all of it is the owner's; an undo leaves no trace.
pub(crate) fn work_is_the_owners(lab: &Lab, name: &str, run: impl Fn(&str) -> Call) {
    let owner = Who::user().unwrap().ids();
    let before = lab.tree();
    run(EVERY_KIND).run().ok();
    lab.tree().assert_equals(&before, "before it is approved");
    let mine = Lab::new(Who::user().unwrap());
    plant_every_kind(&mine);
    mine.skep(["run", "--name", "s", "--", "sh", "-c", EVERY_KIND]).run().ok();
    let (theirs, found) = (mine.diff("s"), lab.diff(name));
    assert_eq!(found["digest"], theirs["digest"], "{name}: {found}\n{theirs}");
    mine.skep(["approve", "s"]).run().ok();
    lab.skep(["approve", name]).run().ok();
    lab.tree().assert_equals(&mine.tree(), "as if the owner had done it");
    assert_eq!(strange(lab, owner), Vec::<PathBuf>::new(), "{name}");
    lab.skep(["undo"]).run().ok();
    lab.tree().assert_equals(&before, "undone");
    mine.audit();
}

#[test]
fn root_works_in_anothers_project_by_every_driver_and_what_is_approved_is_the_owners() {
    in_anothers(plant_every_kind, |lab, _| {
        for driver in ["overlay-userns", "overlay-root", "fuse-overlayfs", "copy"] {
            let usable = driver != "fuse-overlayfs" || lab.skep_with_fuse(&["version"]).is_ok();
            if !usable {
                skip("fuse-overlayfs");
                continue;
            }
            work_is_the_owners(lab, driver, |script| {
                let words = ["run", "--name", driver, "--", "sh", "-c", script];
                let call = match driver {
                    "fuse-overlayfs" => lab.skep_with_fuse(&words).unwrap(),
                    _ => lab.skep(words),
                };
                call.env("SKEP_DRIVER", driver)
            });
        }
    });
}

#[test]
fn root_works_in_anothers_project_on_every_provider() {
    in_anothers(plant_every_kind, |lab, _| {
        for provider in ["bubblewrap", "subprocess", "oci:runc", "oci:runsc"] {
            let created = lab.skep(["create", "probe", "--json", "--provider", provider]).run();
            if created.code() == 5 {
                skip(&format!("{provider}: {}", created.errors()));
                continue;
            }
            created.ok();
            lab.skep(["rm", "--discard", "probe"]).run().ok();
            let name = provider.replace(':', "-");
            work_is_the_owners(lab, &name, |script| {
                let words = ["run", "--name", &name, "--provider", provider, "--", "sh", "-c"];
                lab.skep(words).arg(script)
            });
        }
    });
}

/// The rule of the host for an ordinary user: what others have is read and written as its mode says.
#[test]
fn what_is_not_the_owners_is_as_its_mode_says_and_what_is_made_there_is_the_owners() {
    let plant = |lab: &Lab| {
        for name in ["mine", "readable", "secret", "open", "others", "there/x", "shared/x"] {
            lab.write(name, format!("{name}\n"));
        }
    };
    in_anothers(plant, |lab, (uid, gid)| {
        let root = |name: &str, mode, ids: (u32, u32)| {
            let path = lab.project.join(name);
            lchown(&path, Some(ids.0), Some(ids.1)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        root("readable", 0o644, (0, 0));
        root("secret", 0o600, (0, 0));
        root("open", 0o666, (0, 0));
        root("others", 0o640, (uid + 1, gid + 1));
        root("there", 0o777, (0, 0));
        root("shared", 0o2777, (0, gid + 7));
        let script = "echo more >> mine; echo more >> open; echo new > there/new; \
            echo new > shared/new; cat readable; \
            for name in readable secret others; do echo more >> $name && echo WROTE $name; done; \
            for name in secret others; do cat $name && echo READ $name; done; true";
        let ran = lab.skep(["run", "--name", "s", "--", "sh", "-c", script]).run().ok();
        assert_eq!(ran.text(), "readable", "{}", ran.describe());
        let before = lab.tree();
        lab.skep(["approve", "s"]).run().ok();
        let after = lab.tree();
        let owner = |name: &str| after.get(name).map(|node| (node.uid, node.gid)).unwrap();
        assert_eq!(owner("mine"), (uid, gid));
        assert_eq!(owner("open"), (0, 0), "what is replaced keeps its owner");
        assert_eq!(owner("there/new"), (uid, gid), "as the project's owner would make it");
        assert_eq!(owner("shared/new"), (uid, gid + 7), "a directory that hands its group on");
        lab.skep(["undo"]).run().ok();
        lab.tree().assert_equals(&before, "undone, owners included");
    });
}

/// The control of what holds: outside, the processes are nobody's, and theirs is nothing of the owner's.
#[test]
fn in_anothers_project_the_processes_are_still_nobody_outside() {
    in_anothers(plant_every_kind, |lab, (uid, _)| {
        lab.create("s");
        lab.skep(["exec", "-d", "s", "--", "sleep", "1000"]).run().ok();
        let sleeping = |process: &outside::Process| {
            let line = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
            line.starts_with(b"sleep\0")
        };
        let found = crate::harness::wait_for("the command", 10, || {
            outside::processes_of(&lab.root).into_iter().find(sleeping)
        });
        let status = fs::read_to_string(format!("/proc/{}/status", found.pid)).unwrap();
        let line = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
        assert!(line.contains("1879048192"), "{line}");
        assert!(!line.split_whitespace().any(|word| word == uid.to_string()), "{line}");
    });
}

#[test]
fn a_commit_that_root_makes_in_anothers_repository_is_the_owners() {
    let plant = |lab: &Lab| {
        lab.write("a", "one\n");
        let script = "git init -q . && git config user.name A && git config user.email a@b && \
            git add a && git commit -qm first";
        lab.program("sh").args(["-c", script]).run().ok();
    };
    in_anothers(plant, |lab, owner| {
        lab.run_script("echo more >> a; mkdir d; echo n > d/n").run().ok();
        lab.skep(["approve", "--commit", "-m", "second"]).run().ok();
        assert_eq!(strange(lab, owner), Vec::<PathBuf>::new());
        let log = lab.program("git").args(["-c", "safe.directory=*", "log", "--format=%s"]).run();
        assert_eq!(log.ok().text(), "second\nfirst");
    });
}

#[test]
fn a_root_directory_that_cannot_be_written_inside_is_said() {
    for_each([Who::root(), Who::user()], |lab| {
        lab.write("a", "1\n");
        let said = "the project's root directory cannot be written inside";
        lab.run_script("true").run().ok().says_not(said);
        fs::set_permissions(&lab.project, fs::Permissions::from_mode(0o555)).unwrap();
        let words = ["run", "--keep", "--name", "s", "--", "sh", "-c", "echo n > n"];
        lab.skep(words).run().exits(2).says(said);
        let shown = lab.skep(["show", "s", "--json"]).run().ok().json();
        let reason = shown["enforcement"]["filesystem"]["reason"].as_str().unwrap_or_default();
        assert!(reason.contains(said), "{shown}");
        let scope = lab.directory("sub");
        assert!(scope.exists());
        lab.skep(["run", "--scope", "sub", "--", "true"]).run().ok().says_not(said);
        fs::set_permissions(&lab.project, fs::Permissions::from_mode(0o755)).unwrap();
    });
}

/// What is mounted writable is the user's inside too, whoever it belongs to, and stays theirs.
#[test]
fn a_directory_of_anothers_that_is_mounted_writable_can_be_written() {
    in_anothers(plant_every_kind, |lab, (uid, gid)| {
        for (name, ids) in [("of-user", (uid, gid)), ("of-root", (0, 0)), ("of-far", (200_000, 7))]
        {
            let place = lab.root.join(name);
            fs::create_dir(&place).unwrap();
            fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
            lchown(&place, Some(ids.0), Some(ids.1)).unwrap();
            let mount = format!("{}:/mnt/m:rw", place.display());
            let words = ["run", "--mount", &mount, "--", "sh", "-c", "echo n > /mnt/m/n"];
            lab.skep(words).run().ok();
            let node = Tree::read(&place).get("n").cloned().unwrap();
            assert_eq!((node.uid, node.gid), ids, "{name}");
        }
    });
}
