//! Random trees: directories, links, moves and removals on both sides, and everything that a person may
//! do in between. What must hold is read from the project by plain means, and from what was shown.

use super::desk::{Random, seed};
use crate::harness::{Kind, Lab, Tree, for_both, long};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;

const PATHS: [&str; 10] = ["a", "b", "d", "d/x", "d/y", "d/e", "d/e/z", "d/e/w", "g", "g/h"];

/// One case: a project, a sandbox, and what was done so far.
struct Case<'a> {
    lab: &'a Lab,
    random: Random,
    words: u32,
    /// Words of the user that the sandbox has taken in: what it shows of them may go.
    taken_in: BTreeSet<String>,
    /// Snapshots, each with what the sandbox had taken in by then.
    snapshots: Vec<(String, BTreeSet<String>)>,
    log: Vec<String>,
}

impl Case<'_> {
    /// A word that occurs nowhere else.
    fn word(&mut self, side: &str) -> String {
        self.words += 1;
        format!("{side}_{}", self.words)
    }

    fn path(&mut self) -> &'static str {
        PATHS[self.random.below(PATHS.len())]
    }

    /// Something that somebody does to a tree; it may fail.
    fn deed(&mut self, side: &str) -> String {
        let (path, other, word) = (self.path(), self.path(), self.word(side));
        match self.random.below(20) {
            0..=6 => format!("mkdir -p $(dirname {path}) && echo {word} > {path}"),
            7..=9 => format!("echo {word} >> {path}"),
            10..=11 => format!("rm -rf {path}"),
            12..=13 => format!("mv {path} {other}"),
            14 => format!("mkdir -p {path}"),
            15 => format!("rm -rf {path}; echo {word} > {path}"),
            16 => format!("rm -rf {path}; ln -s {word} {path}"),
            17 => format!("chmod {} {path}", ["755", "644", "700"][self.random.below(3)]),
            _ => format!("rm -rf {path}; mkdir -p {path}; echo {word} > {path}/in"),
        }
    }

    fn deeds(&mut self, side: &str) -> String {
        let count = 1 + self.random.below(3);
        let deeds: Vec<String> = (0..count).map(|_| self.deed(side)).collect();
        let script = format!("umask 022; {}; true", deeds.join("; "));
        self.log.push(format!("{side}: {script}"));
        script
    }

    fn step(&mut self) {
        let before = self.lab.tree();
        match self.random.below(23) {
            0..=5 => {
                let script = self.deeds("A");
                self.lab.skep(["exec", "s", "--", "sh", "-c", &script]).run();
                self.unchanged(&before);
            }
            6..=9 => {
                let script = self.deeds("H");
                self.lab.program("sh").args(["-c", &script]).run();
            }
            10..=14 => self.approve(&before),
            15..=16 => self.reject(&before),
            17 => self.rebase(&before),
            18 => self.undo(&before),
            19 => self.snapshot(),
            20..=21 => self.restore(&before),
            _ => {
                self.log.push("stop".into());
                self.lab.skep(["stop", "s"]).run().ok();
            }
        }
    }

    #[track_caller]
    fn unchanged(&self, before: &Tree) {
        let now = self.lab.tree();
        assert!(now == *before, "{:#?}\n{}", self.log, now.differences(before).join("\n"));
    }

    #[track_caller]
    fn check(&self, holds: bool, what: &str) {
        assert!(holds, "{what}: {:#?}", self.log);
    }

    fn diff(&self) -> Value {
        let ran = self.lab.skep(["diff", "s", "--json"]).run();
        self.check(ran.code() == 0, &ran.describe());
        let diff = ran.json();
        let own = diff["changes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|change| change["path"].as_str().unwrap().contains(".skep"));
        self.check(!own, "something of skep's own is in the diff");
        diff
    }

    /// A selection: everything, or one of the changed paths; and the changes that it means.
    fn choose(&mut self, diff: &Value) -> (Option<String>, Vec<Value>) {
        let changes = diff["changes"].as_array().unwrap();
        let one = changes[self.random.below(changes.len())]["path"].as_str().unwrap().to_owned();
        if self.random.chance(2) {
            return (None, changes.clone());
        }
        let below = format!("{one}/");
        let meant = changes.iter().filter(|change| {
            ["path", "renamed_from"].iter().any(|key| {
                change[key].as_str().is_some_and(|path| path == one || path.starts_with(&below))
            })
        });
        let meant = meant.cloned().collect();
        (Some(one), meant)
    }

    fn approve(&mut self, before: &Tree) {
        let diff = self.diff();
        if diff["changes"].as_array().unwrap().is_empty() {
            return;
        }
        let (path, _) = self.choose(&diff);
        let mut line = vec!["s".to_owned(), "--json".to_owned()];
        for change in diff["changes"].as_array().unwrap() {
            if change["risk"] == "ask" {
                line.extend([
                    "--allow-risky".to_owned(),
                    change["path"].as_str().unwrap().to_owned(),
                ]);
            }
        }
        line.extend(path.into_iter().flat_map(|path| ["--".to_owned(), path]));
        let ran = self.lab.skep(["approve"]).args(&line).run();
        self.log.push(format!("approve {line:?}: {}", ran.code()));
        self.check([0, 4, 5].contains(&ran.code()), &ran.describe());
        if ran.code() != 0 {
            return self.unchanged(before);
        }
        // What it says it applied is what counts as meant: it may take along what stands in the way.
        let applied: BTreeSet<String> = ran.json()["applied"]
            .as_array()
            .unwrap()
            .iter()
            .map(|path| path.as_str().unwrap().to_owned())
            .collect();
        let (now, shown) = (self.lab.tree(), lines(&diff, &applied));
        let (was, is) = (words(before), words(&now));
        for word in was.difference(&is) {
            let may_go = shown.contains(&format!("-{word}"));
            let own = word.starts_with("H_") && !self.taken_in.contains(word);
            self.check(
                may_go && !own,
                &format!("`{word}` went, and was not shown or is the user's"),
            );
        }
        for word in is.difference(&was) {
            self.check(shown.contains(&format!("+{word}")), &format!("`{word}` came unshown"));
        }
        for at in before.nodes.keys().chain(now.nodes.keys()) {
            let (one, other) = (before.nodes.get(at), now.nodes.get(at));
            let directories = [one, other].into_iter().flatten().all(|n| n.kind == Kind::Directory);
            let said = applied.contains(at.to_str().unwrap());
            self.check(one == other || directories || said, &format!("`{}` unsaid", at.display()));
        }
    }

    fn reject(&mut self, before: &Tree) {
        let diff = self.diff();
        if diff["changes"].as_array().unwrap().is_empty() {
            return;
        }
        let (path, _) = self.choose(&diff);
        let ran = self.lab.skep(["reject", "s"]).args(path.iter()).run();
        self.log.push(format!("reject {path:?}: {}", ran.code()));
        self.check([0, 4].contains(&ran.code()), &ran.describe());
        self.unchanged(before);
        self.taken_in.extend(words(before));
    }

    fn rebase(&mut self, before: &Tree) {
        let ran = self.lab.skep(["rebase", "s"]).run();
        self.log.push(format!("rebase: {}", ran.code()));
        self.check([0, 4].contains(&ran.code()), &ran.describe());
        self.unchanged(before);
        let left = self.lab.skep(["exec", "s", "--", "find", ".", "-name", ".skep*"]).run();
        self.check(left.text().is_empty(), &left.describe());
        self.taken_in.extend(words(before));
    }

    fn snapshot(&mut self) {
        let label = self.word("L");
        self.log.push(format!("snapshot {label}"));
        self.lab.skep(["snapshot", "s", &label]).run().ok();
        self.snapshots.push((label, self.taken_in.clone()));
    }

    /// An older state knows nothing of what came in since.
    fn restore(&mut self, before: &Tree) {
        if self.snapshots.is_empty() {
            return;
        }
        let at = self.random.below(self.snapshots.len());
        let (label, taken_in) = self.snapshots[at].clone();
        self.log.push(format!("restore {label}"));
        let ran = self.lab.skep(["restore", "s", &label]).run();
        self.check(ran.code() == 0, &ran.describe());
        self.unchanged(before);
        self.taken_in = taken_in;
    }

    fn undo(&mut self, before: &Tree) {
        let ran = self.lab.skep(["undo"]).run();
        self.log.push(format!("undo: {}", ran.code()));
        self.check([0, 3, 4, 5].contains(&ran.code()), &ran.describe());
        if ran.code() != 0 {
            return self.unchanged(before);
        }
        let is = words(&self.lab.tree());
        let own = |word: &&String| word.starts_with("H_") && !self.taken_in.contains(*word);
        for word in words(before).iter().filter(own) {
            self.check(is.contains(word), &format!("an undo lost `{word}`"));
        }
    }
}

/// The words in the files of a tree.
fn words(tree: &Tree) -> BTreeSet<String> {
    let files = tree.nodes.values().filter(|node| node.kind == Kind::File);
    let text = |node: &crate::harness::Node| String::from_utf8(node.bytes.clone()).unwrap();
    files.flat_map(|node| text(node).lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// The lines that were shown of some changes, with their marks.
fn lines(diff: &Value, paths: &BTreeSet<String>) -> BTreeSet<String> {
    let meant = diff["changes"].as_array().unwrap().iter().filter(|change| {
        let path = |key: &str| change[key].as_str().is_some_and(|path| paths.contains(path));
        path("path") || path("renamed_from")
    });
    let hunks = meant.flat_map(|change| change["hunks"].as_array().unwrap());
    let lines = hunks.flat_map(|hunk| hunk["lines"].as_array().unwrap());
    lines.map(|line| line.as_str().unwrap().trim_end().to_owned()).collect()
}

/// 25 cases for each user, 1,000 in the long run. `SKEP_TEST_SEED` repeats from a seed.
#[test]
fn heavy_random_trees_on_both_sides_lose_nothing_and_show_everything() {
    let first = seed();
    for_both(|lab| {
        for number in 0..if long() { 1_000 } else { 25 } {
            let seed = first + number;
            println!("SKEP_TEST_SEED={seed}");
            let mut case = Case {
                lab,
                random: Random::new(seed),
                words: 0,
                taken_in: BTreeSet::new(),
                snapshots: Vec::new(),
                log: Vec::new(),
            };
            let _ = lab.skep(["rm", "--discard", "s"]).run();
            fs::remove_dir_all(&lab.project).unwrap();
            for path in ["a", "b", "d/x", "d/y", "d/e/z", "g/h"] {
                let text = format!("{}\n{}\n", case.word("B"), case.word("B"));
                lab.write(path, text);
            }
            lab.own_below(&lab.project);
            lab.up("s");
            for _ in 0..10 + case.random.below(8) {
                case.step();
            }
        }
    });
}
