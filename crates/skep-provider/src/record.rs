//! Execs that were written down beside the sandbox and not yet in the store.
//!
//! Whoever asks a keeper directly has not opened the store, so the keeper writes the record that the
//! row would have been: before the command starts, into `begun/<exec>` of the sandbox's directory.
//! Its end is a second line of the same file. The engine takes such records in when it opens (see
//! `docs/design/exec-records.md`): the row first, then the file moves to `execs/<exec>.record`. The
//! keeper has the file open and writes the end into it wherever it is.
//!
//! So that nobody has to look into every sandbox for news, an empty file in the state directory,
//! `news/<sandbox>`, says where to look. It is made after the record and before the start.
//!
//! A line without its end was never finished: an exec whose first line is such did not start, and one
//! whose second line is such has no end.

use serde::{Deserialize, Serialize};
use skep_types::{ExecEnd, ExecId, ExecSpec, SandboxId};
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What was asked for, and when.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Begun {
    /// What it runs.
    pub spec: ExecSpec,
    /// When it was asked for (RFC 3339).
    pub started_at: String,
}

/// A record that waits to be taken in.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Of which exec.
    pub exec: ExecId,
    /// What was asked for.
    pub begun: Begun,
    /// How it ended, if it has.
    pub end: Option<ExecEnd>,
}

/// What an end takes; one with a long message or many refused calls may be longer.
const ROOM: u64 = 4096;

/// The record of one running exec.
#[derive(Debug)]
pub struct Recording {
    file: File,
}

impl Recording {
    /// Writes that an exec is about to start. On error nothing is left.
    pub fn begin(directory: &Path, exec: &ExecId, begun: &Begun) -> io::Result<Self> {
        let path = waiting_in(directory).join(exec.as_str());
        let mut file = new_file(&path)?;
        let written = write_line(&mut file, begun)
            .and_then(|()| make_room(&file))
            .and_then(|()| announce(directory));
        if let Err(error) = written {
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok(Self { file })
    }

    /// Writes how it ended.
    pub fn end(&mut self, end: &ExecEnd) -> io::Result<()> {
        write_line(&mut self.file, end)
    }
}

/// Where the state directory says which sandboxes have records that wait.
pub fn news_in(state: &Path) -> PathBuf {
    state.join("news")
}

/// Records of a sandbox that wait, in no order. What cannot be read is left where it is.
pub fn waiting(directory: &Path) -> io::Result<Vec<Record>> {
    let entries = match std::fs::read_dir(waiting_in(directory)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut records = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let Some(exec) = name.to_str().and_then(|name| name.parse::<ExecId>().ok()) else {
            continue;
        };
        let bytes = match std::fs::read(waiting_in(directory).join(exec.as_str())) {
            // Somebody else has taken it in meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            other => other?,
        };
        if let Some((begun, end)) = parse(&bytes) {
            records.push(Record { exec, begun, end });
        }
    }
    Ok(records)
}

/// A record is in the store: it goes to the exec's other files. Succeeds if it is there already.
pub fn taken_in(directory: &Path, exec: &ExecId) -> io::Result<()> {
    let from = waiting_in(directory).join(exec.as_str());
    match std::fs::rename(from, settled(directory, exec)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The end in a record that was taken in; `None` if there is none, or no such record.
pub fn end_of(directory: &Path, exec: &ExecId) -> io::Result<Option<ExecEnd>> {
    match std::fs::read(settled(directory, exec)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(bytes) => Ok(parse(&bytes).and_then(|(_, end)| end)),
    }
}

fn waiting_in(directory: &Path) -> PathBuf {
    directory.join("begun")
}

fn settled(directory: &Path, exec: &ExecId) -> PathBuf {
    directory.join("execs").join(format!("{exec}.record"))
}

/// Says that this sandbox has news. The sandbox's directory is `sandboxes/<id>`.
fn announce(directory: &Path) -> io::Result<()> {
    let (Some(id), Some(state)) = (directory.file_name(), directory.ancestors().nth(2)) else {
        return Err(ErrorKind::InvalidInput.into());
    };
    match new_file(&news_in(state).join(id)) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// The sandbox that a file in `news` is about: its id, and a point and a word while it is looked at.
pub fn sandbox_of(name: &str) -> Option<SandboxId> {
    name.split('.').next()?.parse().ok()
}

/// A new file in a directory that is made if need be.
fn new_file(path: &Path) -> io::Result<File> {
    let open = || File::options().write(true).create_new(true).mode(0o600).open(path);
    match (open(), path.parent()) {
        (Err(error), Some(parent)) if error.kind() == ErrorKind::NotFound => {
            match DirBuilder::new().mode(0o700).create(parent) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
                _ => open(),
            }
        }
        (opened, _) => opened,
    }
}

/// Room for the end behind what a file holds, so that it can be written on a disk that has become full.
/// Where the filesystem cannot promise it, it is tried when the time comes.
pub fn make_room(file: &File) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    let written = file.metadata()?.len();
    match fallocate(file, FallocateFlags::KEEP_SIZE, written, ROOM) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        other => Ok(other?),
    }
}

fn write_line(file: &mut File, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    file.write_all(&line)
}

fn parse(bytes: &[u8]) -> Option<(Begun, Option<ExecEnd>)> {
    let at = bytes.iter().position(|byte| *byte == b'\n')?;
    let begun = serde_json::from_slice(&bytes[..at]).ok()?;
    let end = bytes[at + 1..].strip_suffix(b"\n");
    Some((begun, end.and_then(|line| serde_json::from_slice(line).ok())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end() -> ExecEnd {
        ExecEnd::exited(3)
    }

    #[test]
    fn a_record_waits_moves_and_keeps_its_end() {
        let state = tempfile::tempdir().unwrap();
        let id = SandboxId::from_random([1; 10]);
        let directory = state.path().join("sandboxes").join(id.as_str());
        std::fs::create_dir_all(directory.join("execs")).unwrap();
        let exec = ExecId::from_random([2; 10]);
        let begun = Begun { spec: ExecSpec::default(), started_at: "2026-01-01T00:00:00Z".into() };
        let mut recording = Recording::begin(&directory, &exec, &begun).unwrap();
        assert!(Recording::begin(&directory, &exec, &begun).is_err(), "an id is used once");
        assert_eq!(sandbox_of(id.as_str()), Some(id.clone()));
        assert!(news_in(state.path()).join(id.as_str()).exists());
        let waits = |end| vec![Record { exec: exec.clone(), begun: begun.clone(), end }];
        assert_eq!(waiting(&directory).unwrap(), waits(None));
        // Moved while it runs: the end still gets there.
        taken_in(&directory, &exec).unwrap();
        taken_in(&directory, &exec).unwrap();
        assert_eq!(waiting(&directory).unwrap(), []);
        assert_eq!(end_of(&directory, &exec).unwrap(), None);
        recording.end(&end()).unwrap();
        assert_eq!(end_of(&directory, &exec).unwrap(), Some(end()));
    }

    #[test]
    fn a_torn_line_is_none() {
        let begun = Begun { spec: ExecSpec::default(), started_at: "t".into() };
        let mut bytes = serde_json::to_vec(&begun).unwrap();
        assert_eq!(parse(&bytes), None);
        bytes.push(b'\n');
        assert_eq!(parse(&bytes), Some((begun.clone(), None)));
        bytes.extend(serde_json::to_vec(&end()).unwrap());
        assert_eq!(parse(&bytes), Some((begun.clone(), None)));
        bytes.push(b'\n');
        assert_eq!(parse(&bytes), Some((begun, Some(end()))));
    }
}
