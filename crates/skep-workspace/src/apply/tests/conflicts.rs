//! Somebody else changes the project at the worst moment: nothing of theirs is lost.

use super::*;
use std::os::unix::fs::symlink;

fn before() -> Model {
    Model::from([
        (path("a"), file("a1")),
        (path("b"), file("b1")),
        (path("d"), Node::Dir(0o755)),
        (path("d/x"), file("x1")),
        (path("z"), file("z1")),
    ])
}

/// Replaces two, adds one, removes a directory, all in an order that has work before and after.
fn after() -> Model {
    Model::from([
        (path("a"), file("a2")),
        (path("b"), file("b2")),
        (path("n"), Node::Dir(0o755)),
        (path("n/new"), file("n2")),
    ])
}

fn save_in_place(fixture: &Fixture) {
    fs::write(fixture.full("b"), "the user's").unwrap();
}

fn save_by_rename(fixture: &Fixture) {
    fs::write(fixture.full("b~"), "the user's").unwrap();
    fs::rename(fixture.full("b~"), fixture.full("b")).unwrap();
}

fn remove(fixture: &Fixture) {
    fs::remove_file(fixture.full("b")).unwrap();
}

fn become_a_directory(fixture: &Fixture) {
    fs::remove_file(fixture.full("b")).unwrap();
    fs::create_dir(fixture.full("b")).unwrap();
    fs::write(fixture.full("b/inner"), "the user's").unwrap();
}

fn add_where_we_add(fixture: &Fixture) {
    fs::create_dir(fixture.full("n")).unwrap();
    fs::write(fixture.full("n/own"), "the user's").unwrap();
}

fn add_where_we_remove(fixture: &Fixture) {
    fs::write(fixture.full("d/own"), "the user's").unwrap();
}

fn change_mode(fixture: &Fixture) {
    fs::set_permissions(fixture.full("b"), fs::Permissions::from_mode(0o600)).unwrap();
}

const EDITS: [fn(&Fixture); 7] = [
    save_in_place,
    save_by_rename,
    remove,
    become_a_directory,
    add_where_we_add,
    add_where_we_remove,
    change_mode,
];

#[test]
fn an_edit_between_verify_and_publish_rolls_everything_back() {
    for edit in EDITS {
        let fixture = Fixture::new(&before());
        let staged = fixture.stage(1, targets_between(&before(), &after())).unwrap();
        edit(&fixture);
        let edited = fixture.snapshot();
        let error = staged.publish().unwrap_err();
        assert!(matches!(error, ApplyError::Conflict(_)), "{error}");
        assert_eq!(fixture.snapshot(), edited);
        fixture.assert_no_leftovers();
        // A crash after that, before the store heard of it, changes nothing.
        let recovered = recover(&fixture.journal_dir(1), true).unwrap();
        assert_eq!(recovered, Recovered::Aborted { note: Some(note()) });
        assert_eq!(fixture.snapshot(), edited);
    }
}

#[test]
fn a_touch_is_not_a_conflict() {
    let fixture = Fixture::new(&before());
    let staged = fixture.stage(1, targets_between(&before(), &after())).unwrap();
    fs::hard_link(fixture.full("b"), fixture.dir.path().join("link")).unwrap();
    save_by_rename(&fixture);
    fs::write(fixture.full("b"), "b1").unwrap();
    staged.publish().unwrap();
    assert_eq!(fixture.snapshot(), after());
}

#[test]
fn a_third_content_after_a_crash_needs_attention_and_can_be_finished_or_reverted() {
    for edit in EDITS {
        for resolution in [Resolution::Finish, Resolution::Revert] {
            let fixture = Fixture::new(&before());
            let staged = fixture.stage(1, targets_between(&before(), &after())).unwrap();
            drop(staged);
            edit(&fixture);
            let edited = fixture.snapshot();
            let journal_dir = fixture.journal_dir(1);
            for _ in 0..2 {
                let recovered = recover(&journal_dir, true).unwrap();
                let Recovered::NeedsAttention { paths, .. } = recovered else {
                    panic!("{recovered:?}")
                };
                assert_eq!(paths.len(), 1, "{paths:?}");
                assert!(paths[0].approved.as_ref().is_none_or(|path| path.exists()));
                assert_eq!(fixture.snapshot(), edited);
            }
            let resolved = resolve(&journal_dir, resolution).unwrap();
            match resolution {
                Resolution::Finish => {
                    assert!(matches!(resolved, Recovered::Applied { .. }), "{resolved:?}");
                    assert_eq!(fixture.snapshot(), after());
                    assert_kept(&edited, &fixture);
                }
                Resolution::Revert => {
                    assert_eq!(resolved, Recovered::Aborted { note: Some(note()) });
                    assert_eq!(fixture.snapshot(), edited);
                }
            }
            fixture.assert_no_leftovers();
        }
    }
}

/// The user's bytes are somewhere among the backups.
fn assert_kept(edited: &Model, fixture: &Fixture) {
    let is_users = |node: &Node| matches!(node, Node::File(bytes, _) if bytes == b"the user's");
    if edited.values().any(is_users) {
        let mut kept = Model::new();
        let backups = fixture.journal_dir(1).join("backups");
        snapshot_into(&TreeRoot::open(&backups).unwrap(), &RelPath::root(), &mut kept);
        assert!(kept.values().any(is_users), "{kept:?}");
    }
}

#[test]
fn an_edit_of_a_published_path_during_the_outage_stays() {
    let fixture = Fixture::new(&before());
    let staged = fixture.stage(1, targets_between(&before(), &after())).unwrap();
    // As if the process had died after its first replacement.
    let record = &staged.journal.records[0];
    assert_eq!(record.path, path("a"));
    let slot = staged.staging.path().join(record.slot_name());
    exchange(&slot, &fixture.full("a"));
    drop(staged);
    fs::write(fixture.full("a"), "a2 and the user's").unwrap();
    let recovered = recover(&fixture.journal_dir(1), true).unwrap();
    assert!(matches!(recovered, Recovered::Applied { .. }), "{recovered:?}");
    let mut expected = after();
    expected.insert(path("a"), file("a2 and the user's"));
    assert_eq!(fixture.snapshot(), expected);
}

fn exchange(one: &Path, two: &Path) {
    let flags = rustix::fs::RenameFlags::EXCHANGE;
    rustix::fs::renameat_with(rustix::fs::CWD, one, rustix::fs::CWD, two, flags).unwrap();
}

/// A program that goes on writing the old inode: its writes are in the backup, reported, and what
/// an undo restores.
#[test]
fn late_writes_are_kept() {
    use std::io::Write;
    let fixture = Fixture::new(&before());
    let mut open = fs::OpenOptions::new().append(true).open(fixture.full("b")).unwrap();
    fixture.apply(1, targets_between(&before(), &after())).unwrap();
    open.write_all(b" and late").unwrap();
    drop(open);
    fixture.undo(1).unwrap();
    let mut expected = before();
    expected.insert(path("b"), file("b1 and late"));
    assert_eq!(fixture.snapshot(), expected);
}

/// A user who saves all the time: every save is in the project or in a backup.
#[test]
fn saves_that_race_with_publish_are_never_lost() {
    for round in 0..60 {
        let fixture = Fixture::new(&before());
        let staged = fixture.stage(1, targets_between(&before(), &after())).unwrap();
        let (target, temporary) = (fixture.full("b"), fixture.dir.path().join("saved"));
        let saver = std::thread::spawn(move || {
            for _ in 0..round {
                std::hint::spin_loop();
            }
            fs::write(&temporary, "the user's").unwrap();
            fs::rename(&temporary, &target).unwrap();
        });
        let published = staged.publish();
        saver.join().unwrap();
        let now = fixture.snapshot();
        assert_eq!(now[&path("b")], file("the user's"), "{published:?}");
        let mut expected = if published.is_ok() { after() } else { before() };
        expected.insert(path("b"), file("the user's"));
        assert_eq!(now, expected, "{published:?}");
    }
}

#[test]
fn a_parent_swapped_for_a_symlink_leads_nowhere() {
    let outside = Model::from([(path("x"), file("x1")), (path("keep"), file("k"))]);
    let elsewhere = Fixture::new(&outside);
    let mut wanted = before();
    wanted.insert(path("d/x"), file("x2"));
    wanted.insert(path("d/new"), file("new"));
    for swapped_before_stage in [true, false] {
        let fixture = Fixture::new(&before());
        let swap = || {
            fs::rename(fixture.full("d"), fixture.dir.path().join("moved")).unwrap();
            symlink(&elsewhere.project, fixture.full("d")).unwrap();
        };
        let targets = targets_between(&before(), &wanted);
        let result = if swapped_before_stage {
            swap();
            fixture.stage(1, targets).map(|_| ())
        } else {
            let staged = fixture.stage(1, targets).unwrap();
            swap();
            staged.publish().map(|_| ())
        };
        assert!(matches!(result, Err(ApplyError::Conflict(_))), "{result:?}");
        assert_eq!(elsewhere.snapshot(), outside);
        fixture.assert_no_leftovers();
    }
}

/// fs-4: a directory and a symlink to the outside change places all the time.
#[test]
fn a_parent_that_flips_with_a_symlink_never_leads_out() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let outside = Model::from([(path("x"), file("x1")), (path("keep"), file("k"))]);
    let elsewhere = Fixture::new(&outside);
    let mut wanted = before();
    wanted.insert(path("d/x"), file("x2"));
    wanted.insert(path("d/new"), file("new"));
    let fixture = Fixture::new(&before());
    let (real, trap) = (fixture.full("d"), fixture.dir.path().join("trap"));
    symlink(&elsewhere.project, &trap).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let flipper = std::thread::spawn({
        let stop = stop.clone();
        move || {
            let mut flips = 0_u64;
            while !stop.load(Ordering::Relaxed) || flips % 2 == 1 {
                exchange(&real, &trap);
                flips += 1;
            }
        }
    });
    for number in (1..200).step_by(2) {
        if fixture.apply(number, targets_between(&before(), &wanted)).is_ok() {
            let undone = (0..50).any(|_| fixture.undo(number).is_ok());
            if !undone {
                break;
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    flipper.join().unwrap();
    assert_eq!(elsewhere.snapshot(), outside);
}

#[test]
fn a_vanished_parent_is_a_conflict() {
    let fixture = Fixture::new(&Model::new());
    let target = Target {
        path: path("gone/new"),
        before: EntryState::Absent,
        after: state_of(Some(&file("x"))),
        source: Source::Bytes(b"x".to_vec()),
        like: None,
    };
    let error = fixture.stage(1, vec![target]).unwrap_err();
    assert!(
        matches!(&error, ApplyError::Conflict(all) if all[0].reason.contains("`gone`")),
        "{error}"
    );
}

/// An undo of something that was edited since is a conflict, not a loss.
#[test]
fn undo_of_an_edited_path_is_refused() {
    let fixture = Fixture::new(&before());
    fixture.apply(1, targets_between(&before(), &after())).unwrap();
    save_in_place(&fixture);
    let edited = fixture.snapshot();
    assert!(matches!(fixture.undo(1), Err(ApplyError::Conflict(_))));
    assert_eq!(fixture.snapshot(), edited);
}
