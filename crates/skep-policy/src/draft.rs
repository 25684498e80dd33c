//! Settings in the making: one source laid over another, each value remembering whose it is.

use crate::config::{
    ChangesSection, ConfigDocument, EgressSection, LimitsSection, Mentioned, SandboxSection,
};
use crate::environment::EnvironmentTable;
use crate::origins::{Origin, Origins};
use crate::outward::with_own_presets;
use crate::settings::Settings;
use skep_types::{ByteString, Layer, Mount, RelPath};
use std::collections::BTreeSet;

/// What a source does to lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lists {
    /// Adds to all of them.
    Extend,
    /// Adds to those that take away (hide, deny, require), and replaces those that give: whether
    /// that was a part of the former list is checked afterwards.
    Narrow,
}

#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) settings: Settings,
    pub(crate) origins: Origins,
}

impl Draft {
    pub(crate) fn new(settings: Settings) -> Self {
        let mut draft = Self { settings, origins: Origins::default() };
        draft.inherit_environment(true, &Origin::Builtin);
        draft
    }

    /// Lays a whole document over what is there. `profile` and `profiles` were dealt with before.
    pub(crate) fn apply(&mut self, document: &ConfigDocument, origin: &Origin, lists: Lists) {
        let ConfigDocument { limits, sandbox, changes, egress, warn, undo, gc, provider, .. } =
            document;
        let (quota, store) = (&document.quota, &document.store);
        self.apply_sections(limits, sandbox, changes, origin, lists);
        self.apply_egress(egress, origin, lists);
        let settings = &mut self.settings;
        let mut layer = Overlay { origins: &mut self.origins, origin };
        layer.value("warn.upper_size", &mut settings.warn_upper_size, &warn.upper_size);
        layer.value("undo.keep", &mut settings.undo_keep, &undo.keep);
        layer.value("undo.age", &mut settings.undo_age, &undo.age);
        layer.value("gc.approved_age", &mut settings.approved_age, &gc.approved_age);
        layer.value("gc.rejected_age", &mut settings.rejected_age, &gc.rejected_age);
        layer.value("gc.total_size", &mut settings.total_size, &gc.total_size);
        layer.value("gc.warn_percent", &mut settings.total_warn_percent, &gc.warn_percent);
        let kept = &mut settings.retention;
        layer.value("gc.keep_empty", &mut kept.keep_empty, &gc.keep_empty);
        let archive = &gc.archive_unreviewed;
        layer.value("gc.archive_unreviewed", &mut kept.archive_unreviewed, archive);
        layer.value("gc.archive_age", &mut kept.archives, &gc.archive_age);
        layer.value("gc.events_age", &mut kept.events, &gc.events_age);
        layer.value("gc.deleted_age", &mut kept.deleted, &gc.deleted_age);
        layer.value("gc.execs_age", &mut kept.execs, &gc.execs_age);
        layer.value("gc.execs_keep", &mut kept.execs_keep, &gc.execs_keep);
        layer.value("gc.history_age", &mut kept.history, &gc.history_age);
        layer.value("quota.sandboxes", &mut settings.quota.sandboxes, &quota.sandboxes);
        layer.value("quota.memory", &mut settings.quota.memory, &quota.memory);
        layer.value("quota.disk", &mut settings.quota.disk, &quota.disk);
        layer.value("quota.free_memory", &mut settings.quota.free_memory, &quota.free_memory);
        layer.value("store.url", &mut settings.store.url, &store.url.clone().map(Some));
        layer.value("store.node", &mut settings.store.node, &store.node.clone().map(Some));
        layer.value("store.lease", &mut settings.store.lease, &store.lease);
        let traces = &document.server.traces;
        layer.value("server.traces", &mut settings.traces, &traces.clone().map(Some));
        for (name, pool) in &document.pools {
            settings.pools.insert(name.clone(), pool.clone());
            layer.origins.add_item("pools", name.clone(), origin);
        }
        layer.value("provider.name", &mut settings.provider, &provider.name);
        let emulation = &provider.microvm.emulation;
        layer.value("provider.microvm.emulation", &mut settings.microvm_emulation, emulation);
        let kernel = provider.microvm.kernel.clone().map(Some);
        layer.value("provider.microvm.kernel", &mut settings.microvm_kernel, &kernel);
    }

    /// Lays what a profile may say over what is there.
    pub(crate) fn apply_sections(
        &mut self,
        limits: &LimitsSection,
        sandbox: &SandboxSection,
        changes: &ChangesSection,
        origin: &Origin,
        lists: Lists,
    ) {
        self.apply_limits(limits, origin);
        if let Some(inherit) = sandbox.inherit_env {
            self.inherit_environment(inherit, origin);
        }
        self.apply_view(sandbox, origin);
        self.apply_lists(sandbox, changes, origin, lists);
    }

    /// Lays what is said about the way out over what is there.
    pub(crate) fn apply_egress(&mut self, from: &EgressSection, origin: &Origin, lists: Lists) {
        let to = &mut self.settings.policy.egress;
        let mut layer = Overlay { origins: &mut self.origins, origin };
        let own = &self.settings.egress_presets;
        let allow = from.allow.as_ref().map(|rules| with_own_presets(rules, own));
        layer.list("egress.allow", &mut to.allow, &allow, lists);
        layer.list("egress.secret_bodies", &mut to.secret_bodies, &from.secret_bodies, lists);
        layer.list("egress.extra_ca", &mut to.extra_ca, &from.extra_ca, lists);
        // Servers are asked in order, so one list is not added to another.
        layer.list("egress.resolvers", &mut to.resolvers, &from.resolvers, Lists::Narrow);
        for (name, addresses) in &from.hosts {
            to.hosts.insert(name.clone(), addresses.clone());
            layer.origins.add_item("egress.hosts", name.clone(), origin);
        }
        layer.value("egress.secrets", &mut to.secrets, &from.secrets);
        layer.value("egress.secret_env", &mut to.secret_env, &from.secret_env);
        layer.value("egress.publish", &mut to.publish, &from.publish);
    }

    fn apply_limits(&mut self, from: &LimitsSection, origin: &Origin) {
        let to = &mut self.settings.policy.limits;
        let mut layer = Overlay { origins: &mut self.origins, origin };
        layer.value("limits.memory", &mut to.memory, &from.memory);
        layer.value("limits.cpus", &mut to.cpus, &from.cpus);
        layer.value("limits.cpu_time", &mut to.cpu_time, &from.cpu_time);
        layer.value("limits.pids", &mut to.pids, &from.pids);
        layer.value("limits.disk", &mut to.disk, &from.disk);
        layer.value("limits.inodes", &mut to.inodes, &from.inodes);
        layer.value("limits.open_files", &mut to.open_files, &from.open_files);
        layer.value("limits.timeout", &mut to.timeout, &from.timeout);
        layer.value("limits.grace", &mut to.grace, &from.grace);
        layer.value("limits.idle_timeout", &mut to.idle_timeout, &from.idle_timeout);
        layer.value("limits.silence_timeout", &mut to.silence_timeout, &from.silence_timeout);
        layer.value("limits.output", &mut to.output, &from.output);
        layer.value("limits.io_weight", &mut to.io_weight, &from.io_weight);
        let api: &Mentioned<_> = &from.api_timeout;
        layer.value("limits.api_timeout", &mut self.settings.api_timeout, api);
    }

    fn apply_view(&mut self, from: &SandboxSection, origin: &Origin) {
        let to = &mut self.settings.policy;
        let mut layer = Overlay { origins: &mut self.origins, origin };
        layer.value("sandbox.network", &mut to.network, &from.network);
        layer.value("sandbox.system", &mut to.system, &from.system);
        layer.value("sandbox.user", &mut to.user, &from.user);
        layer.value("sandbox.ptrace", &mut to.allow_ptrace, &from.ptrace);
        layer.value("sandbox.best_effort", &mut to.best_effort, &from.best_effort);
        for (name, value) in &from.env {
            to.env.insert(name.clone(), value.clone());
            layer.origins.set(&format!("sandbox.env.{name}"), origin);
        }
    }

    fn apply_lists(
        &mut self,
        sandbox: &SandboxSection,
        changes: &ChangesSection,
        origin: &Origin,
        lists: Lists,
    ) {
        let to = &mut self.settings.policy;
        let mut layer = Overlay { origins: &mut self.origins, origin };
        layer.list("sandbox.hide", &mut to.hide, &sandbox.hide, Lists::Extend);
        layer.list("changes.deny", &mut to.deny_changes, &changes.deny, Lists::Extend);
        layer.set("sandbox.require", &mut to.require, &sandbox.require, Lists::Extend);
        layer.list("sandbox.show", &mut to.show, &sandbox.show, lists);
        layer.list("sandbox.home", &mut to.home, &sandbox.home, lists);
        layer.list("sandbox.mounts", &mut to.mounts, &sandbox.mounts, lists);
        layer.list("sandbox.layers", &mut to.layers, &sandbox.layers, lists);
        // What is typed says for one sandbox what alone may be approved: to add to the settings'
        // list would let more through than was typed.
        let typed = *origin == Origin::CommandLine;
        let rules = if typed { Lists::Narrow } else { lists };
        layer.list("changes.allow", &mut to.allow_changes, &changes.allow, rules);
        layer.set("sandbox.env_pass", &mut to.env_pass, &sandbox.env_pass, lists);
        // A scope is said as a whole: adding to one would widen what a source chose.
        layer.list("sandbox.scope", &mut to.scope, &sandbox.scope, Lists::Narrow);
    }

    /// Puts the built-in names into `env_pass`, or takes them out.
    fn inherit_environment(&mut self, inherit: bool, origin: &Origin) {
        for passed in EnvironmentTable::builtin().pass {
            if inherit {
                self.settings.policy.env_pass.insert(passed.name.to_owned());
                self.origins.add_item("sandbox.env_pass", passed.name.to_owned(), &Origin::Builtin);
            } else {
                self.settings.policy.env_pass.remove(passed.name);
                self.origins.drop_item("sandbox.env_pass", passed.name);
            }
        }
        self.origins.set("sandbox.inherit_env", origin);
    }
}

struct Overlay<'a> {
    origins: &'a mut Origins,
    origin: &'a Origin,
}

impl Overlay<'_> {
    fn value<T: Clone>(&mut self, key: &str, slot: &mut T, given: &Option<T>) {
        if let Some(given) = given {
            *slot = given.clone();
            self.origins.set(key, self.origin);
        }
    }

    fn list<T: Clone + PartialEq + ShowItem>(
        &mut self,
        key: &str,
        slot: &mut Vec<T>,
        given: &Option<Vec<T>>,
        lists: Lists,
    ) {
        let Some(given) = given else { return };
        if lists == Lists::Narrow {
            for gone in slot.iter().filter(|item| !given.contains(item)) {
                self.origins.drop_item(key, &gone.show());
            }
            slot.clear();
            self.origins.set(key, self.origin);
        }
        for item in given {
            if !slot.contains(item) {
                self.origins.add_item(key, item.show(), self.origin);
                slot.push(item.clone());
            }
        }
    }

    fn set<T: Clone + Ord + ShowItem>(
        &mut self,
        key: &str,
        slot: &mut BTreeSet<T>,
        given: &Option<BTreeSet<T>>,
        lists: Lists,
    ) {
        let mut list: Vec<T> = slot.iter().cloned().collect();
        let given = given.as_ref().map(|given| given.iter().cloned().collect());
        self.list(key, &mut list, &given, lists);
        *slot = list.into_iter().collect();
    }
}

/// How an element of a list is called in the origins.
pub(crate) trait ShowItem {
    fn show(&self) -> String;
}

impl ShowItem for String {
    fn show(&self) -> String {
        self.clone()
    }
}

impl ShowItem for std::net::SocketAddr {
    fn show(&self) -> String {
        self.to_string()
    }
}

impl ShowItem for ByteString {
    fn show(&self) -> String {
        self.to_string()
    }
}

impl ShowItem for RelPath {
    fn show(&self) -> String {
        self.to_string()
    }
}

impl ShowItem for Layer {
    fn show(&self) -> String {
        self.to_string()
    }
}

impl ShowItem for Mount {
    fn show(&self) -> String {
        let access = match self.access {
            skep_types::Access::Ro => "ro",
            skep_types::Access::Rw => "rw",
        };
        format!("{}:{}:{access}", self.source, self.target)
    }
}
