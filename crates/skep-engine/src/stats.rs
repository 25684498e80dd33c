//! `skep stats`: what all sandboxes together were promised, and what they use.

use crate::problems::OrProblem;
use crate::{Engine, PoolFigures, Tally, usage};
use serde::{Deserialize, Serialize};
use skep_store::SandboxFilter;
use skep_types::Problem;
use std::collections::BTreeMap;

/// Sums over all sandboxes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// What they were promised.
    #[serde(flatten)]
    pub promised: Tally,
    /// How many there are in each state.
    pub states: BTreeMap<String, u64>,
    /// Execs that have not ended.
    pub execs: u64,
    /// Bytes of changes that lie in uppers.
    pub changed: u64,
    /// Sandboxes made ahead, by pool.
    #[serde(default)]
    pub pools: BTreeMap<String, PoolFigures>,
}

impl Engine {
    /// Adds up; looks at every upper, so its cost follows what was changed.
    pub(crate) fn sums(&self) -> Result<Stats, Problem> {
        let pools = self.pool_figures()?;
        let mut stats = Stats { promised: self.tally()?, pools, ..Stats::default() };
        for sandbox in self.store.list_sandboxes(&SandboxFilter::default()).or_problem()? {
            let waits = crate::pool::is_nobodys(&sandbox);
            let state = if waits { "waiting" } else { sandbox.state.as_str() };
            *stats.states.entry(state.to_owned()).or_default() += 1;
            // An upper that goes while it is looked at is none.
            let upper = usage::of(&self.workspace(&sandbox).upper).unwrap_or_default();
            stats.changed = stats.changed.saturating_add(upper.bytes);
        }
        for exec in self.store.running_execs(None).or_problem()? {
            stats.execs += u64::from(self.refresh(exec)?.end.is_none());
        }
        Ok(stats)
    }
}
