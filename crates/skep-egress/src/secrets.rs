//! Secrets put in at the edge: a placeholder becomes the value, towards the named hosts only.

use crate::gateway::GatewayError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use hyper::header::HeaderValue;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
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
        if let Some(new) = self.swap(host, value, Place::Head, Written::Plain) {
            return Some(new);
        }
        // `Basic` hides user and password in base64: git, pip and npm send tokens so.
        let (scheme, encoded) = value.split_at_checked(6)?;
        if !scheme.eq_ignore_ascii_case(b"basic ") {
            return None;
        }
        let plain = Zeroizing::new(STANDARD.decode(encoded.trim_ascii()).ok()?);
        let new = self.swap(host, &plain, Place::Head, Written::Plain)?;
        let mut text = Zeroizing::new(scheme.to_vec());
        let encoded = Zeroizing::new(STANDARD.encode(&*new));
        text.extend_from_slice(encoded.as_bytes());
        Some(text)
    }

    /// Takes values out of the head of an answer by `host`: hosts repeat what they were asked for, in
    /// `Location` or in a header that they reflect.
    pub(crate) fn take_out_of_headers(&self, host: &Name, headers: &mut HeaderMap) {
        for value in headers.values_mut() {
            for secret in self.0.iter().filter(|secret| secret.is_for(host)) {
                let real = secret.value.expose().as_bytes();
                if real.len() < SHORTEST || find(value.as_bytes(), real, Written::Percent).is_none()
                {
                    continue;
                }
                let with = secret.placeholder.as_str();
                let new = replace(value.as_bytes(), real, Written::Percent, (with, with));
                if let Ok(new) = HeaderValue::from_bytes(&new) {
                    *value = new;
                }
            }
        }
    }

    /// Puts values into the path and query of a request to `host`.
    pub(crate) fn put_into_target(&self, host: &Name, target: &str) -> Option<Zeroizing<Vec<u8>>> {
        self.swap(host, target.as_bytes(), Place::Head, Written::Percent)
    }

    /// Puts values into a body for `host`.
    pub(crate) fn put_into_body(
        &self,
        host: &Name,
        body: &[u8],
        written: Written,
    ) -> Option<Zeroizing<Vec<u8>>> {
        self.swap(host, body, Place::Body, written)
    }

    /// The text with values in place of placeholders; `None` if there are none.
    fn swap(
        &self,
        host: &Name,
        text: &[u8],
        place: Place,
        written: Written,
    ) -> Option<Zeroizing<Vec<u8>>> {
        let mut current: Option<Zeroizing<Vec<u8>>> = None;
        for secret in &self.0 {
            if !secret.is_for(host) || (place == Place::Body && !secret.in_body) {
                continue;
            }
            let from: &[u8] = current.as_ref().map_or(text, |text| text.as_slice());
            if let Some(new) = secret.replace(from, written) {
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

/// How the text around a secret is written. A value has characters that mean something there, and its
/// placeholder may not: `&` in a query, `"` in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// As it is.
    Plain,
    /// Targets and forms: any byte may be `%XX`.
    Percent,
    /// JSON, inside a string.
    Json,
}

impl Written {
    /// How a body is written, by what it says of itself. curl calls everything a form.
    pub(crate) fn of_body(kind: Option<&str>, body: &[u8]) -> Self {
        let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default();
        let kind = kind.trim().to_ascii_lowercase();
        let braced = || matches!(body.trim_ascii_start().first(), Some(b'{' | b'['));
        match kind.as_str() {
            "application/json" => Self::Json,
            kind if kind.ends_with("+json") => Self::Json,
            "application/x-www-form-urlencoded" if braced() => Self::Json,
            "application/x-www-form-urlencoded" => Self::Percent,
            _ => Self::Plain,
        }
    }
}

/// What stays as it is where everything else is encoded (RFC 3986, 2.3).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// The same, where the program itself left these as they are: they are the same in a placeholder.
const AS_THE_PROGRAM: &AsciiSet = &UNRESERVED.remove(b'+').remove(b'=').remove(b'/');

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

    fn replace(&self, text: &[u8], written: Written) -> Option<Zeroizing<Vec<u8>>> {
        let from = self.placeholder.as_bytes();
        // Most texts have none: nothing is made of the value for them.
        find(text, from, written)?;
        let value = self.value.expose();
        let encode = |set| Zeroizing::new(utf8_percent_encode(value, set).to_string());
        let (as_it_is, encoded) = match written {
            Written::Plain => (Zeroizing::new(value.to_owned()), None),
            Written::Percent => (encode(AS_THE_PROGRAM), Some(encode(UNRESERVED))),
            Written::Json => {
                let quoted = Zeroizing::new(serde_json::to_string(value).ok()?);
                let inner = quoted.get(1..quoted.len() - 1)?;
                (Zeroizing::new(inner.to_owned()), None)
            }
        };
        let encoded = encoded.as_ref().unwrap_or(&as_it_is);
        Some(replace(text, from, written, (&as_it_is, encoded)))
    }
}

/// Where a placeholder stands.
struct Found {
    at: usize,
    length: usize,
    encoded: bool,
}

/// The first place of `from`.
fn find(text: &[u8], from: &[u8], written: Written) -> Option<Found> {
    (0..text.len()).find_map(|at| {
        let (length, encoded) = stands_at(&text[at..], from, written)?;
        Some(Found { at, length, encoded })
    })
}

/// Whether `text` begins with `from`: how long it is there, and whether some of it is `%XX`. A placeholder
/// has no `%` of its own.
fn stands_at(text: &[u8], from: &[u8], written: Written) -> Option<(usize, bool)> {
    let (mut at, mut encoded) = (0, false);
    for byte in from {
        match text.get(at)? {
            found if found == byte => at += 1,
            b'%' if written == Written::Percent => {
                let digits = std::str::from_utf8(text.get(at + 1..at + 3)?).ok()?;
                if u8::from_str_radix(digits, 16) != Ok(*byte) {
                    return None;
                }
                (at, encoded) = (at + 3, true);
            }
            _ => return None,
        }
    }
    Some((at, encoded))
}

fn replace(
    text: &[u8],
    from: &[u8],
    written: Written,
    (as_it_is, encoded): (&str, &str),
) -> Zeroizing<Vec<u8>> {
    // Room for the worst case, so that no half-made copy is left behind by growing.
    let longest = as_it_is.len().max(encoded.len());
    let mut new =
        Zeroizing::new(Vec::with_capacity(text.len() / from.len() * longest + text.len()));
    let mut rest = text;
    while let Some(found) = find(rest, from, written) {
        new.extend_from_slice(&rest[..found.at]);
        let value = if found.encoded { encoded } else { as_it_is };
        new.extend_from_slice(value.as_bytes());
        rest = &rest[found.at + found.length..];
    }
    new.extend_from_slice(rest);
    new
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
        assert!(secrets().put_into_body(&name, b"sk-placeholder", Written::Plain).is_none());
        assert_eq!(
            secrets().put_into_target(&name, "/?key=sk-placeholder").unwrap().as_slice(),
            b"/?key=sk-the-real-one"
        );
        assert!(secrets().without("KEY").0.0.is_empty());
        assert!(!secrets().has_host(&Name::parse("evil.test").unwrap()));
    }

    /// What means something where the value is put stays part of the value.
    #[test]
    fn a_value_is_written_as_what_stands_around_it() {
        let secrets = Secrets::new(vec![EgressSecret {
            name: "KEY".into(),
            placeholder: "ab+cd/ef=ghijkl".into(),
            hosts: vec!["api.test".into()],
            value: SecretValue::new("x+y/z=&#\"\\% é".into()),
            in_body: true,
        }])
        .unwrap();
        let name = Name::parse("api.test").unwrap();
        let target = |text: &str| secrets.put_into_target(&name, text).map(|new| text_of(&new));
        let raw = "x+y/z=%26%23%22%5C%25%20%C3%A9";
        let encoded = "x%2By%2Fz%3D%26%23%22%5C%25%20%C3%A9";
        assert_eq!(target("/?k=ab+cd/ef=ghijkl&b=1").unwrap(), format!("/?k={raw}&b=1"));
        assert_eq!(target("/?k=ab%2bcd%2Fef%3dghijkl&b=1").unwrap(), format!("/?k={encoded}&b=1"));
        assert_eq!(target("/?k=ab%2bcd%2Fef%3dghijk"), None);
        assert_eq!(target("/%"), None);
        let body = |kind: Option<&str>, text: &str| {
            let written = Written::of_body(kind, text.as_bytes());
            secrets.put_into_body(&name, text.as_bytes(), written).map(|new| text_of(&new))
        };
        let form = Some("application/x-www-form-urlencoded");
        let json = "{\"k\":\"ab+cd/ef=ghijkl\"}";
        for kind in [Some("application/json; charset=utf-8"), Some("a/b+json"), form] {
            let new: serde_json::Value = serde_json::from_str(&body(kind, json).unwrap()).unwrap();
            assert_eq!(new["k"], "x+y/z=&#\"\\% é", "{kind:?}");
        }
        assert_eq!(body(form, "k=ab%2Bcd%2Fef%3Dghijkl").unwrap(), format!("k={encoded}"));
        assert_eq!(body(None, "k=ab+cd/ef=ghijkl").unwrap(), "k=x+y/z=&#\"\\% é");
        assert_eq!(body(None, "k=ab%2Bcd/ef=ghijkl"), None);
    }

    fn text_of(bytes: &[u8]) -> String {
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn what_a_host_repeats_in_its_head_is_taken_out_again() {
        let name = Name::parse("api.test").unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("location", HeaderValue::from_static("/x/sk-the-real-one?y=1"));
        headers.insert("x-echo", HeaderValue::from_static("sk%2Dthe%2dreal-one"));
        secrets().take_out_of_headers(&name, &mut headers);
        assert_eq!(headers["location"], "/x/sk-placeholder?y=1");
        assert_eq!(headers["x-echo"], "sk-placeholder");
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
