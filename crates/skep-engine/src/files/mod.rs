//! Files of a workspace, one by one and as a tar, for a server's clients.
//!
//! What is read comes from the layers by pinned descriptors that follow no link; what is written goes
//! through the mounted view, where the keeper resolves every path below the project without following
//! one either. So a link that was made inside leads nowhere, whatever it points at.

mod change;
mod packed;
mod watch;

pub use watch::{Noticed, ToWatch, Watch};

use crate::Engine;
use crate::api::CopyReport;
use crate::layout::make_private;
use crate::problems::{OrProblem, io_problem};
use packed::unnamed;
use skep_types::{Code, EntryState, Problem, RelPath, SandboxId};
use skep_workspace::View;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A file that is read or written in one go.
const LARGEST_FILE: u64 = 64 << 20;

impl Engine {
    /// Looks at the view of a sandbox while nothing inside moves.
    pub(crate) fn look_inside<T>(
        &self,
        id: &SandboxId,
        look: impl FnOnce(&View) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        self.while_standing(&sandbox, || look(&View::open(&self.workspace(&sandbox)).or_problem()?))
    }

    /// One file, as the view shows it now, copied to one without a name. A link is not followed: it is no
    /// file.
    pub fn read_out(&self, id: &SandboxId, path: &RelPath) -> Result<File, Problem> {
        let root = self.layout().root();
        let mut copy = unnamed(root).map_err(|error| io_problem("copy to", root, &error))?;
        self.look_inside(id, |view| {
            let state = view.state(path).or_problem()?;
            match &state {
                EntryState::File { size, .. } if *size <= LARGEST_FILE => {}
                EntryState::File { .. } => {
                    let message = format!("`{path}` is larger than {LARGEST_FILE} bytes");
                    return Err(Problem::new(Code::TooLarge, message));
                }
                EntryState::Absent => return Err(nothing_at(path)),
                other => {
                    let message = format!("`{path}` is a {}, not a file", other.noun());
                    return Err(Problem::new(Code::Usage, message));
                }
            }
            let tree = view.holder(path).or_problem()?.ok_or_else(|| nothing_at(path))?;
            let failed = |error| io_problem("read", path.as_path(), &error);
            let (file, _) = tree.open_file(path).map_err(failed)?;
            io::copy(&mut file.take(LARGEST_FILE), &mut copy).map_err(failed)?;
            copy.rewind().map_err(failed)?;
            Ok(copy)
        })
    }

    /// What stands at a path of the view.
    pub fn state_of(&self, id: &SandboxId, path: &RelPath) -> Result<EntryState, Problem> {
        match self.look_inside(id, |view| view.state(path).or_problem())? {
            EntryState::Absent => Err(nothing_at(path)),
            state => Ok(state),
        }
    }

    /// What is in a directory of the view, sorted by the bytes of the names.
    pub fn list_in(
        &self,
        id: &SandboxId,
        path: &RelPath,
    ) -> Result<Vec<(RelPath, EntryState)>, Problem> {
        self.look_inside(id, |view| {
            match view.state(path).or_problem()? {
                EntryState::Dir { .. } => {}
                EntryState::Absent => return Err(nothing_at(path)),
                other => {
                    let message = format!("`{path}` is a {}, not a directory", other.noun());
                    return Err(Problem::new(Code::Usage, message));
                }
            }
            let mut found = Vec::new();
            for path in view.list(path).or_problem()? {
                match view.state(&path).or_problem()? {
                    EntryState::Absent => {}
                    state => found.push((path, state)),
                }
            }
            Ok(found)
        })
    }

    /// Puts one file into the view.
    pub fn write_in(
        &self,
        id: &SandboxId,
        path: &RelPath,
        mut from: File,
    ) -> Result<CopyReport, Problem> {
        let name = path.file_name().ok_or_else(|| {
            Problem::new(Code::Usage, "the path of a file is expected, not the project itself")
        })?;
        self.with_scratch(|scratch| {
            let file = scratch.join(OsStr::from_bytes(name));
            let copied = File::create_new(&file).and_then(|mut to| io::copy(&mut from, &mut to));
            copied.map_err(|error| io_problem("write", &file, &error))?;
            self.copy_to(id, &file, path)
        })
    }

    /// A directory of our own for as long as `act` takes.
    pub(crate) fn with_scratch<T>(
        &self,
        act: impl FnOnce(&Path) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        let name = format!("scratch-{}", SandboxId::from_random((self.config.random)()));
        let scratch = self.layout().root().join(name);
        make_private(&scratch).map_err(|error| io_problem("make", &scratch, &error))?;
        let done = act(&scratch);
        let _ = std::fs::remove_dir_all(&scratch);
        done
    }
}

fn nothing_at(path: &RelPath) -> Problem {
    Problem::new(Code::NotFound, format!("nothing is at `{path}` inside"))
}

/// Set-uid and set-gid bits mean nothing inside, and are not brought there.
pub(crate) fn plain(state: EntryState) -> EntryState {
    match state {
        EntryState::File { hash, size, mode } => {
            EntryState::File { hash, size, mode: mode & 0o777 }
        }
        EntryState::Dir { mode } => EntryState::Dir { mode: mode & 0o777 },
        other => other,
    }
}
