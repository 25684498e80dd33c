//! Forks: new sandboxes on the same layers.

use super::{copy_tree, new_upper};
use crate::Engine;
use crate::create::self_identity;
use crate::problems::io_problem;
use crate::quota::{TRIAL, Wanted};
use serde_json::{Value, json};
use skep_store::ScopeMode;
use skep_sys::failpoint;
use skep_types::{
    Code, LayerId, Problem, Sandbox, SandboxId, SandboxName, SandboxState, WorkspaceDriver,
};

/// The longest name a sandbox can have.
const LONGEST_NAME: usize = 63;
/// How many numbers are tried for a name nobody asked for.
const NAME_TRIES: u32 = 10_000;
/// Says where a fork came from.
const PARENT_LABEL: &str = "skep.forked_from";

impl Engine {
    /// All or none. The forks are at rest: the first exec starts them.
    pub(crate) fn fork_sandbox(
        &self,
        id: &SandboxId,
        count: u32,
        name: Option<&SandboxName>,
    ) -> Result<Vec<Sandbox>, Problem> {
        let (parent, _lock) = self.lock_sandbox(id)?;
        let (settings, _) = self.settings(None, None)?;
        let wanted = Wanted { sandboxes: u64::from(count), runs: None, id: None };
        let _counted = self.check_quota(&settings.quota, &wanted)?;
        let (parent, layers) = self.state_as_layers(parent)?;
        let mut forks = Vec::new();
        let mut number = 0;
        for _ in 0..count {
            match self.fork_once(&parent, &layers, count, name, &mut number) {
                Ok(fork) => forks.push(fork),
                Err(problem) => {
                    for fork in &forks {
                        self.tear_down(fork, "another fork of the same request failed");
                    }
                    self.sweep_layers(&layers)?;
                    return Err(problem);
                }
            }
        }
        if parent.driver == WorkspaceDriver::Copy {
            // Each fork has a copy of its own; this one was only to copy from.
            self.sweep_layers(&layers)?;
        }
        Ok(forks)
    }

    fn fork_once(
        &self,
        parent: &Sandbox,
        layers: &[LayerId],
        count: u32,
        name: Option<&SandboxName>,
        number: &mut u32,
    ) -> Result<Sandbox, Problem> {
        loop {
            *number += 1;
            let chosen = match name {
                Some(name) if count == 1 => name.clone(),
                Some(name) => numbered(name, *number)?,
                None => numbered(&parent.name, *number)?,
            };
            let draft = self.fork_draft(parent, layers, chosen)?;
            match self.insert(draft, false, ScopeMode::Shared) {
                Ok(fork) => return self.equip_fork(parent, layers, fork),
                // A number that is taken is passed over, unless the name was asked for.
                Err(problem)
                    if problem.code == Code::AlreadyExists
                        && name.is_none()
                        && *number < NAME_TRIES => {}
                Err(problem) => return Err(problem),
            }
        }
    }

    fn fork_draft(
        &self,
        parent: &Sandbox,
        layers: &[LayerId],
        name: SandboxName,
    ) -> Result<Sandbox, Problem> {
        let now = self.now();
        let mut labels = parent.labels.clone();
        labels.insert(PARENT_LABEL.into(), parent.name.to_string());
        // Whoever forks a trial means to keep it.
        labels.remove(TRIAL);
        let mut policy = parent.policy.clone();
        // A port of the host leads to one sandbox only.
        policy.egress.publish.clear();
        Ok(Sandbox {
            id: SandboxId::from_random((self.config.random)()),
            name,
            state: SandboxState::Creating,
            state_reason: None,
            layers: match parent.driver {
                WorkspaceDriver::Copy => Vec::new(),
                _ => layers.to_vec(),
            },
            keeper: Some(self_identity()?),
            policy,
            labels,
            created_at: now.clone(),
            updated_at: now,
            version: 0,
            ..parent.clone()
        })
    }

    fn equip_fork(
        &self,
        parent: &Sandbox,
        layers: &[LayerId],
        fork: Sandbox,
    ) -> Result<Sandbox, Problem> {
        let made = self.make_directories(&fork).and_then(|()| {
            let (from, to) = (self.layout().sandbox(&parent.id), self.layout().sandbox(&fork.id));
            let upper = to.join("upper");
            let failed = |error: std::io::Error| io_problem("fork to", &upper, &error);
            std::fs::remove_dir(&upper).map_err(failed)?;
            match (fork.driver, layers.first()) {
                (WorkspaceDriver::Copy, Some(copy)) => {
                    copy_tree(&self.layout().layer(copy), &upper).map_err(failed)?;
                }
                _ => new_upper(&upper, &from.join("upper")).map_err(failed)?,
            }
            self.carry_system(parent, &fork)?;
            self.carry_memory(&from.join("base"), &to.join("base"))?;
            self.check_layers(&fork)?;
            failpoint::hit("fork.made").map_err(failed)?;
            let data = json!({ "from": parent.name });
            let made = self.update(&fork.id, "sandbox.forked", data, &mut |row| {
                row.state = SandboxState::Stopped;
                row.keeper = None;
            })?;
            // If that row is lost, this tells that it was there; without it a fork is made anew.
            let _ = std::fs::write(to.join(crate::layout::FORKED), b"");
            Ok(made)
        });
        if made.is_err() {
            self.tear_down(&fork, "fork failed");
        }
        made
    }

    /// Layers that were swept away between being read and being referred to.
    pub(crate) fn check_layers(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let missing = sandbox.layers.iter().find(|layer| !self.layout().layer(layer).is_dir());
        match missing {
            None => Ok(()),
            Some(layer) => {
                let message = format!("layer `{layer}` is gone: what it belonged to was removed");
                Err(Problem::new(Code::Conflict, message).details(Value::Null))
            }
        }
    }
}

/// `stem-3`, with the stem cut where the name would get too long.
fn numbered(stem: &SandboxName, number: u32) -> Result<SandboxName, Problem> {
    let tail = format!("-{number}");
    let stem: String = stem.as_str().chars().take(LONGEST_NAME - tail.len()).collect();
    SandboxName::parse(&format!("{stem}{tail}"))
        .map_err(|error| Problem::from_error(Code::Usage, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_stem_gives_way_to_the_number() {
        let short = SandboxName::parse("fix").unwrap();
        assert_eq!(numbered(&short, 12).unwrap().as_str(), "fix-12");
        let long = SandboxName::parse(&"x".repeat(63)).unwrap();
        let name = numbered(&long, 100).unwrap();
        assert!(name.as_str().ends_with("x-100") && name.as_str().len() == 63);
    }
}
