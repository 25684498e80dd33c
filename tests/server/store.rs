//! The store under the binary and under a server: a full disk, a file that is taken away, deaths.

use crate::harness::{Lab, Who, entries, for_both, for_each, long, wait_for};
use serde_json::json;
use std::io::{BufRead as _, BufReader, Read as _};
use std::time::{Duration, Instant};

/// Each kind of commit against a full disk, in the binary. The disk is a small tmpfs in a mount
/// namespace of the script's own.
#[test]
fn store_1_a_full_disk_is_typed_and_loses_nothing() {
    for_each([Who::root()], |lab| {
        lab.write("a", "a\n");
        let before = lab.tree();
        let script = r#"
set -u
state=$1; skep=$2; export SKEP_HOME=$state
mkdir -p "$state"; mount -t tmpfs -o size=24m,mode=700 none "$state" || exit 90
fill() { dd if=/dev/zero of="$state/filler" bs=4k 2>/dev/null; dd if=/dev/zero of="$state/filler2" bs=1 count=4096 2>/dev/null; }
free() { rm -f "$state/filler" "$state/filler2"; }
"$skep" create s >/dev/null || exit 91
"$skep" exec s -- sh -c 'echo b > b' || exit 92
"$skep" exec -d s -- sh -c 'until [ -e /tmp/free ]; do sleep 0.1; done; echo went on' > "$state.exec" || exit 93
digest=$("$skep" diff s --json | jq -r .digest)
for words in 'create t' 'exec s -- true' 'snapshot s label' 'approve s' 'fork s --name f'; do
  fill
  "$skep" ${words%% *} --json ${words#* } >/dev/null 2>"$state.err"; code=$?
  free
  echo "full: $words: $code $(grep -o '"code":"[a-z_]*"' "$state.err" | head -1)"
  [ "$("$skep" diff s --json | jq -r .digest)" = "$digest" ] || exit 94
done
"$skep" ls --all --json | jq -r '.[].name' | sort | tr '\n' ' '; echo
"$skep" exec s -- touch /tmp/free || exit 99
"$skep" logs -f "$(cat "$state.exec")"
"$skep" create t >/dev/null || exit 95
"$skep" exec t -- true || exit 96
fill; "$skep" rm --discard t || exit 97; free
"$skep" rm --discard s || exit 98
"$skep" ls --all --json | jq length
"#;
        let state = lab.root.join("small");
        let run = lab
            .program("unshare")
            .args(["-m", "--propagation", "private", "sh", "-c", script, "sh"])
            .arg(&state)
            .arg(&lab.binary)
            .within(120)
            .run()
            .ok();
        let said = run.text();
        for line in said.lines().filter(|line| line.starts_with("full:")) {
            let fine = line.ends_with(": 0 ");
            assert!(fine || line.contains("no_space"), "{line}\n{}", run.describe());
        }
        assert!(said.lines().filter(|line| line.contains("no_space")).count() > 2, "{said}");
        assert!(said.contains("went on"), "{said}");
        assert!(said.ends_with("\n0"), "{said}");
        lab.tree().assert_equals(&before, "an approval got half way");
    });
}

/// What a full disk interrupts under a server, whose workers live on: it can be asked again, and nothing is
/// left half made. The twin of `store_3_…` with PostgreSQL.
#[test]
fn store_1_what_a_full_disk_interrupts_can_be_asked_again_and_leaves_nothing() {
    for_each([Who::root()], |lab| {
        let python =
            ["-m", "--propagation", "private", "python3", "-c", include_str!("full_disk.py")];
        let state = lab.root.join("small");
        let call = lab.program("unshare").args(python).arg(&state).arg(&lab.binary);
        let run = call.arg(&lab.project).within(180).run();
        let log = std::fs::read_to_string(lab.root.join("small.log")).unwrap_or_default();
        assert_eq!(run.code(), 0, "{}\n{log}", run.describe());
        let said = run.text();
        assert!(!said.contains("met 0 of"), "no request met a full disk: {said}");
        assert!(said.contains("left 0\nended 0"), "{said}");
    });
}

/// The database is taken away, replaced and shut while a server runs: nothing has an effect until it
/// is back.
#[test]
fn store_6_a_database_that_is_taken_away_is_noticed_by_a_server() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let database = lab.state.join("skep.db");
        let directories = || entries(&lab.state.join("sandboxes")).len();
        let create = || server.post("/v1/sandboxes", &json!({ "project": lab.project }));
        // The whole directory under another name: nothing is done there, and no other is made.
        let moved = lab.root.join("moved");
        std::fs::rename(&lab.state, &moved).unwrap();
        let stop = || server.post("/v1/sandboxes/s/stop", &json!({}));
        for refused in [create(), stop(), create()] {
            assert!(refused.status >= 500, "{refused:?}");
            assert!(["store", "io"].contains(&refused.json()["code"].as_str().unwrap()));
        }
        assert!(!lab.state.exists(), "another state directory was made");
        std::fs::rename(&moved, &lab.state).unwrap();
        assert_eq!(directories(), 1);
        server.script("s", "true");
        let away = lab.root.join("away.db");
        std::fs::rename(&database, &away).unwrap();
        for _ in 0..3 {
            let refused = create();
            assert!(refused.status >= 500, "{refused:?}");
            assert_eq!(refused.json()["code"], "store");
        }
        assert_eq!(directories(), 1, "something was made that nobody remembers");
        // Another file in its place is not the old one.
        std::fs::write(&database, b"not a database").unwrap();
        lab.who.own(&database);
        assert!(create().status >= 500);
        assert_eq!(std::fs::read(&database).unwrap(), b"not a database");
        std::fs::rename(&away, &database).unwrap();
        server.stop();
        let server = lab.serve(&[]);
        assert_eq!(
            server.get("/v1/sandboxes").is(200).json()["items"].as_array().unwrap().len(),
            1
        );
        server.script("s", "true");
        server.stop();
    });
}

/// Shut by its mode under a server: nothing has an effect, neither for those who have it open nor for root.
#[test]
fn store_6_a_database_that_is_shut_is_noticed_by_everybody() {
    for_both(|lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let database = lab.state.join("skep.db");
        let mode = |mode| {
            std::fs::set_permissions(&database, std::os::unix::fs::PermissionsExt::from_mode(mode))
        };
        let create = || server.post("/v1/sandboxes", &json!({ "project": lab.project }));
        mode(0o000).unwrap();
        for _ in 0..3 {
            let refused = create().is(500).json();
            assert_eq!(refused["code"], "store", "{refused}");
        }
        assert_eq!(server.get("/v1/sandboxes").status, 500);
        for line in [&["ls", "--json"][..], &["create", "--json", "t"], &["rm", "--json", "s"]] {
            let ran = lab.skep(line).run().exits(1);
            assert_eq!(ran.problem()["code"], "store", "{}", ran.describe());
        }
        assert_eq!(entries(&lab.state.join("sandboxes")).len(), 1);
        mode(0o600).unwrap();
        create().is(201);
        assert_eq!(lab.sandboxes().len(), 2);
        server.stop();
    });
}

/// Another tool holds the lock for a long time (minutes, in the long run): who wants to change something is
/// told to come back, who looks is answered, and nothing is left of what was refused.
#[test]
fn heavy_store_6_a_lock_held_by_another_tool_is_waited_for_and_then_said() {
    for_both(|lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let exec = server.post("/v1/sandboxes/s/execs", &json!({ "command": ["sleep", "600"] }));
        let exec = exec.is(201).json()["id"].as_str().unwrap().to_owned();
        let hold = "import sqlite3, sys
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute('BEGIN IMMEDIATE'); print('held', flush=True); sys.stdin.read()";
        let python = lab.program("python3").args(["-c", hold]).arg(lab.state.join("skep.db"));
        let mut holder = python.spawn();
        let mut line = [0; 4];
        std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut line).unwrap();
        let end = Instant::now() + Duration::from_secs(if long() { 150 } else { 15 });
        let body = json!({ "project": lab.project });
        while Instant::now() < end {
            let asked = ["create", "--json", "t"];
            std::thread::scope(|scope| {
                let by_server = scope.spawn(|| server.post("/v1/sandboxes", &body));
                let ran = lab.skep(asked).run().exits(1);
                assert_eq!(ran.problem()["code"], "busy", "{}", ran.describe());
                assert_eq!(ran.problem()["retryable"], true);
                let refused = by_server.join().unwrap().is(503);
                assert_eq!(refused.json()["code"], "busy", "{refused:?}");
                assert!(refused.header("retry-after").is_some());
            });
            assert_eq!(server.get("/v1/sandboxes").is(200).json()["items"][0]["name"], "s");
            assert_eq!(server.get(&format!("/v1/execs/{exec}")).is(200).json()["running"], true);
            assert_eq!(entries(&lab.state.join("sandboxes")).len(), 1);
        }
        drop(holder.stdin.take());
        holder.wait().unwrap();
        server.post("/v1/sandboxes", &body).is(201);
        lab.create("t");
        assert_eq!(lab.sandboxes().len(), 3);
        server.stop();
    });
}

/// A command has run and its exit code is told; what could not be written down of it is said as well, and by
/// whom it will be. A store that somebody holds for a moment is waited for.
#[test]
fn heavy_store_6_a_run_whose_store_is_held_at_its_end_says_what_is_not_written() {
    for_both(|lab| {
        lab.write("a", "a\n");
        let hold = || {
            lab.skep(["ls"]).run().ok();
            let script = "import sqlite3, sys, time
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute('BEGIN IMMEDIATE'); print('held', flush=True); time.sleep(600)";
            let python = lab.program("python3").args(["-c", script]);
            let mut holder = python.arg(lab.state.join("skep.db")).spawn();
            holder.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
            // Root's sqlite gives the log to its owner: only now it looks as it will.
            lab.skep(["ls"]).run().ok();
            holder
        };
        let release = |mut holder: std::process::Child| {
            holder.kill().unwrap();
            holder.wait().unwrap();
        };
        // Longer than one question to the store waits.
        let holder = hold();
        let mut run = lab.run_script("echo b > b; exit 3").spawn();
        let mut said = BufReader::new(run.stderr.take().unwrap()).lines().map(Result::unwrap);
        let waits = said.find(|line| line.contains("the store is waited for"));
        assert!(waits.is_some(), "it does not say that it waits");
        release(holder);
        assert!(said.any(|line| line.contains("1 file changed")));
        assert_eq!(run.wait().unwrap().code(), Some(3));
        let row = lab.sandboxes().pop().unwrap();
        assert_eq!(row["state"], "stopped");
        lab.skep(["rm", "--discard", row["name"].as_str().unwrap()]).run().ok();
        let holder = hold();
        let (said, read) = std::thread::scope(|scope| {
            let said = scope.spawn(|| lab.run_script("echo b > b").run().ok());
            let json = ["run", "--json", "--", "sh", "-c", "echo c > c; echo out"];
            let read = scope.spawn(move || lab.skep(json).run().ok());
            (said.join().unwrap(), read.join().unwrap())
        });
        let words =
            ["could not be written down for sandbox", "hint: its changes are kept", " is kept"];
        for word in words {
            assert!(said.errors().contains(word), "{}", said.describe());
        }
        let document = read.json();
        assert_eq!(document["stdout"], "out\n");
        assert_eq!(document["exit_code"], 0);
        assert_eq!(document["unsettled"]["code"], "busy", "{document:#}");
        assert_eq!(document["unsettled"]["retryable"], true);
        assert!(document.get("changes").is_none());
        wait_for("nothing to be left of them", 20, || lab.keepers().is_empty().then_some(()));
        release(holder);
        // What was said comes true with the next command.
        for (row, file) in lab.sandboxes().iter().zip(["c", "b"]) {
            assert_eq!(row["state"], "stopped", "{row}");
            let name = row["name"].as_str().unwrap();
            assert_eq!(lab.diff(name)["totals"]["files"], 1, "{file}");
            let execs = lab.skep(["ps", name, "--json"]).run().ok().json();
            assert_eq!(execs[0]["exit_code"], 0, "{execs:#}");
            lab.skep(["rm", "--discard", name]).run().ok();
        }
        lab.audit_leftovers();
    });
}

/// Killed at every step of exec, delete and gc: what was asked for is there or it is not, unreviewed
/// work is, and nothing is left over.
#[test]
fn crash_3_exec_delete_and_gc_killed_at_every_step() {
    for_both(|lab| {
        let fail = |words: &[&str], point: &str| {
            let ran = lab.skep(words).env("SKEP_FAILPOINT", format!("{point}=kill")).run();
            assert_ne!(ran.code(), 0, "{point}: {}", ran.describe());
        };
        let digest = |lab: &Lab| lab.diff("s")["digest"].clone();
        lab.create("s");
        lab.exec_script("s", "echo work > work").run().ok();
        let whole = digest(lab);
        for point in ["exec.row", "exec.started"] {
            // As JSON, because that still begins in the store.
            fail(&["exec", "--json", "s", "--", "true"], point);
            lab.exec_script("s", "true").run().ok();
            wait_for("every exec to have an end", 30, || {
                let execs = lab.skep(["ps", "s", "--json"]).run().ok().json();
                let ended = execs.as_array().unwrap().iter().all(|one| !one["reason"].is_null());
                ended.then_some(())
            });
            assert_eq!(digest(lab), whole, "{point}");
        }
        lab.skep(["stop", "s"]).run().ok();
        // Started, and nobody could write down by whom it is held: it can be started, and stopped.
        fail(&["start", "s"], "start.keeper");
        lab.skep(["start", "s"]).run().ok();
        assert_eq!(lab.keepers().len(), 1, "two hold it");
        lab.exec_script("s", "true").run().ok();
        lab.skep(["stop", "s"]).run().ok();
        fail(&["start", "s"], "start.keeper");
        lab.skep(["stop", "s"]).run().ok();
        assert_eq!(lab.keepers().len(), 0, "somebody holds it still");
        fail(&["gc", "--older-than", "1ms", "--archive"], "gc.archive");
        assert_eq!(digest(lab), whole, "gc.archive");
        lab.create("t");
        lab.exec_script("t", "echo more > more").run().ok();
        fail(&["rm", "--discard", "t"], "delete.row");
        let names: Vec<_> = lab.sandboxes().iter().map(|one| one["name"].clone()).collect();
        assert_eq!(names, [json!("s")]);
        assert_eq!(lab.keepers().len(), 0, "what was being deleted still runs");
        assert_eq!(entries(&lab.state.join("sandboxes")).len(), 1);
    });
}
