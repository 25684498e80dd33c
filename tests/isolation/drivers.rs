//! Copy-on-write by every driver: the same work, the same change set, the same project.

use crate::harness::{Call, Lab, Who, for_both, for_each, outside, skip, wait_for_empty};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

/// First id of the range that root's sandboxes are mapped to.
const RANGE_START: u32 = 0x7000_0000;

const WORK: &str = "echo more >> a; chmod 755 a; echo new > n; mv n moved; ln -s a link
rm d/one; rm -r d/sub; mkdir d/sub; echo again > d/sub/other; mkdir -p x/y; echo z > x/y/z";

const FORGE: &str = r#"
import os
for path in ["d", "d/sub", "a", "x", "."]:
    for family in ["user.overlay.", "trusted.overlay.", "user.fuseoverlayfs."]:
        for mark in ["opaque", "whiteout", "redirect", "metacopy", "origin"]:
            try:
                os.setxattr(path, family + mark, b"y")
                print(family + mark)
            except OSError:
                pass
"#;

fn base(lab: &Lab) {
    lab.write("a", "1\n");
    lab.write("d/one", "1\n");
    lab.write("d/two", "2\n");
    lab.write("d/sub/three", "3\n");
}

fn drivers(lab: &Lab) -> &'static [&'static str] {
    match lab.who.is_root() {
        true => &["overlay-userns", "overlay-root", "fuse-overlayfs", "copy"],
        false => &["overlay-userns", "fuse-overlayfs", "copy"],
    }
}

/// A call with the driver forced; `None` if it cannot be had here.
fn forced(lab: &Lab, driver: &str, arguments: &[&str]) -> Option<Call> {
    let call = match driver {
        "fuse-overlayfs" => lab.skep_with_fuse(arguments),
        _ => Ok(lab.skep(arguments)),
    };
    match call {
        Ok(call) => Some(call.env("SKEP_DRIVER", driver)),
        Err(reason) => {
            skip(&reason);
            None
        }
    }
}

fn shown(lab: &Lab, name: &str) -> Value {
    lab.skep(["show", name, "--json"]).run().ok().json()
}

#[test]
fn every_driver_gives_the_same_change_set_and_leaves_the_project_alone() {
    for_both(|lab| {
        base(lab);
        let before = lab.tree();
        let mut digests = Vec::new();
        for driver in drivers(lab) {
            let arguments = ["run", "--name", driver, "--", "sh", "-ec", WORK];
            let Some(call) = forced(lab, driver, &arguments) else { continue };
            call.run().ok();
            assert_eq!(shown(lab, driver)["driver"], *driver);
            digests.push(lab.diff(driver)["digest"].clone());
            lab.tree().assert_equals(&before, driver);
        }
        assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "{digests:?}");
    });
}

#[test]
fn fs_9_forged_marks_mean_nothing_to_any_driver() {
    for_both(|lab| {
        base(lab);
        for driver in drivers(lab) {
            let honest = format!("honest-{driver}");
            let arguments = ["run", "--name", &honest, "--", "sh", "-ec", WORK];
            let Some(call) = forced(lab, driver, &arguments) else { continue };
            call.run().ok();
            let script = format!("{WORK}\npython3 -c '{FORGE}'");
            let forger = format!("forger-{driver}");
            let arguments = ["run", "--name", &forger, "--", "sh", "-ec", &script];
            let Some(call) = forced(lab, driver, &arguments) else { continue };
            let ran = call.run().ok();
            assert!(!ran.text().contains("trusted."), "{driver}: {}", ran.describe());
            // The control: where root has mounted it, the mark of the other family is stored as it is.
            if *driver == "overlay-root" {
                assert!(ran.text().contains("user.overlay.opaque"), "{}", ran.describe());
            }
            assert_eq!(lab.diff(&forger)["digest"], lab.diff(&honest)["digest"], "{driver}");
        }
    });
}

#[test]
fn only_root_gets_an_overlay_by_root_and_the_project_never_stands_in_for_it() {
    for_each([Who::user()], |lab| {
        base(lab);
        let before = lab.tree();
        let call = lab.skep(["run", "--", "sh", "-c", WORK]).env("SKEP_DRIVER", "overlay-root");
        call.run().exits(5).says("only root can mount it");
        lab.tree().assert_equals(&before, "the project was written to");
    });
}

#[test]
fn a_foreign_group_is_served_by_fuse_overlayfs_else_by_a_copy_and_the_report_says_why() {
    for_each([Who::user()], |lab| {
        base(lab);
        let (uid, gid) = lab.who.ids();
        for path in ["", "a", "d", "d/one", "d/two", "d/sub", "d/sub/three"] {
            let path = lab.project.join(path);
            std::os::unix::fs::lchown(path, Some(uid), Some(gid + 1)).unwrap();
        }
        let run = |name: &'static str| ["run", "--name", name, "--", "sh", "-ec", WORK];
        let (with, without) =
            match (lab.skep_with_fuse(&run("with")), lab.skep_without_fuse(&run("without"))) {
                (Ok(with), Ok(without)) => (with, without),
                (Err(reason), _) | (_, Err(reason)) => return skip(&reason),
            };
        with.run().ok();
        without.run().ok();
        for (name, driver) in [("with", "fuse-overlayfs"), ("without", "copy")] {
            let shown = shown(lab, name);
            assert_eq!(shown["driver"], driver);
            let files = &shown["enforcement"]["filesystem"];
            assert!(files["how"].as_str().unwrap().contains(driver), "{files}");
            let reason = files["reason"].as_str().unwrap();
            assert!(reason.contains("overlay-userns: the project belongs to a group"), "{files}");
            assert_eq!(reason.contains("fuse-overlayfs: cannot open"), driver == "copy", "{files}");
        }
        assert_eq!(lab.diff("with")["digest"], lab.diff("without")["digest"]);
    });
}

#[test]
fn the_fuse_server_is_not_seen_inside_and_dies_with_the_keeper() {
    for_both(|lab| {
        base(lab);
        let arguments = ["create", "served"];
        let Some(call) = forced(lab, "fuse-overlayfs", &arguments) else { return };
        call.run().ok();
        let inside = lab.exec_script("served", "cat /proc/[0-9]*/comm; kill -9 -1; true");
        assert!(!inside.run().text().contains("fuse"));
        // Neither has a kill of everything inside reached it.
        assert_eq!(lab.exec_script("served", "cat a").run().ok().text(), "1");
        let keepers = lab.keepers();
        assert_eq!(keepers.len(), 1);
        let servers = || servers_of(keepers[0]);
        assert_eq!(servers().len(), 1);
        let server = servers()[0];
        let keeper = rustix::process::Pid::from_raw(keepers[0]).unwrap();
        rustix::process::kill_process(keeper, rustix::process::Signal::KILL).unwrap();
        wait_for_empty("the server", 10, || {
            let status = fs::read_to_string(format!("/proc/{server}/stat")).unwrap_or_default();
            let alive = !status.is_empty() && !status.contains(") Z ");
            alive.then_some(server).into_iter().collect::<Vec<_>>()
        });
    });
}

/// Children of a process that are fuse-overlayfs.
fn servers_of(parent: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let children = children.unwrap_or_default();
    let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    let is_server = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.starts_with("fuse-"))
    };
    pids.filter(is_server).collect()
}

/// What a copy leaves out of the project is no change of anybody's.
#[test]
fn special_files_of_the_project_are_no_change_under_any_driver() {
    for_both(|lab| {
        base(lab);
        let made = std::process::Command::new("mkfifo").arg(lab.project.join("d/fifo")).status();
        assert!(made.unwrap().success());
        let _socket = std::os::unix::net::UnixListener::bind(lab.project.join("socket")).unwrap();
        lab.own_below(&lab.project);
        for driver in drivers(lab) {
            let Some(call) = forced(lab, driver, &["create", driver]) else { continue };
            call.run().ok();
            lab.exec_script(driver, "true").run().ok();
            assert_eq!(lab.diff(driver)["changes"], serde_json::json!([]), "{driver}");
            // Control: what is made inside is one.
            lab.exec_script(driver, "mkfifo own").run().ok();
            assert_eq!(lab.diff(driver)["changes"].as_array().unwrap().len(), 1, "{driver}");
        }
    });
}

#[test]
fn a_copy_keeps_modes_and_times_and_belongs_to_the_ids_inside() {
    for_both(|lab| {
        base(lab);
        let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        fs::File::options()
            .append(true)
            .open(lab.project.join("a"))
            .unwrap()
            .set_modified(old)
            .unwrap();
        let closed = lab.project.join("d/sub");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
        lab.skep(["create", "copied"]).env("SKEP_DRIVER", "copy").run().ok();
        let seen =
            lab.exec_script("copied", "stat -c '%Y %u' a; stat -c %a d/sub; cat d/sub/three");
        let seen = seen.run().ok().text();
        let uid = lab.who.ids().0;
        assert_eq!(seen, format!("1000000000 {uid}\n555\n3"));
        lab.exec_script("copied", "echo more >> a && rm d/one").run().ok();
        let id = lab.sandbox("copied")["id"].as_str().unwrap().to_owned();
        let upper = lab.state.join("sandboxes").join(id).join("upper");
        let stored = fs::symlink_metadata(upper.join("d/two")).unwrap().uid();
        let wanted = if lab.who.is_root() { RANGE_START } else { uid };
        assert_eq!(stored, wanted);
        assert_eq!(lab.diff("copied")["changes"].as_array().unwrap().len(), 2);
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).unwrap();
    });
}

#[test]
fn store_7_state_on_an_overlay_works_by_a_copy_and_says_so() {
    for_each([Who::root()], |lab| {
        base(lab);
        lab.write("below/.env", "SECRET=1\n");
        let script = "set -e; mount --make-rprivate /; mount -t tmpfs tmpfs /mnt
mkdir /mnt/l /mnt/u /mnt/w /mnt/m
mount -t overlay overlay -o lowerdir=/mnt/l,upperdir=/mnt/u,workdir=/mnt/w /mnt/m
export SKEP_HOME=/mnt/m/state
\"$0\" run --name here -- sh -c 'echo more >> a; ! test -e below/.env' >&2
\"$0\" show here --json; \"$0\" rm --discard here >&2";
        let call = lab.program("unshare").args(["-m", "sh", "-c", script]).arg(&lab.binary);
        let shown = call.run().ok().json();
        assert_eq!(shown["driver"], "copy");
        let files = &shown["enforcement"]["filesystem"];
        assert!(files["reason"].as_str().unwrap().contains("is itself on an overlay"), "{files}");
    });
}

#[test]
fn proc_masked_entries_are_found_covered_by_the_probe_and_by_looking() {
    for_both(|lab| {
        lab.create("masked");
        let files = shown(lab, "masked")["enforcement"]["filesystem"].clone();
        assert_eq!(files["enforced"], true);
        assert!(
            files["how"].as_str().unwrap().contains("entries of /proc found covered"),
            "{files}"
        );
        let look = "for f in /proc/kcore /proc/keys /proc/sysrq-trigger; do
test -e $f || continue; stat -c '%t:%T' $f; done; stat -c '%t:%T' /dev/null";
        let seen = lab.exec_script("masked", look).run().ok().text();
        assert!(seen.lines().all(|line| line == "1:3"), "{seen}");
        // The control: outside, they are no such thing.
        let outside = fs::metadata("/proc/sysrq-trigger").map(|meta| meta.rdev());
        assert!(outside.is_err() || outside.is_ok_and(|rdev| rdev == 0));
        assert!(!outside::processes_of(&lab.root).is_empty());
    });
}
