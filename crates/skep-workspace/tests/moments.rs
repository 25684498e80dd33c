//! Moments: after a rebase with nobody inside, what the sandbox has not touched comes from the project as it is
//! by then, and everything else from where it came from before.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod model;

use model::apply::derived;
use model::{Node, Tree, World, path};
use skep_types::{Change, EntryState, WorkspaceDriver};
use skep_workspace::{Derived, Insiders, capture, moment, reach, rewind};
use std::fs;

/// Lines of which some are edited.
fn lines(edits: &[(usize, &str)]) -> Vec<u8> {
    let line = |n: usize| match edits.iter().find(|(at, _)| *at == n) {
        Some((_, text)) => format!("{text}\n"),
        None => format!("{n}\n"),
    };
    (1..=60).map(line).collect::<String>().into_bytes()
}

fn file(bytes: Vec<u8>) -> Node {
    Node::File(bytes, 0o644)
}

fn world(files: &[&str]) -> World {
    let mut tree = Tree::new();
    for name in files {
        let at = path(name);
        for above in at.ancestors().filter(|above| !above.is_root()) {
            tree.insert(above, Node::Dir(0o755));
        }
        tree.insert(at, file(lines(&[])));
    }
    World::new(WorkspaceDriver::OverlayUserns, tree)
}

fn user(world: &World, name: &str, bytes: Vec<u8>) {
    fs::write(world.spec.project.join(name), bytes).unwrap();
}

fn take_moment(world: &mut World) {
    moment(&world.spec, None, Insiders::None).unwrap().unwrap().note(&world.spec).unwrap();
    drop(world.see_anew());
}

fn conflicts(derived: &Derived) -> Vec<String> {
    derived.conflicts.iter().map(|conflict| conflict.path.to_string()).collect()
}

#[test]
fn what_comes_after_a_moment_comes_from_the_project_of_then() {
    let mut world = world(&["f", "d/g"]);
    for name in ["f", "d/g"] {
        user(&world, name, lines(&[(10, "user")]));
    }
    take_moment(&mut world);
    for name in ["f", "d/g"] {
        world.put(&path(name), file(lines(&[(10, "user"), (30, "agent")])));
    }
    let found = derived(&world);
    assert!(found.drift.is_empty(), "{:?}", found.drift);
    assert_eq!(found.changes.len(), 2);
    assert!(found.changes.iter().all(|change| (change.added, change.removed) == (1, 1)));
    // Captured while that is so, it merges with what the user does next.
    capture(&world.spec, None, Insiders::None).unwrap();
    user(&world, "f", lines(&[(50, "later")]));
    let found = derived(&world);
    assert_eq!(conflicts(&found), [""; 0]);
    assert_eq!(found.drift.len(), 1);
    let shown = found.changes.iter().find(|change| change.path == path("f")).unwrap();
    assert_eq!((shown.added, shown.removed), (1, 1), "the user's line is not the agent's");
}

/// The trap: the user edits, somebody inside who knew the file from before writes it. Then a moment comes.
#[test]
fn what_was_in_the_sandbox_before_a_moment_is_not_of_it() {
    let mut world = world(&["f", "d/g", "gone/a", "gone/b"]);
    for name in ["f", "d/g", "gone/a"] {
        user(&world, name, lines(&[(10, "user")]));
    }
    for name in ["f", "d/g"] {
        world.put(&path(name), file(lines(&[(30, "agent")])));
    }
    world.remove(&path("gone"));
    take_moment(&mut world);
    let expected = ["d/g", "f", "gone/a"];
    assert_eq!(conflicts(&derived(&world)), expected);
    // Also where it is written anew.
    world.put(&path("f"), file(lines(&[(30, "agent"), (50, "more")])));
    capture(&world.spec, None, Insiders::None).unwrap();
    take_moment(&mut world);
    assert_eq!(conflicts(&derived(&world)), expected);
}

#[test]
fn going_back_to_before_a_moment_takes_it_back() {
    let mut world = world(&["f"]);
    user(&world, "f", lines(&[(10, "user")]));
    world.put(&path("f"), file(lines(&[(30, "agent")])));
    capture(&world.spec, None, Insiders::None).unwrap();
    world.freeze();
    let (with, then) = (world.spec.layers.clone(), reach(&world.spec.memory).unwrap());
    // Back to where nothing was changed; there nobody has seen anything.
    world.spec.layers.clear();
    rewind(&world.spec, 0).unwrap();
    moment(&world.spec, None, Insiders::None).unwrap().unwrap().note(&world.spec).unwrap();
    world.spec.layers = with;
    rewind(&world.spec, then).unwrap();
    assert_eq!(conflicts(&derived(&world)), ["f"]);
}

/// A list of a directory says what was there at its moment, and nothing of what came before.
#[test]
fn a_list_of_a_directory_is_of_its_moment() {
    let mut world = world(&["d/a", "d/b"]);
    world.put(&path("d/a"), file(lines(&[(30, "agent")])));
    (0..2).for_each(|_| drop(skep_workspace::now().unwrap()));
    fs::remove_file(world.spec.project.join("d/a")).unwrap();
    take_moment(&mut world);
    assert_eq!(conflicts(&derived(&world)), ["d/a"]);
    for number in 0..1100 {
        world.put(&path(&format!("d/new{number}")), file(b"new\n".to_vec()));
    }
    capture(&world.spec, None, Insiders::None).unwrap();
    assert_eq!(conflicts(&derived(&world)), ["d/a"], "the user removed it");
    // What that list tells is not lost with the next moment.
    (0..2).for_each(|_| drop(skep_workspace::now().unwrap()));
    user(&world, "d/theirs", b"user\n".to_vec());
    take_moment(&mut world);
    let found = derived(&world);
    assert_eq!(conflicts(&found), ["d/a"]);
    let new = |change: &Change| change.old == EntryState::Absent && change.path != path("d/a");
    assert_eq!(found.changes.iter().filter(|change| new(change)).count(), 1100);
}

/// A directory that was put in place between create and the moment is known for what comes later only.
#[test]
fn a_directory_that_is_known_from_a_moment_proves_nothing_of_before() {
    let mut world = world(&["d/x", "d/y", "swap/x", "swap/y"]);
    let project = world.spec.project.clone();
    world.put(&path("d/x"), file(lines(&[(30, "agent")])));
    fs::rename(project.join("d"), project.join("away")).unwrap();
    fs::rename(project.join("swap"), project.join("d")).unwrap();
    take_moment(&mut world);
    assert_eq!(conflicts(&derived(&world)), ["d/x"]);
    world.put(&path("d/y"), file(lines(&[(30, "agent")])));
    capture(&world.spec, None, Insiders::None).unwrap();
    assert_eq!(conflicts(&derived(&world)), ["d/x"]);
}

/// Made and removed again: the project shows through, whatever was noted.
#[test]
fn what_left_before_a_moment_comes_anew() {
    let mut world = world(&["f"]);
    world.put(&path("new"), file(lines(&[(5, "agent")])));
    capture(&world.spec, None, Insiders::None).unwrap();
    world.remove(&path("new"));
    user(&world, "new", lines(&[(10, "user")]));
    take_moment(&mut world);
    world.put(&path("new"), file(lines(&[(10, "user"), (30, "agent")])));
    capture(&world.spec, None, Insiders::None).unwrap();
    let found = derived(&world);
    assert!(found.drift.is_empty(), "{:?}", found.drift);
    assert_eq!((found.changes[0].added, found.changes[0].removed), (1, 1));
}
