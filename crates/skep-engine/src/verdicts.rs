//! Egress verdicts of all sandboxes, counted from their logs as these grow: for the figures of a server.

use crate::Layout;
use crate::egress::LOG;
use crate::reconcile::directory_names;
use skep_types::{EgressEntry, EgressVerdict, SandboxId};
use std::collections::HashMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// Read of one log in one look; what is left is read in the next.
const PIECE: u64 = 4 << 20;

/// How far each log was counted.
#[derive(Debug, Default)]
pub struct Verdicts {
    counted: HashMap<SandboxId, Place>,
}

#[derive(Debug, Clone, Default)]
struct Place {
    bytes: u64,
    /// When the last line was written that was counted: a log that has become shorter holds it still, or
    /// only newer ones.
    last: String,
}

impl Verdicts {
    /// What the logs say that was not counted yet. What lies in them when a server starts is not its own.
    pub fn start(layout: &Layout) -> Self {
        let mut verdicts = Self::default();
        while !verdicts.look(layout).is_empty() {}
        verdicts
    }

    /// What came to all logs since the last look.
    pub fn look(&mut self, layout: &Layout) -> Vec<EgressEntry> {
        let names = directory_names(&layout.sandboxes());
        let there: Vec<SandboxId> = names.iter().filter_map(|name| name.parse().ok()).collect();
        self.counted.retain(|id, _| there.contains(id));
        there.iter().flat_map(|id| self.look_at(layout, id)).collect()
    }

    /// The same of one.
    pub fn look_at(&mut self, layout: &Layout, id: &SandboxId) -> Vec<EgressEntry> {
        let path = layout.sandbox(id).join(LOG);
        let Ok(length) = std::fs::metadata(&path).map(|found| found.len()) else {
            return Vec::new();
        };
        let place = self.counted.entry(id.clone()).or_default();
        if length == place.bytes {
            return Vec::new();
        }
        // It was cut: its older half is gone, and what stayed is counted but for what is newer.
        let cut = length < place.bytes;
        let from = if cut { 0 } else { place.bytes };
        let Ok(bytes) = read(&path, from) else { return Vec::new() };
        // A line that is being written is left for the next look.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let lines = bytes[..whole].split(|byte| *byte == b'\n');
        let mut new: Vec<EgressEntry> =
            lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        if cut {
            new.retain(|entry| entry.at > place.last);
            // Among the missing are those that were dropped now, and counted before.
            new.iter_mut().for_each(|entry| entry.missing = None);
        }
        place.bytes = from + whole as u64;
        if let Some(last) = new.last() {
            place.last.clone_from(&last.at);
        }
        new.into_iter().flat_map(with_missing).collect()
    }
}

/// Lines that were not written are denials beyond what a second may write.
fn with_missing(mut entry: EgressEntry) -> impl Iterator<Item = EgressEntry> {
    let missing = entry.missing.take().unwrap_or(0);
    let unwritten = EgressEntry {
        proto: "unwritten".into(),
        verdict: EgressVerdict::Deny,
        ..EgressEntry::default()
    };
    std::iter::repeat_n(unwritten, usize::try_from(missing).unwrap_or(0)).chain([entry])
}

fn read(path: &Path, from: u64) -> std::io::Result<Vec<u8>> {
    let mut file = std::fs::File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(PIECE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at: u32, verdict: &str, missing: Option<u64>) -> String {
        let missing = missing.map_or(String::new(), |count| format!(",\"missing\":{count}"));
        format!("{{\"at\":\"2026-01-01T00:00:{at:02}Z\",\"verdict\":\"{verdict}\"{missing}}}\n")
    }

    #[test]
    fn each_line_is_counted_once() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::open(folder.path(), || Ok(())).unwrap();
        let id = SandboxId::from_random([1; 10]);
        let log = layout.sandbox(&id).join(LOG);
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        std::fs::write(&log, line(1, "allow", None)).unwrap();
        let mut verdicts = Verdicts::start(&layout);
        assert!(verdicts.look(&layout).is_empty(), "what was there before");
        let half = line(3, "deny", None);
        let (half, rest) = half.split_at(10);
        let first = format!("{}{}", line(1, "allow", None), line(2, "deny", Some(2)));
        std::fs::write(&log, format!("{first}{half}")).unwrap();
        let new = verdicts.look(&layout);
        assert_eq!(new.len(), 3, "one that was written, two that were not: {new:?}");
        assert!(verdicts.look(&layout).is_empty(), "half a line");
        std::fs::write(&log, format!("{first}{half}{rest}")).unwrap();
        assert_eq!(verdicts.look(&layout).len(), 1);
        // Cut: what was counted is not counted again, nor what was dropped.
        std::fs::write(&log, format!("{}{}", line(3, "deny", None), line(4, "allow", Some(2))))
            .unwrap();
        let new = verdicts.look(&layout);
        assert_eq!(
            new.iter().map(|entry| entry.verdict).collect::<Vec<_>>(),
            [EgressVerdict::Allow]
        );
        std::fs::remove_dir_all(layout.sandbox(&id)).unwrap();
        assert!(verdicts.look(&layout).is_empty() && verdicts.counted.is_empty());
    }
}
