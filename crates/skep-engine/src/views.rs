//! Sandboxes as shown: with sizes, running execs and warnings.

use crate::api::{ListFilter, SandboxView};
use crate::problems::{OrProblem, unless_full};
use crate::{Engine, usage};
use skep_store::SandboxFilter;
use skep_types::{ByteSize, ByteString, Problem, Sandbox};

impl Engine {
    pub(crate) fn view(&self, sandbox: Sandbox) -> Result<SandboxView, Problem> {
        unless_full(self.take_in_of(&sandbox.id))?;
        let usage = usage::of(&self.workspace(&sandbox).upper).unwrap_or_default();
        let running = self.store.running_execs(Some(&sandbox.id)).or_problem()?;
        let mut still = Vec::new();
        for exec in running {
            let exec = self.refresh(exec)?;
            if exec.end.is_none() {
                still.push(exec.id);
            }
        }
        let warnings = self.warnings(&sandbox, usage.bytes)?;
        Ok(SandboxView {
            sandbox,
            upper_bytes: usage.bytes,
            upper_inodes: usage.inodes,
            largest: usage.largest,
            running: still,
            warnings,
            facts: Default::default(),
        })
    }

    fn warnings(&self, sandbox: &Sandbox, bytes: u64) -> Result<Vec<String>, Problem> {
        let mut warnings = self.touched_by_siblings(sandbox)?;
        warnings.extend(self.unsettled_warnings(&sandbox.project));
        warnings.extend(self.mount_warnings(sandbox));
        warnings.extend(self.egress_death(sandbox)?.map(|death| death.sentence()));
        // A broken settings file must not keep anybody from looking at a sandbox.
        if let Ok((settings, _)) = self.settings(Some(sandbox.project.as_path()), None)
            && bytes > settings.warn_upper_size.0
        {
            warnings.push(format!(
                "{} in the upper, more than {} (`warn.upper_size`)",
                ByteSize(bytes),
                settings.warn_upper_size
            ));
        }
        Ok(warnings)
    }

    pub(crate) fn list_views(&self, filter: &ListFilter) -> Result<Vec<SandboxView>, Problem> {
        let project = filter.project.as_ref().map(|path| {
            ByteString::from(std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()))
        });
        let filter = SandboxFilter {
            project,
            states: filter.state.into_iter().collect(),
            ..SandboxFilter::default()
        };
        let mut sandboxes = self.store.list_sandboxes(&filter).or_problem()?;
        sandboxes.retain(|sandbox| !crate::pool::is_nobodys(sandbox));
        sandboxes.reverse();
        sandboxes.into_iter().map(|sandbox| self.view(sandbox)).collect()
    }
}
