//! Risk, acceptance and attribution of each change.

use crate::Engine;

use skep_policy::{AcceptanceRules, ChangeFacts, RiskTable, bare_repositories, in_bare_repository};
use skep_types::{Change, Code, EntryState, Exec, ExecId, Problem, RelPath, Sandbox};
use skep_workspace::tree::TreeRoot;

/// As much of a text as is looked at for deceptive characters.
const TEXT: u64 = 1 << 20;

impl Engine {
    /// Fills in what the workspace does not know: risk, verdict, and which exec wrote it.
    pub(super) fn judge(&self, sandbox: &Sandbox, changes: &mut [Change]) -> Result<(), Problem> {
        let table = RiskTable::builtin();
        let rules = AcceptanceRules::of(&sandbox.policy)
            .map_err(|error| Problem::from_error(Code::Usage, &error))?;
        let upper = TreeRoot::open(&self.workspace(sandbox).upper).ok();
        let project = TreeRoot::open(sandbox.project.as_path()).ok();
        let bare = bare(changes, upper.as_ref(), project.as_ref());
        let execs = if changes.is_empty() { Vec::new() } else { self.execs_of(&sandbox.id)? };
        for change in changes {
            let text = new_text(change, upper.as_ref());
            let facts = ChangeFacts {
                text: text.as_deref(),
                in_bare_repository: in_bare_repository(&change.path, &bare),
            };
            (change.risk, change.risk_reasons) = table.classify(change, &facts);
            if !rules.is_empty() {
                change.verdict = Some(rules.verdict_of(change));
            }
            change.exec = upper.as_ref().and_then(|upper| writer(upper, &change.path, &execs));
        }
        Ok(())
    }
}

/// Directories that would be taken for a git repository although they are not called `.git`.
fn bare(
    changes: &[Change],
    upper: Option<&TreeRoot>,
    project: Option<&TreeRoot>,
) -> std::collections::BTreeSet<RelPath> {
    let stands = |tree: Option<&TreeRoot>, path: &RelPath| {
        tree.is_some_and(|tree| tree.stat(path).is_ok_and(|stat| stat.is_some()))
    };
    let present =
        changes.iter().filter(|change| !change.new.is_absent()).map(|change| &change.path);
    bare_repositories(present, |path| stands(upper, path) || stands(project, path))
}

fn new_text(change: &Change, upper: Option<&TreeRoot>) -> Option<Vec<u8>> {
    let EntryState::File { .. } = change.new else { return None };
    if change.binary {
        return None;
    }
    upper?.read(&change.path, TEXT).ok()
}

/// The exec that was running when the entry last changed; the one started last, if several were.
fn writer(upper: &TreeRoot, path: &RelPath, execs: &[Exec]) -> Option<ExecId> {
    let stat = upper.stat(path).ok().flatten().or_else(|| {
        let parent = path.parent()?;
        upper.stat(&parent).ok().flatten()
    })?;
    let written = stat.st_ctime as i128 * 1_000 + stat.st_ctime_nsec as i128 / 1_000_000;
    let during = |exec: &&Exec| {
        let Some(start) = milliseconds(&exec.started_at) else { return false };
        let end = exec.end.as_ref().map(|end| start + i128::from(end.stats.duration_ms));
        // Both clocks are coarse; a tick either way still names the right one of two execs that
        // did not run at the same time.
        written + 10 >= start && end.is_none_or(|end| written <= end + 1_000)
    };
    execs.iter().filter(during).next_back().map(|exec| exec.id.clone())
}

fn milliseconds(time: &str) -> Option<i128> {
    let time: jiff::Timestamp = time.parse().ok()?;
    Some(i128::from(time.as_millisecond()))
}
