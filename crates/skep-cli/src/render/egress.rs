//! What a sandbox tried to reach, for people.

use super::style::Style;
use super::table::table;
use serde::Serialize;
use skep_engine::api::{EgressProbe, EgressView};
use skep_policy::egress::{Rule, RuleSet, reason};
use skep_types::escape::visible_text;
use skep_types::{EgressEntry, EgressVerdict};
use std::fmt::Write as _;

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
    /// What would permit it; `None` if nothing does.
    pub(crate) rule: Option<String>,
}

/// Denials, the same ones together, in the order of their first time. What the rules permit by now
/// is left out.
pub(crate) fn denied(view: &EgressView) -> Vec<Denied> {
    let held = RuleSet::parse(&view.allow).unwrap_or_default();
    let mut found: Vec<Denied> = Vec::new();
    for entry in view.entries.iter().filter(|entry| entry.verdict == EgressVerdict::Deny) {
        let rule = rule_for(entry);
        if let Some(rule) = &rule
            && held.rules().any(|held| skep_policy::egress::covers(&held.rule, rule))
        {
            continue;
        }
        let rule = rule.map(|rule| rule.to_string());
        let same = found.iter_mut().find(|denied| match &rule {
            Some(rule) => denied.rule.as_ref() == Some(rule),
            None => denied.rule.is_none() && denied.host == entry.host && denied.port == entry.port,
        });
        match same {
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
                rule,
            }),
        }
    }
    found
}

/// The narrowest rule in the form that people write.
fn rule_for(entry: &EgressEntry) -> Option<Rule> {
    let plain = matches!(
        (entry.proto.as_str(), entry.port),
        ("dns", _) | ("tls", 443) | ("http", 80) | ("tcp", 80 | 443)
    );
    let host = match entry.host.contains(':') && !entry.host.starts_with('[') {
        true => format!("[{}]", entry.host),
        false => entry.host.clone(),
    };
    let with_port = format!("{host}:{}", entry.port);
    match plain {
        true => Rule::parse(&host).or_else(|_| Rule::parse(&with_port)).ok(),
        false => Rule::parse(&with_port).ok(),
    }
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

fn line(style: Style, denied: &Denied) -> String {
    let host = visible_text(denied.host.as_bytes());
    let times = if denied.times > 1 { format!(" ×{}", denied.times) } else { String::new() };
    let what = format!("{host}:{}{times}", denied.port);
    match &denied.rule {
        Some(rule) => {
            format!(
                "{what:<38}  {}",
                style.cyan(&format!("--allow {}", visible_text(rule.as_bytes())))
            )
        }
        None => {
            let reason = denied.reason.as_deref().unwrap_or("never reachable");
            format!("{what:<38}  no rule allows it ({})", visible_text(reason.as_bytes()))
        }
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
            entry("tcp", "169.254.169.254", 80),
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
