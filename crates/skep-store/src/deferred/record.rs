//! The record of one sandbox that the database has not seen yet: a file with a line for each version
//! of its row. The first has the row; the others have what became of it, where that is all that changed.
//!
//! Whoever writes a line, and whoever takes the record in, holds the file's lock for that moment. A
//! record that was taken in has no name any more, which its writer sees before the next line.

use crate::value::{checksum, decode};
use crate::{NewEvent, Result, StoreError};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use skep_types::{
    EnforcementReport, Exec, ExecEnd, ExecId, KeeperIdentity, Sandbox, SandboxState,
    WorkspaceDriver,
};
use std::borrow::Cow;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Whoever holds the lock of a record writes a line or a transaction; one that was stopped over it is
/// not waited for any longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A record of a run is some kilobytes; a command line may be two mebibytes.
const LARGEST: u64 = 64 << 20;
/// Room for a line that is not larger than most.
const USUAL: usize = 8 << 10;
/// Digits of its checksum.
const SUM: usize = 16;

/// What one change of a sandbox wrote: the row as it is since, and what came with it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    pub sandbox: Sandbox,
    pub begun: Vec<Exec>,
    pub ended: Vec<(ExecId, ExecEnd, NewEvent)>,
    pub events: Vec<NewEvent>,
}

/// A line: a row, or what became of the one before it, and what came with it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sandbox: Option<Cow<'a, Sandbox>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    amended: Option<Amendment<'a>>,
    #[serde(default, skip_serializing_if = "<[Exec]>::is_empty")]
    begun: Cow<'a, [Exec]>,
    #[serde(default, skip_serializing_if = "<[Ended]>::is_empty")]
    ended: Cow<'a, [Ended]>,
    #[serde(default, skip_serializing_if = "<[NewEvent]>::is_empty")]
    events: Cow<'a, [NewEvent]>,
}

type Ended = (ExecId, ExecEnd, NewEvent);

/// All that changes of a row in the life of a plain run.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Amendment<'a> {
    version: u64,
    state: SandboxState,
    state_reason: Option<Cow<'a, str>>,
    driver: WorkspaceDriver,
    keeper: Option<Cow<'a, KeeperIdentity>>,
    updated_at: Cow<'a, str>,
    /// Where it is another one than before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    enforcement: Option<Cow<'a, EnforcementReport>>,
}

impl<'a> Amendment<'a> {
    /// `None` if more has changed than this can tell.
    fn between(before: &Sandbox, after: &'a Sandbox) -> Option<Self> {
        // All of them by name: one that comes later has to be put on one side or the other.
        #[rustfmt::skip]
        let Sandbox {
            id, name, provider, project, base, policy, layers, hidden, labels, created_at,
            version, state, state_reason, driver, keeper, updated_at, enforcement,
        } = after;
        let same = (id, name, provider, project, created_at)
            == (&before.id, &before.name, &before.provider, &before.project, &before.created_at)
            && (base, policy, layers, hidden, labels)
                == (&before.base, &before.policy, &before.layers, &before.hidden, &before.labels);
        same.then(|| Self {
            version: *version,
            state: *state,
            state_reason: state_reason.as_deref().map(Cow::Borrowed),
            driver: *driver,
            keeper: keeper.as_ref().map(Cow::Borrowed),
            updated_at: Cow::Borrowed(updated_at),
            enforcement: (*enforcement != before.enforcement).then_some(Cow::Borrowed(enforcement)),
        })
    }

    fn apply(self, row: &mut Sandbox) {
        let Self { version, state, state_reason, driver, keeper, updated_at, enforcement } = self;
        (row.version, row.state, row.driver) = (version, state, driver);
        row.state_reason = state_reason.map(Cow::into_owned);
        row.keeper = keeper.map(Cow::into_owned);
        row.updated_at = updated_at.into_owned();
        if let Some(enforcement) = enforcement {
            row.enforcement = enforcement.into_owned();
        }
    }
}

/// A record as it is read: what each version brought with it, and the row as it is since the last.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Story {
    pub row: Sandbox,
    pub moves: Vec<Moves>,
}

/// What came with one version of a row; the first is 1.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Moves {
    pub version: u64,
    pub begun: Vec<Exec>,
    pub ended: Vec<(ExecId, ExecEnd, NewEvent)>,
    pub events: Vec<NewEvent>,
}

/// A record that is open.
#[derive(Debug)]
pub(crate) struct Record {
    file: File,
    path: PathBuf,
}

/// What can be done with a record while its lock is held.
pub(crate) struct Held<'a>(&'a Record);

impl Record {
    /// Begins the record of a sandbox, in the blank one if there is one. On error there is none.
    pub(crate) fn create(directory: &Path, blank: Option<&Path>, first: &Step) -> io::Result<Self> {
        let path = directory.join(first.sandbox.id.as_str());
        let moved = blank.is_some_and(|blank| move_new(blank, &path).is_ok());
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create_new(!moved).mode(0o600).open(&path)?;
        let record = Self { file, path };
        let written = record.hold().and_then(|held| match held {
            Some(held) => held.append(first, None),
            None => Err(io::ErrorKind::NotFound.into()),
        });
        if written.is_err() {
            let _ = fs::remove_file(&record.path);
        }
        written.map(|()| record)
    }

    /// Opens one to take it in; `None` if somebody else has done so.
    pub(crate) fn open(path: &Path) -> io::Result<Option<Self>> {
        match OpenOptions::new().read(true).append(true).open(path) {
            Ok(file) => Ok(Some(Self { file, path: path.to_owned() })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Its name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes its lock; `None` if it was taken in.
    pub(crate) fn hold(&self) -> io::Result<Option<Held<'_>>> {
        self.hold_within(PATIENCE)
    }

    /// The same for whoever keeps others waiting meanwhile.
    pub(crate) fn hold_within(&self, patience: Duration) -> io::Result<Option<Held<'_>>> {
        let deadline = Instant::now() + patience;
        loop {
            match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let held = Held(self);
        Ok((self.file.metadata()?.nlink() > 0).then_some(held))
    }

    /// Whether nobody has taken it in.
    pub(crate) fn is_ours(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() > 0)
    }
}

impl Held<'_> {
    /// Adds a line to the one that tells of the row `before`. On error the record is as it was.
    pub(crate) fn append(&self, step: &Step, before: Option<&Sandbox>) -> io::Result<()> {
        let Step { sandbox, begun, ended, events } = step;
        let amended = before.and_then(|before| Amendment::between(before, sandbox));
        let told = Line {
            sandbox: amended.is_none().then_some(Cow::Borrowed(sandbox)),
            amended,
            begun: Cow::Borrowed(begun),
            ended: Cow::Borrowed(ended),
            events: Cow::Borrowed(events),
        };
        // The checksum stands before what it is of.
        let mut line = Vec::with_capacity(USUAL);
        line.extend_from_slice(&[b' '; SUM + 1]);
        serde_json::to_writer(&mut line, &told)?;
        let sum = checksum(&line[SUM + 1..]);
        write!(&mut line[..SUM], "{sum:0SUM$x}")?;
        line.push(b'\n');
        let mut file = &self.0.file;
        let before = file.metadata()?.len();
        file.write_all(&line).inspect_err(|_| {
            // Half a line would be taken for the beginning of the next one.
            let _ = file.set_len(before);
        })
    }

    /// Everything that was written; `None` if that is nothing. An end without its line feed was never
    /// finished.
    pub(crate) fn story(&self) -> Result<Option<Story>> {
        let mut bytes = Vec::new();
        let mut file = &self.0.file;
        if file.metadata().is_ok_and(|found| !found.is_file() || found.len() > LARGEST) {
            return Err(self.damaged("it is no record of a run".into()));
        }
        file.rewind()
            .and_then(|()| file.read_to_end(&mut bytes))
            .map_err(|source| self.failed("read", source))?;
        parse(&bytes).map_err(|detail| self.damaged(detail))
    }

    /// It was taken in.
    pub(crate) fn remove(&self) -> Result<()> {
        fs::remove_file(&self.0.path).map_err(|source| self.failed("remove", source))
    }

    fn failed(&self, operation: &'static str, source: io::Error) -> StoreError {
        StoreError::Io { operation, path: self.0.path.clone(), source }
    }

    fn damaged(&self, detail: String) -> StoreError {
        let name = self.0.path.file_name().unwrap_or_default();
        StoreError::Damaged { table: "runs", id: name.to_string_lossy().into_owned(), detail }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let _ = flock(&self.0.file, FlockOperation::Unlock);
    }
}

/// Renames a file to where nothing is.
fn move_new(from: &Path, to: &Path) -> rustix::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)
}

/// The lines of a record. Each is the next version of the same sandbox.
fn parse(bytes: &[u8]) -> std::result::Result<Option<Story>, String> {
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let text = std::str::from_utf8(&bytes[..whole]).map_err(|error| error.to_string())?;
    let (mut now, mut moves) = (None, Vec::new());
    for (line, version) in text.lines().zip(1..) {
        let Line { sandbox, amended, begun, ended, events } = value_of(line)?;
        match (sandbox, amended, &mut now) {
            (Some(row), None, _) => now = Some(row.into_owned()),
            (None, Some(amended), Some(row)) => amended.apply(row),
            _ => return Err("a line does not tell of one row".into()),
        }
        let (begun, ended, events) = (begun.into_owned(), ended.into_owned(), events.into_owned());
        moves.push(Moves { version, begun, ended, events });
    }
    let Some(row) = now else { return Ok(None) };
    match row.version == moves.len() as u64 {
        true => Ok(Some(Story { row, moves })),
        false => Err("lines are missing".into()),
    }
}

fn value_of<T: DeserializeOwned>(line: &str) -> std::result::Result<T, String> {
    let (sum, value) = line.split_once(' ').ok_or("a line has no checksum")?;
    let sum = u64::from_str_radix(sum, 16).map_err(|error| error.to_string())?;
    decode("runs", "", value, sum as i64).map_err(|error| skep_types::chain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::sample;

    fn steps(number: u64) -> Vec<Step> {
        let step = |version| {
            let mut sandbox = sample::sandbox(1, "one");
            sandbox.version = version;
            Step { sandbox, begun: Vec::new(), ended: Vec::new(), events: Vec::new() }
        };
        (1..=number).map(step).collect()
    }

    fn written(steps: &[Step]) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let record = Record::create(directory.path(), None, &steps[0]).unwrap();
        for (before, step) in steps.iter().zip(&steps[1..]) {
            record.hold().unwrap().unwrap().append(step, Some(&before.sandbox)).unwrap();
        }
        fs::read(record.path()).unwrap()
    }

    #[test]
    fn a_record_is_read_as_far_as_it_was_finished() {
        let steps = steps(3);
        let bytes = written(&steps);
        let rows = |bytes: &[u8]| parse(bytes).unwrap().map(|story| story.row);
        assert_eq!(rows(&bytes), Some(steps[2].sandbox.clone()));
        let lines: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] == b'\n').collect();
        for cut in 0..bytes.len() {
            let whole = lines.iter().filter(|end| **end < cut).count();
            let expected = whole.checked_sub(1).map(|last| steps[last].sandbox.clone());
            assert_eq!(rows(&bytes[..cut]), expected, "cut at {cut}");
        }
    }

    #[test]
    fn a_line_tells_what_has_become_of_a_row_or_all_of_it() {
        let mut steps = steps(5);
        steps[1].sandbox.state = SandboxState::Ready;
        steps[1].sandbox.enforcement = EnforcementReport::default();
        steps[1].sandbox.keeper = None;
        steps[2].sandbox = Sandbox { version: 3, ..steps[1].sandbox.clone() };
        steps[2].sandbox.state_reason = Some("a reason".into());
        // More than a line can tell of without the row.
        steps[3].sandbox.labels.insert("more".into(), "words".into());
        steps[4].sandbox = Sandbox { version: 5, ..steps[3].sandbox.clone() };
        let bytes = written(&steps);
        let ends: Vec<usize> = (1..=bytes.len()).filter(|end| bytes[end - 1] == b'\n').collect();
        for (end, step) in ends.iter().zip(&steps) {
            assert_eq!(parse(&bytes[..*end]).unwrap().unwrap().row, step.sandbox);
        }
        let whole: Vec<bool> =
            bytes.split(|byte| *byte == b'\n').map(|line| line.len() > ends[0] / 2).collect();
        assert_eq!(whole, [true, false, false, true, false, false]);
        // What became of a row that nobody tells of is nobody's.
        assert!(parse(&bytes[ends[0]..]).is_err());
    }

    #[test]
    fn a_flipped_bit_is_no_other_sandbox() {
        let bytes = written(&steps(2));
        for at in (0..bytes.len()).step_by(7) {
            let mut other = bytes.clone();
            other[at] ^= 4;
            // The last line feed may be what was flipped: then the line was never finished.
            let read = parse(&other);
            let short = |read: Option<Story>| read.is_none_or(|story| story.moves.len() < 2);
            assert!(read.is_err() || short(read.unwrap()), "byte {at}");
        }
    }

    #[test]
    fn a_blank_one_is_used_once_and_never_in_anothers_place() {
        let directory = tempfile::tempdir().unwrap();
        let (blank, runs) = (directory.path().join("blank"), directory.path().join("runs"));
        fs::create_dir(&runs).unwrap();
        fs::write(&blank, "").unwrap();
        let inode = fs::metadata(&blank).unwrap().ino();
        let steps = steps(1);
        let record = Record::create(&runs, Some(&blank), &steps[0]).unwrap();
        assert_eq!(fs::metadata(record.path()).unwrap().ino(), inode);
        assert!(!blank.exists() && record.is_ours().unwrap());
        let before = fs::read(record.path()).unwrap();
        fs::write(&blank, "").unwrap();
        assert!(Record::create(&runs, Some(&blank), &steps[0]).is_err());
        assert_eq!((fs::read(record.path()).unwrap(), blank.exists()), (before, true));
    }

    #[test]
    fn one_that_was_taken_in_takes_no_more_lines() {
        let directory = tempfile::tempdir().unwrap();
        let steps = steps(2);
        let record = Record::create(directory.path(), None, &steps[0]).unwrap();
        assert!(Record::create(directory.path(), None, &steps[0]).is_err());
        let other = Record::open(record.path()).unwrap().unwrap();
        other.hold().unwrap().unwrap().remove().unwrap();
        assert!(record.hold().unwrap().is_none());
        assert!(!record.is_ours().unwrap());
        assert!(Record::open(record.path()).unwrap().is_none());
    }
}
