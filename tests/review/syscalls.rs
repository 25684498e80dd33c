//! The Nth system call of a kind fails, or is the last thing the process does.

use super::crash::Scene;
use crate::harness::{Lab, for_both, long, skip};
use std::collections::BTreeMap;

/// What an approval asks of the kernel where an answer matters.
const CALLS: &str = "renameat2,rename,renameat,fsync,fdatasync,syncfs,mkdirat,mkdir,unlinkat,unlink,\
    rmdir,fchmod,fchmodat,openat2,openat,symlinkat,linkat,write,pwrite64,ftruncate,\
    copy_file_range,ioctl,fchown,fchownat,utimensat,getdents64,readlinkat,statx,newfstatat,read,pread64";

/// The faults: how strace is told, and whether the process dies of it.
const FAULTS: [(&str, bool); 4] = [
    ("signal=KILL:when={}", true),
    ("error=EIO:when={}", false),
    ("error=ENOSPC:when={}", false),
    ("error=EIO:when={}+", false),
];

/// What else a filesystem or a process may run out of, at the calls that meet it.
const SCARCE: [(&str, &str); 4] =
    [("openat2", "EMFILE"), ("renameat2", "EROFS"), ("fsync", "EDQUOT"), ("mkdirat", "EACCES")];

/// How often each call is made by one approval.
fn counts(scene: &Scene<'_>) -> BTreeMap<String, usize> {
    let trace = scene.lab.root.join("trace");
    let line = ["-f", "-qq", "-o", trace.to_str().unwrap(), "-e", &format!("trace={CALLS}")];
    let binary = scene.lab.binary.to_str().unwrap();
    let call = scene.lab.program("strace").args(line).args([binary, "approve", "s", "--json"]);
    call.run().ok();
    let mut counts = BTreeMap::new();
    for text in std::fs::read_to_string(&trace).unwrap().lines() {
        let call = text.split_whitespace().nth(1).and_then(|rest| rest.split('(').next());
        if let Some(call) = call.filter(|call| CALLS.split(',').any(|one| one == *call)) {
            *counts.entry(call.to_owned()).or_insert(0) += 1;
        }
    }
    std::fs::remove_file(&trace).unwrap();
    scene.rewind("counting");
    counts
}

fn has_strace(lab: &Lab) -> bool {
    let ran = std::panic::catch_unwind(|| lab.program("strace").args(["true"]).run().code());
    let works = ran.is_ok_and(|code| code == 0);
    if !works {
        skip("strace is needed to inject failing system calls");
    }
    works
}

/// A few of many, the last ones among them: those are nearest to the publishing.
fn sample(count: usize, wanted: usize) -> Vec<usize> {
    if count <= wanted {
        return (1..=count).collect();
    }
    (1..=wanted).map(|at| count - (wanted - at) * count / wanted).collect()
}

/// Whether every sync that failed was of a directory that had just been synced. SQLite syncs the
/// directory of a new log once more than the store itself does, and does not look at the result.
fn was_synced_before(trace: &std::path::Path) -> bool {
    let text = std::fs::read_to_string(trace).unwrap();
    let path = |line: &str| line.split('<').nth(1)?.split('>').next().map(str::to_owned);
    let mut synced = std::collections::BTreeSet::new();
    let mut all = true;
    for line in text.lines().filter(|line| line.contains("sync(")) {
        match line.contains("INJECTED") {
            true => {
                all &= path(line)
                    .is_some_and(|path| synced.contains(&path) && path.ends_with("/state"))
            }
            false => synced.extend(path(line)),
        }
    }
    all
}

#[test]
fn heavy_crash_5_the_nth_system_call_fails_or_is_the_last() {
    for_both(|lab| {
        if !has_strace(lab) {
            return;
        }
        let scene = Scene::new(lab);
        let counts = counts(&scene);
        println!("{counts:?}");
        let short = ["renameat2", "fsync", "mkdirat", "openat2", "unlinkat", "write", "pwrite64"];
        let trace = lab.root.join("trace");
        let mut faults = 0;
        for (call, count) in &counts {
            if !long() && !short.contains(&call.as_str()) {
                continue;
            }
            for (fault, dies) in FAULTS.iter().take(if long() { 4 } else { 2 }) {
                for nth in sample(*count, if long() { usize::MAX } else { 3 }) {
                    let inject = format!("inject={call}:{}", fault.replace("{}", &nth.to_string()));
                    let line = [
                        "-f",
                        "-qq",
                        "-y",
                        "-o",
                        trace.to_str().unwrap(),
                        "-e",
                        &format!("trace={call}"),
                        "-e",
                        &inject,
                    ];
                    let binary = lab.binary.to_str().unwrap();
                    let traced =
                        lab.program("strace").args(line).args([binary, "approve", "s", "--json"]);
                    let ran = traced.run();
                    // A disk that goes on failing does not let a step be taken back either: that is
                    // said, and the next command goes on.
                    let stuck = fault.ends_with('+') && ran.errors().contains("half-way");
                    if !dies && !stuck {
                        scene.whole(&ran, &scene.after, &inject);
                    }
                    let syncs = ["fsync", "fdatasync", "syncfs"].contains(&call.as_str());
                    if !dies && syncs && !was_synced_before(&trace) {
                        assert_ne!(ran.code(), 0, "{inject}: success after a failed sync");
                    }
                    scene.rewind(&inject);
                    faults += 1;
                }
            }
        }
        for (call, error) in SCARCE {
            for nth in sample(counts.get(call).copied().unwrap_or(0), if long() { 50 } else { 2 }) {
                let inject = format!("inject={call}:error={error}:when={nth}");
                let line = ["-f", "-qq", "-o", "/dev/null", "-e", "trace=none", "-e", &inject];
                let binary = lab.binary.to_str().unwrap();
                let ran =
                    lab.program("strace").args(line).args([binary, "approve", "s", "--json"]).run();
                scene.whole(&ran, &scene.after, &inject);
                scene.rewind(&inject);
                faults += 1;
            }
        }
        scene.closed();
        println!("{faults} faults");
        assert!(faults > 20, "{faults}");
    });
}

#[test]
fn heavy_crash_5_a_rejection_killed_at_the_nth_system_call_loses_nothing_else() {
    for_both(|lab| {
        if !has_strace(lab) {
            return;
        }
        for name in ["a", "b", "c"] {
            lab.write(name, "old\n");
        }
        lab.worked("s", "for name in a b c; do echo new > $name; done; echo n > n");
        let before = lab.tree();
        let calls: &[&str] = if long() {
            &[
                "sendto",
                "sendmsg",
                "write",
                "pwrite64",
                "fdatasync",
                "openat",
                "rename",
                "fcntl",
                "clone3",
            ]
        } else {
            &["sendmsg", "pwrite64"]
        };
        let mut deaths = 0;
        for call in calls {
            for nth in 1..=if long() { 60 } else { 8 } {
                let inject = format!("inject={call}:signal=KILL:when={nth}");
                let line =
                    ["-qq", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &inject];
                let binary = lab.binary.to_str().unwrap();
                let tracer = lab.program("strace").args(line);
                let ran = tracer.args([binary, "reject", "s", "a", "--reason", "no"]).run();
                lab.tree().assert_equals(&before, &inject);
                let diff = lab.diff("s");
                let now = super::desk::paths(&diff);
                assert!(now == ["a", "b", "c", "n"] || now == ["b", "c", "n"], "{inject}: {now:?}");
                for path in &now {
                    let text = super::desk::change(&diff, path).to_string();
                    assert!(text.contains("+new") || text.contains("+n"), "{inject}: {text}");
                }
                deaths += usize::from(ran.code() != 0);
                if ran.code() == 0 {
                    assert_eq!(now, ["b", "c", "n"], "{inject}: success was reported");
                }
                if now.len() == 3 {
                    let again = lab.skep(["exec", "s", "--", "sh", "-c", "echo new > a"]).run();
                    assert_eq!(again.code(), 0, "{inject}: {}", again.describe());
                }
            }
        }
        println!("{deaths} deaths");
        assert!(deaths > 3, "{deaths}");
    });
}
