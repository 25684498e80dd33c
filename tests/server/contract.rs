//! Requests made up from the OpenAPI document, by us and by schemathesis: none of them is a server's
//! error.

use crate::harness::{Lab, Server, TOKEN, Who, for_each, long};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;

/// Where ci/provision puts it.
fn schemathesis() -> Option<PathBuf> {
    let place =
        std::env::var_os("SKEP_TEST_PYTHON").unwrap_or_else(|| "/var/lib/skep-python".into());
    let program = PathBuf::from(place).join("bin/schemathesis");
    if program.exists() {
        return Some(program);
    }
    println!("skipped: schemathesis is not installed; see ci/provision");
    None
}

/// Values for a schema: some that fit, and many that do not.
fn values(document: &Value, schema: &Value, depth: usize) -> Vec<Value> {
    let name = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next());
    let schema = name.map_or(schema, |name| &document["components"]["schemas"][name]);
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.first().and_then(Value::as_str).unwrap_or("object"),
        kind => kind.as_str().unwrap_or("object"),
    };
    let mut made = vec![json!(null), json!([]), json!({ "unknown": 1 }), json!(-1), json!("\u{0}")];
    match kind {
        "string" => made.extend([
            json!(""),
            json!("s"),
            json!("../../etc"),
            json!("é\u{202e}\n'\";--%s%00"),
            json!("x".repeat(5000)),
        ]),
        "integer" | "number" => {
            made.extend([json!(0), json!(1), json!(u64::MAX), json!(1.5), json!(1e300)]);
        }
        "boolean" => made.extend([json!(true), json!(false)]),
        "array" if depth > 0 => {
            for one in values(document, &schema["items"], depth - 1) {
                made.push(json!([one]));
            }
        }
        _ if depth > 0 => {
            let Some(properties) = schema["properties"].as_object() else { return made };
            let fitting = |schema: &Value| {
                let mut all = values(document, schema, depth - 1);
                all.truncate(7);
                all.pop().unwrap_or(Value::Null)
            };
            let whole: serde_json::Map<String, Value> =
                properties.iter().map(|(key, schema)| (key.clone(), fitting(schema))).collect();
            made.push(json!({}));
            made.push(Value::Object(whole.clone()));
            for (key, schema) in properties {
                for value in values(document, schema, depth - 1) {
                    let mut one = whole.clone();
                    one.insert(key.clone(), value);
                    made.push(Value::Object(one));
                }
            }
        }
        _ => {}
    }
    made
}

/// Every endpoint of the document with bodies, names and queries that were made up for it. What takes
/// something over into the project, or ends everything, is asked last.
#[test]
fn nothing_made_up_is_a_servers_error() {
    for_each([Who::user()], |lab| {
        lab.write("a.txt", "one\n");
        let server = lab.serve(&["--max-sandboxes", "3"]);
        server.create("s");
        let document = server.get("/v1/openapi.json").is(200).json();
        let (mut asked, mut failed) = (0, Vec::new());
        for (path, methods) in document["paths"].as_object().unwrap() {
            let endless = ["/stream", "/attach", "/watch", "/ready"];
            if endless.iter().any(|end| path.ends_with(end)) {
                continue;
            }
            for (method, endpoint) in methods.as_object().unwrap() {
                for target in targets(path, endpoint) {
                    for body in bodies(&document, endpoint) {
                        let status = ask(&server, &method.to_uppercase(), &target, body.as_ref());
                        asked += 1;
                        let told = endpoint["responses"].get(status.to_string()).is_some();
                        if !told || !(200..500).contains(&status) && ![503, 507].contains(&status) {
                            failed.push(format!("{status}: {method} {target} {body:?}"));
                        }
                    }
                }
            }
        }
        assert!(failed.is_empty(), "{} of {asked}: {failed:#?}", failed.len());
        assert!(asked > 500, "{asked}");
        server.with(TOKEN, &[], "/v1/sandboxes").is(200);
        server.stop();
    });
}

fn targets(path: &str, endpoint: &Value) -> Vec<String> {
    let names = ["s", "nothing", "%00", "..%2F..", "%F0%9F%90%9D"];
    let queries: Vec<String> = endpoint["parameters"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|parameter| parameter["in"] == "query")
        .filter_map(|parameter| parameter["name"].as_str())
        .flat_map(|name| {
            ["", "x", "-1", "99999999999999999999", "a.txt", "%00", "..%2F..%2Fetc"]
                .map(|value| format!("{name}={value}"))
        })
        .collect();
    let named = |name: &str| {
        let mut target = path.to_owned();
        for part in ["{sandbox}", "{exec}", "{approval}", "{name}"] {
            target = target.replace(part, name);
        }
        target
    };
    let mut all: Vec<String> = names.iter().map(|name| named(name)).collect();
    all.extend(queries.iter().map(|query| format!("{}?{query}", named("s"))));
    all.dedup();
    all
}

fn bodies(document: &Value, endpoint: &Value) -> Vec<Option<Value>> {
    let schema = &endpoint["requestBody"]["content"]["application/json"]["schema"];
    if schema.is_null() {
        return vec![None];
    }
    // Not everything with everything: each value of a field once, spread over a bounded number.
    let mut made = values(document, schema, 2);
    let step = (made.len() / if long() { 400 } else { 24 }).max(1);
    made = made.into_iter().step_by(step).collect();
    made.into_iter().map(Some).collect()
}

fn ask(server: &Server<'_>, method: &str, target: &str, body: Option<&Value>) -> u16 {
    use std::io::{Read as _, Write as _};
    let body = body.map(ToString::to_string).unwrap_or_default();
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        server.port,
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer[..answer.len().min(40)]).into_owned();
    text.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn run(lab: &Lab, program: &PathBuf, url: &str, more: &[&str]) -> (bool, String) {
    let done = Command::new(program)
        .args(["run", url, "-H"])
        .arg(format!("Authorization: Bearer {TOKEN}"))
        .args(["--seed", "1", "--request-timeout", "30", "--suppress-health-check", "all"])
        .args(more)
        .current_dir(&lab.root)
        .env("HOME", &lab.root)
        .output()
        .unwrap();
    let mut said = String::from_utf8_lossy(&done.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&done.stderr));
    (done.status.success(), said)
}

#[test]
fn heavy_nothing_made_up_from_the_document_is_a_servers_error() {
    for_each([Who::user()], |lab| {
        let Some(program) = schemathesis() else { return };
        lab.write("a.txt", "one\n");
        let server = lab.serve(&["--max-sandboxes", "20"]);
        server.create("s");
        let url = server.url("/v1/openapi.json");
        let examples = if long() { "50" } else { "4" };
        // Streams do not end, readiness is a 503 by design while it fails, and it knows no tar.
        let (well, said) = run(
            lab,
            &program,
            &url,
            &[
                "--phases",
                "coverage,fuzzing",
                "--checks",
                "not_a_server_error",
                "--max-examples",
                examples,
                "--exclude-path-regex",
                "(/stream|/attach|/watch|/health/ready|/files/tar)$",
                "--continue-on-failure",
            ],
        );
        assert!(well, "{}", &said[said.len().saturating_sub(12_000)..]);
        // It still works. What was made up may have filled it, given `s` a short life, or removed it.
        for one in server.get("/v1/sandboxes?limit=100").is(200).json()["items"].as_array().unwrap()
        {
            let path = format!("/v1/sandboxes/{}?discard=true", one["id"].as_str().unwrap());
            server.with(TOKEN, &["-X", "DELETE"], &path);
        }
        server.create("afterwards");
        assert_eq!(server.script("afterwards", "echo fine")["stdout"], "fine\n");
        server.stop();
    });
}
