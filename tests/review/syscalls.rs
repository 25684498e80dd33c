//! The Nth system call of a kind fails, or is the last thing the process does.

use super::crash::Scene;
use crate::harness::{Lab, for_both, long, skip};
use std::collections::BTreeMap;

/// The calls by which something is written: what a death leaves is decided between two of these, so
/// that a death at every one of them is a death anywhere.
const WRITES: &[&str] = &[
    "renameat2",
    "rename",
    "renameat",
    "fsync",
    "fdatasync",
    "syncfs",
    "mkdirat",
    "mkdir",
    "unlinkat",
    "unlink",
    "rmdir",
    "fchmod",
    "fchmodat",
    "symlinkat",
    "linkat",
    "write",
    "pwrite64",
    "ftruncate",
    "copy_file_range",
    "ioctl",
    "fchown",
    "fchownat",
    "utimensat",
    "fallocate",
];

/// The calls by which something is looked at: these can only fail.
const LOOKS: &[&str] = &[
    "openat2",
    "openat",
    "getdents64",
    "readlinkat",
    "statx",
    "newfstatat",
    "fstat",
    "read",
    "pread64",
];

/// The faults of a call that writes: how strace is told, and whether the process dies of it.
const FAULTS: [(&str, bool); 4] = [
    ("signal=KILL:when={}", true),
    ("error=EIO:when={}", false),
    ("error=ENOSPC:when={}", false),
    ("error=EIO:when={}+", false),
];

/// What else a filesystem or a process may run out of, at the calls that meet it.
const SCARCE: [(&str, &str); 4] =
    [("openat2", "EMFILE"), ("renameat2", "EROFS"), ("fsync", "EDQUOT"), ("mkdirat", "EACCES")];

/// A death that is rolled forward, and one that is rolled back.
const FORWARD: &str = "apply.published:4=kill";
const BACK: &str = "apply.journal_written=kill";

/// What is cut short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Approve,
    Undo,
    /// The command after one that died amid an approval. Where it died is a failpoint.
    Recovery(&'static str),
}

impl Work {
    fn line(self) -> &'static [&'static str] {
        match self {
            Self::Approve => &["approve", "s", "--json"],
            Self::Undo => &["undo", "--json"],
            Self::Recovery(_) => &["ls", "--json"],
        }
    }

    /// From the state before to where the work begins.
    #[track_caller]
    fn prepare(self, scene: &Scene<'_>, what: &str) {
        let done = match self {
            Self::Approve => return,
            Self::Undo => scene.approve().run().code() == 0,
            Self::Recovery(point) => scene.approve().env("SKEP_FAILPOINT", point).run().code() != 0,
        };
        assert!(done, "{what}: it cannot begin");
    }

    /// The project when all went well.
    fn goal<'a>(self, scene: &'a Scene<'_>) -> &'a crate::harness::Tree {
        match self {
            Self::Undo | Self::Recovery(BACK) => &scene.before,
            Self::Approve | Self::Recovery(_) => &scene.after,
        }
    }

    /// One fault; the scene is at its start again afterwards.
    #[track_caller]
    fn meets(self, scene: &Scene<'_>, call: &str, fault: &str, dies: bool) {
        let lab = scene.lab;
        let what = format!("{self:?}, {call}:{fault}");
        self.prepare(scene, &what);
        let trace = lab.root.join("trace");
        let (inject, watch) = (format!("inject={call}:{fault}"), format!("trace={call}"));
        let options =
            ["-f", "-qq", "-y", "-o", trace.to_str().unwrap(), "-e", &watch, "-e", &inject];
        let binary = lab.binary.to_str().unwrap();
        let ran = lab.program("strace").args(options).arg(binary).args(self.line()).run();
        // A disk that goes on failing does not let a step be taken back either: that is said, and the
        // next command goes on. A recovery that failed is not over.
        let stuck = fault.ends_with('+') && ran.errors().contains("half-way");
        let unfinished = matches!(self, Self::Recovery(_)) && ran.code() != 0;
        if !dies && !stuck && !unfinished {
            scene.whole(&ran, self.goal(scene), &what);
        }
        let syncs = ["fsync", "fdatasync", "syncfs"].contains(&call);
        if !dies && syncs && !was_synced_before(&trace) {
            assert_ne!(ran.code(), 0, "{what}: success after a failed sync: {}", ran.describe());
        }
        scene.rewind(&what);
    }

    /// How often each call is made.
    fn counts(self, scene: &Scene<'_>) -> BTreeMap<String, usize> {
        self.prepare(scene, "counting");
        let trace = scene.lab.root.join("trace");
        let all: Vec<&str> = WRITES.iter().chain(LOOKS).copied().collect();
        let watch = format!("trace={}", all.join(","));
        let options = ["-f", "-qq", "-o", trace.to_str().unwrap(), "-e", &watch];
        let binary = scene.lab.binary.to_str().unwrap();
        scene.lab.program("strace").args(options).arg(binary).args(self.line()).run().ok();
        let mut counts = BTreeMap::new();
        for text in std::fs::read_to_string(&trace).unwrap().lines() {
            let call = text.split_whitespace().nth(1).and_then(|rest| rest.split('(').next());
            if let Some(call) = call.filter(|call| all.contains(call)) {
                *counts.entry(call.to_owned()).or_insert(0) += 1;
            }
        }
        scene.rewind("counting");
        println!("{self:?}: {counts:?}");
        counts
    }

    /// Each call, each time, each fault; in the short run the writing calls, `few` times each.
    fn sweep(self, scene: &Scene<'_>, few: usize) -> usize {
        let short = ["renameat2", "fsync", "mkdirat", "unlinkat", "write", "pwrite64"];
        let counts = self.counts(scene);
        let mut faults = 0;
        for (call, count) in &counts {
            let writes = WRITES.contains(&call.as_str());
            if !long() && !short.contains(&call.as_str()) && call != "openat2" {
                continue;
            }
            let kinds = if writes { &FAULTS[..if long() { 4 } else { 2 }] } else { &FAULTS[1..2] };
            for (fault, dies) in kinds {
                for nth in sample(*count, if long() { usize::MAX } else { few }) {
                    self.meets(scene, call, &fault.replace("{}", &nth.to_string()), *dies);
                    faults += 1;
                }
            }
        }
        for (call, error) in SCARCE {
            let count = counts.get(call).copied().unwrap_or(0);
            for nth in sample(count, if long() { usize::MAX } else { few.min(2) }) {
                self.meets(scene, call, &format!("error={error}:when={nth}"), false);
                faults += 1;
            }
        }
        scene.closed();
        println!("{self:?}: {faults} faults");
        faults
    }
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
        if has_strace(lab) {
            let faults = Work::Approve.sweep(&Scene::new(lab), 3);
            assert!(faults > 20, "{faults}");
        }
    });
}

#[test]
fn heavy_crash_5_the_nth_system_call_of_an_undo_fails_or_is_the_last() {
    for_both(|lab| {
        if has_strace(lab) {
            let faults = Work::Undo.sweep(&Scene::new(lab), 1);
            assert!(faults > 8, "{faults}");
        }
    });
}

#[test]
fn heavy_crash_5_the_nth_system_call_of_a_recovery_fails_or_is_the_last() {
    for_both(|lab| {
        if has_strace(lab) {
            let scene = Scene::new(lab);
            let faults = Work::Recovery(FORWARD).sweep(&scene, 1);
            assert!(faults > 8, "{faults}");
            if long() {
                Work::Recovery(BACK).sweep(&scene, 1);
            }
        }
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
