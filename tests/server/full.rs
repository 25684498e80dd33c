//! The disk is full at each write of each commit: strace answers the writes of the database's log with
//! ENOSPC from the Nth on. What is asked is done or refused with `no_space`, and can be asked again.

use crate::harness::{Lab, Tree, entries, for_both, long, skip};
use serde_json::Value;

/// What is asked, and what comes before it beside a sandbox `s` with work.
struct Operation {
    line: &'static [&'static str],
    before: &'static [&'static [&'static str]],
    /// Exit codes of asking again where the first time was half way: done already, nothing left.
    again: &'static [i32],
}

const fn operation(
    line: &'static [&'static str],
    before: &'static [&'static [&'static str]],
) -> Operation {
    Operation { line, before, again: &[0] }
}

const OPERATIONS: &[Operation] = &[
    operation(&["create", "--json", "new"], &[]),
    operation(&["run", "--json", "--name", "new", "--", "sh", "-c", "echo x > x"], &[]),
    operation(&["exec", "--json", "s", "--", "true"], &[]),
    operation(&["stop", "--json", "s"], &[]),
    operation(&["start", "--json", "s"], &[&["stop", "s"]]),
    operation(&["freeze", "--json", "s"], &[]),
    operation(&["snapshot", "--json", "s", "label"], &[]),
    operation(
        &["restore", "--json", "s", "label"],
        &[&["snapshot", "s", "label"], &["exec", "s", "--", "touch", "more"]],
    ),
    operation(&["fork", "--json", "s", "--name", "new"], &[&["stop", "s"]]),
    operation(&["approve", "--json", "s"], &[]),
    Operation { line: &["undo", "--json"], before: &[&["approve", "s"]], again: &[0, 3] },
    operation(&["reject", "--json", "s", "b.txt"], &[]),
    operation(&["rebase", "--json", "s"], &[]),
    operation(&["template", "save", "--json", "s", "new"], &[&["stop", "s"]]),
    operation(&["gc", "--json", "--older-than", "1ms", "--archive"], &[&["stop", "s"]]),
    Operation { line: &["rm", "--json", "--discard", "s"], before: &[], again: &[0, 3] },
];

fn prepare(lab: &Lab, operation: &Operation) {
    for one in lab.sandboxes() {
        let name = one["name"].as_str().unwrap();
        if name != "runs" {
            lab.skep(["rm", "--discard", name]).run().ok();
        }
    }
    let _ = lab.skep(["template", "rm", "new"]).run();
    let _ = std::fs::remove_dir_all(lab.state.join("archives"));
    let _ = std::fs::remove_file(lab.project.join("b.txt"));
    lab.write("a.txt", "one\n");
    lab.create("s");
    lab.exec_script("s", "echo two >> a.txt; echo b > b.txt").run().ok();
    operation.before.iter().for_each(|line| drop(lab.skep(*line).run().ok()));
}

/// The command with the disk full from the Nth write on; without a number it counts.
fn meets(lab: &Lab, line: &[&str], nth: Option<usize>) -> (crate::harness::Ran, usize) {
    let trace = lab.root.join("trace");
    let strace = lab.program("strace").args(["-qq", "-o"]).arg(&trace).arg("-P");
    let strace = strace.arg(lab.state.join("skep.db-wal")).args(["-e", "trace=pwrite64"]);
    let strace = match nth {
        None => strace,
        Some(nth) => strace.args(["-e", &format!("inject=pwrite64:error=ENOSPC:when={nth}+")]),
    };
    let ran = strace.arg(&lab.binary).args(line).within(120).run();
    let text = std::fs::read_to_string(trace).unwrap();
    (ran, text.lines().filter(|line| line.contains("pwrite64(")).count())
}

/// Whole, or not at all.
fn assert_whole(lab: &Lab, at: &str) {
    let tree = lab.tree();
    let (a, b) = (tree.get("a.txt").unwrap().bytes.clone(), tree.get("b.txt"));
    let applied = (a == b"one\ntwo\n", b.is_some_and(|b| b.bytes == b"b\n"));
    assert!(applied == (true, true) || (a == b"one\n" && b.is_none()), "{at}: {applied:?}");
}

/// Of two rows and more than one look at them: the states of all that there is.
fn half_made(lab: &Lab) -> Vec<Value> {
    lab.sandboxes().into_iter().filter(|one| one["state"] == "creating").collect()
}

#[test]
fn heavy_store_1_the_disk_is_full_at_each_write_of_each_commit() {
    for_both(|lab| {
        if lab.program("strace").args(["true"]).run().code() != 0 {
            return skip("strace is needed to fill a disk at the Nth write");
        }
        lab.write("a.txt", "one\n");
        lab.create("runs");
        let script = "until [ -e /tmp/end ]; do sleep 0.2; done; echo went on";
        let exec = lab.skep(["exec", "-d", "runs", "--", "sh", "-c", script]).run().ok().text();
        for operation in OPERATIONS {
            prepare(lab, operation);
            let (ran, count) = meets(lab, operation.line, None);
            ran.ok();
            println!("{:?}: {count} writes", operation.line);
            assert!(count > 0, "{:?} writes nothing", operation.line);
            let mut refused = 0;
            let tried: Vec<usize> = match long() {
                true => (1..=count).collect(),
                false => vec![1, count.div_ceil(2), count],
            };
            for nth in tried {
                let at = format!("{:?}, write {nth} of {count}", operation.line);
                prepare(lab, operation);
                let before = lab.tree();
                let (ran, _) = meets(lab, operation.line, Some(nth));
                if ran.code() != 0 {
                    assert_eq!(ran.problem()["code"], "no_space", "{at}: {}", ran.describe());
                    refused += 1;
                }
                assert_whole(lab, &at);
                assert!(half_made(lab).is_empty(), "{at}");
                if operation.line[0] == "gc" {
                    let there = lab.sandboxes().iter().any(|one| one["name"] == "s");
                    let archived = !entries(&lab.state.join("archives")).is_empty();
                    assert!(there || archived, "{at}: the work is nowhere");
                }
                unchanged_unless_asked(operation, &before, &lab.tree(), &at);
                let (failed, again) = (ran.code() != 0, lab.skep(operation.line).run());
                let done = operation.again.contains(&again.code());
                // What was done, or was half way and is finished now, cannot be done again.
                let over = again.code() != 0 && !again.errors().contains("no_space");
                assert!(
                    done || over && !failed || over && is_over(&again),
                    "{at}: {}",
                    again.describe()
                );
                assert_whole(lab, &at);
            }
            // What makes room has a reserve to do it with.
            let room = ["gc", "rm"].contains(&operation.line[0]);
            assert!(room || refused > 0, "{:?} never met the full disk", operation.line);
        }
        lab.skep(["exec", "runs", "--", "touch", "/tmp/end"]).run().ok();
        assert_eq!(lab.skep(["logs", "-f", &exec]).run().ok().text(), "went on");
    });
}

/// Exists already, is in that state already, or nothing is left to do.
fn is_over(again: &crate::harness::Ran) -> bool {
    let code = again.problem()["code"].clone();
    ["already_exists", "illegal_state", "not_found"].iter().any(|over| code == *over)
}

fn unchanged_unless_asked(operation: &Operation, before: &Tree, after: &Tree, at: &str) {
    if !["approve", "undo"].contains(&operation.line[0]) {
        after.assert_equals(before, at);
    }
}
