//! Taking a selection over.

use super::beside::{beside, check_beside};
use super::journal::{Direction, Note};
use super::left::{Commits, Left};
use crate::Engine;
use crate::api::{ApproveReport, ApproveRequest, CommitRequest};
use crate::lifecycle::note_decided;
use crate::problems::{OrProblem, about};
use serde_json::json;
use skep_policy::{GitBooks, PathSelector, is_wild};
use skep_types::{
    AppliedPath, Approval, ApprovalId, ApprovalKind, ApprovalState, Change, ChangeSetDigest, Code,
    EntryState, Problem, RelPath, Reviewed, Risk, Sandbox, SandboxId, SandboxState, Selection,
};
use skep_workspace::{Derived, Plan};
use std::collections::BTreeSet;

/// How many paths of a change set that is another one are named.
const SHOWN: usize = 100;

impl Engine {
    pub(crate) fn approve_selection(
        &self,
        id: &SandboxId,
        request: &ApproveRequest,
    ) -> Result<ApproveReport, Problem> {
        if request.check.as_ref().is_some_and(String::is_empty) {
            return Err(Problem::new(Code::Usage, "`check` names no command"));
        }
        let (report, failure) = self.approve_locked(id, request)?;
        let (Some(failure), Some(approval), Some(CommitRequest { or_undo: true, .. })) =
            (failure, &report.approval, &request.commit)
        else {
            return Ok(report);
        };
        let project = self.load(id)?.project;
        self.undo_approval(Some(approval), project.as_path())?;
        let message = format!("no commit was made, so nothing was applied: {}", failure.message);
        Err(Problem::new(failure.code, message))
    }

    /// Applies and commits; also says why no commit was made.
    fn approve_locked(
        &self,
        id: &SandboxId,
        request: &ApproveRequest,
    ) -> Result<(ApproveReport, Option<Problem>), Problem> {
        let _project = self.lock_project(&self.load(id)?.project)?;
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        let report = self.while_still(&sandbox, || self.approve_still(&sandbox, request))?;
        self.commit_approved(&sandbox, request, report)
    }

    /// A directory that the project did not have is the sandbox's alone for an overlay that is mounted, and what is
    /// removed from it later would leave no mark. Looked up anew it is both's.
    fn show_what_was_applied(&self, sandbox: &Sandbox) {
        if self.is_running(sandbox)
            && let Ok(provider) = self.provider(&sandbox.provider)
        {
            // Where that cannot be done, a stop does it.
            let _ = provider.refresh(&self.run_spec(sandbox));
        }
    }

    fn approve_still(
        &self,
        sandbox: &Sandbox,
        request: &ApproveRequest,
    ) -> Result<ApproveReport, Problem> {
        let mut derived = self.derive(sandbox)?;
        check_digest(request.digest, sandbox, &derived)?;
        self.judge(sandbox, &mut derived.changes, &derived.kept)?;
        check_meant(&request.allow_risky, &derived.changes, sandbox)?;
        let meant = selector(&request.allow_risky)?;
        let books = GitBooks::of(&derived.changes);
        let held: BTreeSet<&RelPath> =
            derived.changes.iter().filter(|change| books.hold(change)).map(|c| &c.path).collect();
        let named = named(&request.allow_risky);
        let apart = |path: &RelPath| held.contains(path) && !named.contains(path);
        let plan = skep_workspace::plan_leaving(
            &self.workspace(sandbox),
            &derived,
            &request.selection,
            &apart,
        )
        .or_problem()
        .map_err(about(sandbox))?;
        if request.digest.is_some() || request.beside.is_some() {
            check_beside(request.beside, sandbox, &derived, &plan)?;
        }
        let taken = taken(&derived.changes, &plan);
        let covered = |change: &Change| match change.risk {
            Risk::Block => named.contains(&change.path),
            _ => meant(&change.path),
        };
        check_risk(sandbox, &taken, &covered)?;
        check_rules(&taken)?;
        let mut notes = merge_notes(&derived, &plan);
        notes.extend(there_already(&plan));
        notes.extend(left_in_git(sandbox, books, plan.apart, &request.selection));
        let remaining_ignored = remaining_ignored(&derived, &plan);
        let mut report = ApproveReport {
            approval: None,
            digest: derived.digest,
            applied: listed(&derived.changes, &plan),
            remaining: plan.remaining as u64,
            remaining_ignored,
            commit: None,
            notes,
        };
        if request.dry_run {
            if let Some(command) = request.check.as_ref().filter(|_| !plan.targets.is_empty()) {
                self.gate(sandbox, &plan, command)?;
            }
            return Ok(report);
        }
        // Ignored paths and git's own are set apart and said; they are no work that waits.
        // What still runs may add to them when nobody looks any more.
        let left = Left::of(sandbox, &derived.changes);
        let nothing_waits = plan.remaining == plan.apart
            && left.commits != Commits::Waiting
            && (left.ignored + left.git == 0 || !self.anything_runs(sandbox)?);
        if plan.targets.is_empty() {
            // Nothing is written, and yet it is decided: it is no change any more.
            skep_workspace::settle(&self.workspace(sandbox), &plan.settlement).or_problem()?;
            if nothing_waits && request.selection.is_everything() && !derived.changes.is_empty() {
                self.all_reviewed(sandbox, SandboxState::Approved)?;
            }
            return Ok(report);
        }
        if let Some(command) = &request.check {
            self.gate(sandbox, &plan, command)?;
        }
        let approval = self.new_approval(sandbox, &derived, &plan, &request.selection);
        let direction = Direction::Settle;
        let note = Note { settlement: plan.settlement, direction, all: nothing_waits };
        let identity = (sandbox.base.device, sandbox.base.inode);
        let (approval, applied) = self.apply(approval, identity, plan.targets, &note)?;
        self.show_what_was_applied(sandbox);
        report.approval = Some(approval.id);
        report.notes.extend(
            applied
                .stripped
                .iter()
                .map(|path| format!("`{path}`: set-uid and set-gid bits were dropped")),
        );
        report.notes.extend(applied.late_writes.iter().map(|path| {
            format!("`{path}`: a program wrote to the old file while it was replaced; the write is in the backup")
        }));
        Ok(report)
    }

    /// Whether a command has not ended.
    fn anything_runs(&self, sandbox: &Sandbox) -> Result<bool, Problem> {
        let execs = self.execs_of(&sandbox.id)?;
        Ok(execs.iter().any(|exec| exec.end.is_none()))
    }

    /// Nothing is left to review.
    pub(super) fn all_reviewed(
        &self,
        sandbox: &Sandbox,
        state: SandboxState,
    ) -> Result<(), Problem> {
        if sandbox.state == SandboxState::Error {
            return Ok(());
        }
        self.update(&sandbox.id, &format!("sandbox.{state}"), json!({}), &mut |row| {
            match row.state {
                // Until it is thawed.
                SandboxState::Frozen => note_decided(row, Some(state)),
                _ => row.state = state,
            }
        })
        .map(drop)
    }

    fn new_approval(
        &self,
        sandbox: &Sandbox,
        derived: &Derived,
        plan: &Plan,
        selection: &Selection,
    ) -> Approval {
        let exec_of = |path: &RelPath| {
            let at = derived.changes.binary_search_by(|change| change.path.cmp(path)).ok()?;
            derived.changes.get(at).and_then(|change| change.exec.clone())
        };
        let paths = plan.targets.iter().map(|target| AppliedPath {
            path: target.path.clone(),
            before: target.before.clone(),
            after: target.after.clone(),
            exec: exec_of(&target.path),
        });
        Approval {
            id: ApprovalId::from_random((self.config.random)()),
            sandbox: sandbox.id.clone(),
            sandbox_name: sandbox.name.clone(),
            project: sandbox.project.clone(),
            kind: ApprovalKind::Approve,
            state: ApprovalState::Applying,
            digest: derived.digest,
            selection: selection.clone(),
            paths: paths.collect(),
            commit: None,
            approver: self.approver(),
            at: self.now(),
        }
    }
}

/// The reviewed change set, or nothing.
pub(super) fn check_digest(
    reviewed: Option<ChangeSetDigest>,
    sandbox: &Sandbox,
    derived: &Derived,
) -> Result<(), Problem> {
    let now = derived.digest;
    match reviewed {
        Some(reviewed) if reviewed != now => {
            let (all, name) = (Left::of(sandbox, &derived.changes).all(), &sandbox.name);
            let message = format!(
                "the change set is not the one that was reviewed ({reviewed}): it is {now} now, \
                 with {all}"
            );
            let shown = Reviewed { digest: now, beside: beside(derived) };
            let paths: Vec<_> = derived.changes.iter().take(SHOWN).map(|c| &c.path).collect();
            Err(Problem::new(Code::DigestMismatch, message)
                .hint(format!(
                    "nothing was changed; `skep diff {name}` shows it, `--digest {shown}` approves \
                     that one; `skep freeze {name}` holds what goes on writing inside"
                ))
                .details(json!({ "reviewed": reviewed, "now": now, "paths": paths })))
        }
        _ => Ok(()),
    }
}

/// The paths that are applied, as the change set has them: directories that are made on the way to a
/// file are none of its changes.
fn listed(changes: &[Change], plan: &Plan) -> Vec<RelPath> {
    let known: BTreeSet<&RelPath> = changes
        .iter()
        .flat_map(|change| std::iter::once(&change.path).chain(&change.renamed_from))
        .collect();
    let targets = plan.targets.iter().map(|target| &target.path);
    targets.filter(|path| known.contains(path)).cloned().collect()
}

/// The changes a plan takes over, in whole or in part.
fn taken<'a>(changes: &'a [Change], plan: &Plan) -> Vec<&'a Change> {
    // A new directory that is only made for what is in it comes as any other, not as it is inside.
    let made = |change: &Change, after: &EntryState| {
        change.old.is_absent() && matches!(after, EntryState::Dir { .. }) && *after != change.new
    };
    let hit = |change: &&Change| {
        let taken = plan.targets.binary_search_by(|target| target.path.cmp(&change.path)).ok();
        taken.and_then(|at| plan.targets.get(at)).is_some_and(|target| !made(change, &target.after))
            || change.renamed_from.as_ref().is_some_and(|from| plan.has(from))
    };
    changes.iter().filter(hit).collect()
}

/// A path that was named as risky and is not there, or is not risky, is a mistake. A glob speaks of
/// whatever there is.
fn check_meant(
    allowed: &[skep_types::ByteString],
    changes: &[Change],
    sandbox: &Sandbox,
) -> Result<(), Problem> {
    let is_glob =
        |word: &skep_types::ByteString| is_wild(&String::from_utf8_lossy(word.as_bytes()));
    for word in allowed.iter().filter(|word| !is_glob(word)) {
        let meant = selector(std::slice::from_ref(word))?;
        if !changes.iter().any(|change| change.risk != Risk::None && meant(&change.path)) {
            let message = format!("`--allow-risky {word}`: no change of that path is risky");
            return Err(Problem::new(Code::Usage, message)
                .hint(format!("`skep diff {}` lists what is", sandbox.name)));
        }
    }
    Ok(())
}

/// Whether a path was said to be meant although it is risky.
fn selector(allowed: &[skep_types::ByteString]) -> Result<impl Fn(&RelPath) -> bool, Problem> {
    let selector =
        PathSelector::parse(allowed).map_err(|error| Problem::from_error(Code::Usage, &error))?;
    let some = !allowed.is_empty();
    Ok(move |path: &RelPath| some && selector.matches(path))
}

/// The paths themselves. What can run on the host without being asked, and git's own, is taken only
/// by its own name, each: a glob or a directory says nothing of what lies there.
fn named(allowed: &[skep_types::ByteString]) -> BTreeSet<RelPath> {
    allowed.iter().filter_map(|word| RelPath::parse(word.as_bytes()).ok()).collect()
}

/// What is said of git's own changes that an approval of everything left where they are.
fn left_in_git(
    sandbox: &Sandbox,
    books: GitBooks,
    count: usize,
    selection: &Selection,
) -> Option<String> {
    if count == 0 || !selection.is_everything() {
        return None;
    }
    let name = &sandbox.name;
    Some(match books.new_repository {
        true => format!(
            "the repository made inside ({count} paths in `.git`) is left out: to have its commits, \
             `git init` here, then `skep pull {name}`"
        ),
        false => format!(
            "{count} of git's own changes in `.git` are left out; `skep pull {name}` brings commits \
             made inside"
        ),
    })
}

fn check_risk(
    sandbox: &Sandbox,
    taken: &[&Change],
    covered: &dyn Fn(&Change) -> bool,
) -> Result<(), Problem> {
    let risky: Vec<_> =
        taken.iter().filter(|change| change.risk >= Risk::Ask && !covered(change)).collect();
    if risky.is_empty() {
        return Ok(());
    }
    let list: Vec<_> = risky
        .iter()
        .map(|change| json!({ "path": change.path, "risk": change.risk, "reasons": change.risk_reasons }))
        .collect();
    let first = risky.first().map_or_else(String::new, |change| {
        format!("`{}` ({})", change.path, change.risk_reasons.first().map_or("", String::as_str))
    });
    let more =
        if risky.len() > 1 { format!(" and {} more", risky.len() - 1) } else { String::new() };
    let name = &sandbox.name;
    let inside_git = |change: &&&Change| change.path.components().next() == Some(b".git");
    let hint = if risky.iter().all(inside_git) {
        format!(
            "`.git` does not come back as files: `skep pull {name}` brings the commits made inside, \
             `skep approve {name} PATH…` applies other paths, `--allow-risky PATH` what is meant; \
             `skep reject {name} PATH` drops it, and everything else can be approved"
        )
    } else {
        format!(
            "`skep approve {name} PATH…` applies other paths; `--allow-risky PATH`, for each, what is \
             meant; `skep reject {name} PATH` drops it, and everything else can be approved"
        )
    };
    Err(Problem::new(Code::Risky, format!("risky changes need a word of their own: {first}{more}"))
        .hint(hint)
        .details(json!({ "risky": list })))
}

fn check_rules(taken: &[&Change]) -> Result<(), Problem> {
    let refused = taken.iter().find_map(|change| {
        let verdict = change.verdict.as_ref().filter(|verdict| !verdict.allowed)?;
        Some((change, verdict))
    });
    match refused {
        None => Ok(()),
        Some((change, verdict)) => {
            let message = format!("`{}` may not be approved: {}", change.path, verdict.reason);
            Err(Problem::new(Code::Refused, message)
                .hint("approve other paths by name, or change the rules"))
        }
    }
}

fn merge_notes(derived: &Derived, plan: &Plan) -> Vec<String> {
    let merged = derived.drift.iter().filter(|drift| plan.has(&drift.path));
    merged
        .map(|drift| format!("`{}` was merged with the project's newer version", drift.path))
        .collect()
}

/// What is said of picked changes that the project has, whoever made them.
fn there_already(plan: &Plan) -> Option<String> {
    let paths = plan.settlement.paths.iter().map(|settled| &settled.path);
    let mut there = paths.filter(|path| !plan.has(path));
    let first = there.next()?;
    let more = match there.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("`{first}`{more}: the project has that change already"))
}

fn remaining_ignored(derived: &Derived, plan: &Plan) -> u64 {
    let left = derived.changes.iter().filter(|change| change.ignored && !plan.has(&change.path));
    left.count() as u64
}
