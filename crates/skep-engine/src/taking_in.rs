//! Taking in what was done without the store: sandboxes of runs (`skep_store::DeferredStore`), and execs that
//! keepers were asked for directly. Their records become rows.
//!
//! `skep_provider::record` says how a record is written and where the news of it lies. Here the order
//! is: claim the news, read the records, write the rows, move the records, drop the news. Whoever dies
//! in between leaves the claimed news, and the next one does all of it again: a row is written once,
//! a record is moved once.

use crate::Engine;
use crate::layout::may_be_there;
use crate::lifecycle::{decided, pend};
use crate::problems::{OrProblem, io_problem};
use crate::reconcile::directory_names;
use serde_json::{Value, json};
use skep_provider::record::{self, Record};
use skep_store::{NewEvent, StoreError};
use skep_sys::failpoint;
use skep_types::{Exec, Problem, Sandbox, SandboxId, SandboxState};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

impl Engine {
    /// Takes in what every sandbox has. One look into one directory where there is nothing.
    ///
    /// Records that cannot be read are the trouble of their sandbox and of nobody else: its row says
    /// so, the news of them stay, and the others are gone on with.
    /// Whether there was something: then rows are others than before.
    pub(crate) fn take_in_all(&self) -> bool {
        let mut found = self.take_in_runs();
        for name in directory_names(&self.layout().news()) {
            let Some(id) = record::sandbox_of(&name) else { continue };
            found = true;
            if let Err(problem) = self.take_in_news(&id, &name) {
                let _ = self.note_unread(&id, &problem);
            }
        }
        found
    }

    /// Takes in sandboxes that were made without asking the store. One look into one directory where there
    /// are none. What cannot be written now is there for the next one. Whether there was something.
    pub(crate) fn take_in_runs(&self) -> bool {
        self.store.take_in_runs().is_ok_and(|taken| taken > 0)
    }

    pub(crate) fn note_unread(&self, id: &SandboxId, problem: &Problem) -> Result<(), Problem> {
        let reason = format!("some of its execs are not known: {}", problem.message);
        let sandbox = self.load(id)?;
        if sandbox.state_reason.as_ref() == Some(&reason) {
            return Ok(());
        }
        let data = json!({ "reason": reason });
        let note = &mut |row: &mut Sandbox| row.state_reason = Some(reason.clone());
        self.update(id, "sandbox.unread", data, note).map(drop)
    }

    /// Takes in what one sandbox has.
    pub(crate) fn take_in_of(&self, id: &SandboxId) -> Result<(), Problem> {
        self.take_in_news(id, id.as_str())
    }

    /// The news get a name of ours first: a record that is written after we have looked has news of
    /// its own, and if we die, ours are there for the next one.
    ///
    /// Where nothing may be changed, they are not even claimed: the records wait for a store that is sound.
    fn take_in_news(&self, id: &SandboxId, name: &str) -> Result<(), Problem> {
        if !self.store.takes_changes() {
            return Ok(());
        }
        let news = self.layout().news();
        let claimed = news.join(format!("{id}.{}", std::process::id()));
        match std::fs::rename(news.join(name), &claimed) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(io_problem("take in news of", &news, &error)),
            Ok(()) => {}
        }
        let failed = |error| io_problem("take in news of", &news, &error);
        failpoint::hit("taking.claimed").map_err(failed)?;
        match self.store.sandbox(id) {
            Ok(sandbox) => self.take_in(&sandbox)?,
            Err(StoreError::NotFound { .. }) if !may_be_there(&self.layout().sandbox(id)) => {}
            // A store that does not know it may be the wrong one, or damaged: the news wait.
            Err(_) => return Ok(()),
        }
        failpoint::hit("taking.moved").map_err(failed)?;
        remove(&claimed)
    }

    /// Takes in every record of a sandbox, news or not.
    pub(crate) fn take_in(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let directory = self.layout().sandbox(&sandbox.id);
        let failed = |error| io_problem("read the records in", &directory, &error);
        let mut records = record::waiting(&directory).map_err(failed)?;
        if records.is_empty() || sandbox.state == SandboxState::Deleted {
            return Ok(());
        }
        records.sort_by_cached_key(|record| instant(&record.begun.started_at));
        let execs: Vec<Exec> = records.iter().map(|record| exec_of(sandbox, record)).collect();
        let new = self.store.adopt_execs(&sandbox.id, &execs, &self.story(&execs)).or_problem()?;
        failpoint::hit("taking.rows").map_err(failed)?;
        for record in &records {
            record::taken_in(&directory, &record.exec).map_err(failed)?;
        }
        if new > 0 && decided(sandbox).is_some() {
            // A command has run since: there may be something to review again.
            self.update(&sandbox.id, "sandbox.ready", Value::Null, &mut pend)?;
        }
        Ok(())
    }

    /// What happened, in the order in which it did.
    fn story(&self, execs: &[Exec]) -> Vec<NewEvent> {
        let mut events = Vec::new();
        for exec in execs {
            events.push(NewEvent { at: exec.started_at.clone(), ..self.begins(exec) });
            if let Some(end) = &exec.end {
                let took = end.stats.duration_ms.map(Duration::from_millis);
                let at = took.and_then(|took| later(&exec.started_at, took));
                let at = at.unwrap_or_else(|| self.now());
                events.push(NewEvent { at, ..self.ends(exec, end) });
            }
        }
        // Stable: of one exec the start comes first.
        events.sort_by_cached_key(|event| instant(&event.at));
        events
    }
}

fn exec_of(sandbox: &Sandbox, record: &Record) -> Exec {
    let mut exec = Exec {
        id: record.exec.clone(),
        sandbox: sandbox.id.clone(),
        spec: record.begun.spec.clone(),
        started_at: record.begun.started_at.clone(),
        end: None,
        enforcement: sandbox.enforcement.clone(),
    };
    if let Some(end) = &record.end {
        exec.finish(end.clone());
    }
    exec
}

fn instant(time: &str) -> Option<jiff::Timestamp> {
    time.parse().ok()
}

fn later(start: &str, by: Duration) -> Option<String> {
    Some(instant(start)?.checked_add(by).ok()?.to_string())
}

fn remove(path: &Path) -> Result<(), Problem> {
    match std::fs::remove_file(path) {
        // Somebody else has claimed it after us, and takes in the same.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map_err(|error| io_problem("remove", path, &error)),
    }
}
