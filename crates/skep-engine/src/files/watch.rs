//! A sandbox's workspace, watched.

pub use skep_workspace::{Noticed, Watch};

use super::nothing_at;
use crate::Engine;
use crate::problems::OrProblem;
use skep_types::{Problem, RelPath, SandboxId};
use skep_workspace::WorkspaceSpec;

/// What is to be watched. It holds no descriptor, so that another process may begin.
#[derive(Debug)]
pub struct ToWatch {
    spec: WorkspaceSpec,
    below: RelPath,
}

impl ToWatch {
    /// Takes the first look.
    pub fn begin(&self) -> Result<Watch, Problem> {
        Watch::start(&self.spec, self.below.clone()).or_problem()
    }
}

impl Engine {
    /// What to watch of a sandbox: what is at `path` and below it. Nothing inside is paused for it.
    pub fn to_watch(&self, id: &SandboxId, path: &RelPath) -> Result<ToWatch, Problem> {
        let sandbox = self.load(id)?;
        let there = self.look_inside(id, |view| Ok(view.holder(path).or_problem()?.is_some()))?;
        if !there {
            return Err(nothing_at(path));
        }
        Ok(ToWatch { spec: self.workspace(&sandbox), below: path.clone() })
    }
}
