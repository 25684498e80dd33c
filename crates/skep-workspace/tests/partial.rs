//! Approving some hunks leaves exactly the others, by the same ids, until none is left; and going
//! back brings all of them back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod model;

use model::apply::{approve, derived};
use model::{Node, Tree, World, path};
use proptest::prelude::*;
use skep_types::{HunkId, Selection, WorkspaceDriver};
use skep_workspace::unsettle;

/// Few different lines, so that a diff could line them up in many ways.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![Just("a\n"), Just("b\n"), Just("\n"), Just("  c\r\n")];
    prop::collection::vec(line, 20..80).prop_map(|lines| lines.concat().into_bytes())
}

fn ids(world: &World) -> Vec<HunkId> {
    let found = derived(world);
    found.changes.iter().flat_map(|c| c.hunks.iter().map(|hunk| hunk.id.clone())).collect()
}

fn split(all: &[HunkId], mask: u32) -> (Vec<HunkId>, Vec<HunkId>) {
    let (taken, left): (Vec<_>, Vec<_>) =
        all.iter().cloned().enumerate().partition(|(index, _)| mask >> (index % 32) & 1 == 1);
    let strip = |list: Vec<(usize, HunkId)>| list.into_iter().map(|(_, id)| id).collect();
    (strip(taken), strip(left))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn hunk_by_hunk(old in text(), new in text(), masks in any::<[u32; 2]>()) {
        let base: Tree = [(path("a"), Node::File(old.clone(), 0o644))].into();
        let mut world = World::new(WorkspaceDriver::OverlayUserns, base);
        world.put(&path("a"), Node::File(new.clone(), 0o755));
        let all = ids(&world);
        let mut left = all.clone();
        let mut plans = Vec::new();
        for (number, mask) in masks.into_iter().enumerate() {
            let (taken, rest) = split(&left, mask);
            if taken.is_empty() || rest.is_empty() {
                continue;
            }
            let selection = Selection { hunks: taken, ..Selection::default() };
            let plan = approve(&world, &selection, number as u8);
            prop_assert_eq!(plan.remaining, 1);
            prop_assert_eq!(&ids(&world), &rest);
            plans.push(plan);
            left = rest;
        }
        plans.push(approve(&world, &Selection::default(), 9));
        prop_assert_eq!(std::fs::read(world.spec.project.join("a")).unwrap(), new);
        prop_assert!(derived(&world).changes.is_empty());
        // As after undoing everything, the last one first.
        std::fs::write(world.spec.project.join("a"), &old).unwrap();
        for plan in plans.iter().rev() {
            unsettle(&world.spec, &plan.settlement).unwrap();
        }
        prop_assert_eq!(ids(&world), all);
    }
}
