//! Whether one policy is inside another: what a project's own file, an agent or a child sandbox
//! may ask for.

use crate::egress::{RuleSet, added_rules};
use crate::limits::{Widening, wider_in_force};
use skep_types::{Access, InsideUser, Mount, NetworkMode, Policy, SystemView};
use std::collections::BTreeSet;
use std::fmt::Display;

/// Everything in which `inner` lets more through than `outer`; empty if it only narrows.
///
/// Variables *set* inside are not compared: whoever runs inside can set them anyway.
pub fn widenings(outer: &Policy, inner: &Policy) -> Vec<Widening> {
    let mut found = wider_in_force(&outer.limits, &inner.limits);
    let mut rank = |key: &str, outer: (u8, &str), inner: (u8, &str)| {
        if inner.0 > outer.0 {
            found.push(widening(key, format!("`{}`", outer.1), format!("`{}`", inner.1)));
        }
    };
    rank("sandbox.network", network(outer.network), network(inner.network));
    rank("sandbox.system", system(outer.system), system(inner.system));
    rank("sandbox.user", user(outer.user), user(inner.user));
    rank("sandbox.ptrace", flag(outer.allow_ptrace), flag(inner.allow_ptrace));
    rank("sandbox.best_effort", flag(outer.best_effort), flag(inner.best_effort));

    added(&mut found, "sandbox.show", &outer.show, &inner.show);
    added(&mut found, "sandbox.home", &outer.home, &inner.home);
    added(&mut found, "sandbox.layers", &outer.layers, &inner.layers);
    added(&mut found, "sandbox.env_pass", &outer.env_pass, &inner.env_pass);
    dropped(&mut found, "sandbox.hide", &outer.hide, &inner.hide);
    dropped(&mut found, "sandbox.require", &outer.require, &inner.require);
    dropped(&mut found, "changes.deny", &outer.deny_changes, &inner.deny_changes);
    mounts(&mut found, &outer.mounts, &inner.mounts);
    egress(&mut found, outer, inner);
    scope(&mut found, outer, inner);
    allowed(&mut found, outer, inner);
    found
}

fn widening(key: &str, outer: impl Into<String>, inner: impl Into<String>) -> Widening {
    Widening { key: key.into(), outer: outer.into(), inner: inner.into() }
}

fn network(mode: NetworkMode) -> (u8, &'static str) {
    match mode {
        NetworkMode::None => (0, "none"),
        NetworkMode::Allow => (1, "allow"),
        NetworkMode::Host => (2, "host"),
    }
}

fn system(view: SystemView) -> (u8, &'static str) {
    match view {
        SystemView::Ro => (0, "ro"),
        SystemView::Cow => (1, "cow"),
    }
}

fn user(user: InsideUser) -> (u8, &'static str) {
    match user {
        InsideUser::Caller => (0, "caller"),
        InsideUser::Root => (1, "root"),
    }
}

fn flag(on: bool) -> (u8, &'static str) {
    if on { (1, "true") } else { (0, "false") }
}

/// Lists that give: nothing may be added.
fn added<T: Ord + Display>(
    found: &mut Vec<Widening>,
    key: &str,
    outer: impl IntoIterator<Item = T> + Clone,
    inner: impl IntoIterator<Item = T>,
) {
    let held: BTreeSet<T> = outer.into_iter().collect();
    for extra in inner.into_iter().filter(|item| !held.contains(item)) {
        found.push(widening(key, "a list without it", format!("`{extra}`")));
    }
}

/// Lists that take away: nothing may be dropped.
fn dropped<T: Ord + Display>(
    found: &mut Vec<Widening>,
    key: &str,
    outer: impl IntoIterator<Item = T>,
    inner: impl IntoIterator<Item = T>,
) {
    let held: BTreeSet<T> = inner.into_iter().collect();
    for lost in outer.into_iter().filter(|item| !held.contains(item)) {
        found.push(widening(key, format!("`{lost}`"), "a list without it"));
    }
}

fn mounts(found: &mut Vec<Widening>, outer: &[Mount], inner: &[Mount]) {
    for mount in inner {
        let fits = |held: &&Mount| {
            held.source == mount.source
                && held.target == mount.target
                && (held.access == Access::Rw || mount.access == Access::Ro)
        };
        if !outer.iter().any(|held| fits(&held)) {
            let access = match mount.access {
                Access::Ro => "ro",
                Access::Rw => "rw",
            };
            let shown = format!("`{}:{}:{access}`", mount.source, mount.target);
            found.push(widening("sandbox.mounts", "a list without it", shown));
        }
    }
}

/// A rule inside another adds nothing. One that is not in force counts as well: it would be with the
/// first `--allow` of anything, by somebody who has not read it.
fn egress(found: &mut Vec<Widening>, outer: &Policy, inner: &Policy) {
    if (outer.network, inner.network) == (NetworkMode::Host, NetworkMode::Allow) {
        return;
    }
    let rules = |policy: &Policy| RuleSet::parse(&policy.egress.allow);
    match (rules(outer), rules(inner)) {
        (Ok(held), Ok(wanted)) => {
            for rule in added_rules(&held, &wanted) {
                found.push(widening("egress.allow", "a list without it", format!("`{rule}`")));
            }
        }
        // Rules were read before they came here; what cannot be read is not inside anything.
        _ => found.push(widening("egress.allow", "a list of rules", "something else")),
    }
}

/// An empty scope is the whole project.
fn scope(found: &mut Vec<Widening>, outer: &Policy, inner: &Policy) {
    if outer.scope.is_empty() {
        return;
    }
    if inner.scope.is_empty() {
        found.push(widening("sandbox.scope", "a part of the project", "all of it"));
    }
    for path in &inner.scope {
        if !outer.scope.iter().any(|held| path.starts_with(held)) {
            found.push(widening("sandbox.scope", "a scope without it", format!("`{path}`")));
        }
    }
}

/// No allow rules means that everything is allowed.
fn allowed(found: &mut Vec<Widening>, outer: &Policy, inner: &Policy) {
    if outer.allow_changes.is_empty() {
        return;
    }
    if inner.allow_changes.is_empty() {
        found.push(widening("changes.allow", "a list of rules", "no rule"));
    }
    added(found, "changes.allow", &outer.allow_changes, &inner.allow_changes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ByteSize, Layer, RelPath};

    fn keys(outer: &Policy, inner: &Policy) -> Vec<String> {
        widenings(outer, inner).into_iter().map(|widening| widening.key).collect()
    }

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn every_wider_field_is_named() {
        let outer = Policy::default();
        let mount = Mount { source: "/a".into(), target: "/a".into(), access: Access::Ro };
        let cases: Vec<(&str, Policy)> = vec![
            ("sandbox.network", Policy { network: NetworkMode::Host, ..outer.clone() }),
            ("sandbox.system", Policy { system: SystemView::Cow, ..outer.clone() }),
            ("sandbox.user", Policy { user: InsideUser::Root, ..outer.clone() }),
            ("sandbox.ptrace", Policy { allow_ptrace: true, ..outer.clone() }),
            ("sandbox.best_effort", Policy { best_effort: true, ..outer.clone() }),
            ("sandbox.show", Policy { show: vec![".env".into()], ..outer.clone() }),
            ("sandbox.home", Policy { home: vec![".ssh".into()], ..outer.clone() }),
            ("sandbox.layers", Policy { layers: vec!["/x".into()], ..outer.clone() }),
            ("sandbox.env_pass", Policy { env_pass: ["X".into()].into(), ..outer.clone() }),
            ("sandbox.mounts", Policy { mounts: vec![mount], ..outer.clone() }),
        ];
        for (key, inner) in cases {
            assert_eq!(keys(&outer, &inner), [key]);
            // The other way round the same step narrows.
            assert!(keys(&inner, &outer).is_empty(), "{key}");
        }
    }

    #[test]
    fn every_dropped_fence_is_named() {
        let mut outer = Policy::default();
        outer.limits.memory = Some(ByteSize(1));
        outer.hide = vec!["x".into()];
        outer.require = [Layer::Disk].into();
        outer.deny_changes = vec!["d".into()];
        outer.allow_changes = vec!["a".into()];
        outer.scope = vec![path("src")];
        let found = keys(&outer, &Policy::default());
        for key in [
            "limits.memory",
            "sandbox.hide",
            "sandbox.require",
            "changes.deny",
            "changes.allow",
            "sandbox.scope",
        ] {
            assert!(found.contains(&key.into()), "{key}: {found:?}");
        }
        let mut inner = outer.clone();
        inner.scope = vec![path("src/deep")];
        inner.hide.push("y".into());
        assert!(keys(&outer, &inner).is_empty());
        inner.scope = vec![path("srcs")];
        inner.allow_changes = vec!["b".into()];
        assert_eq!(keys(&outer, &inner), ["sandbox.scope", "changes.allow"]);
    }

    #[test]
    fn a_mount_may_lose_its_write_access_only() {
        let with = |access| Policy {
            mounts: vec![Mount { source: "/a".into(), target: "/b".into(), access }],
            ..Policy::default()
        };
        assert!(keys(&with(Access::Rw), &with(Access::Ro)).is_empty());
        assert_eq!(keys(&with(Access::Ro), &with(Access::Rw)), ["sandbox.mounts"]);
    }
}
