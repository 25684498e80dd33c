//! A database that is damaged, cut, torn or without its log: what is found at a start, and that nothing
//! is removed, repaired or forgotten on doubt.

use crate::harness::{Lab, Server, Tree, entries, for_both, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Two sandboxes with work, at rest.
fn prepare(lab: &Lab) {
    lab.write("a.txt", "one\n");
    for name in ["sound", "hurt"] {
        lab.create(name);
        lab.exec_script(name, &format!("echo {name} > {name}.txt")).run().ok();
        lab.skep(["stop", name]).run().ok();
    }
}

/// Runs a statement by another program; the last to close a database folds its log.
fn by_python(lab: &Lab, statement: &str) {
    let script = "import sqlite3, sys
base = sqlite3.connect(sys.argv[1], isolation_level=None); base.execute(sys.argv[2]); base.close()";
    let python = lab.program("python3").args(["-c", script]).arg(database(lab));
    python.arg(statement).run().ok();
}

fn database(lab: &Lab) -> PathBuf {
    lab.state.join("skep.db")
}

/// The work of all sandboxes, byte by byte.
fn work(lab: &Lab) -> Vec<(PathBuf, Tree)> {
    let all = entries(&lab.state.join("sandboxes"));
    all.into_iter().map(|path| (path.clone(), Tree::read(&path.join("upper")))).collect()
}

/// A state directory that can be put back.
struct Kept<'a> {
    lab: &'a Lab,
    files: Vec<(PathBuf, Vec<u8>)>,
    work: Vec<(PathBuf, Tree)>,
}

impl<'a> Kept<'a> {
    fn of(lab: &'a Lab) -> Self {
        let files = entries(&lab.state).into_iter().filter(|path| {
            path.is_file() && path.file_name().unwrap().as_encoded_bytes().starts_with(b"skep.db")
        });
        let files = files.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
        Self { lab, files, work: work(lab) }
    }

    /// Everything as it was, but for one file.
    fn with(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        self.put_back();
        let path = self.lab.state.join(name);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        self.write(&path, &bytes);
        bytes
    }

    fn put_back(&self) {
        for path in entries(&self.lab.state) {
            if path.file_name().unwrap().as_encoded_bytes().starts_with(b"skep.db") {
                fs::remove_file(path).unwrap();
            }
        }
        self.files.iter().for_each(|(path, bytes)| self.write(path, bytes));
    }

    fn write(&self, path: &Path, bytes: &[u8]) {
        fs::write(path, bytes).unwrap();
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        self.lab.who.own(path);
    }

    fn assert_work_is_there(&self, at: &str) {
        let now = work(self.lab);
        assert_eq!(now.len(), self.work.len(), "{at}");
        for ((path, before), (_, after)) in self.work.iter().zip(&now) {
            after.assert_equals(before, &format!("{at}: {}", path.display()));
        }
    }
}

const CHANGES: [&[&str]; 5] = [
    &["create", "--json", "new"],
    &["rm", "--json", "--discard", "hurt"],
    &["approve", "--json", "hurt"],
    &["gc", "--json", "--older-than", "1ms", "--archive"],
    &["exec", "--json", "hurt", "--", "true"],
];

/// Every command says what is wrong, none does anything.
fn is_refused(kept: &Kept<'_>, what: &str) {
    let lab = kept.lab;
    let before = lab.tree();
    for line in CHANGES.into_iter().chain([&["ls", "--json"][..], &["diff", "--json", "hurt"]]) {
        let ran = lab.skep(line).run();
        assert_ne!(ran.code(), 0, "{what}: {}", ran.describe());
        assert_eq!(ran.problem()["code"], "store", "{what}: {}", ran.describe());
    }
    // Neither does a server start.
    let started = lab.skep(["serve", "--listen", "127.0.0.1:0", "--token-file"]);
    let started = started.arg(lab.token_file()).within(30).run();
    assert_eq!(started.code(), 1, "{what}: {}", started.describe());
    lab.tree().assert_equals(&before, what);
    kept.assert_work_is_there(what);
}

#[test]
fn store_2_a_database_that_is_cut_empty_or_without_its_log_is_refused_and_kept() {
    for_both(|lab| {
        prepare(lab);
        // All in the file, so that damage to it is damage to the rows; then a log with more.
        by_python(lab, "SELECT count(*) FROM meta");
        lab.skep(["ls"]).run().ok();
        let kept = Kept::of(lab);
        let size = fs::metadata(database(lab)).unwrap().len() as usize;
        for cut in [0, 100, 4096, size / 2] {
            let bytes = kept.with("skep.db", |bytes| bytes.truncate(cut));
            is_refused(&kept, &format!("cut to {cut}"));
            assert_eq!(fs::read(database(lab)).unwrap(), bytes, "cut to {cut}: it was touched");
        }
        kept.with("skep.db", |bytes| bytes.fill(b'x'));
        is_refused(&kept, "foreign");
        // A copy without its log is an older state.
        kept.with("skep.db-wal", Vec::clear);
        is_refused(&kept, "an empty log");
        fs::remove_file(lab.state.join("skep.db-wal")).unwrap();
        is_refused(&kept, "no log");
        lab.skep(["ls"]).run().exits(1).says("its log").says("skep.db-begun");
        // The controls: the whole, the index of the log missing, the log folded by another program.
        kept.put_back();
        assert_eq!(lab.sandboxes().len(), 2);
        kept.put_back();
        fs::remove_file(lab.state.join("skep.db-shm")).unwrap();
        assert_eq!(lab.sandboxes().len(), 2);
        kept.put_back();
        by_python(lab, "SELECT count(*) FROM meta");
        assert!(!lab.state.join("skep.db-wal").exists());
        assert_eq!(lab.sandboxes().len(), 2);
        // Whoever means the older state says so. What it does not know stays, and is named.
        kept.put_back();
        lab.create("newest");
        fs::remove_file(lab.state.join("skep.db-wal")).unwrap();
        fs::remove_file(lab.state.join("skep.db-begun")).unwrap();
        let names: Vec<_> = lab.sandboxes().iter().map(|one| one["name"].clone()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert_eq!(entries(&lab.state.join("sandboxes")).len(), 3);
        let found = lab.skep(["doctor", "--json"]).run().ok().json();
        let store = found.as_array().unwrap().iter().find(|one| one["name"] == "store").unwrap();
        assert_eq!(store["ok"], false);
        assert!(store["reason"].as_str().unwrap().contains("of no known sandbox"), "{store}");
        lab.skep(["gc", "--older-than", "1ms"]).run().ok();
        assert_eq!(entries(&lab.state.join("sandboxes")).len(), 3);
        crate::harness::outside::kill_all(&lab.root);
        for left in entries(&lab.state.join("sandboxes")) {
            let id = left.file_name().unwrap().to_str().unwrap().to_owned();
            if !lab.sandboxes().iter().any(|one| one["id"] == id.as_str()) {
                fs::remove_dir_all(left).unwrap();
                crate::harness::outside::cgroups_named(&id).iter().for_each(|group| {
                    let _ = fs::remove_dir(group);
                });
            }
        }
    });
}

#[test]
fn store_2_a_log_that_cannot_be_read_and_a_database_that_is_gone_are_no_beginning() {
    for_both(|lab| {
        prepare(lab);
        by_python(lab, "SELECT count(*) FROM meta");
        lab.skep(["ls"]).run().ok();
        let kept = Kept::of(lab);
        let without_index = || fs::remove_file(lab.state.join("skep.db-shm")).unwrap();
        kept.with("skep.db-wal", |bytes| bytes[17] ^= 1);
        without_index();
        is_refused(&kept, "a wrong byte in the head of the log");
        kept.with("skep.db-wal", |bytes| bytes.truncate(32));
        without_index();
        is_refused(&kept, "a log of nothing but its head");
        for also in [&["skep.db"][..], &["skep.db", "skep.db-wal", "skep.db-shm"]] {
            kept.put_back();
            also.iter().for_each(|name| fs::remove_file(lab.state.join(name)).unwrap());
            is_refused(&kept, &format!("without {also:?}"));
            lab.skep(["ls"]).run().exits(1).says("is gone").says("begin anew");
        }
        // The control, and what may stand in the note without meaning anything.
        kept.put_back();
        assert_eq!(lab.sandboxes().len(), 2);
        kept.with("skep.db-begun", Vec::clear);
        assert_eq!(lab.sandboxes().len(), 2);
        kept.assert_work_is_there("at the end");
    });
}

#[test]
fn a_server_whose_log_cannot_be_written_serves_on() {
    for_both(|lab| {
        let (skep, state) = (lab.binary.display(), lab.state.display());
        let socket = lab.state.join("full.sock");
        let script = format!(
            "{skep} --home {state} serve --listen unix:{socket} > /dev/null 2> /dev/full & server=$!
             for try in $(seq 200); do
               {skep} --host unix://{socket} ls > /dev/null 2>&1 && {{ kill $server; wait $server; exit 0; }}
               sleep 0.05
             done
             kill $server; exit 1",
            socket = socket.display()
        );
        lab.program("sh").args(["-c", &script]).within(60).run().ok();
    });
}

/// A damaged row is found at a start: the server serves the rest to be read, and changes nothing.
#[test]
fn store_2_what_is_damaged_is_served_to_be_read_and_not_changed() {
    for_both(|lab| {
        prepare(lab);
        let whole = lab.diff("sound")["digest"].clone();
        let id = lab.sandbox("hurt")["id"].as_str().unwrap().to_owned();
        // Its columns are sound, so that only the checksum can tell.
        let kept = Kept::of(lab);
        by_python(
            lab,
            "UPDATE sandboxes SET value = replace(value, 'hurt', 'hUrt') WHERE name = 'hurt'",
        );
        for line in CHANGES {
            let ran = lab.skep(line).run();
            assert_ne!(ran.code(), 0, "{}", ran.describe());
            assert_eq!(ran.problem()["code"], "store", "{}", ran.describe());
        }
        let listed = lab.skep(["ls", "--all", "--json"]).run().ok().says("is damaged").says(&id);
        assert_eq!(listed.json().as_array().unwrap().len(), 1);
        let looked = lab.skep(["diff", "sound", "--json"]).run().ok().says("is damaged").json();
        assert_eq!(looked["digest"], whole);
        lab.skep(["diff", "hurt", "--json"]).run().exits(1).says("is damaged");
        let found = lab.skep(["doctor", "--json"]).run().ok().json();
        let store = found.as_array().unwrap().iter().find(|one| one["name"] == "store").unwrap();
        assert_eq!(store["ok"], false, "{store}");
        assert!(store["reason"].as_str().unwrap().contains(&id), "{store}");

        let server = lab.serve(&[]);
        assert!(lab.server_log().contains("to be read only"), "{}", lab.server_log());
        let list = server.get("/v1/sandboxes").is(200).json();
        assert_eq!(list["items"].as_array().unwrap().len(), 1, "{list}");
        assert_eq!(server.get("/v1/sandboxes/sound/changes").is(200).json()["digest"], whole);
        let asked: [(&str, &str, Value); 5] = [
            ("POST", "/v1/sandboxes", json!({ "project": lab.project })),
            ("POST", "/v1/sandboxes/sound/approve", json!({})),
            ("POST", "/v1/sandboxes/sound/execs", json!({ "command": ["true"] })),
            ("DELETE", "/v1/sandboxes/sound?discard=true", json!({})),
            ("POST", "/v1/gc", json!({ "older_than": "1ms", "dry_run": false })),
        ];
        for (method, path, body) in asked {
            let refused = server.send(method, path, &body, &[]).is(500).json();
            assert_eq!(refused["code"], "store", "{refused}");
            assert!(refused["message"].as_str().unwrap().contains(&id), "{refused}");
        }
        assert_eq!(server.get("/health/ready").status, 503);
        server.stop();
        kept.assert_work_is_there("a damaged row");
        // The control: put back, everything can be changed again.
        kept.put_back();
        let server = lab.serve(&[]);
        server.post("/v1/sandboxes/hurt/approve", &json!({})).is(200);
        server.get("/health/ready").is(200);
        server.stop();
    });
}

/// Of each kind one. Every one of them is refused, and says why.
fn changes_are_refused(lab: &Lab, server: &Server<'_>, what: &str) {
    let asked: [(&str, &str, Value); 5] = [
        ("POST", "/v1/sandboxes", json!({ "project": lab.project })),
        ("POST", "/v1/sandboxes/sound/approve", json!({})),
        ("POST", "/v1/sandboxes/sound/execs", json!({ "command": ["true"] })),
        ("DELETE", "/v1/sandboxes/sound?discard=true", json!({})),
        ("POST", "/v1/gc", json!({ "older_than": "1ms", "dry_run": false })),
    ];
    for (method, path, body) in asked {
        let refused = server.send(method, path, &body, &[]).is(500).json();
        assert_eq!(refused["code"], "store", "{what}: {refused}");
        assert!(refused["message"].as_str().unwrap().contains("is damaged"), "{what}: {refused}");
    }
    assert_eq!(server.get("/health/ready").status, 503, "{what}");
    server.get("/health/live").is(200);
}

/// A row is damaged while a server runs: by a write that everybody sees, or behind the memory of everybody,
/// in a table that is hardly ever read.
#[test]
fn store_2_damage_under_a_running_server_is_noticed_and_nothing_is_changed_any_more() {
    let spoilt: [(&str, &[&str]); 2] = [
        (
            "a row",
            &["UPDATE sandboxes SET value = replace(value, 'hurt', 'hUrt') WHERE name = 'hurt'"],
        ),
        ("the file", &["PRAGMA wal_checkpoint(TRUNCATE)"]),
    ];
    for (what, statements) in spoilt {
        for_both(|lab| {
            prepare(lab);
            let whole = lab.diff("sound")["digest"].clone();
            let server = lab.serve(&[]);
            server.get("/health/ready").is(200);
            let kept = Kept::of(lab);
            statements.iter().for_each(|statement| by_python(lab, statement));
            if what == "the file" {
                // An event: nobody reads it again but who reads everything.
                let bytes = fs::read(database(lab)).unwrap();
                let text = b"{\"driver\":\"overlay";
                let found = |at: &usize| bytes[*at..].starts_with(text);
                let places: Vec<_> = (0..bytes.len()).filter(found).collect();
                assert!(!places.is_empty(), "it was not folded");
                let file = fs::File::options().write(true).open(database(lab)).unwrap();
                for at in places {
                    file.write_all_at(b"D", at as u64 + 2).unwrap();
                }
            }
            // Nothing is asked meanwhile: whoever writes to a page has it sound in its memory.
            wait_for("the damage to be noticed", 30, || {
                lab.server_log().contains("the store is damaged").then_some(())
            });
            changes_are_refused(lab, &server, what);
            assert_eq!(server.get("/v1/sandboxes/sound/changes").is(200).json()["digest"], whole);
            // Neither does any other command, whatever it would have read.
            lab.skep(["create", "new", "--json"]).run().says("damaged");
            kept.assert_work_is_there(what);
            server.stop();
            kept.put_back();
            let server = lab.serve(&[]);
            server.post("/v1/sandboxes/hurt/approve", &json!({})).is(200);
            server.get("/health/ready").is(200);
            server.stop();
        });
    }
}

/// What runs goes on, and its records are kept; what is known to be damaged is gone past by no command.
#[test]
fn store_2_no_exec_and_no_record_goes_past_a_damaged_store() {
    for_both(|lab| {
        prepare(lab);
        let exec = |script: &str| lab.skep(["exec", "sound", "--", "sh", "-c", script]).run();
        // From now on the keeper is asked without the store.
        exec("echo 1 > one").ok();
        lab.skep(["ls"]).run().ok();
        let kept = Kept::of(lab);
        by_python(
            lab,
            "UPDATE sandboxes SET value = replace(value, 'hurt', 'hUrt') WHERE name = 'hurt'",
        );
        // Nobody has met the damage yet. The record waits, and is touched by nobody.
        exec("echo 2 > two").ok();
        let news = || entries(&lab.state.join("news"));
        let database = || fs::read(database(lab)).unwrap();
        let (waiting, before) = (news(), database());
        assert_eq!(waiting.len(), 1);
        for line in [&["ls", "--all"][..], &["ps", "sound"], &["logs", "sound"]] {
            lab.skep(line).run().says("is damaged");
            assert_eq!((news(), database()), (waiting.clone(), before.clone()), "{line:?}");
        }
        // Now it is known.
        let refused = lab.skep(["exec", "-d", "--json", "sound", "--", "touch", "three"]).run();
        assert_eq!(refused.problem()["code"], "store", "{}", refused.describe());
        exec("echo 3 > three").exits(125).says("is damaged");
        assert_eq!((news(), database()), (waiting, before));
        let looked = lab.skep(["diff", "sound", "--json"]).run().ok().json();
        let paths: Vec<_> = looked["changes"].as_array().unwrap().iter().collect();
        let paths: Vec<_> = paths.iter().map(|one| one["path"].as_str().unwrap()).collect();
        assert_eq!(paths, ["one", "sound.txt", "two"]);
        // Put back, with a note that it was damaged: it is read as a whole, and everything goes on.
        let doubt = lab.state.join("skep.db-doubt");
        let note = fs::read(&doubt).unwrap();
        kept.put_back();
        kept.write(&doubt, &note);
        exec("echo 4 > four").ok();
        assert!(!doubt.exists());
        exec("echo 5 > five").ok();
        let listed = lab.skep(["ps", "sound", "--json"]).run().ok().json();
        let scripts: Vec<_> =
            listed.as_array().unwrap().iter().map(|one| one.to_string()).collect();
        for number in ["two", "four", "five"] {
            assert!(scripts.iter().any(|one| one.contains(number)), "{number}: {scripts:?}");
        }
    });
}

/// A flipped bit anywhere is an error or changes nothing: never another answer.
#[test]
fn store_2_a_flipped_bit_is_said_or_changes_no_answer() {
    for_both(|lab| {
        prepare(lab);
        let answer = || {
            let ran = lab.skep(["diff", "hurt", "--json"]).run();
            (ran.code() == 0).then(|| ran.json()["digest"].clone()).ok_or(ran)
        };
        let whole = answer().unwrap();
        let kept = Kept::of(lab);
        let mut said = 0;
        for name in ["skep.db", "skep.db-wal"] {
            let size = kept.files.iter().find(|file| file.0.ends_with(name)).unwrap().1.len();
            for step in 0..12 {
                kept.put_back();
                let at = (step * 7_919 + step * step * 4_099) % size;
                let file = fs::File::options().read(true).write(true).open(lab.state.join(name));
                let (file, mut byte) = (file.unwrap(), [0]);
                file.read_exact_at(&mut byte, at as u64).unwrap();
                file.write_all_at(&[byte[0] ^ 0x10], at as u64).unwrap();
                match answer() {
                    Ok(digest) => assert_eq!(digest, whole, "{name}, byte {at}"),
                    // What stands behind it in the log is not believed: then it is not known, or not so far.
                    Err(ran) => {
                        let code = ran.problem()["code"].clone();
                        let fine = code == "store" || name.ends_with("-wal");
                        assert!(fine, "{name}, byte {at}: {}", ran.describe());
                        said += 1;
                    }
                }
                kept.assert_work_is_there(&format!("{name}, byte {at}"));
            }
        }
        assert!(said > 0, "no bit mattered");
        kept.put_back();
    });
}
