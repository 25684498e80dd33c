//! The way to the keeper of a running sandbox, without the store.
//!
//! A small file `ways/<name>` in the state directory says which sandbox a name meant when a command
//! was last run in it. It is derived, never the truth: the keeper is asked whether that is its name,
//! and whoever finds no file, no keeper or another answer asks the store. It goes with the
//! directory of its sandbox; until then it leads to a keeper that has ended.

use crate::api::StartedExec;
use crate::execs::check_spec;
use crate::layout::{Layout, make_private, may_be_there};
use crate::problems::OrProblem;
use serde::{Deserialize, Serialize};
use skep_provider::record::Begun;
use skep_provider::{Attach, Direct, DirectExec, Provider};
use skep_types::{ByteString, ExecId, ExecSpec, Problem, Sandbox, SandboxId, SandboxName};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Where a name leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Way {
    /// The sandbox.
    pub id: SandboxId,
    /// Its name.
    pub name: SandboxName,
    /// Its project.
    pub project: ByteString,
    /// Its provider, as it was typed.
    pub provider: String,
    /// When its time to live is over (RFC 3339), if it has one.
    #[serde(default)]
    pub expires_at: Option<String>,
    /// Where commands start in it, if it names a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<ByteString>,
}

impl Way {
    /// The way that is remembered for a name, if one is.
    pub fn find(layout: &Layout, name: &str) -> Option<Self> {
        let name = SandboxName::parse(name).ok()?;
        let way: Self = serde_json::from_slice(&std::fs::read(layout.way(&name)).ok()?).ok()?;
        (way.name == name).then_some(way)
    }

    /// Remembers the way to a sandbox. Where that cannot be done, the store is asked next time too.
    pub fn remember(layout: &Layout, sandbox: &Sandbox) {
        let way = Self {
            id: sandbox.id.clone(),
            name: sandbox.name.clone(),
            project: sandbox.project.clone(),
            provider: sandbox.provider.clone(),
            expires_at: crate::gc::end_of_life(sandbox),
            workdir: sandbox.policy.workdir.clone(),
        };
        let _ = way.write(&layout.way(&sandbox.name));
        // Whoever removes the sandbox forgets the way when its directory is gone, and may have done so.
        if !layout.sandbox(&sandbox.id).exists() {
            forget(layout, sandbox);
        }
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let bytes = serde_json::to_vec(self)?;
        if let Some(parent) = path.parent() {
            make_private(parent)?;
        }
        // A name has no point, so nobody's way is called so.
        let new = path.with_extension(self.id.as_str());
        let mut file =
            File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&bytes).and_then(|()| std::fs::rename(&new, path))
    }

    /// Whether its time to live is over, or nobody can tell.
    fn is_over(&self, now: &str) -> bool {
        let Some(end) = &self.expires_at else { return false };
        match (end.parse::<jiff::Timestamp>(), now.parse::<jiff::Timestamp>()) {
            (Ok(end), Ok(now)) => end <= now,
            _ => true,
        }
    }

    /// Asks the keeper there for a command. `None`: whoever has the store must ask.
    ///
    /// What an engine would look at before, is looked at: the words of the command here, the state of
    /// the sandbox by its keeper. Roles are a server's, which does not come this way.
    pub fn exec(
        &self,
        layout: &Layout,
        provider: &dyn Provider,
        wish: Wish<'_>,
    ) -> Result<Option<StartedExec>, Problem> {
        let Wish { exec, spec, started_at, attach, no_input } = wish;
        // Whoever opens the store finishes what somebody died over, before a command sees half of it.
        let applying = may_be_there(&layout.applying());
        if check_spec(spec).is_err() || self.is_over(&started_at) || applying {
            return Ok(None);
        }
        let begun = Begun { spec: spec.clone(), started_at };
        let order = DirectExec {
            id: &self.id,
            name: &self.name,
            directory: &layout.sandbox(&self.id),
            exec: &exec,
            begun: &begun,
            attach,
            no_input,
        };
        match provider.exec_directly(&order).or_problem()? {
            Direct::AskTheStore => Ok(None),
            Direct::Started(stream) => Ok(Some(StartedExec { id: exec, stream })),
        }
    }
}

/// A command that somebody wants to run.
#[derive(Debug)]
pub struct Wish<'a> {
    /// Its id, never used before.
    pub exec: ExecId,
    /// What to run.
    pub spec: &'a ExecSpec,
    /// When it was asked for (RFC 3339).
    pub started_at: String,
    /// Whether the caller stays connected.
    pub attach: Attach,
    /// Whether its input has ended before it begins.
    pub no_input: bool,
}

/// Forgets the way to a sandbox, and what is left of one that somebody died over while writing it.
pub(crate) fn forget(layout: &Layout, sandbox: &Sandbox) {
    let way = layout.way(&sandbox.name);
    let _ = std::fs::remove_file(way.with_extension(sandbox.id.as_str()));
    let _ = std::fs::remove_file(way);
}
