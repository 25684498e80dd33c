//! What the project has beside a change set.
//!
//! A digest is over the sandbox's work. Where the project moved as well, an approval writes a merge
//! of both, which the digest does not cover. So a change set says what stood there, too, and an approval
//! that names a digest takes a merge only with what it names beside it (DESIGN.md §2, promise 2). Nothing
//! is remembered of who looked when: whoever has seen a merge has its name, and nobody else.

use serde_json::json;
use skep_types::{Code, ContentHash, Problem, RelPath, Sandbox};
use skep_workspace::{Derived, Plan};

/// Over everything that an approval would merge with, see [`skep_types::ChangeSet::beside`].
pub(super) fn beside(derived: &Derived) -> Option<ContentHash> {
    let moved = derived.moved();
    if moved.is_empty() {
        return None;
    }
    let each = |(path, project): &(RelPath, ContentHash)| {
        format!("{} {project}\n", ContentHash::of(path.as_bytes()))
    };
    Some(ContentHash::of(moved.iter().map(each).collect::<String>().as_bytes()))
}

/// Refuses a merge with anything but what was reviewed.
pub(super) fn check_beside(
    reviewed: Option<ContentHash>,
    sandbox: &Sandbox,
    derived: &Derived,
    plan: &Plan,
) -> Result<(), Problem> {
    let moved = derived.moved().into_iter().map(|(path, _)| path);
    let moved: Vec<RelPath> = moved.filter(|path| plan.has(path)).collect();
    let Some(first) = moved.first() else { return Ok(()) };
    if reviewed.is_some() && reviewed == beside(derived) {
        return Ok(());
    }
    let more = match moved.len() {
        1 => String::new(),
        many => format!(" and {} more", many - 1),
    };
    let name = &sandbox.name;
    let message = format!("the project moved since this change set was looked at: `{first}`{more}");
    Err(Problem::new(Code::Conflict, message)
        .hint(format!(
            "nothing was changed; `skep diff {name}` shows it, with a digest that takes the merge; \
             `skep conflicts {name} PATH --side project` prints what stands there"
        ))
        .details(json!({ "moved": moved })))
}
