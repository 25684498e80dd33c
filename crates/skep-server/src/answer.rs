//! A worker's answers: the names in a question are resolved, the engine is asked, the answer
//! becomes a document.

use crate::calls::{Call, Company, Order};
use crate::documents::{self, Document};
use crate::staying::{Stayed, stay};
use rustix::fd::OwnedFd;
use serde_json::{Value, json};
use skep_engine::api::{Api, is_called};
use skep_engine::{Engine, PageEnd, ToWatch};
use skep_provider::{Attach, ExecStream};
use skep_types::{
    Approval, ByteString, Code, Exec, ExecSpec, Problem, RelPath, Sandbox, SandboxId,
};
use std::fs::File;
use std::io;

/// An answer, with what goes along.
pub(crate) struct Given {
    pub(crate) value: Value,
    pub(crate) stream: Option<Live>,
    /// Whether it is that of an earlier request with the same key.
    pub(crate) replayed: bool,
}

impl Given {
    fn plain(value: Value) -> Self {
        Self { value, stream: None, replayed: false }
    }

    fn live(value: Value, stream: Option<Live>) -> Self {
        Self { value, stream, replayed: false }
    }
}

/// What goes along with an answer, as a descriptor.
pub(crate) enum Live {
    /// An exec that somebody is attached to, and what it said already, as frames of a relay.
    Exec(Box<dyn ExecStream>, Vec<u8>),
    /// A workspace that is watched.
    Watch(Box<ToWatch>),
    /// A file.
    File(File),
}

impl Live {
    /// The server's end. Execs and watches get a process of their own: a worker has other questions
    /// to answer.
    pub(crate) fn descriptor(self) -> io::Result<OwnedFd> {
        match self {
            Self::Exec(stream, said) => crate::relay::start(stream, said),
            Self::Watch(watch) => crate::watching::start(&watch),
            Self::File(file) => Ok(file.into()),
        }
    }
}

/// Answers one question.
pub(crate) fn answer(engine: &Engine, order: &Order, file: Option<File>) -> Result<Given, Problem> {
    let asked = Asked { engine, order };
    if let Call::Exec { sandbox, spec, company, clocked, last } = &order.call {
        let attach = match (company, last) {
            (Company::Nobody, _) => Attach::No,
            (_, true) => Attach::Last,
            (_, false) => Attach::Yes,
        };
        return asked.exec_in(sandbox, spec, *company, attach, *clocked);
    }
    if let Call::Create { request } = &order.call {
        let (made, replayed) = engine.create_repeated(request)?;
        return Ok(Given { value: documents::sandbox(&made)?, stream: None, replayed });
    }
    if let Some(carried) = asked.carried(file) {
        return carried;
    }
    let document = asked
        .lifecycle()
        .or_else(|| asked.review())
        .or_else(|| asked.files())
        .or_else(|| asked.network())
        .or_else(|| asked.layers())
        .unwrap_or_else(|| asked.operations());
    document.map(Given::plain)
}

/// An agent starts nothing that somebody stopped. What stopped by itself (nothing ran in it, the host
/// was restarted) goes on with its next command, as ever.
fn check_start(sandbox: &Sandbox) -> Result<(), Problem> {
    let by_itself = sandbox.state_reason.is_some() && !sandbox.labels.contains_key("skep.expired");
    if sandbox.keeper.is_some() || by_itself {
        return Ok(());
    }
    let message = format!("sandbox `{}` was stopped: an agent does not start it", sandbox.name);
    Err(Problem::new(Code::IllegalState, message).hint("an operator starts it"))
}

/// An agent stops nothing, and so starts nothing that its sandbox ends with.
fn check_last(attach: Attach) -> Result<(), Problem> {
    match attach {
        Attach::Last => Err(Problem::new(Code::Forbidden, "`last` is not an agent's to say")),
        Attach::Yes | Attach::No => Ok(()),
    }
}

/// An agent's exec has the limits of its sandbox, or narrower ones. Memory, processes and time are
/// counted for the whole sandbox anyway.
fn check_limits(sandbox: &Sandbox, spec: &ExecSpec) -> Result<(), Problem> {
    let (asked, has) = (&spec.limits, &sandbox.policy.limits);
    fn more<T: PartialOrd>(asked: Option<T>, has: Option<T>) -> bool {
        matches!((asked, has), (Some(asked), Some(has)) if asked > has)
    }
    let wider = [
        ("output", more(asked.output, has.output)),
        ("open_files", more(asked.open_files, has.open_files)),
        ("silence_timeout", more(asked.silence_timeout, has.silence_timeout)),
        ("grace", more(asked.grace, has.grace)),
    ];
    match wider.into_iter().find(|(_, wider)| *wider) {
        None => Ok(()),
        Some((name, _)) => {
            let message = format!("`limits.{name}` is more than the sandbox has");
            Err(Problem::new(Code::Forbidden, message).hint("an agent asks for less, or nothing"))
        }
    }
}

/// A command in a sandbox without isolation is a command of the server's user, who is an approver.
fn check_fence(sandbox: &Sandbox, unfenced: bool) -> Result<(), Problem> {
    if unfenced || sandbox.provider != "subprocess" {
        return Ok(());
    }
    let message = format!(
        "sandbox `{}` isolates nothing (provider `subprocess`): commands in it need the role approver",
        sandbox.name
    );
    Err(Problem::new(Code::Forbidden, message).hint("use a sandbox on another provider"))
}

struct Asked<'a> {
    engine: &'a Engine,
    order: &'a Order,
}

impl Asked<'_> {
    /// The sandbox that is meant. To somebody bound to one, there is no other.
    fn sandbox(&self, name: &str) -> Result<Sandbox, Problem> {
        let found = self.engine.find(name);
        let sandbox = match (&self.order.bound, found) {
            (None, found) => found?,
            (Some(bound), Ok(sandbox)) if sandbox.id == *bound => sandbox,
            (Some(_), _) => return Err(no_sandbox(name)),
        };
        match self.order.version {
            Some(version) if version != sandbox.version => Err(Problem::new(
                Code::StaleVersion,
                format!(
                    "sandbox `{}` has version {}, not {version}",
                    sandbox.name, sandbox.version
                ),
            )
            .hint("read it again and decide anew")),
            _ => Ok(sandbox),
        }
    }

    fn id(&self, name: &str) -> Result<SandboxId, Problem> {
        self.sandbox(name).map(|sandbox| sandbox.id)
    }

    /// The same where the beginning of an id is not enough: it is removed or reviewed, or may reach more.
    fn whole_id(&self, name: &str) -> Result<SandboxId, Problem> {
        let sandbox = self.sandbox(name)?;
        if is_called(&sandbox, name) { Ok(sandbox.id) } else { Err(no_sandbox(name)) }
    }

    fn exec(&self, id: &str) -> Result<Exec, Problem> {
        let missing = || Problem::new(Code::NotFound, format!("there is no exec `{id}`"));
        match (&self.order.bound, self.engine.find_exec(id)) {
            (None, found) => found,
            (Some(bound), Ok(exec)) if exec.sandbox == *bound => Ok(exec),
            (Some(_), _) => Err(missing()),
        }
    }

    fn exec_in(
        &self,
        sandbox: &str,
        spec: &ExecSpec,
        company: Company,
        attach: Attach,
        clocked: bool,
    ) -> Result<Given, Problem> {
        let engine = self.engine;
        let sandbox = self.sandbox(sandbox)?;
        check_fence(&sandbox, self.order.unfenced)?;
        if self.order.bound.is_some() {
            check_start(&sandbox)?;
            check_limits(&sandbox, spec)?;
            check_last(attach)?;
        }
        let mut spec = spec.clone();
        if clocked && spec.limits.timeout.is_none() {
            spec.limits.timeout = engine.unattended_timeout(&sandbox)?;
        }
        let (exec, stream) = engine.begin_exec(&sandbox.id, &spec, attach)?;
        let document = documents::exec(&exec);
        // Under a key the answer is kept, and the output is not what it is known by.
        let stays = company == Company::Waiting && self.order.key.is_none();
        Ok(match stream {
            None => Given::plain(document?),
            Some(stream) if stays => match stay(stream) {
                Stayed::Ended(end, shown) => {
                    Given::plain(shown.with(documents::exec(&engine.end_exec(exec, *end)?)?))
                }
                Stayed::GoesOn(stream, said) => {
                    Given::live(document?, Some(Live::Exec(stream, said)))
                }
            },
            Some(stream) => Given::live(document?, Some(Live::Exec(stream, Vec::new()))),
        })
    }

    fn approval(&self, id: &str) -> Result<Approval, Problem> {
        self.engine.find_approval(id)
    }

    /// The same where the beginning of an id is not enough: the project is written.
    fn whole_approval(&self, id: &str) -> Result<Approval, Problem> {
        let found = self.approval(id)?;
        let missing = || Problem::new(Code::NotFound, format!("there is no approval `{id}`"));
        if found.id.as_str() == id { Ok(found) } else { Err(missing()) }
    }

    fn lifecycle(&self) -> Option<Document> {
        let engine = self.engine;
        Some(match &self.order.call {
            Call::Find { sandbox } => {
                self.sandbox(sandbox).and_then(|found| documents::sandbox(&found))
            }
            Call::Newest { project } => engine.newest(project).and_then(|found| match found {
                Some(found) => documents::sandbox(&found),
                None => Ok(Value::Null),
            }),
            Call::Show { sandbox } => self
                .id(sandbox)
                .and_then(|id| engine.show(&id))
                .and_then(|view| documents::view(&view)),
            Call::List { filter } => engine.list(filter).and_then(|views| {
                views.iter().map(documents::view).collect::<Result<Vec<_>, _>>().map(Value::Array)
            }),
            Call::Page { filter, page } => {
                engine.list_page(filter, page).and_then(|(views, end)| {
                    let items: Result<Vec<_>, _> = views.iter().map(documents::view).collect();
                    Ok(json!({ "items": items?, "next_cursor": end.map(|end| cursor(&end)) }))
                })
            }
            Call::Forget { sandbox } => engine.forget(sandbox).map(|()| Value::Null),
            Call::Patch { sandbox, patch } => self
                .whole_id(sandbox)
                .and_then(|id| engine.patch(&id, self.order.version, patch))
                .and_then(|sandbox| documents::sandbox(&sandbox)),
            Call::Start { sandbox } => self.moved(sandbox, Api::start),
            Call::Stop { sandbox } => self.moved(sandbox, Api::stop),
            Call::Freeze { sandbox } => self.moved(sandbox, Api::freeze),
            Call::Thaw { sandbox } => self.moved(sandbox, Api::thaw),
            Call::Remove { sandbox, discard } => {
                let id = self.whole_id(sandbox);
                id.and_then(|id| engine.remove(&id, *discard)).map(|()| Value::Null)
            }
            Call::FindExec { exec } => self.exec(exec).and_then(|exec| documents::exec(&exec)),
            Call::Execs { sandbox } => {
                self.id(sandbox).and_then(|id| engine.execs(&id)).and_then(|execs| {
                    let all: Result<_, _> = execs.iter().map(documents::exec).collect();
                    all.map(Value::Array)
                })
            }
            Call::Logs { exec, from, limit } => self
                .exec(exec)
                .and_then(|exec| Ok((engine.logs(&exec.id, *from, *limit)?, exec)))
                .map(|(chunks, exec)| {
                    let chunks: Vec<_> = chunks.iter().map(documents::chunk).collect();
                    json!({ "exec": exec.id, "chunks": chunks, "ended": exec.end.is_some() })
                }),
            Call::Kill { exec, signal } => self
                .exec(exec)
                .and_then(|exec| engine.kill(&exec.id, *signal))
                .map(|()| Value::Null),
            _ => return None,
        })
    }

    fn moved(
        &self,
        sandbox: &str,
        go: impl FnOnce(&Engine, &SandboxId) -> Result<Sandbox, Problem>,
    ) -> Document {
        let sandbox = go(self.engine, &self.id(sandbox)?)?;
        documents::sandbox(&sandbox)
    }

    fn review(&self) -> Option<Document> {
        let engine = self.engine;
        Some(match &self.order.call {
            Call::Diff { sandbox, brief } => self
                .id(sandbox)
                .and_then(|id| engine.diff(&id))
                .map(|set| if *brief { set.without_hunks() } else { set })
                .and_then(|set| documents::change_set(&set)),
            Call::Approve { sandbox, request } => self
                .whole_id(sandbox)
                .and_then(|id| engine.approve(&id, request))
                .and_then(|report| documents::plain(&report)),
            Call::Reject { sandbox, selection, digest, reason } => self
                .whole_id(sandbox)
                .and_then(|id| engine.reject(&id, selection, *digest, reason.as_deref()))
                .and_then(|report| documents::plain(&report)),
            Call::Undo { approval, project } => {
                let id = approval.as_deref().map(|id| self.whole_approval(id)).transpose();
                id.and_then(|found| engine.undo(found.as_ref().map(|one| &one.id), project))
                    .and_then(|report| documents::plain(&report))
            }
            Call::Finish { approval } => self
                .whole_approval(approval)
                .and_then(|found| engine.finish(&found.id))
                .and_then(|report| documents::plain(&report)),
            Call::Abandon { approval } => self
                .whole_approval(approval)
                .and_then(|found| engine.abandon(&found.id))
                .and_then(|report| documents::plain(&report)),
            Call::Pull { sandbox, branch } => self
                .id(sandbox)
                .and_then(|id| engine.pull(&id, branch.as_deref()))
                .and_then(|report| documents::plain(&report)),
            Call::Conflicts { sandbox } => self
                .id(sandbox)
                .and_then(|id| engine.conflicts(&id))
                .and_then(|drift| documents::plain(&drift)),
            Call::Rebase { sandbox } => self
                .whole_id(sandbox)
                .and_then(|id| engine.rebase(&id))
                .and_then(|report| documents::plain(&report)),
            Call::Sides { sandbox, path } => self.sides(sandbox, path),
            Call::History { project, path } => {
                let path = path.as_ref().map(parse_path).transpose();
                path.and_then(|path| engine.history(project, path.as_ref()))
                    .and_then(|approvals| documents::plain(&approvals))
            }
            Call::Approval { approval } => {
                self.approval(approval).and_then(|found| documents::plain(&found))
            }
            Call::Receipt { approval } => {
                self.approval(approval).and_then(|found| engine.receipt(&found.id))
            }
            _ => return None,
        })
    }

    fn sides(&self, sandbox: &str, path: &ByteString) -> Document {
        let id = self.id(sandbox)?;
        let [base, project, inside] = self.engine.sides(&id, &parse_path(path)?)?;
        let side = |bytes: Option<ByteString>| {
            bytes.map(|bytes| skep_client::wire::base64(bytes.as_bytes()))
        };
        Ok(json!({
            "base_b64": side(base), "project_b64": side(project), "sandbox_b64": side(inside),
        }))
    }

    /// Questions that a descriptor comes with, or whose answer one goes with.
    fn carried(&self, file: Option<File>) -> Option<Result<Given, Problem>> {
        let engine = self.engine;
        Some(match &self.order.call {
            Call::Pack { sandbox, path } => parse_path(path)
                .and_then(|path| engine.pack_out(&self.id(sandbox)?, &path))
                .map(|file| Given::live(Value::Null, Some(Live::File(file)))),
            Call::Watch { sandbox, path } => parse_path(path)
                .and_then(|path| engine.to_watch(&self.id(sandbox)?, &path))
                .map(|watch| Given::live(Value::Null, Some(Live::Watch(Box::new(watch))))),
            Call::ReadFile { sandbox, path } => parse_path(path)
                .and_then(|path| engine.read_out(&self.id(sandbox)?, &path))
                .map(|file| Given::live(Value::Null, Some(Live::File(file)))),
            Call::WriteFile { sandbox, path } => parse_path(path)
                .and_then(|path| engine.write_in(&self.id(sandbox)?, &path, expected(file)?))
                .and_then(|report| documents::plain(&report))
                .map(Given::plain),
            Call::Unpack { sandbox, path } => parse_path(path)
                .and_then(|path| engine.unpack_in(&self.id(sandbox)?, &path, expected(file)?))
                .and_then(|report| documents::plain(&report))
                .map(Given::plain),
            _ => return None,
        })
    }

    fn files(&self) -> Option<Document> {
        let engine = self.engine;
        Some(match &self.order.call {
            Call::MakeDirectory { sandbox, path, parents } => parse_path(path).and_then(|path| {
                let id = self.id(sandbox)?;
                engine.make_directory(&id, &path, *parents)?;
                documents::entry(&path, &engine.state_of(&id, &path)?)
            }),
            Call::RemoveFile { sandbox, path, recursive } => parse_path(path)
                .and_then(|path| engine.remove_in(&self.id(sandbox)?, &path, *recursive))
                .and_then(|report| documents::plain(&report)),
            Call::MoveFile { sandbox, from, to } => parse_path(from)
                .and_then(|from| engine.move_in(&self.id(sandbox)?, &from, &parse_path(to)?))
                .and_then(|report| documents::plain(&report)),
            Call::CopyOut { sandbox, path, to } => parse_path(path)
                .and_then(|path| engine.copy_out(&self.id(sandbox)?, &path, to))
                .and_then(|report| documents::plain(&report)),
            Call::CopyIn { sandbox, path, from } => parse_path(path)
                .and_then(|path| engine.copy_in(&self.id(sandbox)?, from, &path))
                .and_then(|report| documents::plain(&report)),
            Call::StatFile { sandbox, path } => parse_path(path).and_then(|path| {
                let state = engine.state_of(&self.id(sandbox)?, &path)?;
                documents::entry(&path, &state)
            }),
            Call::ListFiles { sandbox, path } => parse_path(path).and_then(|path| {
                let found = engine.list_in(&self.id(sandbox)?, &path)?;
                let all: Result<_, _> =
                    found.iter().map(|(path, state)| documents::entry(path, state)).collect();
                all.map(Value::Array)
            }),
            _ => return None,
        })
    }

    fn network(&self) -> Option<Document> {
        let engine = self.engine;
        Some(match &self.order.call {
            Call::Egress { sandbox } => self
                .id(sandbox)
                .and_then(|id| engine.egress(&id))
                .and_then(|view| documents::plain(&view)),
            Call::ChangeEgress { sandbox, change } => self
                .whole_id(sandbox)
                .and_then(|id| engine.change_egress(&id, change))
                .and_then(|changed| documents::plain(&changed)),
            Call::ProbeEgress { sandbox, targets } => self
                .sandbox(sandbox)
                .and_then(|found| match self.order.bound {
                    Some(_) => check_start(&found).map(|()| found.id),
                    None => Ok(found.id),
                })
                .and_then(|id| engine.probe_egress(&id, targets))
                .and_then(|probes| documents::plain(&probes)),
            Call::RevokeSecret { sandbox, name } => self
                .id(sandbox)
                .and_then(|id| engine.revoke_secret(&id, name))
                .map(|cut| json!({ "cut": cut })),
            _ => return None,
        })
    }

    fn layers(&self) -> Option<Document> {
        let engine = self.engine;
        Some(match &self.order.call {
            Call::Snapshot { sandbox, label } => self
                .id(sandbox)
                .and_then(|id| engine.snapshot(&id, label.as_deref()))
                .and_then(|view| documents::plain(&view)),
            Call::Snapshots { sandbox } => self
                .id(sandbox)
                .and_then(|id| engine.snapshots(&id))
                .and_then(|views| documents::plain(&views)),
            Call::Restore { sandbox, label } => self
                .id(sandbox)
                .and_then(|id| engine.restore(&id, label))
                .and_then(|sandbox| documents::sandbox(&sandbox)),
            Call::Fork { sandbox, count, name } => self
                .id(sandbox)
                .and_then(|id| engine.fork(&id, *count, name.as_ref()))
                .and_then(|forks| {
                    let all: Result<_, _> = forks.iter().map(documents::sandbox).collect();
                    all.map(Value::Array)
                }),
            Call::Compare { sandboxes } => {
                let ids: Result<Vec<_>, _> = sandboxes.iter().map(|name| self.id(name)).collect();
                ids.and_then(|ids| engine.compare(&ids))
                    .and_then(|comparison| documents::plain(&comparison))
            }
            Call::Templates => engine.templates().and_then(|all| documents::plain(&all)),
            Call::SaveTemplate { sandbox, name } => self
                .id(sandbox)
                .and_then(|id| engine.save_template(&id, name))
                .and_then(|view| documents::plain(&view)),
            Call::RemoveTemplate { name } => engine.remove_template(name).map(|()| Value::Null),
            _ => return None,
        })
    }

    fn operations(&self) -> Document {
        let engine = self.engine;
        match &self.order.call {
            Call::Providers => documents::plain(&engine.providers()?),
            Call::Doctor => documents::plain(&engine.doctor()?),
            Call::Gc { request } => documents::plain(&engine.gc(request)?),
            Call::Events { after, limit } => documents::plain(&engine.events(*after, *limit)?),
            Call::Config { project } => {
                let row = |(key, value, origin): (String, Value, String)| json!({ "key": key, "value": value, "origin": origin });
                Ok(engine.config(project.as_deref())?.into_iter().map(row).collect())
            }
            Call::Stats => documents::plain(&engine.stats()?),
            Call::Tally => documents::plain(&engine.tally()?),
            Call::Settle => engine.settle().map(|()| Value::Null),
            Call::CheckStore => engine.check_store().map(|()| Value::Null),
            Call::FillPools { owner } => documents::plain(&engine.fill_pools(owner)?),
            Call::DrainPools => documents::plain(&engine.drain_pools()?),
            other => Err(Problem::new(Code::Internal, format!("nobody answers `{other:?}`"))),
        }
    }
}

/// The longest name, and the longest path, that Linux takes: `NAME_MAX`, and `PATH_MAX` with its end.
const LONGEST_NAME: usize = 255;
const LONGEST_PATH: usize = 4095;

fn parse_path(path: &ByteString) -> Result<RelPath, Problem> {
    let bytes = path.as_bytes();
    let long = |name: &[u8]| name.len() > LONGEST_NAME;
    if bytes.len() > LONGEST_PATH || bytes.split(|byte| *byte == b'/').any(long) {
        return Err(Problem::new(Code::Usage, "the path is longer than a path can be"));
    }
    RelPath::parse(path.as_bytes()).map_err(|error| Problem::from_error(Code::Usage, &error))
}

fn expected(file: Option<File>) -> Result<File, Problem> {
    file.ok_or_else(|| Problem::new(Code::Internal, "a file was expected with the question"))
}

/// The end of a page as callers hand it back.
fn cursor(end: &PageEnd) -> String {
    let ids = end.shown.iter().map(SandboxId::as_str);
    let lines: Vec<&str> = std::iter::once(end.at.as_str()).chain(ids).collect();
    skep_client::wire::base64(lines.join("\n").as_bytes())
}

fn no_sandbox(name: &str) -> Problem {
    let name = skep_types::escape::visible(name.as_bytes());
    Problem::new(Code::NotFound, format!("there is no sandbox `{name}`"))
        .hint("`skep ls --all` lists them")
}
