//! Approvals and undos.

use super::sample::{approval, event, path, sandbox, time};
use crate::{APPROVAL_MOVES, ApprovalFilter, EventFilter, Store, StoreError};
use skep_types::{Approval, ApprovalId, ApprovalKind, ApprovalState};

use ApprovalState::{Aborted, Applied, Applying, Committed, NeedsAttention, Undone};

const ALL: [ApprovalState; 6] = [Applying, Committed, Applied, Aborted, Undone, NeedsAttention];

/// A way from `Applying` to each state.
fn way_to(state: ApprovalState) -> &'static [ApprovalState] {
    match state {
        Applying => &[],
        Committed => &[Committed],
        Applied => &[Committed, Applied],
        Aborted => &[Aborted],
        Undone => &[Committed, Applied, Undone],
        NeedsAttention => &[Committed, NeedsAttention],
    }
}

fn go(store: &dyn Store, id: &ApprovalId, state: ApprovalState) {
    for step in way_to(state) {
        store.move_approval(id, *step, &[], &mut |_| ()).unwrap();
    }
}

fn insert(store: &dyn Store, approval: &Approval, state: ApprovalState) {
    store.insert_approval(approval, &[]).unwrap();
    go(store, &approval.id, state);
}

pub(super) fn moves(store: &dyn Store) {
    let from_sandbox = sandbox(1, "a");
    let mut seed = 0;
    for from in ALL {
        for to in ALL {
            seed += 1;
            let row = approval(seed, &from_sandbox, &["x"]);
            insert(store, &row, from);
            let moved = store.move_approval(&row.id, to, &[], &mut |row| {
                row.commit = Some("abc".into());
                row.state = Undone;
                row.project = "/elsewhere".into();
            });
            let found = store.find_approval(row.id.as_str()).unwrap();
            if from == to || APPROVAL_MOVES.contains(&(from, to)) {
                let wanted = Approval { state: to, commit: Some("abc".into()), ..row };
                assert_eq!(moved.unwrap(), wanted);
                assert_eq!(found, wanted);
            } else {
                assert!(matches!(moved, Err(StoreError::IllegalApprovalMove { .. })));
                assert_eq!(found, Approval { state: from, ..row });
            }
        }
    }
    let again = store.insert_approval(&approval(1, &from_sandbox, &[]), &[]);
    assert!(matches!(again, Err(StoreError::AlreadyExists { .. })), "{again:?}");
    let mut late = approval(999, &from_sandbox, &[]);
    late.state = Applied;
    let late = store.insert_approval(&late, &[]);
    assert!(matches!(late, Err(StoreError::IllegalApprovalMove { .. })), "{late:?}");
    let missing = approval(998, &from_sandbox, &[]).id;
    let missing = store.move_approval(&missing, Applied, &[], &mut |_| ());
    assert!(matches!(missing, Err(StoreError::NotFound { what: "approval", .. })));
}

pub(super) fn history(store: &dyn Store) {
    let (one, mut two) = (sandbox(1, "a"), sandbox(2, "b"));
    two.project = "/elsewhere".into();
    let first = approval(1, &one, &["src/main.rs", "doc"]);
    let second = approval(2, &one, &["src/lib.rs", "src0", "doc-x/y"]);
    let third = approval(3, &two, &["src/main.rs"]);
    for row in [&first, &second, &third] {
        insert(store, row, Applied);
    }
    let ids = |filter: ApprovalFilter| -> Vec<ApprovalId> {
        let rows = store.list_approvals(&filter).unwrap();
        rows.into_iter().map(|row| row.id).collect()
    };
    let [a, b, c] = [first.id.clone(), second.id.clone(), third.id.clone()];
    let all = ApprovalFilter::default();
    assert_eq!(ids(all.clone()), [c.clone(), b.clone(), a.clone()]);
    let here = ApprovalFilter { project: Some(one.project.clone()), ..all.clone() };
    assert_eq!(ids(here.clone()), [b.clone(), a.clone()]);
    assert_eq!(ids(ApprovalFilter { sandbox: Some(two.id), ..all.clone() }), vec![c.clone()]);
    let at = |text| ApprovalFilter { path: Some(path(text)), ..all.clone() };
    assert_eq!(ids(at("src")), [c.clone(), b.clone(), a.clone()]);
    assert_eq!(ids(at("src/main.rs")), [c, a.clone()]);
    assert_eq!(ids(at("doc")), vec![a.clone()]);
    assert_eq!(ids(at("")).len(), 3);
    assert!(ids(at("sr")).is_empty());
    assert!(ids(ApprovalFilter { states: vec![Committed, Undone], ..all }).is_empty());
    // The paths follow the row.
    store.move_approval(&b, Applied, &[], &mut |row| row.paths.clear()).unwrap();
    assert_eq!(ids(ApprovalFilter { path: Some(path("src")), ..here }), [a]);
}

/// Only one that was never committed can be forgotten, and with it its paths; the events tell of it.
pub(super) fn refused(store: &dyn Store) {
    let home = sandbox(1, "a");
    for (seed, state) in (1..).zip(ALL) {
        let row = approval(seed, &home, &["x"]);
        insert(store, &row, state);
        let refused = store.refuse_approval(&row.id, &[event("approval.refused", 1)]);
        let found = store.find_approval(row.id.as_str());
        if state == Applying {
            refused.unwrap();
            assert!(matches!(found, Err(StoreError::NotFound { .. })), "{found:?}");
            let again = store.refuse_approval(&row.id, &[]);
            assert!(matches!(again, Err(StoreError::NotFound { .. })), "{again:?}");
        } else {
            assert!(matches!(refused, Err(StoreError::IllegalApprovalMove { .. })), "{refused:?}");
            assert_eq!(found.unwrap().state, state);
        }
    }
    let at = ApprovalFilter { path: Some(path("x")), ..ApprovalFilter::default() };
    assert_eq!(store.list_approvals(&at).unwrap().len(), ALL.len() - 1);
    assert_eq!(store.list_events(&EventFilter::default()).unwrap().len(), 1);
}

pub(super) fn undo(store: &dyn Store) {
    let home = sandbox(1, "a");
    let first = approval(1, &home, &["x"]);
    let second = approval(2, &home, &["y"]);
    insert(store, &first, Applied);
    insert(store, &second, Applied);
    let newest = || store.newest_undoable(&home.project).unwrap().map(|row| row.id);
    assert_eq!(newest(), Some(second.id.clone()));

    let reversal = |seed| {
        let mut row = approval(seed, &home, &["y"]);
        row.kind = ApprovalKind::Undo { of: second.id.clone() };
        row
    };
    let [reverse, rival, late] = [reversal(3), reversal(4), reversal(5)];
    insert(store, &reverse, Applying);
    insert(store, &rival, Applying);
    go(store, &reverse.id, Committed);
    assert_eq!(newest(), Some(second.id.clone()), "not undone yet");
    let refuse = |row: &Approval| {
        let refused = store.move_approval(&row.id, Committed, &[], &mut |_| ());
        assert!(matches!(refused, Err(StoreError::IllegalApprovalMove { .. })), "{refused:?}");
    };
    refuse(&rival);
    store.move_approval(&reverse.id, Applied, &[], &mut |_| ()).unwrap();
    assert_eq!(store.find_approval(second.id.as_str()).unwrap().state, Undone);
    refuse(&rival);
    insert(store, &late, Applying);
    refuse(&late);
    // A repeat changes nothing more, and `undo` does not reverse an undo.
    store.move_approval(&reverse.id, Applied, &[], &mut |_| ()).unwrap();
    assert_eq!(newest(), Some(first.id.clone()));
    // Unless the undo itself was undone: then the second is applied again, and can be undone.
    let mut again = approval(6, &home, &["y"]);
    again.kind = ApprovalKind::Undo { of: reverse.id.clone() };
    insert(store, &again, Applied);
    assert_eq!(newest(), Some(again.id.clone()));
    let mut back = approval(7, &home, &["y"]);
    back.kind = ApprovalKind::Undo { of: again.id.clone() };
    insert(store, &back, Applied);
    assert_eq!(newest(), Some(first.id.clone()));

    store.drop_undo(&first.id).unwrap();
    store.drop_undo(&first.id).unwrap();
    assert_eq!(newest(), None);
    let missing = store.drop_undo(&approval(9, &home, &[]).id);
    assert!(matches!(missing, Err(StoreError::NotFound { .. })));
}

pub(super) fn retention(store: &dyn Store) {
    let home = sandbox(1, "a");
    let mut elsewhere = sandbox(2, "b");
    elsewhere.project = "/elsewhere".into();
    for seed in 0..6 {
        let mut row = approval(seed, &home, &["x"]);
        row.at = time(seed as u32 * 10);
        insert(store, &row, if seed == 1 { NeedsAttention } else { Applied });
    }
    insert(store, &approval(9, &elsewhere, &["x"]), Applied);
    let expired = |keep, before: &str| -> Vec<ApprovalId> {
        let rows = store.undo_expired(keep, before).unwrap();
        rows.into_iter().map(|row| row.id).collect()
    };
    let id = |seed| approval(seed, &home, &[]).id;
    // 5, 4 and 3 are among the newest; 1 waits for a person; the other project has one only.
    assert_eq!(expired(3, &time(1000)), [id(2), id(0)]);
    assert_eq!(expired(3, &time(20)), [id(0)], "2 is not old enough");
    assert!(expired(6, &time(1000)).is_empty());
    store.drop_undo(&id(0)).unwrap();
    assert_eq!(expired(3, &time(1000)), [id(2)]);
}
