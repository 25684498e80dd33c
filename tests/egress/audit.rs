//! The log, the summary after a run, `net test` and `net learn`.

use super::origin::Origin;
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
        assert_eq!(heard.len(), 1, "only the plain connection says something: {heard:?}");
        lab.skep(["net", "test", "s", &rule]).run().ok();
    });
}
