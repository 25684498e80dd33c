//! How much there may be at once: decided before anything is made.

use crate::lock::Lock;
use crate::problems::OrProblem;
use crate::{Engine, lock};
use skep_policy::Quota;
use skep_store::SandboxFilter;
use skep_types::{ByteSize, Code, Limits, Problem, Sandbox, SandboxId, SandboxState};
use std::time::Duration;

/// For the count of others, who add to it at the same moment.
const PATIENCE: Duration = Duration::from_secs(30);

/// Marks a sandbox that a server makes to see whether it is well. No quota is held against it, and it is
/// counted against nobody else's.
pub(crate) const TRIAL: &str = "skep.trial";

/// What is about to be there, or to run.
pub(crate) struct Wanted<'a> {
    /// Sandboxes.
    pub(crate) sandboxes: u64,
    /// The limits of the one that will run, if one will.
    pub(crate) runs: Option<&'a Limits>,
    /// One that is there already.
    pub(crate) id: Option<&'a SandboxId>,
}

impl<'a> Wanted<'a> {
    /// A new one, which runs.
    pub(crate) fn one(limits: &'a Limits) -> Self {
        Self { sandboxes: 1, runs: Some(limits), id: None }
    }
}

impl Engine {
    /// Refuses what would go over a quota. Where something is counted, the caller holds the answer until
    /// its own is counted too.
    pub(crate) fn check_quota(
        &self,
        quota: &Quota,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Lock>, Problem> {
        if let (Some(least), Some(free), Some(_)) = (quota.free_memory, free_memory(), wanted.runs)
            && free < least.0
        {
            let free = ByteSize(free);
            return Err(over(
                "quota.free_memory",
                format!("the host has only {free} of memory free, {least} are to stay free"),
            ));
        }
        if quota.sandboxes.is_none() && quota.memory.is_none() && quota.disk.is_none() {
            return Ok(None);
        }
        let place = self.layout().quota_lock();
        let lock = lock::take_directory(&place, "the number of sandboxes", PATIENCE)?;
        let mut all = self.store.list_sandboxes(&SandboxFilter::default()).or_problem()?;
        all.retain(|sandbox| !sandbox.labels.contains_key(TRIAL));
        if let Some(most) = quota.sandboxes.filter(|_| wanted.sandboxes > 0)
            && all.len() as u64 + wanted.sandboxes > most
        {
            return Err(over(
                "quota.sandboxes",
                format!("there are {} sandboxes, {most} are allowed", all.len()),
            ));
        }
        if let (Some(most), Some(limits)) = (quota.memory, wanted.runs) {
            let others = all.iter().filter(|one| wanted.id != Some(&one.id));
            check_memory(others, limits, most)?;
        }
        if let Some(most) = quota.disk {
            let used: u64 = all.iter().map(|sandbox| self.size_of(sandbox)).sum();
            if used >= most.0 {
                return Err(over(
                    "quota.disk",
                    format!("all sandboxes together take {}, {most} are allowed", ByteSize(used)),
                ));
            }
        }
        Ok(Some(lock))
    }
}

fn check_memory<'a>(
    others: impl Iterator<Item = &'a Sandbox>,
    limits: &Limits,
    most: ByteSize,
) -> Result<(), Problem> {
    let limit = |limit: Option<ByteSize>| limit.map_or(u64::MAX, |size| size.0);
    let running = others.filter(|sandbox| uses_memory(sandbox));
    let used =
        running.map(|sandbox| limit(sandbox.policy.limits.memory)).fold(0, u64::saturating_add);
    let wanted = limit(limits.memory);
    if used.saturating_add(wanted) <= most.0 {
        return Ok(());
    }
    Err(over(
        "quota.memory",
        format!(
            "the running sandboxes may use {} of memory, this one {}, {most} are allowed",
            ByteSize(used),
            ByteSize(wanted)
        ),
    ))
}

fn uses_memory(sandbox: &Sandbox) -> bool {
    matches!(sandbox.state, SandboxState::Creating | SandboxState::Ready | SandboxState::Frozen)
}

fn over(setting: &'static str, message: String) -> Problem {
    Problem::new(Code::OverQuota, message)
        .hint("remove sandboxes (`skep gc`, `skep rm`), or raise the setting")
        .details(serde_json::json!({ "setting": setting }))
}

/// What the kernel says could be had without swapping; proc(5), `MemAvailable`.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}
