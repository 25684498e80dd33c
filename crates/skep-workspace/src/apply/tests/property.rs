//! Random trees: apply leads exactly to the model, undo exactly back.

use super::*;
use proptest::prelude::*;

fn names() -> impl Strategy<Value = RelPath> {
    proptest::collection::vec(prop_oneof!["a", "b", "c", "A"], 1..4)
        .prop_map(|parts| path(&parts.join("/")))
}

fn nodes() -> impl Strategy<Value = Node> {
    let modes = prop_oneof![Just(0o644), Just(0o755), Just(0o600), Just(0o444)];
    let dir_modes = prop_oneof![Just(0o755), Just(0o700), Just(0o555), Just(0o2775)];
    prop_oneof![
        (proptest::collection::vec(any::<u8>(), 0..40), modes)
            .prop_map(|(bytes, mode)| Node::File(bytes, mode)),
        proptest::collection::vec(1..=255u8, 1..20).prop_map(Node::Link),
        dir_modes.prop_map(Node::Dir),
    ]
}

/// A tree from any list of entries: what stands above an entry becomes a directory.
fn trees() -> impl Strategy<Value = Model> {
    proptest::collection::vec((names(), nodes()), 0..14).prop_map(|entries| {
        let mut model = Model::new();
        for (path, node) in entries {
            for above in path.ancestors().filter(|above| !above.is_root()) {
                if !matches!(model.get(&above), Some(Node::Dir(_))) {
                    model.insert(above, Node::Dir(0o755));
                }
            }
            if !matches!(node, Node::Dir(_)) {
                model.retain(|other, _| !other.starts_with(&path));
            }
            model.insert(path, node);
        }
        model
    })
}

proptest! {
    // Some cases are none (a path below a file): how many depends on how many are asked for.
    #![proptest_config(ProptestConfig {
        cases: 300, max_global_rejects: 1 << 20, fork: false, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn apply_equals_the_model_and_undo_equals_the_original(before in trees(), after in trees()) {
        let fixture = Fixture::new(&before);
        fixture.apply(1, targets_between(&before, &after)).unwrap();
        prop_assert_eq!(fixture.snapshot(), after);
        fixture.undo(1).unwrap();
        prop_assert_eq!(fixture.snapshot(), before);
        fixture.assert_no_leftovers();
    }

    /// One path differs from what was reviewed: refused, and nothing at all is changed.
    #[test]
    fn any_difference_refuses_everything(before in trees(), after in trees(), pick in any::<prop::sample::Index>()) {
        let targets = targets_between(&before, &after);
        prop_assume!(!targets.is_empty());
        let mut real = before.clone();
        let victim = pick.get(&targets).path.clone();
        real.retain(|path, _| !path.starts_with(&victim));
        if !before.contains_key(&victim) {
            let above_is_dir = victim.ancestors()
                .all(|above| above.is_root() || matches!(before.get(&above), Some(Node::Dir(_))));
            prop_assume!(above_is_dir);
            real.insert(victim, file("the user's"));
        }
        let fixture = Fixture::new(&real);
        let result = fixture.stage(1, targets);
        prop_assert!(matches!(result, Err(ApplyError::Conflict(_))), "{:?}", result);
        prop_assert_eq!(fixture.snapshot(), real);
        fixture.assert_no_leftovers();
    }
}
