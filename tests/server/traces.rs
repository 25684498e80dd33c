//! Traces, as a collector gets them.

use crate::harness::{TOKEN, Who, for_both, for_each, wait_for};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// A collector on this host: takes what is posted, and says that it did.
struct Collector {
    port: u16,
    taken: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let taken: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let kept = Arc::clone(&taken);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut reader = BufReader::new(stream.unwrap());
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    head.push_str(&line);
                    if line.trim().is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                kept.lock().unwrap().push((head, serde_json::from_slice(&body).unwrap()));
                let answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
                let _ = reader.get_mut().write_all(answer.as_bytes());
            }
        });
        Self { port, taken }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn spans(&self) -> Vec<Value> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let taken = self.taken.lock().unwrap();
        let resources = taken.iter().flat_map(|(_, body)| list(&body["resourceSpans"]));
        let scopes = resources.flat_map(|resource| list(&resource["scopeSpans"]));
        scopes.flat_map(|scope| list(&scope["spans"])).collect()
    }

    fn span(&self, name: &str) -> Value {
        wait_for(name, 20, || self.spans().into_iter().find(|span| span["name"] == name))
    }
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let all = span["attributes"].as_array().unwrap();
    let found = all.iter().find(|one| one["key"] == key);
    &found.unwrap_or_else(|| panic!("no {key} in {span}"))["value"]
}

#[test]
fn requests_are_traced_to_a_collector() {
    for_both(|lab| {
        let collector = Collector::start();
        let server = lab.serve(&["--traces", &collector.url()]);
        // The caller's own trace goes on here.
        let parent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let body = json!({ "name": "s", "project": lab.project }).to_string();
        let post = ["-H", parent, "-H", "Content-Type: application/json", "-d", &body];
        let made = server.with(TOKEN, &post, "/v1/sandboxes").is(201);
        let request = collector.span("POST /v1/sandboxes");
        assert_eq!(request["traceId"], "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(request["parentSpanId"], "b7ad6b7169203331");
        assert_eq!(attribute(&request, "http.response.status_code")["intValue"], "201");
        let id = made.header("x-request-id").unwrap();
        assert_eq!(attribute(&request, "skep.request_id")["stringValue"], id.as_str());
        let call = collector.span("engine Create");
        assert_eq!(call["parentSpanId"], request["spanId"]);
        assert_eq!(call["traceId"], request["traceId"]);
        // The log leads to the trace.
        assert!(lab.server_log().contains("0af7651916cd43dd8448eb211c80319c"));
        // A failure is one, and says no more than its code.
        server.get("/v1/sandboxes/no-such-secret-name").is(404);
        let failed = collector.span("engine Show");
        assert_eq!(failed["status"]["message"], "not_found", "{failed}");
        server.stop();
        let taken = collector.taken.lock().unwrap();
        let (head, body) = &taken[0];
        assert!(head.starts_with("POST /v1/traces "), "{head}");
        let service = &body["resourceSpans"][0]["resource"]["attributes"];
        assert!(service.to_string().contains("\"skep\""), "{service}");
        let all = format!("{taken:?}");
        for secret in [TOKEN, "no-such-secret-name", lab.project.to_str().unwrap()] {
            assert!(!all.contains(secret), "`{secret}` was sent to the collector");
        }
    });
}

#[test]
fn a_collector_that_is_away_costs_the_traces_alone() {
    for_each([Who::user()], |lab| {
        // Nothing listens there; and by a setting, not a flag.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let url = format!("http://127.0.0.1:{port}");
        let server = lab.serve_in(&lab.state, &[("SKEP_SERVER_TRACES", url.as_str())], &[]);
        server.create("s");
        assert_eq!(server.script("s", "echo fine")["stdout"], "fine\n");
        server.stop();
        for bad in ["https://127.0.0.1:1", "127.0.0.1:1", "http://user:word@127.0.0.1:1"] {
            lab.skep(["serve", "--traces", bad]).within(20).run().exits(2).says("traces");
        }
        lab.write("skep.toml", "[server]\ntraces = \"http://127.0.0.1:1\"\n");
        lab.skep(["run", "--", "true"]).run().exits(2).says("may not set `server`");
    });
}
