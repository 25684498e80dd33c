//! What goes from the store with its time: events, rows of the deleted, approvals past their undo, execs
//! with their output, idempotency keys. A dry run counts the same.

use super::{Action, decision, spoken};
use crate::Engine;
use crate::api::{GcDecision, GcRequest};
use crate::problems::OrProblem;
use skep_policy::Retention;
use skep_store::{KeptSince, Outdated, SandboxFilter};
use skep_types::{Exec, ExecId, Problem, Sandbox};

/// Rows of one kind: what they are, how many, why they go, and the bytes on the disk that go with them.
pub(super) struct Rows {
    what: &'static str,
    count: u64,
    reason: String,
    bytes: u64,
}

/// Of each kind that something goes of, a decision.
pub(super) fn say(rows: Vec<Rows>, decisions: &mut Vec<GcDecision>) {
    for rows in rows.into_iter().filter(|rows| rows.count > 0) {
        let name = rows.count.to_string();
        decisions.push(decision(rows.what, &name, Action::Remove, rows.reason, rows.bytes));
    }
}

/// The files of one exec, behind its id.
const FILES: [&str; 6] = ["head", "tail0", "tail1", "end", "end.new", "record"];

impl Engine {
    pub(super) fn collect_rows(
        &self,
        request: &GcRequest,
        kept: &Retention,
    ) -> Result<Vec<Rows>, Problem> {
        let earlier =
            |age: Option<std::time::Duration>| age.map(|age| self.earlier(age)).transpose();
        let since = KeptSince {
            events: earlier(kept.events)?,
            deleted: earlier(Some(kept.deleted))?,
            approvals: earlier(kept.history)?,
            keys: Some(self.now()),
        };
        let gone = match request.dry_run {
            true => self.store.outdated(&since).or_problem()?,
            false => self.prune(&since)?,
        };
        let execs = self.forget_old_execs(kept, request.dry_run)?;
        let told = |what, count, reason| Rows { what, count, reason, bytes: 0 };
        let aged = |age: Option<std::time::Duration>| spoken(age.unwrap_or_default());
        let mut rows = vec![
            told("events", gone.events, format!("older than {}", aged(kept.events))),
            told(
                "rows of deleted sandboxes",
                gone.deleted,
                format!("deleted more than {} ago", spoken(kept.deleted)),
            ),
            told(
                "approvals",
                gone.approvals,
                format!("older than {}, past their undo", aged(kept.history)),
            ),
        ];
        rows.extend(execs);
        rows.push(told("idempotency keys", gone.keys, "expired".into()));
        if !request.dry_run {
            self.store.upkeep().map(drop).or_problem()?;
        }
        Ok(rows)
    }

    fn prune(&self, since: &KeptSince) -> Result<Outdated, Problem> {
        let mut gone = Outdated::default();
        if let Some(before) = &since.events {
            gone.events = self.store.prune_events(before).or_problem()?;
        }
        if let Some(before) = &since.deleted {
            gone.deleted = self.store.purge_deleted(before).or_problem()?.len() as u64;
        }
        if let Some(before) = &since.approvals {
            gone.approvals = self.store.forget_approvals(before).or_problem()?;
        }
        if let Some(now) = &since.keys {
            gone.keys = self.store.prune_keys(now).or_problem()?;
        }
        Ok(gone)
    }

    /// Ended execs of living sandboxes: the rows first, so that nobody is led to output that is not
    /// there, then the files.
    fn forget_old_execs(&self, kept: &Retention, dry_run: bool) -> Result<Vec<Rows>, Problem> {
        let mut all = Vec::new();
        for sandbox in self.store.list_sandboxes(&SandboxFilter::default()).or_problem()? {
            let old = self.old_execs(&sandbox, kept)?;
            if old.is_empty() {
                continue;
            }
            let files = self.files_of(&sandbox, &old);
            let bytes = files.iter().filter_map(|path| std::fs::metadata(path).ok());
            let bytes = bytes.map(|found| found.len()).sum();
            let count = match dry_run {
                true => old.len() as u64,
                false => self.store.forget_execs(&sandbox.id, &old).or_problem()?,
            };
            if !dry_run {
                for path in files {
                    // One that is not there any more, or not yet removable, is no reason to stop.
                    let _ = std::fs::remove_file(path);
                }
            }
            let reason =
                format!("of `{}`, beyond the newest {} or too old", sandbox.name, kept.execs_keep);
            all.push(Rows { what: "execs", count, reason, bytes });
        }
        Ok(all)
    }

    fn old_execs(&self, sandbox: &Sandbox, kept: &Retention) -> Result<Vec<ExecId>, Problem> {
        let execs = self.store.list_execs(&sandbox.id).or_problem()?;
        let ended = execs.into_iter().rev().filter(|exec| exec.end.is_some());
        let mut old = Vec::new();
        for (place, exec) in ended.enumerate() {
            if place as u64 >= kept.execs_keep || self.is_older(&exec, kept)? {
                old.push(exec.id);
            }
        }
        Ok(old)
    }

    fn is_older(&self, exec: &Exec, kept: &Retention) -> Result<bool, Problem> {
        match kept.execs {
            Some(most) => Ok(self.age(&exec.started_at)? > most),
            None => Ok(false),
        }
    }

    fn files_of(&self, sandbox: &Sandbox, execs: &[ExecId]) -> Vec<std::path::PathBuf> {
        let directory = self.layout().sandbox(&sandbox.id).join("execs");
        let of = |id: &ExecId| FILES.map(|kind| directory.join(format!("{id}.{kind}")));
        execs.iter().flat_map(of).collect()
    }
}
