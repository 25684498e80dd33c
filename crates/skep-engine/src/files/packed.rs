//! A tree of a workspace as a tar, out and in.
//!
//! Out: files, directories and links as they are, without owners. In: every name is parsed as a path
//! below the project; bytes are put into numbered files of our own first, so that no name of the
//! archive ever becomes a name on the host.

use super::change::directory;
use super::{nothing_at, plain};
use crate::Engine;
use crate::api::CopyReport;
use crate::problems::{OrProblem, io_problem};
use rustix::fs::{Mode, OFlags};
use serde_json::json;
use skep_types::{Code, EntryState, Problem, RelPath, SandboxId};
use skep_workspace::apply::Source;
use skep_workspace::tree::TreeRoot;
use skep_workspace::{View, ViewWrite};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek as _, Write};
use std::path::Path;
use tar::{Archive, Builder, EntryType, Header};

/// What an archive may hold, packed or unpacked: sparse files are larger than they seem.
const LARGEST: u64 = 4 << 30;
/// A sparse file larger than the first that unpacks to more than so many times its bytes is a bomb.
const PLAIN_HOLES: u64 = 64 << 20;
const HOLES: u64 = 100;
/// Names in one archive.
const MOST: u64 = 200_000;

impl Engine {
    /// What stands at `path` as a tar; a directory without its own name.
    pub fn pack_out(&self, id: &SandboxId, path: &RelPath) -> Result<File, Problem> {
        let root = self.layout().root();
        let file = unnamed(root).map_err(|error| io_problem("pack in", root, &error))?;
        self.look_inside(id, |view| {
            let mut packing = Packing { view, tar: Builder::new(Bounded { file, left: LARGEST }) };
            packing.tar.mode(tar::HeaderMode::Deterministic);
            packing.top(path)?;
            let failed = |error: io::Error| packing_problem(path, &error);
            let mut file = packing.tar.into_inner().map_err(failed)?.file;
            file.rewind().map_err(failed)?;
            Ok(file)
        })
    }

    /// Puts the entries of a tar below `path`, which is made if it is not there.
    pub fn unpack_in(
        &self,
        id: &SandboxId,
        path: &RelPath,
        packed: File,
    ) -> Result<CopyReport, Problem> {
        self.with_scratch(|scratch| {
            let mut report = CopyReport { entries: 0, bytes: 0, skipped: Vec::new() };
            let writes = read_in(packed, path, scratch, &mut report)?;
            let data = json!({ "unpacked": path, "entries": report.entries });
            self.change_view(id, data, |view| {
                let state = view.state(path).or_problem()?;
                if !matches!(state, EntryState::Dir { .. } | EntryState::Absent) {
                    let message = format!("`{path}` is a {} inside, not a directory", state.noun());
                    return Err(Problem::new(Code::Conflict, message));
                }
                refuse_other_kinds(view, &writes)?;
                Ok((writes, report))
            })
        })
    }
}

/// A file without a name, which goes with its last descriptor.
pub(super) fn unnamed(directory: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR)?))
}

struct Bounded {
    file: File,
    left: u64,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let written = self.file.write(bytes)?;
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn packing_problem(path: &RelPath, error: &io::Error) -> Problem {
    if error.kind() == io::ErrorKind::FileTooLarge {
        let message = format!("`{path}` is more than {LARGEST} bytes");
        return Problem::new(Code::TooLarge, message).hint("ask for parts of it");
    }
    io_problem("pack", path.as_path(), error)
}

struct Packing<'a> {
    view: &'a View,
    tar: Builder<Bounded>,
}

impl Packing<'_> {
    fn top(&mut self, path: &RelPath) -> Result<(), Problem> {
        match self.view.state(path).or_problem()? {
            EntryState::Absent => Err(nothing_at(path)),
            EntryState::Dir { .. } => self.below(path, Path::new("")),
            EntryState::Special { .. } => {
                let message = format!("`{path}` is a special file, which is not packed");
                Err(Problem::new(Code::Refused, message))
            }
            _ => {
                let name = RelPath::parse(path.file_name().unwrap_or_default()).unwrap_or_default();
                self.entry(path, name.as_path())
            }
        }
    }

    fn below(&mut self, directory: &RelPath, name: &Path) -> Result<(), Problem> {
        for child in self.view.list(directory).or_problem()? {
            let own = RelPath::parse(child.file_name().unwrap_or_default()).unwrap_or_default();
            self.entry(&child, &name.join(own.as_path()))?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &RelPath, name: &Path) -> Result<(), Problem> {
        let Some(tree) = self.view.holder(path).or_problem()? else { return Ok(()) };
        let failed = |error: io::Error| packing_problem(path, &error);
        let Some(stat) = tree.stat(path).map_err(failed)? else { return Ok(()) };
        let mut header = Header::new_gnu();
        header.set_mode(stat.st_mode & 0o777);
        header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
        header.set_size(0);
        match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::Directory => {
                header.set_entry_type(EntryType::Directory);
                self.tar.append_data(&mut header, name, io::empty()).map_err(failed)?;
                self.below(path, name)?;
            }
            rustix::fs::FileType::RegularFile => {
                let (file, stat) = tree.open_file(path).map_err(failed)?;
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                header.set_entry_type(EntryType::Regular);
                header.set_size(size);
                // One that shrinks meanwhile would spoil the archive.
                let bytes = file.chain(io::repeat(0)).take(size);
                self.tar.append_data(&mut header, name, bytes).map_err(failed)?;
            }
            rustix::fs::FileType::Symlink => {
                let target = tree.read_link(path).map_err(failed)?;
                header.set_entry_type(EntryType::Symlink);
                self.tar.append_link(&mut header, name, target.as_path()).map_err(failed)?;
            }
            // A device, fifo or socket means nothing elsewhere.
            _ => {}
        }
        Ok(())
    }
}

/// Entries that would have to replace a directory by something else, or go through something that is
/// none, are refused before anything is written.
fn refuse_other_kinds(view: &View, writes: &[ViewWrite]) -> Result<(), Problem> {
    let directory = |state: &EntryState| matches!(state, EntryState::Dir { .. });
    for write in writes {
        let old = view.state(&write.path).or_problem()?;
        if !old.is_absent() && directory(&old) != directory(&write.state) {
            let message =
                format!("`{}` is a {} inside and would be replaced", write.path, old.noun());
            return Err(Problem::new(Code::AlreadyExists, message));
        }
        for above in write.path.ancestors() {
            let state = view.state(&above).or_problem()?;
            if !state.is_absent() && !directory(&state) {
                let message = format!("`{above}` is a {} inside, not a directory", state.noun());
                return Err(Problem::new(Code::Conflict, message));
            }
        }
    }
    Ok(())
}

fn malformed(error: &dyn std::fmt::Display) -> Problem {
    Problem::new(Code::Usage, format!("the tar: {error}"))
}

/// Reads the archive: what shall stand where, with the bytes in files of `scratch`.
fn read_in(
    packed: File,
    below: &RelPath,
    scratch: &Path,
    report: &mut CopyReport,
) -> Result<Vec<ViewWrite>, Problem> {
    let too_large = || {
        let message = format!("the tar holds more than {LARGEST} bytes or {MOST} names");
        Problem::new(Code::TooLarge, message)
    };
    let tree = TreeRoot::open(scratch).map_err(|error| io_problem("open", scratch, &error))?;
    let mut archive = Archive::new(packed);
    let mut writes = vec![];
    let mut leaves = BTreeSet::new();
    if !below.is_root() {
        writes.push(directory(below));
    }
    for entry in archive.entries().map_err(|error| malformed(&error))? {
        let mut entry = entry.map_err(|error| malformed(&error))?;
        let name = entry.path_bytes().into_owned();
        let Some(path) = named(&name, below)? else { continue };
        let mode = entry.header().mode().unwrap_or(0o644) & 0o777;
        let (state, content) = match entry.header().entry_type() {
            EntryType::Directory => (EntryState::Dir { mode }, Source::None),
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                if target.is_empty() {
                    return Err(malformed(&format!("link `{path}` points nowhere")));
                }
                (EntryState::Symlink { target: target.into() }, Source::None)
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let own = RelPath::parse(report.entries.to_string().as_bytes()).unwrap_or_default();
                let to = scratch.join(own.as_path());
                let failed = |error: io::Error| io_problem("unpack into", &to, &error);
                let mut file = File::create_new(&to).map_err(failed)?;
                let stored = entry.header().entry_size().map_err(|error| malformed(&error))?;
                if entry.size() > PLAIN_HOLES && entry.size() / HOLES > stored {
                    return Err(malformed(&format!("`{path}` is nearly all holes")));
                }
                let left = LARGEST.saturating_sub(report.bytes);
                let mut bytes = (&mut entry).take(left + 1);
                let size = io::copy(&mut bytes, &mut file).map_err(|error| match error.kind() {
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => failed(error),
                    _ => malformed(&error),
                })?;
                if size > left {
                    return Err(too_large());
                }
                report.bytes += size;
                let state = match tree.state(&own).map_err(failed)? {
                    EntryState::File { hash, size, .. } => EntryState::File { hash, size, mode },
                    other => other,
                };
                (state, Source::File { root: scratch.to_owned(), path: own })
            }
            // What the name leads to, or stands for, is not in the archive.
            other @ (EntryType::Link | EntryType::Char | EntryType::Block) => {
                return Err(malformed(&format!(
                    "`{path}` is of kind {other:?}, which is not unpacked"
                )));
            }
            other => {
                report.skipped.push(format!("`{path}` is of kind {other:?}"));
                continue;
            }
        };
        report.entries += 1;
        if report.entries > MOST {
            return Err(too_large());
        }
        if path.ancestors().any(|above| leaves.contains(&above)) {
            return Err(malformed(&format!("`{path}` lies below what is no directory")));
        }
        if !matches!(state, EntryState::Dir { .. }) && !leaves.insert(path.clone()) {
            return Err(malformed(&format!("`{path}` is in it twice")));
        }
        writes.push(ViewWrite { path, state: plain(state), content });
    }
    Ok(writes)
}

/// The path that a name of the archive means; `None` is the directory itself.
fn named(name: &[u8], below: &RelPath) -> Result<Option<RelPath>, Problem> {
    let mut path = below.clone();
    for part in name.split(|byte| *byte == b'/').filter(|part| *part != b"." && !part.is_empty()) {
        // An absolute name would be read as a relative one here.
        path = path.join(part).map_err(|error| malformed(&error))?;
    }
    if name.first() == Some(&b'/') {
        return Err(malformed(&"a name in it is absolute"));
    }
    Ok((path != *below).then_some(path))
}
