//! Several sandboxes side by side: who did what to which path, and how their commands ended.

use crate::Engine;
use crate::api::{CompareRow, Comparison};
use skep_types::{Change, ChangeKind, EntryState, Exec, Problem, RelPath, SandboxId, escape};
use std::collections::BTreeMap;

/// How many of the last execs are shown of each.
const EXECS: usize = 3;
/// Digits of a hash that tell two contents apart for a reader.
const HASH_DIGITS: usize = 8;
/// As much of a command as is shown.
const COMMAND: usize = 60;

impl Engine {
    pub(crate) fn compare_sandboxes(&self, ids: &[SandboxId]) -> Result<Comparison, Problem> {
        let mut did: BTreeMap<RelPath, BTreeMap<String, Deed>> = BTreeMap::new();
        let mut execs = BTreeMap::new();
        for id in ids {
            let set = self.change_set(id)?;
            let name = set.sandbox.to_string();
            for change in &set.changes {
                for (path, deed) in deeds(change) {
                    did.entry(path).or_default().insert(name.clone(), deed);
                }
            }
            let all = self.execs_of(id)?;
            let last = all.iter().skip(all.len().saturating_sub(EXECS));
            execs.insert(name, last.map(describe_exec).collect());
        }
        let rows = did.into_iter().map(|(path, by)| row(path, by)).collect();
        Ok(Comparison { rows, execs })
    }
}

/// What one sandbox did to one path: the text for people, and what it came to.
struct Deed {
    text: String,
    result: EntryState,
}

fn row(path: RelPath, by: BTreeMap<String, Deed>) -> CompareRow {
    let mut results = by.values().map(|deed| &deed.result);
    let first = results.next();
    let collides = results.any(|result| Some(result) != first);
    let by = by.into_iter().map(|(name, deed)| (name, deed.text)).collect();
    CompareRow { path, by, collides }
}

/// A rename is something that happened to two paths.
fn deeds(change: &Change) -> Vec<(RelPath, Deed)> {
    let mut deeds =
        vec![(change.path.clone(), Deed { text: describe(change), result: change.new.clone() })];
    if let (ChangeKind::Renamed, Some(from)) = (change.kind, &change.renamed_from) {
        let text = format!("renamed to {}", change.path);
        deeds.push((from.clone(), Deed { text, result: EntryState::Absent }));
    }
    deeds
}

fn describe(change: &Change) -> String {
    let word = match change.kind {
        ChangeKind::Added => "added",
        ChangeKind::Modified => "modified",
        ChangeKind::Deleted => return "deleted".to_owned(),
        ChangeKind::Renamed => "renamed",
        ChangeKind::Mode => "mode",
        ChangeKind::Type => "type",
        ChangeKind::Special => "special",
    };
    let what = match &change.new {
        EntryState::Absent => String::new(),
        EntryState::File { hash, mode, .. } if change.kind == ChangeKind::Mode => {
            format!("{mode:o} {}", short(&hash.to_string()))
        }
        EntryState::File { hash, .. } => short(&hash.to_string()),
        EntryState::Symlink { target } => format!("-> {}", escape::visible(target.as_bytes())),
        EntryState::Dir { mode } => format!("directory {mode:o}"),
        EntryState::Special { .. } => change.new.noun().to_owned(),
    };
    format!("{word} {what}").trim_end().to_owned()
}

fn short(hash: &str) -> String {
    hash.chars().take(HASH_DIGITS).collect()
}

fn describe_exec(exec: &Exec) -> String {
    let words: Vec<_> =
        exec.spec.argv.iter().map(|word| escape::visible(word.as_bytes())).collect();
    let mut command = words.join(" ");
    if command.chars().count() > COMMAND {
        command = command.chars().take(COMMAND - 1).chain(['…']).collect();
    }
    match &exec.end {
        None => format!("{command}: running"),
        Some(end) => {
            let took = end.stats.duration_ms.map_or("?".to_owned(), |took| took.to_string());
            format!("{command}: {} {} ({took} ms)", end.reason, end.exit_code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::ContentHash;

    fn deed(bytes: &[u8]) -> Deed {
        let state = EntryState::File { hash: ContentHash::of(bytes), size: 1, mode: 0o644 };
        Deed { text: "modified".into(), result: state }
    }

    #[test]
    fn only_different_results_collide() {
        let path = || RelPath::parse(b"a").unwrap();
        let both = |one: &[u8], other: &[u8]| {
            BTreeMap::from([("x".to_owned(), deed(one)), ("y".to_owned(), deed(other))])
        };
        assert!(row(path(), both(b"1", b"2")).collides);
        assert!(!row(path(), both(b"1", b"1")).collides);
        assert!(!row(path(), BTreeMap::from([("x".to_owned(), deed(b"1"))])).collides);
    }
}
