//! PostgreSQL passes the same suite, and what only a shared database can meet.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "test code")]

#[path = "../../../tests/harness/postgres.rs"]
mod server;

use server::Postgres;
use skep_store::suite::sample::{self, approval, event, sandbox};
use skep_store::suite::store_suite;
use skep_store::{
    ApprovalStore as _, EventFilter, ExecStore as _, Expect, LedgerStore as _, NewInstance, Nodes,
    PostgresOptions, PostgresStore, SandboxFilter, SandboxStore as _, ScopeMode, Store, StoreError,
};
use skep_types::{Code, Sandbox};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn options(url: &str, node: &str) -> PostgresOptions {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let session = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let first = NewInstance { instance: "i".into(), node: node.into() };
    PostgresOptions::new(url, first, &format!("holder of {node}"), &session)
}

fn open(url: &str, node: &str) -> PostgresStore {
    PostgresStore::open(&options(url, node)).unwrap()
}

fn count(store: &dyn Store) -> usize {
    store.list_sandboxes(&SandboxFilter::default()).unwrap().len()
}

fn touch(store: &dyn Store, seed: u64) -> Result<Sandbox, StoreError> {
    let id = sample::sandbox_id(seed);
    store.update_sandbox(&id, Expect::default(), &[event("touched", 1)], &mut |_| ())
}

#[test]
fn store_4_postgres_passes_the_same_suite() {
    let Some(server) = Postgres::start() else { return };
    let schemas = AtomicUsize::new(0);
    store_suite(|| {
        let schema = format!("s{}", schemas.fetch_add(1, Ordering::Relaxed));
        Box::new(open(&server.url(&schema), "n"))
    });
}

#[test]
fn store_4_fifty_writers_lose_no_update() {
    let Some(server) = Postgres::start() else { return };
    let url = server.url("s");
    open(&url, "n").insert_sandbox(&sandbox(1, "a"), ScopeMode::Shared, &[]).unwrap();
    let stores: Vec<PostgresStore> = (0..5).map(|_| open(&url, "n")).collect();
    std::thread::scope(|scope| {
        for writer in 0..50 {
            let store = &stores[writer % 5];
            scope.spawn(move || {
                for write in 0..4 {
                    let label = format!("{writer}-{write}");
                    let insert = &mut |row: &mut Sandbox| {
                        row.labels.insert(label.clone(), String::new());
                    };
                    let id = sample::sandbox_id(1);
                    store
                        .update_sandbox(&id, Expect::default(), &[event(&label, 1)], insert)
                        .unwrap();
                }
            });
        }
    });
    let store = open(&url, "n");
    let row = store.sandbox(&sample::sandbox_id(1)).unwrap();
    assert_eq!((row.version, row.labels.len()), (201, 201));
    let events = store.list_events(&EventFilter::default()).unwrap();
    let numbers: Vec<u64> = events.iter().map(|event| event.sequence).collect();
    assert_eq!(numbers, (1..=200).collect::<Vec<u64>>(), "numbers without gaps, each once");
}

#[test]
fn store_9_two_nodes_touch_only_their_own() {
    let Some(server) = Postgres::start() else { return };
    let url = server.url("s");
    let (one, two) = (open(&url, "one"), open(&url, "two"));
    one.insert_sandbox(&sandbox(1, "a"), ScopeMode::Exclusive, &[]).unwrap();
    two.insert_sandbox(&sandbox(2, "b"), ScopeMode::Exclusive, &[]).unwrap();
    assert_eq!((count(&one), count(&two)), (1, 1));
    let all = SandboxFilter { nodes: Nodes::All, ..SandboxFilter::default() };
    assert_eq!(one.list_sandboxes(&all).unwrap().len(), 2);
    touch(&one, 1).unwrap();
    for refused in [
        touch(&one, 2).map(drop),
        one.find_sandbox("b").map(drop),
        one.sandbox(&sample::sandbox_id(2)).map(drop),
        one.insert_exec(&sample::exec(1, &sample::sandbox_id(2)), &[]),
    ] {
        let Err(StoreError::OtherNode { node, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(node, "two");
    }
    // A name is taken wherever it is taken.
    let taken = one.insert_sandbox(&sandbox(3, "b"), ScopeMode::Shared, &[]);
    assert!(matches!(taken, Err(StoreError::AlreadyExists { .. })), "{taken:?}");
    // Approvals, templates and keys are looked for at home only.
    one.insert_approval(&approval(1, &sandbox(1, "a"), &["x"]), &[]).unwrap();
    assert!(two.list_approvals(&Default::default()).unwrap().is_empty());
    let key = skep_types::ContentHash::of(b"x");
    let claim = |store: &PostgresStore| {
        store.claim_key("k", &key, &sample::time(0), &sample::time(9)).unwrap()
    };
    assert_eq!((claim(&one), claim(&two)), (skep_store::KeyClaim::New, skep_store::KeyClaim::New));
    // The oracle: what psql sees.
    let rows = server.sql("SELECT name || ' ' || node FROM s.sandboxes ORDER BY name");
    assert_eq!(rows, "a one\nb two");
}

#[test]
fn store_9_a_node_that_was_taken_over_is_fenced_off() {
    let Some(server) = Postgres::start() else { return };
    let url = server.url("s");
    let short = |holder: &str| {
        let lease = Duration::from_millis(800);
        PostgresOptions { holder: holder.into(), lease, ..options(&url, "n") }
    };
    let old = PostgresStore::open(&short("old")).unwrap();
    old.insert_sandbox(&sandbox(1, "a"), ScopeMode::Shared, &[]).unwrap();
    // Processes of the same state directory share the lease; another directory is refused.
    let beside = PostgresStore::open(&short("old")).unwrap();
    touch(&beside, 1).unwrap();
    let new = PostgresStore::open(&short("new")).unwrap();
    let held = touch(&new, 1).unwrap_err();
    assert!(matches!(held, StoreError::NodeHeld { .. }), "{held:?}");
    assert!(held.code().retryable());
    // Reading needs no lease.
    assert_eq!(count(&new), 1);
    let deadline = Instant::now() + Duration::from_secs(10);
    while touch(&new, 1).is_err() {
        assert!(Instant::now() < deadline, "the lease never ran out");
        std::thread::sleep(Duration::from_millis(50));
    }
    let version = new.sandbox(&sample::sandbox_id(1)).unwrap().version;
    for stale in [&old, &beside] {
        let fenced = touch(stale, 1).unwrap_err();
        assert!(matches!(fenced, StoreError::Fenced { expected: 1, found: 2, .. }), "{fenced:?}");
        // For good: also when the new holder is gone.
        let stopped = stale.insert_approval(&approval(1, &sandbox(1, "a"), &["x"]), &[]);
        assert!(matches!(stopped, Err(StoreError::Stopped { .. })), "{stopped:?}");
    }
    assert_eq!(new.sandbox(&sample::sandbox_id(1)).unwrap().version, version);
    assert_eq!(server.sql("SELECT holder || ' ' || epoch FROM s.nodes"), "new 2");
}

/// Where a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Nowhere,
    /// The server never sees the commit.
    BeforeCommit,
    /// The server does, the client never gets the answer.
    AfterCommit,
    /// The same, and the server cannot be reached any more.
    AfterCommitAndForEver,
}

/// A go-between on a socket of its own that cuts the first connection that commits.
struct Between {
    directory: tempfile::TempDir,
    cut: Arc<std::sync::Mutex<Cut>>,
}

impl Between {
    fn new(server: &Postgres) -> Self {
        let directory = tempfile::tempdir_in("/tmp").unwrap();
        let listener = UnixListener::bind(directory.path().join(".s.PGSQL.5432")).unwrap();
        let target = server.socket_directory().join(".s.PGSQL.5432");
        let cut = Arc::new(std::sync::Mutex::new(Cut::Nowhere));
        let shared = cut.clone();
        let done = Arc::new(AtomicBool::new(false));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (target, cut) = (target.clone(), shared.clone());
                let gone = *cut.lock().unwrap() == Cut::AfterCommitAndForEver
                    && done.load(Ordering::Relaxed);
                let done = done.clone();
                if !gone {
                    std::thread::spawn(move || carry(client, target, cut, &done));
                }
            }
        });
        Self { directory, cut }
    }

    fn cut_next(&self, cut: Cut) {
        *self.cut.lock().unwrap() = cut;
    }
}

fn carry(
    mut client: UnixStream,
    target: PathBuf,
    cut: Arc<std::sync::Mutex<Cut>>,
    done: &AtomicBool,
) {
    let Ok(mut server) = UnixStream::connect(target) else { return };
    let (mut back, mut forth) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let answers = std::thread::spawn(move || {
        let _ = std::io::copy(&mut back, &mut forth);
        let _ = forth.shutdown(std::net::Shutdown::Both);
    });
    let mut buffer = [0; 65_536];
    while let Ok(size @ 1..) = client.read(&mut buffer) {
        let bytes = &buffer[..size];
        let commits = bytes.windows(7).any(|window| window == b"COMMIT\0");
        let cut = if *cut.lock().unwrap() == Cut::AfterCommitAndForEver && commits {
            Cut::AfterCommitAndForEver
        } else if commits {
            std::mem::replace(&mut *cut.lock().unwrap(), Cut::Nowhere)
        } else {
            Cut::Nowhere
        };
        if cut == Cut::BeforeCommit {
            break;
        }
        if matches!(cut, Cut::AfterCommit | Cut::AfterCommitAndForEver) {
            done.store(true, Ordering::Relaxed);
            let _ = client.shutdown(std::net::Shutdown::Both);
        }
        if server.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = server.shutdown(std::net::Shutdown::Write);
    let _ = client.shutdown(std::net::Shutdown::Both);
    let _ = answers.join();
}

#[test]
fn store_3_a_commit_whose_answer_was_lost_is_settled() {
    let Some(server) = Postgres::start() else { return };
    let between = Between::new(&server);
    server.url("s");
    let store = open(&server.url_at(between.directory.path(), "s"), "n");
    store.insert_sandbox(&sandbox(1, "a"), ScopeMode::Shared, &[]).unwrap();
    for round in 0..5_u64 {
        let before = store.sandbox(&sample::sandbox_id(1)).unwrap().version;
        between.cut_next(Cut::BeforeCommit);
        let lost = touch(&store, 1).unwrap_err();
        assert!(matches!(lost, StoreError::Unreachable { .. }), "round {round}: {lost:?}");
        assert!(lost.code().retryable());
        assert_eq!(store.sandbox(&sample::sandbox_id(1)).unwrap().version, before, "it happened");
        // The server commits; the client hears nothing and finds out by the operation's id.
        between.cut_next(Cut::AfterCommit);
        assert_eq!(touch(&store, 1).unwrap().version, before + 1);
        let found = server.sql("SELECT version FROM s.sandboxes");
        assert_eq!(found, (before + 1).to_string(), "once, not twice");
    }
    let events = store.list_events(&EventFilter::default()).unwrap();
    assert_eq!(events.len(), 5);
    // Without the row of the operation the same loss cannot be told from one that did nothing.
    server.sql("CREATE RULE forget AS ON INSERT TO s.operations DO INSTEAD NOTHING");
    between.cut_next(Cut::AfterCommit);
    assert!(touch(&store, 1).is_err(), "the control: nothing to settle by");
}

#[test]
fn store_3_deadlock_timeout_and_shutdown_are_typed_and_leave_nothing() {
    let Some(mut server) = Postgres::start() else { return };
    let url = server.url("s");
    let store = open(&url, "n");
    store.insert_sandbox(&sandbox(1, "a"), ScopeMode::Shared, &[]).unwrap();
    for (code, what) in [
        ("40P01", "deadlock"),
        ("40001", "serialization failure"),
        ("57014", "statement timeout"),
        ("55P03", "lock timeout"),
        ("53100", "disk full"),
    ] {
        server.sql(&format!(
            "CREATE OR REPLACE FUNCTION s.refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = '{code}'; END $$;
             CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON s.events
             FOR EACH ROW EXECUTE FUNCTION s.refuse()"
        ));
        let refused = touch(&store, 1).unwrap_err();
        assert!(refused.code().retryable(), "{what}: {refused:?}");
        assert_eq!(refused.code() == Code::NoSpace, code == "53100", "{what}: {refused:?}");
        assert_eq!(store.sandbox(&sample::sandbox_id(1)).unwrap().version, 1, "{what}");
    }
    server.sql("DROP TRIGGER refuse ON s.events");
    touch(&store, 1).unwrap();
    // The server dies between two calls: the pooled connection is found dead and replaced.
    server.crash();
    let gone = touch(&store, 1).unwrap_err();
    assert!(matches!(gone, StoreError::Unreachable { .. }), "{gone:?}");
    server.resume();
    assert_eq!(touch(&store, 1).unwrap().version, 3);
}

#[test]
fn store_9_stalls_a_full_pool_and_a_standby_are_typed() {
    let Some(server) = Postgres::start() else { return };
    let url = server.url("s");
    let brief = PostgresOptions {
        stall: Duration::from_millis(700),
        patience: Duration::from_millis(200),
        connections: 1,
        ..options(&url, "n")
    };
    let store = PostgresStore::open(&brief).unwrap();
    store.insert_sandbox(&sandbox(1, "a"), ScopeMode::Shared, &[]).unwrap();

    // The only connection is in use: the second caller is told so, in time.
    std::thread::scope(|scope| {
        let (started, wait) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let held = &store;
        scope.spawn(move || {
            let hold = &mut |_: &mut Sandbox| {
                started.send(()).unwrap();
                let _ = released.recv();
            };
            let id = sample::sandbox_id(1);
            held.update_sandbox(&id, Expect::default(), &[], hold).unwrap();
        });
        wait.recv().unwrap();
        let busy = touch(&store, 1).unwrap_err();
        assert!(matches!(busy, StoreError::Busy { .. }), "{busy:?}");
        release.send(()).unwrap();
    });
    assert_eq!(store.sandbox(&sample::sandbox_id(1)).unwrap().version, 2);

    // Somebody outside holds the rows: no answer comes, and nothing happened.
    let mut holder = server.command("psql");
    let mut holder = holder
        .args(["-X", "-q", "-U", "skep", "-d", "postgres", "-h"])
        .arg(server.socket_directory())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut tell = holder.stdin.take().unwrap();
    tell.write_all(b"BEGIN; LOCK TABLE s.sandboxes; SELECT 'locked';\n").unwrap();
    let mut heard = [0; 1];
    holder.stdout.as_mut().unwrap().read_exact(&mut heard).unwrap();
    let begun = Instant::now();
    let stalled = touch(&store, 1).unwrap_err();
    assert!(matches!(stalled, StoreError::Unreachable { .. }), "{stalled:?}");
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(tell);
    holder.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while touch(&store, 1).is_err() {
        assert!(Instant::now() < deadline, "it never came back");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.sql("SELECT version FROM s.sandboxes"), "3");
}

#[test]
fn store_9_a_standby_reads_and_refuses_and_takes_changes_when_promoted() {
    let Some(mut server) = Postgres::start() else { return };
    let url = server.url("s");
    let store = open(&url, "n");
    store.insert_sandbox(&sandbox(1, "a"), ScopeMode::Shared, &[]).unwrap();
    let row = approval(1, &sandbox(1, "a"), &["x"]);
    {
        let standby = server.standby();
        let follower = open(&standby.url("s"), "n");
        assert_eq!(count(&follower), 1);
        let refused = follower.insert_approval(&row, &[]).unwrap_err();
        assert!(matches!(refused, StoreError::ReadOnly { .. }), "{refused:?}");
        // Failover: the same handle, the same node, the same epoch.
        standby.promote();
        follower.insert_approval(&row, &[]).unwrap();
        assert_eq!(follower.list_approvals(&Default::default()).unwrap().len(), 1);
    }
    // The outcome of a commit that cannot be asked for: told so, and no more changes.
    server.crash();
    let gone = store.insert_approval(&row, &[]).unwrap_err();
    assert!(matches!(gone, StoreError::Unreachable { .. }), "{gone:?}");
}

#[test]
fn store_9_an_outcome_that_stays_unknown_stops_the_handle() {
    let Some(server) = Postgres::start() else { return };
    let between = Between::new(&server);
    server.url("s");
    let url = server.url_at(between.directory.path(), "s");
    let store = PostgresStore::open(&PostgresOptions {
        settling: Duration::from_millis(500),
        ..options(&url, "n")
    })
    .unwrap();
    store.insert_sandbox(&sandbox(1, "a"), ScopeMode::Shared, &[]).unwrap();
    between.cut_next(Cut::AfterCommitAndForEver);
    let row = approval(1, &sandbox(1, "a"), &["x"]);
    let unknown = store.insert_approval(&row, &[]).unwrap_err();
    assert!(matches!(unknown, StoreError::Uncertain { .. }), "{unknown:?}");
    assert!(!unknown.code().retryable(), "a retry could do it twice");
    let stopped = touch(&store, 1).unwrap_err();
    assert!(matches!(stopped, StoreError::Stopped { .. }), "{stopped:?}");
}
