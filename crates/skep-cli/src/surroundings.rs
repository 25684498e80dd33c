//! Everything a command depends on that was not typed, read once.

use skep_types::{ByteString, Code, Problem};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The process's surroundings.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    /// The whole environment.
    pub(crate) variables: BTreeMap<OsString, OsString>,
    /// The current directory, without symbolic links; [`GONE`] if it was removed.
    pub(crate) directory: PathBuf,
    /// The caller's home directory, without symbolic links where it exists.
    pub(crate) home: PathBuf,
    /// Effective user id.
    pub(crate) user: u32,
    /// Which streams are terminals.
    pub(crate) terminals: Terminals,
}

/// Which of the standard streams are terminals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Terminals {
    /// Standard input.
    pub(crate) stdin: bool,
    /// Standard output.
    pub(crate) stdout: bool,
    /// Standard error.
    pub(crate) stderr: bool,
}

/// What stands for a current directory that was removed: nothing can be found below it, neither a
/// project nor a relative path.
pub(crate) const GONE: &str = "/proc/self/cwd";

impl Surroundings {
    /// That there is no current directory, for a command that needs one.
    pub(crate) fn refuse_gone(&self) -> Result<(), Problem> {
        if self.directory != Path::new(GONE) {
            return Ok(());
        }
        Err(Problem::new(Code::Io, "the current directory was removed")
            .hint("change to one that exists, or name the project or the sandbox"))
    }

    /// Reads them from the process.
    pub(crate) fn read() -> Result<Self, Problem> {
        let variables: BTreeMap<_, _> = std::env::vars_os().collect();
        let directory = match std::env::current_dir() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => GONE.into(),
            found => found.map_err(|error| {
                Problem::new(Code::Io, format!("cannot find the current directory: {error}"))
                    .hint("change to one that can be entered")
            })?,
        };
        // From another directory it would be another state, and here it would lie in the project.
        let state = variables.get(&OsString::from("SKEP_HOME")).filter(|path| !path.is_empty());
        if let Some(path) = state.filter(|path| !Path::new(path).is_absolute()) {
            let shown = skep_types::escape::visible(path.as_bytes());
            return Err(Problem::new(Code::Usage, format!("SKEP_HOME is not absolute: `{shown}`"))
                .hint("set it to an absolute path outside of your projects"));
        }
        let user = rustix::process::geteuid().as_raw();
        let home = home_directory(variables.get(&OsString::from("HOME")), user)?;
        let terminals = Terminals {
            stdin: std::io::stdin().is_terminal(),
            stdout: std::io::stdout().is_terminal(),
            stderr: std::io::stderr().is_terminal(),
        };
        Ok(Self { variables, directory, home, user, terminals })
    }

    /// A variable that is set and not empty.
    pub(crate) fn variable(&self, name: &str) -> Option<&OsString> {
        self.variables.get(&OsString::from(name)).filter(|value| !value.is_empty())
    }

    /// The environment as requests carry it. Names that are not text cannot be in an allow-list.
    pub(crate) fn environment(&self) -> BTreeMap<String, ByteString> {
        let text = |(name, value): (&OsString, &OsString)| {
            Some((name.to_str()?.to_owned(), ByteString::from(value.as_os_str())))
        };
        self.variables.iter().filter_map(text).collect()
    }

    /// The state directory: `--home`, `SKEP_HOME`, `$XDG_STATE_HOME/skep`, `~/.local/state/skep`.
    pub(crate) fn state_directory(&self, typed: Option<&Path>) -> PathBuf {
        if let Some(path) = typed {
            return self.directory.join(path);
        }
        if let Some(path) = self.variable("SKEP_HOME") {
            return path.into();
        }
        self.base_directory("XDG_STATE_HOME", ".local/state").join("skep")
    }

    /// The user's settings: `$XDG_CONFIG_HOME/skep/config.toml`, `~/.config/skep/config.toml`.
    pub(crate) fn config_file(&self) -> PathBuf {
        self.base_directory("XDG_CONFIG_HOME", ".config").join("skep/config.toml")
    }

    /// The settings of this machine. Tests of debug builds put another file in its place.
    pub(crate) fn system_config_file(&self) -> PathBuf {
        let tests = self.variable("SKEP_TEST_SYSTEM_CONFIG").filter(|_| cfg!(debug_assertions));
        tests.map_or_else(|| PathBuf::from("/etc/skep/config.toml"), PathBuf::from)
    }

    /// The variables that may be settings.
    pub(crate) fn own_variables(&self) -> BTreeMap<String, String> {
        let own = self.variables.iter().filter(|(name, _)| name.as_bytes().starts_with(b"SKEP_"));
        own.map(|(name, value)| {
            (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        })
        .collect()
    }

    fn base_directory(&self, variable: &str, below_home: &str) -> PathBuf {
        // The XDG rules say that a relative value is to be ignored.
        match self.variable(variable).map(PathBuf::from).filter(|path| path.is_absolute()) {
            Some(path) => path,
            None => self.home.join(below_home),
        }
    }
}

fn home_directory(variable: Option<&OsString>, user: u32) -> Result<PathBuf, Problem> {
    let from_variable = variable.map(PathBuf::from).filter(|path| path.is_absolute());
    let found = from_variable.or_else(|| {
        let account = account(&accounts(), user)?;
        account.home.is_absolute().then_some(account.home)
    });
    let path = found.ok_or_else(|| {
        Problem::new(Code::Usage, format!("user {user} has no home directory"))
            .hint("set HOME to an absolute path")
    })?;
    Ok(std::fs::canonicalize(&path).unwrap_or(path))
}

/// The name of a user, for approvals and for `$USER` inside; its number where it has none. Not the
/// host's `$USER`, which anybody may set to anything.
pub(crate) fn user_name(user: u32) -> String {
    account(&accounts(), user).map_or_else(|| user.to_string(), |account| account.name)
}

#[derive(Debug, PartialEq, Eq)]
struct Account {
    name: String,
    home: PathBuf,
}

/// The accounts of this host; none if they cannot be read.
fn accounts() -> Vec<u8> {
    std::fs::read("/etc/passwd").unwrap_or_default()
}

fn account(accounts: &[u8], user: u32) -> Option<Account> {
    let user = user.to_string();
    accounts.split(|byte| *byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        let &[name, _, id, _, _, home, ..] = fields.as_slice() else { return None };
        (id == user.as_bytes()).then(|| Account {
            name: skep_types::escape::visible(name),
            home: PathBuf::from(std::ffi::OsStr::from_bytes(home)),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Surroundings {
        let variables = variables.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        Surroundings {
            variables,
            directory: "/work".into(),
            home: "/home/u".into(),
            ..Surroundings::default()
        }
    }

    #[test]
    fn the_state_directory_by_precedence() {
        let all = with(&[("SKEP_HOME", "/here"), ("XDG_STATE_HOME", "/xdg")]);
        assert_eq!(all.state_directory(Some(Path::new("/typed"))), Path::new("/typed"));
        assert_eq!(all.state_directory(None), Path::new("/here"));
        let xdg = with(&[("SKEP_HOME", ""), ("XDG_STATE_HOME", "/xdg")]);
        assert_eq!(xdg.state_directory(None), Path::new("/xdg/skep"));
        let relative = with(&[("XDG_STATE_HOME", "xdg")]);
        assert_eq!(relative.state_directory(None), Path::new("/home/u/.local/state/skep"));
    }

    #[test]
    fn names_and_homes_from_the_accounts() {
        let accounts = b"root:x:0:0:root:/root:/bin/sh\nu:x:7:7::/home/u:/bin/sh\nbad\n";
        let expected = Account { name: "u".into(), home: "/home/u".into() };
        assert_eq!(account(accounts, 7), Some(expected));
        assert_eq!(account(accounts, 8), None);
    }
}
