//! How much there may be at once: decided before anything is made.

use crate::Engine;
use crate::problems::OrProblem;
use skep_policy::Settings;
use skep_store::SandboxFilter;
use skep_types::{ByteSize, Code, Problem, Sandbox, SandboxState};

impl Engine {
    /// Refuses a further sandbox that would go over a quota. Several creates at the same moment may
    /// each find room; the next one finds none.
    pub(crate) fn check_quota(&self, settings: &Settings) -> Result<(), Problem> {
        let quota = &settings.quota;
        if let (Some(least), Some(free)) = (quota.free_memory, free_memory())
            && free < least.0
        {
            let free = ByteSize(free);
            return Err(over(
                "quota.free_memory",
                format!("the host has only {free} of memory free, {least} are to stay free"),
            ));
        }
        if quota.sandboxes.is_none() && quota.memory.is_none() && quota.disk.is_none() {
            return Ok(());
        }
        let all = self.store.list_sandboxes(&SandboxFilter::default()).or_problem()?;
        if let Some(most) = quota.sandboxes
            && all.len() as u64 >= most
        {
            return Err(over(
                "quota.sandboxes",
                format!("there are {} sandboxes, {most} are allowed", all.len()),
            ));
        }
        if let Some(most) = quota.memory {
            let limit = |limit: Option<ByteSize>| limit.map_or(u64::MAX, |size| size.0);
            let running = all.iter().filter(|sandbox| uses_memory(sandbox));
            let used = running
                .map(|sandbox| limit(sandbox.policy.limits.memory))
                .fold(0, u64::saturating_add);
            let wanted = limit(settings.policy.limits.memory);
            if used.saturating_add(wanted) > most.0 {
                return Err(over(
                    "quota.memory",
                    format!(
                        "the running sandboxes may use {} of memory, this one {}, {most} are allowed",
                        ByteSize(used),
                        ByteSize(wanted)
                    ),
                ));
            }
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
        Ok(())
    }
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
