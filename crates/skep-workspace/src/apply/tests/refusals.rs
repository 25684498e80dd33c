//! What is refused before anything is touched, and journals that cannot be trusted.

use super::*;

fn before() -> Model {
    Model::from([(path("a"), file("a1")), (path("d"), Node::Dir(0o755)), (path("d/x"), file("x"))])
}

fn after() -> Model {
    Model::from([(path("a"), file("a2")), (path("n"), file("n2"))])
}

fn replace(at: &str, old: &Node, new: &Node) -> Target {
    let source = match new {
        Node::File(bytes, _) => Source::Bytes(bytes.clone()),
        _ => Source::None,
    };
    Target {
        path: path(at),
        before: state_of(Some(old)),
        after: state_of(Some(new)),
        source,
        like: None,
    }
}

fn refused(targets: Vec<Target>) -> ApplyError {
    let fixture = Fixture::new(&before());
    let error = fixture.stage(1, targets).unwrap_err();
    assert_eq!(fixture.snapshot(), before());
    fixture.assert_no_leftovers();
    assert_eq!(fs::read_dir(fixture.journal_dir(1)).unwrap().count(), 0, "journal left behind");
    assert_eq!(recover(&fixture.journal_dir(1), false).unwrap(), Recovered::Nothing);
    error
}

#[test]
fn two_targets_for_one_path() {
    let target = replace("a", &file("a1"), &file("a2"));
    let error = refused(vec![target.clone(), target]);
    assert!(matches!(error, ApplyError::Refused { .. }), "{error}");
}

#[test]
fn targets_that_contradict_each_other() {
    let remove = Target {
        path: path("d"),
        before: EntryState::Dir { mode: 0o755 },
        after: EntryState::Absent,
        source: Source::None,
        like: None,
    };
    let change = replace("d/x", &file("x"), &file("y"));
    let error = refused(vec![remove.clone(), change]);
    assert!(matches!(error, ApplyError::Refused { .. }), "{error}");
    // A directory goes only with everything in it.
    let error = refused(vec![remove]);
    assert!(matches!(error, ApplyError::Conflict(_)), "{error}");
}

#[test]
fn special_files_and_the_root() {
    let fifo = EntryState::Special { what: skep_types::SpecialKind::Fifo };
    let target = |path, after| Target {
        path,
        before: EntryState::Absent,
        after,
        source: Source::None,
        like: None,
    };
    assert!(matches!(refused(vec![target(path("f"), fifo)]), ApplyError::Refused { .. }));
    let file = state_of(Some(&file("x")));
    assert!(matches!(refused(vec![target(RelPath::root(), file)]), ApplyError::Refused { .. }));
}

#[test]
fn a_fifo_in_the_way_is_reported_and_never_opened() {
    let fixture = Fixture::new(&Model::new());
    let fifo = fixture.full("a");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let result = fixture.stage(1, vec![replace("a", &file("a1"), &file("a2"))]);
    assert!(matches!(&result, Err(ApplyError::Conflict(_))), "{result:?}");
    fs::remove_file(fifo).unwrap();
}

#[test]
fn other_bytes_than_reviewed() {
    let mut target = replace("a", &file("a1"), &file("a2"));
    target.source = Source::Bytes(b"a3".to_vec());
    let error = refused(vec![target.clone()]);
    assert!(matches!(error, ApplyError::DigestMismatch { .. }), "{error}");
    let source = tempfile::tempdir().unwrap();
    fs::write(source.path().join("grown"), "a2 and more").unwrap();
    target.source = Source::File { root: source.path().to_owned(), path: path("grown") };
    let error = refused(vec![target.clone()]);
    assert!(matches!(error, ApplyError::DigestMismatch { .. }), "{error}");
    // A source that is a symlink is not followed.
    std::os::unix::fs::symlink("/etc/passwd", source.path().join("link")).unwrap();
    target.source = Source::File { root: source.path().to_owned(), path: path("link") };
    let error = refused(vec![target]);
    assert!(matches!(error, ApplyError::Path { .. }), "{error}");
}

#[test]
fn too_little_space() {
    let mut target = replace("a", &file("a1"), &file("a2"));
    target.after = EntryState::File { hash: ContentHash::of(b""), size: 1 << 60, mode: 0o644 };
    let error = refused(vec![target]);
    assert!(matches!(error, ApplyError::NoSpace { .. }), "{error}");
}

#[test]
fn another_project_at_the_path() {
    let fixture = Fixture::new(&before());
    let result = stage(ApplyRequest {
        id: &approval_id(1),
        project: &fixture.project,
        root_identity: (1, 1),
        journal_dir: &fixture.journal_dir(1),
        targets: Vec::new(),
        note: note(),
        progress: &mut |_| {},
    });
    assert!(matches!(result, Err(ApplyError::RootChanged { .. })), "{result:?}");
}

#[test]
fn a_thing_that_waits_under_the_staging_name_is_left_alone() {
    for plant in [0, 1, 2] {
        let fixture = Fixture::new(&before());
        let planted = fixture.dir.path().join(format!(".skep-{}", approval_id(1)));
        let elsewhere = tempfile::tempdir().unwrap();
        match plant {
            0 => std::os::unix::fs::symlink(elsewhere.path(), &planted).unwrap(),
            1 => fs::write(&planted, "planted").unwrap(),
            _ => fs::create_dir(&planted).unwrap(),
        }
        let result = fixture.stage(1, targets_between(&before(), &after()));
        assert!(matches!(result, Err(ApplyError::Own { .. })), "{result:?}");
        assert!(planted.symlink_metadata().is_ok());
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
        assert_eq!(fixture.snapshot(), before());
    }
}

#[test]
fn an_aborted_stage_leaves_nothing() {
    let fixture = Fixture::new(&before());
    let targets = targets_between(&before(), &Model::from([(path("a"), file("a2"))]));
    fixture.stage(1, targets).unwrap().abort().unwrap();
    assert_eq!(fixture.snapshot(), before());
    fixture.assert_no_leftovers();
    assert_eq!(fs::read_dir(fixture.journal_dir(1)).unwrap().count(), 0);
}

#[test]
fn staging_goes_inside_when_the_directory_above_is_another_mount() {
    // Where /dev/shm is a mount of its own, its root is a project whose parent is not.
    let shm = Path::new("/dev/shm");
    let Ok(root) = TreeRoot::open(shm) else { return };
    let above = TreeRoot::open(Path::new("/dev")).unwrap();
    if root.identity().unwrap().0 == above.identity().unwrap().0 {
        return;
    }
    assert_eq!(staging::choose_place(&root).unwrap(), journal::Place::Inside);
}

#[test]
fn a_journal_cut_anywhere_was_never_committed() {
    let fixture = Fixture::new(&before());
    let journal_dir = fixture.journal_dir(1);
    let targets = || {
        let mut after = before();
        after.insert(path("a"), file("a2"));
        targets_between(&before(), &after)
    };
    drop(fixture.stage(1, targets()).unwrap());
    let whole = fs::read(journal_dir.join("journal.json")).unwrap();
    recover(&journal_dir, false).unwrap();
    for cut in 0..whole.len() {
        drop(fixture.stage(1, targets()).unwrap());
        fs::write(journal_dir.join("journal.json"), &whole[..cut]).unwrap();
        if cut % 64 == 0 {
            // With the commit point recorded this is damage: an error, and nothing is removed.
            assert!(matches!(recover(&journal_dir, true), Err(ApplyError::Journal { .. })));
            assert!(journal_dir.join("intent.json").exists());
        }
        let recovered = recover(&journal_dir, false).unwrap();
        assert_eq!(recovered, Recovered::Aborted { note: Some(note()) });
        fixture.assert_no_leftovers();
    }
    assert_eq!(fixture.snapshot(), before());
}

/// The state directory on another filesystem: backups are copied, and undo works all the same.
#[test]
fn backups_on_another_filesystem() {
    let Ok(shm) = tempfile::tempdir_in("/dev/shm") else { return };
    let fixture = Fixture::new(&before());
    let journal_dir = shm.path().join("approval");
    fs::create_dir(&journal_dir).unwrap();
    let mut before = before();
    before.insert(path("l"), Node::Link(b"a".to_vec()));
    fixture.write(&Model::from([(path("l"), Node::Link(b"a".to_vec()))]));
    let staged =
        stage_in(&fixture.project, &journal_dir, 1, targets_between(&before, &after())).unwrap();
    let applied = staged.publish().unwrap();
    assert_eq!(applied.backups, journal_dir.join("backups"));
    assert_eq!(fixture.snapshot(), after());
    fixture.assert_no_leftovers();
    let targets = undo_targets(&journal_dir).unwrap();
    fixture.apply(2, targets).unwrap();
    assert_eq!(fixture.snapshot(), before);
    discard(&journal_dir).unwrap();
    assert!(!journal_dir.exists());
}
