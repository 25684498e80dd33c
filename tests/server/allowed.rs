//! How much there may be, and how much an agent may ask for.

use crate::harness::{Lab, Reply, Server, Who, for_each, outside, wait_for};
use serde_json::{Value, json};

fn as_agent(server: &Server<'_>, token: &str, limits: &Value, script: &str) -> Reply {
    let body = json!({ "command": ["sh", "-c", script], "wait": true, "limits": limits });
    let (body, kind) = (body.to_string(), "Content-Type: application/json");
    server.with(token, &["-X", "POST", "-d", &body, "-H", kind], "/v1/sandboxes/s/execs")
}

fn agent(lab: &Lab, id: &Value) -> String {
    let arguments = ["token", "create", "--role", "agent", "--sandbox", id.as_str().unwrap()];
    lab.skep(arguments).run().ok().text()
}

#[test]
fn api_5_an_agent_starts_nothing_that_was_stopped_and_widens_no_limit() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let body = json!({ "project": lab.project, "name": "s",
            "limits": { "output": "1K", "open_files": 64 } });
        let made = server.post("/v1/sandboxes", &body).is(201).json();
        let token = agent(lab, &made["id"]);
        let run = |limits: &Value, script: &str| as_agent(&server, &token, limits, script);
        for limits in [json!({ "output": "1M" }), json!({ "open_files": 5000 })] {
            assert_eq!(run(&limits, "true").is(403).json()["code"], "forbidden", "{limits}");
        }
        let less = json!({ "output": "512B", "open_files": 32 });
        assert_eq!(run(&less, "ulimit -n").is(200).json()["stdout"], "32\n");
        assert_eq!(run(&json!({}), "ulimit -n").is(200).json()["stdout"], "64\n");
        server.post("/v1/sandboxes/s/stop", &json!({})).is(200);
        assert_eq!(run(&json!({}), "true").is(409).json()["code"], "illegal_state");
        assert_eq!(server.get("/v1/sandboxes/s").json()["state"], "stopped");
        server.post("/v1/sandboxes/s/start", &json!({})).is(200);
        run(&json!({}), "true").is(200);
        // What stopped by itself goes on with the next command, unless somebody has stopped it since.
        let shown = || server.get("/v1/sandboxes/s").is(200).json();
        outside::kill(shown()["keeper"]["pid"].as_i64().unwrap() as i32);
        wait_for("its end to be noticed", 20, || (shown()["state"] == "stopped").then_some(()));
        server.post("/v1/sandboxes/s/stop", &json!({})).is(200);
        assert_eq!(run(&json!({}), "true").is(409).json()["code"], "illegal_state");
        // Said again it is no other version.
        let version = shown()["version"].clone();
        let again = server.post("/v1/sandboxes/s/stop", &json!({})).is(200).json();
        assert_eq!(again["version"], version);
        server.stop();
    });
}

#[test]
fn quotas_hold_for_every_way_to_run_more() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&["--max-memory", "1G", "--max-sandboxes", "3"]);
        let make = |name: &str, limits: &Value| {
            let body = json!({ "project": lab.project, "name": name, "limits": limits,
                "best_effort": true });
            server.send(
                "POST",
                "/v1/sandboxes",
                &body,
                &["-H", &format!("Idempotency-Key: {name}")],
            )
        };
        let over = |reply: Reply| assert_eq!(reply.is(429).json()["code"], "over_quota");
        let some = json!({ "memory": "600M" });
        // What nobody typed is a limit too, and larger.
        over(make("plain", &json!({})));
        make("a", &some).is(201);
        over(make("b", &some));
        server.post("/v1/sandboxes/a/stop", &json!({})).is(200);
        make("b", &some).is(201);
        let start = || server.post("/v1/sandboxes/a/start", &json!({}));
        over(start());
        over(server.post("/v1/sandboxes/a/execs", &json!({ "command": ["true"] })));
        let more = json!({ "limits": { "memory": "500G" } });
        server.post("/v1/sandboxes/b/stop", &json!({})).is(200);
        server.send("PATCH", "/v1/sandboxes/b", &more, &[]).is(200);
        over(server.post("/v1/sandboxes/b/start", &json!({})));
        start().is(200);
        // Forks are sandboxes; a request that was answered is answered again.
        over(server.post("/v1/sandboxes/a/fork", &json!({ "count": 2 })));
        server.post("/v1/sandboxes/a/fork", &json!({})).is(200);
        over(make("c", &json!({ "memory": "1M" })));
        let again = make("a", &some).is(201);
        assert_eq!(again.header("idempotency-replayed").unwrap(), "true");
        // Of a key whose sandbox has gone it is said.
        server
            .with(crate::harness::TOKEN, &["-X", "DELETE"], "/v1/sandboxes/a?discard=true")
            .is(204);
        assert_eq!(make("a", &some).is(409).json()["code"], "conflict");
        server.stop();
    });
}

#[test]
fn api_11_what_is_too_long_is_the_callers_error() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let (long, deep) = ("a".repeat(300), "a/".repeat(2500));
        for path in [&long, &deep] {
            for word in ["files", "files/list", "files/stat", "files/tar", "files/watch"] {
                let reply = server.get(&format!("/v1/sandboxes/s/{word}?path={path}"));
                assert_eq!(reply.is(400).json()["code"], "usage", "{word}");
            }
        }
        let many = json!({ "sandboxes": vec!["s"; 2000] });
        server.post("/v1/compare", &many).is(400);
        for more in [
            json!({ "labels": { "k".repeat(300): "v" } }),
            json!({ "labels": { "k": "v".repeat(3000) } }),
            json!({ "env": { "K": "v".repeat(200_000) } }),
        ] {
            let mut body = more;
            body["project"] = json!(lab.project);
            let text = lab.write(lab.root.join("body"), body.to_string());
            let from = format!("@{}", text.display());
            let json =
                ["-X", "POST", "-H", "Content-Type: application/json", "--data-binary", &from];
            server.with(crate::harness::TOKEN, &json, "/v1/sandboxes").is(400);
        }
        server.stop();
    });
}

#[test]
fn settings_of_the_server_are_in_force() {
    for_each([Who::user()], |lab| {
        let variables = [
            ("SKEP_LIMITS_API_TIMEOUT", "1s"),
            ("SKEP_GC_TOTAL_SIZE", "1M"),
            ("SKEP_GC_WARN_PERCENT", "50"),
        ];
        let server = lab.serve_in(&lab.state, &variables, &[]);
        server.create("s");
        let room = || {
            let all = server.get("/v1/doctor").is(200).json();
            let all = all.as_array().unwrap().clone();
            all.into_iter().find(|one| one["name"] == "room for sandboxes").unwrap()
        };
        assert_eq!(room()["ok"], true);
        server.script("s", "head -c 3000000 /dev/zero > large");
        let full = room();
        assert_eq!(full["ok"], false, "{full}");
        assert!(full["how"].as_str().unwrap().contains("gc.total_size"), "{full}");
        let ended = server.script("s", "sleep 600");
        assert_eq!(ended["reason"], "timeout", "{ended}");
        // Where a version means nothing it is not passed over.
        let gc = json!({ "dry_run": true });
        server.send("POST", "/v1/gc", &gc, &["-H", "If-Match: \"1\""]).is(400);
        server.stop();
    });
}
