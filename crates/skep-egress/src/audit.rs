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
}

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
        Self { clock, log: Mutex::new(Log { file, size, most: most.max(4096) }) }
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
        };
        let Ok(mut line) = serde_json::to_vec(&entry) else { return };
        line.push(b'\n');
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        // A log that cannot be written must not stop what was allowed, and there is nobody to
        // tell: the file lies on the disk that would have to hold the complaint.
        let _ = log.append(&line);
    }
}

impl Log {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.size + line.len() as u64 > self.most {
            self.drop_older_half()?;
        }
        // One write: lines of several writers never mix in a file opened for appending.
        self.file.write_all(line)?;
        self.size += line.len() as u64;
        Ok(())
    }

    /// In place, because the process holds the file and not its directory.
    fn drop_older_half(&mut self) -> io::Result<()> {
        let keep = self.most / 2;
        let mut rest = vec![0; usize::try_from(keep.min(self.size)).unwrap_or(0)];
        let start = self.size - rest.len() as u64;
        self.file.read_exact_at(&mut rest, start)?;
        let first = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1);
        self.file.set_len(0)?;
        self.file.write_all(&rest[first..])?;
        self.size = (rest.len() - first) as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

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
