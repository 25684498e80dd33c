use super::*;

fn rules(texts: &[&str]) -> RuleSet {
    RuleSet::parse(texts).unwrap()
}

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

/// `allow RULE` or the reason.
fn ask(
    rules: &RuleSet,
    host: &str,
    address: Option<&str>,
    port: u16,
    protocol: Protocol,
) -> String {
    let host = Host::parse(host).unwrap();
    let question = Question {
        name: host.name(),
        address: address.map(|text| text.parse().unwrap()).or(host.address()),
        port,
        protocol,
    };
    match rules.decide(&question) {
        Verdict::Allow { rule } => format!("allow {rule}"),
        Verdict::Deny { reason, hint } => {
            assert!(!hint.is_empty());
            reason.to_owned()
        }
    }
}

const PUBLIC: Option<&str> = Some("8.8.8.8");

#[test]
fn net_1_nothing_is_allowed_by_nothing() {
    let none = rules(&[]);
    assert!(none.is_empty());
    assert_eq!(ask(&none, "a.test", PUBLIC, 443, Protocol::Tls), "not-allowed");
    assert_eq!(ask(&none, "8.8.8.8", None, 443, Protocol::Tls), "not-allowed");
    assert!(!none.decide_name(&name("a.test")).is_allowed());
    assert_eq!(none, RuleSet::default());
    assert!(RuleSet::parse(&["a.test", "*"]).is_err(), "one bad rule refuses the list");
}

#[test]
fn net_8_a_wildcard_is_everything_below_and_not_the_apex() {
    let set = rules(&["*.ex.test"]);
    for yes in ["a.ex.test", "b.a.ex.test"] {
        assert_eq!(ask(&set, yes, PUBLIC, 443, Protocol::Tls), "allow *.ex.test");
        assert!(set.decide_name(&name(yes)).is_allowed());
    }
    for no in ["ex.test", "evilex.test", "ex.test.evil", "test"] {
        assert_eq!(ask(&set, no, PUBLIC, 443, Protocol::Tls), "not-allowed");
        assert!(!set.decide_name(&name(no)).is_allowed());
    }
}

#[test]
fn net_4_ports_and_protocols() {
    let set = rules(&[
        "a.test",
        "b.test:22",
        "tls://c.test:8443",
        "http://d.test",
        "tcp://e.test:443",
        "f.test:*",
    ]);
    for (host, port, protocol, expected) in [
        ("a.test", 443, Protocol::Tls, "allow a.test"),
        ("a.test", 80, Protocol::Http, "allow a.test"),
        ("a.test", 443, Protocol::Tcp, "protocol-not-allowed"),
        ("a.test", 443, Protocol::Http, "protocol-not-allowed"),
        ("a.test", 80, Protocol::Tls, "protocol-not-allowed"),
        ("a.test", 22, Protocol::Tcp, "port-not-allowed"),
        ("b.test", 22, Protocol::Tcp, "allow b.test:22"),
        ("b.test", 443, Protocol::Tls, "port-not-allowed"),
        ("c.test", 8443, Protocol::Tls, "allow tls://c.test:8443"),
        ("c.test", 8443, Protocol::Tcp, "protocol-not-allowed"),
        ("c.test", 8443, Protocol::Http, "protocol-not-allowed"),
        ("d.test", 80, Protocol::Http, "allow http://d.test:80"),
        ("d.test", 443, Protocol::Tls, "port-not-allowed"),
        ("e.test", 443, Protocol::Tcp, "allow tcp://e.test:443"),
        ("e.test", 443, Protocol::Tls, "allow tcp://e.test:443"),
        ("f.test", 9999, Protocol::Tcp, "allow f.test:*"),
        ("f.test", 443, Protocol::Tcp, "protocol-not-allowed"),
    ] {
        assert_eq!(ask(&set, host, PUBLIC, port, protocol), expected, "{host}:{port} {protocol}");
    }
    let address = "8.8.8.8".parse().unwrap();
    assert!(set.is_blind(Some(&name("e.test")), address, 443));
    assert!(!set.is_blind(Some(&name("b.test")), address, 22));
    assert!(!set.is_blind(Some(&name("e.test")), "10.0.0.1".parse().unwrap(), 443));
}

#[test]
fn net_9_metadata_is_never_reachable() {
    let set = rules(&["0.0.0.0/0", "*.google.internal", "a.test", "a.test:*", "::/0"]);
    for address in
        ["169.254.169.254", "fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"]
    {
        assert_eq!(ask(&set, "a.test", Some(address), 80, Protocol::Http), "metadata");
        assert_eq!(
            ask(
                &set,
                &Host::Address(address.parse().unwrap()).to_string(),
                None,
                80,
                Protocol::Http
            ),
            "metadata"
        );
        assert!(!set.decide_answer(address.parse().unwrap()).is_allowed());
    }
    assert_eq!(ask(&set, "metadata.google.internal", PUBLIC, 80, Protocol::Http), "metadata");
    assert!(!set.decide_name(&name("metadata.google.internal")).is_allowed());
}

#[test]
fn net_10_an_allowed_name_does_not_open_near_addresses() {
    let set = rules(&["a.test:*", "0.0.0.0/0:*", "[::/0]:*"]);
    for (address, reason) in [
        ("127.0.0.1", "loopback"),
        ("10.0.0.1", "private"),
        ("fe80::1", "link-local"),
        ("100.64.0.1", "carrier-nat"),
        ("::ffff:192.168.1.1", "private"),
        ("64:ff9b::10.0.0.1", "embedded-ipv4"),
        ("0.0.0.0", "reserved"),
    ] {
        assert_eq!(ask(&set, "a.test", Some(address), 5432, Protocol::Tcp), reason);
        assert!(!set.decide_answer(address.parse().unwrap()).is_allowed());
    }
    let set = rules(&["a.test:5432", "127.0.0.1:5432"]);
    assert_eq!(ask(&set, "a.test", Some("127.0.0.1"), 5432, Protocol::Tcp), "allow a.test:5432");
    assert_eq!(ask(&set, "127.0.0.1", None, 5432, Protocol::Tcp), "allow 127.0.0.1:5432");
    assert_eq!(ask(&set, "127.0.0.1", None, 5433, Protocol::Tcp), "loopback");
    assert_eq!(ask(&set, "127.0.0.2", None, 5432, Protocol::Tcp), "loopback");
    assert!(set.decide_answer("127.0.0.1".parse().unwrap()).is_allowed());
    assert_eq!(set.literals().collect::<Vec<_>>(), [("127.0.0.1".parse().unwrap(), 5432)]);
}

/// No advice that cannot be followed.
#[test]
fn an_address_that_no_rule_can_name_is_not_advised() {
    let set = rules(&[]);
    for (address, port) in [("224.0.0.1", 80), ("0.0.0.0", 80), ("::", 1), ("10.0.0.1", 22)] {
        let address: IpAddr = address.parse().unwrap();
        let protocol = Protocol::Tcp;
        let question = Question { name: None, address: Some(address), port, protocol };
        let Verdict::Deny { hint, .. } = set.decide(&question) else { panic!("{address}") };
        let literal = format!("{}:{port}", Host::Address(address));
        let advised = hint.contains(&format!("--allow {literal}"));
        assert_eq!(advised, Rule::parse(&literal).is_ok(), "{hint}");
    }
}

#[test]
fn a_refusal_names_the_rule_that_would_help() {
    let set = rules(&["a.test"]);
    let hint = |host: &str, port, protocol| {
        let name = name(host);
        let question = Question { name: Some(&name), address: None, port, protocol };
        match set.decide(&question) {
            Verdict::Deny { hint, .. } => {
                let rule = hint.split("--allow ").nth(1).unwrap();
                rule.split(['`', ' ']).next().unwrap().to_owned()
            }
            Verdict::Allow { .. } => String::new(),
        }
    };
    for (host, port, protocol) in [
        ("b.test", 443, Protocol::Tls),
        ("b.test", 22, Protocol::Tcp),
        ("b.test", 8080, Protocol::Http),
        ("a.test", 22, Protocol::Tcp),
        ("a.test", 443, Protocol::Tcp),
        ("a.test", 80, Protocol::Tls),
    ] {
        // The advice, followed, works.
        let advised = rules(&["a.test", &hint(host, port, protocol)]);
        assert!(ask(&advised, host, None, port, protocol).starts_with("allow"), "{host}:{port}");
    }
}
