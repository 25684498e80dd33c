//! What the tests of the review do again and again.

use crate::harness::{Lab, Ran};
use serde_json::Value;
use std::path::Path;

/// Small and repeatable; the quality of its numbers does not matter.
pub(super) struct Random(u64);

impl Random {
    /// From a seed.
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| {
            random.below(2);
        });
        random
    }

    /// Of `SKEP_TEST_SEED`, else of the clock; printed, so that a failure can be repeated.
    pub(super) fn printed() -> Self {
        let seed = seed();
        println!("SKEP_TEST_SEED={seed}");
        Self::new(seed)
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % limit.max(1) as u64) as usize
    }

    pub(super) fn chance(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }
}

/// The seed that was typed, or a fresh one.
pub(super) fn seed() -> u64 {
    let typed = std::env::var("SKEP_TEST_SEED").ok().and_then(|text| text.parse().ok());
    typed.unwrap_or_else(|| {
        std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 % 1_000_000_000
    })
}

/// One hunk as `diff --json` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HunkSeen {
    pub(super) id: String,
    pub(super) path: String,
    pub(super) lines: Vec<String>,
}

/// All hunks of a change set, or of one path in it.
pub(super) fn hunks(diff: &Value, path: Option<&str>) -> Vec<HunkSeen> {
    let mut found = Vec::new();
    for change in diff["changes"].as_array().unwrap() {
        if path.is_some_and(|path| change["path"] != path) {
            continue;
        }
        for hunk in change["hunks"].as_array().unwrap() {
            let line = |line: &Value| match line {
                Value::String(text) => text.clone(),
                other => other["b64"].as_str().unwrap().to_owned(),
            };
            found.push(HunkSeen {
                id: hunk["id"].as_str().unwrap().to_owned(),
                path: change["path"].as_str().unwrap().to_owned(),
                lines: hunk["lines"].as_array().unwrap().iter().map(line).collect(),
            });
        }
    }
    found
}

/// The changed paths, in the order shown.
pub(super) fn paths(diff: &Value) -> Vec<String> {
    let changes = diff["changes"].as_array().unwrap();
    changes.iter().map(|change| change["path"].as_str().unwrap().to_owned()).collect()
}

/// One change of a change set.
#[track_caller]
pub(super) fn change<'a>(diff: &'a Value, path: &str) -> &'a Value {
    let changes = diff["changes"].as_array().unwrap();
    let found = changes.iter().find(|change| change["path"] == path);
    found.unwrap_or_else(|| panic!("no change of `{path}`: {:?}", paths(diff)))
}

/// Git in the project, as somebody with a name.
#[track_caller]
pub(super) fn git(lab: &Lab, line: &[&str]) -> String {
    let who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"];
    lab.program("git").args(who).args(line).run().ok().text()
}

/// Makes the project a repository with one commit.
pub(super) fn repository(lab: &Lab) {
    git(lab, &["init", "-q", "-b", "main", "."]);
    git(lab, &["add", "-A"]);
    git(lab, &["commit", "-qm", "first"]);
}

/// The paths with drift, and whether each merges.
pub(super) fn drift(diff: &Value) -> Vec<(String, bool)> {
    let list = diff["drift"].as_array().unwrap();
    list.iter()
        .map(|one| (one["path"].as_str().unwrap().to_owned(), one["merges"].as_bool().unwrap()))
        .collect()
}

impl Lab {
    /// A new stopped sandbox in which a script ran.
    #[track_caller]
    pub(super) fn worked(&self, name: &str, script: &str) -> Ran {
        let tools = format!("{}:/tools", self.directory(self.root.join("tools")).display());
        let line = ["run", "--keep", "--name", name, "--mount", &tools, "--", "sh", "-ec", script];
        self.skep(line).run().ok()
    }

    /// A sandbox that stays up, with `/tools` in it.
    #[track_caller]
    pub(super) fn up(&self, name: &str) {
        let tools = format!("{}:/tools", self.directory(self.root.join("tools")).display());
        self.skep(["create", name, "--mount", &tools]).run().ok();
    }

    /// A script in a sandbox that is up.
    #[track_caller]
    pub(super) fn inside(&self, name: &str, script: &str) -> Ran {
        self.skep(["exec", name, "--", "sh", "-ec", script]).run().ok()
    }

    /// A file that the sandbox finds under `/tools`.
    pub(super) fn tool(&self, name: &str, bytes: impl AsRef<[u8]>) {
        self.write(self.root.join("tools").join(name), bytes);
    }

    /// Approves; `--json` and success are expected.
    #[track_caller]
    pub(super) fn approve(&self, line: &[&str]) -> Value {
        self.skep(["approve", "--json"]).args(line).run().ok().json()
    }

    /// The bytes of a file of the project.
    #[track_caller]
    pub(super) fn bytes(&self, path: impl AsRef<Path>) -> Vec<u8> {
        std::fs::read(self.project.join(path)).unwrap()
    }

    /// An approval that must be refused with exit 4 and change nothing.
    #[track_caller]
    pub(super) fn conflicts(&self, line: &[&str]) -> Ran {
        let ran = self.without_effect(self.skep(["approve", "--json"]).args(line));
        assert_eq!(ran.code(), 4, "{}", ran.describe());
        ran
    }
}
