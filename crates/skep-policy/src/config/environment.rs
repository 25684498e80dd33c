//! Settings from the environment: `SKEP_LIMITS_MEMORY=2G` is `limits.memory = "2G"`.

use super::table::{Kind, TABLE};
use super::{ConfigDocument, ConfigError, nearest_key};
use toml::{Table, Value};

/// Names of their own, beside the one that follows from the key.
const ALIASES: [(&str, &str); 2] =
    [("SKEP_STORE", "store.url"), ("SKEP_MICROVM_EMULATION", "provider.microvm.emulation")];
/// Variables of ours that are no settings, and words that those of tests, benches and CI begin with. Any other
/// that begins with `SKEP_` is a mistake: a limit that is mistyped must not become no limit.
const OTHERS: [&str; 7] = [
    "SKEP_HOME",
    "SKEP_HOST",
    "SKEP_TOKEN",
    "SKEP_TOKEN_FILE",
    "SKEP_FAILPOINT",
    "SKEP_DRIVER",
    "SKEP_WRITE_OPENAPI",
];
const APART: [&str; 4] = ["SKEP_TEST_", "SKEP_STORE_TEST_", "SKEP_BENCH_", "SKEP_CI_"];

fn is_no_setting(name: &str) -> bool {
    OTHERS.contains(&name) || APART.iter().any(|word| name.starts_with(word))
}

/// The variable of a key.
pub(super) fn variable_of(key: &str) -> String {
    format!("SKEP_{}", key.replace('.', "_").to_uppercase())
}

/// Whether it is that variable; every variable of ours is compared with every key.
fn is_variable_of(name: &str, key: &str) -> bool {
    let in_capitals = |byte: u8| if byte == b'.' { b'_' } else { byte.to_ascii_uppercase() };
    name.strip_prefix("SKEP_").is_some_and(|rest| rest.bytes().eq(key.bytes().map(in_capitals)))
}

fn setting_of(name: &str) -> Option<(&'static str, Kind)> {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, key)| *key);
    TABLE
        .iter()
        .filter(|row| !row.key.contains('*'))
        .find(|row| alias == Some(row.key) || is_variable_of(name, row.key))
        .map(|row| (row.key, row.kind))
}

impl ConfigDocument {
    /// Reads settings from variables; `None` where none is set. Lists are separated by commas. A
    /// name that begins with `SKEP_` and means nothing to us is an error.
    pub fn from_variables<'a>(
        variables: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<Option<Self>, ConfigError> {
        let mut table = Table::new();
        for (name, text) in
            variables.filter(|(name, text)| name.starts_with("SKEP_") && !text.is_empty())
        {
            let Some((key, kind)) = setting_of(name) else {
                if is_no_setting(name) {
                    continue;
                }
                let guess = name.trim_start_matches("SKEP_").to_lowercase().replacen('_', ".", 1);
                return Err(ConfigError::UnknownKey {
                    source_name: "the environment".into(),
                    key: name.to_owned(),
                    nearest: nearest_key(&guess).map(|key| variable_of(&key)),
                });
            };
            let mut alone = Table::new();
            insert(&mut alone, key, value(kind, text));
            Self::deserialize_table(alone).map_err(|reason| ConfigError::Malformed {
                source_name: format!("the variable `{name}`"),
                at: None,
                reason,
            })?;
            insert(&mut table, key, value(kind, text));
        }
        if table.is_empty() {
            return Ok(None);
        }
        let whole = Self::deserialize_table(table);
        whole.map(Some).map_err(|reason| ConfigError::Malformed {
            source_name: "the environment".into(),
            at: None,
            reason,
        })
    }

    fn deserialize_table(table: Table) -> Result<Self, String> {
        table.try_into().map_err(|error: toml::de::Error| error.message().to_owned())
    }
}

fn value(kind: Kind, text: &str) -> Value {
    let list = || text.split(',').map(|item| Value::String(item.trim().to_owned())).collect();
    match kind {
        Kind::Texts | Kind::Choices(_) => Value::Array(list()),
        Kind::Flag => match text {
            "1" | "true" => Value::Boolean(true),
            "0" | "false" => Value::Boolean(false),
            other => Value::String(other.to_owned()),
        },
        Kind::Count | Kind::CountOrNone | Kind::Percent | Kind::CpusOrNone => {
            let whole = text.parse().map(Value::Integer).ok();
            let real = || text.parse().map(Value::Float).ok();
            whole.or_else(real).unwrap_or_else(|| Value::String(text.to_owned()))
        }
        _ => Value::String(text.to_owned()),
    }
}

fn insert(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            table.insert(key.to_owned(), value);
        }
        Some((section, rest)) => {
            let inner = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::ByteSize;

    fn read(variables: &[(&str, &str)]) -> Result<Option<ConfigDocument>, ConfigError> {
        ConfigDocument::from_variables(variables.iter().copied())
    }

    #[test]
    fn every_key_has_one_variable() {
        for row in TABLE.iter().filter(|row| !row.key.contains('*')) {
            let variable = variable_of(row.key);
            let meant = |name: &str| setting_of(name).map(|(key, _)| key);
            assert_eq!(meant(&variable), Some(row.key));
            for other in [&variable[5..], &variable.to_lowercase(), &format!("{variable}_")] {
                assert_ne!(meant(other), Some(row.key), "{other}");
            }
        }
    }

    #[test]
    fn variables_are_settings() {
        let document = read(&[
            ("SKEP_LIMITS_MEMORY", "2G"),
            ("SKEP_LIMITS_PIDS", "none"),
            ("SKEP_SANDBOX_HIDE", "a, b"),
            ("SKEP_STORE", "postgresql:///x"),
            ("SKEP_MICROVM_EMULATION", "1"),
            ("SKEP_HOME", "/x"),
            ("SKEP_GC_KEEP_EMPTY", ""),
        ]);
        let document = document.unwrap().unwrap();
        assert_eq!(document.limits.memory, Some(Some(ByteSize(2 << 30))));
        assert_eq!(document.limits.pids, Some(None));
        assert_eq!(document.sandbox.hide.unwrap(), ["a", "b"]);
        assert_eq!(document.store.url.as_deref(), Some("postgresql:///x"));
        assert_eq!(document.provider.microvm.emulation, Some(true));
        assert_eq!(document.gc.keep_empty, None);
        assert_eq!(read(&[("SKEP_HOME", "/x"), ("HOME", "/y")]).unwrap(), None);
    }

    #[test]
    fn unknown_and_invalid_ones_are_named() {
        let said = |variables: &[(&str, &str)]| read(variables).unwrap_err().to_string();
        let unknown = said(&[("SKEP_LIMITS_MEMROY", "1G")]);
        assert!(
            unknown.contains("SKEP_LIMITS_MEMROY") && unknown.contains("SKEP_LIMITS_MEMORY"),
            "{unknown}"
        );
        // A section that is mistyped is no other program's.
        let section = said(&[("SKEP_LIMIT_MEMORY", "64M")]);
        assert!(section.contains("SKEP_LIMITS_MEMORY"), "{section}");
        assert!(said(&[("SKEP_NONSENSE", "1")]).contains("SKEP_NONSENSE"));
        for other in ["SKEP_TOKEN", "SKEP_TEST_LONG", "SKEP_STORE_TEST_FILE"] {
            assert_eq!(read(&[(other, "1")]).unwrap(), None, "{other}");
        }
        for (name, text) in
            [("SKEP_LIMITS_MEMORY", "x"), ("SKEP_GC_KEEP_EMPTY", "maybe"), ("SKEP_UNDO_KEEP", "0")]
        {
            assert!(said(&[(name, text)]).contains(name));
        }
    }
}
