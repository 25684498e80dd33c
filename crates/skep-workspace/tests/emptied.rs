//! Directories that the user removed, and in which the sandbox has something still.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod model;

use model::apply::{approve, derived};
use model::view::write_view;
use model::{Node, Tree, World, path};
use skep_types::{ByteString, RelPath, Selection, WorkspaceDriver};
use skep_workspace::{Company, Insiders, ViewWrite, capture, rebase, reject, settle_taken_in};

fn file(text: &str) -> Node {
    Node::File(text.into(), 0o644)
}

fn of_paths(paths: &[&str]) -> Selection {
    let paths = paths.iter().map(|text| ByteString::from(*text)).collect();
    Selection { paths, ..Selection::default() }
}

/// A sandbox that has a settled file in `d`, a pending one, and one in a directory below that it has as it was.
fn world() -> World {
    let names = [("d", Node::Dir(0o755)), ("d/x", Node::Dir(0o755))];
    let files = ["d/settled", "d/pending", "d/x/same"].map(|name| (name, file("old\n")));
    let tree: Tree = names.into_iter().chain(files).map(|(at, node)| (path(at), node)).collect();
    let mut world = World::new(WorkspaceDriver::OverlayUserns, tree);
    world.put(&path("d/settled"), file("settled\n"));
    world.put(&path("d/pending"), file("pending\n"));
    world.put(&path("d/x/same"), file("old\n"));
    capture(&world.spec, None, Insiders::Some).unwrap();
    approve(&world, &of_paths(&["d/settled"]), 1);
    world
}

/// The user moves it away, and nobody is inside.
fn move_away(world: &mut World, at: &str) {
    let away = world.dir.path().join("away");
    std::fs::rename(world.spec.project.join(at), away).unwrap();
    drop(world.see_anew());
}

fn written(writes: &[ViewWrite]) -> Vec<String> {
    writes.iter().map(|write| write.path.to_string()).collect()
}

fn reject_and_write(world: &mut World, selection: &Selection) -> Vec<String> {
    let rejected = reject(&world.spec, &derived(world), selection, Company::None).unwrap();
    write_view(world, &rejected.writes);
    settle_taken_in(&world.spec, &rejected.settlement).unwrap();
    written(&rejected.writes)
}

fn rebase_and_write(world: &mut World) -> Vec<String> {
    let rebased = rebase(&world.spec, &derived(world), Company::None).unwrap();
    write_view(world, &rebased.writes);
    settle_taken_in(&world.spec, &rebased.settlement).unwrap();
    written(&rebased.writes)
}

fn changed(world: &World) -> Vec<RelPath> {
    derived(world).changes.into_iter().map(|change| change.path).collect()
}

#[test]
fn a_directory_that_holds_what_the_sandbox_has_unchanged_stays_with_a_rejection() {
    let mut world = world();
    move_away(&mut world, "d");
    assert_eq!(reject_and_write(&mut world, &of_paths(&["d/pending"])), ["d/pending"]);
    assert_eq!(changed(&world), []);
    // And all of it goes with one rebase.
    rebase_and_write(&mut world);
    assert_eq!(world.view.keys().collect::<Vec<_>>(), [] as [&RelPath; 0]);
    assert_eq!(rebase_and_write(&mut world), [""; 0]);
}

#[test]
fn a_rebase_leaves_a_directory_in_which_work_is_pending() {
    let mut world = world();
    move_away(&mut world, "d");
    assert_eq!(rebase_and_write(&mut world), ["d/x/same", "d/settled", "d/x"]);
    assert_eq!(changed(&world), [path("d/pending")]);
}

/// The directory is rejected itself: nothing can stay in it.
#[test]
fn a_directory_that_is_rejected_takes_along_what_the_sandbox_has_unchanged_in_it() {
    for selection in [of_paths(&["d"]), Selection::default()] {
        let mut world = world();
        world.chmod(&path("d"), 0o777);
        move_away(&mut world, "d");
        assert_eq!(changed(&world), [path("d"), path("d/pending")]);
        reject_and_write(&mut world, &selection);
        assert_eq!(world.view.keys().collect::<Vec<_>>(), [] as [&RelPath; 0]);
        assert_eq!(changed(&world), []);
        assert_eq!(derived(&world).conflicts, []);
    }
}

#[test]
fn a_directory_with_a_change_of_its_own_is_not_dropped_with_what_is_in_it() {
    let mut world = world();
    world.put(&path("open"), Node::Dir(0o777));
    world.put(&path("open/new"), file("new\n"));
    assert_eq!(reject_and_write(&mut world, &of_paths(&["open/new"])), ["open/new"]);
    assert_eq!(changed(&world), [path("d/pending"), path("open")]);
}
