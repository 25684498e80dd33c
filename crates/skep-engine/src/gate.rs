//! The gate: a command that must succeed before a selection is taken over.
//!
//! It runs in a sandbox of its own, whose view is the project with exactly the selection applied:
//! what the project would be, not what the reviewed sandbox happens to hold besides. Nothing runs
//! on the host. The sandbox is removed whatever happens; if skep is killed meanwhile, its row says
//! `creating` by a process that is gone, and the next skep takes it away.

use crate::create::{find_hidden, self_identity};
use crate::problems::OrProblem;
use crate::review::{Bytes, write_all};
use crate::{Engine, naming};
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::json;
use skep_provider::{Attach, ExecStream, RunSpec, StreamEvent};
use skep_store::ScopeMode;
use skep_types::{
    Code, EndReason, ExecEnd, ExecId, ExecSpec, Limits, Problem, Sandbox, SandboxId, SandboxName,
    SandboxState, WorkspaceDriver,
};
use skep_workspace::{Plan, ViewWrite};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How much of the output's end is kept.
const TAIL: usize = 16 << 10;
/// A check that has no limit of its own gets this one: the project is locked meanwhile.
const PATIENCE: Duration = Duration::from_secs(3600);

impl Engine {
    /// Refuses unless `command` succeeds where the plan is applied.
    pub(crate) fn gate(
        &self,
        sandbox: &Sandbox,
        plan: &Plan,
        command: &str,
    ) -> Result<(), Problem> {
        let check = self.insert(self.check_draft(sandbox)?, true, ScopeMode::Shared)?;
        let ended = self.run_check(&check, plan, command);
        self.tear_down(&check, "the check is over");
        let (end, output) = ended?;
        if end.reason == EndReason::Exited && end.exit_code == 0 {
            return Ok(());
        }
        let code = end.exit_code;
        let how = match end.reason {
            EndReason::Exited => format!("it exited with {code}"),
            reason => format!("it ended by {reason} ({code})"),
        };
        let text = String::from_utf8_lossy(&output).into_owned();
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        let last = last.map(|line| format!(": {}", line.trim())).unwrap_or_default();
        Err(Problem::new(Code::Refused, format!("the check `{command}` failed, {how}{last}"))
            .hint("nothing was changed; the selection does not pass the check by itself")
            .details(json!({
                "check": command,
                "exit_code": code,
                "reason": end.reason,
                "output": text,
            })))
    }

    /// A sandbox like the reviewed one, on the project as it is now.
    fn check_draft(&self, sandbox: &Sandbox) -> Result<Sandbox, Problem> {
        let instant = skep_workspace::now()
            .map_err(|error| Problem::new(Code::Io, format!("cannot read the clock: {error}")))?;
        let now = self.now();
        let name = naming::made_up((self.config.random)())?;
        let name = SandboxName::parse(&format!("check-{name}")).unwrap_or(name);
        // The command sees the project as it is now, without what has become a secret since.
        let project = sandbox.project.as_path();
        let (mut hidden, _) = find_hidden(project, &sandbox.policy, &self.layout().searched())?;
        hidden.extend(sandbox.hidden.iter().cloned());
        hidden.sort();
        hidden.dedup();
        Ok(Sandbox {
            id: SandboxId::from_random((self.config.random)()),
            name,
            state: SandboxState::Creating,
            state_reason: Some(format!("checks a selection of `{}`", sandbox.name)),
            base: skep_types::Base { instant, ..sandbox.base.clone() },
            layers: Vec::new(),
            hidden,
            keeper: Some(self_identity()?),
            labels: BTreeMap::new(),
            created_at: now.clone(),
            updated_at: now,
            version: 0,
            ..sandbox.clone()
        })
    }

    fn run_check(
        &self,
        check: &Sandbox,
        plan: &Plan,
        command: &str,
    ) -> Result<(ExecEnd, Vec<u8>), Problem> {
        self.make_directories(check)?;
        if check.driver == WorkspaceDriver::Copy {
            self.copy_project(check)?;
        }
        let provider = self.provider(&check.provider)?;
        let mut spec: RunSpec = self.start_spec(check)?;
        // The ports are taken by the sandbox that is checked.
        spec.policy.egress.publish.clear();
        provider.start(&spec).or_problem()?;
        write_all(provider, &spec, writes(plan), Bytes::AsTheyAre)?;
        let limits = &check.policy.limits;
        let exec = ExecSpec {
            argv: ["/bin/sh", "-c", command].map(Into::into).into(),
            // The sandbox's own directory may be among what is left out.
            workdir: Some(check.project.clone()),
            limits: Limits { timeout: limits.timeout.or(Some(PATIENCE)), ..Limits::default() },
            ..ExecSpec::default()
        };
        let id = ExecId::from_random((self.config.random)());
        let stream = provider.exec(&spec, &id, &exec, Attach::Yes).or_problem()?;
        let mut stream = stream
            .ok_or_else(|| Problem::new(Code::Internal, "the check has no output to listen to"))?;
        listen(stream.as_mut()).map_err(|error| {
            Problem::new(Code::Io, format!("cannot follow the check `{command}`: {error}"))
        })
    }
}

/// Removals first, deepest first; then what is put in place, parents first.
fn writes(plan: &Plan) -> Vec<ViewWrite> {
    let write = |target: &skep_workspace::apply::Target| ViewWrite {
        path: target.path.clone(),
        state: target.after.clone(),
        content: target.source.clone(),
    };
    let removed = plan.targets.iter().rev().filter(|target| target.after.is_absent());
    let put = plan.targets.iter().filter(|target| !target.after.is_absent());
    removed.chain(put).map(write).collect()
}

/// Waits for the end, and keeps the end of what was said.
fn listen(stream: &mut dyn ExecStream) -> std::io::Result<(ExecEnd, Vec<u8>)> {
    let mut tail: VecDeque<u8> = VecDeque::new();
    // The check has no input; one that reads must not wait for ever.
    let _ = stream.close_stdin();
    loop {
        match stream.next()? {
            Some(StreamEvent::Ended(end)) => return Ok((*end, tail.into())),
            Some(StreamEvent::Stdout(bytes) | StreamEvent::Stderr(bytes)) => {
                tail.extend(bytes);
                let over = tail.len().saturating_sub(TAIL);
                tail.drain(..over);
            }
            None => {
                let fd = stream.as_fd();
                let mut watched = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
                match poll(&mut watched, None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}
