//! What a long-lived server asks beyond the [`Api`](crate::api::Api): on whose behalf it acts,
//! settling while it runs, sums for quotas, labels, and requests that may be sent twice.

use crate::Engine;
use crate::api::CopyReport;
use crate::create::self_identity;
use crate::layout::make_private;
use crate::problems::{OrProblem, io_problem};
use crate::repeated::is_alive;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use skep_store::{Expect, KeyClaim, SandboxFilter};
use skep_types::{
    Code, ContentHash, EntryState, Problem, RelPath, Sandbox, SandboxId, SandboxState,
};
use skep_workspace::View;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A file that is read or written in one go.
const LARGEST_FILE: u64 = 64 << 20;

/// What all sandboxes together were promised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Sandboxes that are not deleted.
    pub sandboxes: u64,
    /// Those a keeper holds, or is about to.
    pub running: u64,
    /// Memory limits of the running ones, added up.
    pub memory: u64,
    /// Disk limits of all of them, added up.
    pub disk: u64,
}

/// The answer to a request that carried a key.
#[derive(Debug, Clone, PartialEq)]
pub struct Repeated {
    /// The answer.
    pub value: Value,
    /// Whether it is that of an earlier request.
    pub replayed: bool,
}

impl Engine {
    /// Approvals are given in this name from now on, and no longer in that of the process's user.
    pub fn acting_for(&mut self, name: Option<&str>) {
        self.actor = name.map(str::to_owned);
    }

    /// Who approves.
    pub(crate) fn approver(&self) -> String {
        self.actor.clone().unwrap_or_else(|| self.config.user.clone())
    }

    /// Settles what has ended without anybody being told: a killed keeper, an interrupted delete.
    pub fn settle(&self) -> Result<(), Problem> {
        self.reconcile()
    }

    /// Sums over all sandboxes, from the store alone.
    pub fn tally(&self) -> Result<Tally, Problem> {
        let mut tally = Tally::default();
        for sandbox in self.store.list_sandboxes(&SandboxFilter::default()).or_problem()? {
            let limits = &sandbox.policy.limits;
            tally.sandboxes += 1;
            tally.disk = tally.disk.saturating_add(limits.disk.map_or(0, |size| size.0));
            if matches!(
                sandbox.state,
                SandboxState::Creating | SandboxState::Ready | SandboxState::Frozen
            ) {
                tally.running += 1;
                tally.memory = tally.memory.saturating_add(limits.memory.map_or(0, |size| size.0));
            }
        }
        Ok(tally)
    }

    /// Sets labels (`None` removes one). With a version, only if the sandbox still has it. Labels
    /// that skep gave itself stay.
    pub fn relabel(
        &self,
        id: &SandboxId,
        version: Option<u64>,
        labels: &BTreeMap<String, Option<String>>,
    ) -> Result<Sandbox, Problem> {
        self.load(id)?;
        if let Some(own) = labels.keys().find(|key| key.starts_with("skep.")) {
            let message = format!("label `{own}` is skep's own");
            return Err(Problem::new(Code::Refused, message));
        }
        let event = self.event("sandbox.labels", id, None, json!({ "labels": labels }));
        let expect = Expect { version, ..Expect::default() };
        let now = self.now();
        let change = &mut |row: &mut Sandbox| {
            for (key, value) in labels {
                match value {
                    Some(value) => drop(row.labels.insert(key.clone(), value.clone())),
                    None => drop(row.labels.remove(key)),
                }
            }
            row.updated_at.clone_from(&now);
        };
        self.store.update_sandbox(id, expect, &[event], change).or_problem()
    }

    /// Looks at the view of a sandbox while nothing inside moves.
    fn look_inside<T>(
        &self,
        id: &SandboxId,
        look: impl FnOnce(&View) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        let sandbox = self.load(id)?;
        let _lock = self.lock_sandbox(&sandbox)?;
        self.while_still(&sandbox, || look(&View::open(&self.workspace(&sandbox)).or_problem()?))
    }

    /// The bytes of one file, as the view shows it. A link is not followed: it is no file.
    pub fn read_out(&self, id: &SandboxId, path: &RelPath) -> Result<Vec<u8>, Problem> {
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
            tree.read(path, LARGEST_FILE).map_err(failed)
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
        bytes: &[u8],
    ) -> Result<CopyReport, Problem> {
        let name = path.file_name().ok_or_else(|| {
            Problem::new(Code::Usage, "the path of a file is expected, not the project itself")
        })?;
        self.with_scratch(|scratch| {
            let file = scratch.join(OsStr::from_bytes(name));
            std::fs::write(&file, bytes).map_err(|error| io_problem("write", &file, &error))?;
            self.copy_to(id, &file, path)
        })
    }

    /// A directory of our own for as long as `act` takes.
    fn with_scratch<T>(&self, act: impl FnOnce(&Path) -> Result<T, Problem>) -> Result<T, Problem> {
        let name = format!("scratch-{}", SandboxId::from_random((self.config.random)()));
        let scratch = self.layout().root().join(name);
        make_private(&scratch).map_err(|error| io_problem("make", &scratch, &error))?;
        let done = act(&scratch);
        let _ = std::fs::remove_dir_all(&scratch);
        done
    }

    /// Acts once for a key: the same request again gets the same answer, another one under the
    /// same key is refused. An act that fails may be tried again under its key; one whose maker
    /// died half way may have had its effect, and that is said.
    pub fn once(
        &self,
        key: &str,
        request: &[u8],
        act: impl FnOnce() -> Result<Value, Problem>,
    ) -> Result<Repeated, Problem> {
        let under_way = || Problem::new(Code::Busy, "a request with this key is under way");
        match self.claim(key, &ContentHash::of(request))? {
            KeyClaim::New => {
                let maker = serde_json::to_value(self_identity()?).unwrap_or_default();
                self.store.finish_key(key, &json!({ "maker": maker })).or_problem()?;
                match act() {
                    Ok(value) => {
                        self.store.finish_key(key, &json!({ "answer": value })).or_problem()?;
                        Ok(Repeated { value, replayed: false })
                    }
                    Err(problem) => {
                        self.store.drop_key(key).or_problem()?;
                        Err(problem)
                    }
                }
            }
            KeyClaim::InProgress => Err(under_way()),
            KeyClaim::Done(mut kept) => match kept.get_mut("answer").map(Value::take) {
                Some(value) => Ok(Repeated { value, replayed: true }),
                None if kept.get("maker").is_some_and(is_alive) => Err(under_way()),
                None => Err(Problem::new(
                    Code::Conflict,
                    "the request with this key was interrupted; whether it had its effect is not known",
                )
                .hint("look, and if need be ask again with another key")),
            },
        }
    }
}

fn nothing_at(path: &RelPath) -> Problem {
    Problem::new(Code::NotFound, format!("nothing is at `{path}` inside"))
}
