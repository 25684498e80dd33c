//! Settings as lines: key, value, origin. Values are written as a settings file takes them.

use crate::config::EMPTY;
use crate::draft::ShowItem;
use crate::origins::{Origin, Origins, SettingRow};
use crate::settings::Settings;
use skep_types::{ByteSize, InsideUser, NetworkMode, SystemView, written_duration};
use std::fmt::Display;
use std::time::Duration;

impl Settings {
    /// Every value in force with its origin, in the order of a config file.
    pub fn rows(&self, origins: &Origins) -> Vec<SettingRow> {
        let mut rows = Rows { origins, rows: Vec::new() };
        rows.value("profile", &self.policy.profile);
        self.limit_rows(&mut rows);
        self.sandbox_rows(&mut rows);
        rows.value("warn.upper_size", self.warn_upper_size.written());
        rows.value("undo.keep", self.undo_keep);
        rows.value("undo.age", written_duration(self.undo_age));
        rows.value("gc.approved_age", written_duration(self.approved_age));
        rows.value("gc.rejected_age", written_duration(self.rejected_age));
        rows.value("gc.total_size", self.total_size.written());
        rows.value("gc.warn_percent", self.total_warn_percent);
        self.upkeep_rows(&mut rows);
        rows.value("provider.name", &self.provider);
        rows.value("provider.microvm.emulation", self.microvm_emulation);
        rows.limit("provider.microvm.kernel", self.microvm_kernel.as_ref());
        rows.rows
    }

    fn upkeep_rows(&self, rows: &mut Rows<'_>) {
        let kept = &self.retention;
        rows.value("gc.keep_empty", kept.keep_empty);
        rows.value("gc.archive_unreviewed", kept.archive_unreviewed);
        rows.time("gc.archive_age", kept.archives);
        rows.time("gc.events_age", kept.events);
        rows.value("gc.deleted_age", written_duration(kept.deleted));
        rows.time("gc.execs_age", kept.execs);
        rows.value("gc.execs_keep", kept.execs_keep);
        rows.time("gc.history_age", kept.history);
        rows.limit("quota.sandboxes", self.quota.sandboxes);
        rows.size("quota.memory", self.quota.memory);
        rows.size("quota.disk", self.quota.disk);
        rows.size("quota.free_memory", self.quota.free_memory);
        rows.limit("store.url", self.store.shown_url());
        rows.limit("store.node", self.store.node.as_ref());
        rows.value("store.lease", written_duration(self.store.lease));
        rows.limit("server.traces", self.traces.as_ref());
        if !self.pools.is_empty() {
            let names: Vec<String> = self.pools.keys().cloned().collect();
            rows.items("pools", &names);
            self.pool_rows(rows);
        }
    }

    fn pool_rows(&self, rows: &mut Rows<'_>) {
        for (name, pool) in &self.pools {
            let origin = rows.origins.of_item("pools", name).clone();
            let mut push = |below: &str, value: &str| {
                rows.push(&format!("pools.{name}.{below}"), value.to_owned(), origin.clone());
            };
            push("project", &pool.project.to_string());
            if let Some(profile) = &pool.profile {
                push("profile", profile);
            }
            if let Some(provider) = &pool.provider {
                push("provider", provider);
            }
            push("size", &pool.size.to_string());
        }
    }

    fn limit_rows(&self, rows: &mut Rows<'_>) {
        let limits = &self.policy.limits;
        rows.size("limits.memory", limits.memory);
        rows.limit("limits.cpus", limits.cpus);
        rows.time("limits.cpu_time", limits.cpu_time);
        rows.limit("limits.pids", limits.pids);
        rows.size("limits.disk", limits.disk);
        rows.limit("limits.inodes", limits.inodes);
        rows.limit("limits.open_files", limits.open_files);
        rows.time("limits.timeout", limits.timeout);
        rows.time("limits.api_timeout", self.api_timeout);
        rows.time("limits.grace", limits.grace);
        rows.time("limits.idle_timeout", limits.idle_timeout);
        rows.time("limits.silence_timeout", limits.silence_timeout);
        rows.size("limits.output", limits.output);
        rows.limit("limits.io_weight", limits.io_weight);
    }

    fn sandbox_rows(&self, rows: &mut Rows<'_>) {
        let policy = &self.policy;
        let network = match policy.network {
            NetworkMode::None => "none",
            NetworkMode::Allow => "allow",
            NetworkMode::Host => "host",
        };
        let system = match policy.system {
            SystemView::Ro => "ro",
            SystemView::Cow => "cow",
        };
        let user = match policy.user {
            InsideUser::Caller => "caller",
            InsideUser::Root => "root",
        };
        rows.value("sandbox.network", network);
        rows.value("sandbox.system", system);
        rows.value("sandbox.user", user);
        rows.value("sandbox.ptrace", policy.allow_ptrace);
        rows.value("sandbox.best_effort", policy.best_effort);
        rows.items("sandbox.mounts", &policy.mounts);
        rows.items("sandbox.layers", &policy.layers);
        rows.items("sandbox.home", &policy.home);
        rows.items("sandbox.hide", &policy.hide);
        rows.items("sandbox.show", &policy.show);
        for (name, value) in &policy.env {
            rows.value(&format!("sandbox.env.{name}"), value);
        }
        rows.items("sandbox.env_pass", &policy.env_pass);
        rows.items("sandbox.require", &policy.require);
        rows.items("sandbox.scope", &policy.scope);
        rows.items("egress.allow", &policy.egress.allow);
        let hosts: Vec<String> = policy.egress.hosts.keys().cloned().collect();
        rows.items("egress.hosts", &hosts);
        for (name, addresses) in &policy.egress.hosts {
            let addresses = addresses.iter().map(ToString::to_string);
            rows.named("egress.hosts", name, addresses);
        }
        rows.items("egress.resolvers", &policy.egress.resolvers);
        rows.items("egress.extra_ca", &policy.egress.extra_ca);
        let presets: Vec<String> = self.egress_presets.keys().cloned().collect();
        rows.items("egress.presets", &presets);
        for (name, rules) in &self.egress_presets {
            rows.named("egress.presets", name, rules.iter().cloned());
        }
        rows.items("egress.secret_bodies", &policy.egress.secret_bodies);
        rows.items("changes.allow", &policy.allow_changes);
        rows.items("changes.deny", &policy.deny_changes);
    }
}

struct Rows<'a> {
    origins: &'a Origins,
    rows: Vec<SettingRow>,
}

impl Rows<'_> {
    fn push(&mut self, key: &str, value: String, origin: Origin) {
        self.rows.push(SettingRow { key: key.to_owned(), value, origin });
    }

    fn value(&mut self, key: &str, value: impl Display) {
        self.push(key, value.to_string(), self.origins.of(key).clone());
    }

    fn limit<T: Display>(&mut self, key: &str, limit: Option<T>) {
        let value = limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
        self.value(key, value);
    }

    fn time(&mut self, key: &str, limit: Option<Duration>) {
        self.limit(key, limit.map(written_duration));
    }

    fn size(&mut self, key: &str, limit: Option<ByteSize>) {
        self.limit(key, limit.map(ByteSize::written));
    }

    /// One row per element of what has a name, with the origin of that.
    fn named(&mut self, key: &str, name: &str, items: impl Iterator<Item = String>) {
        let origin = self.origins.of_item(key, name).clone();
        for item in items {
            self.push(&format!("{key}.{name}"), item, origin.clone());
        }
    }

    /// One row per element; an empty list is one row too, so that it can be seen.
    fn items<'i, T: ShowItem + 'i>(&mut self, key: &str, items: impl IntoIterator<Item = &'i T>) {
        let before = self.rows.len();
        for item in items {
            let shown = item.show();
            let origin = self.origins.of_item(key, &shown).clone();
            self.push(key, shown, origin);
        }
        if self.rows.len() == before {
            self.value(key, EMPTY);
        }
    }
}
