//! What can be changed about a sandbox that is there: labels, its time to live and which changes may be
//! approved at any moment, limits and the network while nothing runs in it.
//!
//! A keeper is started with its limits and its network; it does not take others while it runs. So a
//! change of these is refused by name then, instead of being noted and not enforced.

use crate::Engine;
use crate::gc::{EXPIRED, TTL};
use crate::problems::OrProblem;
use crate::settings::asked_layers;
use serde::{Deserialize, Serialize};
use serde_json::json;
use skep_policy::AcceptanceRules;
use skep_store::Expect;
use skep_types::{Code, Limits, NetworkMode, Problem, Sandbox, SandboxId};
use std::collections::BTreeMap;
use std::time::Duration;

/// What shall be another.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Patch {
    /// Labels to set; `None` removes one.
    pub labels: BTreeMap<String, Option<String>>,
    /// How long it may live, counted from when it was made.
    pub ttl: Option<TimeToLive>,
    /// Limits to set; the others stay.
    pub limits: Limits,
    /// The network.
    pub network: Option<NetworkMode>,
    /// The only changes that may be approved.
    #[serde(default)]
    pub allow_changes: Option<Vec<String>>,
    /// The changes that may not.
    #[serde(default)]
    pub deny_changes: Option<Vec<String>>,
}

/// How long a sandbox may live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimeToLive {
    /// There is no end.
    Unlimited,
    /// So long.
    For(Duration),
}

impl Patch {
    /// What of it a running sandbox cannot take, by its name in the API.
    fn needs_restart(&self, sandbox: &Sandbox) -> Vec<&'static str> {
        let (new, old) = (&self.limits, &sandbox.policy.limits);
        let differs = [
            ("limits.memory", new.memory.is_some() && new.memory != old.memory),
            ("limits.cpus", new.cpus.is_some() && new.cpus != old.cpus),
            ("limits.cpu_time", new.cpu_time.is_some() && new.cpu_time != old.cpu_time),
            ("limits.pids", new.pids.is_some() && new.pids != old.pids),
            ("limits.disk", new.disk.is_some() && new.disk != old.disk),
            ("limits.inodes", new.inodes.is_some() && new.inodes != old.inodes),
            ("limits.open_files", new.open_files.is_some() && new.open_files != old.open_files),
            ("limits.timeout", new.timeout.is_some() && new.timeout != old.timeout),
            ("limits.grace", new.grace.is_some() && new.grace != old.grace),
            (
                "limits.idle_timeout",
                new.idle_timeout.is_some() && new.idle_timeout != old.idle_timeout,
            ),
            (
                "limits.silence_timeout",
                new.silence_timeout.is_some() && new.silence_timeout != old.silence_timeout,
            ),
            ("limits.output", new.output.is_some() && new.output != old.output),
            ("limits.io_weight", new.io_weight.is_some() && new.io_weight != old.io_weight),
            ("network", self.network.is_some_and(|network| network != sandbox.policy.network)),
        ];
        differs.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }

    fn apply(&self, row: &mut Sandbox) {
        for (key, value) in &self.labels {
            match value {
                Some(value) => drop(row.labels.insert(key.clone(), value.clone())),
                None => drop(row.labels.remove(key)),
            }
        }
        if self.ttl.is_some() {
            row.labels.remove(EXPIRED);
        }
        match self.ttl {
            Some(TimeToLive::For(ttl)) => {
                row.labels.insert(TTL.into(), ttl.as_secs().to_string());
            }
            Some(TimeToLive::Unlimited) => drop(row.labels.remove(TTL)),
            None => {}
        }
        if let Some(network) = self.network {
            row.policy.network = network;
        }
        if let Some(allow) = &self.allow_changes {
            row.policy.allow_changes.clone_from(allow);
        }
        if let Some(deny) = &self.deny_changes {
            row.policy.deny_changes.clone_from(deny);
        }
        let (new, limits) = (&self.limits, &mut row.policy.limits);
        limits.memory = new.memory.or(limits.memory);
        limits.cpus = new.cpus.or(limits.cpus);
        limits.cpu_time = new.cpu_time.or(limits.cpu_time);
        limits.pids = new.pids.or(limits.pids);
        limits.disk = new.disk.or(limits.disk);
        limits.inodes = new.inodes.or(limits.inodes);
        limits.open_files = new.open_files.or(limits.open_files);
        limits.timeout = new.timeout.or(limits.timeout);
        limits.grace = new.grace.or(limits.grace);
        limits.idle_timeout = new.idle_timeout.or(limits.idle_timeout);
        limits.silence_timeout = new.silence_timeout.or(limits.silence_timeout);
        limits.output = new.output.or(limits.output);
        limits.io_weight = new.io_weight.or(limits.io_weight);
        // Asked for now, and so refused at the next start where it cannot be enforced.
        if !row.policy.best_effort {
            row.policy.require.extend(asked_layers(&self.limits));
        }
    }
}

/// What skep itself notes in labels is nobody else's to say.
pub(crate) fn refuse_own_labels<'a>(
    mut keys: impl Iterator<Item = &'a String>,
) -> Result<(), Problem> {
    match keys.find(|key| key.starts_with("skep.")) {
        None => Ok(()),
        Some(own) => {
            let message = format!("label `{own}` is skep's own");
            Err(Problem::new(Code::Usage, message)
                .hint("choose one that does not begin with `skep.`"))
        }
    }
}

impl Engine {
    /// Changes a sandbox. With a version, only if it still has that one.
    pub fn patch(
        &self,
        id: &SandboxId,
        version: Option<u64>,
        patch: &Patch,
    ) -> Result<Sandbox, Problem> {
        refuse_own_labels(patch.labels.keys())?;
        skep_policy::validate(&patch.limits)
            .map_err(|error| Problem::from_error(Code::Usage, &error))?;
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        let refused = patch.needs_restart(&sandbox);
        if !refused.is_empty() && self.is_running(&sandbox) {
            let names = refused.join("`, `");
            let message = format!("`{names}` cannot change while sandbox `{}` runs", sandbox.name);
            return Err(Problem::new(Code::IllegalState, message)
                .hint("stop it, change it, and start it again; the changes inside are kept")
                .details(json!({ "needs_restart": refused })));
        }
        let mut changed = sandbox.clone();
        patch.apply(&mut changed);
        crate::egress::check_policy(&changed.policy)?;
        AcceptanceRules::of(&changed.policy)
            .map_err(|error| Problem::from_error(Code::Usage, &error))?;
        let mut data = json!({ "labels": patch.labels, "restarted": refused });
        if changed.policy.change_rules() != sandbox.policy.change_rules() {
            data["changes"] = json!(changed.policy.change_rules());
        }
        let event = self.event("sandbox.changed", id, None, data);
        let expect = Expect { version, ..Expect::default() };
        let now = self.now();
        let change = &mut |row: &mut Sandbox| {
            patch.apply(row);
            row.updated_at.clone_from(&now);
        };
        // It says when the time to live is over.
        crate::ways::forget(self.layout(), &sandbox);
        self.store.update_sandbox(id, expect, &[event], change).or_problem()
    }
}
