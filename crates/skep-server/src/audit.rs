//! The audit: one line for every act, appended and never changed.

use serde::Serialize;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A file is put aside when it has grown to this.
const FULL: u64 = 64 << 20;
/// Files put aside that are kept.
const KEPT: u32 = 8;

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
    pub(crate) from: Option<String>,
    /// What.
    pub(crate) method: &'a str,
    /// To what; without the query.
    pub(crate) path: &'a str,
    /// How it was answered.
    pub(crate) status: u16,
}

/// The file.
#[derive(Debug)]
pub(crate) struct Audit {
    path: PathBuf,
    file: Mutex<File>,
}

impl Audit {
    /// `audit.jsonl` in the state directory.
    pub(crate) fn open(state_dir: &Path) -> io::Result<Self> {
        let path = state_dir.join("audit.jsonl");
        let file = Mutex::new(append_to(&path)?);
        Ok(Self { path, file })
    }

    /// Appends a line. A disk that takes no more is said in the log; the request was answered.
    pub(crate) fn write(&self, line: &Line<'_>) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.append(&mut file, line) {
            tracing::error!(%error, "cannot write the audit");
        }
    }

    fn append(&self, file: &mut File, line: &Line<'_>) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        file.write_all(&text)?;
        if file.metadata()?.len() > FULL {
            for age in (1..KEPT).rev() {
                let _ = std::fs::rename(self.aside(age), self.aside(age + 1));
            }
            std::fs::rename(&self.path, self.aside(1))?;
            *file = append_to(&self.path)?;
        }
        Ok(())
    }

    fn aside(&self, age: u32) -> PathBuf {
        self.path.with_extension(format!("{age}.jsonl"))
    }

    /// Everything that is kept, oldest first.
    pub(crate) fn export(&self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        for age in (0..=KEPT).rev() {
            let path = if age == 0 { self.path.clone() } else { self.aside(age) };
            match std::fs::read(path) {
                Ok(bytes) => all.extend_from_slice(&bytes),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    File::options().append(true).create(true).mode(0o600).custom_flags(flags).open(path)
}
