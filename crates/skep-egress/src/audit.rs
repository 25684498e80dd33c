//! The egress log: one JSON object per line, bounded in size.

use skep_types::{EgressEntry, EgressVerdict, escape};
use std::fs::File;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, PoisonError};

/// Tells the time, RFC 3339. Passed in: a library has no clock.
pub type Clock = fn() -> String;

/// A name in the log is never longer than this.
const MOST_HOST: usize = 300;

/// Writes lines to a file opened for reading and appending.
pub(crate) struct Audit {
    clock: Clock,
    log: Mutex<Log>,
}

struct Log {
    file: File,
    size: u64,
    most: u64,
    /// The second in which denials were last written, and how many.
    second: (String, u32),
    /// Lines that were not written, or were dropped, since one said so.
    missing: u64,
    /// The last of them.
    unwritten: Option<EgressEntry>,
}

/// Denials that are written in one second; more are counted. Whoever floods the log would push out of it what they
/// were allowed.
const MOST_DENIALS: u32 = 200;

/// What a line is about.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subject {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) ip: Option<IpAddr>,
    pub(crate) proto: &'static str,
    /// The exec that made the connection, where that is certain.
    pub(crate) exec: Option<String>,
}

impl Audit {
    pub(crate) fn new(file: File, most: u64, clock: Clock) -> Self {
        let size = file.metadata().map_or(0, |data| data.len());
        Self { clock, log: Mutex::new(Log::new(file, size, most.max(4096))) }
    }

    pub(crate) fn deny(&self, subject: &Subject, reason: &'static str) {
        self.write(subject, EgressVerdict::Deny, None, Some(reason), (0, 0));
    }

    pub(crate) fn allow(
        &self,
        subject: &Subject,
        rule: &str,
        reason: Option<&'static str>,
        bytes: (u64, u64),
    ) {
        self.write(subject, EgressVerdict::Allow, Some(rule), reason, bytes);
    }

    fn write(
        &self,
        subject: &Subject,
        verdict: EgressVerdict,
        rule: Option<&str>,
        reason: Option<&'static str>,
        (bytes_in, bytes_out): (u64, u64),
    ) {
        let mut host = escape::visible(subject.host.as_bytes());
        if let Some((end, _)) = host.char_indices().nth(MOST_HOST) {
            host.truncate(end);
            host.push('…');
        }
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = EgressEntry {
            at: (self.clock)(),
            exec: subject.exec.clone(),
            host,
            port: subject.port,
            ip: subject.ip,
            proto: subject.proto.into(),
            verdict,
            rule: rule.map(str::to_owned),
            reason: reason.map(str::to_owned),
            bytes_in,
            bytes_out,
            missing: None,
        };
        if verdict == EgressVerdict::Deny && !log.has_room_for_a_denial(&entry.at) {
            log.missing += 1;
            log.unwritten = Some(entry);
            return;
        }
        // A log that cannot be written must not stop what was allowed, and there is nobody to
        // tell: the file lies on the disk that would have to hold the complaint.
        let _ = log.append(entry);
    }

    /// Nothing comes any more: a flood that lasted until the end has one more line, with what is missing.
    pub(crate) fn close(&self) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = log.unwritten.take() {
            log.missing = log.missing.saturating_sub(1);
            let _ = log.append(last);
        }
    }
}

impl Log {
    fn new(file: File, size: u64, most: u64) -> Self {
        Self { file, size, most, second: (String::new(), 0), missing: 0, unwritten: None }
    }

    /// Counts by the seconds of the clock's text.
    fn has_room_for_a_denial(&mut self, at: &str) -> bool {
        let second = at.get(..19).unwrap_or(at);
        if self.second.0 != second {
            self.second = (second.to_owned(), 0);
        }
        self.second.1 += 1;
        self.second.1 <= MOST_DENIALS
    }

    fn append(&mut self, mut entry: EgressEntry) -> io::Result<()> {
        if self.size + LONGEST_LINE > self.most {
            self.drop_older_half()?;
        }
        entry.missing = Some(std::mem::take(&mut self.missing)).filter(|missing| *missing > 0);
        self.unwritten = None;
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        // One write: lines of several writers never mix in a file opened for appending.
        self.file.write_all(&line)?;
        self.size += line.len() as u64;
        Ok(())
    }

    /// In place, because the process holds the file and not its directory. Denials go first: what was
    /// allowed is what left the sandbox.
    fn drop_older_half(&mut self) -> io::Result<()> {
        let mut whole = vec![0; usize::try_from(self.size).unwrap_or(0)];
        self.file.read_exact_at(&mut whole, 0)?;
        let keep = usize::try_from(self.most / 2).unwrap_or(usize::MAX);
        let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
        let kept = newest(&lines, keep);
        let mut rest = Vec::with_capacity(keep);
        for (line, kept) in lines.iter().zip(&kept) {
            if *kept {
                rest.extend_from_slice(line);
            } else {
                self.missing += 1 + missing_before(line);
            }
        }
        self.file.set_len(0)?;
        self.file.write_all(&rest)?;
        self.size = rest.len() as u64;
        Ok(())
    }
}

/// A line is never longer: the host is bounded, and everything else is short.
const LONGEST_LINE: u64 = 2048;

/// Which lines stay within so many bytes: the newest that were allowed in half of it, the newest of the
/// rest in what is left.
fn newest(lines: &[&[u8]], most: usize) -> Vec<bool> {
    let mut kept = vec![false; lines.len()];
    let mut left = most;
    for (allowed, least) in [(true, most / 2), (false, 0), (true, 0)] {
        for (at, line) in lines.iter().enumerate().rev() {
            if kept[at] || was_allowed(line) != allowed {
                continue;
            }
            if left < least + line.len() {
                break;
            }
            left -= line.len();
            kept[at] = true;
        }
    }
    kept
}

fn was_allowed(line: &[u8]) -> bool {
    let entry = serde_json::from_slice::<EgressEntry>(line);
    entry.is_ok_and(|entry| entry.verdict == EgressVerdict::Allow)
}

fn missing_before(line: &[u8]) -> u64 {
    serde_json::from_slice::<EgressEntry>(line).ok().and_then(|entry| entry.missing).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    #[test]
    fn a_flood_of_denials_does_not_push_out_what_was_allowed_and_is_counted() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static SECOND: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("egress.jsonl");
        let file = OpenOptions::new().read(true).append(true).create(true).open(&path).unwrap();
        let clock = || format!("2026-01-01T00:00:{:02}.5Z", SECOND.load(Ordering::Relaxed));
        let audit = Audit::new(file, 64 << 10, clock);
        let subject = |host: &str| Subject {
            host: host.into(),
            port: 443,
            proto: "tls",
            ..Subject::default()
        };
        audit.allow(&subject("sent.test"), "sent.test", None, (1, 2));
        let (seconds, each) = (20u32, 500u32);
        for second in 0..seconds {
            SECOND.store(second, Ordering::Relaxed);
            for _ in 0..each {
                audit.deny(&subject("flood.test"), "not-allowed");
            }
        }
        SECOND.store(58, Ordering::Relaxed);
        audit.deny(&subject("last.test"), "not-allowed");
        // A flood that nothing follows is counted when the log is closed.
        SECOND.store(59, Ordering::Relaxed);
        for _ in 0..each {
            audit.deny(&subject("flood.test"), "not-allowed");
        }
        audit.close();
        audit.close();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.len() <= 64 << 10);
        let entries: Vec<EgressEntry> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(entries[0].host, "sent.test", "pushed out");
        let missing: u64 = entries.iter().filter_map(|entry| entry.missing).sum();
        assert_eq!(entries.len() as u64 + missing, u64::from((seconds + 1) * each) + 2);
    }

    #[test]
    fn net_19_hostile_names_stay_in_one_line_and_the_log_stays_small() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("egress.jsonl");
        let file = OpenOptions::new().read(true).append(true).create(true).open(&path).unwrap();
        let audit = Audit::new(file, 8192, || "2026-01-01T00:00:00Z".into());
        let evil = "a\n{\"verdict\":\"allow\"}\x1b[2J\u{202e}".to_owned();
        let subject =
            Subject { host: evil + &"x".repeat(1000), port: 1, proto: "dns", ..Subject::default() };
        for _ in 0..100 {
            audit.deny(&subject, "not-allowed");
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.len() <= 8192 && text.lines().count() > 3);
        for line in text.lines() {
            let entry: EgressEntry = serde_json::from_str(line).unwrap();
            assert_eq!(entry.verdict, EgressVerdict::Deny);
            assert!(entry.host.starts_with("a\\n{") && !entry.host.contains('\u{202e}'));
        }
    }
}
