//! What holds although somebody asks oddly, goes away early, or is not wanted any more.

use super::crash::children;
use crate::harness::{Lab, Reply, Server, TOKEN, Who, for_both, for_each, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const BYTES: [&str; 2] = ["-H", "Content-Type: application/octet-stream"];

fn token(lab: &Lab, arguments: &[&str]) -> String {
    lab.skep(["token", "create"]).args(arguments).run().ok().text()
}

fn put(server: &Server<'_>, path: &str, text: &str, key: &str) -> Reply {
    let key = format!("Idempotency-Key: {key}");
    let all = ["-X", "PUT", "-d", text, "-H", &key, BYTES[0], BYTES[1]];
    server.with(TOKEN, &all, &format!("/v1/sandboxes/s/files?path={path}"))
}

#[test]
fn api_9_a_key_covers_all_that_is_asked() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let key = |key: &str| format!("Idempotency-Key: {key}");
        let keyed = |path: &str, body: &Value, name: &str| {
            server.send("POST", path, body, &["-H", &key(name)])
        };
        // The query and the body, whichever form it has.
        put(&server, "one", "AAA", "k1").is(200);
        assert_eq!(put(&server, "two", "AAA", "k1").is(422).json()["code"], "key_reused");
        put(&server, "one", "CCC", "k1").is(422);
        let again = put(&server, "one", "AAA", "k1").is(200);
        assert_eq!(again.header("idempotency-replayed").unwrap(), "true");
        server.get("/v1/sandboxes/s/files?path=two").is(404);
        let long = json!({ "command": ["sh", "-c", "trap '' TERM; echo up; sleep 600"] });
        let exec = server.post("/v1/sandboxes/s/execs", &long).is(201).json();
        let id = exec["id"].as_str().unwrap();
        let signal = format!("/v1/execs/{id}/signal");
        keyed(&signal, &json!({ "signal": 18 }), "k2").is(204);
        keyed(&signal, &json!({ "signal": 9 }), "k2").is(422);
        let kill = format!("/v1/execs/{id}/kill");
        keyed(&format!("{kill}?gently=true"), &json!({}), "k3").is(204);
        keyed(&kill, &json!({}), "k3").is(422);
        keyed(&kill, &json!({}), "k4").is(204);
        keyed(&format!("/v1/execs/{id}/stdin"), &json!({}), "k5").is(415);
        let k5 = key("k5");
        let input = ["-X", "POST", "-d", "x", "-H", &k5, BYTES[0], BYTES[1]];
        server.with(TOKEN, &input, &format!("/v1/execs/{id}/stdin")).is(400);
        // What only looks has no key: it would say the same for a day.
        server.with(TOKEN, &["-H", &key("k6")], "/v1/sandboxes/s").is(400);
        // A repeated wait is answered as the first one was.
        let run = json!({ "command": ["sh", "-c", "echo hi; echo x >> ran"], "wait": true });
        let first = keyed("/v1/sandboxes/s/execs", &run, "k7").is(200);
        let again = keyed("/v1/sandboxes/s/execs", &run, "k7").is(200);
        assert_eq!(again.header("idempotency-replayed").unwrap(), "true");
        assert_eq!(again.json(), first.json());
        assert_eq!(server.script("s", "cat ran")["stdout"], "x\n");
        // Keys are each asker's own.
        let body = json!({ "project": lab.project });
        let make = |token: &str| {
            let body = body.to_string();
            let kind = "Content-Type: application/json";
            let all = ["-X", "POST", "-d", &body, "-H", kind, "-H", &key("same")];
            server.with(token, &all, "/v1/sandboxes").is(201).json()["id"].clone()
        };
        let [one, two] = [0, 1].map(|_| token(lab, &["--role", "operator"]));
        assert_ne!(make(&one), make(&two));
        assert_eq!(make(&one), make(&one));
        server.stop();
    });
}

/// What is said twice, in other letters, packed, or of the server's own place is not taken for something else.
#[test]
fn api_11_headers_and_projects_mean_one_thing_or_are_refused() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let stop = |more: &[&str]| server.send("POST", "/v1/sandboxes/s/stop", &json!({}), more);
        for (more, status) in [
            (&["-H", "Idempotency-Key: a", "-H", "Idempotency-Key: b"][..], 400),
            (&["-H", "If-Match: *", "-H", "If-Match: \"1\""], 400),
            (&["-H", "Content-Encoding: gzip"], 415),
            (&["-H", "Content-Type: text/plain"], 415),
        ] {
            assert_eq!(stop(more).status, status, "{more:?}");
        }
        let letters = ["-X", "POST", "-d", "{}", "-H"];
        for (kind, status) in [("charset=utf-16", 415), ("charset=UTF-8", 200)] {
            let kind = format!("Content-Type: application/json; {kind}");
            let all: Vec<&str> = letters.into_iter().chain([kind.as_str()]).collect();
            assert_eq!(server.with(TOKEN, &all, "/v1/sandboxes/s/stop").status, status, "{kind}");
        }
        for path in ["sandboxes", "newest", "approvals", "config"] {
            for project in ["", "etc", "../etc"] {
                let refused = server.get(&format!("/v1/{path}?project={project}")).is(400);
                assert_eq!(refused.json()["code"], "usage");
            }
        }
        server.post("/v1/undo", &json!({ "project": "etc" })).is(400);
        assert_eq!(stop(&["-H", "Content-Encoding: identity"]).status, 200);
        server.stop();
    });
}

#[test]
fn api_11_a_body_is_an_object_of_text() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("s");
        server.script("s", "echo new > new; echo odd > \"$(printf 'n\\357\\277\\275')\"");
        let post = |path: &str, file: &[u8]| {
            let body = lab.write(lab.root.join("body"), file);
            let from = format!("@{}", body.display());
            let json = "Content-Type: application/json";
            let all = ["-X", "POST", "-H", json, "--data-binary", &from];
            server.with(TOKEN, &all, path)
        };
        for word in ["approve", "reject"] {
            for body in ["[]", " []", "{\"selection\": []}", "[[]]", "null"] {
                post(&format!("/v1/sandboxes/s/{word}"), body.as_bytes()).is(400);
            }
        }
        post("/v1/gc", b"[true,null,null,false,[]]").is(400);
        let made = format!("[{:?}]", lab.project.to_str().unwrap());
        post("/v1/sandboxes", made.as_bytes()).is(400);
        post("/v1/sandboxes/s/files/directory", b"{\"path\":\"d\xff\"}").is(400);
        // What is no text would be another name.
        for path in ["files?path=n%ff", "files/stat?path=n%ff"] {
            server.get(&format!("/v1/sandboxes/s/{path}")).is(400);
        }
        server.with(TOKEN, &["-X", "DELETE"], "/v1/sandboxes/s/files?path=n%ff").is(400);
        server.get("/v1/sandboxes/s/files?path=n%ef%bf%bd").is(200);
        post("/v1/sandboxes/s/files/directory", b"{\"path\":{\"b64\":\"ZP8=\"}}").is(201);
        assert!(lab.tree().get("new").is_none());
        assert_eq!(
            server.get("/v1/sandboxes/s/files/list?path=").json().as_array().unwrap().len(),
            3
        );
        server.stop();
    });
}

fn audit(server: &Server<'_>, query: &str) -> Vec<Value> {
    let text = server.get(&format!("/v1/audit{query}")).is(200).body;
    let text = String::from_utf8(text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn what_is_run_over_a_websocket_is_in_the_audit() {
    for_both(|lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let operator = token(lab, &["--role", "operator"]);
        let skep = |arguments: &[&str]| {
            lab.skep(arguments).env("SKEP_HOST", server.url("")).env("SKEP_TOKEN", &operator)
        };
        skep(&["exec", "s", "--", "sh", "-c", "echo ran > ws"]).run().ok();
        let lines = audit(&server, "");
        let attached = |line: &&Value| line["path"].as_str().unwrap().ends_with("/attach");
        let line = lines.iter().find(attached).unwrap_or_else(|| panic!("{lines:?}"));
        assert_eq!(line["status"], 101);
        assert!(line["who"].as_str().unwrap().starts_with("token:"), "{line}");
        assert!(line["from"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        let id = line["exec"].as_str().unwrap();
        let exec = server.get(&format!("/v1/execs/{id}")).is(200).json();
        assert_eq!(exec["command"][2], "echo ran > ws", "{exec}");
        // What is refused inside the socket too.
        let bound = server.create("other")["id"].as_str().unwrap().to_owned();
        let agent = token(lab, &["--role", "agent", "--sandbox", &bound]);
        let refused = lab.skep(["exec", "s", "--", "true"]).env("SKEP_HOST", server.url(""));
        assert_ne!(refused.env("SKEP_TOKEN", &agent).run().code(), 0);
        let lines = audit(&server, "");
        let numbers: Vec<_> = lines.iter().map(|line| line["number"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (1..=lines.len() as u64).collect::<Vec<_>>());
        server.stop();
    });
}

#[test]
fn strangers_push_out_no_act_and_name_no_figure() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("important");
        let long = "a".repeat(60_000);
        for number in 0..20 {
            server.bare(&[], &format!("/{number}{long}")).is(401);
            let method = format!("M{number}{}", "X".repeat(2000));
            let status = server.bare(&["-X", &method], "/health/live").status;
            assert!((400..500).contains(&status), "{status}");
        }
        let metrics = String::from_utf8(server.get("/metrics").is(200).body).unwrap();
        assert!(!metrics.contains("XXXX") && metrics.contains("method=\"other\""), "{metrics}");
        assert!(!lab.server_log().contains("XXXX"));
        let acts = audit(&server, "");
        assert!(acts.iter().all(|line| line["who"].is_string()), "{acts:?}");
        assert!(acts.iter().any(|line| line["path"] == "/v1/sandboxes"), "{acts:?}");
        let strangers = audit(&server, "?strangers=true");
        assert_eq!(strangers.len(), 40);
        assert!(strangers.iter().all(|line| line.to_string().len() < 800), "{:?}", strangers[0]);
        // Numbers go on behind a restart.
        server.kill();
        let server = lab.serve(&[]);
        server.create("second");
        let numbers: Vec<_> =
            audit(&server, "").iter().map(|line| line["number"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
        server.stop();
    });
}

#[test]
fn api_15_a_readiness_check_that_is_given_up_leaves_nothing() {
    for_both(|lab| {
        let server = lab.serve(&[]);
        server.get("/v1/sandboxes").is(200);
        let touched =
            || std::fs::metadata(lab.state.join("sandboxes")).unwrap().modified().unwrap();
        let before = touched();
        for pause in [3, 8, 15, 3, 8, 15, 3, 8] {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            let host = format!("Host: 127.0.0.1:{}", server.port);
            write!(stream, "GET /health/ready HTTP/1.1\r\n{host}\r\n\r\n").unwrap();
            std::thread::sleep(Duration::from_millis(pause));
        }
        // One of them made one, which goes.
        wait_for("no canary to be left", 20, || {
            let items = server.get("/v1/sandboxes").is(200).json()["items"].clone();
            (touched() > before && items == json!([])).then_some(())
        });
        server.bare(&[], "/health/ready").is(200);
        server.stop();
    });
}

#[test]
fn api_15_a_canary_whose_directory_somebody_else_made_sings_in_another() {
    for_each([Who::user()], |lab| {
        lab.serve(&[]).kill();
        let usual = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten().find(|entry| {
            let name = entry.file_name().into_string().unwrap_or_default();
            let uid = lab.who.ids().0;
            name.starts_with(&format!("skep-canary-{uid}-"))
                && entry.metadata().is_ok_and(|found| {
                    use std::os::unix::fs::MetadataExt as _;
                    found.uid() == uid
                        && found.modified().unwrap().elapsed().unwrap() < Duration::from_secs(10)
                })
        });
        let usual = usual.expect("the canary's directory").path();
        std::fs::remove_dir(&usual).unwrap();
        // Root's, which the user's server can neither use nor remove.
        std::fs::create_dir(&usual).unwrap();
        let server = lab.serve(&[]);
        server.bare(&[], "/health/ready").is(200);
        server.stop();
        std::fs::remove_dir(&usual).unwrap();
    });
}

#[test]
fn api_1_streams_and_shells_end_with_their_token() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let id = server.create("s")["id"].as_str().unwrap().to_owned();
        let viewer = token(lab, &["--role", "viewer"]);
        let agent = token(lab, &["--role", "agent", "--sandbox", &id]);
        let follow = |path: &str| {
            let head = format!("Authorization: Bearer {viewer}");
            lab.program("curl").args(["-sN", "-H", &head]).arg(server.url(path)).spawn()
        };
        let long = json!({ "command": ["sleep", "600"] });
        let exec = server.post("/v1/sandboxes/s/execs", &long).is(201).json();
        let streams = [
            "/v1/events/stream".to_owned(),
            "/v1/sandboxes/s/files/watch?path=".to_owned(),
            format!("/v1/execs/{}/stream", exec["id"].as_str().unwrap()),
        ]
        .map(|path| follow(&path));
        let shell = lab
            .skep(["exec", "s", "--", "sleep", "600"])
            .env("SKEP_HOST", server.url(""))
            .env("SKEP_TOKEN", &agent)
            .spawn();
        wait_for("the shell to run", 20, || {
            let execs = server.get("/v1/sandboxes/s/execs").is(200).json();
            (execs.as_array().unwrap().len() == 2).then_some(())
        });
        for token in [&viewer, &agent] {
            lab.skep(["token", "revoke", token]).run().ok();
        }
        for stream in streams {
            let told = String::from_utf8(ended(stream).stdout).unwrap();
            assert!(told.contains("event: error") && told.contains("unauthenticated"), "{told}");
        }
        assert!(!ended(shell).status.success());
        server.stop();
    });
}

/// Waits for an end that must come soon.
fn ended(mut child: std::process::Child) -> std::process::Output {
    wait_for("a stream to end", 15, || child.try_wait().unwrap());
    child.wait_with_output().unwrap()
}

#[test]
fn crash_7_who_waits_for_an_exec_is_told_when_the_server_ends() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let body = json!({ "command": ["sleep", "600"], "wait": true });
        let url = server.url("/v1/sandboxes/s/execs");
        let asked = lab
            .program("curl")
            .args(["-s", "-H", "Content-Type: application/json", "-d", &body.to_string(), "-H"])
            .arg(format!("Authorization: Bearer {TOKEN}"))
            .arg(url)
            .spawn();
        wait_for("the exec to run", 20, || {
            let execs = server.get("/v1/sandboxes/s/execs").is(200).json();
            (execs.as_array().unwrap().len() == 1).then_some(())
        });
        let began = Instant::now();
        server.stop();
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        let told: Value = serde_json::from_slice(&ended(asked).stdout).unwrap();
        assert_eq!(told["code"], "unavailable", "{told}");
        let id = told["details"]["exec"].as_str().unwrap();
        let server = lab.serve(&[]);
        assert_eq!(server.get(&format!("/v1/execs/{id}")).is(200).json()["running"], true);
        server.stop();
    });
}

#[test]
fn heavy_crash_7_a_worker_that_hangs_holds_no_end_up() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let workers: Vec<Pid> =
            children(server.pid()).into_iter().filter_map(Pid::from_raw).collect();
        for worker in &workers {
            kill_process(*worker, Signal::STOP).unwrap();
        }
        // Readiness is answered all the same.
        let began = Instant::now();
        server.bare(&[], "/health/ready").is(503);
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        let pid = Pid::from_raw(server.pid()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let lock = std::fs::File::open(lab.state.join("server.lock")).unwrap();
        wait_for("the server to end", 45, || lock.try_lock().ok());
        for worker in workers {
            let _ = kill_process(worker, Signal::KILL);
        }
        drop(lock);
    });
}

#[test]
fn api_13_where_descriptors_have_run_out_nothing_spins() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let pid = server.pid();
        let limit = |most: &str| {
            let limit = format!("--nofile={most}");
            lab.program("prlimit").args(["--pid", &pid.to_string(), &limit]).run().ok();
        };
        let spent = || -> u64 {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
            fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
        };
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        limit(&format!("{}:", open + 20));
        let idle: Vec<_> =
            (0..60).map(|_| TcpStream::connect(("127.0.0.1", server.port)).unwrap()).collect();
        wait_for("descriptors to run out", 10, || {
            let open = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
            (open >= 20).then_some(())
        });
        let before = spent();
        std::thread::sleep(Duration::from_secs(1));
        assert!(spent() - before < 20, "{} ticks", spent() - before);
        drop(idle);
        server.get("/v1/sandboxes/s").is(200);
        server.stop();
    });
}
