//! Limits that nobody in the kernel enforces for us: processor time, and the size of the upper.

use skep_confine::cgroup::Group;
use skep_types::Limits;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Faster than any disk here writes: headroom divided by it is the time in which a limit cannot
/// be passed, so looking twice in that time is often enough.
const FASTEST_WRITER: u64 = 2 << 30;
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_secs(2);

/// Watches how much lies in the upper.
#[derive(Debug)]
pub struct DiskGuard {
    upper: PathBuf,
    bytes: Option<u64>,
    inodes: Option<u64>,
    next: Instant,
}

/// What lies in a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Allocated bytes.
    pub bytes: u64,
    /// Entries.
    pub inodes: u64,
}

impl DiskGuard {
    /// A guard for these limits.
    pub fn new(upper: PathBuf, limits: &Limits, now: Instant) -> Self {
        Self { upper, bytes: limits.disk.map(|size| size.0), inodes: limits.inodes, next: now }
    }

    /// When to look next.
    pub fn next(&self) -> Option<Instant> {
        (self.bytes.is_some() || self.inodes.is_some()).then_some(self.next)
    }

    /// Looks, if it is time; says which limit was passed.
    pub fn look(&mut self, now: Instant) -> io::Result<Option<String>> {
        if self.next().is_none_or(|next| now < next) {
            return Ok(None);
        }
        let usage = usage(&self.upper)?;
        let looked = now.elapsed();
        let headroom = self.bytes.map_or(u64::MAX, |limit| limit.saturating_sub(usage.bytes));
        let interval = Duration::from_millis(headroom / (2 * FASTEST_WRITER / 1000))
            .clamp(SHORTEST, LONGEST)
            // Looking costs time in proportion to what is there; it must stay a small part.
            .max(looked * 10);
        self.next = Instant::now() + interval;
        if let Some(limit) = self.bytes.filter(|limit| usage.bytes > *limit) {
            return Ok(Some(format!("{} bytes written of {limit} allowed", usage.bytes)));
        }
        if let Some(limit) = self.inodes.filter(|limit| usage.inodes > *limit) {
            return Ok(Some(format!("{} files made of {limit} allowed", usage.inodes)));
        }
        Ok(None)
    }
}

/// Sums up a tree without following links. Entries that vanish meanwhile are nothing.
pub fn usage(root: &Path) -> io::Result<Usage> {
    use std::os::unix::fs::MetadataExt;
    let mut total = Usage::default();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if directory == root => return Err(error),
            Err(_) => continue,
        };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            total.inodes += 1;
            total.bytes += metadata.blocks() * 512;
            if metadata.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    Ok(total)
}

/// Watches the processor time of one exec.
pub fn cpu_exceeded(group: Option<&Group>, limits: &Limits) -> bool {
    match (limits.cpu_time, group.and_then(Group::cpu_time)) {
        (Some(limit), Some(used)) => used >= limit,
        _ => false,
    }
}

/// When the processor time can have run out at the earliest.
pub fn cpu_next(group: Option<&Group>, limits: &Limits, now: Instant) -> Option<Instant> {
    let used = group.and_then(Group::cpu_time)?;
    let left = limits.cpu_time?.saturating_sub(used);
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    Some(now + (left / processors).max(Duration::from_millis(10)))
}
