//! Execs: started through the provider, remembered in the store, their ends picked up from what
//! the keeper wrote.

use crate::Engine;
use crate::api::{LogChunk, LogStream, StartedExec};
use crate::layout::may_be_there;
use crate::lifecycle::pend;
use crate::problems::{OrProblem, io_problem, unless_unwritable};
use serde_json::{Value, json};
use skep_provider::Attach;
use skep_store::NewEvent;
use skep_sys::failpoint;
use skep_types::{
    ByteString, Code, EndReason, EnforcementReport, Exec, ExecEnd, ExecId, ExecSpec, Problem,
    Sandbox, SandboxId, SandboxState,
};
use std::time::Duration;

/// From the row of an exec to the keeper it is a matter of milliseconds.
const ON_ITS_WAY: Duration = Duration::from_secs(5);

/// The live end of an exec, where somebody is attached to it.
pub type LiveEnd = Option<Box<dyn skep_provider::ExecStream>>;

impl Engine {
    pub(crate) fn start_exec(
        &self,
        id: &SandboxId,
        spec: &ExecSpec,
        attach: Attach,
    ) -> Result<StartedExec, Problem> {
        self.begin_exec(id, spec, attach).map(|(exec, stream)| StartedExec { id: exec.id, stream })
    }

    /// Starts a command; returns it as it is remembered, with its live end where one was asked for.
    pub fn begin_exec(
        &self,
        id: &SandboxId,
        spec: &ExecSpec,
        attach: Attach,
    ) -> Result<(Exec, LiveEnd), Problem> {
        check_spec(spec)?;
        let mut sandbox = self.load(id)?;
        refuse_frozen(&sandbox)?;
        sandbox = self.ensure_running(sandbox)?;
        let exec = self.exec_of(&sandbox.id, spec, &sandbox.enforcement);
        failpoint::hit("exec.begins")
            .map_err(|error| io_problem("start an exec in", self.layout().root(), &error))?;
        self.store.insert_exec(&exec, &[self.begins(&exec)]).or_problem()?;
        if sandbox.state != SandboxState::Ready {
            self.update(&sandbox.id, "sandbox.ready", Value::Null, &mut |row| {
                row.state = SandboxState::Ready;
            })?;
        }
        self.wait_for_a_look(&sandbox, &exec)?;
        let remembered = exec.clone();
        let started = self.hand_over(&sandbox, exec, attach)?;
        // It may have waited for an approval that had the sandbox paused.
        let decided = [SandboxState::Approved, SandboxState::Rejected];
        if self.store.sandbox(&sandbox.id).is_ok_and(|row| decided.contains(&row.state)) {
            self.update(&sandbox.id, "sandbox.ready", Value::Null, &mut pend)?;
        }
        Ok((remembered, started.stream))
    }

    /// What whoever stayed with an exec saw: its end is written down.
    pub fn end_exec(&self, mut exec: Exec, end: ExecEnd) -> Result<Exec, Problem> {
        self.record_end(&exec, &end)?;
        exec.finish(end);
        Ok(exec)
    }

    /// Nothing begins while somebody looks at a sandbox. It goes on when their lock is free; or they
    /// died over it, and it goes on when somebody sees to it. Should this take too long, the keeper
    /// waits instead. Who waits can be killed.
    fn wait_for_a_look(&self, sandbox: &Sandbox, exec: &Exec) -> Result<(), Problem> {
        if !may_be_there(&self.layout().stilled(&sandbox.id)) {
            return Ok(());
        }
        drop(self.lock_sandbox(&sandbox.id));
        self.wake_forgotten(sandbox)?;
        match self.store.find_exec(exec.id.as_str()).or_problem()?.end {
            None => Ok(()),
            Some(_) => {
                let message = format!("exec `{}` was killed before it began", exec.id);
                Err(Problem::new(Code::IllegalState, message))
            }
        }
    }

    /// A new exec, as it is remembered.
    pub(crate) fn exec_of(
        &self,
        sandbox: &SandboxId,
        spec: &ExecSpec,
        enforcement: &EnforcementReport,
    ) -> Exec {
        Exec {
            id: ExecId::from_random((self.config.random)()),
            sandbox: sandbox.clone(),
            spec: spec.clone(),
            started_at: self.now(),
            end: None,
            enforcement: enforcement.clone(),
        }
    }

    pub(crate) fn begins(&self, exec: &Exec) -> NewEvent {
        let data = json!({ "command": exec.spec.argv });
        self.event("exec.started", &exec.sandbox, Some(&exec.id), data)
    }

    /// Asks the keeper to run an exec that is remembered already.
    pub(crate) fn hand_over(
        &self,
        sandbox: &Sandbox,
        exec: Exec,
        how: Attach,
    ) -> Result<StartedExec, Problem> {
        let failed = |error| io_problem("start an exec in", self.layout().root(), &error);
        failpoint::hit("exec.row").map_err(failed)?;
        // No command may start before every later edit carries a later time. Nearly always that is long ago;
        // whoever finds a sandbox in the very moment in which it becomes ready waits here.
        let made = self.layout().sandbox(&sandbox.id);
        skep_workspace::wait_past_by(&sandbox.base.instant, &made);
        let provider = self.provider(&sandbox.provider)?;
        match provider.exec(&self.run_spec(sandbox), &exec.id, &exec.spec, how) {
            Ok(stream) => {
                failpoint::hit("exec.started").map_err(failed)?;
                Ok(StartedExec { id: exec.id, stream })
            }
            Err(error) => {
                let problem = error.problem();
                let end = unseen(EndReason::StartFailed, 125, &problem.message);
                self.record_end(&exec, &end)?;
                Err(problem)
            }
        }
    }

    /// On a full disk the row waits: who looks is told the end all the same.
    fn record_end(&self, exec: &Exec, end: &ExecEnd) -> Result<(), Problem> {
        let event = self.ends(exec, end);
        unless_unwritable(self.store.finish_exec(&exec.id, end, &[event]).map(drop).or_problem())
    }

    pub(crate) fn ends(&self, exec: &Exec, end: &ExecEnd) -> NewEvent {
        let data = json!({ "reason": end.reason, "exit_code": end.exit_code });
        self.event("exec.ended", &exec.sandbox, Some(&exec.id), data)
    }

    /// Picks up the end of an exec, if the keeper has written one.
    pub(crate) fn refresh(&self, mut exec: Exec) -> Result<Exec, Problem> {
        if exec.end.is_some() {
            return Ok(exec);
        }
        match self.written_end(&exec)? {
            None => self.doubt(exec),
            Some(end) => {
                self.record_end(&exec, &end)?;
                exec.finish(end);
                Ok(exec)
            }
        }
    }

    /// The end that the keeper wrote, if there is one.
    fn written_end(&self, exec: &Exec) -> Result<Option<ExecEnd>, Problem> {
        let directory = self.layout().sandbox(&exec.sandbox).join("execs");
        let path = directory.join(format!("{}.end", exec.id));
        match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let sandbox = self.layout().sandbox(&exec.sandbox);
                skep_provider::record::end_of(&sandbox, &exec.id)
                    .map_err(|error| io_problem("read the record of", &path, &error))
            }
            Err(error) => Err(io_problem("read", &path, &error)),
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
                let message = format!("`{}` is damaged: {error}", path.display());
                Problem::new(Code::Internal, message)
            }),
        }
    }

    /// Whoever starts an exec writes its row first, and may die before the keeper hears of it. Such an
    /// exec has no log; the provider is asked, once it is too old to be on its way and no look keeps it
    /// waiting. In a sandbox that was removed nothing runs.
    fn doubt(&self, mut exec: Exec) -> Result<Exec, Problem> {
        let directory = self.layout().sandbox(&exec.sandbox).join("execs");
        let waits = may_be_there(&self.layout().stilled(&exec.sandbox));
        if waits || may_be_there(&directory.join(format!("{}.head", exec.id))) {
            return Ok(exec);
        }
        let sandbox = self.store.sandbox(&exec.sandbox).or_problem()?;
        let why = if sandbox.state == SandboxState::Deleted {
            "its end was not seen: its sandbox was removed"
        } else if self.age(&exec.started_at)? < ON_ITS_WAY {
            return Ok(exec);
        } else {
            let provider = self.provider(&sandbox.provider)?;
            // A keeper that does not answer is a question for the next time.
            let Ok(status) = provider.status(&self.run_spec(&sandbox)) else { return Ok(exec) };
            if status.running.contains(&exec.id) {
                return Ok(exec);
            }
            // It may have ended since its end was looked for. The keeper writes that down before it lets go.
            if let Some(end) = self.written_end(&exec)? {
                self.record_end(&exec, &end)?;
                exec.finish(end);
                return Ok(exec);
            }
            "it was never started: whoever asked for it died"
        };
        let end = unseen(EndReason::Lost, 137, why);
        self.record_end(&exec, &end)?;
        exec.end = Some(end);
        Ok(exec)
    }

    /// The sandbox's processes are gone: an exec whose end nobody saw is lost.
    pub(crate) fn bury_execs(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        for (id, end, event) in self.last_ends(sandbox)? {
            self.store.finish_exec(&id, &end, &[event]).map(drop).or_problem()?;
        }
        Ok(())
    }

    /// How those that nobody has written down ended, now that nothing runs any more; with the event
    /// that tells it.
    pub(crate) fn last_ends(
        &self,
        sandbox: &Sandbox,
    ) -> Result<Vec<(ExecId, ExecEnd, NewEvent)>, Problem> {
        let lost = || unseen(EndReason::Lost, 137, "its end was not seen: the keeper was gone");
        let settle = |exec: Exec| {
            let end = self.written_end(&exec)?.unwrap_or_else(lost);
            let event = self.ends(&exec, &end);
            Ok((exec.id, end, event))
        };
        // Nobody is left who could write another record.
        self.take_in(sandbox)?;
        let running = self.store.running_execs(Some(&sandbox.id)).or_problem()?;
        running.into_iter().map(settle).collect()
    }

    pub(crate) fn exec_by(&self, text: &str) -> Result<Exec, Problem> {
        self.take_in_all();
        self.refresh(self.store.find_exec(text).or_problem()?)
    }

    pub(crate) fn execs_of(&self, id: &SandboxId) -> Result<Vec<Exec>, Problem> {
        self.take_in_of(id)?;
        let execs = self.store.list_execs(id).or_problem()?;
        execs.into_iter().map(|exec| self.refresh(exec)).collect()
    }

    pub(crate) fn kill_exec(&self, exec: &ExecId, signal: i32) -> Result<(), Problem> {
        let exec = self.exec_by(exec.as_str())?;
        if exec.end.is_some() {
            return Ok(());
        }
        let sandbox = self.load(&exec.sandbox)?;
        let (provider, spec) = (self.provider(&sandbox.provider)?, self.run_spec(&sandbox));
        let waits = || provider.status(&spec).is_ok_and(|now| !now.running.contains(&exec.id));
        let mark = self.layout().stilled(&sandbox.id);
        let stilled = mark.try_exists().map_err(|error| io_problem("look at", &mark, &error))?;
        if stilled && waits() {
            // It waits for the end of a look, and finds then that it is over.
            let end = unseen(EndReason::Killed, 137, "it was killed before it began");
            return self.record_end(&exec, &end);
        }
        provider.signal(&spec, &exec.id, signal).or_problem()
    }

    pub(crate) fn exec_logs(
        &self,
        exec: &ExecId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<LogChunk>, Problem> {
        let exec = self.exec_by(exec.as_str())?;
        let directory = self.layout().sandbox(&exec.sandbox).join("execs");
        let records = skep_provider::log::read(&directory, exec.id.as_str(), from, limit)
            .map_err(|error| io_problem("read the log in", &directory, &error))?;
        let mut chunks = Vec::with_capacity(records.len());
        let mut expected = from;
        for record in records {
            if record.offset > expected {
                chunks.push(LogChunk {
                    offset: expected,
                    stream: LogStream::Dropped,
                    bytes: Vec::new().into(),
                });
            }
            expected = record.offset + record.bytes.len() as u64;
            let stream = match record.stream {
                skep_provider::log::Stream::Stdout => LogStream::Stdout,
                skep_provider::log::Stream::Stderr => LogStream::Stderr,
            };
            chunks.push(LogChunk { offset: record.offset, stream, bytes: record.bytes.into() });
        }
        // The logs of all execs have a bound: of this one there may be nothing left.
        let printed = exec.end.map_or(0, |end| end.stats.stdout_bytes + end.stats.stderr_bytes);
        if chunks.is_empty() && from < printed {
            let bytes = Vec::new().into();
            chunks.push(LogChunk { offset: from, stream: LogStream::Dropped, bytes });
        }
        Ok(chunks)
    }
}

pub(crate) fn refuse_frozen(sandbox: &Sandbox) -> Result<(), Problem> {
    if sandbox.state != SandboxState::Frozen {
        return Ok(());
    }
    let message = format!("sandbox `{}` is frozen", sandbox.name);
    Err(Problem::new(Code::IllegalState, message).hint("let it go on with `skep thaw`"))
}

pub(crate) fn check_spec(spec: &ExecSpec) -> Result<(), Problem> {
    let usage = |message: &str| Err(Problem::new(Code::Usage, message));
    if spec.argv.first().is_none_or(|program| program.as_bytes().is_empty()) {
        return usage("there is no command to run");
    }
    let nul = |bytes: &[u8]| bytes.contains(&0);
    if spec.argv.iter().any(|word| nul(word.as_bytes()))
        || spec.env.values().any(|value| nul(value.as_bytes()))
    {
        return usage(
            "an argument or variable contains a NUL byte, which the kernel cannot pass on",
        );
    }
    if spec.env.keys().any(|name| name.is_empty() || name.contains('=') || name.contains('\0')) {
        return usage("a variable has an impossible name");
    }
    skep_policy::validate(&spec.limits)
        .map_err(|error| Problem::from_error(Code::Usage, &error))?;
    check_workdir(spec.workdir.as_ref())
}

/// Whether it is there is found out inside, by the command that starts in it.
pub(crate) fn check_workdir(path: Option<&ByteString>) -> Result<(), Problem> {
    let usage = |message: &str| Err(Problem::new(Code::Usage, message));
    match path {
        Some(path) if !path.as_path().is_absolute() => {
            usage("the working directory inside must be absolute")
        }
        Some(path) if path.as_bytes().contains(&0) => {
            usage("the working directory contains a NUL byte, which no name can")
        }
        _ => Ok(()),
    }
}

fn unseen(reason: EndReason, exit_code: i32, message: &str) -> ExecEnd {
    ExecEnd { reason, message: Some(message.to_owned()), ..ExecEnd::exited(exit_code) }
}
