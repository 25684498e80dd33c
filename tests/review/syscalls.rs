//! The Nth system call of a kind fails, or is the last thing the process does.

use super::crash::Scene;
use crate::harness::{Fault, Sweep, for_both, long, plan};

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
    fn meets(self, scene: &Scene<'_>, sweep: &Sweep<'_>, fault: &Fault) {
        let what = format!("{self:?}, {fault:?}");
        self.prepare(scene, &what);
        let ran = sweep.meets(fault);
        // A disk that goes on failing does not let a step be taken back either: that is said, and the
        // next command goes on.
        let stuck = fault.how.ends_with('+') && ran.errors().contains("half-way");
        // A recovery that failed is not over, and that is said; other sandboxes can be worked with.
        let unfinished = matches!(self, Self::Recovery(_))
            && (ran.code() != 0 || ran.text().contains("is not settled yet"));
        if !fault.dies && !stuck && !unfinished {
            scene.whole(&ran, self.goal(scene), &what);
        }
        let syncs = ["fsync", "fdatasync", "syncfs"].contains(&fault.call.as_str());
        if !fault.dies && syncs && !unfinished && !was_synced_before(&sweep.trace()) {
            assert_ne!(ran.code(), 0, "{what}: success after a failed sync: {}", ran.describe());
        }
        scene.rewind(&what);
    }

    /// The calls it makes, and what becomes of them; `few` of each in the short run.
    fn sweep(self, scene: &Scene<'_>, few: usize) -> Option<usize> {
        let sweep = Sweep::new(scene.lab, self.line(), true)?;
        self.prepare(scene, "counting");
        let places = sweep.places();
        scene.rewind("counting");
        let faults = plan(&places, few);
        for fault in &faults {
            self.meets(scene, &sweep, fault);
        }
        scene.closed();
        println!("{self:?}: {} faults", faults.len());
        Some(faults.len())
    }
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
        let faults = Work::Approve.sweep(&Scene::new(lab), 3);
        assert!(faults.is_none_or(|faults| faults > 20), "{faults:?}");
    });
}

#[test]
fn heavy_crash_5_the_nth_system_call_of_an_undo_fails_or_is_the_last() {
    for_both(|lab| {
        let faults = Work::Undo.sweep(&Scene::new(lab), 1);
        assert!(faults.is_none_or(|faults| faults > 8), "{faults:?}");
    });
}

/// Of an undo whose store could not be read for a moment nothing was said, and the sandbox was taken for
/// deleted: the project was as before, and the work was not in the review any more.
#[test]
fn crash_5_a_sandbox_that_cannot_be_read_is_not_taken_for_gone() {
    for_both(|lab| {
        let scene = Scene::new(lab);
        let Some(sweep) = Sweep::new(lab, Work::Undo.line(), true) else { return };
        Work::Undo.prepare(&scene, "counting");
        let count = sweep.places()["statx"].len();
        scene.rewind("counting");
        for nth in count.saturating_sub(6)..=count {
            let fault = Fault::failure("statx", nth, "EIO");
            Work::Undo.meets(&scene, &sweep, &fault);
        }
    });
}

#[test]
fn crash_5_an_approval_that_cannot_be_settled_is_told() {
    for_both(|lab| {
        let scene = Scene::new(lab);
        scene.approve().env("SKEP_FAILPOINT", FORWARD).run();
        let Some(sweep) = Sweep::new(lab, &["ls"], true) else { return };
        // The project is not to be looked at for a moment.
        let told = "was interrupted and is not settled yet";
        let shown = sweep.meets(&Fault::failure("fstat", 1, "EIO")).ok();
        assert!(shown.text().contains(told), "{}", shown.describe());
        assert!(!lab.skep(["ls"]).run().ok().text().contains(told));
        scene.rewind("settled");
    });
}

/// A journal whose directory could not be looked at for a moment was taken for one that is not there: the
/// approval was called aborted, the journal thrown away, and the project left with a part of it for good.
#[test]
fn crash_5_a_journal_that_cannot_be_looked_at_is_not_taken_for_gone() {
    for_both(|lab| {
        let scene = Scene::new(lab);
        let work = Work::Recovery(FORWARD);
        let Some(sweep) = Sweep::new(lab, work.line(), true) else { return };
        work.prepare(&scene, "counting");
        let journal = sweep.looks_at("/approvals/");
        scene.rewind("counting");
        work.prepare(&scene, "counting");
        let lock = sweep.looks_at("/locks/project-");
        scene.rewind("counting");
        assert!(journal.len() > 2 && !lock.is_empty(), "{journal:?} {lock:?}");
        // The number under which it was found.
        let found = ("statx".to_owned(), 24);
        for (call, nth) in journal.iter().chain(&lock).chain([&found]) {
            work.meets(&scene, &sweep, &Fault::failure(call, *nth, "EIO"));
        }
        scene.closed();
    });
}

/// Of what was staged a part was removed when the removal was cut short; the rest was then taken for
/// published, and the approval was open for ever.
#[test]
fn crash_5_a_roll_back_cut_short_amid_its_removals_is_ended_by_the_next() {
    for_both(|lab| {
        let scene = Scene::new(lab);
        let work = Work::Recovery(BACK);
        let Some(sweep) = Sweep::new(lab, work.line(), true) else { return };
        for nth in 2..=5 {
            work.meets(&scene, &sweep, &Fault::failure("unlinkat", nth, "EIO"));
            work.meets(&scene, &sweep, &Fault::death("unlinkat", nth));
            scene.closed();
        }
    });
}

/// One that is not there, when the row says that it was: nobody can know what is in the project.
#[test]
fn crash_5_a_committed_approval_without_its_journal_needs_attention() {
    for_both(|lab| {
        let scene = Scene::new(lab);
        scene.approve().env("SKEP_FAILPOINT", FORWARD).run();
        let half = lab.tree();
        let newest = || lab.skep(["history", "--json"]).run().ok().json()[0].clone();
        let approvals = lab.state.join("approvals");
        let open = |entry: &std::fs::DirEntry| !entry.path().join("outcome.json").exists();
        let entries = std::fs::read_dir(&approvals).unwrap().map(Result::unwrap);
        let open: Vec<_> = entries.filter(open).map(|entry| entry.path()).collect();
        assert_eq!(open.len(), 1, "{open:?}");
        std::fs::rename(&open[0], lab.root.join("away")).unwrap();
        lab.skep(["ls"]).run().ok();
        lab.tree().assert_equals(&half, "nothing is done on a guess");
        let row = newest();
        assert_eq!(row["state"], "needs_attention", "{row}");
        let id = row["approval"].as_str().unwrap_or_else(|| panic!("{row}"));
        let given_up = lab.skep(["undo", id, "--abandon"]).run().ok();
        assert!(given_up.errors().contains("kept: "), "{}", given_up.describe());
        assert_eq!(newest()["state"], "aborted");
    });
}

#[test]
fn heavy_crash_5_the_nth_system_call_of_a_recovery_fails_or_is_the_last() {
    for_both(|lab| {
        let scene = Scene::new(lab);
        let faults = Work::Recovery(FORWARD).sweep(&scene, 1);
        assert!(faults.is_none_or(|faults| faults > 8), "{faults:?}");
        if long() {
            Work::Recovery(BACK).sweep(&scene, 1);
        }
    });
}

#[test]
fn heavy_crash_5_a_rejection_killed_at_the_nth_system_call_loses_nothing_else() {
    for_both(|lab| {
        if Sweep::new(lab, &[], false).is_none() {
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
