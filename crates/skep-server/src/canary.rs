//! Whether the server can do what it is for: a sandbox is made, runs a command and is deleted.
//!
//! The answer is remembered for some seconds: asking is free for anybody, and must not be a way
//! to keep the host busy. For the same reason a trial is nobody's request: it goes on to its end, which
//! takes the sandbox away, whatever becomes of those who asked.

use crate::app::Shared;
use crate::calls::{Call, Company};
use skep_engine::api::{CreateRequest, ListFilter};
use skep_types::{Code, ExecSpec, Problem, SandboxName};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long an answer is good for.
const FRESH: Duration = Duration::from_secs(10);
/// Whoever asks has an answer by then: a server that takes longer is not ready.
const PATIENCE: Duration = Duration::from_secs(8);
/// For the command, which does nothing.
const COMMAND: Duration = Duration::from_secs(20);

/// The canary.
pub(crate) struct Canary {
    /// An empty directory of the server's own, used as the project.
    project: PathBuf,
    last: Mutex<Last>,
}

/// What is known.
enum Last {
    Nothing,
    Tried(Instant, bool),
    /// A trial is under way, and tells its outcome.
    Trying(watch::Receiver<Option<bool>>),
}

impl Canary {
    /// With this directory as the project.
    pub(crate) fn new(project: PathBuf) -> Self {
        Self { project, last: Mutex::new(Last::Nothing) }
    }

    /// Whether everything works. One trial at a time; all who ask meanwhile get its answer.
    pub(crate) async fn sings(app: &Shared) -> bool {
        let mut told = match app.canary.known(app) {
            Ok(well) => return well,
            Err(told) => told,
        };
        let told = tokio::time::timeout(PATIENCE, told.wait_for(Option::is_some)).await;
        matches!(told, Ok(Ok(well)) if *well == Some(true))
    }

    /// The answer that is good still, or where it will be told.
    fn known(&self, app: &Shared) -> Result<bool, watch::Receiver<Option<bool>>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Last::Tried(at, well) if at.elapsed() < FRESH => return Ok(*well),
            Last::Trying(told) => return Err(told.clone()),
            _ => {}
        }
        let (tell, told) = watch::channel(None);
        *last = Last::Trying(told.clone());
        let app = Arc::clone(app);
        tokio::spawn(async move {
            let tried = app.canary.try_it(&app).await;
            if let Err(problem) = &tried {
                tracing::warn!(%problem, "the canary does not sing");
            }
            let mut last = app.canary.last.lock().unwrap_or_else(PoisonError::into_inner);
            *last = Last::Tried(Instant::now(), tried.is_ok());
            let _ = tell.send(Some(tried.is_ok()));
        });
        Err(told)
    }

    async fn try_it(&self, app: &Shared) -> Result<(), Problem> {
        self.sweep(app).await?;
        let name = format!("canary-{}", crate::tokens::random_hex(4).unwrap_or_default());
        let request = CreateRequest {
            name: SandboxName::parse(&name).ok(),
            project: self.project.clone(),
            trial: true,
            home: app.home.clone(),
            host_env: app.environment.clone(),
            ..CreateRequest::default()
        };
        let made = app.ask_own(Call::Create { request: Box::new(request) }).await?.json()?;
        let sandbox = made["id"].as_str().unwrap_or_default().to_owned();
        let ran = tokio::time::timeout(COMMAND, self.run(app, sandbox.clone())).await;
        let removed = take_away(app, sandbox).await;
        ran.unwrap_or_else(|_| Err(Problem::new(Code::Internal, "`true` does not end")))
            .and(removed)
    }

    /// Takes away what earlier trials left: of a server that was killed, or whose store was away. The
    /// project is this server's alone, and no other trial is under way.
    async fn sweep(&self, app: &Shared) -> Result<(), Problem> {
        let filter = ListFilter { project: Some(self.project.clone()), state: None };
        let left = app.ask_own(Call::List { filter }).await?.json()?;
        for sandbox in left.as_array().into_iter().flatten() {
            let sandbox = sandbox["id"].as_str().unwrap_or_default().to_owned();
            take_away(app, sandbox).await?;
        }
        Ok(())
    }

    async fn run(&self, app: &Shared, sandbox: String) -> Result<(), Problem> {
        let spec = Box::new(ExecSpec { argv: vec!["true".into()], ..ExecSpec::default() });
        let call =
            Call::Exec { sandbox, spec, company: Company::Attached, clocked: false, last: false };
        let mut reply = app.ask_own(call).await?;
        let failed = |why: &str| Problem::new(Code::Internal, why);
        let stream = reply.stream.take().ok_or_else(|| failed("no live end"))?;
        let (mut output, _input) = crate::streaming::split(crate::streaming::adopt(stream)?);
        while let Some((kind, bytes)) = output.next().await? {
            if kind == crate::relay::Kind::End {
                let end: skep_types::ExecEnd =
                    serde_json::from_slice(&bytes).map_err(|_| failed("no end"))?;
                return if end.exit_code == 0 { Ok(()) } else { Err(failed("`true` failed")) };
            }
        }
        Err(failed("the exec was lost"))
    }
}

/// Removes a trial, and forgets it: one every ten seconds would be most of what the store holds.
async fn take_away(app: &Shared, sandbox: String) -> Result<(), Problem> {
    let id = sandbox.parse();
    app.ask_own(Call::Remove { sandbox, discard: true }).await?;
    match id {
        Ok(sandbox) => app.ask_own(Call::Forget { sandbox }).await.map(drop),
        Err(_) => Ok(()),
    }
}
