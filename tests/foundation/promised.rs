//! What a start takes from the one before it: a cgroup that is made when somebody is to be in it, and the host's
//! tree that is let go of while others work. Neither may show.

use crate::harness::{Lab, entries, for_both, outside, wait_for, wait_for_empty};
use std::path::PathBuf;

const BUSY: [&str; 6] = ["run", "--json", "--", "sh", "-c", "while :; do :; done"];

fn begun(lab: &Lab) {
    lab.write("a", "a\n");
    lab.skep(["ls"]).run().ok();
}

/// What was found of this host, as it is kept for the next start.
fn remembered(lab: &Lab) -> Vec<PathBuf> {
    entries(&lab.state.join("probed"))
}

/// Whether a cgroup can be made here at all.
fn has_group(lab: &Lab) -> bool {
    let ran = lab.skep(["run", "--json", "--", "true"]).run().ok().json();
    let memory = &ran["enforcement"]["memory"];
    memory["how"].as_str().is_some_and(|how| how.starts_with("cgroup"))
}

#[test]
fn a_group_that_was_promised_is_there_a_moment_later_and_gone_with_the_sandbox() {
    for_both(|lab| {
        begun(lab);
        let grouped = has_group(lab);
        // The second start knows what the first one found.
        lab.create("s");
        let ids = lab.ids_ever();
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", "while :; do :; done"]).run().ok();
        if grouped {
            wait_for("the group", 10, || (!outside::cgroups_of(&ids).is_empty()).then_some(()));
        }
        lab.skep(["rm", "--discard", "s"]).run().ok();
        wait_for_empty("the group", 10, || outside::cgroups_of(&ids));
        lab.audit_leftovers();
    });
}

#[test]
fn a_group_that_was_promised_and_cannot_be_had_ends_the_sandbox_and_says_why() {
    for_both(|lab| {
        begun(lab);
        if !has_group(lab) {
            return;
        }
        ends_for_want_of_limits(lab, lab.skep(BUSY).env("SKEP_FAILPOINT", "join.cgroup=eio"));
        lab.audit_leftovers();
    });
}

/// A command that would run for ever ends, says why, and the next one looks again, and has its limits.
#[track_caller]
fn ends_for_want_of_limits(lab: &Lab, call: crate::harness::Call) {
    let document = call.within(30).run().exits(137).json();
    assert_eq!(document["reason"], "killed", "{document:#}");
    let message = document["message"].as_str().unwrap_or_default();
    assert!(message.contains("limits could not be put on"), "{document:#}");
    assert_eq!(remembered(lab), Vec::<PathBuf>::new());
    assert!(has_group(lab));
}

#[test]
fn a_group_that_comes_to_something_else_than_was_reported_ends_the_sandbox() {
    for_both(|lab| {
        begun(lab);
        if !has_group(lab) {
            return;
        }
        let path = remembered(lab).pop().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        // The report of a start that found a limit which this host does not hold.
        let lie = text.replace("cgroup v1, 4096 tasks", "cgroup v2, 4096 tasks");
        let lie = if lie == text { text.replace(" tasks\"", " or more tasks\"") } else { lie };
        assert_ne!(lie, text, "{text}");
        std::fs::write(&path, lie).unwrap();
        ends_for_want_of_limits(lab, lab.skep(BUSY));
        lab.audit_leftovers();
    });
}

#[test]
fn the_hosts_tree_is_gone_before_a_command_runs_also_where_it_is_let_go_of_late() {
    for_both(|lab| {
        begun(lab);
        let points =
            || lab.run_script("awk '{print $5}' /proc/self/mountinfo | sort").run().ok().text();
        // The first one is probed, and has let go of it for that.
        let (first, second, third) = (points(), points(), points());
        assert_eq!((&second, &third), (&first, &first));
        let roots = first.lines().filter(|line| *line == "/").count();
        assert_eq!(roots, 1, "{first}");
    });
}
