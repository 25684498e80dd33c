//! Memory, processor time and tasks where there is no cgroup: looked at, again and again.
//!
//! A guard, not a limit: between two looks a process may take anything, and memory that nobody has
//! mapped (an open `memfd`) is not seen. The enforcement report says "polled" and "not enforced".

use rustix::process::Pid;
use skep_confine::usage::{anonymous_of, family_of, poll_usage};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(50);
/// However long a look takes, the next one comes no later after it.
const RAREST: Duration = Duration::from_millis(200);
/// Between two times that everyone is held for a look.
const HOLDS: Duration = Duration::from_secs(1);
/// So much memory of the host's comes and goes for other reasons.
const MUCH: u64 = 128 << 20;
/// `statfs` type of filesystems in memory.
const TMPFS: i64 = 0x0102_1994;

/// Looks at the processes of one sandbox.
#[derive(Debug)]
pub struct PolledGuard {
    init: Pid,
    scratch: Vec<PathBuf>,
    next: Instant,
    /// Processor time of all that has run so far. Never falls: the time of a process that nobody
    /// waited for is lost with it, and must not be given back.
    pub cpu: Duration,
    /// Most memory that the host had left, and what was counted then.
    most: (u64, u64),
    /// More is gone than the looks explain: everyone is to be held for a whole one.
    suspects: bool,
    /// But not again before this.
    held_until: Instant,
}

/// What a look has found.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Bytes of memory, private filesystems in memory among them: what the limit is held against.
    pub memory: u64,
    /// The same as figures show it: without what is ours, and without pages of files.
    pub used: u64,
    /// Processor time of the whole sandbox since it started.
    pub cpu: Duration,
    /// Threads.
    pub tasks: u64,
    /// Bytes in filesystems in memory, which are in the numbers above.
    pub stored: u64,
}

impl PolledGuard {
    /// For the sandbox whose number 1 this is. `home` is a filesystem in memory there.
    ///
    /// Without it there are none of the sandbox's own.
    pub fn new(init: Pid, home: Option<&Path>, now: Instant) -> Self {
        let fixed = ["/tmp", "/var", "/var/tmp", "/run", "/dev/shm"].map(PathBuf::from);
        let with = |home: &Path| fixed.into_iter().chain([home.to_owned()]).collect();
        let scratch = home.map(with).unwrap_or_default();
        Self {
            init,
            scratch,
            next: now,
            cpu: Duration::ZERO,
            most: (0, 0),
            suspects: false,
            held_until: now,
        }
    }

    /// Whether everyone is to be held, so that nobody can be missed.
    pub fn wants_all_held(&mut self, now: Instant) -> bool {
        now >= self.held_until && std::mem::take(&mut self.suspects)
    }

    /// A look when nobody can move: what is gone beside what it finds is others'.
    pub fn look_at_held(&mut self, limit: Option<u64>) -> Look {
        let look = self.measure(limit);
        (self.most, self.suspects) = ((available().unwrap_or(0), look.memory), false);
        self.held_until = Instant::now() + HOLDS;
        look
    }

    /// Whoever has another number at every look is never seen; what the host has left shows that
    /// somebody has taken something.
    fn suspect(&mut self, memory: u64, limit: Option<u64>) {
        let (Some(limit), Some(left)) = (limit, available()) else { return };
        if left > self.most.0 {
            self.most = (left, memory);
        }
        let gone = (self.most.0 - left).saturating_add(self.most.1);
        let missing = gone.saturating_sub(memory);
        self.suspects = missing > MUCH && memory.saturating_add(missing) > limit;
    }

    /// When to look next.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Looks, if it is time. `limit` is the memory limit: what is used is found out exactly only if
    /// a rough sum is above it.
    pub fn look(&mut self, now: Instant, limit: Option<u64>) -> Option<Look> {
        if now < self.next {
            return None;
        }
        let look = self.measure(limit);
        self.suspect(look.memory, limit);
        // Looking must stay a small part of the time, but a crowd shall not make it blind.
        self.next = Instant::now() + INTERVAL.max((now.elapsed() * 10).min(RAREST));
        Some(look)
    }

    /// Looks now.
    pub fn measure(&mut self, limit: Option<u64>) -> Look {
        let family = family_of(self.init);
        let usage = poll_usage(&family);
        self.cpu = self.cpu.max(usage.cpu);
        let stored = self.stored(&family);
        let rough = usage.resident.saturating_add(stored);
        // Number 1 shows nothing of itself; it is ours.
        let theirs = family.get(1..).unwrap_or_default();
        let (memory, used) = match rough <= limit.unwrap_or(u64::MAX) {
            true => (rough, anonymous_of(theirs).saturating_add(stored)),
            false => {
                let exact = exact(theirs, stored);
                (exact, exact)
            }
        };
        Look { memory, used, cpu: self.cpu, tasks: usage.threads, stored }
    }

    /// Bytes in the private filesystems in memory, seen through any process inside.
    fn stored(&self, family: &[Pid]) -> u64 {
        for pid in family.iter().skip(1) {
            let root = PathBuf::from(format!("/proc/{}/root", pid.as_raw_nonzero()));
            // One filesystem may be seen at several of these places.
            let sizes: Option<HashMap<u64, u64>> =
                self.scratch.iter().map(|path| used(&inside(&root, path))).collect();
            if let Some(sizes) = sizes {
                return sizes.values().sum();
            }
        }
        0
    }
}

/// Pages that several processes share count in each of them for `resident`: cheap, and never too
/// little. Only if that is too much, the kernel is asked for shares.
pub fn exact(theirs: &[Pid], stored: u64) -> u64 {
    let mut private: u64 = 0;
    let mut shared: u64 = 0;
    for pid in theirs {
        let path = format!("/proc/{}/smaps_rollup", pid.as_raw_nonzero());
        let text = std::fs::read_to_string(path).ok().filter(|text| !text.is_empty());
        let Some(text) = text else {
            // Who runs a program that nobody may read, or has lost its first thread, shows its size and
            // nothing else: all of it is taken for its own. One that is gone has none.
            private = private.saturating_add(poll_usage(&[*pid]).resident);
            continue;
        };
        private = private.saturating_add(field(&text, "Pss_Anon:"));
        shared = shared.saturating_add(field(&text, "Pss_Shmem:"));
    }
    // Mapped pages of the filesystems in memory are in both numbers.
    private.saturating_add(stored.max(shared))
}

/// What the host could still give.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    Some(field(&text, "MemAvailable:")).filter(|bytes| *bytes > 0)
}

fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// The device that a path lies on, and the bytes of memory it takes.
fn used(path: &Path) -> Option<(u64, u64)> {
    let device = rustix::fs::stat(path).ok()?.st_dev;
    let stat = rustix::fs::statfs(path).ok()?;
    let bytes = match stat.f_type == TMPFS {
        true => stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(stat.f_bsize as u64),
        false => 0,
    };
    Some((device, bytes))
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kilobytes = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_rollup_are_kilobytes() {
        let text = "Rss: 5 kB\nPss_Anon:      12 kB\nPss_Shmem: 3 kB\n";
        assert_eq!((field(text, "Pss_Anon:"), field(text, "Pss_Shmem:")), (12_288, 3_072));
        assert_eq!(field(text, "Absent:"), 0);
    }

    #[test]
    fn processor_time_never_falls() {
        let own = rustix::process::getpid();
        let mut guard = PolledGuard::new(own, None, Instant::now());
        guard.cpu = Duration::from_secs(1_000_000);
        assert_eq!(guard.measure(None).cpu, Duration::from_secs(1_000_000));
    }
}
