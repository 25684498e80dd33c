//! Every setting once: its kind, its default and what it is for. The reference page, the example
//! file and the JSON schema are made from this table; a test holds it against the keys that are
//! really read.

/// What a value looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `"10G"`.
    Size,
    /// `"10G"`, or `"none"`.
    SizeOrNone,
    /// `"30m"`.
    Time,
    /// `"30m"`, or `"none"`.
    TimeOrNone,
    /// A whole number greater than zero.
    Count,
    /// The same, or `"none"`.
    CountOrNone,
    /// A number of processors, or `"none"`.
    CpusOrNone,
    /// 1 to 100.
    Percent,
    /// `true` or `false`.
    Flag,
    /// A text.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of texts.
    Texts,
    /// A list of these words.
    Choices(&'static [&'static str]),
    /// A list of texts by name.
    TextsByName,
}

/// What a project's `skep.toml` may do with a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectMay {
    /// Make it stricter.
    Narrow,
    /// Nothing: it is the user's.
    Never,
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The key, from the top; `*` stands for a name of the user's choice.
    pub key: &'static str,
    /// What a value looks like.
    pub kind: Kind,
    /// The default, as it would be written in a file; empty where there is none.
    pub default: &'static str,
    /// What a project may do with it.
    pub project: ProjectMay,
    /// What it is for, in one sentence.
    pub about: &'static str,
}

const fn row(
    key: &'static str,
    kind: Kind,
    default: &'static str,
    project: ProjectMay,
    about: &'static str,
) -> Setting {
    Setting { key, kind, default, project, about }
}

use Kind::{
    Choice, Choices, Count, CountOrNone, CpusOrNone, Flag, Percent, Size, SizeOrNone, Text, Texts,
    TextsByName, Time, TimeOrNone,
};
use ProjectMay::{Narrow, Never};

const LAYERS: &[&str] = &[
    "filesystem",
    "network",
    "processes",
    "memory",
    "cpu",
    "pids",
    "disk",
    "io",
    "syscalls",
    "landlock",
    "kernel",
];

/// All of them, in the order of a file.
#[rustfmt::skip]
pub const TABLE: &[Setting] = &[
    row("profile", Text, "\"default\"", Never, "The named policy that everything else is laid over."),
    row("limits.memory", SizeOrNone, "the smaller of \"8G\" and half of the host", Narrow, "Memory of a sandbox; swap is none."),
    row("limits.cpus", CpusOrNone, "\"none\"", Narrow, "Processors at once."),
    row("limits.cpu_time", TimeOrNone, "\"none\"", Narrow, "Processor time of an exec."),
    row("limits.pids", CountOrNone, "4096", Narrow, "Processes and threads."),
    row("limits.disk", SizeOrNone, "\"10G\"", Narrow, "Bytes of changed files."),
    row("limits.inodes", CountOrNone, "1000000", Narrow, "Number of changed files."),
    row("limits.open_files", CountOrNone, "65536", Narrow, "Open files of a process."),
    row("limits.timeout", TimeOrNone, "\"none\"", Narrow, "Wall clock of an exec."),
    row("limits.api_timeout", TimeOrNone, "\"1h\"", Narrow, "Wall clock of an exec that was started over the API and names none."),
    row("limits.grace", TimeOrNone, "\"10s\"", Narrow, "Between the polite signal and the kill."),
    row("limits.idle_timeout", TimeOrNone, "\"4h\"", Narrow, "A keeper without execs is stopped after this; the changes are kept."),
    row("limits.silence_timeout", TimeOrNone, "\"none\"", Narrow, "An exec without output is ended after this."),
    row("limits.output", SizeOrNone, "\"64M\"", Narrow, "Output kept of an exec: head and tail."),
    row("limits.io_weight", CountOrNone, "\"none\"", Narrow, "Weight (1 to 1000) of reading and writing disks against other sandboxes, which have 100."),
    row("sandbox.network", Choice(&["none", "loopback", "allow", "host"]), "\"none\"", Narrow, "What can be reached."),
    row("sandbox.system", Choice(&["ro", "cow"]), "\"ro\"", Narrow, "System directories: read-only, or copy-on-write."),
    row("sandbox.user", Choice(&["caller", "root"]), "\"caller\"", Narrow, "Who the processes look like to themselves."),
    row("sandbox.inherit_env", Flag, "true", Narrow, "Whether the built-in list of host variables is passed on."),
    row("sandbox.ptrace", Flag, "false", Narrow, "Whether debuggers work inside."),
    row("sandbox.best_effort", Flag, "false", Narrow, "Whether what was asked for may weaken where the host cannot give it."),
    row("sandbox.mounts", Texts, "[]", Narrow, "Host paths shown inside, as SRC:DST[:ro|rw]."),
    row("sandbox.layers", Texts, "[]", Narrow, "Read-only directories below the workspace."),
    row("sandbox.home", Texts, "[]", Narrow, "Pieces of the home shown read-only."),
    row("sandbox.hide", Texts, "[]", Narrow, "Globs of files in the project shown as absent, beside the built-in list."),
    row("sandbox.show", Texts, "[]", Narrow, "Exceptions to what is hidden."),
    row("sandbox.env.*", Text, "", Never, "A variable set inside."),
    row("sandbox.env_pass", Texts, "a built-in list", Narrow, "Host variables that are passed on."),
    row("sandbox.require", Choices(LAYERS), "[]", Narrow, "Layers that must be enforced, or nothing starts."),
    row("sandbox.scope", Texts, "[]", Narrow, "Writable parts of the project; empty is all of it."),
    row("changes.allow", Texts, "[]", Narrow, "Only these may be approved; empty is everything."),
    row("changes.deny", Texts, "[]", Narrow, "These may not be approved."),
    row("egress.allow", Texts, "[]", Narrow, "Rules and presets of what can be reached with `network = \"allow\"`."),
    row("egress.hosts", TextsByName, "", Never, "Addresses of names, instead of asking a name server."),
    row("egress.resolvers", Texts, "[]", Never, "Name servers to ask, instead of the host's."),
    row("egress.extra_ca", Texts, "[]", Never, "Files with certificates of authorities that servers may have."),
    row("egress.presets", TextsByName, "", Never, "Presets of your own: lists of rules, written `@name` where a rule is."),
    row("egress.secret_bodies", Texts, "[]", Never, "Names of secrets that are put into bodies of requests too, not only into heads."),
    row("warn.upper_size", Size, "\"5G\"", Narrow, "More changed files than this are remarked upon."),
    row("undo.keep", Count, "50", Never, "The newest approvals of a project that can be undone, however old."),
    row("undo.age", Time, "\"30d\"", Never, "Approvals younger than this can be undone."),
    row("gc.approved_age", Time, "\"1d\"", Never, "Approved sandboxes go after this."),
    row("gc.rejected_age", Time, "\"7d\"", Never, "Rejected sandboxes go after this."),
    row("gc.total_size", Size, "the smaller of \"100G\" and a fifth of the filesystem", Never, "All sandboxes together; over it, what was reviewed goes earlier."),
    row("gc.warn_percent", Percent, "80", Never, "Warn when this much of `gc.total_size` is used."),
    row("gc.keep_empty", Flag, "false", Never, "Whether sandboxes without changes stay until they are removed by name."),
    row("gc.archive_unreviewed", Flag, "false", Never, "Whether `--older-than`, `--max-size` and the end of a time to live may archive unreviewed work and then remove it."),
    row("gc.archive_age", TimeOrNone, "\"90d\"", Never, "Archives of unreviewed work go after this."),
    row("gc.events_age", TimeOrNone, "\"90d\"", Never, "Events go after this."),
    row("gc.deleted_age", Time, "\"30d\"", Never, "Rows of deleted sandboxes, with their execs, go after this."),
    row("gc.execs_age", TimeOrNone, "\"30d\"", Never, "Execs that have ended go after this, with their output."),
    row("gc.execs_keep", Count, "1000", Never, "The newest ended execs of a sandbox that stay; older ones go at once."),
    row("gc.history_age", TimeOrNone, "\"730d\"", Never, "Approvals go from the history after this, once they cannot be undone any more."),
    row("provider.name", Text, "\"auto\"", Never, "Where processes run; `auto` is the cheapest that holds what the policy asks for."),
    row("provider.microvm.emulation", Flag, "false", Never, "Whether software emulation may stand in for KVM."),
    row("provider.microvm.kernel", Text, "", Never, "The kernel of a microVM: an image `vmlinuz-RELEASE` with its modules, or a directory with `boot` and `lib/modules`; without it, the one of `skep image kernel` or of the host."),
    row("quota.sandboxes", CountOrNone, "\"none\"", Never, "Sandboxes at once."),
    row("quota.memory", SizeOrNone, "\"none\"", Never, "Memory limits of the running sandboxes together."),
    row("quota.disk", SizeOrNone, "\"none\"", Never, "Changed files of all sandboxes together."),
    row("quota.free_memory", SizeOrNone, "\"64M\"", Never, "Memory the host must have free for another sandbox to start."),
    row("store.url", Text, "", Never, "A PostgreSQL to remember in, instead of `skep.db` in the state directory."),
    row("store.node", Text, "", Never, "What this state directory is called in a shared database; made up once where nobody says it."),
    row("store.lease", Time, "\"60s\"", Never, "How long another state directory waits before it takes over a node that is silent."),
    row("server.traces", Text, "", Never, "A collector of OpenTelemetry (`http://HOST:PORT`, OTLP over HTTP) that `skep serve` sends traces to."),
    row("pools.*.project", Text, "", Never, "Sandboxes that `skep serve` has started before anybody asks: of this project."),
    row("pools.*.profile", Text, "the profile in force", Never, "The profile they are made under."),
    row("pools.*.provider", Text, "the provider in force", Never, "The provider they are made by."),
    row("pools.*.size", Count, "", Never, "How many wait."),
    row("profiles.*.description", Text, "", Never, "A profile of your own: one line for people."),
    row("profiles.*.from", Text, "\"default\"", Never, "The profile it builds on."),
    row("profiles.*.memory_share.cap", Size, "", Never, "Memory as a share of the host: never more than this."),
    row("profiles.*.memory_share.percent", Percent, "", Never, "Memory as a share of the host."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_holds_exactly_the_keys_that_are_read() {
        let table: std::collections::BTreeSet<&str> = TABLE.iter().map(|row| row.key).collect();
        let keys: std::collections::BTreeSet<&str> = crate::KEYS.iter().copied().collect();
        assert_eq!(table, keys, "a key needs a row in the table, and the other way round");
    }

    #[test]
    fn defaults_can_be_read_and_are_those_in_force() {
        let settings = crate::Settings::builtin(&crate::HostFacts::default());
        let rows = settings.rows(&crate::Origins::default());
        for row in TABLE.iter().filter(|row| !row.key.contains('*')) {
            let text = format!("{} = {}", row.key, row.default);
            let plain = row.default.starts_with(['"', '[']) || row.default.parse::<u64>().is_ok();
            if !plain && !matches!(row.default, "true" | "false") {
                continue;
            }
            crate::ConfigDocument::parse(text.as_bytes(), row.key).unwrap();
            let Some(shown) = rows.iter().find(|shown| shown.key == row.key) else { continue };
            let default = row.default.trim_matches('"').replace("[]", "(empty)");
            if row.key != "profile" {
                assert!(same(&default, &shown.value), "{}: {default}, {}", row.key, shown.value);
            }
        }
    }

    /// `1d` and `24h`, `64M` and `64MiB` are the same.
    fn same(a: &str, b: &str) -> bool {
        let time = |text: &str| skep_types::parse_duration(text).ok();
        let size = |text: &str| text.parse::<skep_types::ByteSize>().ok();
        a == b
            || (time(a).is_some() && time(a) == time(b))
            || (size(a).is_some() && size(a) == size(b))
    }
}
