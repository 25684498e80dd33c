//! The marks that overlayfs and fuse-overlayfs really write: the full matrix of before and after,
//! made by a shell in a real mount, against a plain copy of the view.
//!
//! Needs root (or user namespaces) and, for its part, `fuse-overlayfs`; where a mount cannot be had
//! the case is skipped, unless `CI` is set.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod model;

use model::apply::derived;
use model::{Node, Tree, World, create, path, read_tree};
use skep_types::{EntryState, RelPath, Selection, WorkspaceDriver};
use skep_workspace::plan;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The kinds of entries, by name, with the command that makes one at `$p`.
const KINDS: [(&str, &str); 9] = [
    ("absent", ":"),
    ("file", "printf 'text\\nmore\\n' > $p"),
    ("exec", "printf 'text\\nmore\\n' > $p; chmod 755 $p"),
    ("empty", ": > $p"),
    ("dir", "mkdir $p; echo in > $p/in; mkdir $p/sub; echo deep > $p/sub/deep"),
    ("other", "mkdir $p; echo other > $p/new; mkdir $p/sub; echo deep2 > $p/sub/deep2"),
    ("emptydir", "mkdir $p"),
    ("link", "ln -s ../target $p"),
    ("fifo", "mkfifo $p"),
];

fn script(top: &str) -> String {
    let mut lines = String::from("set -e\numask 022\n");
    for parent in ["", "nested/"] {
        for (before, _) in KINDS {
            for (after, make) in KINDS {
                lines += &format!("p={top}/{parent}{before}-{after}; rm -rf $p; {make}\n");
            }
        }
    }
    // Work that ends where it began, and directories made again more than once.
    lines += &format!("cd {top}/nested; rm -rf again; mkdir again; rm -rf again; mkdir again\n");
    lines += "echo new > again/new; mv again/new again/newer; touch same; chmod 600 same; chmod 644 same\n";
    lines
}

fn base() -> Tree {
    let mut tree = Tree::new();
    tree.insert(path("nested"), Node::Dir(0o755));
    tree.insert(path("nested/again"), Node::Dir(0o755));
    tree.insert(path("nested/again/old"), Node::File(b"old\n".to_vec(), 0o644));
    tree.insert(path("nested/same"), Node::File(b"same\n".to_vec(), 0o644));
    tree
}

/// Makes the before-side of the matrix in a directory.
fn fill(project: &Path) {
    let mut lines = String::from("set -e\numask 022\n");
    for parent in ["", "nested/"] {
        for (before, make) in KINDS {
            for (after, _) in KINDS {
                lines += &format!("p={}/{parent}{before}-{after}; {make}\n", project.display());
            }
        }
    }
    assert!(Command::new("sh").args(["-c", &lines]).status().unwrap().success());
}

fn mount_command(driver: WorkspaceDriver, at: &str) -> (Vec<&'static str>, String) {
    let options = format!("lowerdir={at}/project,upperdir={at}/upper0,workdir={at}/work",);
    let pinned = "index=off,metacopy=off,redirect_dir=nofollow";
    match driver {
        WorkspaceDriver::OverlayRoot => (
            vec!["unshare", "-m"],
            format!("mount -t overlay overlay -o {options},{pinned} {at}/merged"),
        ),
        WorkspaceDriver::OverlayUserns => (
            vec!["unshare", "-Urm"],
            format!(
                "mount -t overlay overlay -o {options},index=off,metacopy=off,userxattr {at}/merged"
            ),
        ),
        _ => (vec!["unshare", "-Urm"], format!("fuse-overlayfs -o {options} {at}/merged")),
    }
}

/// Works in a real mount and gives a plain copy of the view; `None` when there is no such mount.
fn work(world: &World, driver: WorkspaceDriver) -> Option<BTreeMap<RelPath, EntryState>> {
    let at = world.dir.path().display().to_string();
    for name in ["work", "merged", "final"] {
        create(&world.dir.path().join(name), &Node::Dir(0o755));
    }
    let (mut command, mount) = mount_command(driver, &at);
    let check = format!("{mount} || exit 77\n");
    let lines = format!(
        "{check}{}\ncd /; cp -a {at}/merged/. {at}/final/; umount {at}/merged",
        script(&format!("{at}/merged"))
    );
    command.extend(["sh", "-c", &lines]);
    let output = Command::new(command[0]).args(&command[1..]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(77) || text.contains("unshare failed") {
        assert!(std::env::var_os("CI").is_none(), "{driver:?}: {text}");
        eprintln!("skipped {driver:?}: {text}");
        return None;
    }
    assert!(output.status.success(), "{driver:?}: {text}");
    Some(read_tree(&world.dir.path().join("final")))
}

fn check(driver: WorkspaceDriver) {
    let mut world = World::new(driver, base());
    fill(&world.spec.project);
    world.spec.base.instant = skep_workspace::now().unwrap();
    let before = world.project();
    let Some(after) = work(&world, driver) else { return };
    assert_eq!(world.project(), before, "the project is not touched");
    let found = derived(&world);
    assert_eq!(found.conflicts, []);
    // Every change says what the view shows, and every difference is a change.
    let state = |tree: &BTreeMap<RelPath, EntryState>, path: &RelPath| {
        tree.get(path).cloned().unwrap_or(EntryState::Absent)
    };
    for change in &found.changes {
        let from = change.renamed_from.as_ref().unwrap_or(&change.path);
        assert_eq!(change.old, state(&before, from), "{driver:?} {}", change.path);
        assert_eq!(change.new, state(&after, &change.path), "{driver:?} {}", change.path);
    }
    let special = |state: &EntryState| matches!(state, EntryState::Special { .. });
    let plan = plan(&world.spec, &found, &Selection::default()).unwrap();
    let mut applied = before.clone();
    for target in &plan.targets {
        assert_eq!(target.before, state(&before, &target.path));
        applied.insert(target.path.clone(), target.after.clone());
    }
    applied.retain(|_, state| !state.is_absent());
    let near_special = |path: &RelPath| {
        let top = path.ancestors().filter(|parent| !parent.is_root());
        top.chain([path.clone()])
            .any(|path| special(&state(&before, &path)) || special(&state(&after, &path)))
    };
    applied.retain(|path, _| !near_special(path));
    let mut expected = after.clone();
    expected.retain(|path, _| !near_special(path));
    // Below a directory that became a special file the deletions alone are applied.
    assert_eq!(applied, expected, "{driver:?}");
}

#[test]
fn overlayfs_as_root() {
    if rustix::process::geteuid().is_root() {
        check(WorkspaceDriver::OverlayRoot);
    }
}

#[test]
fn overlayfs_in_a_user_namespace() {
    check(WorkspaceDriver::OverlayUserns);
}

#[test]
fn fuse_overlayfs() {
    check(WorkspaceDriver::FuseOverlayfs);
}
