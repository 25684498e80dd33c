//! Sandboxes that go back and forth between states while both sides edit: snapshots, restores, forks,
//! rebases, undos, in random order. Whatever the sandbox is at, a line of the user's goes only where an
//! agent who had seen that very line changed it, and none comes back that the user took back. And what an
//! agent wrote, the state has and the project lacks is shown, unless the user took it away.
//!
//! A file is a row of slots far enough apart to be merged. A slot has its first value, one of the user's
//! (`U7`) or one of an agent's (`A8`); of an agent's it is known which value stood there when it was written.

use super::desk::{Random, hunks, paths, seed};
use crate::harness::{Lab, for_both, long};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

const SLOTS: usize = 8;
const FILES: [&str; 3] = ["d/h", "f", "g"];
const FIRST: &str = "first";
/// Seeds that once found something.
const SEEDS: [u64; 3] = [13, 22, 42];
/// Sandboxes at one time.
const MOST: usize = 4;

/// The values of each file.
type World = BTreeMap<&'static str, Vec<String>>;

fn text(values: &[String]) -> String {
    let around = |slot: usize| (0..8).map(move |line| format!("{slot}.{line}\n"));
    let slot = |(slot, value): (usize, &String)| {
        around(slot).chain([format!("[{slot}]={value}\n")]).collect::<String>()
    };
    values.iter().enumerate().map(slot).collect()
}

fn values(text: &str) -> Vec<String> {
    let value = |line: &str| Some(line.strip_prefix('[')?.split_once('=')?.1.to_owned());
    text.lines().filter_map(value).collect()
}

struct Case<'a> {
    lab: &'a Lab,
    /// Whether every file is in the sandbox from the start.
    own: bool,
    random: Random,
    /// The last number that was given.
    number: usize,
    /// What stood where an agent's value was written.
    seen: BTreeMap<String, String>,
    /// Sandboxes and their snapshots.
    sandboxes: BTreeMap<String, Vec<String>>,
    /// Approvals, from which sandbox each was, and what the project was before.
    approvals: Vec<(String, String, World)>,
    /// From which sandboxes a slot of the project was changed, by an approval or its undo.
    changed: BTreeMap<(&'static str, usize), BTreeSet<String>>,
    /// Values that an approval of others took out of a slot of the project.
    replaced: BTreeSet<(&'static str, usize, String)>,
    /// Where the user wrote.
    touched: BTreeSet<(&'static str, usize)>,
    log: Vec<String>,
}

impl Case<'_> {
    fn new(lab: &Lab, seed: u64) -> Case<'_> {
        let _ = fs::remove_dir_all(&lab.project);
        for file in FILES {
            lab.write(file, text(&vec![FIRST.to_owned(); SLOTS]));
        }
        lab.create("s");
        let mut random = Random::new(seed);
        // Often it has its own copies. Where it has not, what is edited outside shows through until the agent
        // writes, and comes into its copy.
        let own = !random.chance(3);
        if own {
            lab.inside("s", "for f in d/h f g; do cat $f > /tmp/x; cat /tmp/x > $f; done");
        }
        Case {
            lab,
            own,
            random,
            number: 0,
            seen: BTreeMap::new(),
            sandboxes: [("s".to_owned(), Vec::new())].into(),
            approvals: Vec::new(),
            changed: BTreeMap::new(),
            replaced: BTreeSet::new(),
            touched: BTreeSet::new(),
            log: Vec::new(),
        }
    }

    fn next(&mut self, start: &str) -> String {
        self.number += 1;
        format!("{start}{}", self.number)
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.random.below(from.len())].clone())
    }

    /// Runs it; a conflict is an answer like any other. Gives what it printed if it did something.
    fn asks(&mut self, line: &[&str]) -> Option<String> {
        let ran = self.lab.skep(line).run();
        self.log.push(format!("{line:?}: {}", ran.code()));
        self.check([0, 4].contains(&ran.code()), &ran.describe());
        (ran.code() == 0).then(|| ran.text())
    }

    #[track_caller]
    fn check(&self, holds: bool, what: &str) {
        assert!(holds, "{what}\nafter\n{}", self.log.join("\n"));
    }

    fn project(&self) -> World {
        let read = |file: &&'static str| {
            let bytes = self.lab.bytes(file);
            (*file, values(&String::from_utf8(bytes).unwrap()))
        };
        FILES.iter().map(read).collect()
    }

    /// Whether an agent had seen `value` when it wrote `new`, or what `new` came from.
    fn knew(&self, new: &str, value: &str) -> bool {
        let mut at = new;
        while let Some(before) = self.seen.get(at) {
            if before == value {
                return true;
            }
            at = before;
        }
        false
    }

    /// An approval.
    fn check_taken(&self, before: &World, what: &str) {
        let user = |value: &str| value.starts_with('U');
        for (file, now) in &self.project() {
            self.check(now.len() == SLOTS, &format!("{what}: {file}: {now:?}"));
            for (was, is) in before[file].iter().zip(now).filter(|(was, is)| was != is) {
                let what = format!("{what}: {file}: {was} became {is}");
                self.check(!user(was) || self.knew(is, was), &what);
                // An agent's value may give way to what it was made from: an older state was approved.
                self.check(!user(is) || self.knew(was, is), &what);
            }
        }
    }

    fn user(&mut self) {
        let (file, mut world) = (self.pick(&FILES).unwrap(), self.project());
        let values = world.get_mut(file).unwrap();
        for _ in 0..=self.random.below(2) {
            let slot = self.random.below(SLOTS);
            self.touched.insert((file, slot));
            values[slot] = match values[slot].starts_with('U') && self.random.chance(3) {
                true => FIRST.to_owned(),
                false => self.next("U"),
            };
        }
        self.log.push(format!("user: {file} {values:?}"));
        // Saved in place, or by another file in its place.
        if self.random.chance(2) {
            self.lab.write(file, text(values));
        } else {
            self.lab.write("new", text(values));
            fs::rename(self.lab.project.join("new"), self.lab.project.join(file)).unwrap();
        }
    }

    fn agent(&mut self, name: &str) {
        let file = self.pick(&FILES).unwrap();
        let shown = self.lab.skep(["exec", name, "--", "cat", file]).run().ok().text();
        let mut inside = values(&shown);
        for _ in 0..self.random.below(3) {
            let (slot, value) = (self.random.below(SLOTS), self.next("A"));
            self.seen.insert(value.clone(), inside[slot].clone());
            inside[slot] = value;
        }
        self.log.push(format!("agent in {name}: {file} {inside:?}"));
        // Written as it was, too: such a copy is no change.
        let write = format!("cat > {file}");
        let call = self.lab.skep(["exec", "-i", name, "--", "sh", "-c", &write]);
        call.input(text(&inside)).run().ok();
    }

    fn approve(&mut self, name: &str, before: &World) {
        let diff = self.lab.diff(name);
        let digest = diff["digest"].as_str().unwrap();
        let mut line = vec!["approve", name, "--json", "--digest", digest];
        let (found, changed) = (hunks(&diff, None), paths(&diff));
        let (hunk, path) = (self.pick(&found), self.pick(&changed));
        match self.random.below(3) {
            0 => hunk.iter().for_each(|hunk| line.extend(["--hunk", &hunk.id])),
            1 => line.extend(path.as_deref()),
            _ => {}
        }
        let everything = line.len() == 5;
        let Some(report) = self.asks(&line) else { return };
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        if let Some(id) = report["approval"].as_str() {
            self.approvals.push((id.to_owned(), name.to_owned(), before.clone()));
        }
        self.check_taken(before, "an approval");
        self.note_changed(name, before, false);
        if everything {
            let left = paths(&self.lab.diff(name));
            self.check(left.is_empty(), &format!("all was approved, and {left:?} is left"));
        }
    }

    fn reject(&mut self, name: &str) {
        let diff = self.lab.diff(name);
        let (hunk, path) = (self.pick(&hunks(&diff, None)), self.pick(&paths(&diff)));
        match (hunk, path) {
            (Some(hunk), _) if self.random.chance(2) => {
                self.asks(&["reject", name, "--hunk", &hunk.id]);
            }
            (_, Some(path)) => drop(self.asks(&["reject", name, &path])),
            _ => {}
        }
    }

    fn undo(&mut self, before: &World) {
        let newest = self.approvals.len().saturating_sub(3);
        let newest = self.approvals[newest..].to_vec();
        let Some((id, name, then)) = self.pick(&newest) else { return };
        if self.asks(&["undo", &id]).is_none() {
            return;
        }
        self.approvals.retain(|(other, ..)| *other != id);
        self.note_changed(&name, before, true);
        for (file, now) in &self.project() {
            for (slot, (was, is)) in before[file].iter().zip(now).enumerate() {
                let back = was == is || !was.starts_with('U') && *is == then[file][slot];
                self.check(back, &format!("an undo: {file}: {was} became {is}"));
            }
        }
    }

    /// After an approval, or the undo of one.
    fn note_changed(&mut self, name: &str, before: &World, undo: bool) {
        for (file, now) in self.project() {
            for (slot, (was, is)) in before[file].iter().zip(now).enumerate() {
                if *was != is {
                    self.changed.entry((file, slot)).or_default().insert(name.to_owned());
                    self.replaced.remove(&(file, slot, is));
                    if !undo {
                        self.replaced.insert((file, slot, was.clone()));
                    }
                }
            }
        }
    }

    /// What an agent wrote, where the project has what it was made from, is pending or in conflict. Not where
    /// the user wrote, who may have taken it away; nor where another sandbox did, or another state's approval. What shows through is
    /// nobody's change, and a mounted view may go on showing what stood there before an undo.
    fn check_pending(&mut self, name: &str) {
        if !self.own {
            return;
        }
        let (diff, project) = (self.lab.diff(name), self.project());
        let conflicts: Vec<&str> = diff["conflicts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|conflict| conflict["path"].as_str().unwrap())
            .collect();
        for file in FILES.into_iter().filter(|file| !conflicts.contains(file)) {
            let shown = self.lab.skep(["exec", name, "--", "cat", file]).run().ok().text();
            let added: BTreeSet<String> = hunks(&diff, Some(file))
                .into_iter()
                .flat_map(|hunk| hunk.lines)
                .filter_map(|line| Some(line.strip_prefix('+')?.trim_end().to_owned()))
                .collect();
            for (slot, value) in values(&shown).iter().enumerate() {
                let others = self.changed.get(&(file, slot));
                if self.touched.contains(&(file, slot))
                    || self.replaced.contains(&(file, slot, value.clone()))
                    || others.is_some_and(|names| names.iter().any(|other| other != name))
                    || !self.knew(value, &project[file][slot])
                {
                    continue;
                }
                let pending = added.contains(&format!("[{slot}]={value}"));
                self.check(pending, &format!("{value} of {file} in {name} is not pending: {diff}"));
            }
        }
    }

    /// A new sandbox from this one, as it is or as it was.
    fn another(&mut self, name: &str, labels: &[String]) {
        if self.sandboxes.len() == MOST {
            return;
        }
        let new = self.next("s");
        match self.pick(labels) {
            Some(label) if self.random.chance(2) => {
                self.asks(&["create", &new, "--from", &format!("{name}:{label}")]);
            }
            _ => drop(self.asks(&["fork", name, "--name", &new])),
        }
        self.sandboxes.insert(new, Vec::new());
    }

    fn step(&mut self) {
        let before = self.project();
        let names: Vec<String> = self.sandboxes.keys().cloned().collect();
        let name = self.pick(&names).unwrap();
        let labels = self.sandboxes[&name].clone();
        match self.random.below(36) {
            0..6 => return self.user(),
            6..13 => self.agent(&name),
            13..20 => return self.approve(&name, &before),
            20..22 => self.reject(&name),
            22..26 => drop(self.asks(&["rebase", &name])),
            26..29 => {
                self.undo(&before);
                return self.check_pending(&name);
            }
            29..31 => {
                let label = self.next("L");
                self.asks(&["snapshot", &name, &label]);
                self.sandboxes.get_mut(&name).unwrap().push(label);
            }
            31..34 => {
                if let Some(label) = self.pick(&labels) {
                    self.asks(&["restore", &name, &label]);
                    self.check_pending(&name);
                }
            }
            34 => self.another(&name, &labels),
            _ => drop(self.asks(&["stop", &name])),
        }
        self.check(self.project() == before, "the project was changed");
    }
}

/// Five cases for each user, 63 in the long run. `SKEP_TEST_SEED` repeats from a seed.
#[test]
fn heavy_random_states_of_sandboxes_revert_nothing_of_the_users() {
    let first = seed();
    let typed = std::env::var_os("SKEP_TEST_SEED").is_some();
    for_both(|lab| {
        let stored = SEEDS.into_iter().filter(|_| !typed);
        let fresh = (0..if long() { 60 } else { 2 }).map(|number| first + number);
        for seed in stored.chain(fresh) {
            println!("SKEP_TEST_SEED={seed}");
            let mut case = Case::new(lab, seed);
            for _ in 0..if long() { 150 } else { 60 } {
                case.step();
            }
            for name in case.sandboxes.keys() {
                lab.skep(["rm", "--discard", name]).run().ok();
            }
        }
    });
}
