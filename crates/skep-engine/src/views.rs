//! Sandboxes as shown: with sizes, running execs and warnings.

use crate::api::{ListFilter, SandboxView};
use crate::early_warning::Siblings;
use crate::problems::{OrProblem, unless_unwritable};
use crate::{Engine, usage};
use serde::{Deserialize, Serialize};
use skep_store::SandboxFilter;
use skep_types::{ByteSize, ByteString, Problem, Sandbox, SandboxId, StraysEnded};

impl Engine {
    pub(crate) fn view(&self, sandbox: Sandbox) -> Result<SandboxView, Problem> {
        self.view_among(sandbox, &mut Siblings::default())
    }

    /// All of them, each with what it has to do with the others.
    fn views(&self, sandboxes: Vec<Sandbox>) -> Result<Vec<SandboxView>, Problem> {
        let mut siblings = Siblings::default();
        sandboxes.into_iter().map(|one| self.view_among(one, &mut siblings)).collect()
    }

    fn view_among(
        &self,
        sandbox: Sandbox,
        siblings: &mut Siblings,
    ) -> Result<SandboxView, Problem> {
        // The trouble of this one, which its row tells from now on.
        if let Err(problem) = unless_unwritable(self.take_in_of(&sandbox.id)) {
            let _ = self.note_unread(&sandbox.id, &problem);
        }
        let workspace = self.workspace(&sandbox);
        let usage = usage::of(&workspace.upper).unwrap_or_default();
        // Most have none.
        let base_bytes = usage::of(&workspace.memory).unwrap_or_default().bytes;
        let system = self.layout().sandbox(&sandbox.id).join("system");
        let system_bytes = usage::of_system(&system);
        let running = self.store.running_execs(Some(&sandbox.id)).or_problem()?;
        let mut still = Vec::new();
        for exec in running {
            let exec = self.refresh(exec)?;
            if exec.end.is_none() {
                still.push(exec.id);
            }
        }
        let bytes = usage.bytes.saturating_add(system_bytes);
        let warnings = self.warnings(&sandbox, bytes, siblings)?;
        Ok(SandboxView {
            sandbox,
            upper_bytes: usage.bytes,
            upper_inodes: usage.inodes,
            base_bytes,
            system_bytes,
            largest: usage.largest,
            running: still,
            warnings,
            facts: Default::default(),
        })
    }

    fn warnings(
        &self,
        sandbox: &Sandbox,
        bytes: u64,
        siblings: &mut Siblings,
    ) -> Result<Vec<String>, Problem> {
        let mut warnings = self.touched_by_siblings(sandbox, siblings)?;
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
        self.views(self.listed(filter)?)
    }

    /// A part of the list, newest first: only what is in it is looked at.
    pub fn list_page(
        &self,
        filter: &ListFilter,
        page: &Page,
    ) -> Result<(Vec<SandboxView>, Option<PageEnd>), Problem> {
        let mut sandboxes = self.listed(filter)?;
        if let Some(label) = &page.label {
            sandboxes.retain(|sandbox| has_label(sandbox, label));
        }
        if let Some(end) = &page.after {
            end.cut(&mut sandboxes);
        }
        let more = sandboxes.len() > page.limit;
        sandboxes.truncate(page.limit);
        let end = more.then(|| PageEnd::behind(&sandboxes, page.after.as_ref())).flatten();
        Ok((self.views(sandboxes)?, end))
    }

    fn listed(&self, filter: &ListFilter) -> Result<Vec<Sandbox>, Problem> {
        let project = filter.project.as_ref().map(|path| {
            ByteString::from(std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()))
        });
        let filter = SandboxFilter {
            project,
            states: filter.state.into_iter().collect(),
            ..SandboxFilter::default()
        };
        self.take_in_runs();
        let mut sandboxes = self.store.list_sandboxes(&filter).or_problem()?;
        sandboxes.retain(|sandbox| !crate::pool::is_nobodys(sandbox));
        sandboxes.reverse();
        Ok(sandboxes)
    }
}

/// Which part of a list is wanted.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Page {
    /// Only those with this label: `key=value`, or `key`.
    pub label: Option<String>,
    /// At most so many.
    pub limit: usize,
    /// Behind the end of the page before.
    pub after: Option<PageEnd>,
}

/// Where a page ends: when its last sandbox was made, and which of that moment were shown. So it stays good
/// when all of those are deleted meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageEnd {
    /// When the last one was made (RFC 3339).
    pub at: String,
    /// Those made then, on this page and the ones before; the last one first.
    pub shown: Vec<SandboxId>,
}

impl PageEnd {
    fn behind(page: &[Sandbox], before: Option<&Self>) -> Option<Self> {
        let at = page.last()?.created_at.clone();
        let same = page.iter().rev().filter(|one| one.created_at == at);
        let mut shown: Vec<_> = same.map(|one| one.id.clone()).collect();
        if let Some(before) = before.filter(|before| before.at == at) {
            shown.extend_from_slice(&before.shown);
        }
        Some(Self { at, shown })
    }

    /// Leaves what comes behind.
    fn cut(&self, sandboxes: &mut Vec<Sandbox>) {
        let last = sandboxes.iter().position(|one| Some(&one.id) == self.shown.first());
        match last {
            Some(last) => drop(sandboxes.drain(..=last)),
            None => sandboxes.retain(|sandbox| self.is_before(sandbox)),
        }
    }

    fn is_before(&self, sandbox: &Sandbox) -> bool {
        let time = |text: &str| text.parse::<jiff::Timestamp>().ok();
        match (time(&sandbox.created_at), time(&self.at)) {
            (Some(made), Some(at)) => made < at || made == at && !self.shown.contains(&sandbox.id),
            _ => false,
        }
    }
}

fn has_label(sandbox: &Sandbox, wanted: &str) -> bool {
    match wanted.split_once('=') {
        Some((key, value)) => sandbox.labels.get(key).is_some_and(|has| has == value),
        None => sandbox.labels.contains_key(wanted),
    }
}
