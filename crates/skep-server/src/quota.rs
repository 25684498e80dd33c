//! How much all sandboxes together may be, and whether one more fits now.

use crate::app::App;
use crate::calls::Call;
use skep_engine::Tally;
use skep_types::{ByteSize, Code, Problem};

/// What the server was told not to exceed. Memory and disk count as promised: by the limits of
/// the sandboxes, not by what they happen to use.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quotas {
    /// Sandboxes.
    pub sandboxes: Option<u64>,
    /// Memory of the running ones.
    pub memory: Option<ByteSize>,
    /// Disk of all.
    pub disk: Option<ByteSize>,
    /// Memory that must be free on the host for one more.
    pub free_memory: Option<ByteSize>,
}

/// What is about to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) sandboxes: u64,
    pub(crate) memory: u64,
    pub(crate) disk: u64,
}

impl Quotas {
    pub(crate) fn counts(&self) -> bool {
        self.sandboxes.is_some() || self.memory.is_some() || self.disk.is_some()
    }

    fn check(&self, tally: Tally, wanted: Wanted) -> Result<(), Problem> {
        let over = |what: &str, limit: String| {
            Err(Problem::new(Code::OverQuota, format!("{what}: at most {limit} on this server"))
                .hint("delete or stop what is no longer needed, then ask again"))
        };
        match (self.sandboxes, self.memory, self.disk) {
            (Some(most), ..) if tally.sandboxes + wanted.sandboxes > most => {
                over("sandboxes", most.to_string())
            }
            (_, Some(most), _) if tally.memory.saturating_add(wanted.memory) > most.0 => {
                over("memory", most.to_string())
            }
            (.., Some(most)) if tally.disk.saturating_add(wanted.disk) > most.0 => {
                over("disk", most.to_string())
            }
            _ => Ok(()),
        }
    }
}

/// Refuses what does not fit. The caller holds `counting` until what it makes is counted.
pub(crate) async fn admit(app: &App, wanted: Wanted) -> Result<(), Problem> {
    if let Some(least) = app.quotas.free_memory
        && let Some(free) = free_memory()
        && free < least.0
    {
        let message =
            format!("only {} of memory is free on the host; {least} is kept back", ByteSize(free));
        return Err(Problem::new(Code::OverQuota, message).hint("ask again in a while"));
    }
    if !app.quotas.counts() {
        return Ok(());
    }
    let reply = app.ask_own(Call::Tally).await?;
    let tally: Tally = serde_json::from_value(reply.json()?)
        .map_err(|error| Problem::new(Code::Internal, format!("a tally: {error}")))?;
    app.quotas.check(tally, wanted)
}

/// What the kernel says can be had without swapping.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_that_fits_is_let_in() {
        let quotas = Quotas {
            sandboxes: Some(3),
            memory: Some(ByteSize(100)),
            disk: Some(ByteSize(100)),
            free_memory: None,
        };
        let tally = Tally { sandboxes: 2, running: 1, memory: 60, disk: 60 };
        let wanted = Wanted { sandboxes: 1, memory: 40, disk: 40 };
        assert!(quotas.check(tally, wanted).is_ok());
        for more in [
            Wanted { sandboxes: 2, ..wanted },
            Wanted { memory: 41, ..wanted },
            Wanted { disk: u64::MAX, ..wanted },
        ] {
            assert_eq!(quotas.check(tally, more).unwrap_err().code, Code::OverQuota, "{more:?}");
        }
        assert!(free_memory().unwrap() > 0);
    }
}
