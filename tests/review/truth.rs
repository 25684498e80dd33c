//! A review that cannot be made is an error. It is never an empty one.

use crate::harness::{for_both, skip};

/// What reading a workspace asks of the kernel.
const CALLS: [&str; 6] = ["getdents64", "openat", "openat2", "statx", "newfstatat", "pread64"];

#[test]
fn i8_a_diff_whose_nth_call_fails_says_so_or_is_right() {
    for_both(|lab| {
        if lab.program("strace").arg("true").run().code() != 0 {
            return skip("strace is needed to inject failing system calls");
        }
        lab.write("d/a", "a\n");
        let script = "echo more >> d/a; rm -r d/sub; mkdir -p e/f; echo new > e/f/new";
        lab.write("d/sub/gone", "gone\n");
        lab.skep(["run", "--name", "s", "--", "sh", "-c", script]).run().ok();
        let digest = lab.diff("s")["digest"].clone();
        let (mut failed, mut right) = (0, 0);
        for call in CALLS {
            for nth in [1, 2, 3, 5, 8, 13, 21] {
                let inject = format!("inject={call}:error=EIO:when={nth}");
                let traced = lab.program("strace").args(["-f", "-qq", "-o", "/dev/null", "-e"]);
                let traced = traced.arg(format!("trace={call}")).args(["-e", &inject]);
                let ran = traced.arg(&lab.binary).args(["diff", "s", "--json"]).run();
                if ran.code() == 0 {
                    // The call was not that of the review, or its answer did not matter.
                    assert_eq!(ran.json()["digest"], digest, "{call} {nth}: {}", ran.describe());
                    right += 1;
                } else {
                    assert!(ran.stdout.is_empty(), "{call} {nth}: {}", ran.describe());
                    failed += 1;
                }
            }
        }
        assert!(failed > 3 && right > 3, "{failed} failed, {right} were right");
    });
}

#[test]
fn i8_a_workspace_that_is_not_there_is_no_empty_review() {
    for_both(|lab| {
        lab.skep(["run", "--name", "s", "--", "sh", "-c", "echo new > new"]).run().ok();
        let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
        let upper = lab.state.join("sandboxes").join(id).join("upper");
        let aside = lab.state.join("aside");
        std::fs::rename(&upper, &aside).unwrap();
        let ran = lab.skep(["diff", "s", "--json"]).run();
        assert_ne!(ran.code(), 0, "{}", ran.describe());
        assert!(ran.stdout.is_empty(), "{}", ran.describe());
        assert_ne!(lab.skep(["approve", "s"]).run().code(), 0);
        std::fs::rename(&aside, &upper).unwrap();
        assert_eq!(lab.diff("s")["changes"][0]["path"], "new");
    });
}
