//! Random trees and random work in them: the derived change set, applied to the base, gives exactly
//! what the view shows, whatever driver wrote the upper.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod model;

use model::apply::{apply_plan, derived};
use model::{Node, Tree, World, path};
use proptest::prelude::*;
use skep_types::{EntryState, RelPath, Selection, WorkspaceDriver};
use skep_workspace::{Captor, Insiders, capture, plan};
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
enum Op {
    Put(usize, Node),
    Remove(usize),
    Chmod(usize, u32),
    Touch(usize),
    Move(usize, usize),
    Freeze,
}

/// Few names on three levels, with names that sort around the slash.
fn names() -> Vec<RelPath> {
    let parts = ["a", "a-b", "b", "\u{e9}\n"];
    let mut all: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
    for level in 0..2 {
        let parents: Vec<String> =
            all.iter().filter(|text| text.matches('/').count() == level).cloned().collect();
        for parent in parents {
            all.extend(parts[..3].iter().map(|part| format!("{parent}/{part}")));
        }
    }
    all.iter().map(|text| path(text)).collect()
}

fn node() -> impl Strategy<Value = Node> {
    let bytes = prop_oneof![
        Just(Vec::new()),
        Just(b"one\n".to_vec()),
        Just(b"one\ntwo\nthree\nfour\n".to_vec()),
        Just(b"one\r\nTWO\nthree\nfour".to_vec()),
        Just(b"bin\0ary".to_vec()),
    ];
    let file_mode = prop_oneof![Just(0o644), Just(0o755), Just(0o600)];
    let dir_mode = prop_oneof![Just(0o755), Just(0o700)];
    prop_oneof![
        4 => (bytes, file_mode).prop_map(|(bytes, mode)| Node::File(bytes, mode)),
        4 => dir_mode.prop_map(Node::Dir),
        1 => prop_oneof![Just(b"a".to_vec()), Just(b"/etc/passwd".to_vec())].prop_map(Node::Link),
        1 => Just(Node::Fifo),
    ]
}

fn op(count: usize) -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..count, node()).prop_map(|(at, node)| Op::Put(at, node)),
        4 => (0..count).prop_map(Op::Remove),
        2 => (0..count, prop_oneof![Just(0o644), Just(0o700), Just(0o755)])
            .prop_map(|(at, mode)| Op::Chmod(at, mode)),
        1 => (0..count).prop_map(Op::Touch),
        2 => (0..count, 0..count).prop_map(|(from, to)| Op::Move(from, to)),
        1 => Just(Op::Freeze),
    ]
}

fn base_tree(puts: &[(usize, Node)], names: &[RelPath]) -> Tree {
    let mut tree = Tree::new();
    for (at, node) in puts {
        let path = &names[*at];
        let parent = path.parent().unwrap();
        let placed = parent.is_root() || matches!(tree.get(&parent), Some(Node::Dir(_)));
        if placed && !tree.contains_key(path) {
            tree.insert(path.clone(), node.clone());
        }
    }
    tree
}

fn run(world: &mut World, op: &Op, names: &[RelPath]) {
    match op {
        Op::Put(at, node) => world.put(&names[*at], node.clone()),
        Op::Remove(at) => world.remove(&names[*at]),
        Op::Chmod(at, mode) => world.chmod(&names[*at], *mode),
        Op::Touch(at) => {
            if let Some(Node::File(bytes, mode)) = world.view.get(&names[*at]).cloned() {
                world.put(&names[*at], Node::File(bytes, mode));
            }
        }
        Op::Move(from, to) => {
            let (from, to) = (&names[*from], &names[*to]);
            let node = world.view.get(from).cloned();
            if let Some(node @ Node::File(..)) = node
                && !world.view.contains_key(to)
            {
                world.put(to, node);
                if world.view.contains_key(to) {
                    world.remove(from);
                }
            }
        }
        Op::Freeze => world.freeze(),
    }
}

fn states(view: &Tree) -> BTreeMap<RelPath, EntryState> {
    view.iter().map(|(path, node)| (path.clone(), node.state())).collect()
}

fn driver() -> impl Strategy<Value = WorkspaceDriver> {
    prop_oneof![
        Just(WorkspaceDriver::OverlayUserns),
        Just(WorkspaceDriver::OverlayRoot),
        Just(WorkspaceDriver::FuseOverlayfs),
        Just(WorkspaceDriver::Copy),
    ]
}

/// Whether special files take part: then a selection of everything may be refused for what stands
/// on them, which is tested apart.
fn has_fifo(tree: &Tree) -> bool {
    tree.values().any(|node| *node == Node::Fifo)
}

/// So few that directories are mostly made, filled, changed and emptied again.
const FEW: [&str; 6] = ["a", "a/a", "a/a/a", "a/b", "b", "b/a"];

/// One bit of the mode of something that is there, or its removal; or nothing.
fn tweaked(world: &mut World, (at, how): (prop::sample::Index, u8)) {
    let paths: Vec<RelPath> = world.view.keys().cloned().collect();
    if paths.is_empty() {
        return;
    }
    let path = at.get(&paths);
    match (how, &world.view[path]) {
        (0, Node::File(_, mode) | Node::Dir(mode)) => world.chmod(path, *mode ^ 0o001),
        (1, _) => world.remove(path),
        _ => {}
    }
}

/// The work of one sandbox.
fn worked(driver: WorkspaceDriver, base: &Tree, ops: &[Op], names: &[RelPath]) -> World {
    let mut world = World::new(driver, base.clone());
    ops.iter().for_each(|op| run(&mut world, op, names));
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// What an approval is bound to: two views that differ in a path, a byte, a mode, a link or an empty
    /// directory have two digests, and one view has one, however and by whatever driver it came about.
    #[test]
    fn two_views_of_one_base_have_the_same_digest_only_if_they_are_the_same(
        drivers in (driver(), driver()),
        puts in prop::collection::vec((0..FEW.len(), node()), 0..8),
        ops in prop::collection::vec(op(FEW.len()), 0..12),
        more in prop::collection::vec(op(FEW.len()), 0..2),
        tweak in (any::<prop::sample::Index>(), 0u8..3),
    ) {
        let by_root = [drivers.0, drivers.1].contains(&WorkspaceDriver::OverlayRoot);
        if by_root && !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let names = FEW.map(path);
        let base = base_tree(&puts, &names);
        // Neighbours: the second does what the first did, and a little more.
        let further: Vec<Op> = ops.iter().chain(&more).cloned().collect();
        let one = worked(drivers.0, &base, &ops, &names);
        let mut other = worked(drivers.1, &base, &further, &names);
        tweaked(&mut other, tweak);
        let (first, second) = (derived(&one), derived(&other));
        prop_assert_eq!(
            first.digest == second.digest,
            one.view == other.view,
            "{:?}\n{:?}", first.changes, second.changes
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn the_derived_changes_make_the_base_the_view(
        driver in driver(),
        puts in prop::collection::vec((0..names().len(), node()), 0..30),
        ops in prop::collection::vec(op(names().len()), 0..20),
        capture_at in 0usize..20,
        special in prop::bool::weighted(0.15),
    ) {
        if driver == WorkspaceDriver::OverlayRoot && !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let names = names();
        let plain = |node: Node| match node {
            Node::Fifo if !special => Node::File(b"no pipe\n".to_vec(), 0o640),
            node => node,
        };
        let puts: Vec<_> = puts.into_iter().map(|(at, node)| (at, plain(node))).collect();
        let ops: Vec<_> = ops.into_iter().map(|op| match op {
            Op::Put(at, node) => Op::Put(at, plain(node)),
            op => op,
        }).collect();
        let base = base_tree(&puts, &names);
        let mut world = World::new(driver, base.clone());
        for (index, op) in ops.iter().enumerate() {
            run(&mut world, op, &names);
            if index == capture_at {
                capture(&world.spec, None, Insiders::None).unwrap();
            }
        }
        let found = derived(&world);
        prop_assert_eq!(&found.conflicts, &[]);
        prop_assert_eq!(found.digest, derived(&world).digest);
        let sorted = found.changes.windows(2).all(|pair| pair[0].path < pair[1].path);
        prop_assert!(sorted);
        if world.view == base {
            prop_assert!(found.changes.is_empty(), "{:?}", found.changes);
        }
        let selection = Selection::default();
        if has_fifo(&world.view) || has_fifo(&base) {
            // Specials are listed; the plan must not claim to have applied them.
            {
                let plan = plan(&world.spec, &found, &selection).unwrap();
                let special = |state: &EntryState| matches!(state, EntryState::Special { .. });
                let none = !plan.targets.iter().any(|target| special(&target.after));
                prop_assert!(none, "{:?}", plan.targets);
            }
            return Ok(());
        }
        let plan = plan(&world.spec, &found, &selection).unwrap();
        prop_assert_eq!(plan.remaining, 0);
        apply_plan(&world, &plan, 1);
        prop_assert_eq!(world.project(), states(&world.view));
        let left = derived(&world);
        prop_assert!(left.changes.is_empty(), "{:?}", left.changes);
        prop_assert_eq!(&left.conflicts, &[]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Whoever captures again and again leaves out directories in which nothing came or went; one
    /// who looks at everything then finds nothing that was left out.
    #[test]
    fn capturing_again_and_again_misses_nothing(
        driver in driver(),
        puts in prop::collection::vec((0..names().len(), node()), 0..30),
        ops in prop::collection::vec((op(names().len()), any::<bool>()), 0..20),
    ) {
        if driver == WorkspaceDriver::OverlayRoot && !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let names = names();
        let mut world = World::new(driver, base_tree(&puts, &names));
        let mut captor = Captor::default();
        for (op, waits) in &ops {
            run(&mut world, op, &names);
            if *waits {
                skep_workspace::now().unwrap();
            }
            captor.capture(&world.spec, Insiders::None).unwrap();
            // Most of the time there is something unchanged to be left out only now.
            captor.capture(&world.spec, Insiders::None).unwrap();
            prop_assert_eq!(capture(&world.spec, None, Insiders::None).unwrap().captured, 0);
        }
    }
}
