//! The audit: one line for every act, appended and never changed.
//!
//! Lines are numbered, so that a missing one is noticed. Whoever is not known writes into a file of
//! their own, which is smaller: by asking often they push out each other's lines, and no act.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A file of acts is put aside when it has grown to this; so many of them are kept.
const FULL: u64 = 64 << 20;
const KEPT: u32 = 8;
/// The same of strangers.
const FULL_OF_STRANGERS: u64 = 8 << 20;
const KEPT_OF_STRANGERS: u32 = 1;
/// Of a path: longer ones are of no sandbox.
const PATH: usize = 256;
/// No line is longer.
const LINE: u64 = 4 << 10;

/// One line.
#[derive(Debug, Serialize)]
pub(crate) struct Line<'a> {
    /// When (RFC 3339).
    pub(crate) at: String,
    /// The id that the answer carried too.
    pub(crate) request_id: &'a str,
    /// Who, once that was known.
    pub(crate) who: Option<&'a str>,
    /// From where.
    pub(crate) from: Option<&'a str>,
    /// What.
    pub(crate) method: &'a str,
    /// To what; without the query.
    pub(crate) path: &'a str,
    /// How it was answered.
    pub(crate) status: u16,
    /// The exec that was started over a WebSocket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exec: Option<&'a str>,
}

#[derive(Serialize)]
struct Numbered<'a> {
    number: u64,
    #[serde(flatten)]
    line: &'a Line<'a>,
}

#[derive(Deserialize)]
struct Number {
    number: u64,
}

/// The files.
#[derive(Debug)]
pub(crate) struct Audit {
    acts: Book,
    strangers: Book,
}

impl Audit {
    /// `audit.jsonl` and `strangers.jsonl` in the state directory.
    pub(crate) fn open(state_dir: &Path) -> io::Result<Self> {
        Ok(Self {
            acts: Book::open(state_dir.join("audit.jsonl"), FULL, KEPT)?,
            strangers: Book::open(
                state_dir.join("strangers.jsonl"),
                FULL_OF_STRANGERS,
                KEPT_OF_STRANGERS,
            )?,
        })
    }

    /// Appends a line. A disk that takes no more is said in the log; the request was answered.
    pub(crate) fn write(&self, line: &Line<'_>) {
        let book = if line.who.is_some() { &self.acts } else { &self.strangers };
        if let Err(error) = book.append(line) {
            tracing::error!(%error, "cannot write the audit");
        }
    }

    /// The files of acts, or of strangers, oldest first.
    pub(crate) fn files(&self, strangers: bool) -> io::Result<Vec<File>> {
        if strangers { self.strangers.files() } else { self.acts.files() }
    }
}

/// One file, with those that were put aside.
#[derive(Debug)]
struct Book {
    path: PathBuf,
    full: u64,
    kept: u32,
    last: Mutex<(File, u64)>,
}

impl Book {
    fn open(path: PathBuf, full: u64, kept: u32) -> io::Result<Self> {
        let mut file = append_to(&path)?;
        let end = end_of(&path)?;
        let number = match end.number {
            Some(number) => number,
            None => end_of(&aside(&path, 1))?.number.unwrap_or(0),
        };
        // A loss of power cut the last line off: what comes next has a line of its own.
        if end.cut {
            file.write_all(b"\n")?;
        }
        Ok(Self { last: Mutex::new((file, number)), path, full, kept })
    }

    fn append(&self, line: &Line<'_>) -> io::Result<()> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, number) = &mut *last;
        // Also if it cannot be written: then its number is missing.
        *number += 1;
        let path = cut(line.path);
        let line = Line { path: &path, at: line.at.clone(), ..*line };
        let mut text = serde_json::to_vec(&Numbered { number: *number, line: &line })?;
        text.push(b'\n');
        let length = file.metadata()?.len();
        if let Err(error) = file.write_all(&text) {
            // No half of a line before the next one.
            let _ = file.set_len(length);
            return Err(error);
        }
        if length + text.len() as u64 > self.full {
            for age in (1..self.kept).rev() {
                let _ = std::fs::rename(aside(&self.path, age), aside(&self.path, age + 1));
            }
            std::fs::rename(&self.path, aside(&self.path, 1))?;
            *file = append_to(&self.path)?;
        }
        Ok(())
    }

    fn files(&self) -> io::Result<Vec<File>> {
        // None is put aside meanwhile: a file would be there twice, or not at all.
        let _last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut files = Vec::new();
        for age in (0..=self.kept).rev() {
            let path = if age == 0 { self.path.clone() } else { aside(&self.path, age) };
            match File::open(path) {
                Ok(file) => files.push(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(files)
    }
}

/// The beginning of a path that is too long.
fn cut(path: &str) -> String {
    if path.len() <= PATH {
        return path.to_owned();
    }
    format!("{}…", &path[..path.floor_char_boundary(PATH)])
}

fn aside(path: &Path, age: u32) -> PathBuf {
    path.with_extension(format!("{age}.jsonl"))
}

/// How a file ends.
#[derive(Default)]
struct End {
    /// The number of its last whole line; lines of older versions have none.
    number: Option<u64>,
    /// Whether a line was begun behind that.
    cut: bool,
}

fn end_of(path: &Path) -> io::Result<End> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(End::default()),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    // One that was cut off may stand behind the last whole one.
    file.seek(SeekFrom::Start(length.saturating_sub(2 * LINE)))?;
    let mut text = Vec::new();
    file.take(2 * LINE).read_to_end(&mut text)?;
    let number = |line: &[u8]| Some(serde_json::from_slice::<Number>(line).ok()?.number);
    let number = text.rsplit(|byte| *byte == b'\n').find_map(number);
    Ok(End { number, cut: text.last().is_some_and(|byte| *byte != b'\n') })
}

fn append_to(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    File::options().append(true).create(true).mode(0o600).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_push_out_no_act_and_numbers_go_on() {
        let directory = tempfile::tempdir().unwrap();
        let line = |who, path| Line {
            at: "2026-01-01T00:00:00Z".into(),
            request_id: "r",
            who,
            from: Some("here"),
            method: "POST",
            path,
            status: 200,
            exec: None,
        };
        let audit = Audit::open(directory.path()).unwrap();
        audit.write(&line(Some("me"), "/important"));
        let long = "ä".repeat(32_000);
        for _ in 0..3000 {
            audit.write(&line(None, &long));
        }
        drop(audit);
        let audit = Audit::open(directory.path()).unwrap();
        audit.write(&line(Some("me"), "/second"));
        let mut text = String::new();
        for mut file in audit.files(false).unwrap() {
            file.read_to_string(&mut text).unwrap();
        }
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let told: Vec<_> =
            lines.iter().map(|line| (line["number"].as_u64().unwrap(), &line["path"])).collect();
        assert_eq!(told, [(1, &"/important".into()), (2, &"/second".into())]);
        let size = |name: &str| std::fs::metadata(directory.path().join(name)).unwrap().len();
        assert!(size("strangers.jsonl") < 3000 * 600, "{}", size("strangers.jsonl"));
    }

    fn numbers(audit: &Audit) -> Vec<Option<u64>> {
        let mut text = String::new();
        for mut file in audit.files(false).unwrap() {
            file.read_to_string(&mut text).unwrap();
        }
        let number = |line: &str| Some(serde_json::from_str::<Number>(line).ok()?.number);
        text.lines().map(number).collect()
    }

    fn act(audit: &Audit) {
        audit.write(&Line {
            at: "2026-01-01T00:00:00Z".into(),
            request_id: "r",
            who: Some("me"),
            from: Some("here"),
            method: "POST",
            path: "/",
            status: 200,
            exec: None,
        });
    }

    /// It took the next act with it, and numbers began anew.
    #[test]
    fn a_line_that_was_cut_off_takes_no_other_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let audit = Audit::open(directory.path()).unwrap();
        act(&audit);
        act(&audit);
        drop(audit);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"{\"number\":3,\"at\":\"2026").unwrap();
        let audit = Audit::open(directory.path()).unwrap();
        act(&audit);
        assert_eq!(numbers(&audit), [Some(1), Some(2), None, Some(3)]);
    }

    /// On a disk without room a line is written whole, or its number is missing.
    #[test]
    fn an_act_that_cannot_be_written_leaves_a_gap_in_the_numbers() {
        let directory = tempfile::tempdir().unwrap();
        let audit = Audit::open(directory.path()).unwrap();
        act(&audit);
        let full = File::options().append(true).open("/dev/full").unwrap();
        let good = std::mem::replace(&mut audit.acts.last.lock().unwrap().0, full);
        act(&audit);
        audit.acts.last.lock().unwrap().0 = good;
        act(&audit);
        assert_eq!(numbers(&audit), [Some(1), Some(3)]);
    }
}
