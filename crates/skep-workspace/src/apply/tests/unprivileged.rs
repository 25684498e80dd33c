//! The same without root's privileges: permission bits matter. Run as root these tests become
//! another user in a process of their own.

use super::*;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::process::Command;

const NOBODY: u32 = 65_534;

/// Not a test: what the other user does.
#[test]
fn child() {
    let Some(dir) = std::env::var_os("SKEP_TEST_UNPRIVILEGED_DIR") else { return };
    // Fixtures are made below the directory that is ours.
    let base = PathBuf::from(dir);
    restrictive_modes(&base);
    closed_directories(&base);
    read_only_directory(&base);
}

fn fixture_in(base: &Path, model: &Model) -> Fixture {
    let dir = tempfile::tempdir_in(base).unwrap();
    let project = dir.path().join("project");
    fs::create_dir(&project).unwrap();
    let fixture = Fixture { dir, project };
    fixture.write(model);
    fixture
}

/// Directories that their owner may not write, or not even enter, before or after.
fn restrictive_modes(base: &Path) {
    let tree = |mode: u32, text: &str| {
        Model::from([
            (path("d"), Node::Dir(mode)),
            (path("d/e"), Node::Dir(mode)),
            (path("d/e/f"), file(text)),
        ])
    };
    // Not below 0500: the snapshot itself must be able to look.
    for old in [0o755, 0o555, 0o500] {
        for new in [0o755, 0o555, 0o500] {
            let (before, after) = (tree(old, "old"), tree(new, "new"));
            for (before, after) in
                [(&before, &after), (&before, &Model::new()), (&Model::new(), &after)]
            {
                if before == after {
                    continue;
                }
                let fixture = fixture_in(base, before);
                let targets = targets_between(before, after);
                // A directory that no target opens for writing is refused, not forced.
                let closed = old != 0o755 && old == new && !before.is_empty() && !after.is_empty();
                let result = fixture.apply(1, targets);
                if closed {
                    assert!(matches!(result, Err(ApplyError::Refused { .. })), "{result:?}");
                    assert_eq!(fixture.snapshot(), *before);
                    continue;
                }
                result.unwrap();
                assert_eq!(fixture.snapshot(), *after, "{old:o} to {new:o}");
                fixture.undo(1).unwrap();
                assert_eq!(fixture.snapshot(), *before, "{old:o} to {new:o} and back");
                fixture.assert_no_leftovers();
            }
        }
    }
}

/// Directories that their owner may not even enter get that mode last, the deepest first.
fn closed_directories(base: &Path) {
    let after = Model::from([
        (path("d"), Node::Dir(0)),
        (path("d/e"), Node::Dir(0)),
        (path("d/e/f"), file("new")),
    ]);
    let fixture = fixture_in(base, &Model::new());
    fixture.apply(1, targets_between(&Model::new(), &after)).unwrap();
    for dir in ["d", "d/e"] {
        let full = fixture.full(dir);
        assert_eq!(fs::metadata(&full).unwrap().permissions().mode() & 0o7777, 0, "{dir}");
        fs::set_permissions(&full, fs::Permissions::from_mode(0o700)).unwrap();
    }
    assert_eq!(fs::read(fixture.full("d/e/f")).unwrap(), b"new");
}

fn read_only_directory(base: &Path) {
    let before = Model::from([(path("d"), Node::Dir(0o555)), (path("d/f"), file("old"))]);
    let mut after = before.clone();
    after.insert(path("d/f"), file("new"));
    after.insert(path("added"), file("new"));
    let fixture = fixture_in(base, &before);
    let error = fixture.stage(1, targets_between(&before, &after)).unwrap_err();
    assert!(
        matches!(&error, ApplyError::Refused { path, .. } if *path == self::path("d/f")),
        "{error}"
    );
    assert_eq!(fixture.snapshot(), before);
}

#[test]
fn permission_bits_are_respected_and_restored() {
    if !rustix::process::geteuid().is_root() {
        let base = tempfile::tempdir().unwrap();
        restrictive_modes(base.path());
        closed_directories(base.path());
        read_only_directory(base.path());
        return;
    }
    let base = tempfile::tempdir().unwrap();
    chown(base.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    // The test program may be in a directory that the other user cannot enter.
    let program = base.path().join("test-program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new(&program)
        .args(["apply::tests::unprivileged::child", "--exact", "--test-threads=1"])
        .env("SKEP_TEST_UNPRIVILEGED_DIR", base.path())
        .env("TMPDIR", base.path())
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}
