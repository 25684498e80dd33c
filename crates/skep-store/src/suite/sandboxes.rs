//! Sandboxes.

use super::sample::{event, path, sandbox, time};
use crate::{
    DeletedRows, Expect, KeptSince, NewEvent, Outdated, SandboxFilter, ScopeMode, Store, StoreError,
};
use skep_types::{Sandbox, SandboxId, SandboxState};

fn insert(store: &dyn Store, sandbox: &Sandbox) {
    assert_eq!(store.insert_sandbox(sandbox, ScopeMode::Shared, &[]).unwrap(), 1);
}

fn go(store: &dyn Store, id: &SandboxId, state: SandboxState) -> Sandbox {
    store.update_sandbox(id, Expect::default(), &[], &mut |row| row.state = state).unwrap()
}

pub(super) fn round_trip(store: &dyn Store) {
    let mut wanted = sandbox(1, "one");
    wanted.version = 77;
    wanted.project = b"/odd/\xff\n'; DROP TABLE sandboxes; --".as_slice().into();
    insert(store, &wanted);
    wanted.version = 1;
    assert_eq!(store.sandbox(&wanted.id).unwrap(), wanted);
    let missing = store.sandbox(&sandbox(2, "two").id);
    assert!(matches!(missing, Err(StoreError::NotFound { what: "sandbox", .. })));
}

pub(super) fn unique_names(store: &dyn Store) {
    let first = sandbox(1, "same");
    insert(store, &first);
    let second = sandbox(2, "same");
    let refused = store.insert_sandbox(&second, ScopeMode::Shared, &[]);
    assert!(matches!(refused, Err(StoreError::AlreadyExists { .. })), "{refused:?}");
    let same_id = Sandbox { name: sandbox(9, "other").name, ..first.clone() };
    let refused = store.insert_sandbox(&same_id, ScopeMode::Shared, &[]);
    assert!(matches!(refused, Err(StoreError::AlreadyExists { .. })), "{refused:?}");
    assert_eq!(store.deleted_sandbox("same").unwrap(), None);
    go(store, &first.id, SandboxState::Deleted);
    insert(store, &second);
    assert_eq!(store.find_sandbox("same").unwrap().id, second.id);
    let deleted = |name: &str| store.deleted_sandbox(name).unwrap().map(|row| row.id);
    assert_eq!(deleted("same"), Some(first.id.clone()));
    assert_eq!(deleted("sam"), None);
    // By its id as well, and by as much of it as means no other.
    let id = first.id.as_str();
    assert_eq!(deleted(id), Some(first.id.clone()));
    assert_eq!(deleted(&id[..id.len() - 1]), Some(first.id.clone()));
    assert_eq!(deleted(second.id.as_str()), None);
    // A rename is held to the same rule.
    let third = sandbox(3, "third");
    insert(store, &third);
    let name = second.name.clone();
    let refused = store.update_sandbox(&third.id, Expect::default(), &[], &mut |row| {
        row.name = name.clone();
    });
    assert!(matches!(refused, Err(StoreError::AlreadyExists { .. })), "{refused:?}");
}

pub(super) fn find(store: &dyn Store) {
    let mut first = sandbox(1, "one");
    first.id = "aaaaaaaa00000000".parse().unwrap();
    let mut second = sandbox(2, "two");
    second.id = "aaaaaabb00000000".parse().unwrap();
    // A name may look like the id of another: the id wins.
    let mut third = sandbox(3, "aaaaaabb00000000");
    third.id = "zzzzzz0000000000".parse().unwrap();
    for one in [&first, &second, &third] {
        insert(store, one);
    }
    let found = |text: &str| store.find_sandbox(text).map(|row| row.id);
    assert_eq!(found("one").unwrap(), first.id);
    assert_eq!(found("aaaaaaaa00000000").unwrap(), first.id);
    assert_eq!(found("aaaaaabb00000000").unwrap(), second.id);
    assert_eq!(found("aaaaaab").unwrap(), second.id);
    assert_eq!(found("zzzzzz").unwrap(), third.id);
    match found("aaaaaa") {
        Err(StoreError::Ambiguous { candidates, .. }) => {
            assert_eq!(candidates, [first.id.as_str(), second.id.as_str()]);
        }
        other => panic!("{other:?}"),
    }
    // Five characters are no beginning, however few ids there are.
    for missing in ["", "on", "z", "zzzzz", "aaaaaaaa000000000", "aaaaaaa%", "aaaaaa_", "%"] {
        assert!(matches!(found(missing), Err(StoreError::NotFound { .. })), "{missing}");
    }
    for missing in ["A", "AAAAAAAA", "ééé", "'", "\0", "aaaaaa\0"] {
        assert!(matches!(found(missing), Err(StoreError::NotFound { .. })), "{missing}");
    }
    go(store, &second.id, SandboxState::Deleted);
    assert_eq!(found("aaaaaa").unwrap(), first.id);
    assert!(found("aaaaaabb").is_err());
    assert_eq!(store.sandbox(&second.id).unwrap().state, SandboxState::Deleted);
}

pub(super) fn list(store: &dyn Store) {
    for (seed, name) in [(1, "a"), (2, "b"), (3, "c"), (4, "d")] {
        let mut row = sandbox(seed, name);
        if seed == 4 {
            row.project = "/elsewhere".into();
        }
        insert(store, &row);
    }
    go(store, &sandbox(1, "a").id, SandboxState::Ready);
    go(store, &sandbox(2, "b").id, SandboxState::Deleted);
    let names = |filter: SandboxFilter| -> Vec<String> {
        let rows = store.list_sandboxes(&filter).unwrap();
        rows.iter().map(|row| row.name.to_string()).collect()
    };
    let garden = Some("/home/bee/garden".into());
    let all = SandboxFilter::default();
    assert_eq!(names(all.clone()), ["a", "c", "d"]);
    assert_eq!(names(SandboxFilter { project: garden, ..all.clone() }), ["a", "c"]);
    let deleted = SandboxFilter { deleted: DeletedRows::Included, ..all.clone() };
    assert_eq!(names(deleted.clone()), ["a", "b", "c", "d"]);
    let states = [SandboxState::Ready, SandboxState::Deleted].into();
    assert_eq!(names(SandboxFilter { states, ..all }), ["a"]);
    let states = [SandboxState::Ready, SandboxState::Deleted].into();
    assert_eq!(names(SandboxFilter { states, ..deleted }), ["a", "b"]);
}

pub(super) fn newest(store: &dyn Store) {
    let project = sandbox(1, "a").project;
    assert_eq!(store.newest_sandbox(&project).unwrap(), None);
    insert(store, &sandbox(1, "a"));
    // The clock was set back: the order of insertion still decides.
    let mut second = sandbox(2, "b");
    second.created_at = "2020-01-01T00:00:00Z".into();
    insert(store, &second);
    assert_eq!(store.newest_sandbox(&project).unwrap().unwrap().id, second.id);
    go(store, &second.id, SandboxState::Deleted);
    assert_eq!(store.newest_sandbox(&project).unwrap().unwrap().name.as_str(), "a");
    assert_eq!(store.newest_sandbox(&"/home".into()).unwrap(), None);
}

pub(super) fn claim(store: &dyn Store) {
    let (ahead, later) = (sandbox(1, "ahead"), sandbox(2, "later"));
    insert(store, &ahead);
    insert(store, &later);
    assert_eq!(store.newest_sandbox(&ahead.project).unwrap().unwrap().id, later.id);
    let claim = |version, name: &str| {
        let name = sandbox(9, name).name;
        let expect = Expect { version: Some(version), ..Expect::default() };
        store.claim_sandbox(&ahead.id, expect, &[event("sandbox.claimed", 500)], &mut |row| {
            row.name = name.clone();
            row.created_at = time(500);
        })
    };
    let taken = claim(1, "later");
    assert!(matches!(taken, Err(StoreError::AlreadyExists { .. })), "{taken:?}");
    let claimed = claim(1, "mine").unwrap();
    assert_eq!((claimed.version, claimed.created_at.as_str()), (2, time(500).as_str()));
    assert_eq!(store.find_sandbox("mine").unwrap(), claimed);
    // Only one can have it.
    assert!(matches!(claim(1, "yours"), Err(StoreError::StaleVersion { .. })));
    assert_eq!(store.newest_sandbox(&ahead.project).unwrap().unwrap().id, ahead.id);
    // The next one is newer still.
    insert(store, &sandbox(3, "last"));
    assert_eq!(store.newest_sandbox(&ahead.project).unwrap().unwrap().name.as_str(), "last");
}

pub(super) fn update(store: &dyn Store) {
    let row = sandbox(1, "a");
    insert(store, &row);
    let expect = Expect { version: Some(1), lease_epoch: None };
    let written = store
        .update_sandbox(&row.id, expect, &[], &mut |row| {
            row.state = SandboxState::Ready;
            row.updated_at = time(9);
            row.version = 500;
            row.created_at = time(10);
            row.id = sandbox(2, "x").id;
        })
        .unwrap();
    let wanted =
        Sandbox { state: SandboxState::Ready, updated_at: time(9), version: 2, ..row.clone() };
    assert_eq!(written, wanted);
    assert_eq!(store.sandbox(&row.id).unwrap(), wanted);

    let stale = store.update_sandbox(&row.id, expect, &[], &mut |_| panic!("must not run"));
    assert!(
        matches!(stale, Err(StoreError::StaleVersion { expected: 1, found: 2, .. })),
        "{stale:?}"
    );
    let illegal = store.update_sandbox(&row.id, Expect::default(), &[], &mut |row| {
        row.state = SandboxState::Creating;
    });
    assert!(matches!(illegal, Err(StoreError::IllegalState { .. })), "{illegal:?}");
    assert_eq!(store.sandbox(&row.id).unwrap(), wanted);
    let missing = sandbox(3, "x").id;
    let missing = store.update_sandbox(&missing, Expect::default(), &[], &mut |_| ());
    assert!(matches!(missing, Err(StoreError::NotFound { .. })));
}

pub(super) fn hostile_texts(store: &dyn Store) {
    let hostile = ["'; DROP TABLE sandboxes; --", "\" OR 1=1 --", "?1", "\u{202e}\0", "%_[]*"];
    for (seed, text) in hostile.into_iter().enumerate() {
        let mut row = sandbox(seed as u64, &format!("s{seed}"));
        row.labels.insert(text.into(), text.into());
        row.provider = text.into();
        row.project = text.into();
        insert(store, &row);
        assert_eq!(store.newest_sandbox(&text.into()).unwrap().unwrap(), row);
        assert!(matches!(store.find_sandbox(text), Err(StoreError::NotFound { .. })));
        assert_eq!(store.deleted_sandbox(text).unwrap(), None);
        assert!(store.find_exec(text).is_err() && store.find_approval(text).is_err());
        assert_eq!(store.meta(text).unwrap(), None);
    }
    assert_eq!(store.list_sandboxes(&SandboxFilter::default()).unwrap().len(), hostile.len());
}

pub(super) fn scope_locks(store: &dyn Store) {
    let scoped = |seed: u64, scopes: &[&str]| {
        let mut row = sandbox(seed, &format!("s{seed}"));
        row.policy.scope = scopes.iter().map(|scope| path(scope)).collect();
        row
    };
    let lock = |row: &Sandbox| store.insert_sandbox(row, ScopeMode::Exclusive, &[]);
    let first = scoped(1, &["src/a", "docs"]);
    lock(&first).unwrap();
    for (seed, scopes) in
        [(2, &["src/a"][..]), (3, &["src"]), (4, &["src/a/b"]), (5, &[]), (6, &["x", "docs/y"])]
    {
        match lock(&scoped(seed, scopes)) {
            Err(StoreError::ScopeLocked { conflicts, .. }) => {
                assert!(conflicts.iter().all(|conflict| conflict.sandbox == first.id));
                assert_eq!(conflicts.len(), if scopes.is_empty() { 2 } else { 1 });
            }
            other => panic!("{scopes:?}: {other:?}"),
        }
        assert!(store.sandbox(&scoped(seed, scopes).id).is_err(), "nothing may be left");
    }
    // Beside it, in another project, and shared: all fine.
    lock(&scoped(7, &["src/ab"])).unwrap();
    let mut elsewhere = scoped(8, &[]);
    elsewhere.project = "/elsewhere".into();
    lock(&elsewhere).unwrap();
    insert(store, &scoped(9, &["src/a"]));
    // A project may lie in another: the same place is the same place.
    for (seed, project) in [(11, "/elsewhere/inside"), (12, "/home/bee/garden/docs"), (13, "/home")]
    {
        let mut nested = scoped(seed, &[]);
        nested.project = project.into();
        let refused = lock(&nested);
        assert!(matches!(refused, Err(StoreError::ScopeLocked { .. })), "{project}: {refused:?}");
    }
    let mut beside = scoped(14, &[]);
    beside.project = "/home/bee/garden/other".into();
    lock(&beside).unwrap();
    // Given up, and gone.
    store.release_scope(&elsewhere.id).unwrap();
    store.release_scope(&elsewhere.id).unwrap();
    go(store, &first.id, SandboxState::Deleted);
    lock(&scoped(10, &["src/a"])).unwrap();
}

pub(super) fn leases(store: &dyn Store) {
    let row = sandbox(1, "a");
    insert(store, &row);
    let lease = store.lease(&row.id).unwrap();
    assert_eq!((Some(lease.node), lease.epoch), (store.meta("node").unwrap(), 0));
    let own = store.meta("node").unwrap().unwrap();
    let taken = store.take_lease(&row.id, &own).unwrap();
    assert_eq!((taken.node, taken.epoch), (own, 1));
    let with = |epoch| Expect { version: None, lease_epoch: Some(epoch) };
    let stale = store.update_sandbox(&row.id, with(0), &[], &mut |_| panic!("must not run"));
    assert!(matches!(stale, Err(StoreError::StaleLease { found: 1, .. })), "{stale:?}");
    store.update_sandbox(&row.id, with(1), &[], &mut |_| ()).unwrap();
    // Handed over: no longer ours to change.
    assert_eq!(store.take_lease(&row.id, "other").unwrap().epoch, 2);
    let other = store.update_sandbox(&row.id, with(2), &[], &mut |_| panic!("must not run"));
    assert!(matches!(other, Err(StoreError::OtherNode { .. })), "{other:?}");
    let missing = store.take_lease(&sandbox(2, "b").id, "other");
    assert!(matches!(missing, Err(StoreError::NotFound { .. })));
}

pub(super) fn purge(store: &dyn Store) {
    let row = sandbox(1, "a");
    let live = sandbox(2, "b");
    insert(store, &row);
    insert(store, &live);
    store.insert_exec(&super::sample::exec(5, &row.id), &[]).unwrap();
    go(store, &row.id, SandboxState::Deleted);
    assert!(store.purge_deleted(&time(0)).unwrap().is_empty(), "not older than its change");
    assert_eq!(store.purge_deleted("2026-03-04T00:00:00.5Z").unwrap(), vec![row.id.clone()]);
    assert!(matches!(store.sandbox(&row.id), Err(StoreError::NotFound { .. })));
    assert!(store.list_execs(&row.id).unwrap().is_empty());
    assert_eq!(store.sandbox(&live.id).unwrap(), live);
    assert!(matches!(store.purge_deleted("soon"), Err(StoreError::BadTime { .. })));
}

pub(super) fn forget(store: &dyn Store) {
    let (row, other) = (sandbox(1, "a"), sandbox(2, "b"));
    insert(store, &row);
    insert(store, &other);
    store.insert_exec(&super::sample::exec(5, &row.id), &[]).unwrap();
    let of = |id: &SandboxId| NewEvent { sandbox: Some(id.clone()), ..event("x", 1) };
    store.append_events(&[of(&row.id), of(&other.id), of(&row.id)]).unwrap();
    assert!(!store.forget_sandbox(&row.id).unwrap(), "it lives");
    assert_eq!(store.sandbox(&row.id).unwrap(), row);
    go(store, &row.id, SandboxState::Deleted);
    assert!(store.forget_sandbox(&row.id).unwrap());
    assert!(!store.forget_sandbox(&row.id).unwrap(), "it is gone");
    assert!(matches!(store.sandbox(&row.id), Err(StoreError::NotFound { .. })));
    assert!(store.list_execs(&row.id).unwrap().is_empty());
    let left = store.list_events(&crate::EventFilter::default()).unwrap();
    assert!(left.iter().all(|event| event.sandbox.as_ref() == Some(&other.id)), "{left:?}");
    assert_eq!((left.len(), store.sandbox(&other.id).unwrap()), (1, other));
}

pub(super) fn outdated(store: &dyn Store) {
    let row = sandbox(1, "a");
    insert(store, &row);
    insert(store, &sandbox(2, "b"));
    store.append_events(&[event("x", 1), event("y", 50)]).unwrap();
    let body = skep_types::ContentHash::of(b"body");
    store.claim_key("k", &body, &time(0), &time(100)).unwrap();
    go(store, &row.id, SandboxState::Deleted);
    let later = || Some("2027-01-01T00:00:00Z".to_owned());
    assert_eq!(store.outdated(&KeptSince::default()).unwrap(), Outdated::default());
    let before = KeptSince { events: Some(time(10)), ..KeptSince::default() };
    assert_eq!(store.outdated(&before).unwrap(), Outdated { events: 1, ..Outdated::default() });
    let all = KeptSince { events: later(), deleted: later(), approvals: later(), keys: later() };
    let told = store.outdated(&all).unwrap();
    assert_eq!(told, Outdated { events: 2, deleted: 1, approvals: 0, keys: 1 });
    // What was told is what goes.
    assert_eq!(store.prune_events(&later().unwrap()).unwrap(), told.events);
    assert_eq!(store.purge_deleted(&later().unwrap()).unwrap().len() as u64, told.deleted);
    assert_eq!(store.prune_keys(&later().unwrap()).unwrap(), told.keys);
    assert_eq!(store.outdated(&all).unwrap(), Outdated::default());
}

pub(super) fn no_lost_update(store: &dyn Store) {
    const THREADS: usize = 8;
    const WRITES: usize = 25;
    let row = sandbox(1, "a");
    insert(store, &row);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let id = row.id.clone();
            scope.spawn(move || {
                for write in 0..WRITES {
                    let label = format!("{thread}-{write}");
                    store
                        .update_sandbox(&id, Expect::default(), &[event(&label, 1)], &mut |row| {
                            row.labels.insert(label.clone(), String::new());
                        })
                        .unwrap();
                }
            });
        }
    });
    let after = store.sandbox(&row.id).unwrap();
    assert_eq!(after.version as usize, 1 + THREADS * WRITES);
    assert_eq!(after.labels.len(), row.labels.len() + THREADS * WRITES);
    let events = store.list_events(&crate::EventFilter::default()).unwrap();
    let numbers: Vec<u64> = events.iter().map(|event| event.sequence).collect();
    assert_eq!(numbers, (1..=(THREADS * WRITES) as u64).collect::<Vec<_>>());
}

pub(super) fn name_race(store: &dyn Store) {
    let winners = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let winners = &winners;
            scope.spawn(move || {
                match store.insert_sandbox(&sandbox(seed, "same"), ScopeMode::Exclusive, &[]) {
                    Ok(_) => {
                        winners.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                    Err(StoreError::AlreadyExists { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            });
        }
    });
    assert_eq!(winners.into_inner(), 1);
    assert_eq!(store.list_sandboxes(&SandboxFilter::default()).unwrap().len(), 1);
}
