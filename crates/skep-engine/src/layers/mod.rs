//! Layers: freezing an upper, and who stands on what.
//!
//! With nothing running, the upper itself becomes a layer by one rename and an empty upper is put
//! in its place. The order makes every crash harmless:
//!
//! 1. an intent, whose *name* holds everything (renames and new names reach the disk in order,
//!    the bytes of a small file need not), and a note of what the layer will stand on;
//! 2. the upper is renamed into `layers/`;
//! 3. an empty upper with the same mode and owner;
//! 4. the row stands on the new layer;
//! 5. a pointer to the newest layer;
//! 6. the intent becomes the layer's mark of origin.
//!
//! A crash before 4 is taken back, one after it needs nothing. See [`Engine::settle_layers`]. The row is
//! not synced: one that is lost with the power, or with the end of the log, is written anew from what 1,
//! 5 and 6 left. See [`lost`].
//!
//! While a keeper holds the sandbox, its mount has the upper, and open files would go on writing into
//! a renamed one: then the upper is copied (blocks are shared where the filesystem can), and the
//! sandbox itself goes on as before.

mod copy;
mod flatten;
mod fork;
mod lost;
mod restore;
mod snapshot;
mod sweep;
mod system;
mod templates;
pub(crate) use templates::check_same_project;

pub(crate) use copy::{Bytes, copy_tree, entry as copy_entry, finish_directory};

use crate::problems::{OrProblem, io_problem};
use crate::review::Shut;
use crate::{Engine, closed, layout};
use serde_json::json;
use skep_store::StoreError;
use skep_sys::failpoint;
use skep_types::{Code, LayerId, Problem, Sandbox, SandboxId, SandboxState, WorkspaceDriver};
use skep_workspace::Insiders;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A freeze that was begun: of which sandbox, to which layer, and the intent.
type Pending = (SandboxId, LayerId, PathBuf);

/// How long chains may get.
struct Chain {
    /// They are merged when they are this long.
    longest: usize,
    /// They must not get longer.
    limit: usize,
    /// How many of the newest layers are left as they are by a merge.
    kept_apart: usize,
}

/// The kernel refuses more than five hundred layers; before Linux 6.8 they must be named in one
/// string of 255 bytes, and fifteen fit.
fn chain() -> Chain {
    let kernel = rustix::system::uname();
    let release = kernel.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (6, 8) {
        Chain { longest: 200, limit: 400, kept_apart: 20 }
    } else {
        Chain { longest: 8, limit: 12, kept_apart: 2 }
    }
}

impl Engine {
    /// The sandbox's present state as a stack of layers. The caller holds its lock.
    ///
    /// The sandbox stands on the returned layers itself, or (when a keeper holds it) they are a
    /// copy of what it stands on: its mount has the upper, and taking the mount away would take the
    /// processes, `/tmp` and everything else inside along.
    fn state_as_layers(&self, sandbox: Sandbox) -> Result<(Sandbox, Vec<LayerId>), Problem> {
        self.resume_settling(&sandbox, Shut::Left)?;
        if sandbox.driver == WorkspaceDriver::Copy || self.is_running(&sandbox) {
            let layers = self.while_still(&sandbox, || self.copy_state(&sandbox))?;
            return Ok((sandbox, layers));
        }
        let sandbox = self.freeze_upper(sandbox)?;
        let layers = sandbox.layers.clone();
        Ok((sandbox, layers))
    }

    /// Does something while no keeper holds the sandbox, and starts it again if one did.
    fn at_rest(
        &self,
        sandbox: Sandbox,
        change: impl FnOnce(Sandbox) -> Result<Sandbox, Problem>,
    ) -> Result<Sandbox, Problem> {
        let provider = self.provider(&sandbox.provider)?;
        let was_running = self.is_running(&sandbox);
        if was_running {
            let directory = self.layout().sandbox(&sandbox.id);
            provider.stop(&sandbox.id, &directory, sandbox.keeper.as_ref()).or_problem()?;
            self.bury_execs(&sandbox)?;
        }
        let id = sandbox.id.clone();
        let result = change(sandbox);
        if !was_running {
            return result;
        }
        let sandbox = match self.start_keeper(self.load(&id)?) {
            Ok((sandbox, started)) => {
                self.note_keeper(&sandbox, &started, "sandbox.restarted", &mut |_| ())?
            }
            Err(problem) => {
                self.update(
                    &id,
                    "sandbox.stopped",
                    json!({ "reason": problem.message }),
                    &mut |row| {
                        row.keeper = None;
                        row.state = SandboxState::Stopped;
                    },
                )?;
                return result.and(Err(problem));
            }
        };
        result.map(|_| sandbox)
    }

    /// Steps 1 to 6 of the module's text. An empty upper is left as it is.
    fn freeze_upper(&self, sandbox: Sandbox) -> Result<Sandbox, Problem> {
        let directory = self.layout().sandbox(&sandbox.id);
        let upper = directory.join("upper");
        let failed = |error: io::Error| io_problem("freeze", &upper, &error);
        if is_empty(&upper).map_err(failed)? {
            return Ok(sandbox);
        }
        let layer = LayerId::from_random((self.config.random)());
        let intent = self.intents().join(format!("{}-{layer}", sandbox.id));
        layout::make_private(&self.intents()).map_err(failed)?;
        self.note_ground(&layer, sandbox.layers.first()).map_err(failed)?;
        std::fs::write(&intent, b"").map_err(failed)?;
        failpoint::hit("freeze.intent").map_err(failed)?;
        let moved = closed::rename(&upper, &self.layout().layer(&layer))
            .and_then(|()| failpoint::hit("freeze.moved"))
            .and_then(|()| new_upper(&upper, &self.layout().layer(&layer)))
            .and_then(|()| failpoint::hit("freeze.upper"))
            .map_err(failed)
            .and_then(|()| {
                let data = json!({ "layer": layer });
                self.update(&sandbox.id, "sandbox.layered", data, &mut |row| {
                    row.layers.insert(0, layer.clone());
                })
            });
        let sandbox = match moved {
            Ok(sandbox) => sandbox,
            Err(problem) => {
                self.settle_intent(&sandbox.id, &layer, &intent)?;
                return Err(problem);
            }
        };
        failpoint::hit("freeze.row").map_err(failed)?;
        self.mark(&sandbox.id, &layer, &intent).map_err(failed)?;
        match self.shorten(&sandbox) {
            Ok(None) => Ok(sandbox),
            Ok(Some(shortened)) => Ok(shortened),
            // Tried again with the next one; there is room until the kernel's limit.
            Err(_) if sandbox.layers.len() < chain().limit => Ok(sandbox),
            Err(problem) => Err(problem),
        }
    }

    /// A copy of the present state: the upper as a layer of its own, above what is frozen already.
    fn copy_state(&self, sandbox: &Sandbox) -> Result<Vec<LayerId>, Problem> {
        let workspace = self.workspace(sandbox);
        if is_empty(&workspace.upper)
            .map_err(|error| io_problem("look at", &workspace.upper, &error))?
        {
            return Ok(sandbox.layers.clone());
        }
        // What a copy holds was born when it was copied: the proof that rests on births must be
        // taken from the original, now.
        if sandbox.driver != WorkspaceDriver::Copy {
            let most = sandbox.policy.limits.disk.map(|size| size.0);
            let insiders = Insiders::Some;
            closed::noted(|| skep_workspace::capture(&workspace, most, insiders).map(drop))?;
        }
        let layer = self.build_layer(|to| {
            copy_tree(&workspace.upper, to)?;
            std::fs::write(copied_mark(&to.with_extension("")), b"")
        })?;
        if let Some(moved) = self.moved(sandbox)? {
            let copy = self.layout().layer(&layer);
            let _ = crate::trash::discard(&copy, &self.layout().trash());
            let _ = std::fs::remove_file(copied_mark(&copy));
            return Err(skep_provider::ProviderError::Moved(moved)).or_problem();
        }
        let mut layers = vec![layer];
        layers.extend(sandbox.layers.iter().cloned());
        Ok(layers)
    }

    /// Makes a layer beside the others, and gives it its name when it is whole.
    pub(crate) fn build_layer(
        &self,
        build: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<LayerId, Problem> {
        let layer = LayerId::from_random((self.config.random)());
        let path = self.layout().layer(&layer);
        let building = path.with_extension("building");
        // In the same directory: nothing of it is written to.
        let made = build(&building).and_then(|()| std::fs::rename(&building, &path));
        made.map_err(|error| {
            let _ = crate::trash::discard(&building, &self.layout().trash());
            let _ = std::fs::remove_file(copied_mark(&path));
            io_problem("make layer", &path, &error)
        })?;
        Ok(layer)
    }

    /// Merges the lower part of a long chain into one layer.
    fn shorten(&self, sandbox: &Sandbox) -> Result<Option<Sandbox>, Problem> {
        let chain = chain();
        if sandbox.layers.len() < chain.longest {
            return Ok(None);
        }
        let (kept, merged) = sandbox.layers.split_at(chain.kept_apart);
        let paths: Vec<PathBuf> = merged.iter().map(|layer| self.layout().layer(layer)).collect();
        let one = self.build_layer(|to| {
            let merge = || flatten::merge(&paths, to, sandbox.driver);
            closed::opened(merge, || crate::trash::remove(to))?;
            let marks = paths.iter().map(|path| copied_mark(path).try_exists());
            if marks.collect::<io::Result<Vec<_>>>()?.contains(&true) {
                std::fs::write(copied_mark(&to.with_extension("")), b"")?;
            }
            Ok(())
        })?;
        failpoint::hit("flatten.built")
            .map_err(|error| io_problem("merge layers of", &self.layout().layers(), &error))?;
        let layers: Vec<LayerId> = kept.iter().cloned().chain([one]).collect();
        let merged = merged.to_vec();
        let data = json!({ "merged": merged.len() });
        let sandbox = self.update(&sandbox.id, "sandbox.flattened", data, &mut |row| {
            row.layers.clone_from(&layers);
        })?;
        // A row that was lost would stand on what is removed now.
        self.store.sync().or_problem()?;
        let used = self.store.layers_in_use().or_problem()?;
        let gone: Vec<LayerId> =
            merged.iter().filter(|layer| !used.contains_key(*layer)).cloned().collect();
        // If they stay for now, they are nobody's lost work.
        self.remove_marks(&gone);
        self.sweep_layers(&merged)?;
        Ok(Some(sandbox))
    }

    /// Where unfinished freezes are noted; mostly it is not even there.
    fn intents(&self) -> PathBuf {
        self.layout().root().join("intents")
    }

    /// Says which sandbox's upper a layer was.
    fn mark_of(&self, layer: &LayerId, sandbox: &SandboxId) -> PathBuf {
        self.layout().layers().join(format!("{layer}.of-{sandbox}"))
    }

    /// Takes back what a crash left between an upper and its row, and finds what a lost row stood on. Costs
    /// one look at a directory where nothing was ever frozen.
    pub(crate) fn settle_layers(&self) -> Result<(), Problem> {
        let Some(pending) = self.pending_freezes()? else { return Ok(()) };
        for (sandbox, layer, intent) in pending {
            let Ok(_lock) = self.lock_now(&sandbox) else {
                // It is being frozen right now.
                continue;
            };
            self.settle_intent(&sandbox, &layer, &intent)?;
        }
        self.find_lost_layers()
    }

    /// The same for one sandbox whose lock the caller just took.
    pub(crate) fn settle_layers_of(&self, id: &SandboxId) -> Result<(), Problem> {
        for (sandbox, layer, intent) in self.pending_freezes()?.into_iter().flatten() {
            if sandbox == *id {
                self.settle_intent(&sandbox, &layer, &intent)?;
            }
        }
        Ok(())
    }

    /// None where nothing was ever frozen.
    fn pending_freezes(&self) -> Result<Option<Vec<Pending>>, Problem> {
        let intents = self.intents();
        let failed = |error: io::Error| io_problem("read", &intents, &error);
        let entries = match std::fs::read_dir(&intents) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(failed)?,
        };
        let parse = |entry: std::fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            let (sandbox, layer) = name.split_once('-')?;
            Some((sandbox.parse().ok()?, layer.parse().ok()?, entry.path()))
        };
        let entries = entries.collect::<io::Result<Vec<_>>>().map_err(failed)?;
        Ok(Some(entries.into_iter().filter_map(parse).collect()))
    }

    fn settle_intent(&self, id: &SandboxId, layer: &LayerId, intent: &Path) -> Result<(), Problem> {
        let row = match self.store.sandbox(id) {
            Ok(row) => Some(row).filter(|row| row.state != SandboxState::Deleted),
            Err(StoreError::NotFound { .. }) => None,
            // A row that cannot be read now may be the one that stands without its upper.
            Err(error) => return Err(error).or_problem(),
        };
        let path = self.layout().layer(layer);
        let upper = self.layout().sandbox(id).join("upper");
        let settle = || -> io::Result<()> {
            let frozen = layout::is_directory(&path)?;
            match &row {
                Some(row) if row.layers.contains(layer) => {
                    if !layout::is_directory(&upper)? {
                        new_upper(&upper, &path)?;
                    }
                    return self.mark(id, layer, intent);
                }
                Some(_) if frozen => {
                    // The empty upper that was put there. What lies in it came after a row that is lost.
                    match std::fs::remove_dir(&upper) {
                        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                            return self.mark(id, layer, intent);
                        }
                        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                        _ => {}
                    }
                    closed::rename(&path, &upper)?;
                }
                // Whose row is lost may still have its directory: then it is work, and nobody's to remove.
                None if frozen => return self.mark(id, layer, intent),
                _ => {}
            }
            self.remove_marks(std::slice::from_ref(layer));
            std::fs::remove_file(intent)
        };
        settle().map_err(|error| io_problem("settle", intent, &error))
    }

    /// Copies what is remembered of the base: the index as it is, the bytes by link.
    pub(crate) fn carry_memory(&self, from: &Path, to: &Path) -> Result<(), Problem> {
        let carry = || -> io::Result<()> {
            layout::make_private(to)?;
            for name in ["index", "tracked", "names"] {
                match std::fs::copy(from.join(name), to.join(name)) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    other => drop(other?),
                }
            }
            let blobs = match std::fs::read_dir(from.join("blobs")) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                other => other?,
            };
            layout::make_private(&to.join("blobs"))?;
            for blob in blobs {
                let blob = blob?;
                let target = to.join("blobs").join(blob.file_name());
                if std::fs::hard_link(blob.path(), &target).is_err() {
                    std::fs::copy(blob.path(), &target)?;
                }
            }
            Ok(())
        };
        carry().map_err(|error| io_problem("copy what is known of the base to", to, &error))
    }
}

/// Marks a layer whose entries were made by copying: their birth times prove nothing.
pub(crate) fn copied_mark(layer: &Path) -> PathBuf {
    layer.with_extension("copied")
}

/// One that is shut counts as if something were in it.
fn is_empty(directory: &Path) -> io::Result<bool> {
    match std::fs::read_dir(directory) {
        Err(error) if closed::is_closed(&error) => Ok(false),
        other => Ok(other?.next().is_none()),
    }
}

/// An empty upper that looks like the one that was frozen.
fn new_upper(upper: &Path, like: &Path) -> io::Result<()> {
    let metadata = std::fs::metadata(like)?;
    layout::make_private(upper)?;
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(upper, Some(metadata.uid()), Some(metadata.gid()))?;
    }
    std::fs::set_permissions(upper, PermissionsExt::from_mode(metadata.mode() & 0o7777))
}

/// What cannot be done to a full copy of the project.
fn needs_overlay(sandbox: &Sandbox, what: &str) -> Result<(), Problem> {
    if sandbox.driver != WorkspaceDriver::Copy {
        return Ok(());
    }
    let message = format!(
        "{what} needs an overlay, and sandbox `{}` is a full copy of the project",
        sandbox.name
    );
    Err(Problem::new(Code::Refused, message)
        .hint("see `skep doctor` for why there is no overlay here; `skep fork` works with copies"))
}
