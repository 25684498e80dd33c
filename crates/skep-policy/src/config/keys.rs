//! The keys a config file may have, so that a misspelt one is met with the right one.

use toml::{Table, Value};

/// Every key, from the top; `*` stands for a name of the user's choice.
pub const KEYS: &[&str] = &[
    "profile",
    "limits.memory",
    "limits.cpus",
    "limits.cpu_time",
    "limits.pids",
    "limits.disk",
    "limits.inodes",
    "limits.open_files",
    "limits.timeout",
    "limits.api_timeout",
    "limits.grace",
    "limits.idle_timeout",
    "limits.silence_timeout",
    "limits.output",
    "limits.io_weight",
    "sandbox.network",
    "sandbox.system",
    "sandbox.user",
    "sandbox.inherit_env",
    "sandbox.ptrace",
    "sandbox.best_effort",
    "sandbox.mounts",
    "sandbox.layers",
    "sandbox.home",
    "sandbox.hide",
    "sandbox.show",
    "sandbox.env.*",
    "sandbox.env_pass",
    "sandbox.require",
    "sandbox.scope",
    "changes.allow",
    "changes.deny",
    "egress.allow",
    "egress.hosts",
    "egress.resolvers",
    "egress.extra_ca",
    "egress.presets",
    "egress.secret_bodies",
    "warn.upper_size",
    "undo.keep",
    "undo.age",
    "gc.approved_age",
    "gc.rejected_age",
    "gc.total_size",
    "gc.warn_percent",
    "gc.keep_empty",
    "gc.archive_unreviewed",
    "gc.archive_age",
    "gc.events_age",
    "gc.deleted_age",
    "gc.execs_age",
    "gc.execs_keep",
    "gc.history_age",
    "provider.name",
    "provider.microvm.emulation",
    "provider.microvm.kernel",
    "quota.sandboxes",
    "quota.memory",
    "quota.disk",
    "quota.free_memory",
    "store.url",
    "store.node",
    "store.lease",
    "server.traces",
    "pools.*.project",
    "pools.*.profile",
    "pools.*.provider",
    "pools.*.size",
    "profiles.*.description",
    "profiles.*.from",
    "profiles.*.memory_share.cap",
    "profiles.*.memory_share.percent",
];

/// What a profile may hold beside its own keys.
const PROFILE_SECTIONS: [&str; 4] = ["limits.", "sandbox.", "changes.", "egress."];

/// The first key of a file that nobody knows, from the top.
pub(super) fn first_unknown(table: &Table) -> Option<String> {
    unknown_below(table, "")
}

fn unknown_below(table: &Table, prefix: &str) -> Option<String> {
    for (name, value) in table {
        let key = format!("{prefix}{name}");
        match known(&key) {
            Known::No => return Some(key),
            Known::Leaf => {}
            Known::Section => {
                if let Value::Table(inner) = value
                    && let Some(unknown) = unknown_below(inner, &format!("{key}."))
                {
                    return Some(unknown);
                }
            }
        }
    }
    None
}

#[derive(Debug, PartialEq, Eq)]
enum Known {
    No,
    Leaf,
    Section,
}

/// Reads a key against the list; a dot in a user's own name does not confuse it, because such a
/// name then counts as unknown, which is the strict answer.
fn known(key: &str) -> Known {
    let names: Vec<&str> = key.split('.').collect();
    let inner = match names.as_slice() {
        ["profiles", _, rest @ ..] if !rest.is_empty() => rest.join("."),
        _ => String::new(),
    };
    let in_profile = !inner.is_empty()
        && PROFILE_SECTIONS.iter().any(|section| format!("{inner}.").starts_with(section));
    let (key, names) = if in_profile {
        let names: Vec<&str> = inner.split('.').collect();
        (inner.as_str(), names)
    } else {
        (key, names)
    };
    let mut answer = Known::No;
    for candidate in KEYS {
        let parts: Vec<&str> = candidate.split('.').collect();
        let fits = names.len() <= parts.len()
            && names.iter().zip(&parts).all(|(name, part)| *part == "*" || name == part);
        if fits && names.len() == parts.len() {
            return Known::Leaf;
        }
        if fits && !key.is_empty() {
            answer = Known::Section;
        }
    }
    answer
}

/// The known key that is spelt most like `key`, unless none is at all.
pub fn nearest_key(key: &str) -> Option<String> {
    let last = key.rsplit('.').next().unwrap_or(key);
    let score = |candidate: &str| {
        let whole = strsim::jaro_winkler(candidate, key);
        // A key in the wrong section, or without one, is close by its last name.
        let name = strsim::jaro_winkler(candidate.rsplit('.').next().unwrap_or(candidate), last);
        whole.max(name - 0.02)
    };
    let fixed = KEYS.iter().filter(|candidate| !candidate.contains('*'));
    // Of equals the last is taken: the sections of a sandbox stand first, and are meant more often.
    let best = fixed.rev().map(|candidate| (score(candidate), *candidate));
    best.max_by(|one, other| one.0.total_cmp(&other.0))
        .filter(|(score, _)| *score > 0.75)
        .map(|(_, candidate)| candidate.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_leaves_and_strangers() {
        assert_eq!(known("limits"), Known::Section);
        assert_eq!(known("limits.memory"), Known::Leaf);
        assert_eq!(known("limits.memory.x"), Known::No);
        assert_eq!(known("limit"), Known::No);
        assert_eq!(known("sandbox.env.ANY"), Known::Leaf);
        assert_eq!(known("profiles"), Known::Section);
        assert_eq!(known("profiles.mine"), Known::Section);
        assert_eq!(known("profiles.mine.from"), Known::Leaf);
        assert_eq!(known("profiles.mine.limits"), Known::Section);
        assert_eq!(known("profiles.mine.limits.pids"), Known::Leaf);
        assert_eq!(known("profiles.mine.sandbox.env.X"), Known::Leaf);
        assert_eq!(known("profiles.mine.gc.total_size"), Known::No);
        assert_eq!(known("profiles.mine.limits.pidz"), Known::No);
    }

    #[test]
    fn the_nearest_key() {
        let nearest = |key: &str| nearest_key(key).unwrap_or_default();
        assert_eq!(nearest("limits.memroy"), "limits.memory");
        assert_eq!(nearest("limit.memory"), "limits.memory");
        assert_eq!(nearest("memory"), "limits.memory");
        assert_eq!(nearest("provider.microvm.emulate"), "provider.microvm.emulation");
        assert_eq!(nearest("sandbox.hidden"), "sandbox.hide");
        assert_eq!(nearest_key("zzzzqqq"), None);
    }
}
