//! What the way out must be on every provider, in one sandbox: a machine takes long to start.

use super::RAW;
use super::names::{ASK, settings};
use super::origin::{NameServer, Origin, echo, free_port};
use super::redirect::ATTEMPTS;
use crate::harness::{Call, Lab};

/// Sends a megabyte, says that this was all, and looks whether the same comes back.
pub(super) const ECHO: &str = "import socket,sys,threading,hashlib
s=socket.create_connection(('127.0.0.1',int(sys.argv[1])),30); s.settimeout(60)
data=bytes(range(256))*4096
def send(): s.sendall(data); s.shutdown(socket.SHUT_WR)
t=threading.Thread(target=send); t.start()
back=b''.join(iter(lambda: s.recv(65536), b'')); t.join()
print('same' if back==data else 'other %d' % len(back))
";

/// net-2, net-3, net-9, net-11, net-13 and net-17 with `--provider PROVIDER`, and `skep net test`, `net
/// allow` and `net deny` while it runs. `with`: what else creating it takes. `how`: what the report must
/// say of it.
pub(crate) fn the_way_out(lab: &Lab, provider: &str, with: &dyn Fn(Call) -> Call, how: &str) {
    let (origin, other) = (Origin::start("the-origin"), Origin::start("the-other"));
    let (server, echo) = (NameServer::start("8.8.8.8".parse().unwrap()), echo());
    let settings = settings(lab, &server);
    let rule = format!("127.0.0.1:{}", origin.port());
    let create = with(lab.skep(["create", "s", "--provider", provider]));
    let create = create.args(["--allow", &rule, "--allow", &echo.to_string()]);
    let create = create.args(["--allow", "yes.example", "--secret", "TOKEN@yes.example"]);
    create
        .env("TOKEN", "plain-value-of-it")
        .env("XDG_CONFIG_HOME", &settings)
        .within(240)
        .run()
        .ok();
    let report = lab.sandbox("s")["enforcement"]["network"].clone();
    assert_eq!(report["enforced"], true, "{provider}: {report}");
    assert!(report["how"].as_str().unwrap().contains(how), "{provider}: {report}");
    let python = |script: &str, words: &[&str]| -> Call {
        let call = lab.skep(["exec", "s", "--", "/usr/bin/python3", "-c", script]).args(words);
        call.within(120)
    };
    let raw = |host: &str, port: u16| python(RAW, &[host, &port.to_string()]).run();

    // net-2: nothing leaves but what is allowed.
    let attempts = python(ATTEMPTS, &[]).run().ok();
    for good in ["SENT", "ANSWERED", "OPENED", "CONNECTED"] {
        assert!(!attempts.text().contains(good), "{provider}: {}", attempts.describe());
    }
    assert!(attempts.text().contains("interfaces ['lo']"), "{provider}: {}", attempts.describe());

    // net-3, net-17: the literal that is allowed, the control for what is not.
    let reached = raw("127.0.0.1", origin.port()).ok();
    assert!(reached.text().contains("the-origin"), "{provider}: {}", reached.describe());
    let back = python(ECHO, &[&echo.port().to_string()]).run().ok();
    assert_eq!(back.text(), "same", "{provider}");
    assert_ne!(raw("127.0.0.1", other.port()).code(), 0, "{provider}");
    assert_ne!(raw("127.0.0.1", free_port()).code(), 0, "{provider}");
    assert_eq!(other.heard(), Vec::<String>::new(), "{provider}");

    // net-9: metadata, and a denial that teaches, by the proxy and without.
    let metadata = raw("169.254.169.254", 80).text();
    assert!(metadata.is_empty() || metadata.contains(" 403"), "{provider}: {metadata}");
    let script = "curl -sS -m 60 -o /dev/null -w '%{http_code}' http://denied.example/";
    assert_eq!(lab.exec_script("s", script).within(120).run().text(), "403", "{provider}");

    // net-11, net-13: names.
    let denied = python(ASK, &["secret-data.no.example"]).run().ok();
    assert!(denied.text().contains("udp 1 rcode 3"), "{provider}: {}", denied.describe());
    assert_eq!(server.asked(), Vec::<String>::new(), "{provider}: asked upstream");
    let allowed = python(ASK, &["yes.example"]).run().ok();
    for good in ["libc 8.8.8.8", "own resolver rcode 0", "tcp rcode 0"] {
        assert!(allowed.text().contains(good), "{provider}: {}", allowed.describe());
    }
    assert!(server.asked().iter().all(|name| name == "yes.example"), "{provider}");

    // Secrets: a placeholder inside, and an authority to trust.
    let seen = lab.exec_script("s", "echo $TOKEN; head -c 27 $SSL_CERT_FILE").run().ok().text();
    assert!(
        !seen.contains("plain-value") && seen.contains("BEGIN CERTIFICATE"),
        "{provider}: {seen}"
    );

    what_was_tried_is_told(lab, provider, &rule);
    rules_change_while_it_runs(lab, provider, &rule, &|| raw("127.0.0.1", origin.port()).text());
    lab.skep(["rm", "--discard", "s"]).within(60).run().ok();
}

fn what_was_tried_is_told(lab: &Lab, provider: &str, rule: &str) {
    let log = lab.skep(["net", "s", "--json"]).run().ok().json_lines();
    for host in ["169.254.169.254", "denied.example"] {
        let denied = log.iter().any(|line| line["verdict"] == "deny" && line["host"] == host);
        assert!(denied, "{provider}: no denial of {host} in {log:?}");
    }
    let tested = lab.skep(["net", "test", "s", rule, "denied.example", "--json"]).within(120).run();
    let probes = tested.exits(1).json();
    // Each host by the proxy, and by a connection that knows nothing of it.
    for at in 0..2 {
        assert_eq!(probes[at]["reached"], true, "{provider}: {probes}");
        assert_eq!(probes[at + 2]["allowed"], false, "{provider}: {probes}");
    }
}

fn rules_change_while_it_runs(lab: &Lab, provider: &str, rule: &str, reach: &dyn Fn() -> String) {
    lab.skep(["net", "deny", "s", rule]).within(120).run().ok();
    assert!(!reach().contains("the-origin"), "{provider}");
    lab.skep(["net", "allow", "s", rule]).within(120).run().ok();
    assert!(reach().contains("the-origin"), "{provider}");
}
