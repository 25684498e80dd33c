//! The user and the sandbox work at the same time, at random: whatever an approval does, nothing of
//! the user's is lost or reverted, and nothing of the sandbox's is left out.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod model;

use model::apply::{apply_plan, derived};
use model::view::write_view;
use model::{Node, Tree, World, create, path, remove};
use proptest::prelude::*;
use skep_types::{EntryState, RelPath, Selection, WorkspaceDriver};
use skep_workspace::{
    Company, Insiders, PlanError, capture, moment, plan, rebase, reject, settle_taken_in,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

#[derive(Debug, Clone)]
enum Step {
    SandboxPut(usize, Node),
    SandboxRemove(usize),
    UserPut(usize, Node),
    UserRemove(usize),
    UserMove(usize, usize),
    Capture,
}

const NAMES: [&str; 14] = [
    "a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/a", "d/e/b", "f", "f/a", "f/g", "f/g/a", "f/g/b",
];

fn text() -> impl Strategy<Value = Vec<u8>> {
    // Long enough that edits at both ends merge.
    prop::collection::vec(0u8..3, 3).prop_map(|marks| {
        (0..30)
            .flat_map(|line| {
                let mark = if line % 10 == 2 { marks[line / 10] } else { 0 };
                format!("line {line} {mark}\n").into_bytes()
            })
            .collect()
    })
}

fn node() -> impl Strategy<Value = Node> {
    prop_oneof![
        6 => (text(), prop_oneof![4 => Just(0o644), 1 => Just(0o755)])
            .prop_map(|(bytes, mode)| Node::File(bytes, mode)),
        2 => Just(Node::Dir(0o755)),
        1 => Just(Node::Link(b"a".to_vec())),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..NAMES.len();
    prop_oneof![
        5 => (at(), node()).prop_map(|(at, node)| Step::SandboxPut(at, node)),
        2 => at().prop_map(Step::SandboxRemove),
        3 => (at(), node()).prop_map(|(at, node)| Step::UserPut(at, node)),
        1 => at().prop_map(Step::UserRemove),
        1 => (at(), at()).prop_map(|(from, to)| Step::UserMove(from, to)),
        2 => Just(Step::Capture),
    ]
}

fn base_tree(files: &[Vec<u8>]) -> Tree {
    let mut tree = Tree::new();
    for (index, name) in NAMES.iter().enumerate() {
        let node = match *name {
            "d" | "d/e" | "f" | "f/g" => Node::Dir(0o755),
            _ if index % 3 == 2 => continue,
            _ => Node::File(files[index % files.len()].clone(), 0o644),
        };
        tree.insert(path(name), node);
    }
    tree
}

fn user_put(world: &World, at: &RelPath, node: &Node) {
    let real = world.spec.project.join(at.as_path());
    if real.parent().unwrap().is_dir() && !(real.is_dir() && matches!(node, Node::Dir(_))) {
        remove(&real);
        create(&real, node);
    }
}

fn run(world: &mut World, step: &Step) {
    match step {
        Step::SandboxPut(at, node) => {
            let at = path(NAMES[*at]);
            let both = matches!((world.view.get(&at), node), (Some(Node::Dir(_)), Node::Dir(_)));
            if !both {
                world.put(&at, node.clone());
            }
        }
        Step::SandboxRemove(at) => world.remove(&path(NAMES[*at])),
        Step::UserPut(at, node) => user_put(world, &path(NAMES[*at]), node),
        Step::UserRemove(at) => remove(&world.spec.project.join(NAMES[*at])),
        Step::UserMove(from, to) => {
            let (from, to) =
                (world.spec.project.join(NAMES[*from]), world.spec.project.join(NAMES[*to]));
            // A name that cannot be moved there stays; that is the user's affair.
            let _ = std::fs::rename(from, to);
        }
        Step::Capture => drop(capture(&world.spec, None, Insiders::Some).unwrap()),
    }
}

fn states(tree: &Tree) -> BTreeMap<RelPath, EntryState> {
    tree.iter().map(|(path, node)| (path.clone(), node.state())).collect()
}

fn driver() -> impl Strategy<Value = WorkspaceDriver> {
    prop_oneof![
        3 => Just(WorkspaceDriver::OverlayUserns),
        1 => Just(WorkspaceDriver::FuseOverlayfs),
        1 => Just(WorkspaceDriver::Copy),
    ]
}

/// Checks one path that is a directory on no side.
fn check_path(
    at: &RelPath,
    [base, user, sandbox, result]: [&EntryState; 4],
) -> Result<(), TestCaseError> {
    let sides = format!("{at}: base {base:?}, user {user:?}, sandbox {sandbox:?}, got {result:?}");
    if user == base || user == sandbox {
        prop_assert_eq!(result, sandbox, "left out: {}", sides);
    } else if sandbox == base {
        prop_assert_eq!(result, user, "lost: {}", sides);
    } else {
        let file = |state: &EntryState| matches!(state, EntryState::File { .. });
        prop_assert!([base, user, sandbox, result].into_iter().all(file), "{}", sides);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn an_approval_loses_nothing_of_either(
        driver in driver(),
        files in prop::collection::vec(text(), 3),
        steps in prop::collection::vec(step(), 0..14),
    ) {
        let base = base_tree(&files);
        let mut world = World::new(driver, base.clone());
        let mut made_anew = BTreeSet::new();
        run_all(&mut world, &steps, &mut made_anew);
        check_approval(&mut world, &states(&base), &made_anew)?;
    }

    /// The same, where now and then nobody is inside, and what the sandbox has not touched comes from the
    /// project as it is by then.
    #[test]
    fn an_approval_after_a_moment_loses_nothing_of_either(
        driver in prop_oneof![Just(WorkspaceDriver::OverlayUserns), Just(WorkspaceDriver::FuseOverlayfs)],
        files in prop::collection::vec(text(), 3),
        rounds in prop::collection::vec(prop::collection::vec(step(), 0..9), 2..4),
    ) {
        let tree = base_tree(&files);
        let mut base = states(&tree);
        let mut world = World::new(driver, tree);
        let mut made_anew = BTreeSet::new();
        for (round, steps) in rounds.iter().enumerate() {
            if round > 0 {
                let project = world.project();
                moment(&world.spec, None, Insiders::None).unwrap().unwrap().note(&world.spec).unwrap();
                let covered = world.see_anew();
                base.retain(|path, _| covered(path));
                // What both had then, nobody who came later has seen otherwise.
                let inside = states(&world.view);
                let alike = |path: &RelPath, state: &EntryState| inside.get(path) == Some(state);
                let taken = project.into_iter().filter(|(path, state)| !covered(path) || alike(path, state));
                base.extend(taken);
            }
            run_all(&mut world, steps, &mut made_anew);
        }
        check_approval(&mut world, &base, &made_anew)?;
    }

    /// Whatever both did, and whatever of it was approved: with nobody inside, what a rejection and a rebase write
    /// can be written, and after both the sandbox has what the project has.
    #[test]
    fn a_rejection_and_a_rebase_can_be_carried_out_and_leave_nothing(
        driver in prop_oneof![Just(WorkspaceDriver::OverlayUserns), Just(WorkspaceDriver::FuseOverlayfs)],
        files in prop::collection::vec(text(), 3),
        rounds in prop::collection::vec(prop::collection::vec(step(), 0..9), 2..4),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 3),
    ) {
        let mut world = World::new(driver, base_tree(&files));
        for (number, steps) in rounds.iter().enumerate() {
            run_all(&mut world, steps, &mut BTreeSet::new());
            let selection = one_of(&world, &picks[number]);
            if let Ok(plan) = plan(&world.spec, &derived(&world), &selection) {
                apply_plan(&world, &plan, number as u8);
            }
        }
        rounds.iter().flatten().filter(|step| is_users(step)).for_each(|step| run(&mut world, step));
        let everything = Selection::default();
        for selection in [one_of(&world, &picks[0]), everything.clone(), everything.clone(), everything] {
            drop(world.see_anew());
            let rejected = reject(&world.spec, &derived(&world), &selection, Company::None).unwrap();
            write_view(&mut world, &rejected.writes);
            settle_taken_in(&world.spec, &rejected.settlement).unwrap();
        }
        let left = derived(&world);
        prop_assert!(left.changes.is_empty(), "{:?}", left.changes);
        drop(world.see_anew());
        let rebased = rebase(&world.spec, &left, Company::None).unwrap();
        write_view(&mut world, &rebased.writes);
        settle_taken_in(&world.spec, &rebased.settlement).unwrap();
        drop(world.see_anew());
        prop_assert_eq!(states(&world.view), world.project());
    }
}

/// One of the changes, if there is one.
fn one_of(world: &World, pick: &prop::sample::Index) -> Selection {
    let changes = derived(world).changes;
    let picked = (!changes.is_empty()).then(|| pick.get(&changes).path.to_byte_string());
    Selection { paths: picked.into_iter().collect(), ..Selection::default() }
}

fn is_users(step: &Step) -> bool {
    matches!(step, Step::UserPut(..) | Step::UserRemove(_) | Step::UserMove(..))
}

/// Runs them. What the sandbox made where the user had already removed something: it knew. A file of its own that it
/// writes once more still comes from what it first came from.
fn run_all(world: &mut World, steps: &[Step], made_anew: &mut BTreeSet<RelPath>) {
    for step in steps {
        let is_in = |tree: &Path, at: usize| std::fs::symlink_metadata(tree.join(NAMES[at]));
        if let Step::SandboxPut(at, _) = step
            && is_in(&world.spec.project, *at).is_err()
            && !is_in(&world.spec.upper, *at).is_ok_and(|found| found.is_file())
        {
            made_anew.insert(path(NAMES[*at]));
        }
        run(world, step);
    }
}

/// Approves everything, and looks at every path.
fn check_approval(
    world: &mut World,
    base: &BTreeMap<RelPath, EntryState>,
    made_anew: &BTreeSet<RelPath>,
) -> Result<(), TestCaseError> {
    let user = world.project();
    let found = derived(world);
    match plan(&world.spec, &found, &Selection::default()) {
        Err(PlanError::Conflicts(conflicts)) => {
            prop_assert!(!conflicts.is_empty());
            prop_assert_eq!(world.project(), user);
            return Ok(());
        }
        // A parent that the user replaced by something else.
        Err(PlanError::Depends { .. }) => return Ok(()),
        Err(error) => panic!("{error:?}"),
        Ok(plan) => apply_plan(world, &plan, 1),
    }
    let (sandbox, result) = (states(&world.view), world.project());
    let sides = [base, &user, &sandbox, &result];
    let paths: BTreeSet<&RelPath> = sides.iter().flat_map(|side| side.keys()).collect();
    for at in paths {
        let states = sides.map(|side| side.get(at).unwrap_or(&EntryState::Absent));
        if made_anew.contains(at) {
            prop_assert!(states[3] == states[1] || states[3] == states[2], "{}", at);
        } else if !states.iter().any(|state| matches!(state, EntryState::Dir { .. })) {
            check_path(at, states)?;
        }
    }
    let left = derived(world);
    prop_assert!(left.changes.is_empty(), "{:?}", left.changes);
    Ok(())
}
