//! Whether one list of rules allows anything that another does not.

use super::class::{AddressClass, classify};
use super::decide::RuleSet;
use super::rule::{Ports, Protocol, Rule, Target};

/// The rules of `inner` that no single rule of `outer` covers; empty if `inner` only narrows.
pub fn added_rules(outer: &RuleSet, inner: &RuleSet) -> Vec<Rule> {
    let covered = |rule: &Rule| outer.rules().any(|held| covers(&held.rule, rule));
    inner.rules().map(|labelled| &labelled.rule).filter(|rule| !covered(rule)).cloned().collect()
}

/// Whether everything that `inner` allows is allowed by `outer`.
pub fn covers(outer: &Rule, inner: &Rule) -> bool {
    covers_target(outer, inner) && covers_ports(outer, inner)
}

fn covers_target(outer: &Rule, inner: &Rule) -> bool {
    match (&outer.target, &inner.target) {
        (_, Target::Name(name)) => outer.names(name),
        (Target::Below(zone), Target::Below(below)) => below == zone || below.is_below(zone),
        (Target::Address(own), Target::Address(other)) => own == other,
        // A network speaks only of the public addresses in it; a literal may mean others.
        (Target::Network(network), Target::Address(address)) => {
            network.contains(*address) && classify(*address) == AddressClass::Public
        }
        (Target::Network(own), Target::Network(other)) => own.covers(other),
        _ => false,
    }
}

/// Ports, and what may be spoken there. Between 80 and 443 all other ports are alike, so one
/// stands for all of them.
fn covers_ports(outer: &Rule, inner: &Rule) -> bool {
    const ANY_OTHER: u16 = 22;
    let asked: &[u16] = match inner.ports {
        Ports::Web => &[80, 443],
        Ports::One(port) => &[port],
        Ports::All if outer.ports == Ports::All => &[80, 443, ANY_OTHER],
        Ports::All => return false,
    };
    let protocols = [Protocol::Tcp, Protocol::Tls, Protocol::Http];
    let speaks =
        |port: u16| protocols.iter().all(|p| !inner.speaks(*p, port) || outer.speaks(*p, port));
    (outer.is_blind() || !inner.is_blind())
        && asked.iter().all(|port| outer.has_port(*port) && speaks(*port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::{Host, Question};
    use proptest::prelude::*;

    fn rule(text: &str) -> Rule {
        Rule::parse(text).unwrap()
    }

    #[test]
    fn what_is_inside_what() {
        for (outer, inner) in [
            ("a.test", "a.test:443"),
            ("a.test:*", "a.test"),
            ("*.a.test", "b.a.test"),
            ("*.a.test", "*.b.a.test"),
            ("a.test:22", "tls://a.test:22"),
            ("tcp://a.test:22", "a.test:22"),
            ("8.0.0.0/8", "8.8.0.0/16"),
            ("8.0.0.0/8", "8.8.8.8"),
            ("10.0.0.1:5432", "10.0.0.1:5432"),
        ] {
            assert!(covers(&rule(outer), &rule(inner)), "{inner} is inside {outer}");
            assert!(outer == inner || !covers(&rule(inner), &rule(outer)), "{outer} in {inner}");
        }
        for (outer, inner) in [
            ("*.a.test", "a.test"),
            ("a.test", "a.test:22"),
            ("a.test:22", "tcp://a.test:22"),
            ("0.0.0.0/0:5432", "10.0.0.1:5432"),
            ("a.test:443", "a.test:80"),
            ("a.test:80", "tls://a.test:80"),
        ] {
            assert!(!covers(&rule(outer), &rule(inner)), "{inner} is wider than {outer}");
        }
    }

    #[test]
    fn presets_are_compared_by_what_they_bring() {
        let outer = RuleSet::parse(&["@github"]).unwrap();
        let inner = RuleSet::parse(&["github.com:22"]).unwrap();
        assert!(added_rules(&outer, &inner).is_empty());
        assert!(!added_rules(&inner, &outer).is_empty());
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        let host = prop::sample::select(vec![
            "a.test",
            "b.a.test",
            "*.a.test",
            "*.b.a.test",
            "8.8.8.8",
            "8.8.0.0/16",
            "0.0.0.0/0",
            "10.0.0.1",
        ]);
        let port = prop::sample::select(vec!["", ":80", ":443", ":22", ":*"]);
        let protocol = prop::sample::select(vec!["", "tcp://", "tls://", "http://"]);
        (protocol, host, port)
            .prop_filter_map("a rule", |(a, b, c)| Rule::parse(&format!("{a}{b}{c}")).ok())
    }

    proptest! {
        #[test]
        fn what_a_covered_rule_allows_is_allowed(outer in any_rule(), inner in any_rule()) {
            if !covers(&outer, &inner) {
                return Ok(());
            }
            let set = |rule: &Rule| RuleSet::parse(&[rule.to_string()]).unwrap();
            let (outer, inner) = (set(&outer), set(&inner));
            for host in ["a.test", "b.a.test", "c.b.a.test", "8.8.8.8", "8.8.4.4", "9.9.9.9", "10.0.0.1"] {
                let host = Host::parse(host).unwrap();
                for port in [80, 443, 22, 9] {
                    for protocol in [Protocol::Tcp, Protocol::Tls, Protocol::Http] {
                        let question = Question { name: host.name(), address: host.address(), port, protocol };
                        prop_assert!(
                            !inner.decide(&question).is_allowed() || outer.decide(&question).is_allowed()
                        );
                    }
                }
            }
        }
    }
}
