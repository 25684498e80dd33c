//! Cost follows the change, not the project.

use crate::harness::{Lab, Who, for_both, for_each, skip};

/// How often a call of skep asks the kernel for names in a directory, or opens something.
fn looks(lab: &Lab, line: &[&str], whom: &[&str]) -> Option<usize> {
    calls(lab, line, whom, "getdents64,openat,openat2,newfstatat,statx")
}

/// How often a call of skep makes one of these system calls.
fn calls(lab: &Lab, line: &[&str], whom: &[&str], which: &str) -> Option<usize> {
    let trace = lab.root.join("trace");
    let options = [whom, &["-qq", "-o", trace.to_str().unwrap()]].concat();
    let calls = format!("trace={which}");
    let tracer = lab.program("strace").args(options).args(["-e", &calls]);
    let tracer = tracer.arg(&lab.binary).args(line);
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tracer.run()));
    let Ok(ran) = ran else {
        skip("strace is needed to count system calls");
        return None;
    };
    assert_eq!(ran.code(), 0, "{}", ran.describe());
    let text = std::fs::read_to_string(&trace).unwrap();
    std::fs::remove_file(&trace).unwrap();
    // Pieces of calls that other threads interrupted are counted once.
    Some(text.lines().filter(|line| !line.contains("resumed>")).count())
}

#[test]
fn a_review_does_not_walk_the_project() {
    for_both(|lab| {
        let mut counts = Vec::new();
        for directories in [3, 300] {
            std::fs::remove_dir_all(&lab.project).unwrap();
            for at in 0..directories {
                for file in 0..3 {
                    lab.write(format!("d{at}/f{file}"), "x\n");
                }
            }
            lab.worked("s", "echo y > d0/f0; echo z > d1/new; rm d2/f2");
            let mut steps = Vec::new();
            for line in [
                &["diff", "s", "--json"][..],
                &["approve", "s", "d0/f0", "--json"],
                &["conflicts", "s"],
                &["undo"],
                &["snapshot", "s", "label"],
                &["approve", "s"],
                // The snapshot holds what was never approved as it was then.
                &["rm", "--discard", "s"],
                &["create", "t"],
                &["fork", "t", "--name", "u"],
                &["rm", "--discard", "t", "u"],
            ] {
                // The keeper lives on, and with it the tracer: it is not followed where one starts.
                let whom: &[&str] =
                    if ["create", "fork"].contains(&line[0]) { &[] } else { &["-f"] };
                let Some(count) = looks(lab, line, whom) else { return };
                steps.push((line.join(" "), count));
            }
            counts.push(steps);
        }
        println!("{counts:#?}");
        // Making a sandbox looks for files to hide, at no more entries than `hidden.toml` allows.
        counts.iter_mut().for_each(|steps| steps.retain(|step| !step.0.starts_with("create")));
        for (small, large) in counts[0].iter().zip(&counts[1]) {
            // The same work; a little more for larger directories' entries is noise.
            assert!(large.1 <= small.1 + 60, "{} against {}: {}", large.1, small.1, small.0);
        }
    });
}

/// With four hundred sandboxes of one project a list took four seconds: each read the rows of all.
#[test]
fn a_list_reads_the_rows_once_however_many_there_are() {
    for_each([Who::user()], |lab| {
        lab.worked("s", "echo x > x");
        lab.skep(["fork", "s", "-n", "60"]).run().ok();
        let Some(reads) = calls(lab, &["ls", "--json"], &[], "pread64") else { return };
        assert!(reads < 2000, "{reads} reads for 61 sandboxes");
    });
}

/// KiB of a process that are its own, or shared with whom it was forked from or has forked.
fn anonymous(pid: i32) -> i64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Of a thousand made by the command line each had seven megabytes: the rows of those before it.
#[test]
fn a_keeper_does_not_keep_what_was_read_of_other_sandboxes() {
    for_each([Who::user()], |lab| {
        lab.create("first");
        let first = lab.keepers();
        lab.worked("s", "echo x > x");
        lab.skep(["fork", "s", "-n", "100"]).run().ok();
        lab.create("last");
        let last = lab.keepers().into_iter().find(|pid| !first.contains(pid)).unwrap();
        let (first, last) = (anonymous(first[0]), anonymous(last));
        println!("{first} KiB, then {last} KiB");
        // A worker that has answered much keeps its statements; not the rows.
        let more = if std::env::var_os("SKEP_TEST_HOST").is_some() { 2048 } else { 512 };
        assert!(last < first + more, "{first} KiB, then {last} KiB");
    });
}
