//! Settings from the environment: `SKEP_LIMITS_MEMORY=2G` is `limits.memory = "2G"`.

use super::table::{Kind, TABLE};
use super::{ConfigDocument, ConfigError, nearest_key};
use toml::{Table, Value};

/// Names of their own, beside the one that follows from the key.
const ALIASES: [(&str, &str); 2] =
    [("SKEP_STORE", "store.url"), ("SKEP_MICROVM_EMULATION", "provider.microvm.emulation")];
/// The first words of keys: a variable that begins so and is none of ours is a mistake.
const SECTIONS: [&str; 10] = [
    "SKEP_LIMITS_",
    "SKEP_SANDBOX_",
    "SKEP_CHANGES_",
    "SKEP_EGRESS_",
    "SKEP_WARN_",
    "SKEP_UNDO_",
    "SKEP_GC_",
    "SKEP_QUOTA_",
    "SKEP_STORE_",
    "SKEP_SERVER_",
];

/// The variable of a key.
pub(super) fn variable_of(key: &str) -> String {
    format!("SKEP_{}", key.replace('.', "_").to_uppercase())
}

fn setting_of(name: &str) -> Option<(&'static str, Kind)> {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, key)| *key);
    TABLE
        .iter()
        .filter(|row| !row.key.contains('*'))
        .find(|row| alias == Some(row.key) || variable_of(row.key) == name)
        .map(|row| (row.key, row.kind))
}

impl ConfigDocument {
    /// Reads settings from variables; `None` where none is set. Lists are separated by commas. A
    /// name that begins like a setting and is none is an error.
    pub fn from_variables<'a>(
        variables: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<Option<Self>, ConfigError> {
        let mut table = Table::new();
        for (name, text) in
            variables.filter(|(name, text)| name.starts_with("SKEP_") && !text.is_empty())
        {
            let Some((key, kind)) = setting_of(name) else {
                // What the tests of a store pass to themselves is no setting.
                if SECTIONS.iter().any(|section| name.starts_with(section))
                    && !name.contains("_TEST_")
                {
                    let guess =
                        name.trim_start_matches("SKEP_").to_lowercase().replacen('_', ".", 1);
                    return Err(ConfigError::UnknownKey {
                        source_name: "the environment".into(),
                        key: name.to_owned(),
                        nearest: nearest_key(&guess).map(|key| variable_of(&key)),
                    });
                }
                continue;
            };
            let mut alone = Table::new();
            insert(&mut alone, key, value(kind, text));
            Self::deserialize_table(alone).map_err(|reason| ConfigError::Malformed {
                source_name: format!("the variable `{name}`"),
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
        for (name, text) in
            [("SKEP_LIMITS_MEMORY", "x"), ("SKEP_GC_KEEP_EMPTY", "maybe"), ("SKEP_UNDO_KEEP", "0")]
        {
            assert!(said(&[(name, text)]).contains(name));
        }
    }
}
