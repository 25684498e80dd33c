//! The log, the summary after a run, `net test` and `net learn`.

use super::origin::{Origin, free_port};
use crate::harness::for_both;

const FETCH: &str = "import urllib.request,sys
for url in sys.argv[1:]:
    try: print(urllib.request.urlopen(url, timeout=15).read().decode())
    except Exception as e: print(getattr(e,'code',None), e.read().decode() if hasattr(e,'read') else e)
";

#[test]
fn net_3_a_denied_request_gets_a_403_that_explains_itself_and_a_line_in_the_log() {
    for_both(|lab| {
        let origin = Origin::start("origin");
        let rule = format!("127.0.0.1:{}", origin.port());
        let ran = lab
            .skep([
                "run",
                "--keep",
                "--name",
                "s",
                "--allow",
                &rule,
                "--",
                "/usr/bin/python3",
                "-c",
            ])
            .args([FETCH, "http://denied.example/", &format!("http://{rule}/")])
            .run()
            .ok();
        let text = ran.text();
        let body = text
            .lines()
            .find_map(|line| line.strip_prefix("403 "))
            .unwrap_or_else(|| panic!("no refusal: {}", ran.describe()));
        let body: serde_json::Value = serde_json::from_str(body.trim()).unwrap();
        for key in ["error", "host", "port", "rule", "hint"] {
            assert!(body.get(key).is_some(), "{key}: {body}");
        }
        assert_eq!(body["host"], "denied.example");
        assert!(text.contains("origin"), "{}", ran.describe());
        assert!(ran.errors().contains("--allow denied.example"), "{}", ran.describe());
        let log = lab.skep(["net", "s", "--json"]).run().ok().json_lines();
        let denied = log.iter().find(|line| line["verdict"] == "deny").unwrap();
        for key in [
            "at",
            "exec",
            "host",
            "port",
            "ip",
            "proto",
            "verdict",
            "rule",
            "reason",
            "bytes_in",
            "bytes_out",
        ] {
            assert!(denied.get(key).is_some(), "{key}: {denied}");
        }
        let allowed = log.iter().find(|line| line["verdict"] == "allow").unwrap();
        assert_eq!(allowed["rule"], rule.as_str());
        assert!(allowed["bytes_in"].as_u64().unwrap() > 0);
        let learnt = lab.skep(["net", "learn", "s", "--json"]).run().ok().json();
        assert_eq!(learnt["add"][0], "denied.example", "{learnt}");
        let shown = lab.skep(["net", "learn", "s"]).run().ok().text();
        assert!(shown.contains("+  \"denied.example\""), "{shown}");
    });
}

#[test]
fn net_test_proves_both_verdicts_from_inside() {
    for_both(|lab| {
        let origin = Origin::start("origin");
        let rule = format!("127.0.0.1:{}", origin.port());
        lab.skep(["create", "s", "--allow", &rule]).run().ok();
        let ran = lab.skep(["net", "test", "s", &rule, "denied.example", "--json"]).run().exits(1);
        let probes = ran.json();
        // Each by the proxy and by a connection that knows nothing of it.
        for at in 0..2 {
            assert_eq!(probes[at]["reached"], true, "{probes}");
            assert_eq!(probes[at]["allowed"], true, "{probes}");
            assert_eq!(probes[at + 2]["reached"], false, "{probes}");
            assert_eq!(probes[at + 2]["allowed"], false, "{probes}");
        }
        let how = |at: usize| probes[at]["how"].as_str().unwrap().to_owned();
        assert!(how(0).contains("CONNECT") && how(1).contains("plain"), "{probes}");
        assert!(probes[2]["hint"].as_str().unwrap().contains("denied.example"), "{probes}");
        let heard: Vec<_> = origin.heard().into_iter().filter(|text| !text.is_empty()).collect();
        assert_eq!(heard, Vec::<String>::new(), "nobody knows what is spoken there");
        // Allowed, and nobody there: neither reached nor denied, by both ways.
        let nobody = format!("127.0.0.1:{}", free_port());
        lab.skep(["net", "allow", "s", &nobody]).run().ok();
        let dead = lab.skep(["net", "test", "s", &nobody, "--json"]).run().exits(1).json();
        for at in 0..2 {
            let seen = (&dead[at]["reached"], &dead[at]["allowed"]);
            assert_eq!(seen, (&false.into(), &true.into()), "{dead}");
        }
        // Allowed, and its name leads nowhere: that is DNS, and no denial.
        lab.skep(["net", "allow", "s", "nowhere.invalid"]).run().ok();
        let line = ["net", "test", "s", "nowhere.invalid"];
        let nameless = lab.skep(line).arg("--json").run().exits(1).json();
        for at in 0..2 {
            let seen = (&nameless[at]["reached"], &nameless[at]["allowed"]);
            assert_eq!(seen, (&false.into(), &true.into()), "{nameless}");
        }
        let said = lab.skep(line).run().exits(1).text();
        assert_eq!(said.matches("DNS failed").count(), 2, "{said}");
        assert!(!said.contains("denied"), "{said}");
    });
}

/// Names that carry line ends and escapes, in every field that a program inside can fill.
const HOSTILE: &str = r#"
import os,socket,struct
proxy=('127.0.0.1',int(os.environ['HTTP_PROXY'].rsplit(':',1)[1]))
evil=b'x\n{"verdict":"allow","host":"forged"}\x1b[2J\r'
def quiet(f):
    try: f()
    except OSError: pass
def ask():
    s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(10)
    s.sendto(struct.pack('>HHHHHH',7,256,1,0,0,0)+bytes([len(evil)])+evil+b'\4test\0'+struct.pack('>HH',1,1),('127.0.0.1',53)); s.recv(999)
def say(to,data):
    s=socket.create_connection(to,10); s.settimeout(10); s.sendall(data); s.shutdown(1)
    while s.recv(999): pass
quiet(ask)
quiet(lambda: say(proxy,b'\5\1\0\5\1\0\3'+bytes([len(evil)])+evil+b'\0\x50'))
quiet(lambda: say(proxy,b'CONNECT '+evil+b':443 HTTP/1.1\r\n\r\n'))
quiet(lambda: say(('203.0.113.9',80),b'GET / HTTP/1.1\r\nHost: a\x1b[31m\x7f\xc2\x9b.test\r\n\r\n'))
name=evil; ext=struct.pack('>HBH',len(name)+3,0,len(name))+name; ext=struct.pack('>HH',0,len(ext))+ext
body=b'\3\3'+b'r'*32+b'\0\0\2\x13\x01\1\0'+struct.pack('>H',len(ext))+ext
hello=b'\1'+struct.pack('>I',len(body))[1:]+body
quiet(lambda: say(('203.0.113.9',443),b'\x16\3\1'+struct.pack('>H',len(hello))+hello))
"#;

#[test]
fn net_19_what_programs_call_hosts_stays_in_one_line_and_paints_no_terminal() {
    for_both(|lab| {
        let run = ["run", "--keep", "--name", "s", "--allow", "a.test", "--", "/usr/bin/python3"];
        let ran = lab.skep(run).args(["-c", HOSTILE]).run();
        // The file itself: each line is an object with the promised keys, none was made up inside.
        let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
        let text =
            std::fs::read(lab.state.join("sandboxes").join(id).join("egress.jsonl")).unwrap();
        assert!(text.len() > 100 && text.ends_with(b"\n"), "{}", ran.describe());
        let lines: Vec<_> =
            text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
        assert!(lines.len() >= 3, "{}", String::from_utf8_lossy(&text));
        for line in lines {
            let entry: serde_json::Value = serde_json::from_slice(line).unwrap();
            assert_eq!(entry["verdict"], "deny", "{entry}");
            assert_ne!(entry["host"], "forged", "{entry}");
            assert!(!line.iter().any(|byte| byte.is_ascii_control()), "{entry}");
        }
        // Nor what is shown of it.
        let shown = lab.skep(["net", "s"]).run().ok();
        for said in [shown.text(), ran.errors()] {
            assert!(!said.contains('\x1b') && !said.contains('\u{9b}'), "{said:?}");
        }
    });
}
