//! Secrets put in at the edge: a placeholder becomes the value, towards the named hosts only.

use crate::gateway::GatewayError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use hyper::header::HeaderValue;
use skep_policy::egress::{Name, Rule, Target};
use skep_types::{EgressSecret, SecretValue};
use zeroize::Zeroizing;

/// All secrets of a sandbox.
#[derive(Default)]
pub(crate) struct Secrets(Vec<Secret>);

#[derive(Clone)]
struct Secret {
    name: String,
    placeholder: String,
    value: SecretValue,
    hosts: Vec<Rule>,
    in_body: bool,
}

/// A placeholder shorter than this could be hit by chance.
const SHORTEST: usize = 8;

impl Secrets {
    pub(crate) fn new(list: Vec<EgressSecret>) -> Result<Self, GatewayError> {
        list.into_iter().map(Secret::new).collect::<Result<_, _>>().map(Self)
    }

    /// Whether any secret is meant for this host; only then its TLS is opened.
    pub(crate) fn has_host(&self, name: &Name) -> bool {
        self.0.iter().any(|secret| secret.is_for(name))
    }

    /// Whether bodies towards this host are searched.
    pub(crate) fn wants_body(&self, name: &Name) -> bool {
        self.0.iter().any(|secret| secret.in_body && secret.is_for(name))
    }

    /// The rest without one, and the hosts of that one.
    pub(crate) fn without(&self, name: &str) -> (Self, Vec<Rule>) {
        let (gone, left): (Vec<_>, Vec<_>) =
            self.0.iter().cloned().partition(|secret| secret.name == name);
        (Self(left), gone.into_iter().flat_map(|secret| secret.hosts).collect())
    }

    /// Puts values into the headers of a request to `host`.
    pub(crate) fn put_into_headers(&self, host: &Name, headers: &mut HeaderMap) {
        for value in headers.values_mut() {
            if let Some(new) = self.swap_header(host, value.as_bytes())
                && let Ok(mut new) = HeaderValue::from_bytes(&new)
            {
                // Kept out of compression tables and of debug output.
                new.set_sensitive(true);
                *value = new;
            }
        }
    }

    fn swap_header(&self, host: &Name, value: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        if let Some(new) = self.swap(host, value, Place::Head) {
            return Some(new);
        }
        // `Basic` hides user and password in base64: git, pip and npm send tokens so.
        let (scheme, encoded) = value.split_at_checked(6)?;
        if !scheme.eq_ignore_ascii_case(b"basic ") {
            return None;
        }
        let plain = Zeroizing::new(STANDARD.decode(encoded.trim_ascii()).ok()?);
        let new = self.swap(host, &plain, Place::Head)?;
        let mut text = Zeroizing::new(scheme.to_vec());
        let encoded = Zeroizing::new(STANDARD.encode(&*new));
        text.extend_from_slice(encoded.as_bytes());
        Some(text)
    }

    /// Puts values into the path and query of a request to `host`.
    pub(crate) fn put_into_target(&self, host: &Name, target: &str) -> Option<Zeroizing<Vec<u8>>> {
        self.swap(host, target.as_bytes(), Place::Head)
    }

    /// Puts values into a body for `host`.
    pub(crate) fn put_into_body(&self, host: &Name, body: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        self.swap(host, body, Place::Body)
    }

    /// The text with values in place of placeholders; `None` if there are none.
    fn swap(&self, host: &Name, text: &[u8], place: Place) -> Option<Zeroizing<Vec<u8>>> {
        let mut current: Option<Zeroizing<Vec<u8>>> = None;
        for secret in &self.0 {
            if !secret.is_for(host) || (place == Place::Body && !secret.in_body) {
                continue;
            }
            let from: &[u8] = current.as_ref().map_or(text, |text| text.as_slice());
            if let Some(new) = replace(from, secret.placeholder.as_bytes(), secret.value.expose()) {
                current = Some(new);
            }
        }
        current
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Head,
    Body,
}

impl Secret {
    fn new(secret: EgressSecret) -> Result<Self, GatewayError> {
        let bad = |reason: String| GatewayError::Secret { name: secret.name.clone(), reason };
        if secret.placeholder.len() < SHORTEST || secret.placeholder == secret.value.expose() {
            return Err(bad("its placeholder is too short, or the value itself".into()));
        }
        let mut hosts = Vec::new();
        for host in &secret.hosts {
            let rule = Rule::parse(host).map_err(|error| bad(error.reason))?;
            if !matches!(rule.target, Target::Name(_) | Target::Below(_)) {
                return Err(bad(format!("`{rule}` is no host name")));
            }
            hosts.push(rule);
        }
        if hosts.is_empty() {
            return Err(bad("it names no host".into()));
        }
        Ok(Self {
            name: secret.name,
            placeholder: secret.placeholder,
            value: secret.value,
            hosts,
            in_body: secret.in_body,
        })
    }

    fn is_for(&self, name: &Name) -> bool {
        self.hosts.iter().any(|rule| rule.names(name))
    }
}

fn replace(text: &[u8], from: &[u8], to: &str) -> Option<Zeroizing<Vec<u8>>> {
    let find = |text: &[u8]| text.windows(from.len()).position(|window| window == from);
    let mut at = find(text)?;
    let mut rest = text;
    // Room for the worst case, so that no half-made copy is left behind by growing.
    let most = text.len() / from.len() * to.len() + text.len();
    let mut new = Zeroizing::new(Vec::with_capacity(most));
    loop {
        new.extend_from_slice(&rest[..at]);
        new.extend_from_slice(to.as_bytes());
        rest = &rest[at + from.len()..];
        match find(rest) {
            Some(next) => at = next,
            None => break,
        }
    }
    new.extend_from_slice(rest);
    Some(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets() -> Secrets {
        Secrets::new(vec![EgressSecret {
            name: "KEY".into(),
            placeholder: "sk-placeholder".into(),
            hosts: vec!["api.test".into(), "*.git.test".into()],
            value: SecretValue::new("sk-the-real-one".into()),
            in_body: false,
        }])
        .unwrap()
    }

    fn through(host: &str, value: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert("x-test", HeaderValue::from_str(value).unwrap());
        secrets().put_into_headers(&Name::parse(host).unwrap(), &mut headers);
        headers["x-test"].to_str().unwrap().to_owned()
    }

    #[test]
    fn only_towards_the_named_hosts() {
        assert_eq!(through("api.test", "Bearer sk-placeholder"), "Bearer sk-the-real-one");
        assert_eq!(
            through("a.git.test", "sk-placeholder,sk-placeholder"),
            "sk-the-real-one,sk-the-real-one"
        );
        for other in ["git.test", "evil.test", "api.test.evil.test"] {
            assert_eq!(through(other, "Bearer sk-placeholder"), "Bearer sk-placeholder");
        }
    }

    #[test]
    fn also_inside_basic() {
        let encoded = format!("Basic {}", STANDARD.encode("user:sk-placeholder"));
        let expected = format!("Basic {}", STANDARD.encode("user:sk-the-real-one"));
        assert_eq!(through("api.test", &encoded), expected);
        assert_eq!(through("evil.test", &encoded), encoded);
        assert_eq!(through("api.test", "Basic !!!"), "Basic !!!");
        assert_eq!(through("api.test", "short"), "short");
    }

    #[test]
    fn bodies_only_when_asked() {
        let name = Name::parse("api.test").unwrap();
        assert!(secrets().put_into_body(&name, b"sk-placeholder").is_none());
        assert_eq!(
            secrets().put_into_target(&name, "/?key=sk-placeholder").unwrap().as_slice(),
            b"/?key=sk-the-real-one"
        );
        assert!(secrets().without("KEY").0.0.is_empty());
        assert!(!secrets().has_host(&Name::parse("evil.test").unwrap()));
    }

    #[test]
    fn a_useless_secret_is_refused() {
        for (placeholder, hosts) in [
            ("short", vec!["a.test"]),
            ("long-enough", vec![]),
            ("long-enough", vec!["*"]),
            ("long-enough", vec!["8.8.8.8"]),
        ] {
            let secret = EgressSecret {
                name: "KEY".into(),
                placeholder: placeholder.into(),
                hosts: hosts.into_iter().map(str::to_owned).collect(),
                value: SecretValue::new("v".into()),
                in_body: false,
            };
            assert!(Secrets::new(vec![secret]).is_err());
        }
    }
}
