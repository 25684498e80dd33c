//! The Nth system call of making a sandbox, of a whole run and of a removal fails, or is the last thing the
//! process does: what is left is whole or gone, and the same again works.

use crate::harness::{Fault, Lab, Ran, Sweep, Tree, for_both, outside, plan, wait_for_empty};
use serde_json::Value;

/// Nothing of any sandbox is left: processes, directories, cgroups.
#[track_caller]
fn nothing_left(lab: &Lab, what: &str) {
    wait_for_empty(what, 20, || outside::processes_of(&lab.root));
    for place in ["sandboxes", "trash"] {
        let left = std::fs::read_dir(lab.state.join(place)).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{what}: `{place}` is not empty");
    }
    let ids = lab.ids_ever();
    wait_for_empty(what, 20, || outside::cgroups_of(&ids));
}

/// After a fault amid the making of `s`: the next command finds it usable, at rest with a way out, or
/// gone.
#[track_caller]
fn usable_or_gone(lab: &Lab, ran: &Ran, what: &str) {
    let sandboxes = lab.sandboxes();
    if ran.code() == 0 {
        assert_eq!(sandboxes.len(), 1, "{what}: success was reported");
        assert_eq!(sandboxes[0]["state"], "ready", "{what}: success was reported");
    }
    if let Some(sandbox) = sandboxes.first() {
        let state = sandbox["state"].as_str().unwrap();
        assert!(matches!(state, "ready" | "stopped" | "error"), "{what}: {sandbox}");
        if state == "ready" {
            let said = lab.exec_script("s", "cat a").run();
            assert_eq!(said.code(), 0, "{what}: {}", said.describe());
            assert_eq!(said.text(), "a", "{what}");
        }
        let gone = lab.skep(["rm", "s"]).run();
        assert_eq!(gone.code(), 0, "{what}: {}", gone.describe());
    }
    nothing_left(lab, what);
}

fn sweep_making(
    lab: &Lab,
    sweep: &Sweep<'_>,
    few: usize,
    settles: impl Fn(&Ran, &Fault, &str),
) -> usize {
    lab.write("a", "a\n");
    let before = lab.tree();
    let places = sweep.places();
    for sandbox in lab.sandboxes() {
        lab.skep(["rm", sandbox["name"].as_str().unwrap()]).run().ok();
    }
    let faults = plan(&places, few);
    for fault in &faults {
        let what = format!("{fault:?}");
        let ran = sweep.meets(fault);
        settles(&ran, fault, &what);
        lab.tree().assert_equals(&before, &what);
    }
    // And the same request works, after all of them.
    lab.create("s");
    assert_eq!(lab.exec_script("s", "cat a").run().ok().text(), "a");
    lab.skep(["rm", "s"]).run().ok();
    println!("{} faults", faults.len());
    faults.len()
}

#[test]
fn heavy_crash_5_the_nth_system_call_of_a_create_fails_or_is_the_last() {
    for_both(|lab| {
        // What it forks stays, and with it would the strace that followed it.
        let Some(sweep) = Sweep::new(lab, &["create", "s"], false) else { return };
        let faults = sweep_making(lab, &sweep, 1, |ran, _, what| usable_or_gone(lab, ran, what));
        assert!(faults > 5, "{faults}");
    });
}

#[test]
fn heavy_crash_5_the_nth_system_call_of_a_whole_run_fails_or_is_the_last() {
    for_both(|lab| {
        // Everything in it is followed: maker, keeper, init and the command. A keeper that outlives its
        // maker, as it should, ends when nobody came for a while, and with it the strace.
        let line = ["run", "--name", "s", "--rm", "--idle-timeout", "1s", "--", "cat", "a"];
        let Some(sweep) = Sweep::new(lab, &line, true) else { return };
        let faults = sweep_making(lab, &sweep, 1, |ran, fault, what| {
            if ran.code() == 0 {
                assert_eq!(ran.text(), "a", "{what}: {}", ran.describe());
            } else if !fault.dies && !kept_from_saying(&sweep) {
                assert!(!ran.errors().is_empty(), "{what}: nothing is said");
            }
            for sandbox in lab.sandboxes() {
                let gone = lab.skep(["rm", sandbox["name"].as_str().unwrap()]).run();
                assert_eq!(gone.code(), 0, "{what}: {}", gone.describe());
            }
            nothing_left(lab, what);
        });
        assert!(faults > 5, "{faults}");
    });
}

/// Whether what could not be written was the very word that something is wrong.
fn kept_from_saying(sweep: &Sweep<'_>) -> bool {
    let trace = std::fs::read_to_string(sweep.trace()).unwrap();
    trace.lines().any(|line| line.contains("write(2<") && line.contains("INJECTED"))
}

/// Two sandboxes on shared layers, one of which is removed again and again.
struct Removal<'a> {
    lab: &'a Lab,
    project: Tree,
    digest: Value,
}

impl Removal<'_> {
    #[track_caller]
    fn settled(&self, ran: Option<&Ran>, what: &str) {
        let lab = self.lab;
        let names: Vec<String> =
            lab.sandboxes().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect();
        assert!(names.contains(&"kept".to_owned()), "{what}: another sandbox is gone: {names:?}");
        assert_eq!(lab.diff("kept")["digest"], self.digest, "{what}: another sandbox was hurt");
        if names.contains(&"s".to_owned()) {
            assert!(ran.is_none_or(|ran| ran.code() != 0), "{what}: success was reported");
            assert_eq!(lab.diff("s")["digest"], self.digest, "{what}: a part of it is gone");
            let gone = lab.skep(["rm", "--discard", "s"]).run();
            assert_eq!(gone.code(), 0, "{what}: {}", gone.describe());
        }
        let places = std::fs::read_dir(lab.state.join("sandboxes")).unwrap().count();
        assert_eq!(places, 1, "{what}: a directory is left");
        lab.tree().assert_equals(&self.project, what);
    }

    #[track_caller]
    fn again(&self, what: &str) {
        let made = self.lab.skep(["fork", "kept", "--name", "s"]).run();
        assert_eq!(made.code(), 0, "{what}: {}", made.describe());
    }
}

#[test]
fn heavy_crash_5_the_nth_system_call_of_a_removal_fails_or_is_the_last() {
    for_both(|lab| {
        lab.write("a", "a\n");
        lab.write("b/c", "c\n");
        let work = "echo new > a; rm -r b; mkdir -p d/e; echo n > d/e/n; ln -s a l";
        lab.skep(["run", "--keep", "--name", "kept", "--", "sh", "-c", work]).run().ok();
        let Some(sweep) = Sweep::new(lab, &["rm", "--discard", "s"], true) else { return };
        let digest = lab.diff("kept")["digest"].clone();
        let removal = Removal { lab, project: lab.tree(), digest };
        removal.again("counting");
        let places = sweep.places();
        removal.settled(None, "counting");
        let faults = plan(&places, 2);
        for fault in &faults {
            let what = format!("{fault:?}");
            removal.again(&what);
            let ran = sweep.meets(fault);
            removal.settled(Some(&ran), &what);
        }
        println!("{} faults", faults.len());
        assert!(faults.len() > 5, "{}", faults.len());
    });
}
