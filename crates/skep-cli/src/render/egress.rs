//! What a sandbox tried to reach, for people.

use super::style::Style;
use super::table::table;
use serde::Serialize;
use skep_engine::api::{EgressProbe, EgressView};
use skep_policy::egress::{Host, LabelledRule, Ports, Rule, RuleSet, Target, reason};
use skep_types::escape::visible_text;
use skep_types::{EgressEntry, EgressVerdict};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::IpAddr;

/// How many denials are listed after a run before the rest is only counted.
const LISTED: usize = 8;

/// Something that was denied, as often as it was, with the rule that would permit it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Denied {
    /// The host, as it was asked for.
    pub(crate) host: String,
    /// The port; 53 where only the name was asked for.
    pub(crate) port: u16,
    /// How often.
    pub(crate) times: usize,
    /// Why, of the last time.
    pub(crate) reason: Option<String>,
    /// Where the name leads, if that is why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ip: Option<IpAddr>,
    /// What would permit it; `None` if nothing does.
    pub(crate) rule: Option<String>,
}

/// Denials, the same ones together, in the order of their first time. What was not allowed then and is by
/// now is left out.
pub(crate) fn denied(view: &EgressView) -> Vec<Denied> {
    let held = RuleSet::parse(&view.allow).unwrap_or_default();
    let mut found: Vec<Denied> = Vec::new();
    let mut known: HashMap<Same, usize> = HashMap::new();
    for entry in view.entries.iter().filter(|entry| entry.verdict == EgressVerdict::Deny) {
        let rule = rule_for(entry, &held);
        // The wildcard that covers a name is what it was too many under.
        let by_now = entry.reason.as_deref() != Some(reason::RATE);
        if let Some(rule) = rule.as_ref().filter(|_| by_now)
            && held.rules().any(|held| skep_policy::egress::covers(&held.rule, rule))
        {
            continue;
        }
        let rule = rule.map(|rule| rule.to_string());
        let same = match &rule {
            Some(rule) => Same::Rule(rule.clone()),
            None => Same::Host(entry.host.clone(), entry.reason.clone()),
        };
        let at = *known.entry(same).or_insert(found.len());
        match found.get_mut(at) {
            Some(denied) => {
                denied.times += 1;
                // That a name was asked for says less than where it was to lead.
                if entry.proto != "dns" {
                    denied.port = entry.port;
                }
                denied.reason.clone_from(&entry.reason);
            }
            None => found.push(Denied {
                host: entry.host.clone(),
                port: entry.port,
                times: 1,
                reason: entry.reason.clone(),
                ip: entry.ip,
                rule,
            }),
        }
    }
    found
}

/// What denials have in common that are told as one.
#[derive(PartialEq, Eq, Hash)]
enum Same {
    Rule(String),
    Host(String, Option<String>),
}

/// The narrowest rule in the form that people write that would permit it, if one would.
fn rule_for(entry: &EgressEntry, held: &RuleSet) -> Option<Rule> {
    let host = match entry.host.contains(':') && !entry.host.starts_with('[') {
        true => format!("[{}]", entry.host),
        false => entry.host.clone(),
    };
    let with_port = || Rule::parse(&format!("{host}:{}", entry.port)).ok();
    let plain = matches!(
        (entry.proto.as_str(), entry.port),
        ("dns", _) | ("tls", 443) | ("http", 80) | ("tcp", 80 | 443)
    );
    match entry.reason.as_deref() {
        Some(reason::PORT_NOT_ALLOWED) => with_port(),
        Some(reason::PROTOCOL_NOT_ALLOWED) => {
            Rule::parse(&format!("{}://{host}:{}", entry.proto, entry.port)).ok()
        }
        // The address, not the name: which port is meant is known once it is connected to.
        Some(reason::BAD_ANSWER) => {
            let port = entry.port;
            let address = Host::Address(entry.ip?);
            Rule::parse(&format!("{address}:{port}")).ok().filter(|_| entry.proto != "dns")
        }
        // By itself, where a wildcard is in force already.
        Some(reason::RATE) => {
            let rule = Rule::parse(&host).ok()?;
            let exact = |own: &LabelledRule| own.rule.target == rule.target;
            (!held.rules().any(exact)).then_some(rule)
        }
        reason if plain && is_of_rules(reason) => Rule::parse(&host).ok().or_else(with_port),
        reason if is_of_rules(reason) => with_port(),
        // Whatever is allowed, these stay: a request that cannot be read, a name at another address …
        _ => None,
    }
}

/// Whether a rule would have changed the verdict.
fn is_of_rules(reason: Option<&str>) -> bool {
    let Some(reason) = reason else { return true };
    [
        reason::NOT_ALLOWED,
        reason::LOOPBACK,
        reason::PRIVATE,
        reason::LINK_LOCAL,
        reason::CARRIER_NAT,
        reason::EMBEDDED,
        reason::RESERVED,
    ]
    .contains(&reason)
}

/// What helps where no rule does.
fn without_a_rule(denied: &Denied) -> String {
    let reason = denied.reason.as_deref().unwrap_or("never reachable");
    let text = match (reason, denied.ip) {
        (reason::BAD_ANSWER, Some(ip)) => {
            let address = Host::Address(ip);
            format!("the name leads to {address}; `--allow {address}:PORT` would permit that")
        }
        (reason::METADATA, _) => "a cloud's metadata service is never reachable".into(),
        (reason::ADDRESS_NOT_OF_NAME, _) => {
            "the name does not lead to the address that was dialled".into()
        }
        (reason::SERVER_NAME, _) => "TLS without the name of an allowed host".into(),
        (reason::BAD_REQUEST, _) => "a request that cannot be read in one way only".into(),
        (reason::CERTIFICATE, _) => {
            "TLS failed: the program does not trust this sandbox's authority".into()
        }
        (reason::RATE, _) => "too many or too long names under a wildcard".into(),
        (reason::TOO_MANY, _) => "too many connections at once".into(),
        (reason::TIMEOUT, _) => "nothing was said for too long".into(),
        (reason, _) => format!("no rule allows it ({reason})"),
    };
    visible_text(text.as_bytes())
}

/// Hosts that are allowed and did not answer, with the reason, each once.
fn unanswered(view: &EgressView) -> Vec<(String, &'static str)> {
    let mut found: Vec<(String, &'static str)> = Vec::new();
    for entry in view.entries.iter().filter(|entry| entry.verdict == EgressVerdict::Allow) {
        let why = match entry.reason.as_deref() {
            Some(reason::NO_ANSWER) => "its name has no address",
            Some(reason::UNREACHABLE) => "it takes no connection",
            _ => continue,
        };
        if found.iter().all(|(host, _)| *host != entry.host) {
            found.push((entry.host.clone(), why));
        }
    }
    found
}

/// What was denied and of which other rules still speak: a preset, another port.
pub(crate) fn still_allowed<'a>(
    denied: &'a [String],
    allow: &'a [String],
) -> Vec<(&'a str, Vec<&'a str>)> {
    let held: Vec<(&str, RuleSet)> = allow
        .iter()
        .filter_map(|text| Some((text.as_str(), RuleSet::parse(&[text]).ok()?)))
        .collect();
    let speaks_of = |rule: &Rule, other: &Rule| {
        let of_the_host = match &other.target {
            Target::Name(name) => rule.names(name),
            Target::Address(address) => rule.has_address(*address),
            target => rule.target == *target,
        };
        // Who has named a port means that one.
        of_the_host && !matches!(other.ports, Ports::One(port) if !rule.has_port(port))
    };
    let still = denied.iter().filter_map(|text| {
        let denied = RuleSet::parse(&[text]).ok()?;
        let by = |(label, set): &(&'a str, RuleSet)| {
            let speaks =
                set.rules().any(|own| denied.rules().any(|no| speaks_of(&own.rule, &no.rule)));
            speaks.then_some(*label)
        };
        let by: Vec<&str> = held.iter().filter_map(by).collect();
        (!by.is_empty()).then_some((text.as_str(), by))
    });
    still.collect()
}

/// What is said after a run, if something was denied or did not answer.
pub(crate) fn after_run(style: Style, view: &EgressView) -> Option<String> {
    let denied = denied(view);
    let mut text = String::new();
    if let Some(death) = &view.death {
        let sentence = death.sentence();
        let sentence = visible_text(sentence.as_bytes());
        let _ = writeln!(text, "{} {sentence}", style.yellow("network:"));
    }
    let unanswered = unanswered(view);
    for (host, why) in unanswered.iter().take(LISTED) {
        let host = visible_text(host.as_bytes());
        let _ = writeln!(text, "{} {host} is allowed, and {why}", style.yellow("network:"));
    }
    if unanswered.len() > LISTED {
        let _ = writeln!(text, "  and {} more: `skep net`", unanswered.len() - LISTED);
    }
    let missing: u64 = view.entries.iter().filter_map(|entry| entry.missing).sum();
    if missing > 0 {
        let _ = writeln!(
            text,
            "{} {missing} lines of the log are missing: too many came, denials are dropped first",
            style.yellow("network:")
        );
    }
    if denied.is_empty() {
        return Some(text).filter(|text| !text.is_empty());
    }
    let total: usize = denied.iter().map(|denied| denied.times).sum();
    let attempts = if total == 1 { "attempt" } else { "attempts" };
    let _ = writeln!(text, "{} {total} {attempts} denied", style.yellow("network:"));
    for denied in denied.iter().take(LISTED) {
        let _ = writeln!(text, "  {}", line(style, denied));
    }
    if denied.len() > LISTED {
        let _ = writeln!(text, "  and {} more: `skep net`", denied.len() - LISTED);
    }
    Some(text)
}

/// One of them, with what would permit it.
pub(crate) fn line(style: Style, denied: &Denied) -> String {
    let times = if denied.times > 1 { format!(" ×{}", denied.times) } else { String::new() };
    let what = format!("{}{times}", whom(denied));
    match &denied.rule {
        Some(rule) => {
            format!(
                "{what:<38}  {}",
                style.cyan(&format!("--allow {}", visible_text(rule.as_bytes())))
            )
        }
        None => format!("{what:<38}  {}", without_a_rule(denied)),
    }
}

/// Whom it was about; a request to the proxy that cannot be read names nobody.
fn whom(denied: &Denied) -> String {
    match denied.host.as_str() {
        "" => "(nobody)".to_owned(),
        host => format!("{}:{}", visible_text(host.as_bytes()), denied.port),
    }
}

/// `net`: the rules, then every entry.
pub(crate) fn log(style: Style, view: &EgressView) -> String {
    let mut text = String::new();
    let mode = skep_engine::api::word_for(view.network);
    let rules = match view.allow.is_empty() {
        true => "(nothing)".to_owned(),
        false => view.allow.join(" "),
    };
    let _ = writeln!(text, "{} {mode}", style.bold("network "));
    let _ = writeln!(text, "{} {rules}\n", style.bold("allowed "));
    let row = |entry: &EgressEntry| {
        vec![
            super::sandbox::instant(&entry.at),
            match entry.verdict {
                EgressVerdict::Allow => "allow".to_owned(),
                EgressVerdict::Deny => "deny".to_owned(),
            },
            entry.proto.clone(),
            visible_text(format!("{}:{}", entry.host, entry.port).as_bytes()),
            entry.ip.map(|ip| ip.to_string()).unwrap_or_default(),
            format!("{}/{}", entry.bytes_out, entry.bytes_in),
            visible_text(rule_and_reason(entry).as_bytes()),
        ]
    };
    let rows: Vec<_> = view.entries.iter().map(row).collect();
    let heading = ["AT", "VERDICT", "PROTO", "HOST", "ADDRESS", "OUT/IN", "RULE OR REASON"];
    text.push_str(&table(style, &heading, &rows));
    text
}

/// The rule, and the reason where there is one: what is allowed may still have come to nothing.
fn rule_and_reason(entry: &EgressEntry) -> String {
    let words: Vec<&str> =
        [&entry.rule, &entry.reason].into_iter().flatten().map(String::as_str).collect();
    words.join(": ")
}

/// `net test`.
pub(crate) fn probes(style: Style, probes: &[EgressProbe]) -> String {
    let mut text = String::new();
    for probe in probes {
        let what = visible_text(format!("{}:{}", probe.host, probe.port).as_bytes());
        let verdict = match (probe.reached, probe.allowed) {
            (true, _) => style.green("allowed, reached"),
            (false, Some(true)) => style.yellow("allowed, not reached"),
            (false, Some(false)) => style.red("denied"),
            (false, None) => style.red("no answer"),
        };
        let _ = writeln!(text, "{what}: {verdict} ({})", visible_text(probe.how.as_bytes()));
        for detail in [&probe.reason, &probe.hint].into_iter().flatten() {
            let _ = writeln!(text, "  {}", visible_text(detail.as_bytes()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::NetworkMode;

    fn entry(proto: &str, host: &str, port: u16) -> EgressEntry {
        EgressEntry { proto: proto.into(), host: host.into(), port, ..EgressEntry::default() }
    }

    fn view(allow: &[&str], entries: Vec<EgressEntry>) -> EgressView {
        EgressView {
            network: NetworkMode::Allow,
            allow: allow.iter().map(|rule| (*rule).to_owned()).collect(),
            entries,
            death: None,
        }
    }

    #[test]
    fn the_same_denials_are_one_with_the_rule_that_would_permit_them() {
        let entries = vec![
            entry("dns", "a.test", 53),
            entry("tls", "a.test", 443),
            entry("tcp", "b.test", 22),
            EgressEntry {
                reason: Some(reason::METADATA.into()),
                ..entry("tcp", "169.254.169.254", 80)
            },
            entry("tcp", "10.0.0.1", 80),
            entry("tls", "c.test", 443),
        ];
        let found = denied(&view(&["c.test"], entries));
        let rules: Vec<_> = found.iter().map(|d| (d.rule.as_deref(), d.port, d.times)).collect();
        assert_eq!(
            rules,
            [
                (Some("a.test"), 443, 2),
                (Some("b.test:22"), 22, 1),
                (None, 80, 1),
                (Some("10.0.0.1:80"), 80, 1),
            ]
        );
    }

    /// A host that a rule names is denied all the same for other reasons, and that is said.
    #[test]
    fn a_denial_of_an_allowed_host_is_told_with_what_helps() {
        for (reason, proto, port, ip, expected) in [
            (reason::NOT_ALLOWED, "tls", 443, None, None),
            (reason::BAD_ANSWER, "http", 80, Some("10.0.0.1"), Some("--allow 10.0.0.1:80")),
            (reason::BAD_ANSWER, "dns", 53, Some("fd00::1"), Some("--allow [fd00::1]:PORT")),
            (reason::METADATA, "http", 80, Some("169.254.169.254"), Some("never reachable")),
            (reason::PORT_NOT_ALLOWED, "tcp", 22, None, Some("--allow a.test:22")),
            (reason::PROTOCOL_NOT_ALLOWED, "tcp", 443, None, Some("--allow tcp://a.test:443")),
            (reason::ADDRESS_NOT_OF_NAME, "tls", 443, None, Some("does not lead")),
            (reason::SERVER_NAME, "tls", 443, None, Some("name of an allowed host")),
            (reason::BAD_REQUEST, "http", 80, None, Some("cannot be read")),
            (reason::CERTIFICATE, "tls", 443, None, Some("authority")),
            (reason::RATE, "dns", 53, None, Some("under a wildcard")),
            (reason::TIMEOUT, "tcp", 443, None, Some("too long")),
            (reason::TOO_MANY, "tcp", 443, None, Some("too many connections")),
        ] {
            let ip = ip.map(|ip: &str| ip.parse().unwrap());
            let reason = Some(reason.to_owned());
            let one = EgressEntry { ip, reason, ..entry(proto, "a.test", port) };
            let text = after_run(Style::PLAIN, &view(&["a.test"], vec![one.clone()]));
            match expected {
                Some(expected) => assert!(text.as_ref().unwrap().contains(expected), "{text:?}"),
                None => assert_eq!(text, None),
            }
            if one.reason.as_deref() == Some(reason::RATE) {
                let text = after_run(Style::PLAIN, &view(&["*.test"], vec![one])).unwrap();
                assert!(text.contains("--allow a.test"), "{text}");
            }
        }
    }

    #[test]
    fn a_denied_port_is_not_said_to_be_reached_by_rules_for_others() {
        let allow = ["a.test", "a.test:8080", "@npm"].map(str::to_owned);
        let still = |denied: &str| {
            let denied = [denied.to_owned()];
            still_allowed(&denied, &allow).first().map(|(_, by)| by.len())
        };
        assert_eq!(still("a.test:9000"), None);
        assert_eq!(still("a.test:8080"), Some(1));
        assert_eq!(still("a.test"), Some(2));
    }

    #[test]
    fn an_allowed_host_that_does_not_answer_is_said_and_not_counted_as_denied() {
        let mut missing = entry("dns", "nosuch.test", 53);
        missing.verdict = EgressVerdict::Allow;
        missing.reason = Some(reason::NO_ANSWER.into());
        let text = after_run(Style::PLAIN, &view(&["nosuch.test"], vec![missing.clone(), missing]));
        let text = text.unwrap();
        assert_eq!(text, "network: nosuch.test is allowed, and its name has no address\n");
    }

    #[test]
    fn a_run_says_what_to_allow_and_escapes_names() {
        let entries = vec![entry("tls", "a.test", 443), entry("tcp", "\x1b[2J", 1)];
        let text = after_run(Style::PLAIN, &view(&[], entries)).unwrap();
        assert!(text.contains("2 attempts denied") && text.contains("--allow a.test"), "{text}");
        assert!(!text.contains('\x1b'));
        assert_eq!(after_run(Style::PLAIN, &view(&[], Vec::new())), None);
    }
}
