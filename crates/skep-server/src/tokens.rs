//! Tokens: who asks over TCP.
//!
//! A token is `skep_<id>_<secret>`. Kept is one file per token, `tokens/<id>` in the state
//! directory (mode 0600), with the hash of the secret, never the secret. Revoking removes the
//! file; the next request no longer finds it. The bootstrap token stands in a file of the
//! caller's and is compared the same way.

use crate::roles::Role;
use serde::{Deserialize, Serialize};
use skep_types::{Code, Problem, SandboxId};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use subtle::ConstantTimeEq as _;

/// Random bytes of an id and of a secret.
const ID_BYTES: usize = 6;
const SECRET_BYTES: usize = 32;
/// For so long a token that has expired is still listed.
const TOLD: jiff::SignedDuration = jiff::SignedDuration::from_hours(7 * 24);
/// A bootstrap token shorter than this can be guessed.
const SHORTEST: usize = 16;

/// A token as kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// Its public part.
    pub id: String,
    /// What it may do.
    pub role: Role,
    /// The only sandbox it works in; agents have one, others none.
    pub sandbox: Option<SandboxId>,
    /// A word of whoever made it.
    pub name: String,
    /// When it was made (RFC 3339).
    pub created_at: String,
    /// From when on it is refused (RFC 3339).
    pub expires_at: Option<String>,
    /// Hash of the secret, in hexadecimal digits.
    hash: String,
}

/// What a new token is to be.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// What it may do.
    pub role: Role,
    /// The only sandbox it works in.
    pub sandbox: Option<SandboxId>,
    /// A word for it.
    pub name: String,
    /// From when on it is refused (RFC 3339).
    pub expires_at: Option<String>,
    /// The clock.
    pub now: String,
}

impl Token {
    /// What a session remembers of it.
    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }

    /// Whether it has not expired.
    pub fn is_fresh(&self, now: &str) -> bool {
        match (&self.expires_at, parse_time(now)) {
            (None, _) => true,
            (Some(expiry), Ok(now)) => parse_time(expiry).is_ok_and(|expiry| expiry > now),
            (Some(_), Err(_)) => false,
        }
    }
}

/// The tokens of a state directory.
#[derive(Debug, Clone)]
pub struct Tokens {
    directory: PathBuf,
    /// Where the directories of sandboxes are.
    sandboxes: PathBuf,
}

impl Tokens {
    /// Those in `state_dir`; the directory is made when the first one is.
    pub fn of(state_dir: &Path) -> Self {
        Self { directory: state_dir.join("tokens"), sandboxes: state_dir.join("sandboxes") }
    }

    /// Makes a token and returns it with its text, which is shown once and kept nowhere.
    pub fn create(&self, new: NewToken) -> Result<(Token, String), Problem> {
        if (new.role == Role::Agent) != new.sandbox.is_some() {
            let hint = match new.role {
                Role::Agent => "add `--sandbox NAME`",
                _ => "leave `--sandbox` out, or make it `--role agent`",
            };
            let message = "a token of role `agent` names one sandbox, and no other role does";
            return Err(Problem::new(Code::Usage, message).hint(hint));
        }
        if let Some(expiry) = &new.expires_at {
            parse_time(expiry)?;
        }
        let failed = |error: &dyn std::fmt::Display| {
            Problem::new(Code::Io, format!("cannot write a token: {error}"))
        };
        let random = |length| random_hex(length).map_err(|error| failed(&error));
        let (id, secret) = (random(ID_BYTES)?, random(SECRET_BYTES)?);
        let token = Token {
            id: id.clone(),
            role: new.role,
            sandbox: new.sandbox,
            name: new.name,
            created_at: new.now,
            expires_at: new.expires_at,
            hash: hash(secret.as_bytes()).to_hex().to_string(),
        };
        let write = || -> io::Result<()> {
            fs::DirBuilder::new().recursive(true).create(&self.directory)?;
            fs::set_permissions(
                &self.directory,
                std::os::unix::fs::PermissionsExt::from_mode(0o700),
            )?;
            let mut options = File::options();
            options.write(true).create_new(true).mode(0o600);
            let mut file = options.open(self.directory.join(&id))?;
            file.write_all(&serde_json::to_vec(&token)?)
        };
        write().map_err(|error| failed(&error))?;
        Ok((token, format!("skep_{id}_{secret}")))
    }

    /// All tokens, oldest first.
    pub fn list(&self) -> Result<Vec<Token>, Problem> {
        let failed = |error: io::Error| {
            Problem::new(
                Code::Io,
                format!("cannot read the tokens in `{}`: {error}", self.directory.display()),
            )
        };
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(failed)?,
        };
        let mut tokens = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            // A token that is not whole yet, or is being revoked, is none.
            tokens.extend(name.to_str().and_then(|id| self.read(id)));
        }
        tokens.sort_by(|a: &Token, b: &Token| (&a.created_at, &a.id).cmp(&(&b.created_at, &b.id)));
        Ok(tokens)
    }

    /// The id of the one token with this name; an id comes before a name.
    fn id_of_name(&self, name: &str) -> Result<Option<String>, Problem> {
        if name.is_empty() || self.read(name).is_some() {
            return Ok(None);
        }
        let mut named: Vec<String> = self
            .list()?
            .into_iter()
            .filter(|token| token.name == name)
            .map(|token| token.id)
            .collect();
        match named.len() {
            0 | 1 => Ok(named.pop()),
            _ => {
                let shown = skep_types::escape::visible(name.as_bytes());
                Err(Problem::new(Code::Usage, format!("more than one token is called `{shown}`"))
                    .hint(format!("name one by its id: {}", named.join(", "))))
            }
        }
    }

    /// Refuses a token from now on. It is named by its id, its whole text, or its name where no other
    /// has that one.
    pub fn revoke(&self, text: &str) -> Result<Token, Problem> {
        let named = self.id_of_name(text)?;
        let id = named.as_deref().unwrap_or_else(|| parts(text).map_or(text, |(id, _)| id));
        let missing = || {
            let shown = skep_types::escape::visible(id.as_bytes());
            Problem::new(Code::NotFound, format!("there is no token `{shown}`"))
                .hint("`skep token ls` lists them")
        };
        let token = self.read(id).ok_or_else(missing)?;
        match fs::remove_file(self.directory.join(id)) {
            Ok(()) => Ok(token),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing()),
            Err(error) => {
                Err(Problem::new(Code::Io, format!("cannot revoke token `{id}`: {error}")))
            }
        }
    }

    /// Lets go of what nobody can use any more: tokens that expired a week ago, and those of sandboxes that are
    /// deleted. A platform makes one for every sandbox.
    pub fn sweep(&self, now: &str) -> Result<(), Problem> {
        let now = parse_time(now)?;
        for token in self.list()? {
            let expiry = token.expires_at.as_deref().and_then(|text| parse_time(text).ok());
            let expired = expiry.is_some_and(|expiry| now.duration_since(expiry) > TOLD);
            if expired || token.sandbox.as_ref().is_some_and(|id| self.is_gone(id)) {
                let _ = fs::remove_file(self.directory.join(&token.id));
            }
        }
        Ok(())
    }

    /// The directory of a sandbox goes with it.
    fn is_gone(&self, id: &SandboxId) -> bool {
        let found = fs::symlink_metadata(self.sandboxes.join(id.as_str()));
        found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// The token whose text this is, unless it has expired.
    pub(crate) fn check(&self, text: &str, now: &str) -> Option<Token> {
        let (id, secret) = parts(text)?;
        let token = self.read(id)?;
        let expected = blake3::Hash::from_hex(&token.hash).ok()?;
        let same: bool = expected.as_bytes().ct_eq(hash(secret.as_bytes()).as_bytes()).into();
        (same && token.is_fresh(now)).then_some(token)
    }

    /// The token of this id, if it is still the same and has not expired. Whoever asks has proven
    /// otherwise that it was theirs.
    pub(crate) fn find(&self, id: &str, hash: &str, now: &str) -> Option<Token> {
        self.read(id).filter(|token| token.hash == hash && token.is_fresh(now))
    }

    fn read(&self, id: &str) -> Option<Token> {
        if id.len() != ID_BYTES * 2 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let bytes = fs::read(self.directory.join(id)).ok()?;
        serde_json::from_slice::<Token>(&bytes).ok().filter(|token| token.id == id)
    }
}

/// The bootstrap token of a server: its hash.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bootstrap(blake3::Hash);

impl Bootstrap {
    /// Reads it from a file that nobody else can read.
    pub(crate) fn read(path: &Path, user: u32) -> Result<Self, Problem> {
        let shown = skep_types::escape::visible(path.as_os_str().as_encoded_bytes());
        let failed = |why: String| {
            Problem::new(Code::Refused, format!("cannot use the token file `{shown}`: {why}"))
                .hint("a file of yours with mode 0600 that holds the token and nothing else")
        };
        let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        let mut file = File::options()
            .read(true)
            .custom_flags(flags)
            .open(path)
            .map_err(|error| failed(error.to_string()))?;
        let meta = file.metadata().map_err(|error| failed(error.to_string()))?;
        if !meta.is_file() || meta.uid() != user {
            return Err(failed("it is not a file of this user".into()));
        }
        if meta.mode() & 0o077 != 0 {
            return Err(failed(format!("its mode is {:04o}", meta.mode() & 0o7777)));
        }
        let mut text = String::new();
        std::io::Read::by_ref(&mut file)
            .take(4096)
            .read_to_string(&mut text)
            .map_err(|error| failed(error.to_string()))?;
        let text = text.trim();
        if text.len() < SHORTEST || text.bytes().any(|byte| !byte.is_ascii_graphic()) {
            return Err(failed(format!("it holds no token of at least {SHORTEST} characters")));
        }
        Ok(Self(hash(text.as_bytes())))
    }

    /// What a session remembers of it.
    pub(crate) fn hash(self) -> String {
        self.0.to_hex().to_string()
    }

    /// Whether this is it.
    pub(crate) fn is(self, text: &str) -> bool {
        self.0.as_bytes().ct_eq(hash(text.as_bytes()).as_bytes()).into()
    }
}

fn hash(secret: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_derive_key("skep 2026 token v1");
    hasher.update(secret);
    hasher.finalize()
}

fn parts(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix("skep_")?.split_once('_')
}

pub(crate) fn parse_time(text: &str) -> Result<jiff::Timestamp, Problem> {
    text.parse()
        .map_err(|error| Problem::new(Code::Usage, format!("`{text}` is not a time: {error}")))
}

/// Random bytes from the kernel, in hexadecimal digits.
pub(crate) fn random_hex(length: usize) -> io::Result<String> {
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(role: Role) -> NewToken {
        let now = "2026-11-16T00:00:00Z".to_owned();
        NewToken { role, sandbox: None, name: "ci".into(), expires_at: None, now }
    }

    #[test]
    fn only_the_whole_text_of_a_live_token_counts() {
        let state = tempfile::tempdir().unwrap();
        let tokens = Tokens::of(state.path());
        let (token, text) = tokens.create(new(Role::Viewer)).unwrap();
        let now = "2026-11-17T00:00:00Z";
        assert_eq!(tokens.check(&text, now).unwrap(), token);
        let kept = fs::read_to_string(state.path().join("tokens").join(&token.id)).unwrap();
        assert!(!kept.contains(text.rsplit('_').next().unwrap()), "the secret is kept");
        for bad in
            ["", "skep_", &text[..text.len() - 1], &text.replace("skep_", ""), "skep_../../x_y"]
        {
            assert!(tokens.check(bad, now).is_none(), "{bad}");
        }
        tokens.revoke(&token.id).unwrap();
        assert!(tokens.check(&text, now).is_none());
        assert_eq!(tokens.revoke(&token.id).unwrap_err().code, Code::NotFound);
    }

    #[test]
    fn an_expired_token_is_none() {
        let state = tempfile::tempdir().unwrap();
        let tokens = Tokens::of(state.path());
        let expires_at = Some("2026-11-16T00:00:10Z".to_owned());
        let (_, text) = tokens.create(NewToken { expires_at, ..new(Role::Operator) }).unwrap();
        assert!(tokens.check(&text, "2026-11-16T00:00:09Z").is_some());
        assert!(tokens.check(&text, "2026-11-16T00:00:10Z").is_none());
    }

    /// They were kept for ever: a file for each sandbox that ever had an agent.
    #[test]
    fn tokens_that_nobody_can_use_are_let_go() {
        let state = tempfile::tempdir().unwrap();
        let tokens = Tokens::of(state.path());
        let until = |end: &str| NewToken { expires_at: Some(end.into()), ..new(Role::Viewer) };
        let of = |byte| {
            let sandbox = Some(SandboxId::from_random([byte; 10]));
            NewToken { sandbox, ..new(Role::Agent) }
        };
        let ids = [
            new(Role::Approver),
            until("2026-11-17T00:00:00Z"),
            until("2026-11-24T00:00:00Z"),
            of(1),
            of(2),
        ]
        .map(|new| tokens.create(new).unwrap().0.id);
        let living = SandboxId::from_random([1; 10]);
        fs::create_dir_all(state.path().join("sandboxes").join(living.as_str())).unwrap();
        tokens.sweep("2026-11-24T00:00:01Z").unwrap();
        let mut left: Vec<_> = tokens.list().unwrap().into_iter().map(|token| token.id).collect();
        let mut expected = vec![ids[0].clone(), ids[2].clone(), ids[3].clone()];
        left.sort();
        expected.sort();
        assert_eq!(left, expected);
    }

    #[test]
    fn an_agent_is_bound_and_nobody_else() {
        let state = tempfile::tempdir().unwrap();
        let tokens = Tokens::of(state.path());
        let unbound = tokens.create(new(Role::Agent)).unwrap_err();
        assert_eq!(unbound.hint.as_deref(), Some("add `--sandbox NAME`"));
        let sandbox = Some(SandboxId::from_random([1; 10]));
        assert!(
            tokens.create(NewToken { sandbox: sandbox.clone(), ..new(Role::Approver) }).is_err()
        );
        assert!(tokens.create(NewToken { sandbox, ..new(Role::Agent) }).is_ok());
    }
}
