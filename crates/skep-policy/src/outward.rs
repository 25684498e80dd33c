//! What is typed about secrets and ports, read into values.
//!
//! A secret is `NAME[=SOURCE][@HOST]…`: the variable inside, where its value comes from
//! (`env:VAR`, `file:PATH`, `cmd:COMMAND`; the variable of the same name when nothing is said) and
//! the hosts that get it. For some names everybody uses, the hosts are known
//! (`resources/secret-hosts.toml`).

use crate::egress::{Host, Name, Ports, Protocol, Rule, RuleError, RuleSet, Target, parse_port};
use serde::Deserialize;
use skep_types::{EgressPolicy, PlainSecret, PublishedPort, Secret, SecretSource, escape};
use std::collections::BTreeMap;

const KNOWN_HOSTS: &str = include_str!("../../../resources/secret-hosts.toml");

/// Why a text is no secret or port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{shown}` is no {kind}: {reason}", shown = escape::visible(text.as_bytes()))]
pub struct OutwardError {
    /// `secret` or `port to publish`.
    pub kind: &'static str,
    /// What was given. Never a value: only names and sources are.
    pub text: String,
    /// What is wrong with it, and how to write it.
    pub reason: String,
}

/// Rules and presets in their canonical form; an error names the first that is none. A preset that is
/// not built in may be the user's own, and stays as it is until [`with_own_presets`].
pub fn canonical_rules<T: AsRef<str>>(texts: &[T]) -> Result<Vec<String>, RuleError> {
    let mut found: Vec<String> = Vec::new();
    for text in texts {
        let text = text.as_ref();
        let labels = match text.starts_with('@') && RuleSet::parse(&[text]).is_err() {
            true => vec![text.to_owned()],
            false => RuleSet::parse(&[text])?.labels(),
        };
        for label in labels {
            if !found.contains(&label) {
                found.push(label);
            }
        }
    }
    Ok(found)
}

/// The list with the rules of the user's own presets in place of their names.
pub fn with_own_presets(texts: &[String], own: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for text in texts {
        let rules = text.strip_prefix('@').and_then(|name| own.get(name));
        for rule in rules.map_or(std::slice::from_ref(text), Vec::as_slice) {
            if !found.contains(rule) {
                found.push(rule.clone());
            }
        }
    }
    found
}

/// Reads `NAME[=SOURCE][@HOST]…`.
pub fn parse_secret(text: &str) -> Result<Secret, OutwardError> {
    let error = |reason: String| OutwardError { kind: "secret", text: text.to_owned(), reason };
    let (rest, mut hosts) = take_hosts(text);
    // Paths and commands may end like one: `cmd:ssh me@10.0.0.1`.
    let address = address_behind(rest);
    if let Some(address) = address.filter(|_| !rest.contains('=') || rest.contains("=env:")) {
        return Err(error(no_address(address)));
    }
    // A variable has no `@` in its name: what stands behind it was meant for a host.
    if let Some((_, host)) = rest.split_once('@').filter(|_| !rest.contains('=')) {
        return Err(error(no_host(host)));
    }
    let (name, source) = name_and_source(rest).map_err(error)?;
    if hosts.is_empty() {
        hosts = known_hosts(&name).map_err(error)?;
    }
    if hosts.is_empty() {
        let unsaid = || format!("say which host gets it, as in `{rest}@api.example.org`");
        return Err(error(address.map_or_else(unsaid, no_address)));
    }
    Ok(Secret { name, source, hosts, in_body: false })
}

/// Reads `NAME[=SOURCE]`, for a secret that the inside shall have in the clear.
pub fn parse_plain_secret(text: &str) -> Result<PlainSecret, OutwardError> {
    let error = |reason: String| OutwardError { kind: "secret", text: text.to_owned(), reason };
    let (name, source) = name_and_source(text).map_err(error)?;
    Ok(PlainSecret { name, source })
}

/// Reads `[HOST:]PORT`: the port on the host's loopback, and the one inside.
pub fn parse_published_port(text: &str) -> Result<PublishedPort, OutwardError> {
    let error = |reason: String| OutwardError {
        kind: "port to publish",
        text: text.to_owned(),
        reason: format!("{reason}; it is `PORT`, or `HOST_PORT:PORT`"),
    };
    let port = |text: &str| parse_port(text).map_err(|reason| error(reason.to_string()));
    let (host, inside) = text.split_once(':').unwrap_or((text, text));
    Ok(PublishedPort { host: port(host)?, inside: port(inside)? })
}

/// The first secret with a host that no rule lets through: it would never be sent there.
pub fn unreachable_secret(policy: &EgressPolicy) -> Result<Option<(&Secret, &str)>, RuleError> {
    let rules = RuleSet::parse(&policy.allow)?;
    for secret in &policy.secrets {
        for host in &secret.hosts {
            if !rules.rules().any(|held| opens_tls(&held.rule) && speaks_of(&held.rule, host)) {
                return Ok(Some((secret, host)));
            }
        }
    }
    Ok(None)
}

/// Whether TLS by this rule is looked into: bytes that pass unseen, and requests in the clear, get no secret.
fn opens_tls(rule: &Rule) -> bool {
    match rule.protocol {
        Some(Protocol::Tls) => true,
        Some(Protocol::Tcp | Protocol::Http) => false,
        None => rule.ports != Ports::One(80),
    }
}

fn speaks_of(rule: &Rule, host: &str) -> bool {
    match (host.strip_prefix("*."), Name::parse(host)) {
        (Some(zone), _) => Name::parse(zone).is_ok_and(|zone| match &rule.target {
            Target::Name(name) => name.is_below(&zone),
            Target::Below(below) => *below == zone || below.is_below(&zone) || zone.is_below(below),
            _ => false,
        }),
        (None, Ok(name)) => rule.names(&name),
        (None, Err(_)) => false,
    }
}

/// Takes `@HOST` off the end as long as what follows the last `@` is one: a dotted name, or `*.`
/// and one.
fn take_hosts(text: &str) -> (&str, Vec<String>) {
    let (mut rest, mut hosts) = (text, Vec::new());
    while let Some((before, last)) = rest.rsplit_once('@') {
        let Some(host) = canonical_host(last) else { break };
        hosts.insert(0, host);
        rest = before;
    }
    (rest, hosts)
}

fn no_address(address: &str) -> String {
    format!(
        "`{address}` is an address, and a secret goes only to a host with a name (and without a \
         port), as in `@api.example.org`: who answers at an address proves nothing"
    )
}

fn no_host(text: &str) -> String {
    let shown = escape::visible(text.as_bytes());
    format!(
        "`{shown}` is no host that a secret goes to: a whole name with a dot in it and without a \
         port, as in `@api.example.org` or `@*.example.org`"
    )
}

/// What stands behind the last `@`, if it is an address (also with a port).
fn address_behind(text: &str) -> Option<&str> {
    let (_, last) = text.rsplit_once('@')?;
    let bare = || Host::parse(last).ok();
    let host = Host::parse_authority(last).ok().map(|(host, _)| host).or_else(bare)?;
    host.address().map(|_| last)
}

fn canonical_host(text: &str) -> Option<String> {
    let (star, name) = match text.strip_prefix("*.") {
        Some(zone) => ("*.", zone),
        None => ("", text),
    };
    let name = Name::parse(name).ok().filter(|name| name.labels() >= 2)?;
    Some(format!("{star}{name}"))
}

fn name_and_source(text: &str) -> Result<(String, SecretSource), String> {
    let (name, source) = match text.split_once('=') {
        Some((name, source)) => (name, Some(source)),
        None => (text, None),
    };
    let starts = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    if !starts || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err("it begins with the name of a variable: letters, digits and `_`".into());
    }
    let source = match source {
        None => SecretSource::Env(name.to_owned()),
        Some(source) => match source.split_once(':') {
            Some(("env", variable)) if !variable.is_empty() => SecretSource::Env(variable.into()),
            Some(("file", path)) if !path.is_empty() => SecretSource::File(path.into()),
            Some(("cmd", command)) if !command.is_empty() => SecretSource::Cmd(command.into()),
            // Not repeated: somebody may have typed the value itself.
            _ => {
                return Err(
                    "after `=` stands where the value comes from: `env:VAR`, `file:PATH` or \
                     `cmd:COMMAND`; a value is never typed"
                        .into(),
                );
            }
        },
    };
    Ok((name.to_owned(), source))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownHosts {
    #[serde(rename = "version")]
    _version: u32,
    hosts: BTreeMap<String, Vec<String>>,
}

fn known_hosts(name: &str) -> Result<Vec<String>, String> {
    let table: KnownHosts = toml::from_str(KNOWN_HOSTS).map_err(|error| error.to_string())?;
    Ok(table.hosts.get(name).cloned().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sources_and_hosts() {
        let secret = parse_secret("TOKEN=cmd:pass show a@b@API.example.org@*.b.test").unwrap();
        assert_eq!(secret.name, "TOKEN");
        assert_eq!(secret.source, SecretSource::Cmd("pass show a@b".into()));
        assert_eq!(secret.hosts, ["api.example.org", "*.b.test"]);
        let secret = parse_secret("TOKEN@a.test").unwrap();
        assert_eq!(secret.source, SecretSource::Env("TOKEN".into()));
        assert_eq!(
            parse_plain_secret("A=file:/k").unwrap().source,
            SecretSource::File("/k".into())
        );
        assert!(!parse_secret("ANTHROPIC_API_KEY").unwrap().hosts.is_empty());
    }

    #[test]
    fn what_is_no_secret_and_that_a_value_is_not_repeated() {
        for bad in ["", "=env:X@a.test", "1A@a.test", "A B@a.test", "TOKEN", "T=env:@a.test"] {
            assert!(parse_secret(bad).is_err(), "{bad}");
        }
        let error = parse_secret("TOKEN=hunter2@a.test").unwrap_err();
        assert!(!error.reason.contains("hunter2"));
    }

    #[test]
    fn an_address_is_refused_as_what_it_is() {
        for (text, address) in [
            ("T@127.0.0.1", "`127.0.0.1` is an address"),
            ("T@127.0.0.1:80", "`127.0.0.1:80` is an address"),
            ("T=env:X@[::1]:80", "`[::1]:80` is an address"),
            ("T@::1", "`::1` is an address"),
            ("T@10.0.0.1@a.test", "`10.0.0.1` is an address"),
        ] {
            let error = parse_secret(text).unwrap_err();
            assert!(error.reason.starts_with(address), "{text}: {error}");
        }
        assert!(parse_secret("T=file:/k@10.0.0.1").unwrap_err().reason.contains("an address"));
        assert!(parse_secret("T=cmd:ssh me@10.0.0.1@a.test").is_ok());
    }

    #[test]
    fn a_host_without_a_dot_is_refused_as_what_it_is() {
        for (text, host) in [("TOK@localhost", "`localhost`"), ("TOK@a.test:80", "`a.test:80`")] {
            let error = parse_secret(text).unwrap_err();
            assert!(error.reason.starts_with(&format!("{host} is no host")), "{text}: {error}");
        }
    }

    #[test]
    fn ports() {
        let port = |text: &str| parse_published_port(text).map(|port| (port.host, port.inside));
        assert_eq!(port("3000"), Ok((3000, 3000)));
        assert_eq!(port("8080:3000"), Ok((8080, 3000)));
        for bad in ["", "0", "x", "65536", "1:2:3", "127.0.0.1:80", ":80", "80:"] {
            assert!(port(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_secret_for_a_host_that_no_rule_allows_is_found() {
        let policy = |allow: &[&str]| EgressPolicy {
            allow: allow.iter().map(|rule| (*rule).to_owned()).collect(),
            secrets: vec![parse_secret("T@a.test@b.test").unwrap()],
            ..EgressPolicy::default()
        };
        let found = |allow: &[&str]| {
            unreachable_secret(&policy(allow)).unwrap().map(|(_, host)| host.to_owned())
        };
        assert_eq!(found(&["a.test:9", "*.test.example", "b.test"]), None);
        assert_eq!(found(&["a.test", "*.b.test"]).as_deref(), Some("b.test"));
        assert_eq!(found(&[]).as_deref(), Some("a.test"));
    }
}
