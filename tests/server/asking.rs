//! What is asked and answered.

use crate::harness::postgres::Postgres;
use crate::harness::{Server, Who, for_both, for_each, wait_for};
use serde_json::{Value, json};

fn keyed(server: &Server<'_>, key: &str, body: &Value) -> crate::harness::Reply {
    server.send("POST", "/v1/sandboxes", body, &["-H", &format!("Idempotency-Key: {key}")])
}

#[test]
fn api_9_a_key_acts_once() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let body = json!({ "project": lab.project });
        let first = keyed(&server, "k1", &body).is(201).json();
        assert_eq!(keyed(&server, "k1", &body).is(201).json()["id"], first["id"]);
        let other = json!({ "project": lab.project, "name": "other" });
        let reused = keyed(&server, "k1", &other).is(422).json();
        assert_eq!(reused["code"], "key_reused");
        assert!(reused["message"].as_str().unwrap().contains("key `k1`"), "{reused}");
        let ids: Vec<_> = std::thread::scope(|scope| {
            let asked: Vec<_> = (0..50)
                .map(|_| scope.spawn(|| keyed(&server, "k2", &body).is(201).json()["id"].clone()))
                .collect();
            asked.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        // Other requests too: an exec that is asked for twice runs once.
        let run = json!({ "command": ["sh", "-c", "echo x >> ran"] });
        let path = format!("/v1/sandboxes/{}/execs", first["id"].as_str().unwrap());
        let exec = |key: &str| {
            server.send("POST", &path, &run, &["-H", &format!("Idempotency-Key: {key}")])
        };
        let one = exec("e1").is(201).json()["id"].clone();
        let again = exec("e1").is(200 + 1);
        assert_eq!(again.header("idempotency-replayed").unwrap(), "true");
        assert_eq!(again.json()["id"], one);
        server.kill();
        let server = lab.serve(&[]);
        assert_eq!(keyed(&server, "k1", &body).is(201).json()["id"], first["id"]);
        assert_eq!(server.get("/v1/sandboxes").json()["items"].as_array().unwrap().len(), 2);
        for bad in ["", &"x".repeat(300), "a b"] {
            let reply = keyed(&server, bad, &body);
            // An empty header is no header to curl.
            assert!(reply.status == 400 || bad.is_empty(), "{bad}: {}", reply.status);
        }
        server.stop();
    });
}

/// Puts the end of all keys into the past, as a day would.
const EXPIRE: &str = "import sqlite3, sys
store = sqlite3.connect(sys.argv[1])
assert store.execute('UPDATE idempotency_keys SET expires_us = 1').rowcount == 2
store.commit()";

#[test]
fn api_9_a_key_that_has_expired_acts_again() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let body = json!({ "project": lab.project });
        let first = keyed(&server, "k", &body).is(201).json()["id"].clone();
        let path = format!("/v1/sandboxes/{}/execs", first.as_str().unwrap());
        let run = json!({ "command": ["sh", "-c", "echo x >> ran"], "wait": true });
        let exec = || server.send("POST", &path, &run, &["-H", "Idempotency-Key: e"]).is(200);
        exec();
        assert_eq!(exec().header("idempotency-replayed").unwrap(), "true");
        lab.program("python3").args(["-c", EXPIRE]).arg(lab.state.join("skep.db")).run().ok();
        let again = keyed(&server, "k", &body).is(201);
        assert_ne!(again.json()["id"], first);
        assert!(again.header("idempotency-replayed").is_none());
        assert!(exec().header("idempotency-replayed").is_none());
        let ran = server.get(&path.replace("/execs", "/files?path=ran")).is(200);
        assert_eq!(ran.body, b"x\nx\n");
        // An expired key belongs to whoever uses it next, with whatever body.
        let other = json!({ "project": lab.project, "name": "other" });
        keyed(&server, "k", &other).is(422);
        server.stop();
    });
}

#[test]
fn api_10_versions_and_states() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let reply = server.get("/v1/sandboxes/s");
        let etag = reply.header("etag").unwrap();
        assert_eq!(etag, format!("\"{}\"", reply.json()["version"]));
        let patch = |etag: &str, value: &str| {
            let body = json!({ "labels": { "team": value } });
            let header = format!("If-Match: {etag}");
            server.send("PATCH", "/v1/sandboxes/s", &body, &["-H", &header])
        };
        let patched = patch(&etag, "bees").is(200);
        assert_eq!(patched.json()["labels"]["team"], "bees");
        assert_eq!(patch(&etag, "ants").is(412).json()["code"], "stale_version");
        assert_eq!(server.get("/v1/sandboxes/s").json()["labels"]["team"], "bees");
        patch("nonsense", "x").is(400);
        let list = server.get("/v1/sandboxes?label=team%3Dbees").json();
        assert_eq!(list["items"].as_array().unwrap().len(), 1);
        server.post("/v1/sandboxes/s/stop", &json!({})).is(200);
        assert_eq!(
            server.post("/v1/sandboxes/s/freeze", &json!({})).is(409).json()["code"],
            "illegal_state"
        );
        // Any number of moves at once: every answer is a state of the table, or a refusal.
        std::thread::scope(|scope| {
            for word in ["start", "stop", "freeze", "thaw"].into_iter().cycle().take(40) {
                let server = &server;
                scope.spawn(move || {
                    let path = format!("/v1/sandboxes/s/{word}");
                    let reply = server.post(&path, &json!({}));
                    assert!(matches!(reply.status, 200 | 409), "{word}: {reply:?}");
                });
            }
        });
        let state = server.get("/v1/sandboxes/s").is(200).json()["state"].clone();
        assert!(["ready", "stopped", "frozen"].contains(&state.as_str().unwrap()), "{state}");
        server.stop();
    });
}

#[test]
fn a_policy_changes_as_far_as_it_can() {
    for_both(|lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let patch = |body: &Value| server.send("PATCH", "/v1/sandboxes/s", body, &[]);
        let shown = || server.get("/v1/sandboxes/s").is(200).json();
        // At any moment.
        let live = patch(&json!({ "labels": { "team": "bees" }, "ttl": "2h" })).is(200).json();
        assert_eq!(
            (&live["labels"]["team"], &live["labels"]["skep.ttl"]),
            (&json!("bees"), &json!("7200"))
        );
        // Not while it runs, by name, and nothing of it.
        let both =
            json!({ "limits": { "pids": 77, "memory": "64M" }, "labels": { "team": "ants" } });
        let refused = patch(&both).is(409).json();
        assert_eq!(refused["code"], "illegal_state");
        assert_eq!(refused["details"]["needs_restart"], json!(["limits.memory", "limits.pids"]));
        assert_eq!(shown()["labels"]["team"], "bees");
        assert_eq!(
            patch(&json!({ "network": "allow" })).is(409).json()["details"]["needs_restart"],
            json!(["network"])
        );
        patch(&json!({ "network": "none" })).is(200);
        server.post("/v1/sandboxes/s/stop", &json!({})).is(200);
        patch(&both).is(200);
        let ended = patch(&json!({ "ttl": null })).is(200).json();
        assert!(ended["labels"].get("skep.ttl").is_none(), "{ended}");
        // In force after the next start, asked from inside: 77 processes, and no more.
        let forks = "i=0; while [ $i -lt 100 ]; do sleep 20 & i=$((i+1)); done";
        let body = json!({ "command": ["sh", "-c", forks], "wait": true });
        let ran = server.post("/v1/sandboxes/s/execs", &body);
        match ran.status {
            200 => {
                let limits = &ran.json()["limits_hit"];
                assert!(limits.as_array().unwrap().contains(&json!("pids")), "{limits}");
                assert_eq!(shown()["enforcement"]["pids"]["enforced"], true);
            }
            // Asked for, and not to be had here: refused.
            _ => assert_eq!(ran.is(422).json()["code"], "missing_capability"),
        }
        assert_eq!(shown()["policy"]["limits"]["pids"], 77);
        for bad in [
            json!({ "limits": { "pids": 0 } }),
            json!({ "ttl": "soon" }),
            json!({ "network": "all" }),
            json!({ "policy": {} }),
        ] {
            patch(&bad).is(400);
        }
        let own = patch(&json!({ "labels": { "skep.ttl": "1" } })).is(400).json();
        assert!(own["hint"].to_string().contains("`skep.`"), "{own}");
        server.stop();
    });
}

#[test]
fn api_11_a_limit_is_a_limit_or_an_error() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        for limits in [
            json!({ "memory": 0 }),
            json!({ "memory": "-1G" }),
            json!({ "memory": "lots" }),
            json!({ "memory": 1_000_000_000 }),
            json!({ "pids": -1 }),
            json!({ "pids": 0 }),
            json!({ "cpus": "two" }),
            json!({ "cpus": 0 }),
            json!({ "cpus": 1e300 }),
            json!({ "cpus": 1e-9 }),
            json!({ "pids": 99_999_999_999_u64 }),
            json!({ "open_files": 1 }),
            json!({ "memroy": "1G" }),
        ] {
            let body = json!({ "project": lab.project, "limits": limits });
            let reply = server.post("/v1/sandboxes", &body).is(400);
            assert_eq!(reply.json()["code"], "usage", "{limits}");
        }
        for bad in ["", "[]", "{", "null", r#"{"nonsense":1}"#, r#"{"project":"relative"}"#] {
            let json = ["-X", "POST", "-H", "Content-Type: application/json", "-d", bad];
            let status = server.with(crate::harness::TOKEN, &json, "/v1/sandboxes").status;
            assert_eq!(status, 400, "{bad}");
        }
        let huge = lab.write(lab.root.join("huge"), vec![b' '; 5 << 20]);
        let from = format!("@{}", huge.display());
        let json = ["-X", "POST", "-H", "Content-Type: application/json", "--data-binary", &from];
        assert_eq!(server.with(crate::harness::TOKEN, &json, "/v1/sandboxes").status, 413);
        server.post("/v1/gc", &json!({})).is(400);
        assert_eq!(server.get("/v1/sandboxes").json()["items"], json!([]));
        server.stop();
    });
}

#[test]
fn api_12_text_is_never_a_statement() {
    for_each([Who::user()], |lab| {
        text_is_text(&lab.serve(&[]));
    });
}

#[test]
fn api_12_text_is_never_a_statement_in_postgresql() {
    for_each([Who::user()], |lab| {
        let Some(database) = Postgres::start() else { return };
        let home = lab.root.join("elsewhere");
        text_is_text(&lab.serve_in(&home, &[("SKEP_STORE", &database.url("s"))], &[]));
    });
}

fn text_is_text(server: &Server<'_>) {
    server.create("s");
    for text in ["'%20OR%201=1--", "s%27;DROP%20TABLE%20sandboxes;--", "%25", "%00", "..%2f.."] {
        server.get(&format!("/v1/sandboxes/{text}")).is(404);
        let label = server.get(&format!("/v1/sandboxes?label={text}")).is(200).json();
        assert_eq!(label["items"], json!([]), "{text}");
        server.get(&format!("/v1/sandboxes?cursor={text}")).is(400);
        server.get(&format!("/v1/sandboxes?state={text}")).is(400);
        server.get(&format!("/v1/sandboxes?sort={text}")).is(400);
    }
    for n in 0..4 {
        server.create(&format!("t{n}"));
    }
    let mut names = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = server.get(&format!("/v1/sandboxes?limit=2{cursor}")).is(200).json();
        let items = page["items"].as_array().unwrap();
        names.extend(items.iter().map(|one| one["name"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => {
                cursor = format!("&cursor={}", next.replace('=', "%3D").replace('+', "%2B"))
            }
            None => break,
        }
    }
    assert_eq!(names, ["t3", "t2", "t1", "t0", "s"]);
    for hostile in ["'; DROP TABLE sandboxes; --", "\\'", "$1", "%s", "\u{202e}", "a=b"] {
        let labels = json!({ "labels": { hostile: hostile } });
        let patched = server.send("PATCH", "/v1/sandboxes/s", &labels, &[]).is(200).json();
        assert_eq!(patched["labels"][hostile], hostile);
        let body = json!({ "name": hostile, "project": "/tmp" });
        server.post("/v1/sandboxes", &body).is(400);
    }
    for name in names {
        let path = format!("/v1/sandboxes/{name}?discard=true");
        server.with(crate::harness::TOKEN, &["-X", "DELETE"], &path).is(204);
    }
}

#[test]
fn quotas_and_scopes_are_refused_with_a_reason() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&["--max-sandboxes", "2"]);
        let make = |name: &str| {
            let body = json!({ "project": lab.project, "name": name, "exclusive": true });
            server.post("/v1/sandboxes", &body)
        };
        make("a").is(201);
        let locked = make("b").is(409).json();
        assert_eq!(locked["details"]["locked_by"][0]["sandbox_name"], "a", "{locked}");
        server.create("c");
        let over = server.post("/v1/sandboxes", &json!({ "project": lab.project })).is(429);
        assert_eq!(over.json()["code"], "over_quota");
        assert!(over.header("retry-after").is_some());
        // A server that has as many as it may is well: no quota is held against its canary.
        server.get("/health/ready").is(200);
        server.stop();
    });
}

#[test]
fn a_canary_takes_nobodys_place() {
    for_each([Who::user()], |lab| {
        // It cannot be taken away, and stays as long as it likes.
        let variables = [("SKEP_FAILPOINT", "delete.ends=eio")];
        let server = lab.serve_in(&lab.state, &variables, &["--max-sandboxes", "1"]);
        assert_eq!(server.get("/health/ready").status, 503);
        let there = server.get("/v1/sandboxes").json()["items"].as_array().unwrap().clone();
        assert_eq!(there.len(), 1, "{there:?}");
        assert!(there[0]["name"].as_str().unwrap().starts_with("canary-"), "{there:?}");
        server.create("mine");
        server.post("/v1/sandboxes", &json!({ "project": lab.project })).is(429);
        // A fork of it is somebody's.
        let canary = there[0]["id"].as_str().unwrap();
        server.post(&format!("/v1/sandboxes/{canary}/fork"), &json!({ "count": 1 })).is(429);
        server.stop();
        lab.serve(&[]).stop();
    });
}

#[test]
fn a_review_over_http_is_the_command_lines() {
    for_both(|lab| {
        lab.write("a.txt", "one\n");
        let server = lab.serve(&[]);
        server.create("s");
        let ran = server.script("s", "echo two > b.txt; echo more >> a.txt; echo said; exit 4");
        assert_eq!((&ran["exit_code"], &ran["reason"]), (&json!(4), &json!("exited")));
        assert_eq!(ran["stdout"], "said\n");
        let told = lab.diff("s");
        let set = server.get("/v1/sandboxes/s/changes").is(200).json();
        assert_contains(&set, &told, "change set");
        let shown = lab.skep(["show", "s", "--json"]).run().ok().json();
        let mut sandbox = server.get("/v1/sandboxes/s").is(200).json();
        sandbox["snapshots"] = shown["snapshots"].clone();
        // Told as part of the policy.
        assert_eq!(sandbox["policy"]["allow_changes"], shown["changes"]["allow"]);
        assert_eq!(sandbox["policy"]["workdir"], shown["workdir"]);
        assert_eq!(sandbox["policy"]["mounts"], shown["mounts"]);
        for key in ["network", "changes", "workdir", "mounts"] {
            sandbox[key] = shown[key].clone();
        }
        // Asked of the provider by `show` only.
        sandbox["provider_facts"] = shown["provider_facts"].clone();
        assert_contains(&sandbox, &shown, "sandbox");
        let one = server.get("/v1/sandboxes/s/changes/file?path=a.txt").is(200).json();
        let hunk = &one["hunks"][0]["id"];
        let body = json!({ "selection": { "hunks": [hunk] }, "digest": set["digest"] });
        let approved = server.post("/v1/sandboxes/s/approve", &body).is(200).json();
        assert_eq!(approved["applied"], json!(["a.txt"]));
        assert_eq!(lab.tree().get("a.txt").unwrap().bytes, b"one\nmore\n");
        assert!(lab.tree().get("b.txt").is_none());
        let stale = server.post("/v1/sandboxes/s/approve", &json!({ "digest": set["digest"] }));
        assert_eq!(stale.is(409).json()["code"], "digest_mismatch");
        let id = approved["approval"].as_str().unwrap();
        let approval = server.get(&format!("/v1/approvals/{id}")).is(200).json();
        assert_eq!(approval["approver"], "bootstrap token");
        server.get(&format!("/v1/approvals/{id}/receipt")).is(200);
        server.post(&format!("/v1/approvals/{id}/undo"), &json!({})).is(200);
        assert_eq!(lab.tree().get("a.txt").unwrap().bytes, b"one\n");
        let body = json!({ "selection": { "paths": ["b.txt"] }, "reason": "no" });
        assert_eq!(
            server.post("/v1/sandboxes/s/reject", &body).is(200).json()["rejected"],
            json!(["b.txt"])
        );
        let audit = String::from_utf8(server.get("/v1/audit").is(200).body).unwrap();
        assert!(audit.lines().any(|line| line.contains("/approve") && line.contains("bootstrap")));
        server.stop();
    });
}

/// Everything the command line says is said here too, and is the same.
#[track_caller]
fn assert_contains(more: &Value, less: &Value, what: &str) {
    match (more, less) {
        (Value::Object(more), Value::Object(less)) => {
            for (key, value) in less {
                let found = more.get(key);
                // Where each of them looked again, time has passed.
                if !matches!(key.as_str(), "version" | "updated_at" | "old_target" | "new_target") {
                    let found = found.unwrap_or_else(|| panic!("{what}: no `{key}`"));
                    assert_contains(found, value, &format!("{what}.{key}"));
                }
            }
        }
        (Value::Array(more), Value::Array(less)) => {
            assert_eq!(more.len(), less.len(), "{what}");
            for (index, (more, less)) in more.iter().zip(less).enumerate() {
                assert_contains(more, less, &format!("{what}[{index}]"));
            }
        }
        _ => assert_eq!(more, less, "{what}"),
    }
}

#[test]
fn fs_1_files_stay_in_the_workspace() {
    for_both(|lab| {
        lab.write("a.txt", "one\n");
        let server = lab.serve(&[]);
        server.create("s");
        let file = |path: &str| server.get(&format!("/v1/sandboxes/s/files?path={path}"));
        assert_eq!(file("a.txt").is(200).body, b"one\n");
        let put = |path: &str, text: &str| {
            let bytes = ["-X", "PUT", "-H", "Content-Type: application/octet-stream", "-d", text];
            server.with(
                crate::harness::TOKEN,
                &bytes,
                &format!("/v1/sandboxes/s/files?path={path}"),
            )
        };
        put("new.txt", "two").is(200);
        assert_eq!(file("new.txt").is(200).body, b"two");
        assert_eq!(server.script("s", "cat new.txt")["stdout"], "two");
        assert!(lab.tree().get("new.txt").is_none());
        let list = server.get("/v1/sandboxes/s/files/list?path=").is(200).json();
        let names: Vec<_> =
            list.as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect();
        assert_eq!(names, ["a.txt", "new.txt"]);
        let stat = server.get("/v1/sandboxes/s/files/stat?path=new.txt").is(200).json();
        assert_eq!((&stat["kind"], &stat["size"]), (&json!("file"), &json!(3)));
        file("nothing").is(404);
        for bad in ["../x", "a/../../x", "/etc/passwd", "..%2f..%2fx", "a%00b"] {
            assert_eq!(file(bad).is(400).json()["code"], "usage", "{bad}");
            put(bad, "x").is(400);
        }
        // A link to a secret is not followed, nor is anything written through one.
        let secret = lab.write(lab.root.join("outside"), "canary");
        server.script(
            "s",
            &format!("ln -s {0} link; ln -s {1} dir", secret.display(), lab.root.display()),
        );
        for path in ["link", "dir/outside"] {
            let reply = file(path);
            assert!(reply.status >= 400, "{path}: {reply:?}");
            let _ = put(path, "overwritten");
        }
        assert_eq!(std::fs::read(&secret).unwrap(), b"canary");
        server.stop();
    });
}

#[test]
fn output_is_followed_and_resumed() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let body =
            json!({ "command": ["sh", "-c", "read a; echo got $a; echo oops >&2"], "stdin": true });
        let exec = server.post("/v1/sandboxes/s/execs", &body).is(201).json();
        let id = exec["id"].as_str().unwrap();
        let stdin = ["-X", "POST", "-H", "Content-Type: application/octet-stream", "-d", "bees\n"];
        server
            .with(crate::harness::TOKEN, &stdin, &format!("/v1/execs/{id}/stdin?close=true"))
            .is(204);
        let stream = |from: &[&str]| {
            let reply = server.with(crate::harness::TOKEN, from, &format!("/v1/execs/{id}/stream"));
            String::from_utf8(reply.is(200).body).unwrap()
        };
        let all = stream(&[]);
        assert!(all.contains("got bees") && all.contains("event: end"), "{all}");
        let rest = stream(&["-H", "Last-Event-ID: 9"]);
        assert!(!rest.contains("got bees") && rest.contains("oops"), "{rest}");
        assert!(stream(&["-H", "Last-Event-ID: 14"]).contains("event: end"));
        let logs = server.get(&format!("/v1/execs/{id}/logs?from=4")).is(200).json();
        assert_eq!(logs["chunks"][0]["text"], "bees\n");
        let long = json!({ "command": ["sleep", "600"] });
        let id = server.post("/v1/sandboxes/s/execs", &long).is(201).json()["id"].clone();
        let id = id.as_str().unwrap();
        server.post(&format!("/v1/execs/{id}/kill"), &json!({})).is(204);
        wait_for("the exec to be killed", 10, || {
            let reason = &server.get(&format!("/v1/execs/{id}")).json()["reason"];
            (reason == "killed").then_some(())
        });
        server.stop();
    });
}
