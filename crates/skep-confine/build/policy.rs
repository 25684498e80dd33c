//! The data file `resources/seccomp.toml` as values, checked: every name exists in some ABI, no
//! name is decided twice, every action and errno is known.
//!
//! The build script compiles it; the tests read it again to ask what a call should answer.

use serde::Deserialize;
use std::collections::BTreeMap;

/// What a call answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// The call is made.
    Allow,
    /// The call is not made and answers with this number.
    Errno(u16),
}

/// The answer to whatever nobody has decided.
pub const UNKNOWN: Action = Action::Errno(38);

/// What a filesystem answers that cannot do it: EOPNOTSUPP.
pub const UNSUPPORTED: Action = Action::Errno(95);

const ERRNOS: &[(&str, u16)] = &[
    ("EPERM", 1),
    ("ENOSYS", 38),
    ("EPROTONOSUPPORT", 93),
    ("EOPNOTSUPP", 95),
    ("EAFNOSUPPORT", 97),
];

/// Which of the two filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// For everything.
    Default,
    /// With ptrace and its kin.
    Debug,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DataFile {
    group: Vec<Group>,
    rule: Vec<RuleEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    action: String,
    debug: Option<String>,
    reason: String,
    calls: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    calls: Vec<String>,
    otherwise: String,
    reason: String,
    case: Vec<CaseEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseEntry {
    action: String,
    reason: String,
    when: Vec<ConditionEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionEntry {
    argument: u8,
    mask: Option<u32>,
    is: Option<Vec<u32>>,
    is_not: Option<Vec<u32>>,
}

/// A question about the low 32 bits of one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Which argument, from 0.
    pub argument: u8,
    /// The bits looked at.
    pub mask: u32,
    /// What they are compared with; never empty.
    pub values: Vec<u32>,
    /// Whether one of the values must match, or none may.
    pub must_match: bool,
}

/// Conditions that must all hold, and what follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// Never empty.
    pub when: Vec<Condition>,
    /// The answer then.
    pub action: Action,
}

/// What is decided about one call name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Always the same.
    Fixed(Action),
    /// By the arguments: the first case that holds.
    Checked {
        /// In order.
        cases: Vec<Case>,
        /// If none holds.
        otherwise: Action,
    },
}

/// Decisions by call name, for both variants.
#[derive(Debug)]
pub struct Policy {
    default: BTreeMap<String, Decision>,
    debug: BTreeMap<String, Decision>,
}

fn action(text: &str) -> Result<Action, String> {
    if text == "allow" {
        return Ok(Action::Allow);
    }
    let known = ERRNOS.iter().find(|(name, _)| *name == text);
    known.map(|(_, number)| Action::Errno(*number)).ok_or(format!("`{text}` is not an action"))
}

impl Policy {
    /// Reads the data file.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: DataFile = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut policy = Self { default: BTreeMap::new(), debug: BTreeMap::new() };
        for group in file.group {
            if group.reason.is_empty() {
                return Err(format!("group `{}` gives no reason", group.name));
            }
            let plain = action(&group.action)?;
            let debug = group.debug.as_deref().map_or(Ok(plain), action)?;
            for call in group.calls {
                policy.insert(call, Decision::Fixed(plain), Decision::Fixed(debug))?;
            }
        }
        for rule in file.rule {
            let decision = decision(&rule)?;
            for call in rule.calls {
                policy.insert(call, decision.clone(), decision.clone())?;
            }
        }
        Ok(policy)
    }

    fn insert(&mut self, call: String, plain: Decision, debug: Decision) -> Result<(), String> {
        self.debug.insert(call.clone(), debug);
        match self.default.insert(call.clone(), plain) {
            None => Ok(()),
            Some(_) => Err(format!("`{call}` is decided twice")),
        }
    }

    /// What is decided about a name.
    pub fn decide(&self, variant: Variant, call: &str) -> Option<&Decision> {
        self.all(variant).get(call)
    }

    /// Every decision, by name.
    pub fn all(&self, variant: Variant) -> &BTreeMap<String, Decision> {
        match variant {
            Variant::Default => &self.default,
            Variant::Debug => &self.debug,
        }
    }
}

fn decision(rule: &RuleEntry) -> Result<Decision, String> {
    let names = rule.calls.join(", ");
    let mut cases = Vec::new();
    for case in &rule.case {
        if case.reason.is_empty() || rule.reason.is_empty() || case.when.is_empty() {
            return Err(format!("the rule of {names} lacks a reason or a condition"));
        }
        let when = case.when.iter().map(|entry| condition(entry, &names));
        cases.push(Case { action: action(&case.action)?, when: when.collect::<Result<_, _>>()? });
    }
    Ok(Decision::Checked { cases, otherwise: action(&rule.otherwise)? })
}

fn condition(entry: &ConditionEntry, names: &str) -> Result<Condition, String> {
    let (values, must_match) = match (&entry.is, &entry.is_not) {
        (Some(values), None) => (values.clone(), true),
        (None, Some(values)) => (values.clone(), false),
        _ => return Err(format!("a condition of {names} needs exactly one of `is`, `is_not`")),
    };
    let mask = entry.mask.unwrap_or(u32::MAX);
    // A value with bits outside the mask can never be equal: certainly a slip.
    let slip = values.iter().any(|value| value & !mask != 0);
    if values.is_empty() || slip || entry.argument > 5 {
        return Err(format!("a condition of {names} can never hold"));
    }
    Ok(Condition { argument: entry.argument, mask, values, must_match })
}
