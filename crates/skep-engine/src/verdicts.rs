//! Egress verdicts of all sandboxes, counted from their logs as these grow: for the figures of a server.

use crate::Layout;
use crate::egress::LOG;
use crate::reconcile::directory_names;
use skep_types::{EgressEntry, SandboxId};
use std::collections::{HashMap, HashSet};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// Read of one log in one look; what is left is read in the next.
const PIECE: u64 = 4 << 20;
/// In which the last line of a log begins: none is longer than a quarter of it.
const TAIL: u64 = 8 << 10;

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
    /// From the end of every log on: what lies in them when a server starts is not its own. Only their
    /// ends are read.
    pub fn start(layout: &Layout) -> Self {
        let mut verdicts = Self::default();
        for id in sandboxes(layout) {
            if let Ok(place) = end_of(&layout.sandbox(&id).join(LOG)) {
                verdicts.counted.insert(id, place);
            }
        }
        verdicts
    }

    /// Tells what came to all logs since the last look, a log at a time. Lines that were not written stay a
    /// number before the line that says so ([`EgressEntry::missing`]): a sandbox can be denied millions of times.
    pub fn look(&mut self, layout: &Layout, tell: &mut dyn FnMut(&EgressEntry)) {
        let there = sandboxes(layout);
        self.counted.retain(|id, _| there.contains(id));
        for id in &there {
            self.look_at(layout, id, tell);
        }
    }

    /// The same of one.
    pub fn look_at(&mut self, layout: &Layout, id: &SandboxId, tell: &mut dyn FnMut(&EgressEntry)) {
        let path = layout.sandbox(id).join(LOG);
        let Ok(length) = std::fs::metadata(&path).map(|found| found.len()) else { return };
        let place = self.counted.entry(id.clone()).or_default();
        if length == place.bytes {
            return;
        }
        // It was cut: its older half is gone, and what stayed is counted but for what is newer.
        let cut = length < place.bytes;
        let from = if cut { 0 } else { place.bytes };
        let Ok(bytes) = read(&path, from) else { return };
        let bytes = whole_lines(&bytes);
        let before = place.last.clone();
        for line in bytes.split(|byte| *byte == b'\n') {
            let Ok(mut entry) = serde_json::from_slice::<EgressEntry>(line) else { continue };
            if cut {
                if entry.at <= before {
                    continue;
                }
                // Among the missing are those that were dropped now, and counted before.
                entry.missing = None;
            }
            tell(&entry);
            place.last = entry.at;
        }
        place.bytes = from + bytes.len() as u64;
    }
}

fn sandboxes(layout: &Layout) -> HashSet<SandboxId> {
    directory_names(&layout.sandboxes()).iter().filter_map(|name| name.parse().ok()).collect()
}

/// A line that is being written is left for the next look.
fn whole_lines(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    &bytes[..end]
}

/// Behind the last whole line of a log.
fn end_of(path: &Path) -> std::io::Result<Place> {
    let from = std::fs::metadata(path)?.len().saturating_sub(TAIL);
    let bytes = read(path, from)?;
    let bytes = whole_lines(&bytes);
    let last = bytes.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let last = serde_json::from_slice::<EgressEntry>(last).map_or_else(|_| String::new(), |e| e.at);
    Ok(Place { bytes: from + bytes.len() as u64, last })
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
    use skep_types::EgressVerdict;

    fn line(at: u32, verdict: &str, missing: Option<u64>) -> String {
        let missing = missing.map_or(String::new(), |count| format!(",\"missing\":{count}"));
        format!("{{\"at\":\"2026-01-01T00:00:{at:02}Z\",\"verdict\":\"{verdict}\"{missing}}}\n")
    }

    fn count(verdicts: &mut Verdicts, layout: &Layout) -> (Vec<EgressVerdict>, u64) {
        let (mut written, mut missing) = (Vec::new(), 0);
        verdicts.look(layout, &mut |entry| {
            written.push(entry.verdict);
            missing += entry.missing.unwrap_or(0);
        });
        (written, missing)
    }

    #[test]
    fn each_line_is_counted_once() {
        use EgressVerdict::{Allow, Deny};
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::open(folder.path(), || Ok(())).unwrap();
        let id = SandboxId::from_random([1; 10]);
        let log = layout.sandbox(&id).join(LOG);
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        std::fs::write(&log, line(1, "allow", None)).unwrap();
        let mut verdicts = Verdicts::start(&layout);
        assert_eq!(count(&mut verdicts, &layout), (vec![], 0), "what was there before");
        let half = line(3, "deny", None);
        let (half, rest) = half.split_at(10);
        let first = format!("{}{}", line(1, "allow", None), line(2, "deny", Some(2)));
        std::fs::write(&log, format!("{first}{half}")).unwrap();
        assert_eq!(count(&mut verdicts, &layout), (vec![Deny], 2));
        assert_eq!(count(&mut verdicts, &layout), (vec![], 0), "half a line");
        std::fs::write(&log, format!("{first}{half}{rest}")).unwrap();
        assert_eq!(count(&mut verdicts, &layout), (vec![Deny], 0));
        // Cut: what was counted is not counted again, nor what was dropped.
        std::fs::write(&log, format!("{}{}", line(3, "deny", None), line(4, "allow", Some(2))))
            .unwrap();
        assert_eq!(count(&mut verdicts, &layout), (vec![Allow], 0));
        std::fs::remove_dir_all(layout.sandbox(&id)).unwrap();
        assert_eq!(count(&mut verdicts, &layout), (vec![], 0));
        assert!(verdicts.counted.is_empty());
    }

    /// A server of a sandbox that was denied without pause ran out of memory over it, and could not be
    /// started again.
    #[test]
    fn a_flood_of_denials_is_a_number_and_nothing_that_grows_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::open(folder.path(), || Ok(())).unwrap();
        let id = SandboxId::from_random([1; 10]);
        let log = layout.sandbox(&id).join(LOG);
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        let flood = u64::from(u32::MAX) * 1000;
        let old = line(1, "deny", Some(flood)).repeat(500);
        let half = line(2, "deny", None);
        let (half, rest) = half.split_at(10);
        std::fs::write(&log, format!("{old}{half}")).unwrap();
        let mut verdicts = Verdicts::start(&layout);
        assert_eq!(verdicts.counted[&id].bytes, old.len() as u64);
        let more = line(3, "deny", Some(flood));
        std::fs::write(&log, format!("{old}{half}{rest}{more}")).unwrap();
        assert_eq!(count(&mut verdicts, &layout), (vec![EgressVerdict::Deny; 2], flood));
    }
}
