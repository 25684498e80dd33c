use super::*;
use crate::suite::sample::{self, event};
use crate::{ExecStore as _, LedgerStore as _, SandboxStore as _};
use skep_types::{ExecEnd, SandboxName};
use tempfile::TempDir;

struct Place {
    base: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { base: tempfile::tempdir().unwrap() };
        place.vouch();
        std::fs::create_dir(runs_of(&place.path())).unwrap();
        place
    }

    fn path(&self) -> PathBuf {
        self.base.path().join("skep.db")
    }

    fn first() -> NewInstance {
        NewInstance { instance: "i".into(), node: "n".into() }
    }

    fn open(&self) -> SqliteStore {
        SqliteStore::open(&self.path(), Access::ReadWrite, &Self::first()).unwrap()
    }

    fn vouch(&self) {
        let store = self.open();
        store.look_around();
        store.note_settled();
        store.vouch();
    }

    fn deferred(&self) -> DeferredStore {
        DeferredStore::instead_of(&self.path(), Self::first()).unwrap()
    }

    fn waiting(&self) -> usize {
        std::fs::read_dir(runs_of(&self.path())).unwrap().count()
    }

    fn kinds(&self) -> Vec<String> {
        let events = self.open().list_events(&Default::default()).unwrap();
        events.into_iter().map(|event| event.kind).collect()
    }
}

fn begin(store: &DeferredStore, sandbox: &Sandbox, second: u32) {
    let creating = [event("creating", second)];
    assert_eq!(store.insert_sandbox(sandbox, ScopeMode::Shared, &creating).unwrap(), 1);
}

fn ready(store: &DeferredStore, sandbox: &Sandbox, exec: &Exec, second: u32) {
    let moves = ExecMoves { begun: std::slice::from_ref(exec), ended: &[] };
    let events = [event("ready", second)];
    let go = &mut |row: &mut Sandbox| row.state = SandboxState::Ready;
    store.update_with_execs(&sandbox.id, Expect::default(), moves, &events, go).unwrap();
}

fn end(store: &DeferredStore, sandbox: &Sandbox, exec: &Exec, second: u32) {
    let ended = [(exec.id.clone(), ExecEnd::exited(3), event("exec ended", second))];
    let moves = ExecMoves { begun: &[], ended: &ended };
    let events = [event("deleted", second)];
    let go = &mut |row: &mut Sandbox| row.state = SandboxState::Deleted;
    store.update_with_execs(&sandbox.id, Expect::default(), moves, &events, go).unwrap();
}

#[test]
fn a_run_that_ends_is_in_the_database_when_that_is_asked() {
    let place = Place::new();
    let (sandbox, exec) = (sample::sandbox(1, "one"), sample::exec(1, &sample::sandbox_id(1)));
    let store = place.deferred();
    begin(&store, &sandbox, 1);
    ready(&store, &sandbox, &exec, 2);
    assert_eq!(store.running_execs(Some(&sandbox.id)).unwrap(), std::slice::from_ref(&exec));
    assert_eq!(store.find_exec(exec.id.as_str()).unwrap(), exec);
    end(&store, &sandbox, &exec, 3);
    assert!(store.running_execs(Some(&sandbox.id)).unwrap().is_empty());
    assert!(store.is_deferred(), "the database was opened");
    let known = store.sandbox(&sandbox.id).unwrap();
    drop(store);
    let store = place.open();
    assert_eq!(store.take_in_runs().unwrap(), 1);
    assert_eq!(store.sandbox(&sandbox.id).unwrap(), known);
    assert_eq!(known.version, 3);
    let kept = store.find_exec(exec.id.as_str()).unwrap();
    assert_eq!(kept.end.unwrap().exit_code, 3);
    drop(store);
    assert_eq!(place.kinds(), ["creating", "ready", "exec ended", "deleted"]);
    assert_eq!(place.waiting(), 0);
    assert_eq!(place.open().take_in_runs().unwrap(), 0);
}

#[test]
fn whoever_takes_a_living_one_in_is_followed() {
    for looks in [true, false] {
        let place = Place::new();
        let (sandbox, exec) = (sample::sandbox(1, "one"), sample::exec(1, &sample::sandbox_id(1)));
        let store = place.deferred();
        begin(&store, &sandbox, 1);
        ready(&store, &sandbox, &exec, 2);
        let other = place.open();
        other.take_in_runs().unwrap();
        assert_eq!(other.sandbox(&sandbox.id).unwrap().state, SandboxState::Ready);
        let note = &mut |row: &mut Sandbox| row.state_reason = Some("seen".into());
        other.update_sandbox(&sandbox.id, Expect::default(), &[], note).unwrap();
        // What was changed meanwhile is not overwritten by what was known before, whether it is read or
        // written next.
        if looks {
            let row = store.sandbox(&sandbox.id).unwrap();
            assert_eq!(row.state_reason.as_deref(), Some("seen"));
        }
        end(&store, &sandbox, &exec, 3);
        let row = other.sandbox(&sandbox.id).unwrap();
        assert_eq!((row.state, row.version), (SandboxState::Deleted, 4));
        assert_eq!(row.state_reason.as_deref(), Some("seen"));
        assert!(other.find_exec(exec.id.as_str()).unwrap().end.is_some());
    }
}

#[test]
fn whoever_dies_between_rows_and_removal_leaves_nothing_twice_and_nothing_out() {
    let place = Place::new();
    let (sandbox, exec) = (sample::sandbox(1, "one"), sample::exec(1, &sample::sandbox_id(1)));
    let store = place.deferred();
    begin(&store, &sandbox, 1);
    ready(&store, &sandbox, &exec, 2);
    let path = DeferredStore::record(&place.path(), &sandbox.id);
    let copy = std::fs::read(&path).unwrap();
    place.open().take_in_runs().unwrap();
    // As if it had died before the removal: the same record is there again.
    std::fs::write(&path, &copy).unwrap();
    place.open().take_in_runs().unwrap();
    assert_eq!(place.kinds(), ["creating", "ready"]);
    // Or the run went on writing into it.
    std::fs::write(&path, &copy).unwrap();
    let record = Record::open(&path).unwrap().unwrap();
    let story = record.hold().unwrap().unwrap().story().unwrap().unwrap();
    let state = SandboxState::Deleted;
    let last = Step {
        sandbox: Sandbox { version: 3, state, ..story.row },
        begun: Vec::new(),
        ended: vec![(exec.id.clone(), ExecEnd::exited(3), event("exec ended", 3))],
        events: vec![event("deleted", 3)],
    };
    record.hold().unwrap().unwrap().append(&last, None).unwrap();
    place.open().take_in_runs().unwrap();
    assert_eq!(place.kinds(), ["creating", "ready", "exec ended", "deleted"]);
    let store = place.open();
    assert_eq!(store.sandbox(&sandbox.id).unwrap().state, SandboxState::Deleted);
    assert_eq!(store.find_exec(exec.id.as_str()).unwrap().end.unwrap().exit_code, 3);
    assert_eq!(place.waiting(), 0);
}

#[test]
fn what_is_not_in_the_record_is_asked_of_the_database_which_then_knows_it() {
    let place = Place::new();
    let sandbox = sample::sandbox(1, "one");
    let store = place.deferred();
    begin(&store, &sandbox, 1);
    assert!(store.is_deferred());
    assert_eq!(store.find_sandbox("one").unwrap().id, sandbox.id);
    assert!(!store.is_deferred());
    assert_eq!(place.waiting(), 0);
    let go = &mut |row: &mut Sandbox| row.state = SandboxState::Ready;
    store.update_sandbox(&sandbox.id, Expect::default(), &[], go).unwrap();
    assert_eq!(place.open().sandbox(&sandbox.id).unwrap().state, SandboxState::Ready);
}

#[test]
fn a_name_that_somebody_has_becomes_another_one() {
    let place = Place::new();
    let (first, second) = (sample::sandbox(1, "same"), sample::sandbox(2, "same"));
    let store = place.deferred();
    begin(&store, &second, 2);
    let other = place.open();
    other.insert_sandbox(&first, ScopeMode::Shared, &[]).unwrap();
    other.take_in_runs().unwrap();
    assert_eq!(other.find_sandbox("same").unwrap().id, first.id);
    let name = SandboxName::parse(&format!("same-{}", second.id)).unwrap();
    assert_eq!(store.sandbox(&second.id).unwrap().name, name);
}

#[test]
fn what_was_begun_first_is_the_older_one() {
    let place = Place::new();
    for (seed, name) in [(7, "newer"), (8, "older")] {
        let mut sandbox = sample::sandbox(seed, name);
        sandbox.created_at = sample::time(if name == "older" { 1 } else { 2 });
        begin(&place.deferred(), &sandbox, 1);
    }
    let store = place.open();
    store.take_in_runs().unwrap();
    let project = sample::sandbox(1, "x").project;
    assert_eq!(store.newest_sandbox(&project).unwrap().unwrap().name.as_str(), "newer");
}

#[test]
fn a_damaged_record_stays_and_the_others_are_taken_in() {
    let place = Place::new();
    for (seed, name) in [(1, "one"), (2, "two")] {
        begin(&place.deferred(), &sample::sandbox(seed, name), 1);
    }
    let path = DeferredStore::record(&place.path(), &sample::sandbox_id(1));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let store = place.open();
    assert_eq!(store.take_in_runs().unwrap(), 1);
    assert!(store.find_sandbox("two").is_ok());
    assert!(path.exists());
}

#[test]
fn it_stands_for_no_database_that_may_have_something_to_say() {
    let place = Place::new();
    let stands = || DeferredStore::instead_of(&place.path(), Place::first()).is_some();
    assert!(stands());
    place.open().set_meta("a", "b").unwrap();
    assert!(!stands(), "it was changed since");
    place.vouch();
    assert!(stands());
    for number in 0..MOST {
        begin(&place.deferred(), &sample::sandbox(number as u64, &format!("s{number}")), 1);
    }
    assert!(!stands(), "enough records wait");
    let store = place.open();
    store.look_around();
    store.note_settled();
    assert_eq!(store.take_in_runs().unwrap(), MOST as u64);
    store.vouch();
    assert!(stands());
    std::fs::remove_dir(runs_of(&place.path())).unwrap();
    assert!(!stands(), "nobody has made room for records");
}

#[test]
fn a_record_that_somebody_holds_is_not_taken_for_gone() {
    let place = Place::new();
    let sandbox = sample::sandbox(1, "one");
    let store = place.deferred();
    begin(&store, &sandbox, 1);
    let other = Record::open(&DeferredStore::record(&place.path(), &sandbox.id)).unwrap().unwrap();
    let held = other.hold().unwrap().unwrap();
    let refused = store.find_sandbox("one");
    assert!(matches!(refused, Err(StoreError::Busy { .. })), "{refused:?}");
    drop(held);
    assert_eq!(store.find_sandbox("one").unwrap().id, sandbox.id);
}
