//! Every kind of entry becomes every other kind, and back.

use super::*;

/// What can stand at `at`, with what belongs to it.
fn variants(at: &str) -> Vec<Model> {
    let one = |node: Node| Model::from([(path(at), node)]);
    let mut full = one(Node::Dir(0o755));
    full.insert(path(&format!("{at}/child")), file("in it"));
    full.insert(path(&format!("{at}/sub")), Node::Dir(0o750));
    full.insert(path(&format!("{at}/sub/deep")), file("deeper"));
    vec![
        Model::new(),
        one(file("plain\n")),
        one(Node::File(b"other bytes".to_vec(), 0o600)),
        one(Node::File(b"plain\n".to_vec(), 0o755)),
        one(Node::File(Vec::new(), 0o644)),
        full,
        one(Node::Dir(0o755)),
        one(Node::Dir(0o500)),
        one(Node::Link(b"../../etc/passwd".to_vec())),
        one(Node::Link(b"elsewhere".to_vec())),
    ]
}

fn surroundings() -> Model {
    Model::from([
        (path("keep"), file("untouched")),
        (path("nest"), Node::Dir(0o755)),
        (path("nest/keep"), file("untouched too")),
    ])
}

#[test]
fn each_transition_applies_and_undoes_exactly() {
    for at in ["x", "nest/x"] {
        for old in variants(at) {
            for new in variants(at) {
                let (mut before, mut after) = (surroundings(), surroundings());
                before.extend(old.clone());
                after.extend(new.clone());
                let fixture = Fixture::new(&before);
                let targets = targets_between(&before, &after);
                let expected: Vec<_> = targets.iter().map(|target| target.path.clone()).collect();
                let applied = fixture.apply(1, targets).unwrap();
                let paths: Vec<_> = applied.paths.iter().map(|path| path.path.clone()).collect();
                assert_eq!(paths, expected);
                assert_eq!(fixture.snapshot(), after, "{old:?} to {new:?}");
                fixture.assert_no_leftovers();
                fixture.undo(1).unwrap();
                assert_eq!(fixture.snapshot(), before, "{old:?} to {new:?} and back");
                fixture.assert_no_leftovers();
            }
        }
    }
}

#[test]
fn all_transitions_in_one_approval() {
    let (mut before, mut after) = (Model::new(), Model::new());
    let count = variants("x").len();
    for old in 0..count {
        for new in 0..count {
            let at = format!("p{old}-{new}");
            before.extend(variants(&at)[old].clone());
            after.extend(variants(&at)[new].clone());
        }
    }
    let fixture = Fixture::new(&before);
    fixture.apply(1, targets_between(&before, &after)).unwrap();
    assert_eq!(fixture.snapshot(), after);
    fixture.undo(1).unwrap();
    assert_eq!(fixture.snapshot(), before);
    // And the undo of the undo.
    fixture.undo(2).unwrap();
    assert_eq!(fixture.snapshot(), after);
    for number in 1..=3 {
        discard(&fixture.journal_dir(number)).unwrap();
        discard(&fixture.dir.path().join(format!("approval-{number}"))).unwrap();
    }
    assert_eq!(fs::read_dir(fixture.dir.path()).unwrap().count(), 1, "only the project is left");
}

#[test]
fn files_come_from_other_trees_and_keep_their_holes() {
    let source = tempfile::tempdir().unwrap();
    let sparse = source.path().join("sparse");
    let size = 64 << 20;
    {
        use std::os::unix::fs::FileExt;
        let file = fs::File::create(&sparse).unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(b"middle", 20 << 20).unwrap();
    }
    let mut bytes = vec![0; size as usize];
    bytes[20 << 20..(20 << 20) + 6].copy_from_slice(b"middle");
    let fixture = Fixture::new(&Model::new());
    let after = EntryState::File { hash: ContentHash::of(&bytes), size, mode: 0o644 };
    let target = Target {
        path: path("sparse"),
        before: EntryState::Absent,
        after,
        source: Source::File { root: source.path().to_owned(), path: path("sparse") },
        like: None,
    };
    fixture.apply(1, vec![target]).unwrap();
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(fixture.full("sparse")).unwrap();
    assert_eq!(metadata.len(), size);
    assert!(metadata.blocks() * 512 < 1 << 20, "holes were filled: {}", metadata.blocks());
    assert_eq!(fs::read(fixture.full("sparse")).unwrap(), bytes);
}

#[test]
fn names_are_bytes() {
    let mut after = Model::new();
    for name in [&b"a\nb"[..], b"\xff\xfe", b"-rf", b"$(x)", b"*", b"\x1b[2J", &[b'n'; 255]] {
        after.insert(RelPath::parse(name).unwrap(), file("x"));
    }
    let fixture = Fixture::new(&Model::new());
    fixture.apply(1, targets_between(&Model::new(), &after)).unwrap();
    assert_eq!(fixture.snapshot(), after);
    fixture.undo(1).unwrap();
    assert_eq!(fixture.snapshot(), Model::new());
}

#[test]
fn privilege_bits_of_a_sandbox_are_dropped_and_those_of_the_user_come_back() {
    let before = Model::from([(path("mine"), Node::File(b"mine".to_vec(), 0o4755))]);
    let after = Model::from([
        (path("mine"), Node::File(b"theirs".to_vec(), 0o4755)),
        (path("new"), Node::File(b"new".to_vec(), 0o6755)),
    ]);
    let fixture = Fixture::new(&before);
    let applied = fixture.apply(1, targets_between(&before, &after)).unwrap();
    assert_eq!(applied.stripped, [path("mine"), path("new")]);
    let now = fixture.snapshot();
    assert_eq!(now[&path("mine")], Node::File(b"theirs".to_vec(), 0o755));
    assert_eq!(now[&path("new")], Node::File(b"new".to_vec(), 0o755));
    let undone = fixture.undo(1).unwrap();
    assert_eq!(undone.stripped, []);
    assert_eq!(fixture.snapshot(), before);
}

#[test]
fn owners_follow_the_replaced_file_or_the_project() {
    use std::os::unix::fs::{MetadataExt, chown, lchown};
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let before = Model::from([
        (path("theirs"), file("a")),
        (path("dir"), Node::Dir(0o755)),
        (path("gone"), file("g")),
    ]);
    let mut after = before.clone();
    after.insert(path("theirs"), file("b"));
    after.insert(path("dir/new"), file("c"));
    after.insert(path("dir/sub"), Node::Dir(0o755));
    after.insert(path("dir/sub/new"), file("d"));
    after.insert(path("dir/link"), Node::Link(b"x".to_vec()));
    after.remove(&path("gone"));
    let fixture = Fixture::new(&before);
    chown(fixture.full("theirs"), Some(1234), Some(1235)).unwrap();
    chown(fixture.full("dir"), Some(2234), Some(2235)).unwrap();
    lchown(fixture.full("gone"), Some(3234), Some(3235)).unwrap();
    let owner = |name: &str| {
        let metadata = fs::symlink_metadata(fixture.full(name)).unwrap();
        (metadata.uid(), metadata.gid())
    };
    fixture.apply(1, targets_between(&before, &after)).unwrap();
    assert_eq!(owner("theirs"), (1234, 1235));
    // Whoever works in a project is its owner, also in a directory that is somebody else's.
    for name in ["dir/new", "dir/sub", "dir/sub/new", "dir/link"] {
        assert_eq!(owner(name), owner(""), "{name}");
    }
    fixture.undo(1).unwrap();
    assert_eq!((owner("theirs"), owner("gone")), ((1234, 1235), (3234, 3235)));
}

#[test]
fn hard_links_keep_the_old_bytes() {
    let before = Model::from([(path("one"), file("old")), (path("two"), file("old"))]);
    let after = Model::from([(path("one"), file("new")), (path("two"), file("old"))]);
    let fixture = Fixture::new(&Model::from([(path("one"), file("old"))]));
    fs::hard_link(fixture.full("one"), fixture.full("two")).unwrap();
    fixture.apply(1, targets_between(&before, &after)).unwrap();
    assert_eq!(fixture.snapshot(), after);
}
