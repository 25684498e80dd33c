//! Settings in force as a config file: what `skep config` prints can be saved as one, and means the same.

use super::table::{Kind, TABLE};
use crate::profiles::is_builtin;
use skep_types::escape::is_deceptive;
use std::fmt::Write as _;

/// One setting in force, or one element of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InForce<'a> {
    /// The key.
    pub key: &'a str,
    /// The value, as [`SettingRow`](crate::SettingRow) has it.
    pub value: &'a str,
    /// Where it comes from; none if that is not to be said.
    pub origin: Option<&'a str>,
}

/// What stands for an element of a list that has none.
pub(crate) const EMPTY: &str = "(empty)";
/// What stands for a value that nobody has set.
const UNSET: &str = "none";

/// The rows as a config file. What is not set is left out by a comment.
pub fn config_file(rows: &[InForce<'_>]) -> String {
    let mut file = String::new();
    // Elements of one list follow each other.
    for rows in rows.chunk_by(|one, next| one.key == next.key) {
        let Some(first) = rows.first() else { continue };
        // Every variable that is passed on is named below it: nothing is to be added.
        if first.key == "sandbox.env_pass" {
            file.push_str("sandbox.inherit_env = false  # the whole list follows\n");
        }
        match kind_of(first.key) {
            Some((key, kind)) => file.push_str(&setting(&key, kind, rows)),
            // Those that have names of the user's choice are written one by one.
            None => continue,
        }
    }
    file
}

/// How a key is written, and what its value looks like.
fn kind_of(key: &str) -> Option<(String, Kind)> {
    let known = |key: &str| TABLE.iter().find(|row| row.key == key).map(|row| row.kind);
    for (above, kind) in [
        ("sandbox.env", Kind::Text),
        ("egress.hosts", Kind::Texts),
        ("egress.presets", Kind::Texts),
    ] {
        if let Some(own) = key.strip_prefix(above).and_then(|rest| rest.strip_prefix('.')) {
            return Some((format!("{above}.{}", name(own)), kind));
        }
    }
    if let Some((own, below)) = key.strip_prefix("pools.").and_then(|rest| rest.rsplit_once('.')) {
        return Some((format!("pools.{}.{below}", name(own)), known(&format!("pools.*.{below}"))?));
    }
    known(key).filter(|kind| *kind != Kind::TextsByName).map(|kind| (key.to_owned(), kind))
}

fn setting(key: &str, kind: Kind, rows: &[InForce<'_>]) -> String {
    let [first, ..] = rows else { return String::new() };
    match kind {
        Kind::Texts | Kind::Choices(_) => list(key, rows),
        _ => {
            let line = match why_not(key, kind, first.value) {
                None => format!("{key} = {}", written(kind, first.value)),
                Some(why) => format!("# {key}{why}"),
            };
            format!("{line}{}\n", origin(first))
        }
    }
}

/// What to say of a value that a file cannot have.
fn why_not(key: &str, kind: Kind, value: &str) -> Option<String> {
    if kind == Kind::Text && value == UNSET && !key.starts_with("sandbox.env.") {
        return Some(" is not set".to_owned());
    }
    let why = match key {
        "store.url" if value.contains('…') || value.starts_with('(') => {
            "the password is not shown"
        }
        "profile" if !is_builtin(value) => "one of your own: its values are below",
        _ => return None,
    };
    Some(format!(" = {} ({why})", quoted(value)))
}

fn list(key: &str, rows: &[InForce<'_>]) -> String {
    let items: Vec<&InForce<'_>> = rows.iter().filter(|row| row.value != EMPTY).collect();
    if items.is_empty() {
        return format!("{key} = []{}\n", rows.first().map(origin).unwrap_or_default());
    }
    if items.iter().all(|row| row.origin.is_none()) {
        let items: Vec<String> = items.iter().map(|row| quoted(row.value)).collect();
        return format!("{key} = [{}]\n", items.join(", "));
    }
    let mut text = format!("{key} = [\n");
    for row in items {
        let _ = writeln!(text, "    {},{}", quoted(row.value), origin(row));
    }
    text + "]\n"
}

fn origin(row: &InForce<'_>) -> String {
    row.origin.map_or_else(String::new, |origin| format!("  # {origin}"))
}

fn written(kind: Kind, value: &str) -> String {
    match kind {
        Kind::Flag | Kind::Count | Kind::Percent => value.to_owned(),
        Kind::CountOrNone | Kind::CpusOrNone if value != UNSET => value.to_owned(),
        _ => quoted(value),
    }
}

/// A piece of a key.
fn name(text: &str) -> String {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    match !text.is_empty() && text.bytes().all(bare) {
        true => text.to_owned(),
        false => quoted(text),
    }
}

/// A text as TOML has it, without anything that a terminal would act on or not show.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            _ if character.is_control() || is_deceptive(character) => {
                let _ = write!(quoted, "\\U{:08X}", u32::from(character));
            }
            _ => quoted.push(character),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConfigDocument, HostFacts, Origins, SettingRow, Settings, Sources};

    fn resolve(text: &str) -> (Settings, Origins) {
        let user = ConfigDocument::parse(text.as_bytes(), "config.toml")
            .unwrap_or_else(|error| panic!("{error}\n{text}"));
        let host = HostFacts { memory: Some(64 << 30), ..HostFacts::default() };
        let sources = Sources { host, user: Some(&user), ..Sources::default() };
        Settings::resolve(&sources).unwrap_or_else(|error| panic!("{error:?}\n{text}"))
    }

    fn file(rows: &[SettingRow], with_origin: bool) -> String {
        let origins: Vec<String> = rows.iter().map(|row| row.origin.to_string()).collect();
        let in_force: Vec<InForce<'_>> = rows
            .iter()
            .zip(&origins)
            .map(|(row, origin)| InForce {
                key: &row.key,
                value: &row.value,
                origin: with_origin.then_some(origin.as_str()),
            })
            .collect();
        config_file(&in_force)
    }

    /// Saved as a config file it leaves every setting as it was, with and without the origins.
    fn assert_round_trip(text: &str) {
        let (settings, origins) = resolve(text);
        let values = |rows: Vec<SettingRow>| -> Vec<(String, String)> {
            rows.into_iter().map(|row| (row.key, row.value)).collect()
        };
        let rows = settings.rows(&origins);
        for with_origin in [false, true] {
            let printed = file(&rows, with_origin);
            let (again, new_origins) = resolve(&printed);
            assert_eq!(again, settings, "{printed}");
            let again = values(again.rows(&new_origins));
            assert_eq!(again, values(settings.rows(&origins)), "{printed}");
        }
    }

    #[test]
    fn what_is_in_force_can_be_saved_and_means_the_same() {
        assert_round_trip("");
        assert_round_trip("profile = \"agent\"");
        assert_round_trip("sandbox.inherit_env = false\nsandbox.env_pass = [\"MINE\"]");
        assert_round_trip(
            "limits.cpus = 1.5\nlimits.pids = \"none\"\nlimits.memory = \"none\"\n\
             limits.timeout = \"90s\"\nsandbox.network = \"allow\"\nsandbox.ptrace = true\n\
             sandbox.mounts = [\"/a:/b\", \"/c:/d:rw\"]\nsandbox.hide = [\"*.key\", \"a\\\"b\"]\n\
             sandbox.require = [\"network\"]\nsandbox.env.\"A_B\" = \"none\"\n\
             egress.allow = [\"example.org\", \"@mine\"]\negress.presets.mine = [\"a.test\", \"b.test\"]\n\
             egress.hosts.\"db.internal\" = [\"10.0.0.1\", \"10.0.0.2\"]\n\
             changes.deny = [\"secret/**\"]\ngc.history_age = \"none\"\nquota.sandboxes = 3\n\
             store.node = \"here\"\nprovider.name = \"oci:runc\"\n\
             pools.warm.project = \"/p\"\npools.warm.size = 2\npools.a-b.project = \"/q\"\n\
             pools.a-b.size = 1\npools.a-b.provider = \"microvm\"",
        );
    }

    #[test]
    fn what_a_file_cannot_say_is_a_comment() {
        let own = "profile = \"mine\"\nprofiles.mine.limits.pids = 7\n\
                   store.url = \"postgres://u:secret@h/d\"";
        let (settings, origins) = resolve(own);
        let printed = file(&settings.rows(&origins), false);
        assert!(printed.starts_with("# profile = \"mine\" (one of your own"), "{printed}");
        assert!(printed.contains("\nlimits.pids = 7\n"), "{printed}");
        assert!(printed.contains("\n# store.url = \"postgres://u:…@h/d\" (the pass"), "{printed}");
        assert!(printed.contains("\n# provider.microvm.kernel is not set\n"), "{printed}");
        assert_eq!(resolve(&printed).0.policy.limits, settings.policy.limits);
    }

    #[test]
    fn nothing_in_a_value_reaches_the_terminal_or_another_line() {
        assert_eq!(
            quoted("a\n\u{202e}\u{1b}\"\\é"),
            "\"a\\U0000000A\\U0000202E\\U0000001B\\\"\\\\é\""
        );
        assert_round_trip("sandbox.hide = [\"a\\nb\\u202e\\u001b\\\\x\"]");
    }

    #[test]
    fn an_origin_stands_behind_what_it_is_of() {
        let (settings, origins) = resolve("limits.pids = 7\nsandbox.hide = [\"x\"]");
        let printed = file(&settings.rows(&origins), true);
        assert!(printed.contains("\nlimits.pids = 7  # user config\n"), "{printed}");
        assert!(
            printed.contains("\nsandbox.hide = [\n    \"x\",  # user config\n]\n"),
            "{printed}"
        );
        assert!(printed.contains("\nsandbox.show = []  # built in\n"), "{printed}");
    }
}
