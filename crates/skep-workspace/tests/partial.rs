//! Approving some hunks leaves exactly the others, by the same ids, until none is left; and going
//! back brings all of them back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod model;

use model::apply::{approve, derived};
use model::{Node, Tree, World, path};
use proptest::prelude::*;
use skep_types::{HunkId, HunkLine, Selection, WorkspaceDriver};
use skep_workspace::unsettle;

/// Few different lines, so that a diff could line them up in many ways.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![Just("a\n"), Just("b\n"), Just("\n"), Just("  c\r\n")];
    prop::collection::vec(line, 20..80).prop_map(|lines| lines.concat().into_bytes())
}

/// Equal sections, of which some have another value, and some stand there twice.
fn sections() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![3 => Just("value"), 2 => Just("one"), 2 => Just("two\nlines")];
    let section = (value, prop::bool::weighted(0.2));
    prop::collection::vec(section, 6).prop_map(|sections| {
        let text = |(value, twice): &(&str, bool)| {
            format!("[section]\na\nb\nc\n{value}\nd\ne\nf\n").repeat(1 + usize::from(*twice))
        };
        sections.iter().map(text).collect::<String>().into_bytes()
    })
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

    /// Some hunks are taken and the sandbox goes on, again and again. After each approval the diff is the one
    /// before it without what was taken: the same ids, in the same order, with the same lines.
    #[test]
    fn hunk_by_hunk_while_the_sandbox_goes_on(
        old in sections(), rounds in prop::collection::vec((sections(), any::<[u32; 2]>()), 1..5)
    ) {
        let base: Tree = [(path("a"), Node::File(old, 0o644))].into();
        let mut world = World::new(WorkspaceDriver::OverlayUserns, base);
        let mut gone: Vec<HunkId> = Vec::new();
        let mut number = 0;
        let mut last = Vec::new();
        for (new, masks) in rounds {
            world.put(&path("a"), Node::File(new.clone(), 0o644));
            last = new;
            for mask in masks {
                let shown = hunks(&world);
                prop_assert!(shown.iter().all(|(id, _)| !gone.contains(id)), "an id came back");
                let all: Vec<HunkId> = shown.iter().map(|(id, _)| id.clone()).collect();
                let (taken, rest) = split(&all, mask);
                if taken.is_empty() || rest.is_empty() {
                    continue;
                }
                approve(&world, &Selection { hunks: taken.clone(), ..Selection::default() }, number);
                number += 1;
                let left: Vec<_> =
                    shown.into_iter().filter(|(id, _)| rest.contains(id)).collect();
                prop_assert_eq!(&hunks(&world), &left);
                gone.extend(taken);
            }
        }
        if !derived(&world).changes.is_empty() {
            approve(&world, &Selection::default(), number);
        }
        prop_assert_eq!(std::fs::read(world.spec.project.join("a")).unwrap(), last);
    }
}

fn hunks(world: &World) -> Vec<(HunkId, Vec<HunkLine>)> {
    let found = derived(world);
    let hunks = found.changes.iter().flat_map(|change| &change.hunks);
    hunks.map(|hunk| (hunk.id.clone(), hunk.lines.clone())).collect()
}
