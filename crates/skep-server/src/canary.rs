//! Whether the server can do what it is for: a sandbox is made, runs a command and is deleted.
//!
//! The answer is remembered for some seconds: asking is free for anybody, and must not be a way
//! to keep the host busy.

use crate::app::App;
use crate::calls::Call;
use skep_engine::api::CreateRequest;
use skep_types::{ExecSpec, Problem, SandboxName};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long an answer is good for.
const FRESH: Duration = Duration::from_secs(10);

/// The canary.
pub(crate) struct Canary {
    /// An empty directory of the server's own, used as the project.
    project: PathBuf,
    last: Mutex<Option<(Instant, bool)>>,
}

impl Canary {
    /// With this directory as the project.
    pub(crate) fn new(project: PathBuf) -> Self {
        Self { project, last: Mutex::default() }
    }

    /// Whether everything works. One at a time; the others get its answer.
    pub(crate) async fn sings(&self, app: &App) -> bool {
        let mut last = self.last.lock().await;
        if let Some((at, well)) = *last
            && at.elapsed() < FRESH
        {
            return well;
        }
        let tried = self.try_it(app).await;
        if let Err(problem) = &tried {
            tracing::warn!(%problem, "the canary does not sing");
        }
        *last = Some((Instant::now(), tried.is_ok()));
        tried.is_ok()
    }

    async fn try_it(&self, app: &App) -> Result<(), Problem> {
        let name = format!("canary-{}", crate::tokens::random_hex(4).unwrap_or_default());
        let request = CreateRequest {
            name: SandboxName::parse(&name).ok(),
            project: self.project.clone(),
            home: app.home.clone(),
            host_env: app.environment.clone(),
            ..CreateRequest::default()
        };
        let made = app.ask_own(Call::Create { request: Box::new(request) }).await?.json()?;
        let sandbox = made["id"].as_str().unwrap_or_default().to_owned();
        let ran = self.run(app, sandbox.clone()).await;
        let removed = app.ask_own(Call::Remove { sandbox, discard: true }).await;
        ran.and(removed.map(drop))
    }

    async fn run(&self, app: &App, sandbox: String) -> Result<(), Problem> {
        let spec = Box::new(ExecSpec { argv: vec!["true".into()], ..ExecSpec::default() });
        let call = Call::Exec { sandbox, spec, attach: true };
        let mut reply = app.ask_own(call).await?;
        let failed = |why: &str| Problem::new(skep_types::Code::Internal, why);
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
