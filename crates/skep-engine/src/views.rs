//! Sandboxes as shown: with sizes, running execs and warnings.

use crate::api::{ListFilter, SandboxView};
use crate::problems::{OrProblem, unless_full};
use crate::{Engine, usage};
use skep_store::SandboxFilter;
use skep_types::{ByteSize, ByteString, Problem, Sandbox, StraysEnded};

impl Engine {
    pub(crate) fn view(&self, sandbox: Sandbox) -> Result<SandboxView, Problem> {
        unless_full(self.take_in_of(&sandbox.id))?;
        let workspace = self.workspace(&sandbox);
        let usage = usage::of(&workspace.upper).unwrap_or_default();
        // Most have none.
        let base_bytes = usage::of(&workspace.memory).unwrap_or_default().bytes;
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
            base_bytes,
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
        warnings.extend(self.strays_ended(sandbox)?.map(|ended| ended.sentence()));
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

    /// Whether a limit ended what no exec had left to answer for; the first who asks tells it as an event.
    fn strays_ended(&self, sandbox: &Sandbox) -> Result<Option<StraysEnded>, Problem> {
        let directory = self.layout().sandbox(&sandbox.id);
        let Ok(bytes) = std::fs::read(directory.join(StraysEnded::FILE)) else { return Ok(None) };
        // It may be half written; whoever looks next sees the whole.
        let Ok(ended) = serde_json::from_slice::<StraysEnded>(&bytes) else { return Ok(None) };
        if std::fs::File::create_new(directory.join(ended.told())).is_ok() {
            let data = serde_json::json!({ "reason": ended.reason });
            let event = self.event("strays.ended", &sandbox.id, None, data);
            self.store.append_events(&[event]).or_problem()?;
        }
        Ok(Some(ended))
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
