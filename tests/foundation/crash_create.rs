//! Killed at every step of creating a sandbox: usable, or gone without a trace; the same again works.

use crate::harness::{Lab, for_both, outside, wait_for, wait_for_empty};
use std::path::Path;
use std::process::Child;

/// The failpoints of creating, read from the source: one that is added is tried.
fn failpoints() -> Vec<String> {
    let mut found = Vec::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut open: Vec<_> = ["skep-engine", "skep-keeper", "skep-provider-namespace"]
        .map(|name| crates.join(name).join("src"))
        .into();
    while let Some(path) = open.pop() {
        for entry in std::fs::read_dir(path).unwrap().flatten() {
            if entry.path().is_dir() {
                open.push(entry.path());
            } else {
                let text = std::fs::read_to_string(entry.path()).unwrap();
                let names = text.split("failpoint::hit(\"").skip(1);
                found.extend(names.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
            }
        }
    }
    found.retain(|name| name.starts_with("create."));
    found.sort();
    assert!(found.len() >= 5, "{found:?}");
    found
}

/// Whatever happened, skep comes back to a state in which the same request works.
#[track_caller]
fn settles(lab: &Lab, what: &str) {
    let sandboxes = lab.sandboxes();
    match sandboxes.first() {
        None => {
            wait_for_empty(what, 10, || outside::processes_of(&lab.root));
            let left = std::fs::read_dir(lab.state.join("sandboxes")).unwrap().count();
            assert_eq!(left, 0, "{what}: directories are left");
            let ids = lab.ids_ever();
            wait_for_empty(what, 10, || outside::cgroups_of(&ids));
        }
        Some(sandbox) => {
            // Ready and usable, or at rest with a reason and a way out.
            let state = sandbox["state"].as_str().unwrap();
            assert!(matches!(state, "ready" | "stopped" | "error"), "{what}: {sandbox}");
            if state == "ready" {
                lab.skep(["exec", "s", "--", "true"]).run().ok();
            }
            lab.skep(["rm", "s"]).run().ok();
        }
    }
    lab.create("s");
    assert_eq!(lab.exec_script("s", "cat a").run().ok().text(), "a", "{what}");
    lab.skep(["rm", "s"]).run().ok();
}

/// Nothing is remembered of earlier starts, so that every step is made.
fn create(lab: &Lab, failpoint: &str, key: &str) -> crate::harness::Call {
    let _ = std::fs::remove_dir_all(lab.state.join("probed"));
    lab.skep(["create", "s", "--idempotency-key", key]).env("SKEP_FAILPOINT", failpoint)
}

#[test]
fn crash_1_killed_at_every_step_of_create() {
    for_both(|lab| {
        lab.write("a", "a\n");
        let before = lab.tree();
        for (at, name) in failpoints().iter().enumerate() {
            for action in ["kill", "eio", "enospc"] {
                let what = format!("{name}={action}");
                println!("{what}");
                let ran = create(lab, &what, &format!("key-{at}-{action}")).run();
                assert_ne!(ran.code(), 0, "the failpoint is not met: {}", ran.describe());
                settles_with(lab, &what, &format!("key-{at}-{action}"));
            }
        }
        lab.tree().assert_equals(&before, "the project was changed");
    });
}

#[track_caller]
fn settles_with(lab: &Lab, what: &str, key: &str) {
    // The same request again, with the same key.
    let again = lab.skep(["create", "s", "--idempotency-key", key, "--json"]).run().ok();
    assert_eq!(again.json()["state"], "ready", "{what}");
    assert_eq!(lab.sandboxes().len(), 1, "{what}");
    assert_eq!(lab.keepers().len(), 1, "{what}: one keeper");
    assert_eq!(lab.exec_script("s", "cat a").run().ok().text(), "a", "{what}");
    lab.skep(["rm", "s"]).run().ok();
    wait_for_empty(what, 10, || outside::processes_of(&lab.root));
    let left = std::fs::read_dir(lab.state.join("sandboxes")).unwrap().count();
    assert_eq!(left, 0, "{what}: directories are left");
    let ids = lab.ids_ever();
    wait_for_empty(what, 10, || outside::cgroups_of(&ids));
}

/// Everything at once, as when the machine's memory runs out: maker, keeper and init.
fn kill_all_when_stopped(lab: &Lab, mut child: Child) {
    wait_for("the failpoint to be met", 20, || {
        let stopped = |pid: i32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        };
        let met = outside::processes_of(&lab.root).iter().any(|one| stopped(one.pid));
        (met || child.try_wait().unwrap().is_some()).then_some(())
    });
    outside::kill_all(&lab.root);
    let _ = child.wait();
}

#[test]
fn crash_1_everything_killed_at_every_step_of_create() {
    for_both(|lab| {
        lab.write("a", "a\n");
        for name in failpoints() {
            let what = format!("{name}=stop");
            println!("{what}");
            kill_all_when_stopped(lab, create(lab, &what, &what).spawn());
            lab.skep(["ls"]).run().ok();
            let rows = lab.sandboxes();
            if rows.is_empty() {
                settles_with(lab, &what, &what);
            } else {
                assert!(matches!(rows[0]["state"].as_str(), Some("stopped" | "error" | "ready")));
                lab.skep(["rm", "s"]).run().ok();
            }
        }
    });
}

#[test]
fn crash_1_a_run_killed_while_it_creates_leaves_nothing() {
    for_both(|lab| {
        lab.write("a", "a\n");
        for name in failpoints() {
            let line = ["run", "--name", "s", "--", "sleep", "1000"];
            let _ = std::fs::remove_dir_all(lab.state.join("probed"));
            let ran = lab.skep(line).env("SKEP_FAILPOINT", format!("{name}=kill")).run();
            assert!(ran.code() == 125 || ran.code() == -9, "{name}: {}", ran.describe());
            settles(lab, &name);
        }
    });
}
