//! Named lists of rules, as data.

use super::rule::{Rule, RuleError};
use serde::Deserialize;
use std::collections::BTreeMap;

const DATA: &str = include_str!("../../../../resources/egress-presets.toml");

/// A named list of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preset {
    /// With the `@`.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// What it allows, as rules.
    pub rules: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DataFile {
    #[serde(rename = "version")]
    _version: u32,
    preset: BTreeMap<String, Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    description: String,
    hosts: Vec<HostRow>,
}

/// A rule, or the parts of a host to be joined by dots (with an optional port at the end).
#[derive(Deserialize)]
#[serde(untagged)]
enum HostRow {
    Rule(String),
    Parts(Vec<String>),
}

/// All presets, sorted by name.
pub fn presets() -> Result<Vec<Preset>, RuleError> {
    let data: DataFile = toml::from_str(DATA).map_err(|error| RuleError {
        text: "egress-presets.toml".into(),
        reason: format!("the built-in list cannot be read: {error}"),
    })?;
    let preset = |(name, row): (String, Row)| Preset {
        name: format!("@{name}"),
        description: row.description,
        rules: row.hosts.into_iter().map(host_text).collect(),
    };
    Ok(data.preset.into_iter().map(preset).collect())
}

fn host_text(row: HostRow) -> String {
    match row {
        HostRow::Rule(rule) => rule,
        HostRow::Parts(parts) => parts.join("."),
    }
}

/// The rules of one preset, named with its `@`.
pub(super) fn rules(name: &str) -> Result<Vec<Rule>, RuleError> {
    let all = presets()?;
    match all.iter().find(|preset| preset.name == name) {
        Some(preset) => preset.rules.iter().map(|rule| Rule::parse(rule)).collect(),
        None => {
            let known: Vec<&str> = all.iter().map(|preset| preset.name.as_str()).collect();
            let reason = format!("there is no such preset; there are {}", known.join(", "));
            Err(RuleError { text: name.to_owned(), reason })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::RuleSet;

    #[test]
    fn every_preset_is_a_list_of_rules() {
        let all = presets().unwrap();
        for wanted in
            ["@anthropic", "@openai", "@google", "@npm", "@pypi", "@crates", "@github", "@debian"]
        {
            assert!(all.iter().any(|preset| preset.name == wanted), "{wanted}");
        }
        for preset in &all {
            let set = RuleSet::parse(&[&preset.name]).unwrap();
            assert_eq!(set.labels(), std::slice::from_ref(&preset.name));
            assert!(!preset.description.is_empty() && !preset.rules.is_empty());
            for rule in &preset.rules {
                assert_eq!(Rule::parse(rule).unwrap().to_string(), *rule, "in canonical form");
            }
        }
    }

    #[test]
    fn an_unknown_preset_names_the_known_ones() {
        let error = RuleSet::parse(&["@nmp"]).unwrap_err();
        assert!(error.to_string().contains("@npm"), "{error}");
        assert!(RuleSet::parse(&["@"]).is_err());
    }
}
