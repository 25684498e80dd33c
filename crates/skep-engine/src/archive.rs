//! Unreviewed work, put away before its sandbox is removed, and brought back.
//!
//! An archive is `archives/NAME-ID.tar.zst` with `NAME-ID.json` beside it. The tar holds the upper,
//! the layers below it and what is known of the base, with their marks (extended attributes,
//! whiteouts), written by the system's `tar`: it knows every kind of file, and runs nothing of what
//! it packs. The manifest holds the sandbox's row and the hash of the packed bytes; it is written
//! last, so that an archive without one never became whole.

use crate::api::{GcDecision, GcRequest};
use crate::create::{Remembered, Start};
use crate::gc::{Action, decision, spoken};
use crate::layers::check_same_project;
use crate::problems::io_problem;
use crate::{Engine, layout, trash};
use serde::{Deserialize, Serialize};
use serde_json::json;
use skep_policy::Settings;
use skep_store::Snapshot;
use skep_types::{Code, LayerId, Problem, Sandbox};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Debian's and everybody's; a name in `PATH` could be anything.
const TAR: [&str; 2] = ["/usr/bin/tar", "/bin/tar"];

/// What an archive says of itself.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    /// Of this shape.
    version: u32,
    /// When (RFC 3339).
    archived_at: String,
    /// blake3 of the packed file.
    digest: String,
    /// The sandbox as it was.
    sandbox: Sandbox,
}

/// A directory that is thrown away in the end.
pub(crate) struct Scratch(pub(crate) Option<PathBuf>, pub(crate) PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // What cannot be removed is in the trash, and tried again.
            let _ = trash::discard(path, &self.1);
        }
    }
}

impl Engine {
    fn archive_files(&self, name: &str) -> (PathBuf, PathBuf) {
        let directory = self.layout().archives();
        (directory.join(format!("{name}.tar.zst")), directory.join(format!("{name}.json")))
    }

    /// Puts the work of a sandbox that nobody runs into an archive, synced to the disk.
    pub(crate) fn archive(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let directory = self.layout().archives();
        let name = format!("{}-{}", sandbox.name, sandbox.id);
        let (packed, manifest) = self.archive_files(&name);
        let failed = |error: io::Error| io_problem("archive to", &packed, &error);
        layout::make_private(&directory).map_err(failed)?;
        let partial = packed.with_extension("partial");
        let digest = self.pack(sandbox, &partial).map_err(|error| {
            let _ = fs::remove_file(&partial);
            failed(error)
        })?;
        skep_sys::failpoint::hit("gc.archive").map_err(failed)?;
        fs::rename(&partial, &packed).map_err(failed)?;
        let value = Manifest {
            version: 1,
            archived_at: self.now(),
            digest: digest.to_hex().to_string(),
            sandbox: sandbox.clone(),
        };
        let text = serde_json::to_vec_pretty(&value)
            .map_err(|error| Problem::from_error(Code::Internal, &error))?;
        write_synced(&manifest, &text).map_err(failed)?;
        File::open(&directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
        let event = self.event("sandbox.archived", &sandbox.id, None, json!({ "archive": name }));
        self.store
            .append_events(&[event])
            .map(drop)
            .map_err(|error| Problem::from_error(error.code(), &error))
    }

    fn pack(&self, sandbox: &Sandbox, to: &Path) -> io::Result<blake3::Hash> {
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(to)?;
        let mut command = tar()?;
        command.args(["-c", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--sparse"]);
        command.arg("-C").arg(self.layout().sandbox(&sandbox.id)).args(["upper", "base"]);
        if !sandbox.layers.is_empty() {
            command.arg("-C").arg(self.layout().layers());
            command.args(sandbox.layers.iter().map(LayerId::as_str));
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut hashing = Hashing { file, hasher: blake3::Hasher::new() };
        let copied = match child.stdout.take() {
            None => Err(io::Error::other("tar has no output")),
            Some(mut output) => zstd::stream::copy_encode(&mut output, &mut hashing, 3),
        };
        ended(&mut child)?;
        copied?;
        hashing.file.sync_all()?;
        Ok(hashing.hasher.finalize())
    }

    /// Whether `--from` names an archive.
    pub(crate) fn is_archive(&self, name: &str) -> bool {
        !name.contains('/') && self.archive_files(name).1.is_file()
    }

    /// The layers of an archive, unpacked anew.
    pub(crate) fn start_from_archive(&self, name: &str, project: &Path) -> Result<Start, Problem> {
        let (packed, manifest) = self.archive_files(name);
        let text = Self::read_file(&manifest, "the manifest")?;
        let damaged = |why: String| {
            Problem::new(Code::Io, format!("archive `{name}` is damaged: {why}"))
                .hint("nothing was changed; the archive is kept")
        };
        let manifest: Manifest =
            serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        let sandbox = manifest.sandbox;
        let snapshot = Snapshot {
            sandbox: sandbox.id.clone(),
            label: name.to_owned(),
            layers: sandbox.layers.clone(),
            driver: sandbox.driver,
            base: sandbox.base.clone(),
            project: sandbox.project.clone(),
            rules: sandbox.policy.change_rules(),
            workdir: sandbox.policy.workdir.clone(),
            reach: None,
            created_at: manifest.archived_at,
        };
        check_same_project(&snapshot, name, project)?;
        let failed = |error: io::Error| io_problem("unpack", &packed, &error);
        if hash_of(&packed).map_err(failed)?.to_hex().as_str() != manifest.digest {
            return Err(damaged("its bytes are not those that were written".into()));
        }
        // Named like a layer in the making: whatever is left of it goes with the next gc.
        let id = LayerId::from_random((self.config.random)());
        let scratch = self.layout().layers().join(format!("{id}.building"));
        layout::make_private(&scratch).map_err(failed)?;
        let guard = Scratch(Some(scratch.clone()), self.layout().trash());
        unpack(&packed, &scratch).map_err(failed)?;
        let names = std::iter::once("upper").chain(sandbox.layers.iter().map(LayerId::as_str));
        let layers = names
            .map(|name| self.build_layer(|to| fs::rename(scratch.join(name), to)))
            .collect::<Result<Vec<_>, _>>()?;
        std::mem::forget(guard);
        Ok(Start {
            layers,
            base: Some(sandbox.base),
            driver: Some(sandbox.driver),
            workdir: sandbox.policy.workdir,
            memory: Some(Remembered { directory: scratch.join("base"), reach: None }),
            scratch: Some(scratch),
            rules: snapshot.rules,
        })
    }

    /// Archives past their age. One that cannot be read is kept: it may be somebody's only copy.
    pub(crate) fn collect_archives(
        &self,
        request: &GcRequest,
        settings: &Settings,
        decisions: &mut Vec<GcDecision>,
    ) -> Result<(), Problem> {
        let entries = fs::read_dir(self.layout().archives()).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
            .collect();
        names.sort();
        for name in names {
            let (packed, manifest) = self.archive_files(&name);
            let bytes = fs::metadata(&packed).map_or(0, |found| found.len());
            let read = fs::read(&manifest).ok();
            let read = read.and_then(|text| serde_json::from_slice::<Manifest>(&text).ok());
            let age = read.and_then(|manifest| self.age(&manifest.archived_at).ok());
            let (action, reason) = match (age, settings.retention.archives) {
                (None, _) => (Action::Keep, "its manifest cannot be read".to_owned()),
                (Some(age), Some(limit)) if age >= limit => {
                    (Action::Remove, format!("archived {} ago", spoken(age)))
                }
                (Some(age), limit) => {
                    let until = limit.map_or("stays".to_owned(), |limit| {
                        format!("goes after {}", spoken(limit))
                    });
                    (Action::Keep, format!("archived {} ago; {until}", spoken(age)))
                }
            };
            if action == Action::Remove && !request.dry_run {
                for path in [&manifest, &packed] {
                    fs::remove_file(path).map_err(|error| io_problem("remove", path, &error))?;
                }
            }
            let freed = if action == Action::Remove { bytes } else { 0 };
            decisions.push(decision("archive", &name, action, reason, freed));
        }
        Ok(())
    }
}

fn tar() -> io::Result<Command> {
    let found = TAR.iter().find(|path| Path::new(path).is_file());
    let path = found.ok_or_else(|| io::Error::other("the program `tar` is not installed"))?;
    let mut command = Command::new(path);
    command.env_clear().env("LC_ALL", "C").stderr(Stdio::piped());
    Ok(command)
}

fn ended(child: &mut std::process::Child) -> io::Result<()> {
    let mut said = String::new();
    if let Some(mut errors) = child.stderr.take() {
        // Only for the message.
        let _ = errors.read_to_string(&mut said);
    }
    let status = child.wait()?;
    if status.success() {
        return Ok(());
    }
    let said = said.lines().next().unwrap_or("no message");
    Err(io::Error::other(format!("tar failed ({status}): {said}")))
}

fn unpack(packed: &Path, to: &Path) -> io::Result<()> {
    let mut command = tar()?;
    command.args(["-x", "-p", "--numeric-owner", "--xattrs", "--xattrs-include=*", "-C"]).arg(to);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let copied = match child.stdin.take() {
        None => Err(io::Error::other("tar takes no input")),
        Some(mut input) => zstd::stream::copy_decode(File::open(packed)?, &mut input),
    };
    ended(&mut child)?;
    copied
}

fn hash_of(path: &Path) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hasher.finalize())
}

fn write_synced(path: &Path, text: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial-manifest");
    let mut file =
        File::options().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(partial, path)
}

struct Hashing {
    file: File,
    hasher: blake3::Hasher,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
