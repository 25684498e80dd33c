//! The way out is the same on every provider that has one, and refused on the others.

use super::{WITH_A_WAY_OUT, for_these};
use crate::egress::RAW;
use crate::egress::names::{ASK, settings};
use crate::egress::origin::{NameServer, Origin};
use crate::egress::redirect::ATTEMPTS;
use crate::harness::for_both;

#[test]
fn net_2_no_packet_leaves_from_any_provider() {
    for_these(&WITH_A_WAY_OUT, |lab, provider| {
        for flags in [&[][..], &["--allow", "a.test"]] {
            let call = lab.skep(["run", "--provider", provider]).args(flags);
            let ran = call.args(["--", "/usr/bin/python3", "-c", ATTEMPTS]).run().ok();
            let text = ran.text();
            for good in ["SENT", "ANSWERED", "OPENED", "CONNECTED"] {
                assert!(!text.contains(good), "{provider}: {}", ran.describe());
            }
            assert!(text.contains("interfaces ['lo']"), "{provider}: {}", ran.describe());
        }
    });
}

#[test]
fn net_3_net_9_net_17_rules_hold_on_every_provider() {
    for_these(&WITH_A_WAY_OUT, |lab, provider| {
        let (origin, other) = (Origin::start("the-origin"), Origin::start("the-other"));
        let rule = format!("127.0.0.1:{}", origin.port());
        lab.skep(["create", "s", "--provider", provider, "--allow", &rule]).run().ok();
        let raw = |host: &str, port: u16| {
            let port = port.to_string();
            lab.skep(["exec", "s", "--", "/usr/bin/python3", "-c", RAW, host, &port]).run()
        };
        // The control: what is allowed gets through.
        let reached = raw("127.0.0.1", origin.port()).ok();
        assert!(reached.text().contains("the-origin"), "{provider}: {}", reached.describe());
        assert_ne!(raw("127.0.0.1", other.port()).code(), 0, "{provider}");
        assert_eq!(other.heard(), Vec::<String>::new(), "{provider}");
        let metadata = raw("169.254.169.254", 80).text();
        assert!(metadata.is_empty() || metadata.contains(" 403"), "{provider}: {metadata}");
        let script = "curl -sS -m 20 -o /dev/null -w '%{http_code}' http://denied.example/";
        assert_eq!(lab.exec_script("s", script).run().text(), "403", "{provider}");
        let log = lab.skep(["net", "s", "--json"]).run().ok().json_lines();
        for host in ["169.254.169.254", "denied.example"] {
            let denied = log.iter().any(|line| line["verdict"] == "deny" && line["host"] == host);
            assert!(denied, "{provider}: no denial of {host} in {log:?}");
        }
        let tested = lab.skep(["net", "test", "s", &rule, "denied.example", "--json"]).run();
        let probes = tested.exits(1).json();
        // Each host by the proxy, and by a connection that knows nothing of it.
        for at in 0..2 {
            assert_eq!(probes[at]["reached"], true, "{provider}: {probes}");
            assert_eq!(probes[at + 2]["allowed"], false, "{provider}: {probes}");
        }
        let report = lab.sandbox("s")["enforcement"]["network"].clone();
        assert_eq!(report["enforced"], true, "{provider}: {report}");
        assert!(report["how"].as_str().unwrap().contains("nft redirect"), "{provider}: {report}");
    });
}

#[test]
fn net_11_net_13_denied_names_are_asked_of_nobody_on_any_provider() {
    for_these(&WITH_A_WAY_OUT, |lab, provider| {
        let server = NameServer::start("8.8.8.8".parse().unwrap());
        let settings = settings(lab, &server);
        let ask = |name: &str| {
            let call = lab.skep(["run", "--provider", provider, "--allow", "yes.example"]);
            let call = call.args(["--", "/usr/bin/python3", "-c", ASK, name]);
            call.env("XDG_CONFIG_HOME", &settings).run().ok()
        };
        let denied = ask("secret-data.no.example");
        assert!(denied.text().contains("udp 1 rcode 3"), "{provider}: {}", denied.describe());
        assert_eq!(server.asked(), Vec::<String>::new(), "{provider}: asked upstream");
        let allowed = ask("yes.example");
        assert!(allowed.text().contains("libc 8.8.8.8"), "{provider}: {}", allowed.describe());
        assert!(server.asked().iter().all(|name| name == "yes.example"), "{provider}");
    });
}

#[test]
fn a_provider_without_a_way_out_refuses_the_rules() {
    for_both(|lab| {
        let line = ["run", "--json", "--provider", "subprocess", "--allow", "a.test", "--", "true"];
        let problem = lab.skep(line).run().exits(5).problem();
        assert_eq!(problem["code"], "missing_capability", "{problem}");
        assert!(problem.to_string().contains("--net allow"), "{problem}");
    });
}
