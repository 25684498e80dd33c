//! Kill sweeps: the process dies, or a call fails, at every failpoint; then recovery is killed too.
//!
//! The victim is this test program run again with one test chosen: [`child`] does what its
//! environment says, and dies where `SKEP_FAILPOINT` says.

use super::*;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

const FAILPOINTS: [&str; 20] = [
    "apply.looked",
    "apply.revert",
    "apply.journal_unsynced",
    "apply.journal_synced",
    "apply.staging_made",
    "apply.staged",
    "apply.synced",
    "apply.journal_written",
    "apply.publish",
    "apply.published",
    "apply.publish_sync",
    "apply.done",
    "apply.backups",
    "apply.backups_copied",
    "recover.start",
    "recover.forward",
    "recover.finish",
    "recover.clean",
    "recover.take_back",
    "recover.removed",
];

fn before() -> Model {
    Model::from([
        (path("a"), file("a1")),
        (path("d"), Node::Dir(0o755)),
        (path("d/x"), file("x1")),
        (path("f"), file("to be a directory")),
        (path("m"), Node::Dir(0o755)),
    ])
}

fn after() -> Model {
    Model::from([
        (path("a"), Node::File(b"a2".to_vec(), 0o755)),
        (path("d"), Node::Link(b"a".to_vec())),
        (path("f"), Node::Dir(0o555)),
        (path("f/new"), file("n")),
        (path("m"), Node::Dir(0o700)),
    ])
}

/// Not a test: the victim of the others.
#[test]
fn child() {
    let Ok(job) = std::env::var("SKEP_TEST_APPLY_JOB") else { return };
    let dir = PathBuf::from(std::env::var_os("SKEP_TEST_APPLY_DIR").unwrap());
    let (project, journal_dir) = (dir.join("project"), dir.join("approval-1"));
    let code = match job.as_str() {
        "apply" => {
            let targets = targets_between(&before(), &after());
            let staged = match stage_in(&project, &journal_dir, 1, targets) {
                Ok(staged) => staged,
                Err(_) => std::process::exit(10),
            };
            fs::write(dir.join("committed"), "").unwrap();
            match staged.publish() {
                Ok(_) => 0,
                Err(ApplyError::HalfWay { .. }) => 12,
                Err(_) => 11,
            }
        }
        _ => match recover(&journal_dir, dir.join("committed").exists()) {
            Ok(_) => 0,
            Err(_) => 13,
        },
    };
    std::process::exit(code);
}

fn run_child(fixture: &Fixture, job: &str, failpoint: &str) -> ExitStatus {
    child_command(fixture, job, failpoint).status().unwrap()
}

fn child_command(fixture: &Fixture, job: &str, failpoint: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["apply::tests::crash::child", "--exact", "--test-threads=1", "-q"])
        .env("SKEP_TEST_APPLY_JOB", job)
        .env("SKEP_TEST_APPLY_DIR", fixture.dir.path())
        .env("SKEP_FAILPOINT", failpoint)
        .stdout(std::process::Stdio::null());
    command
}

fn killed(status: ExitStatus) -> bool {
    status.signal() == Some(9)
}

/// Recovers in this process, and checks that the project is exactly before or after.
fn settle(fixture: &Fixture, context: &str) {
    let committed = fixture.dir.path().join("committed").exists();
    let journal_dir = fixture.journal_dir(1);
    let first = recover(&journal_dir, committed).unwrap();
    let expected = match first {
        Recovered::Applied { .. } => after(),
        _ => before(),
    };
    assert_eq!(fixture.snapshot(), expected, "{context}: {first:?}");
    fixture.assert_no_leftovers();
    match &first {
        Recovered::Applied { note: given, .. } => assert_eq!(*given, note()),
        Recovered::Aborted { note: Some(given) } => assert_eq!(*given, note()),
        Recovered::Nothing => assert!(!committed, "{context}"),
        other => panic!("{context}: {other:?}"),
    }
    let again = recover(&journal_dir, committed).unwrap();
    assert_eq!(fixture.snapshot(), expected, "{context}: {again:?}");
    if let Recovered::Applied { .. } = first {
        fixture.undo(1).unwrap();
        assert_eq!(fixture.snapshot(), before(), "{context}: undo");
    }
}

/// Runs `job` with each failpoint's first, second, … hit, until it is no longer hit.
fn sweep(
    job: &str,
    action: &str,
    prepare: impl Fn() -> Fixture,
    check: impl Fn(&Fixture, ExitStatus, &str),
) -> usize {
    let mut hits = 0;
    for name in FAILPOINTS {
        for nth in 1.. {
            let failpoint = format!("{name}:{nth}={action}");
            let fixture = prepare();
            let status = run_child(&fixture, job, &failpoint);
            check(&fixture, status, &failpoint);
            if status.success() {
                break;
            }
            hits += 1;
        }
    }
    hits
}

fn fresh() -> Fixture {
    let fixture = Fixture::new(&before());
    fixture.journal_dir(1);
    fixture
}

#[test]
fn killed_at_every_failpoint_of_apply() {
    let hits = sweep("apply", "kill", fresh, |fixture, status, failpoint| {
        assert!(killed(status) || status.success(), "{failpoint}: {status}");
        let committed = fixture.dir.path().join("committed").exists();
        settle(fixture, failpoint);
        if committed {
            // settle() undid it: so it had been rolled forward.
            assert!(fixture.dir.path().join("approval-2").exists(), "{failpoint}");
        }
    });
    assert!(hits > 30, "only {hits} failpoints were hit");
}

#[test]
fn failing_at_every_failpoint_of_apply() {
    for action in ["eio", "enospc"] {
        sweep("apply", action, fresh, |fixture, status, failpoint| {
            let now = fixture.snapshot();
            match status.code() {
                Some(0) => assert_eq!(now, after(), "{failpoint}"),
                Some(10 | 11) => {
                    assert_eq!(now, before(), "{failpoint}");
                    fixture.assert_no_leftovers();
                }
                Some(12) => {}
                other => panic!("{failpoint}: {other:?}"),
            }
            settle(fixture, failpoint);
        });
    }
}

/// Dies in the middle of publishing, then in the middle of each recovery; the third one ends it.
#[test]
fn killed_at_every_failpoint_of_recovery() {
    for first in [
        "apply.synced=kill",
        "apply.journal_written=kill",
        "apply.publish:4=kill",
        "apply.backups=kill",
    ] {
        let prepare = || {
            let fixture = fresh();
            assert!(killed(run_child(&fixture, "apply", first)));
            fixture
        };
        let hits = sweep("recover", "kill", prepare, |fixture, status, failpoint| {
            let context = format!("{first}, {failpoint}");
            assert!(killed(status) || status.success(), "{context}: {status}");
            let again = run_child(fixture, "recover", "apply.published:2=kill");
            assert!(killed(again) || again.success(), "{context}: {again}");
            settle(fixture, &context);
        });
        assert!(hits > 1, "{first}: only {hits} failpoints were hit");
    }
}

/// A step fails, and the process dies while taking the earlier ones back.
#[test]
fn killed_while_taking_back() {
    for failing in 1..=8 {
        for reverting in 1.. {
            let failpoint = format!("apply.publish:{failing}=enospc;apply.revert:{reverting}=kill");
            let fixture = fresh();
            let status = run_child(&fixture, "apply", &failpoint);
            settle(&fixture, &failpoint);
            if !killed(status) {
                assert_eq!(status.code(), Some(11), "{failpoint}");
                break;
            }
        }
    }
}

/// The narrowest window: the process stands still between looking at a path and moving it, and the
/// user saves just then.
#[test]
fn a_save_between_the_look_and_the_move_is_put_back() {
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    let edits: [fn(&Path); 3] = [
        |path| fs::write(path, "the user's").unwrap(),
        |path| {
            let temporary = path.with_extension("saved");
            fs::write(&temporary, "the user's").unwrap();
            fs::rename(temporary, path).unwrap();
        },
        |path| fs::remove_file(path).unwrap(),
    ];
    // In the order of the plan: `d/x` is removed first, `a` is replaced second.
    for (nth, name) in [(1, "d/x"), (2, "a")] {
        for edit in edits {
            let fixture = fresh();
            let failpoint = format!("apply.looked:{nth}=stop");
            let mut child = child_command(&fixture, "apply", &failpoint).spawn().unwrap();
            let pid = Pid::from_child(&child);
            let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
            assert!(status.stopped(), "{failpoint}");
            let edited = std::panic::catch_unwind(|| edit(&fixture.full(name)));
            kill_process(pid, Signal::CONT).unwrap();
            edited.unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(11), "{failpoint}");
            let mut expected = before();
            match fs::read(fixture.full(name)) {
                Ok(bytes) => expected.insert(path(name), Node::File(bytes, 0o644)),
                Err(_) => expected.remove(&path(name)),
            };
            assert_eq!(fixture.snapshot(), expected, "{failpoint}");
            assert_ne!(expected, before(), "the edit was lost");
            fixture.assert_no_leftovers();
        }
    }
}
