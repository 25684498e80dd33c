//! What a keeper looks at follows its sandbox, not the host: a thousand sandboxes on one machine must not
//! read each other's processes.

use crate::harness::{Lab, for_both, skip};
use std::process::{Child, Command, Stdio};

/// Processes of the host that do nothing; they end with this.
struct Crowd(Vec<Child>);

impl Crowd {
    fn new(count: usize) -> Self {
        let sleeper = |_| {
            let mut command = Command::new("sleep");
            command.arg("600").stdin(Stdio::null()).stdout(Stdio::null());
            command.spawn().unwrap()
        };
        Self((0..count).map(sleeper).collect())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// How often a run, its keeper and its init open something in `/proc`, with a command that lives long
/// enough to be moved into its group, leaves a daemon behind and is ended.
fn looks(lab: &Lab) -> Option<usize> {
    let trace = lab.root.join("trace");
    let options = ["-f", "-qq", "-e", "trace=openat,openat2", "-o", trace.to_str().unwrap()];
    let script = "sh -c 'setsid sleep 300 >/dev/null 2>&1 &'; exec sleep 0.6";
    let line = ["run", "--timeout", "20s", "--", "sh", "-c", script];
    let tracer = lab.program("strace").args(options).arg(&lab.binary).args(line);
    let Ok(ran) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tracer.run())) else {
        skip("strace is needed to count system calls");
        return None;
    };
    assert_eq!(ran.code(), 0, "{}", ran.describe());
    let text = std::fs::read_to_string(&trace).unwrap();
    std::fs::remove_file(&trace).unwrap();
    let in_proc = |line: &&str| line.contains("\"/proc/") && !line.contains("resumed>");
    Some(text.lines().filter(in_proc).count())
}

#[test]
fn what_a_keeper_looks_at_follows_the_sandbox_and_not_the_host() {
    for_both(|lab| {
        let Some(alone) = looks(lab) else { return };
        let crowd = Crowd::new(400);
        let crowded = looks(lab).unwrap_or_default();
        drop(crowd);
        println!("{alone} looks alone, {crowded} beside 400 others");
        // Looks are made again and again while the command lives: a few more or less.
        assert!(crowded < alone + 200, "{alone} looks alone, {crowded} beside 400 others");
    });
}
