//! Sessions of a browser: a token is shown once, in the body of a request, and never again.
//!
//! A session has two secrets, and both are needed. The *cookie* is out of reach of scripts, but a
//! browser sends it to every port of this host: whatever else listens here would see it. The *key*
//! is in the answer to the login; the page keeps it in its own storage, which belongs to this port
//! alone, and sends it as a header. A foreign port has at most the first, a foreign script at most
//! the second.
//!
//! Kept is one file per session, `sessions/<id>` in the state directory (mode 0600), with hashes, and
//! which token it was opened with. Every request looks at that token again, so that a session ends
//! with it: by revoking, by its expiry, or by another `--token-file`.

use crate::tokens::{parse_time, random_hex};
use axum::http::{HeaderMap, HeaderValue, header};
use serde::{Deserialize, Serialize};
use skep_types::{Code, Problem};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use subtle::ConstantTimeEq as _;

/// The cookie's name.
pub(crate) const COOKIE: &str = "skep_session";
/// The header with the key.
pub(crate) const KEY_HEADER: &str = "x-skep-session";
/// A browser cannot set headers of a WebSocket; there the key is a protocol of this name.
pub(crate) const KEY_PROTOCOL: &str = "skep.session.";
/// How long a session lasts.
const LIFETIME: jiff::SignedDuration = jiff::SignedDuration::from_hours(12);
/// More than so many make room by ending the oldest.
const MOST: usize = 32;
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;

/// What a session was opened with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OpenedWith {
    /// A token of this id, of which this is kept: an id that is used again is another token.
    Token { id: String, hash: String },
    /// The bootstrap token of this hash.
    Bootstrap { hash: String },
}

/// A session as kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    id: String,
    opened_with: OpenedWith,
    expires_at: String,
    cookie_hash: String,
    key_hash: String,
}

/// A session that was just opened.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The header that sets the cookie.
    pub(crate) set_cookie: HeaderValue,
    /// The key, for the page.
    pub(crate) key: String,
    /// When it ends by itself (RFC 3339).
    pub(crate) expires_at: String,
}

/// The sessions of a state directory.
#[derive(Debug, Clone)]
pub(crate) struct Sessions {
    directory: PathBuf,
}

impl Sessions {
    /// Those in `state_dir`; the directory is made when the first one is.
    pub(crate) fn of(state_dir: &Path) -> Self {
        Self { directory: state_dir.join("sessions") }
    }

    /// Opens one, and lets go of those that have ended.
    pub(crate) fn open(
        &self,
        opened_with: OpenedWith,
        until: Option<&str>,
        now: &str,
    ) -> Result<Opened, Problem> {
        let failed = |error: &dyn std::fmt::Display| {
            Problem::new(Code::Io, format!("cannot keep a session: {error}"))
        };
        let expires_at = expiry(until, now)?;
        let random = |length| random_hex(length).map_err(|error| failed(&error));
        let (id, secret, key) = (random(ID_BYTES)?, random(SECRET_BYTES)?, random(SECRET_BYTES)?);
        let kept = Kept {
            id: id.clone(),
            opened_with,
            expires_at: expires_at.to_string(),
            cookie_hash: hash(&secret),
            key_hash: hash(&key),
        };
        self.sweep(&kept.opened_with, now);
        let write = || -> io::Result<()> {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
            let mut options = File::options();
            let mut file =
                options.write(true).create_new(true).mode(0o600).open(self.directory.join(&id))?;
            file.write_all(&serde_json::to_vec(&kept)?)
        };
        write().map_err(|error| failed(&error))?;
        let set_cookie = cookie(&format!("{id}.{secret}"), LIFETIME.as_secs());
        let set_cookie = set_cookie.map_err(|error| failed(&error))?;
        Ok(Opened { set_cookie, key, expires_at: kept.expires_at })
    }

    /// What the session of a request was opened with, if it has one that lives.
    pub(crate) fn check(&self, headers: &HeaderMap, now: &str) -> Option<(String, OpenedWith)> {
        let (id, secret) = sent_cookie(headers)?;
        let kept = self.read(id)?;
        let key = sent_key(headers)?;
        let same = equal(&kept.cookie_hash, secret) & equal(&kept.key_hash, key);
        let fresh = parse_time(&kept.expires_at).ok()? > parse_time(now).ok()?;
        (same && fresh).then_some((kept.id, kept.opened_with))
    }

    /// Ends one; one that has ended is no error.
    pub(crate) fn end(&self, id: &str) -> Result<(), Problem> {
        match fs::remove_file(self.directory.join(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Problem::new(Code::Io, format!("cannot end session `{id}`: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// Ended ones go; where too many are left, the oldest of the same token, which alone loses by it.
    fn sweep(&self, of: &OpenedWith, now: &str) {
        let Ok(now) = parse_time(now) else { return };
        let mut live = Vec::new();
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let kept = name.to_str().and_then(|id| self.read(id));
            let end = kept.as_ref().and_then(|kept| parse_time(&kept.expires_at).ok());
            match end.filter(|end| *end > now) {
                Some(end) if kept.is_some_and(|kept| kept.opened_with == *of) => {
                    live.push((end, entry.path()));
                }
                Some(_) => {}
                None => drop(fs::remove_file(entry.path())),
            }
        }
        live.sort();
        let over = (live.len() + 1).saturating_sub(MOST);
        for (_, path) in live.into_iter().take(over) {
            let _ = fs::remove_file(path);
        }
    }

    fn read(&self, id: &str) -> Option<Kept> {
        if id.len() != ID_BYTES * 2 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let bytes = fs::read(self.directory.join(id)).ok()?;
        serde_json::from_slice::<Kept>(&bytes).ok().filter(|kept| kept.id == id)
    }
}

/// The header that takes the cookie away.
pub(crate) fn no_cookie() -> Option<HeaderValue> {
    cookie("", 0).ok()
}

/// No `Secure`: there is no TLS here, and the connection never leaves this host. No `Domain`: this
/// very name alone.
fn cookie(value: &str, seconds: i64) -> Result<HeaderValue, header::InvalidHeaderValue> {
    let text = format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}");
    let mut header = HeaderValue::try_from(text)?;
    header.set_sensitive(true);
    Ok(header)
}

fn expiry(until: Option<&str>, now: &str) -> Result<jiff::Timestamp, Problem> {
    let latest = parse_time(now)?.checked_add(LIFETIME);
    let latest = latest
        .map_err(|error| Problem::new(Code::Internal, format!("the clock is off: {error}")))?;
    match until {
        None => Ok(latest),
        Some(end) => Ok(latest.min(parse_time(end)?)),
    }
}

/// Whether a request comes with a session at all, good or not.
pub(crate) fn is_by_session(headers: &HeaderMap) -> bool {
    sent_cookie(headers).is_some()
}

/// Id and secret. Two cookies of our name are one too many: somebody else set one of them.
fn sent_cookie(headers: &HeaderMap) -> Option<(&str, &str)> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs =
        lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let mut ours = pairs.filter(|(name, _)| *name == COOKIE).map(|(_, value)| value);
    match (ours.next(), ours.next()) {
        (Some(value), None) => value.split_once('.'),
        _ => None,
    }
}

fn sent_key(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get(KEY_HEADER) {
        return key.to_str().ok();
    }
    sent_protocol(headers)?.strip_prefix(KEY_PROTOCOL)
}

/// The protocol of a WebSocket that carries a key, as it must be confirmed.
pub(crate) fn sent_protocol(headers: &HeaderMap) -> Option<&str> {
    let line = headers.get(header::SEC_WEBSOCKET_PROTOCOL)?.to_str().ok()?;
    line.split(',').map(str::trim).find(|word| word.starts_with(KEY_PROTOCOL))
}

fn equal(kept: &str, sent: &str) -> bool {
    kept.as_bytes().ct_eq(hash(sent).as_bytes()).into()
}

fn hash(secret: &str) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("skep 2026 session v1");
    hasher.update(secret.as_bytes());
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-16T00:00:00Z";

    fn opened(state: &Path, until: Option<&str>) -> (Sessions, Opened) {
        let sessions = Sessions::of(state);
        let with = OpenedWith::Bootstrap { hash: "x".into() };
        let opened = sessions.open(with, until, NOW).unwrap();
        (sessions, opened)
    }

    fn headers(opened: &Opened) -> HeaderMap {
        let cookie = opened.set_cookie.to_str().unwrap().split(';').next().unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, cookie.parse().unwrap());
        headers.insert(KEY_HEADER, opened.key.parse().unwrap());
        headers
    }

    #[test]
    fn both_secrets_are_needed_and_nothing_of_them_is_kept() {
        let state = tempfile::tempdir().unwrap();
        let (sessions, opened) = opened(state.path(), None);
        let whole = headers(&opened);
        let (id, _) = sessions.check(&whole, NOW).unwrap();
        let kept = fs::read_to_string(state.path().join("sessions").join(&id)).unwrap();
        let secret = sent_cookie(&whole).unwrap().1;
        assert!(!kept.contains(secret) && !kept.contains(&opened.key));
        for without in [header::COOKIE.as_str(), KEY_HEADER] {
            let mut part = whole.clone();
            part.remove(without);
            assert!(sessions.check(&part, NOW).is_none(), "{without}");
        }
        let mut twice = whole.clone();
        twice.append(header::COOKIE, HeaderValue::from_static("skep_session=a.b"));
        assert!(sessions.check(&twice, NOW).is_none(), "a second cookie of the name");
        let mut socket = whole.clone();
        socket.remove(KEY_HEADER);
        let protocol = format!("x, {KEY_PROTOCOL}{}", opened.key);
        socket.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol.parse().unwrap());
        assert!(sessions.check(&socket, NOW).is_some());
        sessions.end(&id).unwrap();
        assert!(sessions.check(&whole, NOW).is_none());
    }

    #[test]
    fn it_ends_by_itself_and_not_after_its_token() {
        let state = tempfile::tempdir().unwrap();
        let (sessions, long) = opened(state.path(), None);
        assert!(sessions.check(&headers(&long), "2026-11-16T11:59:59Z").is_some());
        assert!(sessions.check(&headers(&long), "2026-11-16T12:00:00Z").is_none());
        let (_, short) = opened(state.path(), Some("2026-11-16T00:00:10Z"));
        assert!(sessions.check(&headers(&short), "2026-11-16T00:00:09Z").is_some());
        assert!(sessions.check(&headers(&short), "2026-11-16T00:00:10Z").is_none());
        let with = OpenedWith::Bootstrap { hash: "x".into() };
        sessions.open(with, None, "2026-11-17T00:00:00Z").unwrap();
        let left = fs::read_dir(state.path().join("sessions")).unwrap().count();
        assert_eq!(left, 1, "those that ended are let go");
    }
}
