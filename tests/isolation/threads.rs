//! Threads that look like no process any more, or like half of one.

use crate::harness::{Lab, attack, for_both, wait_for};

fn place(lab: &Lab) -> Option<()> {
    std::fs::copy(attack::program("threads")?, lab.project.join("threads")).unwrap();
    Some(())
}

/// What a thread has open is looked for in the table of its process: one of its own is refused.
#[test]
fn res_5_a_thread_has_no_descriptors_of_its_own() {
    for_both(|lab| {
        let Some(()) = place(lab) else { return };
        let inside = lab.skep(["run", "--", "./threads", "own"]).run().ok().text();
        assert_eq!(inside, "refused\nstarted\nrefused");
        // Control: this kernel knows such threads.
        let outside = lab.program(lab.project.join("threads")).arg("own").run().ok().text();
        assert_eq!(outside, "started\nstarted\nstarted");
    });
}

/// A process whose first thread has ended is in no list of its group, and shows no mark.
#[test]
fn res_11_a_kill_and_a_timeout_reach_a_process_without_its_first_thread() {
    for_both(|lab| {
        let Some(()) = place(lab) else { return };
        lab.create("s");
        // Another one, so that not everyone may be ended.
        lab.skep(["exec", "-d", "s", "--", "sleep", "600"]).run().ok();
        let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
        let beat = lab.state.join("sandboxes").join(id).join("upper/beat");
        let length = || std::fs::metadata(&beat).map_or(0, |found| found.len());
        let stands = || {
            wait_for("the thread to stand", 5, || {
                let before = length();
                std::thread::sleep(std::time::Duration::from_millis(200));
                (length() == before).then_some(())
            });
        };
        let words = ["exec", "s", "--json", "--timeout", "1s", "--grace", "100ms", "--"];
        let ran = lab.skep(words).args(["./threads", "daemon"]).run();
        assert_eq!(ran.json()["reason"], "timeout", "{}", ran.describe());
        assert!(length() > 0, "control: it wrote");
        stands();
        std::fs::write(&beat, "").unwrap();
        let exec = lab.skep(["exec", "-d", "s", "--", "./threads", "daemon"]).run().ok().text();
        wait_for("it to write", 10, || (length() > 10).then_some(()));
        lab.skep(["kill", exec.trim()]).run().ok();
        stands();
        lab.skep(["stop", "s"]).run().ok();
    });
}
