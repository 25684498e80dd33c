//! SQLite passes the suite.

use skep_store::suite::store_suite;
use skep_store::{Access, NewInstance, SqliteStore};
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn sqlite_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let count = AtomicUsize::new(0);
    store_suite(|| {
        let name = format!("{}.db", count.fetch_add(1, Ordering::Relaxed));
        let first = NewInstance { instance: "i".into(), node: "n".into() };
        let path = directory.path().join(name);
        Box::new(SqliteStore::open(&path, Access::ReadWrite, &first).unwrap())
    });
}
