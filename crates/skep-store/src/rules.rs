//! Rules that are the same in every database: what a change may touch, which moves there are, how
//! an id is found by its start, scopes, names of holders. The databases fetch and write; what is
//! allowed is decided here.

use crate::{APPROVAL_MOVES, ExecMoves, Expect, NewEvent, Result, ScopeConflict, StoreError};
use skep_types::{
    Approval, ApprovalId, ApprovalKind, ApprovalState, ByteString, ExecId, RelPath, Sandbox,
    SandboxId, SandboxState,
};

/// A sandbox after a change: id and creation stay, the version is the next, and the state moves as
/// the table allows.
pub(crate) fn changed_sandbox(
    before: &Sandbox,
    change: &mut dyn FnMut(&mut Sandbox),
) -> Result<Sandbox> {
    let mut after = before.clone();
    change(&mut after);
    after.id = before.id.clone();
    after.created_at = before.created_at.clone();
    after.version = before.version + 1;
    let illegal = |source| StoreError::IllegalState { id: before.id.clone(), source };
    before.state.check_move(after.state).map_err(illegal)?;
    Ok(after)
}

/// The same for one that was made ahead: it is created when the change says.
pub(crate) fn claimed_sandbox(
    before: &Sandbox,
    change: &mut dyn FnMut(&mut Sandbox),
) -> Result<Sandbox> {
    let mut created_at = before.created_at.clone();
    let mut after = changed_sandbox(before, &mut |row| {
        change(row);
        created_at.clone_from(&row.created_at);
    })?;
    after.created_at = created_at;
    Ok(after)
}

/// The events that tell of some execs: an exec that is known already has had its own.
pub(crate) fn events_of(new: &[&ExecId], events: &[NewEvent]) -> Vec<NewEvent> {
    let is_new = |event: &&NewEvent| event.exec.as_ref().is_some_and(|exec| new.contains(&exec));
    events.iter().filter(is_new).cloned().collect()
}

/// Refuses a change that was decided on another version.
pub(crate) fn check_version(sandbox: &Sandbox, expect: Expect) -> Result<()> {
    match expect.version {
        Some(expected) if expected != sandbox.version => {
            let (id, found) = (sandbox.id.clone(), sandbox.version);
            Err(StoreError::StaleVersion { id, expected, found })
        }
        _ => Ok(()),
    }
}

/// Refuses a change by somebody whose lease was taken over.
pub(crate) fn check_epoch(id: &SandboxId, expected: u64, found: u64) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(StoreError::StaleLease { id: id.clone(), expected, found })
}

/// Refuses a sandbox that was deleted: nothing begins in it any more.
pub(crate) fn refuse_deleted(sandbox: &Sandbox) -> Result<()> {
    match sandbox.state {
        SandboxState::Deleted => Err(sandbox_not_found(&sandbox.id)),
        _ => Ok(()),
    }
}

/// The same for execs that come with a change: one that only ends execs may be the deletion itself.
pub(crate) fn check_moves(sandbox: &Sandbox, moves: &ExecMoves<'_>) -> Result<()> {
    if moves.begun.is_empty() { Ok(()) } else { refuse_deleted(sandbox) }
}

pub(crate) fn sandbox_not_found(id: &SandboxId) -> StoreError {
    StoreError::NotFound { what: "sandbox", name: id.to_string() }
}

pub(crate) fn sandbox_taken(name: impl ToString) -> StoreError {
    StoreError::AlreadyExists { what: "sandbox", name: name.to_string() }
}

/// A scope that is held.
pub(crate) struct HeldScope {
    pub sandbox: SandboxId,
    project: Vec<u8>,
    pub scope: RelPath,
}

impl HeldScope {
    /// As its row says it.
    pub(crate) fn parse(id: &str, project: Vec<u8>, scope: &[u8]) -> Result<Self> {
        let damaged = |detail: String| StoreError::Damaged {
            table: "scope_locks",
            id: id.to_owned(),
            detail,
        };
        let sandbox = id.parse().map_err(|_| damaged("not an id".to_owned()))?;
        let scope = RelPath::parse(scope).map_err(|error| damaged(error.to_string()))?;
        Ok(Self { sandbox, project, scope })
    }

    /// Whether one of these scopes of a project is the same place, above it or below it. One project may lie
    /// in another.
    pub(crate) fn is_in_the_way_of(&self, project: &ByteString, wanted: &[RelPath]) -> bool {
        let held = place(&self.project, &self.scope);
        wanted.iter().any(|scope| overlap(&held, &place(project.as_bytes(), scope)))
    }
}

/// Where a scope is.
fn place(project: &[u8], scope: &RelPath) -> Vec<u8> {
    match scope.is_root() {
        true => project.to_vec(),
        false => [project, b"/", scope.as_bytes()].concat(),
    }
}

/// Refuses scopes that others stand in the way of.
pub(crate) fn refuse_overlap(sandbox: &Sandbox, conflicts: Vec<ScopeConflict>) -> Result<()> {
    if conflicts.is_empty() {
        return Ok(());
    }
    Err(StoreError::ScopeLocked { project: sandbox.project.clone(), conflicts })
}

/// How much of an id must be given. A word of one letter begins some id sooner or later, of any
/// project: a name that is gone, or mistyped, would quietly mean somebody else's sandbox.
const SHORTEST_START: usize = 6;

/// The end of the range of ids that start with `text`. A text that no id starts with, or that is too
/// short to mean one, is not found: that also keeps the range simple, every character of an id is
/// below `{`.
pub(crate) fn id_range_end(what: &'static str, text: &str) -> Result<String> {
    let is_start = text.len() >= SHORTEST_START
        && text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
    if is_start { Ok(format!("{text}{{")) } else { Err(no_such_id(what, text)) }
}

/// Whether a text is a whole id.
pub(crate) fn is_id(text: &str) -> bool {
    text.parse::<SandboxId>().is_ok()
}

/// The one id that starts with `text`.
pub(crate) fn only_id(what: &'static str, text: &str, found: Vec<String>) -> Result<String> {
    match <[String; 1]>::try_from(found) {
        Ok([id]) => Ok(id),
        Err(none) if none.is_empty() => Err(no_such_id(what, text)),
        Err(candidates) => Err(StoreError::Ambiguous { what, prefix: text.to_owned(), candidates }),
    }
}

pub(crate) fn no_such_id(what: &'static str, text: &str) -> StoreError {
    StoreError::NotFound { what, name: text.to_owned() }
}

/// What was found by a text, or nothing where it names none or several.
pub(crate) fn if_any<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(StoreError::NotFound { .. } | StoreError::Ambiguous { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// No scope in the policy means the whole project.
pub(crate) fn scopes(sandbox: &Sandbox) -> Vec<RelPath> {
    match sandbox.policy.scope.as_slice() {
        [] => vec![RelPath::root()],
        scopes => scopes.to_vec(),
    }
}

/// Whether one of two places is the other or holds it.
fn overlap(a: &[u8], b: &[u8]) -> bool {
    let holds = |above: &[u8], below: &[u8]| {
        above.is_empty()
            || below
                .strip_prefix(above)
                .is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
    };
    holds(a, b) || holds(b, a)
}

// An id has no `/`, so no two holders have the same text.
pub(crate) fn sandbox_holder(id: &SandboxId) -> String {
    format!("sandbox/{id}")
}

pub(crate) fn snapshot_holder(sandbox: &SandboxId, label: &str) -> String {
    format!("snapshot/{sandbox}/{label}")
}

pub(crate) fn template_holder(name: &str) -> String {
    format!("template/{name}")
}

pub(crate) fn approval_not_found(id: &ApprovalId) -> StoreError {
    StoreError::NotFound { what: "approval", name: id.to_string() }
}

pub(crate) fn illegal_move(
    approval: &Approval,
    from: ApprovalState,
    to: ApprovalState,
) -> StoreError {
    StoreError::IllegalApprovalMove { id: approval.id.clone(), from, to }
}

pub(crate) fn check_approval_move(approval: &Approval, to: ApprovalState) -> Result<()> {
    let from = approval.state;
    if from == to || APPROVAL_MOVES.contains(&(from, to)) {
        Ok(())
    } else {
        Err(illegal_move(approval, from, to))
    }
}

/// An approval after a move: what it is of stays, and the state is the one it moves to.
pub(crate) fn moved_approval(
    before: &Approval,
    to: ApprovalState,
    change: &mut dyn FnMut(&mut Approval),
) -> Result<Approval> {
    check_approval_move(before, to)?;
    let mut after = before.clone();
    change(&mut after);
    after.id = before.id.clone();
    after.kind = before.kind.clone();
    after.sandbox = before.sandbox.clone();
    after.project = before.project.clone();
    after.state = to;
    Ok(after)
}

/// What an undo that passes its commit point reverses; then [`check_single_undo`] is to be asked.
pub(crate) fn reverses_at_commit(before: &Approval, to: ApprovalState) -> Option<&ApprovalId> {
    match (&before.kind, before.state, to) {
        (ApprovalKind::Undo { of }, ApprovalState::Applying, ApprovalState::Committed) => Some(of),
        _ => None,
    }
}

/// Only of one that has not passed its commit point nothing can be in the project.
pub(crate) fn check_refusable(approval: &Approval) -> Result<()> {
    match approval.state {
        ApprovalState::Applying => Ok(()),
        state => Err(illegal_move(approval, state, ApprovalState::Applying)),
    }
}

/// Two undos of one approval may be staged at once; only the first may pass the commit point.
/// `begun` are those of the project that have passed it.
pub(crate) fn check_single_undo(
    undo: &Approval,
    reversed: &Approval,
    begun: &[Approval],
) -> Result<()> {
    if reversed.state != ApprovalState::Applied {
        return Err(illegal_move(reversed, reversed.state, ApprovalState::Undone));
    }
    if begun.iter().any(|other| other.kind == undo.kind) {
        return Err(illegal_move(undo, undo.state, ApprovalState::Committed));
    }
    Ok(())
}

/// What an undo that has just come into the project has undone; both are true at once.
pub(crate) fn undoes(before: ApprovalState, after: &Approval) -> Option<&ApprovalId> {
    match &after.kind {
        ApprovalKind::Undo { of }
            if after.state == ApprovalState::Applied && before != after.state =>
        {
            Some(of)
        }
        _ => None,
    }
}

/// The approval that an undo has undone.
pub(crate) fn undone(mut reversed: Approval) -> Result<Approval> {
    check_approval_move(&reversed, ApprovalState::Undone)?;
    reversed.state = ApprovalState::Undone;
    Ok(reversed)
}

/// The word in the `state` column, as in the JSON.
pub(crate) fn state_word(state: ApprovalState) -> &'static str {
    match state {
        ApprovalState::Applying => "applying",
        ApprovalState::Committed => "committed",
        ApprovalState::Applied => "applied",
        ApprovalState::Aborted => "aborted",
        ApprovalState::Undone => "undone",
        ApprovalState::NeedsAttention => "needs_attention",
    }
}

/// A path and everything below it, as bounds of an index.
pub(crate) struct PathRange<'a> {
    /// The path itself; `None` lets everything through.
    pub path: Option<&'a [u8]>,
    /// Everything below lies from here on …
    pub from: Vec<u8>,
    /// … and before this.
    pub until: Vec<u8>,
}

impl<'a> PathRange<'a> {
    /// Everything below `dir` lies between `dir/` and `dir0`: `0` follows `/`.
    pub(crate) fn below(path: Option<&'a RelPath>) -> Self {
        match path {
            Some(path) if !path.is_root() => {
                let bytes = path.as_bytes();
                let (from, until) = ([bytes, b"/"].concat(), [bytes, b"0"].concat());
                Self { path: Some(bytes), from, until }
            }
            _ => Self { path: None, from: Vec::new(), until: Vec::new() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_overlap_by_component() {
        let overlaps = |a: &str, b: &str| overlap(a.as_bytes(), b.as_bytes());
        for (a, b) in [("", "x"), ("x", "x"), ("x", "x/y"), ("x/y/z", "x"), ("", "")] {
            assert!(overlaps(a, b) && overlaps(b, a), "{a} {b}");
        }
        for (a, b) in [("x", "y"), ("x", "xy"), ("x/a", "x/b"), ("x/a", "x/ab")] {
            assert!(!overlaps(a, b) && !overlaps(b, a), "{a} {b}");
        }
    }

    #[test]
    fn a_project_in_a_locked_one_is_in_its_way() {
        let id = skep_types::SandboxId::from_random([7; 10]);
        let path = |text: &str| RelPath::parse(text.as_bytes()).unwrap();
        let held = |project: &str, scope: &str| {
            HeldScope::parse(id.as_str(), project.into(), scope.as_bytes()).unwrap()
        };
        let stands = |held: &HeldScope, project: &str, scope: &str| {
            held.is_in_the_way_of(&ByteString::from(project), &[path(scope)])
        };
        let whole = held("/a/b", "");
        for (project, scope) in
            [("/a/b", ""), ("/a/b", "x"), ("/a/b/c", ""), ("/a", ""), ("/a", "b")]
        {
            assert!(stands(&whole, project, scope), "{project} {scope}");
        }
        for (project, scope) in [("/a/bc", ""), ("/a", "c"), ("/x", "")] {
            assert!(!stands(&whole, project, scope), "{project} {scope}");
        }
        let part = held("/a/b", "src");
        assert!(stands(&part, "/a/b/src/x", "") && stands(&part, "/a", "b/src"));
        assert!(!stands(&part, "/a/b/doc", "") && !stands(&part, "/a/b", "doc"));
    }
}
