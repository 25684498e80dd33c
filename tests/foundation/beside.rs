//! Commands beside other commands that are half-way: an approval, records that cannot be read.

use crate::harness::{Held, Lab, for_both, wait_for};
use std::path::PathBuf;

fn directory_of(lab: &Lab, name: &str) -> PathBuf {
    lab.state.join("sandboxes").join(lab.sandbox(name)["id"].as_str().unwrap())
}

/// An approval has paused the sandbox: a command that waits for its end makes something to review again.
#[test]
fn what_waited_for_an_approval_is_to_be_reviewed() {
    for_both(|lab| {
        lab.create("s");
        lab.exec_script("s", "echo 1 > one").run().ok();
        // Something runs, so that there is something to pause.
        lab.skep(["exec", "-d", "s", "--", "sleep", "600"]).run().ok();
        let upper = directory_of(lab, "s").join("upper");
        let approving = Held::at(lab.skep(["approve", "s"]), &["apply.publish"]);
        let beside = lab.exec_script("s", "echo 2 > two").spawn();
        let begun = || lab.skep(["ps", "s", "--json"]).run().ok().json().as_array().unwrap().len();
        wait_for("the command to be asked for", 20, || (begun() >= 3).then_some(()));
        assert!(!upper.join("two").exists(), "it ran during the approval");
        assert!(approving.go_on().status.success());
        let ended = beside.wait_with_output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        assert!(lab.project.join("one").exists() && !lab.project.join("two").exists());
        assert_eq!(lab.diff("s")["changes"][0]["path"], "two");
        assert_eq!(lab.sandbox("s")["state"], "ready");
    });
}

/// Records of execs that cannot be read are the trouble of one sandbox.
#[test]
fn records_that_cannot_be_read_stop_nobody_else() {
    for_both(|lab| {
        lab.create("bad");
        lab.create("good");
        lab.skep(["exec", "bad", "--", "true"]).run().ok();
        lab.skep(["ps", "bad"]).run().ok();
        let directory = directory_of(lab, "bad");
        let id = directory.file_name().unwrap().to_owned();
        let begun = directory.join("begun");
        let _ = std::fs::remove_dir_all(&begun);
        lab.write(&begun, "no directory\n");
        lab.write(lab.state.join("news").join(id), "");
        for call in [&["ls"][..], &["stats"], &["events"], &["diff", "good"], &["create", "new"]] {
            lab.skep(call).run().ok();
        }
        lab.exec_script("good", "true").run().ok();
        let reason = lab.sandbox("bad")["state_reason"].to_string();
        assert!(reason.contains("some of its execs are not known"), "{reason}");
        // What it did cannot be told, so it goes only when that is given up.
        lab.skep(["rm", "bad"]).run().exits(1);
        lab.skep(["rm", "--discard", "bad"]).run().ok();
        for left in crate::harness::entries(&lab.state.join("news")) {
            std::fs::remove_file(left).unwrap();
        }
    });
}
