//! `skep pull`: commits made inside arrive as `refs/skep/<name>/*`.
//!
//! The repository inside is a copy that somebody else wrote to: its configuration, hooks and objects
//! are hostile. So git runs *inside*, as `git upload-pack`, and the host speaks the fetch protocol with
//! it over the exec's pipes, with a library. Nothing that the repository names is run out here, and no
//! configuration but our own is read. In order:
//!
//! 1. A fresh bare repository in the sandbox's directory receives the pack; its only tie to the
//!    project is that it looks up objects there.
//! 2. Everything that came is checked (`check`): hashes, names, and that nothing is missing.
//! 3. The pack is put among the project's objects, where nothing refers to it yet.
//! 4. Branches without a file that is hidden inside are found out (`hidden`).
//! 5. One transaction moves the references: `refs/skep/<name>/*` and, if asked, one branch forward.
//!
//! The files of the project are not touched: a branch that is checked out is not moved.

mod check;
mod hidden;
mod pipe;
mod publish;

use crate::Engine;
use crate::api::{PullReport, PulledRef};
use crate::problems::{OrProblem, io_problem};
use crate::review::{PULLED, all_pulled, references};
use gix::bstr::ByteSlice;
use gix::protocol::transport::Protocol;
use gix::protocol::transport::client::git::ConnectMode;
use gix::protocol::transport::client::git::blocking_io::Connection;
use pipe::Pipe;
use serde_json::{Value, json};
use skep_provider::Attach;
use skep_types::{ByteSize, Code, ExecId, ExecSpec, Limits, Problem, Sandbox, SandboxId};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// The largest pack that is taken.
const LARGEST_PACK: u64 = 4 << 30;
/// The largest object that is unpacked in memory.
const LARGEST_OBJECT: u64 = 512 << 20;
/// Most branches that are taken.
const MOST_BRANCHES: usize = 10_000;
/// As much of the pack as is kept in the exec's log: nobody reads it there.
const LOGGED: u64 = 64 << 10;

pub(super) fn failed(what: &str, error: &dyn std::fmt::Display) -> Problem {
    Problem::new(Code::Io, format!("cannot {what}: {error}"))
}

pub(super) fn refused(message: impl Into<String>) -> Problem {
    Problem::new(Code::Refused, message)
}

/// A branch inside, and what it points to.
pub(super) struct Tip {
    /// Below `refs/heads/`, or `HEAD`.
    pub name: String,
    pub id: gix::ObjectId,
}

impl Engine {
    pub(crate) fn pull_commits(
        &self,
        id: &SandboxId,
        branch: Option<&str>,
    ) -> Result<PullReport, Problem> {
        let sandbox = self.load(id)?;
        let project = open_project(sandbox.project.as_path())?;
        let was_running = self.is_running(&sandbox);
        let sandbox = self.ensure_running(sandbox)?;
        // Before the fetch: what is committed while it runs counts as not pulled.
        let before = self.while_still(&sandbox, || self.derive(&sandbox))?.changes;
        let receiver = self.layout().sandbox(id).join("pull");
        let clear = || {
            crate::trash::discard(&receiver, &self.layout().trash())
                .map_err(|error| io_problem("clear", &receiver, &error))
        };
        let pulled = clear().and_then(|()| self.receive(&sandbox, &project, &receiver));
        let stopped = if was_running { Ok(()) } else { self.stop_sandbox(id).map(drop) };
        let published = pulled.and_then(|(tips, objects)| {
            let _project = self.lock_project(&sandbox.project)?;
            let now = self.now().parse::<jiff::Timestamp>().map_or(0, |now| now.as_second());
            let lost = hidden::deleted_by(&project, &receiver, &tips, &sandbox.hidden)?;
            let received = publish::Received { receiver: &receiver, tips: &tips, lost: &lost };
            let refs = publish::publish(&project, &received, &sandbox.name, branch, now)?;
            Ok(PullReport { refs, objects })
        });
        clear()?;
        let report = published?;
        stopped?;
        let moved: Vec<&PulledRef> = report.refs.iter().filter(|entry| entry.changed).collect();
        let event = self.event("commits.pulled", id, None, json!({ "refs": moved }));
        self.store.append_events(&[event]).or_problem()?;
        if let Some(references) = references(&before).filter(|_| all_pulled(&before)) {
            self.update(id, "sandbox.pulled", Value::Null, &mut |row| {
                row.labels.insert(PULLED.into(), references.clone());
            })?;
        }
        Ok(report)
    }

    /// Fetches from the inside into a repository of our own, and checks what came.
    fn receive(
        &self,
        sandbox: &Sandbox,
        project: &gix::Repository,
        receiver: &Path,
    ) -> Result<(Vec<Tip>, u64), Problem> {
        let repository = new_receiver(receiver, project)?;
        let provider = self.provider(&sandbox.provider)?;
        let spec = self.run_spec(sandbox);
        let exec = ExecId::from_random((self.config.random)());
        let stream =
            provider.exec(&spec, &exec, &upload_pack(sandbox), Attach::Yes).or_problem()?;
        let stream = stream
            .ok_or_else(|| Problem::new(Code::Internal, "git inside has no output to read"))?;
        let pipe = Pipe::new(stream, LARGEST_PACK);
        let fetched = fetch(&repository, &pipe);
        let said = pipe.said();
        drop(pipe);
        let _ = provider.signal(&spec, &exec, 9);
        let fetched = fetched.map_err(|problem| match said {
            Some(said) => Problem::new(
                Code::Io,
                format!("git inside sandbox `{}` cannot be read: {said}", sandbox.name),
            ),
            None => problem,
        })?;
        let repository = open(receiver, None)?;
        check::tips(&repository, &fetched.tips)?;
        if let Some(index) = &fetched.index {
            check::pack(&repository, index)?;
        }
        Ok((fetched.tips, fetched.objects))
    }
}

/// The command that runs inside. Whose repository it is does not matter there: it is all one user's.
fn upload_pack(sandbox: &Sandbox) -> ExecSpec {
    let words = ["git", "-c", "safe.directory=*", "upload-pack", "--timeout=60"];
    let mut argv: Vec<skep_types::ByteString> = words.map(Into::into).into();
    argv.push(sandbox.project.clone());
    ExecSpec {
        argv,
        env: [("GIT_PROTOCOL".to_owned(), "version=2".into())].into(),
        workdir: Some(sandbox.project.clone()),
        limits: Limits { output: Some(ByteSize(LOGGED)), ..Limits::default() },
        ..ExecSpec::default()
    }
}

/// Opens a repository with no configuration but its own and ours.
fn open(path: &Path, limit: Option<u64>) -> Result<gix::Repository, Problem> {
    let limit = limit.map(|limit| format!("gitoxide.objects.allocLimit={limit}"));
    let options = skep_workspace::isolated().config_overrides(limit);
    gix::open_opts(path, options).map_err(|error| failed("open the repository", &error))
}

fn open_project(project: &Path) -> Result<gix::Repository, Problem> {
    if std::fs::symlink_metadata(project.join(".git")).is_err() {
        let message = format!(
            "project `{}` has no git repository of its own",
            skep_types::ByteString::from(project)
        );
        return Err(
            refused(message).hint("commits come back only to the repository they were made in")
        );
    }
    open(project, None)
}

/// A bare repository that looks up objects in the project's.
fn new_receiver(path: &Path, project: &gix::Repository) -> Result<gix::Repository, Problem> {
    let failed_to =
        |error: &dyn std::fmt::Display| failed("make a repository to receive in", error);
    crate::layout::make_private(path).map_err(|error| failed_to(&error))?;
    let options =
        gix::create::Options { object_hash: Some(project.object_hash()), ..Default::default() };
    let kind = gix::create::Kind::Bare;
    gix::ThreadSafeRepository::init_opts(path, kind, options, skep_workspace::isolated())
        .map_err(|error| failed_to(&error))?;
    let objects = std::fs::canonicalize(project.objects.store_ref().path())
        .map_err(|error| failed_to(&error))?;
    let info = path.join("objects/info");
    std::fs::create_dir_all(&info).map_err(|error| failed_to(&error))?;
    let line = [std::os::unix::ffi::OsStrExt::as_bytes(objects.as_os_str()), b"\n"].concat();
    std::fs::write(info.join("alternates"), line).map_err(|error| failed_to(&error))?;
    open(path, Some(LARGEST_OBJECT))
}

struct Fetched {
    tips: Vec<Tip>,
    index: Option<std::path::PathBuf>,
    objects: u64,
}

/// Speaks the fetch protocol with what is at the other end of the pipe.
fn fetch(repository: &gix::Repository, pipe: &Pipe) -> Result<Fetched, Problem> {
    let failed = |error: &dyn std::fmt::Display| failed("fetch from the inside", error);
    let specs = ["+HEAD:refs/tips/HEAD", "+refs/heads/*:refs/tips/heads/*"]
        .map(|spec| spec.as_bytes().as_bstr());
    let remote = repository
        .remote_at_without_url_rewrite("file:///inside")
        .and_then(|remote| remote.with_refspecs(specs, gix::remote::Direction::Fetch))
        .map_err(|error| failed(&error))?
        .with_fetch_tags(gix::remote::fetch::Tags::None);
    let host = None::<(String, Option<u16>)>;
    let (reader, writer) = (pipe.reader(), pipe.writer());
    let mode = ConnectMode::Process;
    let transport = Connection::new(reader, writer, Protocol::V2, "/inside", host, mode, false);
    let outcome = remote
        .to_connection_with_transport(transport)
        .prepare_fetch(gix::progress::Discard, Default::default())
        .and_then(|prepared| {
            if prepared.ref_map().mappings.len() > MOST_BRANCHES {
                gix::error::bail!(gix::error::validation("there are too many branches"));
            }
            prepared.receive(gix::progress::Discard, &AtomicBool::new(false))
        })
        .map_err(|error| failed(&format!("{error}: {}", error.probable_cause())))?;
    let bundle = match &outcome.status {
        gix::remote::fetch::Status::Change { write_pack_bundle, .. } => Some(write_pack_bundle),
        gix::remote::fetch::Status::NoPackReceived { .. } => None,
    };
    let mut tips = Vec::new();
    for mapping in &outcome.ref_map.mappings {
        let (Some(name), Some(id)) = (mapping.remote.as_name(), mapping.remote.as_id()) else {
            continue;
        };
        let name = name.strip_prefix(b"refs/heads/").unwrap_or(name);
        // Names that are no text would have to be escaped everywhere; git hardly makes them.
        let Ok(name) = std::str::from_utf8(name) else { continue };
        tips.push(Tip { name: name.to_owned(), id: id.to_owned() });
    }
    Ok(Fetched {
        tips,
        objects: bundle.map_or(0, |bundle| u64::from(bundle.index.num_objects)),
        index: bundle.and_then(|bundle| bundle.index_path.clone()),
    })
}
