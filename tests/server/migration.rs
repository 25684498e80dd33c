//! An older and a newer schema under the binary: a backup first, a death at every step, a refusal.

use crate::harness::{Fault, Lab, Sweep, entries, for_both, long};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// Asks the database by another program; one line per row.
fn ask(lab: &Lab, database: &Path, statements: &[&str]) -> String {
    let script = "import sqlite3, sys
base = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    for row in base.execute(statement): print(*row)
base.close()";
    let python = lab.program("python3").args(["-c", script]).arg(database);
    python.args(statements).run().ok().text()
}

/// Takes the schema back to what the first release had: steps 2 and 3 made indexes.
fn take_back(lab: &Lab) {
    for backup in backups(lab) {
        fs::remove_file(backup).unwrap();
    }
    let drops = ["events_at", "sandboxes_deleted", "idempotency_keys_expiry", "approvals_state"];
    let drops = drops.map(|name| format!("DROP INDEX {name}"));
    let drops: Vec<&str> = drops.iter().map(String::as_str).collect();
    let statements = [&["BEGIN"], &drops[..], &["PRAGMA user_version = 1", "COMMIT"]].concat();
    ask(lab, &lab.state.join("skep.db"), &statements);
}

fn backups(lab: &Lab) -> Vec<PathBuf> {
    let all = entries(&lab.state).into_iter();
    all.filter(|path| path.to_string_lossy().contains("skep.db.backup-v")).collect()
}

/// The schema, and whether everything is sound.
fn state(lab: &Lab, database: &Path) -> String {
    let names = "SELECT name FROM sandboxes WHERE state <> 'deleted' ORDER BY name";
    ask(lab, database, &["PRAGMA user_version", "PRAGMA integrity_check", names])
}

const OLD: &str = "1\nok\nkept";
const NEW: &str = "3\nok\nkept";

#[test]
fn store_8_a_migration_killed_at_every_step_goes_on_and_was_backed_up_first() {
    for_both(|lab| {
        lab.create("kept");
        lab.exec_script("kept", "echo work > work").run().ok();
        lab.skep(["stop", "kept"]).run().ok();
        let whole = lab.diff("kept")["digest"].clone();
        let database = lab.state.join("skep.db");
        take_back(lab);
        assert_eq!(state(lab, &database), OLD);
        let Some(sweep) = Sweep::new(lab, &["ls"], false) else { return };
        let places = sweep.places();
        assert_eq!(state(lab, &database), NEW);
        let written = ["pwrite64", "write", "fsync", "fdatasync", "rename", "unlink", "ftruncate"];
        let mut died = 0;
        for call in written {
            let count = places.get(call).map_or(0, Vec::len);
            let step = if long() { 1 } else { count.div_ceil(5).max(1) };
            for nth in (1..=count).step_by(step).chain([count]).filter(|nth| *nth > 0) {
                take_back(lab);
                let at = format!("{call} {nth}");
                let ran = sweep.meets(&Fault::death(call, nth));
                died += usize::from(ran.code() != 0);
                // Whatever was migrated was copied before.
                if state(lab, &database) != OLD {
                    assert_eq!(backups(lab).len(), 1, "{at}");
                }
                assert_eq!(lab.sandboxes().len(), 1, "{at}");
                assert_eq!(state(lab, &database), NEW, "{at}");
                let kept = backups(lab);
                assert!(!kept.is_empty(), "{at}: no backup");
                for backup in kept {
                    // One for each schema that somebody has found; of the first there always is one.
                    let name = backup.display().to_string();
                    let version = name.rsplit("-v").next().unwrap().chars().next().unwrap();
                    assert_eq!(state(lab, &backup), format!("{version}\nok\nkept"), "{at}: {name}");
                }
                assert_eq!(lab.diff("kept")["digest"], whole, "{at}");
            }
        }
        assert!(died > 5, "only {died} died");
        // A full disk and a failing one are typed; nothing is migrated without its backup.
        for (call, nth, error) in
            [("pwrite64", 3, "ENOSPC+"), ("fsync", 1, "EIO"), ("rename", 1, "EIO")]
        {
            take_back(lab);
            let ran = sweep.meets(&Fault::failure(call, nth, error));
            assert_eq!(ran.code(), 1, "{call}: {}", ran.describe());
            assert_eq!(state(lab, &database), OLD, "{call}");
            assert_eq!(lab.sandboxes().len(), 1, "{call}");
            assert_eq!(state(lab, &database), NEW, "{call}");
        }
        // A server does the same at its start.
        take_back(lab);
        let server = lab.serve(&[]);
        assert_eq!(backups(lab).len(), 1);
        assert_eq!(server.get("/v1/sandboxes/kept/changes").is(200).json()["digest"], whole);
        server.stop();
    });
}

#[test]
fn store_8_a_newer_schema_is_refused_by_every_command_and_kept() {
    for_both(|lab| {
        lab.create("kept");
        lab.exec_script("kept", "echo work > work").run().ok();
        lab.skep(["stop", "kept"]).run().ok();
        let server = lab.serve(&[]);
        let database = lab.state.join("skep.db");
        // Under a server that is of an older version then, and for what starts afterwards.
        ask(lab, &database, &["PRAGMA user_version = 4"]);
        server.stop();
        let before = fs::read(&database).unwrap();
        let lines: [&[&str]; 6] = [
            &["ls", "--json"],
            &["diff", "--json", "kept"],
            &["create", "--json", "new"],
            &["rm", "--json", "--discard", "kept"],
            &["approve", "--json", "kept"],
            &["gc", "--json"],
        ];
        for line in lines {
            let ran = lab.skep(line).run().exits(1);
            assert_eq!(ran.problem()["code"], "store", "{}", ran.describe());
            assert_eq!(ran.problem()["hint"], "use the newer skep that wrote it");
        }
        let started = lab.skep(["serve", "--listen", "127.0.0.1:0", "--token-file"]);
        started.arg(lab.token_file()).within(30).run().exits(1).says("schema 4");
        assert_eq!(fs::read(&database).unwrap(), before);
        assert_eq!(backups(lab), Vec::<PathBuf>::new());
        assert_eq!(entries(&lab.state.join("sandboxes")).len(), 1);
        // The control.
        ask(lab, &database, &["PRAGMA user_version = 3"]);
        assert_eq!(lab.sandbox("kept")["state"], json!("stopped"));
    });
}
