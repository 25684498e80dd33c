//! Logging in with a browser: no token in a URL, and no cookie that suffices alone.

use crate::harness::{Lab, Reply, Server, TOKEN, Who, for_both, for_each};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// What a page holds after it logged in.
struct Page {
    cookie: String,
    key: String,
    body: Value,
}

fn log_in(server: &Server<'_>, token: &str, more: &[&str]) -> Reply {
    let body = json!({ "token": token }).to_string();
    let mut arguments = vec!["-H", "Content-Type: application/json", "-d", &body];
    arguments.extend(more);
    server.bare(&arguments, "/v1/session")
}

impl Page {
    fn open(server: &Server<'_>, token: &str) -> Self {
        let reply = log_in(server, token, &[]).is(200);
        let set = reply.header("set-cookie").unwrap();
        for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="] {
            assert!(set.contains(part), "{set}");
        }
        assert!(!set.contains("Domain"), "{set}");
        assert_eq!(reply.header("cache-control").unwrap(), "no-store");
        let body = reply.json();
        let cookie = format!("Cookie: {}", set.split(';').next().unwrap());
        let key = format!("X-Skep-Session: {}", body["key"].as_str().unwrap());
        Self { cookie, key, body }
    }

    fn ask(&self, server: &Server<'_>, more: &[&str], path: &str) -> Reply {
        let mut arguments = vec!["-H", self.cookie.as_str(), "-H", self.key.as_str()];
        arguments.extend(more);
        server.bare(&arguments, path)
    }
}

fn token(lab: &Lab, arguments: &[&str]) -> String {
    lab.skep(["token", "create"]).args(arguments).run().ok().text()
}

#[test]
fn api_7_a_session_is_what_its_token_is_and_ends_with_it() {
    for_both(|lab| {
        let viewer = token(lab, &["--role", "viewer"]);
        let operator = token(lab, &["--role", "operator", "--expires", "1h"]);
        let server = lab.serve(&[]);
        let page = Page::open(&server, &viewer);
        assert_eq!(page.body["role"], "viewer");
        page.ask(&server, &[], "/v1/sandboxes").is(200);
        let create = ["-H", "Content-Type: application/json", "-d", "{}"];
        page.ask(&server, &create, "/v1/sandboxes").is(403);
        assert_eq!(Page::open(&server, TOKEN).body["role"], "approver");
        // Not longer than its token, and twelve hours at most.
        let end = |page: &Page| page.body["expires_at"].as_str().unwrap().to_owned();
        let other = Page::open(&server, &operator);
        assert!(end(&other) < end(&page), "{} {}", end(&other), end(&page));
        // Neither secret suffices, and a second cookie of the name spoils both.
        server.bare(&["-H", &page.cookie], "/v1/sandboxes").is(401);
        server.bare(&["-H", &page.key], "/v1/sandboxes").is(401);
        server.bare(&["-H", &page.cookie, "-H", &other.key], "/v1/sandboxes").is(401);
        let two = format!("{}; skep_session=x.y", page.cookie);
        server.bare(&["-H", &two, "-H", &page.key], "/v1/sandboxes").is(401);
        // Logging out ends it and takes the cookie away; the other one goes on.
        let out = page.ask(&server, &["-X", "DELETE"], "/v1/session").is(204);
        assert!(out.header("set-cookie").unwrap().contains("Max-Age=0"));
        page.ask(&server, &[], "/v1/sandboxes").is(401);
        other.ask(&server, &[], "/v1/sandboxes").is(200);
        // Revoking the token ends its sessions.
        lab.skep(["token", "revoke", &operator]).run().ok();
        other.ask(&server, &[], "/v1/sandboxes").is(401);
        log_in(&server, &operator, &[]).is(401);
        // Nothing of a secret is kept or logged; who logged in is.
        let again = Page::open(&server, &viewer);
        let audit = std::fs::read_to_string(lab.state.join("audit.jsonl")).unwrap();
        let id = viewer.split('_').nth(1).unwrap();
        let line = audit.lines().rfind(|line| line.contains("/v1/session")).unwrap();
        assert!(line.contains(&format!("token:{id}")), "{line}");
        let mut kept = [audit, lab.server_log()].concat();
        for path in crate::harness::entries(&lab.state.join("sessions")) {
            kept.push_str(&std::fs::read_to_string(path).unwrap());
        }
        for secret in [&viewer, &again.cookie, &again.key] {
            let secret = secret.rsplit(['_', '.', ' ']).next().unwrap();
            assert!(!kept.contains(secret), "a secret is kept");
        }
        server.stop();
    });
}

#[test]
fn api_7_a_login_and_a_session_survive_a_restart_but_not_another_bootstrap_token() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let page = Page::open(&server, TOKEN);
        server.kill();
        let server = lab.serve(&[]);
        page.ask(&server, &[], "/v1/sandboxes").is(200);
        server.stop();
        std::fs::write(lab.token_file(), "another-bootstrap-token-0123456789").unwrap();
        let server = lab.serve(&[]);
        page.ask(&server, &[], "/v1/sandboxes").is(401);
        server.stop();
    });
}

#[test]
fn api_7_no_other_site_logs_in_or_uses_a_session() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let page = Page::open(&server, TOKEN);
        let body = json!({ "token": TOKEN }).to_string();
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
            let kind = format!("Content-Type: {kind}");
            server.bare(&["-H", &kind, "-d", &body], "/v1/session").is(415);
        }
        for header in ["Origin: http://evil.test", "Origin: null", "Sec-Fetch-Site: same-site"] {
            log_in(&server, TOKEN, &["-H", header]).is(403);
            page.ask(&server, &["-H", header], "/v1/sandboxes").is(403);
        }
        for bad in ["", "x", &TOKEN[1..]] {
            assert_eq!(log_in(&server, bad, &[]).is(401).header("set-cookie"), None);
        }
        let long = "x".repeat(8 << 10);
        log_in(&server, &long, &[]).is(413);
        let not_json = ["-H", "Content-Type: application/json", "-d", TOKEN];
        let reply = server.bare(&not_json, "/v1/session").is(400);
        assert!(!String::from_utf8_lossy(&reply.body).contains(TOKEN), "it is said back");
        server.bare(&["-X", "POST"], &format!("/v1/session?token={TOKEN}")).is(401);
        // A request by a bare token has no session to end.
        server.with(TOKEN, &["-X", "DELETE"], "/v1/session").is(400);
        // A WebSocket carries the key as a protocol, which is confirmed.
        server.create("s");
        let key = page.key.rsplit(' ').next().unwrap();
        for (protocol, status) in
            [(format!("skep.session.{key}"), "101"), ("skep.session.x".into(), "401")]
        {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            let port = server.port;
            write!(
                stream,
                "GET /v1/sandboxes/s/attach HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n{}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n",
                page.cookie
            )
            .unwrap();
            let mut head = vec![0; 512];
            let length = stream.read(&mut head).unwrap();
            let head = String::from_utf8_lossy(&head[..length]).into_owned();
            assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
            assert_eq!(head.contains(&protocol), status == "101", "{head}");
        }
        server.stop();
    });
}

#[test]
fn api_7_nobody_logs_others_out_by_logging_in() {
    for_each([Who::user()], |lab| {
        let viewer = token(lab, &["--role", "viewer"]);
        let server = lab.serve(&[]);
        let approver = Page::open(&server, TOKEN);
        let first = Page::open(&server, &viewer);
        for _ in 0..33 {
            log_in(&server, &viewer, &[]).is(200);
        }
        approver.ask(&server, &[], "/v1/sandboxes").is(200);
        // Their own oldest went for it.
        first.ask(&server, &[], "/v1/sandboxes").is(401);
        server.stop();
    });
}
