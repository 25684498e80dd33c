//! The environment inside: an allow-list, never the host's.
//!
//! Names are data (`resources/environment.toml`). A policy carries the names it passes
//! (`env_pass`): the built-in ones unless the profile is hermetic, and what the user named.

use skep_types::{ByteString, Policy};
use std::collections::BTreeMap;

// `VERSION`, `PASS`, `NEVER`, `PATH` and `SET`, made from the list by `build.rs`.
include!(concat!(env!("OUT_DIR"), "/environment.rs"));

/// A variable that is passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedVariable {
    /// Its name; `*` stands for any characters.
    pub name: &'static str,
    /// Why.
    pub reason: &'static str,
}

/// A variable that is not passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithheldVariable {
    /// Its name; `*` stands for any characters.
    pub name: &'static str,
    /// Whether the user may pass it by its exact name.
    pub unless_named: bool,
    /// A name it matches.
    pub sample: &'static str,
    /// Why.
    pub reason: &'static str,
}

/// The built-in lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentTable {
    /// Version of the data.
    pub version: u32,
    /// What is passed.
    pub pass: &'static [PassedVariable],
    /// What is not.
    pub never: &'static [WithheldVariable],
    /// System directories of `PATH`.
    pub path: &'static [&'static str],
    /// What is always set.
    pub set: &'static [(&'static str, &'static str)],
}

static BUILTIN: EnvironmentTable =
    EnvironmentTable { version: VERSION, pass: PASS, never: NEVER, path: PATH, set: SET };

impl EnvironmentTable {
    /// The lists that come with skep.
    pub fn builtin() -> &'static Self {
        &BUILTIN
    }

    /// Why a variable that the policy names in this way is not passed; `None` if it is.
    ///
    /// `rule` is the name or pattern of `env_pass` that matched.
    fn withheld(&self, name: &str, rule: &str) -> Option<&WithheldVariable> {
        let named = !rule.contains('*') && !self.pass.iter().any(|passed| passed.name == rule);
        self.never
            .iter()
            .find(|never| !(named && never.unless_named) && matches_name(never.name, name))
    }
}

/// What the inside looks like, as far as variables tell it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InsideFacts {
    /// The home directory inside.
    pub home: ByteString,
    /// The user's name inside.
    pub user: String,
    /// The user's shell, if it exists inside.
    pub shell: Option<ByteString>,
    /// Directories with programs that come before the system's (pieces of the home that exist).
    pub program_directories: Vec<ByteString>,
}

/// The variables that programs inside start with.
///
/// In order of strength: what the policy sets, what skep sets, what the host passes.
pub fn inside_environment(
    host: impl IntoIterator<Item = (ByteString, ByteString)>,
    policy: &Policy,
    inside: &InsideFacts,
) -> BTreeMap<String, ByteString> {
    let table = EnvironmentTable::builtin();
    let mut variables = BTreeMap::new();
    for (name, value) in host {
        if let Some(name) = usable_name(&name)
            && passes(table, policy, name)
        {
            variables.insert(name.to_owned(), value);
        }
    }
    for (name, value) in table.set {
        variables.insert((*name).to_owned(), (*value).into());
    }
    variables.insert("PATH".into(), program_path(table, inside));
    variables.insert("HOME".into(), inside.home.clone());
    variables.insert("USER".into(), inside.user.as_str().into());
    variables.insert("LOGNAME".into(), inside.user.as_str().into());
    if let Some(shell) = &inside.shell {
        variables.insert("SHELL".into(), shell.clone());
    }
    variables.extend(policy.env.iter().map(|(name, value)| (name.clone(), value.clone())));
    variables
}

/// The names of `env_pass` that are never passed, with the reason: for a warning at create.
pub fn withheld_names(policy: &Policy) -> Vec<(String, String)> {
    let table = EnvironmentTable::builtin();
    let reason = |name: &String| {
        table.withheld(name, name).map(|never| (name.clone(), never.reason.to_owned()))
    };
    policy.env_pass.iter().filter_map(reason).collect()
}

/// Whether a variable of the host is passed without having been named: a part of the built-in list.
pub fn is_passed_by_default(name: &str) -> bool {
    let table = EnvironmentTable::builtin();
    let mut rules = table.pass.iter().filter(|passed| matches_name(passed.name, name));
    rules.any(|passed| table.withheld(name, passed.name).is_none())
}

fn passes(table: &EnvironmentTable, policy: &Policy, name: &str) -> bool {
    policy
        .env_pass
        .iter()
        .filter(|rule| matches_name(rule, name))
        .any(|rule| table.withheld(name, rule).is_none())
}

/// A name programs can use: text, not empty, without `=`.
fn usable_name(name: &ByteString) -> Option<&str> {
    let name = std::str::from_utf8(name.as_bytes()).ok()?;
    (!name.is_empty() && !name.contains(['=', '\0'])).then_some(name)
}

fn program_path(table: &EnvironmentTable, inside: &InsideFacts) -> ByteString {
    let usable = |directory: &&[u8]| directory.starts_with(b"/") && !directory.contains(&b':');
    let home = inside.program_directories.iter().map(ByteString::as_bytes).filter(usable);
    let directories: Vec<&[u8]> =
        home.chain(table.path.iter().map(|part| part.as_bytes())).collect();
    directories.join(&b':').into()
}

fn matches_name(pattern: &str, name: &str) -> bool {
    crate::names::matches_name(pattern.as_bytes(), name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(pass: &[&str]) -> Policy {
        let builtin = EnvironmentTable::builtin().pass.iter().map(|passed| passed.name.to_owned());
        let env_pass = builtin.chain(pass.iter().map(|name| (*name).to_owned())).collect();
        Policy { env_pass, ..Policy::default() }
    }

    fn inside(host: &[(&str, &str)], policy: &Policy) -> BTreeMap<String, ByteString> {
        let host = host.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        inside_environment(host, policy, &InsideFacts::default())
    }

    #[test]
    fn the_data_file_is_sound() {
        let table = EnvironmentTable::builtin();
        assert!(table.version >= 1 && table.pass.len() > 10 && table.never.len() > 20);
        for never in table.never {
            assert!(matches_name(never.name, never.sample), "{}", never.name);
            assert!(!never.reason.is_empty());
        }
        for passed in table.pass {
            assert_eq!(table.withheld(passed.name, passed.name), None, "{}", passed.name);
        }
    }

    #[test]
    fn nothing_of_the_never_list_gets_in() {
        let everything = policy(&["*"]);
        for never in EnvironmentTable::builtin().never {
            let variables = inside(&[(never.sample, "canary")], &everything);
            assert!(
                !variables.values().any(|value| value.as_bytes() == b"canary"),
                "{}",
                never.sample
            );
            let named = inside(&[(never.sample, "canary")], &policy(&[never.sample]));
            let got = named.values().any(|value| value.as_bytes() == b"canary");
            assert_eq!(got, never.unless_named, "{}", never.sample);
        }
    }

    #[test]
    fn only_the_allow_list_gets_in() {
        let host = [("TERM", "xterm"), ("LC_TIME", "de"), ("LC_API_KEY", "x"), ("MY_THING", "x")];
        let variables = inside(&host, &policy(&[]));
        assert_eq!(variables.get("TERM"), Some(&"xterm".into()));
        assert_eq!(variables.get("LC_TIME"), Some(&"de".into()));
        assert!(!variables.contains_key("LC_API_KEY") && !variables.contains_key("MY_THING"));
        assert!(!inside(&host, &Policy::default()).contains_key("TERM"), "hermetic");
        assert_eq!(inside(&host, &policy(&["MY_THING"])).get("MY_THING"), Some(&"x".into()));
    }

    #[test]
    fn skep_sets_the_path_and_the_policy_has_the_last_word() {
        let facts = InsideFacts {
            home: "/home/me".into(),
            user: "me".into(),
            shell: Some("/bin/bash".into()),
            program_directories: vec!["/home/me/.cargo/bin".into(), "/a:b".into(), "x".into()],
        };
        let mut policy = policy(&["PATH"]);
        let host = || [("PATH".into(), "/evil".into())];
        let variables = inside_environment(host(), &policy, &facts);
        let path = variables.get("PATH").unwrap().to_string();
        assert!(path.starts_with("/home/me/.cargo/bin:/usr/local/bin:/usr/bin:/bin"), "{path}");
        assert!(!path.contains("evil") && !path.contains("a:b"));
        assert_eq!(variables.get("TMPDIR"), Some(&"/tmp".into()));
        policy.env.insert("PATH".into(), "/only".into());
        let variables = inside_environment(host(), &policy, &facts);
        assert_eq!(variables.get("PATH"), Some(&"/only".into()));
        assert_eq!(withheld_names(&policy)[0].0, "PATH");
    }

    #[test]
    fn odd_names_are_dropped() {
        let everything = policy(&["*"]);
        let host = [
            (ByteString::from(&b"\xff"[..]), "x".into()),
            ("".into(), "x".into()),
            ("a=b".into(), "x".into()),
        ];
        let variables = inside_environment(host, &everything, &InsideFacts::default());
        assert!(!variables.values().any(|value| value.as_bytes() == b"x"));
    }
}
