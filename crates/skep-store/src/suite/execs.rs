//! Execs.

use super::sample::{end, event, exec, sandbox};
use crate::{EventFilter, ExecMoves, Expect, Finish, ScopeMode, Store, StoreError};
use skep_types::SandboxState;

pub(super) fn life(store: &dyn Store) {
    let (home, other) = (sandbox(1, "a"), sandbox(2, "b"));
    for row in [&home, &other] {
        store.insert_sandbox(row, ScopeMode::Shared, &[]).unwrap();
    }
    let (mut first, mut second) = (exec(1, &home.id), exec(2, &home.id));
    first.id = "cccccccc00000000".parse().unwrap();
    second.id = "ccccccdd00000000".parse().unwrap();
    let third = exec(3, &other.id);
    for row in [&first, &second, &third] {
        store.insert_exec(row, &[]).unwrap();
    }
    let again = store.insert_exec(&first, &[]);
    assert!(matches!(again, Err(StoreError::AlreadyExists { what: "exec", .. })), "{again:?}");
    assert_eq!(store.find_exec("ccccccc").unwrap(), first);
    assert_eq!(store.find_exec(second.id.as_str()).unwrap(), second);
    assert!(matches!(store.find_exec("cccccc"), Err(StoreError::Ambiguous { .. })));
    assert!(matches!(store.find_exec("ccccc"), Err(StoreError::NotFound { .. })));
    assert!(matches!(store.find_exec("zzzzzz"), Err(StoreError::NotFound { .. })));
    assert_eq!(store.list_execs(&home.id).unwrap(), [first.clone(), second.clone()]);

    assert_eq!(store.finish_exec(&first.id, &end(3), &[]).unwrap(), Finish::Recorded);
    assert_eq!(store.running_execs(None).unwrap(), [second.clone(), third]);
    assert_eq!(store.running_execs(Some(&home.id)).unwrap(), [second]);
    assert_eq!(store.find_exec("ccccccc").unwrap().end, Some(end(3)));

    // Only what has ended, and only of this sandbox, is forgotten.
    let wanted = [first.id.clone(), "ccccccdd00000000".parse().unwrap()];
    assert_eq!(store.forget_execs(&other.id, &wanted).unwrap(), 0);
    assert_eq!(store.forget_execs(&home.id, &wanted).unwrap(), 1);
    assert!(matches!(store.find_exec("ccccccc"), Err(StoreError::NotFound { .. })));
    assert_eq!(store.list_execs(&home.id).unwrap().len(), 1);

    // Nothing starts in a sandbox that is gone.
    let gone = &mut |row: &mut skep_types::Sandbox| row.state = SandboxState::Deleted;
    store.update_sandbox(&other.id, Expect::default(), &[], gone).unwrap();
    for row in [exec(8, &other.id), exec(9, &sandbox(3, "c").id)] {
        let refused = store.insert_exec(&row, &[]);
        assert!(matches!(refused, Err(StoreError::NotFound { what: "sandbox", .. })));
    }
}

pub(super) fn first_end_wins(store: &dyn Store) {
    let home = sandbox(1, "a");
    store.insert_sandbox(&home, ScopeMode::Shared, &[]).unwrap();
    let row = exec(1, &home.id);
    store.insert_exec(&row, &[]).unwrap();
    let ended = [event("exec.ended", 4)];
    assert_eq!(store.finish_exec(&row.id, &end(0), &ended).unwrap(), Finish::Recorded);
    let again = store.finish_exec(&row.id, &end(137), &ended).unwrap();
    assert_eq!(again, Finish::AlreadyEnded(end(0)));
    assert_eq!(store.find_exec(row.id.as_str()).unwrap().end, Some(end(0)));
    assert_eq!(store.list_events(&EventFilter::default()).unwrap().len(), 1);
    let missing = store.finish_exec(&exec(2, &home.id).id, &end(0), &[]);
    assert!(matches!(missing, Err(StoreError::NotFound { what: "exec", .. })));
}

pub(super) fn with_their_sandbox(store: &dyn Store) {
    let home = sandbox(1, "a");
    store.insert_sandbox(&home, ScopeMode::Shared, &[]).unwrap();
    let (first, second) = (exec(1, &home.id), exec(2, &home.id));
    let begun = [first.clone(), second.clone()];
    let ready = &mut |row: &mut skep_types::Sandbox| row.state = SandboxState::Ready;
    let moves = ExecMoves { begun: &begun, ended: &[] };
    let row = store.update_with_execs(&home.id, Expect::default(), moves, &[], ready).unwrap();
    assert_eq!(row.state, SandboxState::Ready);
    assert_eq!(store.running_execs(Some(&home.id)).unwrap(), begun);

    // One exec that cannot begin, and nothing of it happened.
    let twice = [exec(3, &home.id), first.clone()];
    let stopped = &mut |row: &mut skep_types::Sandbox| row.state = SandboxState::Stopped;
    let moves = ExecMoves { begun: &twice, ended: &[] };
    let refused = store.update_with_execs(&home.id, Expect::default(), moves, &[], stopped);
    assert!(matches!(refused, Err(StoreError::AlreadyExists { what: "exec", .. })), "{refused:?}");
    assert_eq!(store.sandbox(&home.id).unwrap(), row);
    assert_eq!(store.list_execs(&home.id).unwrap().len(), 2);

    // The first end stands, and is told once.
    store.finish_exec(&first.id, &end(0), &[event("exec.ended", 4)]).unwrap();
    let ended = [&first, &second].map(|exec| (exec.id.clone(), end(137), event("exec.ended", 5)));
    let gone = &mut |row: &mut skep_types::Sandbox| row.state = SandboxState::Deleted;
    let moves = ExecMoves { begun: &[], ended: &ended };
    store.update_with_execs(&home.id, Expect::default(), moves, &[], gone).unwrap();
    assert_eq!(store.find_exec(first.id.as_str()).unwrap().end, Some(end(0)));
    assert_eq!(store.find_exec(second.id.as_str()).unwrap().end, Some(end(137)));
    assert_eq!(store.list_events(&EventFilter::default()).unwrap().len(), 2);

    // Nothing begins in a sandbox that is gone.
    let late = [exec(4, &home.id)];
    let moves = ExecMoves { begun: &late, ended: &[] };
    let refused = store.update_with_execs(&home.id, Expect::default(), moves, &[], &mut |_| ());
    assert!(matches!(refused, Err(StoreError::NotFound { what: "sandbox", .. })), "{refused:?}");
}

pub(super) fn taken_in_once(store: &dyn Store) {
    let home = sandbox(1, "a");
    store.insert_sandbox(&home, ScopeMode::Shared, &[]).unwrap();
    let (mut first, second) = (exec(1, &home.id), exec(2, &home.id));
    let told = |row: &skep_types::Exec| crate::NewEvent {
        exec: Some(row.id.clone()),
        ..event("exec.started", 1)
    };
    first.end = Some(end(7));
    let events = [told(&first), told(&second)];
    assert_eq!(store.adopt_execs(&home.id, std::slice::from_ref(&first), &events).unwrap(), 1);
    // Whoever comes second finds the first there, and tells only of what is new.
    let both = [first.clone(), second.clone()];
    assert_eq!(store.adopt_execs(&home.id, &both, &events).unwrap(), 1);
    assert_eq!(store.adopt_execs(&home.id, &both, &events).unwrap(), 0);
    assert_eq!(store.list_execs(&home.id).unwrap(), both);
    assert_eq!(store.running_execs(None).unwrap(), std::slice::from_ref(&second));
    let told: Vec<_> = store
        .list_events(&EventFilter::default())
        .unwrap()
        .into_iter()
        .map(|event| event.exec.unwrap())
        .collect();
    assert_eq!(told, [first.id.clone(), second.id]);
    let gone = &mut |row: &mut skep_types::Sandbox| row.state = SandboxState::Deleted;
    store.update_sandbox(&home.id, Expect::default(), &[], gone).unwrap();
    let refused = store.adopt_execs(&home.id, &[exec(3, &home.id)], &[]);
    assert!(matches!(refused, Err(StoreError::NotFound { what: "sandbox", .. })), "{refused:?}");
}
