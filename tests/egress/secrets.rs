//! Secrets: read at every start, in nobody's files, and inside only what was meant.

use super::world::in_world;
use crate::harness::{Lab, for_both, outside};
use std::fs;

const VALUE: &str = "sk-ant-api03-Qz7RealRealReal0123456789";

fn below(path: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => below(&entry.path(), found),
            kind if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
}

/// Files of the state and variables and arguments of processes that hold the value.
fn leaks(lab: &Lab) -> Vec<String> {
    let mut files = Vec::new();
    below(&lab.state, &mut files);
    for process in outside::processes_of(&lab.root) {
        // Inside, plain values are where they were asked for; these are the ones outside.
        if process.command.contains("skep") {
            files.push(format!("/proc/{}/cmdline", process.pid).into());
            files.push(format!("/proc/{}/environ", process.pid).into());
        }
    }
    let holds = |path: &std::path::PathBuf| {
        let bytes = fs::read(path).unwrap_or_default();
        bytes.windows(VALUE.len()).any(|window| window == VALUE.as_bytes())
    };
    files.iter().filter(|path| holds(path)).map(|path| path.display().to_string()).collect()
}

#[test]
fn api_17_a_secrets_value_is_nowhere_but_in_memory() {
    for_both(|lab| {
        let secret = ["--secret", "KEY@api.example", "--allow", "api.example"];
        let call = lab.skep(["create", "s"]).args(secret).env("KEY", VALUE);
        call.run().ok();
        let inside =
            lab.exec_script("s", "echo $KEY; cat /run/skep/ca.pem | head -c 40; env").run().ok();
        assert!(!inside.text().contains("RealRealReal"), "{}", inside.describe());
        assert!(inside.text().starts_with("sk-ant-api03-"), "{}", inside.describe());
        for name in ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE"]
        {
            assert!(inside.text().contains(&format!("{name}=/run/skep/ca.pem")), "{name}");
        }
        assert_eq!(leaks(lab), Vec::<String>::new());
        let shown = lab.skep(["show", "s", "--json"]).run().ok().json();
        assert_eq!(shown["network"]["secrets"][0]["name"], "KEY");
        assert_eq!(shown["network"]["secrets"][0]["source"], "env:KEY");
        assert_eq!(shown["network"]["secrets"][0]["plain"], false);
        // Read anew at every start; where it cannot be, the start is refused and named.
        lab.skep(["stop", "s"]).run().ok();
        lab.skep(["start", "s"]).run().exits(5).says("env:KEY");
        lab.skep(["start", "s"]).env("KEY", VALUE).run().ok();
        lab.skep(["net", "revoke", "s", "KEY"]).run().ok();
        let shown = lab.skep(["show", "s", "--json"]).run().ok().json();
        assert_eq!(shown["network"]["secrets"].as_array().unwrap().len(), 0);
        assert_eq!(leaks(lab), Vec::<String>::new());
    });
}

#[test]
fn a_plain_secret_is_inside_and_named_as_such() {
    for_both(|lab| {
        let path = lab.root.join("key");
        lab.write(&path, format!("{VALUE}\n"));
        let source = format!("TOKEN=file:{}", path.display());
        lab.skep(["create", "s", "--secret-env", &source]).run().ok();
        // What a command prints is kept; so it says only how long the value is.
        let length = lab.exec_script("s", "echo ${#TOKEN}").run().ok().text();
        assert_eq!(length, VALUE.len().to_string());
        assert_eq!(leaks(lab), Vec::<String>::new());
        let shown = lab.skep(["show", "s"]).run().ok().text();
        assert!(shown.contains("IN THE CLEAR"), "{shown}");
        lab.skep(["create", "t", "--secret-env", "X=cmd:exit 3"]).run().exits(5);
        let typed = lab.skep(["create", "t", "--secret-env", &format!("X={VALUE}")]).run().exits(2);
        assert!(typed.errors().contains("never typed"), "{}", typed.describe());
        lab.skep(["create", "t", "--secret", "KEY@api.example"]).env("KEY", VALUE).run().exits(2);
    });
}

#[test]
fn a_secret_reaches_its_host_in_tls_and_nobody_else() {
    in_world(&[], |world| {
        let ca = world.place.join("ca.pem");
        world.settings(&format!("extra_ca = [\"{}\"]\nsecret_bodies = [\"BODY\"]\n", ca.display()));
        let body = "sk-body-1234567890abcdef";
        // As agents, git, pip and npm send it: in a header, in a query, in `Basic`, in a body.
        let script = r#"ask() { curl -sS --noproxy '*' "$@" 2>&1 | tr '\n' ' '; echo; }
for url in https://origin.test/echo http://origin.test/echo https://other.test/echo; do
ask -H "Authorization: Bearer $KEY" -u "user:$KEY" "$url?key=$KEY" -d "{\"key\":\"$KEY\",\"body\":\"$BODY\"}"
ask -x $HTTP_PROXY --noproxy none -H "X-Api-Key: $KEY" $url
done"#;
        let call = world.skep(["run", "--keep", "--name", "s", "--allow", "origin.test"]);
        let call = call.args(["--allow", "other.test", "--secret", "KEY@origin.test"]);
        let call = call.args(["--secret", "BODY@origin.test", "--", "sh", "-c", script]);
        let ran = call.env("KEY", VALUE).env("BODY", body).run().ok();
        let requests = world.requests();
        assert_eq!(requests.len(), 6, "{}", ran.describe());
        let basic = {
            // `user:VALUE` in base64, by another program than the one that made it.
            let mut encode = std::process::Command::new("base64");
            let mut child = encode
                .arg("-w0")
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let text = format!("user:{VALUE}");
            std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
            String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
        };
        for request in &requests {
            let text = request.to_string();
            let meant = request["scheme"] == "https" && request["host"] == "origin.test";
            assert_eq!(text.contains(VALUE) || text.contains(&basic), meant, "{request}");
            assert_eq!(
                text.contains(body),
                meant && request["line"].as_str().unwrap().contains("POST"),
                "{request}"
            );
            // A secret that is not for bodies stays out of them.
            assert!(!request["body"].as_str().unwrap().contains(VALUE), "{request}");
        }
        let first = requests[0]["line"].as_str().unwrap();
        assert!(first.contains(&format!("key={VALUE}")), "{first}");
        world.skep(["stop", "s"]).run();
    });
}

/// Used, refused, revoked and gone wrong: whatever is said about it afterwards does not have the value.
#[test]
fn api_17_a_secret_in_use_is_in_no_error_event_or_dump() {
    in_world(&[], |world| {
        // The origin's authority is not known, so every request with the secret fails at the edge.
        let line = ["create", "s", "--allow", "origin.test", "--secret", "KEY@origin.test"];
        world.skep(line).env("KEY", VALUE).run().ok();
        let script = r#"curl -sS --noproxy '*' -H "Authorization: Bearer $KEY" https://origin.test/ 2>&1
curl -sS --noproxy '*' -u "user:$KEY" "https://origin.test/?k=$KEY" 2>&1; curl -sS -d "$KEY" https://denied.test/ 2>&1; true"#;
        let mut said = vec![world.skep(["exec", "s", "--", "sh", "-c", script]).run().ok()];
        assert!(said[0].text().contains("certificate"), "{}", said[0].describe());
        // A host, a rule, a name that is the value: told by an error, and by nothing that is kept.
        let typed = format!("KEY@{VALUE}");
        said.push(world.skep(["create", "t", "--secret", &typed]).env("KEY", VALUE).run());
        for words in [
            &["net", "s", "--json"][..],
            &["net", "test", "s", "origin.test"],
            &["show", "s", "--json"],
            &["show", "s"],
            &["events", "--json"],
            &["logs", "s"],
            &["net", "revoke", "s", "KEY"],
            &["net", "revoke", "s", "KEY"],
            &["stop", "s"],
            &["start", "s"],
        ] {
            said.push(world.skep(words).run());
        }
        for ran in said.iter().filter(|ran| !ran.describe().contains(&typed)) {
            assert!(!ran.describe().contains(VALUE), "{}", ran.describe());
        }
        assert_eq!(leaks(world.lab), Vec::<String>::new());
        assert!(world.requests().iter().all(|request| !request.to_string().contains(VALUE)));
    });
}

/// Nobody's memory is written to a file, and no other process of the user's can look into it.
#[test]
fn api_17_processes_that_hold_a_secret_leave_no_core() {
    for_both(|lab| {
        let line = ["create", "s", "--allow", "a.example", "--secret", "KEY@a.example"];
        lab.skep(line).env("KEY", VALUE).run().ok();
        let all = outside::processes_of(&lab.root);
        let mut seen = 0;
        for process in all.iter().filter(|one| one.command.contains("skep")) {
            let limits = fs::read_to_string(format!("/proc/{}/limits", process.pid)).unwrap();
            let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
            let words: Vec<&str> = core.split_ascii_whitespace().collect();
            assert_eq!(words[4..6], ["0", "0"], "{}: {core}", process.command);
            seen += 1;
        }
        assert!(seen >= 2, "a keeper and an egress process: {all:?}");
    });
}
