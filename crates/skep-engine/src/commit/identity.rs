//! Who commits: the identity that is in force for the repository, read without running anything.

use super::repository::Repository;
use gix::config::File;
use gix::config::Source;
use gix::config::file::{Metadata, includes, init};
use skep_types::{Code, Problem};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Author and committer of a commit.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub author: gix::actor::Signature,
    pub committer: gix::actor::Signature,
    /// Whether the settings ask for signed commits.
    pub wants_signature: bool,
    /// Whether the settings ask for line ends to be converted (`core.autocrlf`).
    pub converts_line_ends: bool,
    /// The user's own file of attributes, where the settings name one.
    pub attributes_file: Option<PathBuf>,
}

impl Identity {
    /// Reads the system's, the user's and the repository's settings, in that order.
    ///
    /// Inclusions are followed in the user's own files only: the repository may be somebody
    /// else's, and a path in it can name a file that never ends.
    pub(super) fn read(repository: &Repository, home: &Path, now: &str) -> Result<Self, Problem> {
        let own = [
            (PathBuf::from("/etc/gitconfig"), Source::System),
            (home.join(".config/git/config"), Source::Git),
            (home.join(".gitconfig"), Source::User),
        ];
        let own = own.into_iter().filter(|(path, _)| path.is_file()).map(|(path, source)| {
            Metadata { path: Some(path), source, level: 0, trust: gix::sec::Trust::Full }
        });
        let interpolate = gix::config::path::interpolate::Context {
            git_install_dir: None,
            home_dir: Some(home),
            home_for_user: None,
        };
        let conditional = includes::conditional::Context {
            git_dir: Some(repository.git_dir()),
            branch_name: None,
        };
        let mut follow = includes::Options::follow(interpolate, conditional);
        follow.err_on_max_depth_exceeded = false;
        follow.err_on_missing_config_path = false;
        let options = init::Options { includes: follow, ignore_io_errors: true, lossy: true };
        let unreadable = |error: &dyn std::fmt::Display| {
            Problem::new(Code::Io, format!("git's settings cannot be read: {error}"))
        };
        let mut config = File::from_paths_metadata(own, options)
            .map_err(|error| unreadable(&error))?
            .unwrap_or_default();
        for path in repository.settings_files() {
            let part = File::from_path_no_includes(path, Source::Local)
                .map_err(|error| unreadable(&error))?;
            config.append(part).map_err(|error| unreadable(&error))?;
        }
        Self::from_config(&config, home, now)
    }

    fn from_config(config: &File, home: &Path, now: &str) -> Result<Self, Problem> {
        let time: jiff::Timestamp = now
            .parse()
            .map_err(|error| Problem::new(Code::Internal, format!("the clock is off: {error}")))?;
        let time = gix::date::Time { seconds: time.as_second(), offset: 0 };
        let signature = |role: &str| {
            let value = |key: &str| {
                let text = |section: &str| config.string(format!("{section}.{key}").as_str());
                let value = text(role).or_else(|| text("user"))?;
                clean(&value)
            };
            match (value("name"), value("email")) {
                (Some(name), Some(email)) => Ok(gix::actor::Signature { name, email, time }),
                _ => Err(Problem::new(
                    Code::Usage,
                    "git knows no `user.name` and `user.email` for this project",
                )),
            }
        };
        let wants_signature =
            config.boolean("commit.gpgSign").is_ok_and(|value| value == Some(true));
        let word = |key: &str| config.string(key).map(|value| value.to_ascii_lowercase());
        // `input` converts as well when something is committed.
        let converts_line_ends = word("core.autocrlf")
            .is_some_and(|value| !matches!(value.as_slice(), b"false" | b"no" | b"off" | b"0"));
        let attributes_file = config.string("core.attributesFile").map(|value| {
            let path = Path::new(OsStr::from_bytes(&value));
            path.strip_prefix("~").map_or_else(|_| path.to_owned(), |below| home.join(below))
        });
        Ok(Self {
            author: signature("author")?,
            committer: signature("committer")?,
            wants_signature,
            converts_line_ends,
            attributes_file,
        })
    }
}

/// A header line cannot hold these; git leaves them out, too.
fn clean(value: &[u8]) -> Option<gix::bstr::BString> {
    let kept: Vec<u8> = value
        .iter()
        .copied()
        .filter(|byte| !matches!(byte, b'<' | b'>' | b'\n' | b'\r' | 0))
        .collect();
    let kept = kept.trim_ascii();
    (!kept.is_empty()).then(|| kept.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> File {
        let meta = Metadata::from(Source::Local);
        File::from_bytes_no_includes(text.as_bytes(), meta, init::Options::default()).unwrap()
    }

    #[test]
    fn an_identity_needs_name_and_address_and_cannot_break_the_header() {
        let now = "2026-11-15T22:00:00Z";
        let home = Path::new("/home/a");
        assert!(Identity::from_config(&parse("[user]\nname = A"), home, now).is_err());
        let text = "[user]\nname = \"A <x>\\nparent 1\"\nemail = a@b\n[author]\nname = Writer\n\
                    [commit]\ngpgSign = true";
        let identity = Identity::from_config(&parse(text), home, now).unwrap();
        assert_eq!(identity.author.name, "Writer");
        assert_eq!(identity.author.email, "a@b");
        assert_eq!(identity.committer.name, "A xparent 1");
        assert!(identity.wants_signature && !identity.converts_line_ends);
        let text = "[user]\nname = A\nemail = a@b\n[core]\nautocrlf = input\nattributesFile = ~/at";
        let identity = Identity::from_config(&parse(text), home, now).unwrap();
        assert!(identity.converts_line_ends);
        assert_eq!(identity.attributes_file.unwrap(), home.join("at"));
    }
}
