//! A run begins before its row is written and ends before its caller has said stop; neither shows.

use crate::harness::{Lab, for_both, outside, wait_for, wait_for_empty};
use std::io::Read as _;
use std::time::{Duration, Instant};

/// What the last start found out, as it is kept for the next.
fn found(lab: &Lab) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(lab.state.join("probed")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn guess(lab: &Lab) -> bool {
    let found = found(lab);
    assert_eq!(found.len(), 1, "{found:?}");
    let text = std::fs::read_to_string(&found[0]).unwrap();
    serde_json::from_str::<serde_json::Value>(&text).unwrap()["counted"].as_bool().unwrap()
}

#[test]
fn a_wrong_guess_about_the_cgroup_is_put_right() {
    for_both(|lab| {
        lab.write("a", "a\n");
        let room = || {
            let line = ["run", "--json", "--", "df", "--output=size", "/tmp"];
            let ran = lab.skep(line).run().ok();
            let document = ran.json();
            (document["stdout"].clone(), document["enforcement"]["memory"].clone())
        };
        let (first, again) = (room(), room());
        assert_eq!(first, again);
        let truth = guess(lab);
        let path = found(lab).remove(0);
        let text = std::fs::read_to_string(&path).unwrap();
        let lie = text.replace(&format!("\"counted\":{truth}"), &format!("\"counted\":{}", !truth));
        assert_ne!(lie, text);
        std::fs::write(&path, lie).unwrap();
        assert_eq!(room(), first, "what was guessed counted, not what is");
        assert_eq!(guess(lab), truth);
        lab.audit_leftovers();
    });
}

#[test]
fn a_start_that_is_withdrawn_leaves_no_process() {
    for_both(|lab| {
        lab.create("s");
        let before = lab.keepers();
        for _ in 0..3 {
            let ran = lab.skep(["run", "--name", "s", "--", "touch", "made"]).run();
            assert_eq!(ran.code(), 125, "{}", ran.describe());
            assert!(ran.errors().contains("`s`"), "{}", ran.describe());
        }
        assert_eq!(lab.keepers(), before);
        assert_eq!(lab.sandboxes().len(), 1);
        lab.skep(["rm", "s"]).run().ok();
        wait_for_empty("processes", 10, || outside::processes_of(&lab.root));
        lab.audit_leftovers();
    });
}

#[test]
fn output_that_nobody_has_read_yet_outlives_the_sandbox() {
    const BYTES: usize = 450_000;
    for_both(|lab| {
        let script = format!("head -c {BYTES} /dev/zero");
        let mut child = lab.run_script(&script).spawn();
        let ended = || {
            let sandbox = std::fs::read_dir(lab.state.join("sandboxes")).ok()?.next()?.ok()?;
            let mut execs = std::fs::read_dir(sandbox.path().join("execs")).ok()?.flatten();
            execs
                .any(|entry| entry.path().extension().is_some_and(|end| end == "end"))
                .then_some(())
        };
        wait_for("the end of the command", 20, ended);
        // Longer than a keeper waits for a caller that is gone.
        let since = Instant::now();
        let patience = Duration::from_millis(1_500);
        wait_for("patience to run out", 5, || (since.elapsed() > patience).then_some(()));
        let mut output = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut output).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert_eq!(output.len(), BYTES);
        lab.audit_leftovers();
    });
}
