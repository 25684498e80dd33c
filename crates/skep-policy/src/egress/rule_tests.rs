use super::*;
use proptest::prelude::*;

fn canonical(text: &str) -> String {
    Rule::parse(text).unwrap().to_string()
}

#[test]
fn one_form_for_every_spelling() {
    for (text, expected) in [
        ("Example.TEST.", "example.test"),
        ("example.test:443", "example.test:443"),
        ("*.Example.test", "*.example.test"),
        ("*.example.test:*", "*.example.test:*"),
        ("tls://example.test", "tls://example.test:443"),
        ("http://example.test", "http://example.test:80"),
        ("tcp://db.example.test:5432", "tcp://db.example.test:5432"),
        ("8.8.8.8", "8.8.8.8"),
        ("10.1.2.3:5432", "10.1.2.3:5432"),
        ("10.1.2.3/32:5432", "10.1.2.3:5432"),
        ("8.8.0.0/16:53", "8.8.0.0/16:53"),
        ("2606:4700::1111", "[2606:4700::1111]"),
        ("[2606:4700::1111]:443", "[2606:4700::1111]:443"),
        ("[::ffff:8.8.8.8]:443", "8.8.8.8:443"),
        ("2606:4700::/32", "[2606:4700::/32]"),
        ("[2606:4700::/32]:443", "[2606:4700::/32]:443"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("192.0.0.0/8", "192.0.0.0/8"),
        ("registry:5000", "registry:5000"),
        ("[::1]:3000", "[::1]:3000"),
    ] {
        assert_eq!(canonical(text), expected, "{text}");
        assert_eq!(canonical(expected), expected);
    }
}

#[test]
fn net_8_bad_patterns_are_refused_with_the_reason() {
    for (text, word) in [
        ("", "names no host"),
        ("*", "everything below a name"),
        ("*.test", "whole top-level domain"),
        ("[*]", "everything below a name"),
        ("**.x.test", "everything below a name"),
        ("*.*.test", "only one `*`"),
        ("a*.x.test", "everything below a name"),
        ("a.*.x.test", "everything below a name"),
        ("*.", "empty"),
        ("*.127.0.0.1", "nothing below"),
        (":443", "empty"),
        ("a.test:0", "1 to 65535"),
        ("a.test:65536", "1 to 65535"),
        ("a.test:https", "1 to 65535"),
        ("https://a.test", "tls://HOST"),
        ("udp://a.test", "`tcp`, `tls` or `http`"),
        ("tcp://a.test", "names its port"),
        ("127.1", "four decimal numbers"),
        ("localhost:80", "127.0.0.1:PORT"),
        ("127.0.0.1", "name its port"),
        ("10.0.0.5", "name its port"),
        ("10.0.0.0/8:5432", "name each address"),
        ("192.168.0.0/16", "name each address"),
        ("fd00::/8", "name each address"),
        ("8.8.8.8/16", "the network is `8.8.0.0/16`"),
        ("8.8.8.0/33", "0 to 32"),
        ("8.8.8.0/", "0 to 32"),
        ("8.8.8.0/+8", "0 to 32"),
        ("169.254.169.254:80", "metadata"),
        ("[fd00:ec2::254]:80", "metadata"),
        ("metadata.google.internal", "metadata"),
        ("224.0.0.1:80", "many at once"),
        ("a.test/path", "no address"),
        ("a b.test", "characters"),
        ("user@a.test", "characters"),
    ] {
        let error = Rule::parse(text).unwrap_err();
        assert!(error.reason.contains(word), "{text}: {error}");
    }
}

#[test]
fn an_error_shows_no_control_characters() {
    let error = Rule::parse("a\x1b[2J.test").unwrap_err();
    assert!(error.to_string().starts_with("`a\\x1b[2J.test` is no allow rule"), "{error}");
}

#[test]
fn networks_hold_what_they_say() {
    let rule = Rule::parse("8.8.0.0/16").unwrap();
    assert!(rule.has_address("8.8.255.255".parse().unwrap()));
    assert!(rule.has_address("::ffff:8.8.0.1".parse().unwrap()));
    assert!(!rule.has_address("8.9.0.0".parse().unwrap()));
    let all = Rule::parse("0.0.0.0/0").unwrap();
    assert!(all.has_address("8.8.8.8".parse().unwrap()));
    for inner in ["10.0.0.1", "127.0.0.1", "169.254.169.254", "2606:4700::1"] {
        assert!(!all.has_address(inner.parse().unwrap()), "{inner}");
    }
}

proptest! {
    #[test]
    fn a_rule_is_refused_or_stable(text in "(tcp://|tls://|http://|)[a-z0-9*.\\[\\]:/\\-é]{0,20}(:[0-9*]{1,6}|)") {
        if let Ok(rule) = Rule::parse(&text) {
            prop_assert_eq!(Rule::parse(&rule.to_string()), Ok(rule));
        }
    }

    #[test]
    fn any_text_is_read_without_panic(text in any::<String>()) {
        let _ = Rule::parse(&text);
    }
}
