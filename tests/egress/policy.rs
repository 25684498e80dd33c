//! Rules: what is one, what never is, and changing them while a sandbox runs.

use super::RAW;
use super::origin::Origin;
use crate::harness::{for_both, wait_for};
use std::io::Read as _;

#[test]
fn net_8_texts_that_are_no_rule_are_refused_and_nothing_is_made() {
    for_both(|lab| {
        for bad in [
            "*",
            "*.test",
            "",
            "[*]",
            "**.x.test",
            "a.*.test",
            "*a.test",
            "a.test:0",
            "a.test:65536",
            "a.test:https",
            "https://a.test",
            "a.test/path",
            "localhost:80",
            "10.0.0.0/8",
            "127.0.0.1",
            "0.0.0.0:80",
            "[::]:80",
            "@nothing",
            "a..test",
            "a.test\n",
            "user@a.test",
        ] {
            let ran = lab.without_effect(lab.skep(["run", "--allow", bad, "--", "true"]));
            assert_eq!(ran.code(), 2, "{bad:?}: {}", ran.describe());
        }
        let secret = lab.skep(["run", "--secret", "TOK@127.0.0.1:80", "--", "true"]).run();
        secret.exits(2).says("`127.0.0.1:80` is an address");
        lab.skep(["run", "--net", "none", "--allow", "a.test", "--", "true"]).run().exits(2);
        lab.skep(["run", "--net", "host", "--allow", "a.test", "--", "true"]).run().exits(2);
    });
}

#[test]
fn net_9_metadata_is_never_reachable_by_name_address_or_network() {
    for_both(|lab| {
        for never in [
            "169.254.169.254",
            "169.254.169.254:80",
            "[fd00:ec2::254]:80",
            "100.100.100.200:80",
            "192.0.0.192:80",
            "168.63.129.16:80",
            "metadata.google.internal",
            "169.254.0.0/16",
        ] {
            let ran = lab.skep(["run", "--allow", never, "--", "true"]).run();
            assert_eq!(ran.code(), 2, "{never}: {}", ran.describe());
        }
        // A network that holds it, and the address asked for from inside.
        let ran = lab
            .skep([
                "run",
                "--keep",
                "--name",
                "s",
                "--allow",
                "0.0.0.0/0:*",
                "--",
                "/usr/bin/python3",
            ])
            .args(["-c", RAW, "169.254.169.254", "80"])
            .run();
        assert!(ran.text().is_empty() || ran.text().contains(" 403"), "{}", ran.describe());
        let log = lab.skep(["net", "s", "--json"]).run().ok().json_lines();
        assert!(
            log.iter()
                .any(|line| { line["verdict"] == "deny" && line["host"] == "169.254.169.254" }),
            "{log:?}"
        );
    });
}

#[test]
fn net_1_an_empty_list_and_a_malformed_one_let_nothing_out() {
    for_both(|lab| {
        let origin = Origin::start("origin");
        let port = origin.port().to_string();
        let directory = lab.root.join("config");
        let config = directory.join("skep/config.toml");
        let raw = |call: crate::harness::Call| {
            call.args(["--", "/usr/bin/python3", "-c", RAW, "127.0.0.1", &port])
                .env("XDG_CONFIG_HOME", &directory)
                .run()
        };
        for text in ["", "[egress]\nallow = []\n", "[sandbox]\nnetwork = \"allow\"\n"] {
            lab.write(&config, text);
            let ran = raw(lab.skep(["run"]));
            assert!(ran.code() != 0 && ran.text().is_empty(), "{text}: {}", ran.describe());
        }
        for text in [
            "[egress]\nallow = \"127.0.0.1:1\"\n",
            "[egress]\nallow = [7]\n",
            "[egress]\nalow = []\n",
            "[egress]\nallow = [\"*\"]\n",
            "[sandbox]\nnetwork = \"all\"\n",
            "[egress\n",
        ] {
            lab.write(&config, text);
            let ran = raw(lab.skep(["run"]));
            assert_eq!(ran.code(), 2, "{text}: {}", ran.describe());
        }
        assert_eq!(origin.heard(), Vec::<String>::new());
        // Control: the same file with the literal lets it out.
        let text =
            format!("[sandbox]\nnetwork = \"allow\"\n[egress]\nallow = [\"127.0.0.1:{port}\"]\n");
        lab.write(&config, text);
        assert!(raw(lab.skep(["run"])).ok().text().contains("origin"));
        // A project's file may not add what the user did not allow.
        lab.write(&config, "");
        lab.write(
            "skep.toml",
            format!("[sandbox]\nnetwork = \"allow\"\n[egress]\nallow = [\"127.0.0.1:{port}\"]\n"),
        );
        assert_eq!(raw(lab.skep(["run"])).code(), 2);
        let heard = origin.heard().len();
        // Nor a rule that would be in force as soon as somebody allows anything else.
        lab.write("skep.toml", format!("[egress]\nallow = [\"127.0.0.1:{port}\"]\n"));
        assert_eq!(raw(lab.skep(["run", "--allow", "good.example"])).code(), 2);
        assert_eq!(origin.heard().len(), heard, "only the control got through");
    });
}

#[test]
fn net_16_rules_change_while_it_runs_and_what_is_not_allowed_any_more_is_cut() {
    for_both(|lab| {
        let echo = super::origin::echo();
        let (port, rule) = (echo.port().to_string(), format!("127.0.0.1:{}", echo.port()));
        lab.skep(["create", "s", "--net", "allow"]).run().ok();
        let version = lab.sandbox("s")["version"].as_u64().unwrap();
        let tried =
            lab.skep(["exec", "s", "--", "/usr/bin/python3", "-c", RAW, "127.0.0.1", &port]);
        assert_ne!(tried.run().code(), 0);
        let changed = lab.skep(["net", "allow", "s", &rule, "--json"]).run().ok().json();
        assert_eq!(changed["allow"][0], rule.as_str());
        assert!(lab.sandbox("s")["version"].as_u64().unwrap() > version);
        // A connection that stays open, and tells when it is cut.
        let hold = "import socket,sys
s=socket.create_connection(('127.0.0.1',int(sys.argv[1]))); s.sendall(b'one\\n'); print(s.recv(9), flush=True)
try: print('cut' if s.recv(9)==b'' else 'MORE', flush=True)
except OSError: print('cut', flush=True)";
        let mut held = lab.skep(["exec", "s", "--", "/usr/bin/python3", "-c", hold, &port]).spawn();
        let mut output = held.stdout.take().unwrap();
        let mut first = [0; 8];
        output.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"b'one\\n'");
        let bad = lab.skep(["net", "allow", "s", "*"]).run();
        assert_eq!(bad.code(), 2);
        let changed = lab.skep(["net", "deny", "s", &rule, "--json"]).run().ok().json();
        assert_eq!(changed["cut"], 1, "{changed}");
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("cut"), "{rest}");
        wait_for("the end of the client", 20, || held.try_wait().unwrap());
        let tried =
            lab.skep(["exec", "s", "--", "/usr/bin/python3", "-c", RAW, "127.0.0.1", &port]);
        assert_ne!(tried.run().code(), 0);
        lab.skep(["net", "deny", "s", &rule]).run().exits(3);
    });
}

#[test]
fn presets_of_the_users_own() {
    for_both(|lab| {
        let origin = Origin::start("origin");
        let port = origin.port().to_string();
        let directory = lab.root.join("config");
        let config = directory.join("skep/config.toml");
        let mine = format!("[egress.presets]\nmine = [\"127.0.0.1:{port}\", \"a.example\"]\n");
        let skep = |words: &[&str]| lab.skep(words).env("XDG_CONFIG_HOME", &directory);
        let fetch = ["--", "/usr/bin/python3", "-c", RAW, "127.0.0.1", port.as_str()];
        lab.write(&config, &mine);
        assert!(
            skep(&["run", "--allow", "@mine"]).args(fetch).run().ok().text().contains("origin")
        );
        // In the file itself, and in a sandbox that runs; the sandbox has the rules, not the name.
        lab.write(
            &config,
            format!("[sandbox]\nnetwork = \"allow\"\n[egress]\nallow = [\"@mine\"]\n{mine}"),
        );
        assert!(skep(&["run"]).args(fetch).run().ok().text().contains("origin"));
        lab.write(&config, &mine);
        skep(&["create", "s", "--allow", "b.example"]).run().ok();
        let changed = skep(&["net", "allow", "s", "@mine", "--json"]).run().ok().json();
        assert_eq!(changed["allow"][1], format!("127.0.0.1:{port}").as_str(), "{changed}");
        assert!(skep(&["exec", "s"]).args(fetch).run().ok().text().contains("origin"));
        let changed = skep(&["net", "deny", "s", "@mine", "--json"]).run().ok().json();
        assert_eq!(changed["allow"], serde_json::json!(["b.example"]));
        // A name that is built in or unknown, a rule that is none, and a project's file are refused.
        skep(&["run", "--allow", "@other", "--", "true"]).run().exits(2);
        for bad in
            ["github = [\"a.example\"]", "mine = [\"*\"]", "\"M x\" = []", "mine = [\"@mine\"]"]
        {
            lab.write(&config, format!("[egress.presets]\n{bad}\n"));
            assert_eq!(skep(&["run", "--", "true"]).run().code(), 2, "{bad}");
        }
        lab.write(&config, "");
        lab.write("skep.toml", &mine);
        skep(&["run", "--", "true"]).run().exits(2);
    });
}
