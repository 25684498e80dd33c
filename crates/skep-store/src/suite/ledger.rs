//! Layers, rejections, events, keys, facts, care.

use super::sample::{event, layer, path, sandbox, snapshot, time};
use crate::{
    EventFilter, Expect, KeyClaim, NewEvent, Rejection, ScopeMode, Store, StoreError, Template,
};
use serde_json::json;
use skep_types::{ContentHash, SandboxState, Selection};
use std::collections::BTreeMap;

pub(super) fn layers(store: &dyn Store) {
    let mut home = sandbox(1, "a");
    home.layers = vec![layer(1), layer(2)];
    store.insert_sandbox(&home, ScopeMode::Shared, &[]).unwrap();
    let shot = snapshot(&home.id, "before/lunch", &[layer(2), layer(3)]);
    store.insert_snapshot(&shot, &[]).unwrap();
    let again = store.insert_snapshot(&shot, &[]);
    assert!(matches!(again, Err(StoreError::AlreadyExists { what: "snapshot", .. })));
    let template = Template { name: "node".into(), snapshot: shot.clone(), created_at: time(4) };
    store.insert_template(&template, &[]).unwrap();
    let again = store.insert_template(&template, &[]);
    assert!(matches!(again, Err(StoreError::AlreadyExists { what: "template", .. })));

    assert_eq!(store.snapshot(&home.id, "before/lunch").unwrap(), shot);
    assert_eq!(store.list_snapshots(Some(&home.id)).unwrap(), vec![shot.clone()]);
    assert_eq!(store.list_snapshots(None).unwrap(), [shot]);
    assert!(store.list_snapshots(Some(&sandbox(2, "b").id)).unwrap().is_empty());
    assert_eq!(store.template("node").unwrap(), template);
    assert_eq!(store.list_templates().unwrap(), [template]);
    assert!(matches!(store.snapshot(&home.id, "no"), Err(StoreError::NotFound { .. })));
    assert!(matches!(store.template("no"), Err(StoreError::NotFound { .. })));

    let in_use = || store.layers_in_use().unwrap();
    assert_eq!(in_use(), BTreeMap::from([(layer(1), 1), (layer(2), 3), (layer(3), 2)]));
    let change = |edit: &mut dyn FnMut(&mut skep_types::Sandbox)| {
        store.update_sandbox(&home.id, Expect::default(), &[], edit).unwrap()
    };
    change(&mut |row| row.layers = vec![layer(4)]);
    assert_eq!(in_use(), BTreeMap::from([(layer(2), 2), (layer(3), 2), (layer(4), 1)]));
    assert!(store.is_layer_in_use(&layer(4)).unwrap());
    assert!(!store.is_layer_in_use(&layer(1)).unwrap());
    store.sync().unwrap();
    assert!(store.takes_changes());
    change(&mut |row| row.state = SandboxState::Deleted);
    store.remove_snapshot(&home.id, "before/lunch").unwrap();
    store.remove_snapshot(&home.id, "before/lunch").unwrap();
    assert_eq!(in_use(), BTreeMap::from([(layer(2), 1), (layer(3), 1)]));
    store.remove_template("node").unwrap();
    store.remove_template("node").unwrap();
    assert!(in_use().is_empty());
}

pub(super) fn rejections(store: &dyn Store) {
    let home = sandbox(1, "a").id;
    let row = |reason: &str| Rejection {
        sandbox: home.clone(),
        at: time(5),
        selection: Selection { paths: vec!["src".into()], ..Selection::default() },
        paths: vec![path("src/x")],
        reason: Some(reason.into()),
    };
    store.insert_rejection(&row("too long"), &[]).unwrap();
    store.insert_rejection(&row("still"), &[event("rejection", 5)]).unwrap();
    assert_eq!(store.list_rejections(&home).unwrap(), [row("too long"), row("still")]);
    assert!(store.list_rejections(&sandbox(2, "b").id).unwrap().is_empty());
}

pub(super) fn events(store: &dyn Store) {
    let home = sandbox(1, "a").id;
    assert_eq!(store.append_events(&[]).unwrap(), 0);
    let of_home = NewEvent { sandbox: Some(home.clone()), ..event("b", 2) };
    assert_eq!(store.append_events(&[event("a", 1), of_home, event("c", 3)]).unwrap(), 3);
    let kinds = |filter: EventFilter| -> Vec<(u64, String)> {
        let rows = store.list_events(&filter).unwrap();
        rows.into_iter().map(|row| (row.sequence, row.kind)).collect()
    };
    let all = EventFilter::default();
    assert_eq!(kinds(all.clone()), [(1, "a".into()), (2, "b".into()), (3, "c".into())]);
    assert_eq!(kinds(EventFilter { after: 2, ..all.clone() }), [(3, "c".into())]);
    assert_eq!(kinds(EventFilter { limit: Some(1), ..all.clone() }), [(1, "a".into())]);
    assert_eq!(kinds(EventFilter { sandbox: Some(home), ..all.clone() }), [(2, "b".into())]);
    assert!(kinds(EventFilter { after: u64::MAX, ..all.clone() }).is_empty());
    assert_eq!(store.list_events(&all).unwrap()[0].data, json!({"kind": "a"}));

    assert_eq!(store.prune_events(&time(3)).unwrap(), 2);
    assert_eq!(store.prune_events(&time(1000)).unwrap(), 1);
    assert_eq!(store.append_events(&[event("d", 4)]).unwrap(), 4, "no number is given twice");
}

pub(super) fn events_are_in_the_transaction(store: &dyn Store) {
    let home = sandbox(1, "a");
    store.insert_sandbox(&home, ScopeMode::Shared, &[event("sandbox.created", 1)]).unwrap();
    let second = sandbox(2, "a");
    assert!(store.insert_sandbox(&second, ScopeMode::Shared, &[event("no", 1)]).is_err());
    let back = &mut |row: &mut skep_types::Sandbox| row.state = SandboxState::Approved;
    assert!(store.update_sandbox(&home.id, Expect::default(), &[event("no", 1)], back).is_err());
    // An event that cannot be written takes the change with it.
    let broken = NewEvent { at: "noon".into(), ..event("no", 1) };
    let third = sandbox(3, "c");
    let refused = store.insert_sandbox(&third, ScopeMode::Shared, &[event("no", 1), broken]);
    assert!(matches!(refused, Err(StoreError::BadTime { .. })), "{refused:?}");
    assert!(store.sandbox(&third.id).is_err());
    let rows = store.list_events(&EventFilter::default()).unwrap();
    let kinds: Vec<_> = rows.iter().map(|row| (row.sequence, row.kind.as_str())).collect();
    assert_eq!(kinds, [(1, "sandbox.created")]);
}

pub(super) fn keys(store: &dyn Store) {
    let (body, other) = (ContentHash::of(b"body"), ContentHash::of(b"other"));
    let claim = |key, body, now| store.claim_key(key, body, &time(now), &time(now + 100));
    assert_eq!(claim("k", &body, 0).unwrap(), KeyClaim::New);
    assert_eq!(claim("k", &body, 1).unwrap(), KeyClaim::InProgress);
    assert!(matches!(claim("k", &other, 1), Err(StoreError::KeyReused { .. })));
    assert_eq!(store.unfinished_keys().unwrap(), ["k"]);
    store.finish_key("k", &json!({"id": 1})).unwrap();
    assert_eq!(claim("k", &body, 2).unwrap(), KeyClaim::Done(json!({"id": 1})));
    assert!(store.unfinished_keys().unwrap().is_empty());
    // Expired: as if it had never been used.
    assert_eq!(claim("k", &other, 100).unwrap(), KeyClaim::New);
    store.drop_key("k").unwrap();
    store.drop_key("k").unwrap();
    assert!(matches!(store.finish_key("k", &json!(1)), Err(StoreError::NotFound { .. })));
    assert_eq!(claim("k", &body, 100).unwrap(), KeyClaim::New);
    assert_eq!(store.prune_keys(&time(199)).unwrap(), 0);
    assert_eq!(store.prune_keys(&time(200)).unwrap(), 1);
}

pub(super) fn facts(store: &dyn Store) {
    assert!(store.meta("instance").unwrap().is_some());
    assert!(store.meta("node").unwrap().is_some());
    assert_eq!(store.meta("colour").unwrap(), None);
    store.set_meta("colour", "yellow").unwrap();
    store.set_meta("colour", "black").unwrap();
    assert_eq!(store.meta("colour").unwrap().as_deref(), Some("black"));
}

pub(super) fn care(store: &dyn Store) {
    store.insert_sandbox(&sandbox(1, "a"), ScopeMode::Shared, &[event("x", 1)]).unwrap();
    assert_eq!(store.check().unwrap(), Vec::<String>::new());
    store.upkeep().unwrap();
    assert_eq!(store.sandbox(&sandbox(1, "a").id).unwrap(), sandbox(1, "a"));
}
