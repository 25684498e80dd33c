//! Who is let in, and what they may do.

use crate::harness::{Lab, Server, TOKEN, Who, for_both, for_each};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

fn token(lab: &Lab, arguments: &[&str]) -> String {
    lab.skep(["token", "create"]).args(arguments).run().ok().text()
}

#[test]
fn api_1_only_a_live_token_is_let_in() {
    for_both(|lab| {
        let live = token(lab, &["--role", "viewer", "--expires", "1h"]);
        let expired = token(lab, &["--role", "viewer", "--expires", "1ms"]);
        let revoked = token(lab, &["--role", "viewer"]);
        let server = lab.serve(&[]);
        let status = |token: &str| server.with(token, &[], "/v1/sandboxes").status;
        // Before it is revoked it works: that is what revoking takes away.
        assert_eq!(status(&revoked), 200);
        lab.skep(["token", "revoke", &revoked]).run().ok();
        assert_eq!(status(&live), 200);
        let mut wrong = live.clone();
        wrong.pop();
        for bad in [&expired, &revoked, &wrong, "", "x", "skep_../../x_y", &TOKEN[1..]] {
            let reply = server.with(bad, &[], "/v1/sandboxes").is(401);
            let problem = reply.json();
            assert_eq!(problem["code"], "unauthenticated");
            assert_eq!(reply.header("x-request-id").unwrap(), problem["request_id"]);
        }
        server.bare(&[], "/v1/sandboxes").is(401);
        // Said twice, nobody knows which one is meant.
        let second = format!("Authorization: Bearer {live}");
        server.with(&live, &["-H", &second], "/v1/sandboxes").is(400);
        server.get(&format!("/v1/sandboxes?token={live}")).is(401);
        // On the command line it is a variable, and not a header.
        let ran = lab.skep(["ls"]).env("SKEP_HOST", server.url("")).run();
        assert_ne!(ran.code(), 0);
        ran.says("put the token in SKEP_TOKEN");
        server.bare(&[], &format!("/v1/sandboxes?access_token={live}")).is(401);
        let kept =
            [lab.server_log(), read(lab, "audit.jsonl"), read(lab, "strangers.jsonl")].concat();
        for secret in [live.as_str(), &revoked, TOKEN] {
            assert!(!kept.contains(secret.rsplit('_').next().unwrap()), "a secret was logged");
        }
        server.stop();
    });
}

fn read(lab: &Lab, name: &str) -> String {
    std::fs::read_to_string(lab.state.join(name)).unwrap_or_default()
}

#[test]
fn api_2_the_socket_is_ours_alone() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let socket = lab.state.join("skep.sock");
        let mode = std::fs::symlink_metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        lab.skep(["ls", "--host", &server.socket()]).run().ok();
        server.stop();
        assert!(!socket.exists(), "the socket is left");
        // Whatever else stands in its place is left alone.
        for make in ["echo mine > ", "ln -s /nowhere "] {
            let script = format!("{make} {}", socket.display());
            assert!(lab.program("sh").args(["-c", &script]).run().status.success());
            lab.skep(["serve"]).within(20).run().exits(1).says("something else is there");
            std::fs::remove_file(&socket).unwrap();
        }
    });
}

#[test]
fn api_2_another_user_is_turned_away() {
    let Ok(Who::Root) = Who::root() else { return crate::harness::skip("root is needed") };
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let socket = lab.state.join("skep.sock");
        // The guard is the kernel's word on who connects, so the modes are opened for the test.
        for (path, mode) in [(&lab.state, 0o755), (&socket, 0o666)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let ask = |uid: &str| {
            let done = Command::new("setpriv")
                .args(["--reuid", uid, "--regid", uid, "--clear-groups", "curl", "-s"])
                .args(["-o", "/dev/null", "-w", "%{http_code}", "--unix-socket"])
                .arg(&socket)
                .arg("http://localhost/v1/sandboxes")
                .output()
                .unwrap();
            String::from_utf8_lossy(&done.stdout).into_owned()
        };
        assert_eq!(ask(&lab.who.ids().0.to_string()), "200");
        assert_eq!(ask("65534"), "000");
        std::fs::set_permissions(&lab.state, std::fs::Permissions::from_mode(0o700)).unwrap();
        server.stop();
    });
}

#[test]
fn api_3_nothing_insecure_is_listened_on() {
    for_each([Who::user()], |lab| {
        for address in ["0.0.0.0:7999", "[::]:7999", "192.0.2.1:7999"] {
            let file = lab.token_file();
            let call = lab.skep(["serve", "--listen", address, "--token-file"]).arg(file);
            call.within(20).run().exits(2).says("does not speak TLS");
        }
        lab.skep(["serve", "--listen", "127.0.0.1:0"]).within(20).run().exits(5).says("token");
        let open = lab.write(lab.root.join("open-token"), TOKEN);
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
        let call = lab.skep(["serve", "--listen", "127.0.0.1:0", "--token-file"]).arg(open);
        call.within(20).run().exits(5).says("mode is 0644");
    });
}

/// Roles against every endpoint of the served document. What a role may not do is 403; what it
/// may is anything else.
#[test]
fn api_4_every_role_against_every_endpoint() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let document = server.get("/v1/openapi.json").is(200).json();
        let sandbox = server.create("own");
        let agent = token(lab, &["--role", "agent", "--sandbox", "own"]);
        let roles: Vec<(&str, String)> = ["viewer", "operator", "approver"]
            .into_iter()
            .map(|role| (role, token(lab, &["--role", role])))
            .chain([("agent", agent)])
            .collect();
        let mut seen = 0;
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                let open =
                    path.starts_with("/health/") || (path == "/v1/session" && method == "post");
                let target = path.replace("{sandbox}", "no-such").replace("{exec}", "no-such");
                let target = target.replace("{approval}", "no-such").replace("{name}", "no-such");
                if path.ends_with("/events/stream") {
                    continue; // It does not end; its row is that of /v1/events.
                }
                let ask = |token: Option<&str>| {
                    let method = method.to_uppercase();
                    let arguments = ["-X", method.as_str()];
                    match token {
                        Some(token) => server.with(token, &arguments, &target).status,
                        None => server.bare(&arguments, &target).status,
                    }
                };
                assert_eq!(ask(None) == 401, !open, "{method} {path} without a token");
                let head = method == "get";
                for (role, token) in &roles {
                    let refused = || server.with(token, &["--head"], &target).status == 403;
                    assert!(!head || refused() != may(role, method, path), "{role} head {path}");
                    let refused = ask(Some(token)) == 403;
                    assert_eq!(refused, !may(role, method, path), "{role} {method} {path}");
                    seen += 1;
                }
            }
        }
        assert!(seen > 200, "{seen}");
        assert_eq!(server.get("/v1/sandboxes/own").is(200).json()["id"], sandbox["id"]);
        server.stop();
    });
}

/// The table once more, in other words than the product's.
fn may(role: &str, method: &str, path: &str) -> bool {
    let looks = method == "get" && !path.ends_with("/attach")
        || ["/v1/compare", "/v1/session"].contains(&path);
    let takes_over = path.ends_with("/net") && method == "post"
        || ["/approve", "/reject", "/undo", "/finish", "/abandon", "/pull", "/copy"]
            .iter()
            .any(|end| path.ends_with(end))
        || path == "/v1/audit";
    match role {
        "approver" => true,
        "operator" => !takes_over,
        "viewer" => looks && !takes_over,
        _ => {
            let own = path.starts_with("/v1/sandboxes/{sandbox}") || path.starts_with("/v1/execs");
            let works = ["/execs", "/signal", "/kill", "/stdin", "/net/test"];
            path.starts_with("/health")
                || ["/v1/whoami", "/v1/session"].contains(&path)
                || own && method == "get"
                || own && path.contains("/files")
                || own && works.iter().any(|end| path.ends_with(end))
        }
    }
}

#[test]
fn api_5_an_agent_sees_its_own_sandbox_only() {
    for_both(|lab| {
        let server = lab.serve(&[]);
        let other = server.create("other");
        let exec = server.script("other", "echo secret");
        server.create("own");
        let agent = token(lab, &["--role", "agent", "--sandbox", "own"]);
        let get = |path: &str| server.with(&agent, &[], path);
        get("/v1/sandboxes/own").is(200);
        let missing = get("/v1/sandboxes/nothing").is(404).json();
        let hidden = get("/v1/sandboxes/other").is(404).json();
        let same = |problem: &Value| problem["message"].as_str().unwrap().len();
        assert_eq!(same(&missing) - "nothing".len(), same(&hidden) - "other".len());
        let id = exec["id"].as_str().unwrap();
        for path in [
            format!("/v1/sandboxes/{}", other["id"].as_str().unwrap()),
            "/v1/sandboxes/other/changes".into(),
            "/v1/sandboxes/other/execs".into(),
            "/v1/sandboxes/other/files?path=a".into(),
            format!("/v1/execs/{id}"),
            format!("/v1/execs/{id}/logs"),
            format!("/v1/execs/{id}/stream"),
        ] {
            get(&path).is(404);
        }
        get("/v1/sandboxes").is(403);
        let post = |path: &str, body: &Value| {
            let body = body.to_string();
            let json = ["-X", "POST", "-H", "Content-Type: application/json", "-d", &body];
            server.with(&agent, &json, path)
        };
        let run = json!({ "command": ["true"], "wait": true });
        post("/v1/sandboxes/own/execs", &run).is(200);
        post("/v1/sandboxes/other/execs", &run).is(404);
        post("/v1/sandboxes/own/approve", &json!({})).is(403);
        post("/v1/sandboxes", &json!({ "project": lab.project })).is(403);
        post(&format!("/v1/execs/{id}/signal"), &json!({ "signal": 9 })).is(404);
        server.stop();
    });
}

/// Rules of a running sandbox are widened by those who may, never from inside.
#[test]
fn net_16_an_agent_widens_no_rules() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        lab.skep(["create", "s", "--allow", "base.test"]).run().ok();
        let agent = token(lab, &["--role", "agent", "--sandbox", "s"]);
        let change = |token: &str, body: Value| {
            let body = body.to_string();
            let json = ["-X", "POST", "-H", "Content-Type: application/json", "-d", &body];
            server.with(token, &json, "/v1/sandboxes/s/net").status
        };
        let rules = || lab.sandbox("s")["network"]["allow"].to_string();
        let before = rules();
        for body in [json!({ "allow": ["other.test"] }), json!({ "deny": ["base.test"] })] {
            assert_eq!(change(&agent, body.clone()), 403, "{body}");
            assert_eq!(rules(), before);
        }
        // The control: the one who may is heard, and is not when what he says is wrong.
        assert_eq!(change(TOKEN, json!({ "allow": ["good.test", "not a host"] })), 400);
        assert_eq!(rules(), before, "all or nothing");
        assert_eq!(change(TOKEN, json!({ "allow": ["other.test"] })), 200);
        assert!(rules().contains("other.test"));
        server.stop();
    });
}

#[test]
fn an_operator_does_not_widen() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let operator = token(lab, &["--role", "operator"]);
        let create = |token: &str, more: Value| create_with(&server, lab, token, &more);
        let mounts = json!({ "mounts": [{ "source": "/srv", "target": "/srv", "access": "ro" }] });
        for wide in [
            mounts,
            json!({ "network": "host" }),
            json!({ "show": [".env"] }),
            json!({ "allow_changes": ["**"] }),
        ] {
            assert_eq!(create(&operator, wide.clone()), 403, "{wide}");
            assert_eq!(create(TOKEN, wide.clone()), 201, "{wide}");
        }
        assert_eq!(create(&operator, json!({})), 201);
        // Nor does it later; an agent changes nothing about its sandbox at all.
        server.create("s");
        server.post("/v1/sandboxes/s/stop", &json!({})).is(200);
        let agent = token(lab, &["--role", "agent", "--sandbox", "s"]);
        let patch = |token: &str, body: Value| {
            let body = body.to_string();
            let json = ["-X", "PATCH", "-H", "Content-Type: application/json", "-d", &body];
            server.with(token, &json, "/v1/sandboxes/s").status
        };
        for wide in [json!({ "network": "host" }), json!({ "limits": { "memory": "2G" } })] {
            assert_eq!(patch(&agent, wide), 403);
        }
        assert_eq!(patch(&agent, json!({ "labels": { "a": "b" } })), 403);
        assert_eq!(patch(&operator, json!({ "network": "host" })), 403);
        assert_eq!(patch(&operator, json!({ "network": "allow" })), 403);
        assert_eq!(patch(&operator, json!({ "network": "none" })), 200);
        assert_eq!(patch(&operator, json!({ "limits": { "memory": "2G" } })), 200);
        assert_eq!(patch(TOKEN, json!({ "network": "host" })), 200);
        server.stop();
    });
}

/// The command line says nothing to a server behind the network that needs a higher role, and nothing of
/// the caller's environment but what is passed anyway.
#[test]
fn an_operator_creates_by_the_command_line_and_shows_no_environment() {
    for_both(|lab| {
        let server = lab.serve(&[]);
        let operator = token(lab, &["--role", "operator", "--name", "night shift"]);
        let asked = |url: &str, name: &str| {
            lab.skep(["create", name])
                .env("SKEP_HOST", url)
                .env("SKEP_TOKEN", &operator)
                .env("AWS_SECRET_ACCESS_KEY", "of the caller")
                .env("TERM", "vt52")
                .run()
        };
        asked(server.url("").as_str(), "made").ok();
        let term = lab.skep(["exec", "made", "--", "sh", "-c", "echo $TERM"]).run().ok().text();
        assert_eq!(term, "vt52");
        // What is said, by an oracle that is no server of skep's.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let heard = std::thread::spawn(move || hear(&listener));
        assert_ne!(asked(&url, "other").code(), 0);
        let body = heard.join().unwrap();
        assert_eq!(body["name"], "other", "{body}");
        assert_eq!(body["home"], Value::Null);
        let variables = body["host_env"].as_object().unwrap();
        assert_eq!(variables["TERM"], "vt52");
        let shown: Vec<_> = variables.keys().filter(|name| name.contains("S")).collect();
        for name in ["AWS_SECRET_ACCESS_KEY", "SKEP_TOKEN", "SKEP_HOST", "HOME", "PATH"] {
            assert!(!variables.contains_key(name), "{shown:?}");
        }
        // A token can be revoked by its name.
        lab.skep(["token", "revoke", "night shift"]).run().ok();
        assert_eq!(server.with(&operator, &[], "/v1/sandboxes").status, 401);
        server.stop();
    });
}

/// Answers requests with "not found" until one has a body, and gives that body.
fn hear(listener: &std::net::TcpListener) -> Value {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    loop {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let answer = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        stream.write_all(answer.as_bytes()).unwrap();
        if length > 0 {
            return serde_json::from_slice(&body).unwrap();
        }
    }
}

/// What an agent could ask for to be held less: each is refused with a reason, and nothing is run or made.
#[test]
fn proc_13_an_agent_gets_nothing_weaker() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("own");
        let agent = token(lab, &["--role", "agent", "--sandbox", "own"]);
        let ask = |method: &str, path: &str, body: &Value| {
            let body = body.to_string();
            let json = ["-X", method, "-H", "Content-Type: application/json", "-d", &body];
            server.with(&agent, &json, path)
        };
        let mounts = json!([{ "source": "/", "target": "/host", "access": "rw" }]);
        let wishes = [
            ("privileged", json!(true)),
            ("sandbox", json!(false)),
            ("isolation", json!("none")),
            ("provider", json!("subprocess")),
            ("mounts", mounts),
            ("network", json!("host")),
            ("allow", json!(["*"])),
            ("image", json!("debian")),
            ("user", json!("root")),
            ("profile", json!("debug")),
            ("show", json!([".env"])),
            ("best_effort", json!(true)),
        ];
        let before = server.get("/v1/sandboxes").json();
        for (name, wish) in &wishes {
            let said = |status: u16, reply: &Value| {
                assert!(reply["message"].as_str().is_some_and(|text| !text.is_empty()), "{reply}");
                assert!((400..500).contains(&status), "{name}: {status} {reply}");
            };
            // A child of its own, its own sandbox, a copy of it, one command in it.
            let created =
                ask("POST", "/v1/sandboxes", &json!({ "project": lab.project, *name: wish }));
            assert_eq!(created.status, 403, "{name}");
            said(created.status, &created.json());
            let patched = ask("PATCH", "/v1/sandboxes/own", &json!({ *name: wish }));
            said(patched.status, &patched.json());
            let forked = ask("POST", "/v1/sandboxes/own/fork", &json!({ *name: wish }));
            said(forked.status, &forked.json());
            let command = json!({ "command": ["touch", "ran"], "wait": true, *name: wish });
            let ran = ask("POST", "/v1/sandboxes/own/execs", &command);
            said(ran.status, &ran.json());
        }
        for body in [json!({ "allow": ["*"] }), json!({ "add": ["example.org"] })] {
            assert_eq!(ask("POST", "/v1/sandboxes/own/net", &body).status, 403);
        }
        assert_eq!(server.get("/v1/sandboxes").json(), before);
        // Control: the same command without a wish is run.
        let command = json!({ "command": ["test", "!", "-e", "ran"], "wait": true });
        let ran = ask("POST", "/v1/sandboxes/own/execs", &command).is(200).json();
        assert_eq!(ran["exit_code"], 0, "{ran}");
        server.stop();
    });
}

/// Asks for a sandbox with `more` in its body.
fn create_with(server: &Server<'_>, lab: &Lab, token: &str, more: &Value) -> u16 {
    let mut body = json!({ "project": lab.project });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let body = body.to_string();
    let json = ["-X", "POST", "-H", "Content-Type: application/json", "-d", &body];
    server.with(token, &json, "/v1/sandboxes").status
}

#[test]
fn an_operator_runs_nothing_outside_a_fence() {
    for_both(|lab| {
        let server = lab.serve(&[]);
        let operator = token(lab, &["--role", "operator"]);
        let ran = lab.root.join("ran-outside");
        let script = format!("#!/bin/sh\ntouch {}\nexit 1\n", ran.display());
        let program = |path: std::path::PathBuf| {
            let path = lab.write(path, &script);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            json!({ "provider": format!("oci:{}", path.display()) })
        };
        let elsewhere = program(lab.root.join("runtime"));
        let of_the_project = program(lab.project.join("runtime"));
        let of_the_state = program(lab.state.join("runtime"));
        let wide = [
            json!({ "provider": "subprocess" }),
            json!({ "allow": ["127.0.0.1:9"] }),
            json!({ "network": "allow" }),
            json!({ "profile": "agent" }),
        ];
        let closed = [
            json!({ "provider": "docker" }),
            json!({ "provider": "oci:sh" }),
            json!({ "provider": "" }),
            json!({ "image": "debian" }),
        ];
        let programs = [&elsewhere, &of_the_project, &of_the_state];
        for more in wide.iter().chain(&closed).chain(programs) {
            assert_eq!(create_with(&server, lab, &operator, more), 403, "{more}");
        }
        assert_eq!(server.get("/v1/sandboxes").is(200).json()["items"], json!([]));
        assert!(!ran.exists(), "a program of the caller's choice ran on the host");
        // Nobody runs what a sandbox could have written.
        for more in [&of_the_project, &of_the_state] {
            assert_eq!(create_with(&server, lab, TOKEN, more), 403, "{more}");
        }
        assert!(!ran.exists(), "a program of a sandbox ran on the host");
        // The controls: it is the role that is refused, and the program does run when it is probed.
        for more in &wide {
            assert_eq!(create_with(&server, lab, TOKEN, more), 201, "{more}");
        }
        assert_eq!(create_with(&server, lab, TOKEN, &elsewhere), 422);
        assert!(ran.exists(), "the control did not run");
        assert_eq!(create_with(&server, lab, &operator, &json!({ "provider": "namespace" })), 201);
        server.stop();
    });
}

/// An approver may make a sandbox that isolates nothing; a command in it is one of the server's user,
/// who is an approver.
#[test]
fn an_operator_runs_nothing_where_nothing_is_isolated() {
    for_both(|lab| {
        let server = lab.serve(&[]);
        let operator = token(lab, &["--role", "operator"]);
        for (name, provider) in [("bare", "subprocess"), ("fenced", "namespace")] {
            let more = json!({ "name": name, "provider": provider });
            assert_eq!(create_with(&server, lab, TOKEN, &more), 201);
        }
        let agent = token(lab, &["--role", "agent", "--sandbox", "bare"]);
        let run = |name: &str, token: &str| {
            let body = json!({ "command": ["touch", lab.root.join("ran")] }).to_string();
            let json = ["-X", "POST", "-H", "Content-Type: application/json", "-d", &body];
            server.with(token, &json, &format!("/v1/sandboxes/{name}/execs")).status
        };
        assert_eq!(run("bare", &operator), 403);
        assert_eq!(run("bare", &agent), 403);
        assert!(!lab.root.join("ran").exists());
        // The controls: the role and the provider are what counts.
        assert_eq!(run("fenced", &operator), 201);
        assert_eq!(run("bare", TOKEN), 201);
        server.stop();
    });
}

#[test]
fn a_method_without_a_row_is_refused() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let viewer = token(lab, &["--role", "viewer"]);
        for (token, status) in [(viewer.as_str(), 403), (TOKEN, 200)] {
            server.with(token, &[], "/v1/audit").is(status);
            server.with(token, &["--head"], "/v1/audit").is(status);
            for method in ["OPTIONS", "TRACE", "DELETE", "UNHEARD"] {
                let reply = server.with(token, &["-X", method], "/v1/audit").is(405);
                assert_eq!(reply.header("allow").as_deref(), Some("GET,HEAD"), "{method}");
            }
        }
        server.with(&viewer, &["--head"], "/v1/undo").is(405);
        server.with(TOKEN, &[], "/v1/unheard-of").is(404);
        server.stop();
    });
}

#[test]
fn api_6_from_inside_nothing_of_the_server_is_reached() {
    for_both(|lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let look = format!(
            "env; cat /proc/self/environ; ls {0} 2>&1; cat {1} 2>&1; \
             curl -s --max-time 2 -o /dev/null -w '%{{http_code}}' {2} ; \
             curl -s --max-time 2 -o /dev/null -w '%{{http_code}}' --unix-socket {0}/skep.sock http://localhost/health/live",
            lab.state.display(),
            lab.token_file().display(),
            server.url("/health/live"),
        );
        // Outside, the same words reach it.
        let outside = lab.program("sh").args(["-c", &look]).run();
        assert!(outside.text().ends_with("200200"), "{}", outside.describe());
        let inside = server.script("s", &look);
        let output = inside["stdout"].as_str().unwrap();
        assert!(output.ends_with("000000"), "{output}");
        assert!(!output.contains(TOKEN) && !output.contains("skep.db"), "{output}");
        server.stop();
    });
}

#[test]
fn api_7_other_sites_cannot_make_a_browser_ask() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let body = json!({ "project": lab.project, "name": "csrf" }).to_string();
        let create = |headers: &[&str]| {
            let mut all = vec!["-X", "POST", "-d", body.as_str()];
            for header in headers {
                all.extend(["-H", header]);
            }
            server.with(TOKEN, &all, "/v1/sandboxes").status
        };
        let json = "Content-Type: application/json";
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
            assert_eq!(create(&[&format!("Content-Type: {kind}")]), 415, "{kind}");
        }
        assert_eq!(create(&[json, "Origin: http://evil.test"]), 403);
        assert_eq!(create(&[json, "Origin: null"]), 403);
        assert_eq!(create(&[json, "Sec-Fetch-Site: cross-site"]), 403);
        let stream = ["-H", "Origin: http://evil.test"];
        server.with(TOKEN, &stream, "/v1/events/stream").is(403);
        let upgrade = [
            "-H",
            "Connection: Upgrade",
            "-H",
            "Upgrade: websocket",
            "-H",
            "Sec-WebSocket-Version: 13",
            "-H",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        ];
        let foreign: Vec<_> = upgrade.into_iter().chain(stream).collect();
        server.with(TOKEN, &foreign, "/v1/sandboxes/x/attach").is(403);
        assert_eq!(server.get("/v1/sandboxes").json()["items"], json!([]));
        // The control: the same request in its own form works.
        assert_eq!(create(&[json, &format!("Origin: http://127.0.0.1:{}", server.port)]), 201);
        server.stop();
    });
}

#[test]
fn api_8_only_its_own_names_are_answered() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let port = server.port;
        for bad in [
            "evil.test".to_owned(),
            format!("127.evil.test:{port}"),
            format!("127.0.0.1.evil.test:{port}"),
            format!("127.0.0.1:{}", port ^ 1),
            format!("evil.test@127.0.0.1:{port}"),
            String::new(),
        ] {
            let host = format!("Host: {bad}");
            let host = if bad.is_empty() { "Host:" } else { host.as_str() };
            let status = server.with(TOKEN, &["-H", host], "/v1/sandboxes").status;
            assert!(matches!(status, 400 | 403), "{bad}: {status}");
        }
        let absolute = ["--request-target", "http://evil.test/v1/sandboxes"];
        assert_eq!(server.with(TOKEN, &absolute, "/").status, 403);
        server.get("/v1/sandboxes").is(200);
        server.stop();
    });
}

#[test]
fn api_15_what_is_open_says_next_to_nothing() {
    for_each([Who::user()], |lab| {
        let server: Server<'_> = lab.serve(&[]);
        for path in ["/health/live", "/health/ready"] {
            let reply = server.bare(&[], path).is(200);
            assert_eq!(reply.json(), json!({ "status": "ok" }), "{path}");
        }
        for path in ["/metrics", "/v1/openapi.json", "/docs", "/debug/pprof", "/"] {
            server.bare(&[], path).is(401);
        }
        let metrics = String::from_utf8(server.get("/metrics").is(200).body).unwrap();
        for name in ["skep_create_seconds", "skep_exec_start_seconds", "skep_reconcile_seconds"] {
            assert!(metrics.contains(&format!("# TYPE {name} histogram")), "{name}\n{metrics}");
        }
        assert!(!metrics.contains(lab.root.to_str().unwrap()), "{metrics}");
        assert_eq!(server.get("/v1/sandboxes").json()["items"], json!([]), "the canary is left");
        server.stop();
    });
}
