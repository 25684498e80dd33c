//! Acceptance rules: which changed paths may be approved at all.
//!
//! Deny beats allow. A deny rule takes everything below what it matches along, and a single name
//! matches at any depth; an allow rule matches from the project's root and only what it says. If
//! there are allow rules, what none of them matches is refused.

use crate::pattern::{PatternError, PatternSet, Reach};
use skep_types::{Change, ChangeRules, Policy, RelPath, Verdict};

/// The allow and deny globs of a sandbox, compiled.
#[derive(Debug, Clone)]
pub struct AcceptanceRules {
    allow: PatternSet,
    deny: PatternSet,
}

impl AcceptanceRules {
    /// Compiles the rules.
    pub fn new<T: AsRef<str>>(allow: &[T], deny: &[T]) -> Result<Self, PatternError> {
        Ok(Self {
            allow: PatternSet::new(allow, Reach::Exact)?,
            deny: PatternSet::new(deny, Reach::Wide)?,
        })
    }

    /// The rules of a policy.
    pub fn of(policy: &Policy) -> Result<Self, PatternError> {
        Self::new(&policy.allow_changes, &policy.deny_changes)
    }

    /// Whether there is no rule, and so nothing to say of any path.
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }

    /// What the rules say of a path.
    pub fn verdict(&self, path: &RelPath) -> Verdict {
        if let Some(rule) = self.deny.first(path) {
            let reason = format!("denied by rule `{}` of `changes.deny`", self.deny.text(rule));
            return Verdict { allowed: false, reason };
        }
        if self.allow.is_empty() {
            return Verdict { allowed: true, reason: "no rule speaks against it".into() };
        }
        match self.allow.first(path) {
            Some(rule) => {
                let rule = self.allow.text(rule);
                let reason = format!("allowed by rule `{rule}` of `changes.allow`");
                Verdict { allowed: true, reason }
            }
            None => Verdict {
                allowed: false,
                reason: format!("`{path}` matches no rule of `changes.allow`"),
            },
        }
    }

    /// What the rules say of a change: a rename must be allowed at both ends.
    pub fn verdict_of(&self, change: &Change) -> Verdict {
        let here = self.verdict(&change.path);
        let Some(from) = change.renamed_from.as_ref().filter(|_| here.allowed) else {
            return here;
        };
        let there = self.verdict(from);
        if there.allowed {
            return here;
        }
        Verdict { allowed: false, reason: format!("moved from `{from}`: {}", there.reason) }
    }
}

/// Two lists that have no rule in common.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no change could be approved: where it starts from, only `{kept}` may, and by the settings only `{now}`"
)]
pub struct RulesApart {
    kept: String,
    now: String,
}

/// Puts the rules that a snapshot, template or archive was made with into a policy made now: what either
/// denies is denied, and only what both allow is allowed. An allow list that was `typed` holds alone.
pub fn keep_rules(policy: &mut Policy, kept: &ChangeRules, typed: bool) -> Result<(), RulesApart> {
    for rule in &kept.deny {
        if !policy.deny_changes.contains(rule) {
            policy.deny_changes.push(rule.clone());
        }
    }
    if typed || kept.allow.is_empty() {
        return Ok(());
    }
    let now = &mut policy.allow_changes;
    if now.is_empty() {
        now.clone_from(&kept.allow);
        return Ok(());
    }
    let apart = RulesApart { kept: kept.allow.join("`, `"), now: now.join("`, `") };
    now.retain(|rule| kept.allow.contains(rule));
    if now.is_empty() { Err(apart) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_rules_only_narrow() {
        let list = |rules: &[&str]| rules.iter().map(|rule| (*rule).to_owned()).collect::<Vec<_>>();
        let kept = |now: &[&str], kept: &[&str], typed: bool| {
            let mut policy = Policy { allow_changes: list(now), ..Policy::default() };
            policy.deny_changes = list(&["d"]);
            let kept = ChangeRules { allow: list(kept), deny: list(&["d", "e"]) };
            keep_rules(&mut policy, &kept, typed)?;
            assert_eq!(policy.deny_changes, ["d", "e"]);
            Ok(policy.allow_changes)
        };
        assert_eq!(kept(&[], &[], false), Ok(vec![]));
        assert_eq!(kept(&["a"], &[], false), Ok(list(&["a"])));
        assert_eq!(kept(&[], &["a"], false), Ok(list(&["a"])));
        assert_eq!(kept(&["a", "b"], &["b", "c"], false), Ok(list(&["b"])));
        assert_eq!(kept(&["a"], &["b"], true), Ok(list(&["a"])));
        let apart: RulesApart = kept(&["a"], &["b", "c"], false).unwrap_err();
        assert!(apart.to_string().contains("only `b`, `c` may, and by the settings only `a`"));
    }

    fn rules(allow: &[&str], deny: &[&str]) -> AcceptanceRules {
        AcceptanceRules::new(allow, deny).unwrap()
    }

    fn verdict(rules: &AcceptanceRules, path: &[u8]) -> (bool, String) {
        let verdict = rules.verdict(&RelPath::parse(path).unwrap());
        (verdict.allowed, verdict.reason)
    }

    #[test]
    fn no_rules_allow_everything() {
        let none = rules(&[], &[]);
        assert!(none.is_empty());
        assert!(verdict(&none, b"a\xff").0);
    }

    #[test]
    fn deny_beats_allow_and_names_the_rule() {
        let both = rules(&["src", "*.md"], &["src/generated", "*.lock"]);
        assert_eq!(
            verdict(&both, b"src/generated/deep/x.rs"),
            (false, "denied by rule `src/generated` of `changes.deny`".into())
        );
        assert!(!verdict(&both, b"src/a/b/c/d/e/x.lock").0);
        assert_eq!(
            verdict(&both, b"src/\xff.rs"),
            (true, "allowed by rule `src` of `changes.allow`".into())
        );
        assert_eq!(
            verdict(&both, b"lib/src/x"),
            (false, "`lib/src/x` matches no rule of `changes.allow`".into())
        );
        assert!(!verdict(&both, b"docs/x.md").0);
    }

    #[test]
    fn a_rename_must_be_allowed_at_both_ends() {
        let path = |text: &str| RelPath::parse(text.as_bytes()).unwrap();
        let moved = |from: &str, to: &str| {
            use skep_types::{Change, ChangeKind, EntryState::Absent};
            let moved = Change::new(path(to), ChangeKind::Renamed, Absent, Absent);
            Change { renamed_from: Some(path(from)), ..moved }
        };
        let rules = rules(&["src"], &["src/locked"]);
        assert!(rules.verdict_of(&moved("src/a", "src/b")).allowed);
        assert!(!rules.verdict_of(&moved("src/a", "lib/b")).allowed);
        let away = rules.verdict_of(&moved("src/locked/a", "src/b"));
        assert_eq!(
            (away.allowed, away.reason.as_str()),
            (false, "moved from `src/locked/a`: denied by rule `src/locked` of `changes.deny`")
        );
    }

    #[test]
    fn bad_rules_are_errors() {
        assert!(AcceptanceRules::new(&["a["], &[]).is_err());
        assert!(AcceptanceRules::new(&[], &["../x"]).is_err());
    }
}
