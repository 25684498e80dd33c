//! What the disk, other processes and old files can do to the database.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "test code")]

use rustix::process::{Pid, Signal, kill_process};
use skep_store::suite::sample::{self, approval, event, exec, sandbox};
use skep_store::{
    Access, EventFilter, Expect, NewInstance, SandboxFilter, ScopeMode, SqliteStore, Store,
    StoreError,
};
use skep_types::Code;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "SKEP_STORE_TEST_ROLE";
const FILE: &str = "SKEP_STORE_TEST_FILE";

fn try_open(path: &Path, access: Access) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(path, access, &NewInstance { instance: "i".into(), node: "n".into() })
}

fn open(path: &Path) -> Box<dyn Store> {
    Box::new(try_open(path, Access::ReadWrite).unwrap())
}

fn fresh() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("skep.db");
    (directory, path)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Starts one test of this file again in a process of its own, in another role.
fn start(test: &str, role: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, role)
        .env(FILE, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn role() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(FILE)?.into()))
}

fn wait_for_line(child: &mut Child, wanted: &str) {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line.contains(wanted)), "no `{wanted}`");
}

#[test]
fn eight_processes_lose_no_update() {
    const WRITES: usize = 50;
    if let Some((role, path)) = role() {
        for write in 0..WRITES {
            // A connection per write, as the command line does it.
            let store = open(&path);
            let label = format!("{role}-{write}");
            let id = sample::sandbox_id(1);
            let insert = &mut |row: &mut skep_types::Sandbox| {
                row.labels.insert(label.clone(), String::new());
            };
            store.update_sandbox(&id, Expect::default(), &[event(&label, 1)], insert).unwrap();
            store.upkeep().unwrap();
        }
        return;
    }
    let (_directory, path) = fresh();
    open(&path).insert_sandbox(&sandbox(1, "a"), ScopeMode::Shared, &[]).unwrap();
    let test = "eight_processes_lose_no_update";
    let children: Vec<Child> =
        (0..8).map(|child| start(test, &format!("p{child}"), &path)).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let store = open(&path);
    let row = store.sandbox(&sample::sandbox_id(1)).unwrap();
    assert_eq!(row.version as usize, 1 + 8 * WRITES);
    assert_eq!(row.labels.len(), 1 + 8 * WRITES);
    assert_eq!(store.list_events(&EventFilter::default()).unwrap().len(), 8 * WRITES);
    assert!(store.check().unwrap().is_empty());
    let log = fs::metadata(beside(&path, "-wal")).unwrap().len();
    assert!(log < 4 << 20, "the log has {log} bytes");
}

#[test]
fn eight_first_opens_make_one_database() {
    let (directory, path) = fresh();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let path = &path;
            scope.spawn(move || {
                let first = NewInstance { instance: format!("i{thread}"), node: "n".into() };
                let store = SqliteStore::open(path, Access::ReadWrite, &first).unwrap();
                let store: &dyn Store = &store;
                store.append_events(&[event("opened", 1)]).unwrap();
            });
        }
    });
    let store = open(&path);
    assert_eq!(store.list_events(&EventFilter::default()).unwrap().len(), 8);
    assert_eq!(names(directory.path()), ["skep.db", "skep.db-begun", "skep.db-shm", "skep.db-wal"]);
    for name in names(directory.path()) {
        let mode = fs::metadata(directory.path().join(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_kill_inside_a_transaction_leaves_what_was_committed() {
    if let Some((_, path)) = role() {
        let store = open(&path);
        store.insert_sandbox(&sandbox(1, "kept"), ScopeMode::Shared, &[]).unwrap();
        let id = sample::sandbox_id(1);
        let forever = &mut |row: &mut skep_types::Sandbox| {
            row.provider = "never".into();
            println!("inside");
            std::thread::sleep(Duration::from_secs(600));
        };
        store.update_sandbox(&id, Expect::default(), &[], forever).unwrap();
    }
    let (_directory, path) = fresh();
    drop(open(&path));
    let test = "a_kill_inside_a_transaction_leaves_what_was_committed";
    let mut child = start(test, "victim", &path);
    wait_for_line(&mut child, "inside");
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::KILL).unwrap();
    child.wait().unwrap();
    let store = open(&path);
    assert_eq!(store.sandbox(&sample::sandbox_id(1)).unwrap(), sandbox(1, "kept"));
    let change = &mut |row: &mut skep_types::Sandbox| row.provider = "next".into();
    store.update_sandbox(&sample::sandbox_id(1), Expect::default(), &[], change).unwrap();
    assert!(store.check().unwrap().is_empty());
}

#[test]
fn a_commit_survives_the_death_of_the_process_and_closing_keeps_the_log() {
    let (_directory, path) = fresh();
    let store = open(&path);
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    store.insert_sandbox(&sandbox(1, "a"), ScopeMode::Shared, &[]).unwrap();
    drop(store);
    // Nothing was folded: the row is in the log, which is still there.
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
    assert!(fs::metadata(beside(&path, "-wal")).unwrap().len() > 0);
    assert_eq!(open(&path).sandbox(&sample::sandbox_id(1)).unwrap(), sandbox(1, "a"));
}

#[test]
fn approvals_are_synced_and_other_rows_are_not() {
    let (_directory, path) = fresh();
    let handle = try_open(&path, Access::ReadWrite).unwrap();
    let store: &dyn Store = &handle;
    let home = sandbox(1, "a");
    let start = handle.durable_commits();
    store.insert_sandbox(&home, ScopeMode::Exclusive, &[event("x", 1)]).unwrap();
    store.insert_exec(&exec(1, &home.id), &[]).unwrap();
    store.finish_exec(&exec(1, &home.id).id, &sample::end(0), &[]).unwrap();
    store.update_sandbox(&home.id, Expect::default(), &[], &mut |_| ()).unwrap();
    store.insert_snapshot(&sample::snapshot(&home.id, "s", &[]), &[]).unwrap();
    assert_eq!(handle.durable_commits(), start);
    let row = approval(1, &home, &["x"]);
    store.insert_approval(&row, &[]).unwrap();
    store.move_approval(&row.id, skep_types::ApprovalState::Committed, &[], &mut |_| ()).unwrap();
    assert_eq!(handle.durable_commits(), start + 2);
}

#[test]
fn the_log_stays_bounded_also_behind_a_long_reader() {
    let (_directory, path) = fresh();
    let store = open(&path);
    let log = || fs::metadata(beside(&path, "-wal")).unwrap().len();
    let mut large = event("large", 1);
    large.data = serde_json::Value::String("x".repeat(20_000));
    let reader = rusqlite::Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM events").unwrap();
    reader.query_row("SELECT count(*) FROM events", [], |row| row.get::<_, i64>(0)).unwrap();
    let mut folded = false;
    for _ in 0..150 {
        store.append_events(std::slice::from_ref(&large)).unwrap();
        folded |= store.upkeep().unwrap().folded;
    }
    assert!(!folded, "a reader stands on the log");
    reader.execute_batch("COMMIT").unwrap();
    assert!(store.upkeep().unwrap().folded);
    assert!(log() < 100_000, "{}", log());
    for _ in 0..300 {
        store.append_events(std::slice::from_ref(&large)).unwrap();
        store.upkeep().unwrap();
        assert!(log() < 2 << 20, "{}", log());
    }
    assert_eq!(store.list_events(&EventFilter::default()).unwrap().len(), 450);
}

/// A database with many pages, folded, so that damage to the file is damage to the rows.
fn filled(path: &Path) {
    let store = open(path);
    for seed in 0..200 {
        let row = sandbox(seed, &format!("s{seed}"));
        store.insert_sandbox(&row, ScopeMode::Shared, &[event("x", 1)]).unwrap();
    }
    drop(store);
    let plain = rusqlite::Connection::open(path).unwrap();
    plain.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
}

fn is_damage(error: &StoreError) -> bool {
    assert_eq!(error.code(), Code::Store);
    matches!(error, StoreError::Corrupt { .. } | StoreError::Damaged { .. })
}

#[test]
fn truncated_and_foreign_files_are_refused_and_kept() {
    let (directory, path) = fresh();
    filled(&path);
    let whole = fs::read(&path).unwrap();
    for size in [0, 10, 100, 4096, 5000, whole.len() / 2, whole.len() - 4096] {
        fs::write(&path, &whole[..size]).unwrap();
        for access in [Access::ReadWrite, Access::ReadOnly] {
            let found = try_open(&path, access).and_then(|store| {
                let store: &dyn Store = &store;
                assert!(!store.check()?.is_empty(), "cut to {size}: not found");
                store.list_sandboxes(&SandboxFilter::default()).map(drop)
            });
            if let Err(error) = found {
                assert!(is_damage(&error), "cut to {size}: {error:?}");
            }
        }
        assert_eq!(fs::read(&path).unwrap(), &whole[..size], "the file was touched");
    }
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(beside(&path, suffix)).unwrap();
    }
    for foreign in [b"not a database, but long enough to look at".repeat(50), vec![0; 8192]] {
        fs::write(&path, &foreign).unwrap();
        let refused = try_open(&path, Access::ReadWrite).unwrap_err();
        assert!(matches!(refused, StoreError::Corrupt { .. }), "{refused:?}");
        assert_eq!(fs::read(&path).unwrap(), foreign);
    }
    fs::remove_file(&path).unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("CREATE TABLE mine (x); PRAGMA user_version = 1;").unwrap();
    drop(other);
    let refused = try_open(&path, Access::ReadWrite).unwrap_err();
    assert!(matches!(refused, StoreError::Corrupt { .. }), "{refused:?}");
    assert!(names(directory.path()).contains(&"skep.db".to_owned()));
}

#[test]
fn a_flipped_bit_is_an_error_or_changes_nothing() {
    let (_directory, path) = fresh();
    filled(&path);
    let read_all = |path: &Path| -> Result<_, StoreError> {
        let store = try_open(path, Access::ReadWrite)?;
        let store: &dyn Store = &store;
        let rows = store.list_sandboxes(&SandboxFilter::default())?;
        Ok((rows, store.list_events(&EventFilter::default())?, store.check()?))
    };
    let (rows, events, problems) = read_all(&path).unwrap();
    assert!(problems.is_empty());
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    let size = file.metadata().unwrap().len();
    let (mut found, mut harmless) = (0, 0);
    for step in 0..150 {
        // Spread over the file, past the header page.
        let at = 4096 + (step * 7_919 + step * step * 31) % (size - 4096);
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x04], at).unwrap();
        match read_all(&path) {
            Err(error) => {
                assert!(is_damage(&error), "{error:?}");
                found += 1;
            }
            Ok((_, _, problems)) if !problems.is_empty() => found += 1,
            Ok((now, now_events, _)) => {
                assert_eq!(now, rows, "a changed row was believed");
                assert_eq!(now_events.len(), events.len());
                harmless += 1;
            }
        }
        file.write_all_at(&byte, at).unwrap();
    }
    assert!(found > 20, "{found} found, {harmless} harmless");
    assert_eq!(read_all(&path).unwrap().0, rows);
}

#[test]
fn a_torn_log_loses_its_end_and_not_its_start() {
    let (_directory, path) = fresh();
    let store = open(&path);
    for seed in 0..20 {
        let row = sandbox(seed, &format!("s{seed}"));
        store.insert_sandbox(&row, ScopeMode::Shared, &[]).unwrap();
    }
    drop(store);
    let log = fs::File::options().write(true).open(beside(&path, "-wal")).unwrap();
    log.set_len(log.metadata().unwrap().len() - 100).unwrap();
    let store = open(&path);
    let rows = store.list_sandboxes(&SandboxFilter::default()).unwrap();
    assert_eq!(rows.len(), 19);
    assert!(store.check().unwrap().is_empty());
}

/// A file without its log is an older state, and refused, unless somebody else folded the log into it.
#[test]
fn a_file_without_its_log_is_known() {
    let (_directory, path) = fresh();
    open(&path).set_meta("k", "v").unwrap();
    let log = beside(&path, "-wal");
    let away = beside(&path, ".away");
    fs::rename(&log, &away).unwrap();
    let refused = try_open(&path, Access::ReadWrite).unwrap_err();
    assert!(matches!(refused, StoreError::Older { .. }), "{refused:?}");
    let older = try_open(&path, Access::ReadOnly).unwrap();
    assert_eq!((&older as &dyn Store).meta("k").unwrap(), None);
    drop(older);
    fs::rename(&away, &log).unwrap();
    assert_eq!(open(&path).meta("k").unwrap().as_deref(), Some("v"));
    // Any other tool that is the last to close the database folds the log and removes it.
    for _ in 0..2 {
        let plain = rusqlite::Connection::open(&path).unwrap();
        plain.query_row("SELECT count(*) FROM events", [], |row| row.get::<_, i64>(0)).unwrap();
        drop(plain);
        assert!(!log.exists());
        assert_eq!(open(&path).meta("k").unwrap().as_deref(), Some("v"));
    }
    fs::remove_file(&log).unwrap();
    let refused = try_open(&path, Access::ReadWrite).unwrap_err();
    assert!(matches!(refused, StoreError::Older { .. }), "{refused:?}");
    fs::remove_file(beside(&path, "-begun")).unwrap();
    assert_eq!(open(&path).meta("k").unwrap().as_deref(), Some("v"));
}

#[test]
fn a_replaced_or_removed_file_is_noticed() {
    let (directory, path) = fresh();
    let store = open(&path);
    store.set_meta("k", "v").unwrap();
    let moved = directory.path().join("moved.db");
    fs::rename(&path, &moved).unwrap();
    for result in [store.set_meta("k", "w"), store.meta("k").map(drop)] {
        assert!(matches!(result, Err(StoreError::Replaced { .. })), "{result:?}");
    }
    fs::copy(&moved, &path).unwrap();
    let result = store.set_meta("k", "w");
    assert!(matches!(result, Err(StoreError::Replaced { .. })), "{result:?}");
}

#[test]
fn read_only_reads_and_refuses() {
    let (directory, path) = fresh();
    let missing = try_open(&path, Access::ReadOnly).unwrap_err();
    assert!(matches!(missing, StoreError::Io { .. }), "{missing:?}");
    assert!(names(directory.path()).is_empty());
    open(&path).set_meta("k", "v").unwrap();
    let handle = try_open(&path, Access::ReadOnly).unwrap();
    let store: &dyn Store = &handle;
    assert_eq!(store.meta("k").unwrap().as_deref(), Some("v"));
    let refused = store.set_meta("k", "w");
    assert!(matches!(refused, Err(StoreError::ReadOnly { .. })), "{refused:?}");
    assert!(!store.upkeep().unwrap().folded);
}

#[test]
fn a_newer_schema_is_refused_and_kept() {
    let (directory, path) = fresh();
    drop(open(&path));
    let newer = rusqlite::Connection::open(&path).unwrap();
    newer.pragma_update(None, "user_version", 4711).unwrap();
    drop(newer);
    let before = fs::read(&path).unwrap();
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let refused = try_open(&path, access).unwrap_err();
        assert!(matches!(refused, StoreError::NewerSchema { found: 4711, .. }), "{refused:?}");
    }
    assert_eq!(fs::read(&path).unwrap(), before);
    assert!(names(directory.path()).iter().all(|name| !name.contains("backup")));
}

#[test]
fn a_restored_backup_gets_its_log_and_a_wide_mode_is_narrowed() {
    let (directory, path) = fresh();
    let store = open(&path);
    store.set_meta("k", "v").unwrap();
    let copy = directory.path().join("copy.db");
    let plain = rusqlite::Connection::open(&path).unwrap();
    plain.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o644)).unwrap();
    let restored = open(&copy);
    assert_eq!(restored.meta("k").unwrap().as_deref(), Some("v"));
    restored.set_meta("k", "w").unwrap();
    assert!(beside(&copy, "-wal").exists());
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
}

/// A small filesystem of our own; `None` where we may not mount (not root).
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(at: &Path) -> Option<Self> {
        let options = c"size=512k,mode=0700";
        let flags = rustix::mount::MountFlags::empty();
        match rustix::mount::mount("skep-test", at, "tmpfs", flags, options) {
            Ok(()) => Some(Self(at.to_owned())),
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "cannot mount in CI: {error}");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn a_full_disk_is_typed_and_recovered_from() {
    let directory = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::new(directory.path()) else { return };
    let path = disk.0.join("skep.db");
    let filler = disk.0.join("filler");
    let store = open(&path);
    store.insert_sandbox(&sandbox(1, "first"), ScopeMode::Shared, &[]).unwrap();

    // Fill the rest, then ask for more than there is.
    let _ = fs::write(&filler, vec![1; 1 << 20]);
    let home = sandbox(1, "first");
    let mut written = 0;
    let failed = loop {
        match store.insert_exec(&exec(1000 + written, &home.id), &[event("exec.started", 1)]) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 5_000, "the disk never filled up");
    };
    assert!(matches!(failed, StoreError::Full { .. }), "{failed:?}");
    assert_eq!(failed.code(), Code::NoSpace);
    let refused = store.insert_approval(&approval(1, &home, &["x"]), &[]).unwrap_err();
    assert_eq!(refused.code(), Code::NoSpace, "{refused:?}");
    // Reading goes on, nothing half done is seen.
    assert_eq!(store.list_execs(&home.id).unwrap().len() as u64, written);
    assert_eq!(store.list_events(&EventFilter::default()).unwrap().len() as u64, written);

    // A first open on a full disk leaves nothing.
    let second = disk.0.join("second.db");
    let refused = try_open(&second, Access::ReadWrite).unwrap_err();
    assert_eq!(refused.code(), Code::NoSpace, "{refused:?}");
    assert!(names(&disk.0).iter().all(|name| !name.starts_with("second")));

    // Starting anew on a full disk: it opens, or says why not.
    drop(store);
    match try_open(&path, Access::ReadWrite) {
        Ok(store) => {
            let store: &dyn Store = &store;
            assert_eq!(store.list_execs(&home.id).unwrap().len() as u64, written);
        }
        Err(error) => assert_eq!(error.code(), Code::NoSpace, "{error:?}"),
    }
    fs::remove_file(&filler).unwrap();
    let store = open(&path);
    store.insert_approval(&approval(1, &home, &["x"]), &[]).unwrap();
    assert!(store.check().unwrap().is_empty());
    drop(store);
    assert_eq!(open(&path).list_execs(&home.id).unwrap().len() as u64, written);
}

#[test]
fn an_outside_lock_is_busy_and_leaves_nothing() {
    let (_directory, path) = fresh();
    let store = open(&path);
    let holder = rusqlite::Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begun = Instant::now();
    // Readers do not wait for the writer.
    assert_eq!(store.meta("k").unwrap(), None);
    assert!(begun.elapsed() < Duration::from_secs(5));
    let refused = store.set_meta("k", "v").unwrap_err();
    assert!(matches!(refused, StoreError::Busy { .. }), "{refused:?}");
    assert!(refused.code().retryable());
    holder.execute_batch("ROLLBACK").unwrap();
    assert_eq!(store.meta("k").unwrap(), None);
    store.set_meta("k", "v").unwrap();
}
