//! Sandboxes that go from one state to another while both sides edit: thousands of random sequences of
//! snapshots, restores, forks, rebases, rejections, approvals, undos and undos of undos.
//!
//! A file is a row of slots far enough apart to be merged. A slot has its first value, one of the user's
//! (`U7`) or one of an agent's (`A8`); of an agent's it is known which value stood there when it was written.
//! Whatever state a sandbox is at: a value of the user's gives way only to an agent's who had seen it, none
//! comes back that the user took back, and what an agent wrote and the project lacks is pending.
//!
//! The same with real sandboxes, and fewer cases: `tests/review/states.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use skep_types::{Base, RelPath, Selection, WorkspaceDriver};
use skep_workspace::apply::Source;
use skep_workspace::{
    Company, DeriveOptions, Derived, Insiders, PlanError, Settlement, ViewWrite, WorkspaceSpec,
    capture, derive, moment, now, plan, reach, rebase, reject, rewind, settle, settle_again,
    settle_taken_in, settled_here, unsettle,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

const SLOTS: usize = 5;
const FILES: [&str; 2] = ["f", "g"];
const FIRST: &str = "first";
/// Sandboxes at one time.
const MOST: usize = 3;
const STEPS: usize = 40;

/// The values of each file.
type World = BTreeMap<&'static str, Vec<String>>;

/// Small and repeatable.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % limit.max(1) as u64) as usize
    }

    fn chance(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len())].clone())
    }
}

fn text(values: &[String]) -> String {
    let around = |slot: usize| (0..8).map(move |line| format!("{slot}.{line}\n"));
    let slot = |(slot, value): (usize, &String)| {
        around(slot).chain([format!("[{slot}]={value}\n")]).collect::<String>()
    };
    values.iter().enumerate().map(slot).collect()
}

fn values(bytes: &[u8]) -> Vec<String> {
    let value = |line: &str| Some(line.strip_prefix('[')?.split_once('=')?.1.to_owned());
    std::str::from_utf8(bytes).unwrap().lines().filter_map(value).collect()
}

#[derive(Clone)]
struct Snapshot {
    layers: Vec<PathBuf>,
    reach: u64,
}

struct Sandbox {
    spec: WorkspaceSpec,
    snapshots: Vec<Snapshot>,
}

/// An approval, or an undo of one.
#[derive(Clone)]
struct Approval {
    sandbox: usize,
    settlement: Settlement,
    /// Each path with its bytes before and after.
    paths: Vec<(PathBuf, Vec<u8>, Vec<u8>)>,
    undo: bool,
}

struct Case {
    dir: tempfile::TempDir,
    project: PathBuf,
    random: Random,
    number: usize,
    /// What stood where an agent's value was written.
    seen: BTreeMap<String, String>,
    sandboxes: Vec<Sandbox>,
    approvals: Vec<Approval>,
    /// From which sandboxes a slot of the project was changed.
    changed: BTreeMap<(&'static str, usize), BTreeSet<usize>>,
    /// Values that an approval of others took out of a slot of the project.
    replaced: BTreeSet<(&'static str, usize, String)>,
    /// Where the user wrote.
    touched: BTreeSet<(&'static str, usize)>,
    log: Vec<String>,
}

impl Case {
    fn new(seed: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let project = dir.path().join("project");
        fs::create_dir(&project).unwrap();
        for file in FILES {
            fs::write(project.join(file), text(&vec![FIRST.to_owned(); SLOTS])).unwrap();
        }
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| {
            random.below(2);
        });
        let mut case = Self {
            dir,
            project,
            random,
            number: 0,
            seen: BTreeMap::new(),
            sandboxes: Vec::new(),
            approvals: Vec::new(),
            changed: BTreeMap::new(),
            replaced: BTreeSet::new(),
            touched: BTreeSet::new(),
            log: Vec::new(),
        };
        let found = fs::metadata(&case.project).unwrap();
        let instant = now().unwrap();
        let (device, inode) = (found.dev(), found.ino());
        let base = Base { instant, device, inode, commit: None };
        let spec = case.spec(base, Vec::new());
        case.sandboxes.push(Sandbox { spec, snapshots: Vec::new() });
        case
    }

    fn directory(&mut self, stem: &str) -> PathBuf {
        self.number += 1;
        let path = self.dir.path().join(format!("{stem}{}", self.number));
        fs::create_dir(&path).unwrap();
        path
    }

    fn spec(&mut self, base: Base, layers: Vec<PathBuf>) -> WorkspaceSpec {
        WorkspaceSpec {
            project: self.project.clone(),
            base,
            driver: WorkspaceDriver::OverlayUserns,
            upper: self.directory("upper"),
            layers,
            dependency_layers: Vec::new(),
            hidden: Vec::new(),
            memory: self.directory("memory"),
        }
    }

    fn next(&mut self, start: &str) -> String {
        self.number += 1;
        format!("{start}{}", self.number)
    }

    #[track_caller]
    fn check(&self, holds: bool, what: &str) {
        assert!(holds, "{what}\nafter\n{}", self.log.join("\n"));
    }

    fn project(&self) -> World {
        FILES
            .iter()
            .map(|file| (*file, values(&fs::read(self.project.join(file)).unwrap())))
            .collect()
    }

    /// What a sandbox shows at a path.
    fn shown(&self, at: usize, file: &str) -> Vec<String> {
        let spec = &self.sandboxes[at].spec;
        let levels = std::iter::once(&spec.upper).chain(&spec.layers).chain([&spec.project]);
        let bytes = levels.map(|level| fs::read(level.join(file))).find_map(Result::ok);
        values(&bytes.unwrap())
    }

    fn derived(&self, at: usize) -> Derived {
        derive(&self.sandboxes[at].spec, &DeriveOptions::default()).unwrap()
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

    fn user_writes(&mut self, file: &'static str, slot: usize) {
        let (mut values, value) = (self.project().remove(file).unwrap(), self.next("U"));
        values[slot] = value;
        self.touched.insert((file, slot));
        fs::write(self.project.join(file), text(&values)).unwrap();
        self.log.push(format!("user: {file} {values:?}"));
    }

    fn user(&mut self) {
        let (file, mut world) = (self.random.pick(&FILES).unwrap(), self.project());
        let values = world.get_mut(file).unwrap();
        for _ in 0..=self.random.below(2) {
            let slot = self.random.below(SLOTS);
            self.touched.insert((file, slot));
            values[slot] = match values[slot].starts_with('U') && self.random.chance(2) {
                true => FIRST.to_owned(),
                false => self.next("U"),
            };
        }
        self.log.push(format!("user: {file} {values:?}"));
        let at = self.project.join(file);
        if self.random.chance(2) {
            fs::write(&at, text(values)).unwrap();
        } else {
            let new = self.dir.path().join("new");
            fs::write(&new, text(values)).unwrap();
            fs::rename(&new, &at).unwrap();
        }
    }

    fn agent(&mut self, at: usize) {
        let file = self.random.pick(&FILES).unwrap();
        let slots: Vec<usize> =
            (0..self.random.below(3)).map(|_| self.random.below(SLOTS)).collect();
        self.agent_writes(at, file, &slots);
    }

    fn agent_writes(&mut self, at: usize, file: &'static str, slots: &[usize]) {
        let mut inside = self.shown(at, file);
        for slot in slots.iter().copied() {
            let value = self.next("A");
            self.seen.insert(value.clone(), inside[slot].clone());
            inside[slot] = value;
        }
        self.log.push(format!("agent in {at}: {file} {inside:?}"));
        let spec = &self.sandboxes[at].spec;
        fs::write(spec.upper.join(file), text(&inside)).unwrap();
        capture(spec, None, Insiders::None).unwrap();
    }

    fn write(&self, at: usize, writes: &[ViewWrite]) {
        let spec = &self.sandboxes[at].spec;
        for write in writes {
            let to = spec.upper.join(write.path.as_path());
            fs::write(to, bytes_of(&write.content).unwrap()).unwrap();
        }
    }

    fn approve(&mut self, at: usize) {
        let derived = self.derived(at);
        let mut selection = Selection::default();
        let hunks: Vec<_> = derived.changes.iter().flat_map(|change| &change.hunks).collect();
        let changed: Vec<_> = derived.changes.iter().map(|change| change.path.clone()).collect();
        match self.random.below(3) {
            0 => selection.hunks.extend(self.random.pick(&hunks).map(|hunk| hunk.id.clone())),
            1 => {
                let path = self.random.pick(&changed);
                selection.paths.extend(path.map(|path| path.to_byte_string()));
            }
            _ => {}
        }
        self.approve_these(at, &derived, &selection);
    }

    fn approve_all(&mut self, at: usize) {
        self.approve_these(at, &self.derived(at), &Selection::default());
    }

    fn approve_these(&mut self, at: usize, derived: &Derived, selection: &Selection) {
        let before = self.project();
        let everything = *selection == Selection::default();
        let spec = self.sandboxes[at].spec.clone();
        let plan = match plan(&spec, derived, selection) {
            Ok(plan) => plan,
            Err(PlanError::Conflicts(_)) => {
                return self.log.push(format!("approve {at}: conflict"));
            }
            Err(error) => panic!("{error}"),
        };
        let mut paths = Vec::new();
        for target in &plan.targets {
            let path = spec.project.join(target.path.as_path());
            let (old, new) = (fs::read(&path).unwrap(), bytes_of(&target.source).unwrap());
            fs::write(&path, &new).unwrap();
            paths.push((path, old, new));
        }
        settle(&spec, &plan.settlement).unwrap();
        self.log.push(format!("approve {at} {selection:?}: {:?}", self.project()));
        if !paths.is_empty() {
            let settlement = plan.settlement;
            self.approvals.push(Approval { sandbox: at, settlement, paths, undo: false });
        }
        self.check_taken(&before);
        self.note_changed(at, &before, false);
        if everything {
            let left = self.derived(at).changes;
            self.check(left.is_empty(), &format!("all was approved, and is left: {left:?}"));
        }
    }

    fn check_taken(&self, before: &World) {
        let user = |value: &str| value.starts_with('U');
        for (file, now) in &self.project() {
            self.check(now.len() == SLOTS, &format!("{file}: {now:?}"));
            for (was, is) in before[file].iter().zip(now).filter(|(was, is)| was != is) {
                let what = format!("an approval: {file}: {was} became {is}");
                self.check(!user(was) || self.knew(is, was), &what);
                self.check(!user(is) || self.knew(was, is), &what);
            }
        }
    }

    /// After an approval, or the undo of one.
    fn note_changed(&mut self, at: usize, before: &World, undo: bool) {
        for (file, now) in self.project() {
            for (slot, (was, is)) in before[file].iter().zip(now).enumerate() {
                if *was != is {
                    self.changed.entry((file, slot)).or_default().insert(at);
                    self.replaced.remove(&(file, slot, is));
                    if !undo {
                        self.replaced.insert((file, slot, was.clone()));
                    }
                }
            }
        }
    }

    fn reject(&mut self, at: usize) {
        let derived = self.derived(at);
        let hunks: Vec<_> = derived.changes.iter().flat_map(|change| &change.hunks).collect();
        let mut selection = Selection::default();
        match (self.random.pick(&hunks), self.random.pick(&derived.changes)) {
            (Some(hunk), _) if self.random.chance(2) => selection.hunks.push(hunk.id.clone()),
            (_, Some(change)) => selection.paths.push(change.path.to_byte_string()),
            _ => return,
        }
        let spec = self.sandboxes[at].spec.clone();
        let rejected = match reject(&spec, &derived, &selection, Company::None) {
            Ok(rejected) => rejected,
            Err(error) => return self.log.push(format!("reject {at}: {error}")),
        };
        self.write(at, &rejected.writes);
        settle_taken_in(&spec, &rejected.settlement).unwrap();
        self.log.push(format!("reject {at} {selection:?}"));
    }

    fn rebase(&mut self, at: usize) {
        let nobody = self.random.chance(2);
        self.rebase_with(at, nobody);
    }

    fn rebase_with(&mut self, at: usize, nobody: bool) {
        let spec = self.sandboxes[at].spec.clone();
        let rebased = rebase(&spec, &self.derived(at), Company::None).unwrap();
        self.write(at, &rebased.writes);
        settle_taken_in(&spec, &rebased.settlement).unwrap();
        if nobody {
            moment(&spec, None, Insiders::None).unwrap().unwrap().note(&spec).unwrap();
        }
        let left = rebased.conflicts.len();
        self.log.push(format!("rebase {at}, nobody inside {nobody}: {left} conflicts"));
    }

    fn undo(&mut self) {
        let newest = self.approvals.len().saturating_sub(3);
        let newest: Vec<usize> = (newest..self.approvals.len()).collect();
        if let Some(which) = self.random.pick(&newest) {
            self.undo_one(which);
        }
    }

    fn undo_one(&mut self, which: usize) {
        let before = self.project();
        let approval = self.approvals[which].clone();
        if approval.paths.iter().any(|(path, _, after)| fs::read(path).unwrap() != *after) {
            return self.log.push("undo: refused".to_owned());
        }
        self.approvals.remove(which);
        for (path, old, _) in &approval.paths {
            fs::write(path, old).unwrap();
        }
        let at = approval.sandbox;
        for other in 0..self.sandboxes.len() {
            let spec = &self.sandboxes[other].spec;
            let settlement = match other == at {
                true => approval.settlement.clone(),
                // A fork that was made since.
                false => settled_here(spec, &approval.settlement).unwrap(),
            };
            match approval.undo {
                false => unsettle(spec, &settlement).unwrap(),
                true => settle_again(spec, &settlement).unwrap(),
            }
        }
        self.log.push(format!("undo in {at} ({}): {:?}", approval.undo, self.project()));
        let turn = |(path, old, new): (PathBuf, Vec<u8>, Vec<u8>)| (path, new, old);
        let paths = approval.paths.into_iter().map(turn).collect();
        self.approvals.push(Approval { undo: !approval.undo, paths, ..approval });
        self.note_changed(at, &before, !approval.undo);
        (0..self.sandboxes.len()).for_each(|at| self.check_pending(at));
    }

    /// What an agent wrote, where the project has what it was made from, is pending or in conflict. Not where
    /// the user wrote, who may have taken it away; nor where another sandbox did, or another state's approval.
    fn check_pending(&self, at: usize) {
        let (derived, project) = (self.derived(at), self.project());
        for file in FILES {
            let path = RelPath::parse(file.as_bytes()).unwrap();
            if derived.conflicts.iter().any(|conflict| conflict.path == path) {
                continue;
            }
            let change = derived.changes.iter().find(|change| change.path == path);
            let shown = format!("{change:?}");
            for (slot, value) in self.shown(at, file).iter().enumerate() {
                let others = self.changed.get(&(file, slot));
                if self.touched.contains(&(file, slot))
                    || self.replaced.contains(&(file, slot, value.clone()))
                    || others.is_some_and(|others| others.iter().any(|other| *other != at))
                    || !self.knew(value, &project[file][slot])
                {
                    continue;
                }
                let pending = shown.contains(&format!("[{slot}]={value}"));
                self.check(pending, &format!("{value} of {file} in {at} is not pending: {shown}"));
            }
        }
    }

    fn freeze(&mut self, at: usize) {
        let empty = fs::read_dir(&self.sandboxes[at].spec.upper).unwrap().next().is_none();
        if !empty {
            let new = self.directory("upper");
            let spec = &mut self.sandboxes[at].spec;
            spec.layers.insert(0, std::mem::replace(&mut spec.upper, new));
        }
    }

    fn snapshot(&mut self, at: usize) {
        self.freeze(at);
        let Sandbox { spec, snapshots } = &mut self.sandboxes[at];
        let reach = reach(&spec.memory).unwrap();
        snapshots.push(Snapshot { layers: spec.layers.clone(), reach });
        self.log.push(format!("snapshot {} of {at}", self.sandboxes[at].snapshots.len() - 1));
    }

    fn restore(&mut self, at: usize) {
        let known = self.sandboxes[at].snapshots.len();
        if known > 0 {
            let which = self.random.below(known);
            self.restore_to(at, which);
        }
    }

    fn restore_to(&mut self, at: usize, which: usize) {
        self.freeze(at);
        let Sandbox { spec, snapshots } = &mut self.sandboxes[at];
        let Snapshot { layers, reach } = snapshots[which].clone();
        if spec.layers != layers {
            spec.layers = layers;
            rewind(spec, reach).unwrap();
        }
        self.log.push(format!("restore {at} to {which}"));
        self.check_pending(at);
    }

    /// A new sandbox from this one, as it is or as it was.
    fn another(&mut self, at: usize) {
        if self.sandboxes.len() == MOST {
            return;
        }
        self.freeze(at);
        let (memory, base) = {
            let spec = &self.sandboxes[at].spec;
            (spec.memory.clone(), spec.base.clone())
        };
        let from = self.random.pick(&self.sandboxes[at].snapshots.clone());
        let from = from.filter(|_| self.random.chance(2));
        let layers = from.as_ref().map(|from| from.layers.clone());
        let layers = layers.unwrap_or_else(|| self.sandboxes[at].spec.layers.clone());
        let spec = self.spec(base, layers);
        copy(&memory, &spec.memory);
        if let Some(from) = &from {
            rewind(&spec, from.reach).unwrap();
        }
        self.log.push(format!("{} from {at}, snapshot {}", self.sandboxes.len(), from.is_some()));
        self.sandboxes.push(Sandbox { spec, snapshots: Vec::new() });
    }

    fn step(&mut self) {
        let (before, at) = (self.project(), self.random.below(self.sandboxes.len()));
        match self.random.below(37) {
            0..7 => return self.user(),
            7..14 => self.agent(at),
            14..20 => return self.approve(at),
            20..22 => self.reject(at),
            22..25 => self.rebase(at),
            25..29 => return self.undo(),
            29..32 => self.snapshot(at),
            32..36 => self.restore(at),
            _ => self.another(at),
        }
        self.check(self.project() == before, "the project was changed");
    }
}

fn bytes_of(source: &Source) -> Option<Vec<u8>> {
    match source {
        Source::Bytes(bytes) => Some(bytes.clone()),
        Source::File { root, path } => fs::read(root.join(path.as_path())).ok(),
        _ => None,
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&to).unwrap();
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), &to).unwrap();
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// `PROPTEST_CASES` says how many, `SKEP_TEST_SEED` from which on.
#[test]
fn random_states_revert_nothing_of_the_users_and_hide_nothing_of_the_agents() {
    let clock = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let first = number("SKEP_TEST_SEED").unwrap_or_else(|| clock() % 1_000_000_000);
    let cases = number("PROPTEST_CASES").unwrap_or(60);
    for seed in first..first + cases {
        println!("SKEP_TEST_SEED={seed}");
        let mut case = Case::new(seed);
        (0..STEPS).for_each(|_| case.step());
    }
}

/// The user edited a file; an agent in another state works on it from there, and that is approved, and undone.
#[test]
fn what_was_approved_in_another_state_brings_no_line_of_the_users_into_this_ones_base() {
    for undone in [false, true] {
        let mut case = Case::new(1);
        case.snapshot(0);
        case.agent_writes(0, "f", &[0]);
        case.approve_all(0);
        case.agent_writes(0, "f", &[1]);
        case.snapshot(0);
        case.restore_to(0, 0);
        case.user_writes("f", 1);
        case.agent_writes(0, "f", &[3]);
        case.approve_all(0);
        if undone {
            case.undo_one(1);
        }
        case.restore_to(0, 1);
        let conflicts = case.derived(0).conflicts;
        case.check(conflicts.len() == 1, &format!("the agent had not seen it: {conflicts:?}"));
        case.approve_all(0);
    }
}

/// A file that is in one state only, and comes into another one after the user edited it.
#[test]
fn what_a_file_came_from_in_another_state_is_not_its_base_here() {
    for settled in [false, true] {
        let mut case = Case::new(1);
        case.snapshot(0);
        case.agent_writes(0, "f", &[1]);
        case.snapshot(0);
        case.restore_to(0, 0);
        case.user_writes("f", 1);
        case.user_writes("f", 4);
        case.rebase_with(0, true);
        case.agent_writes(0, "f", &[3]);
        if settled {
            case.approve_all(0);
        }
        case.restore_to(0, 1);
        let conflicts = case.derived(0).conflicts;
        case.check(conflicts.len() == 1, &format!("the agent had not seen it: {conflicts:?}"));
        case.approve_all(0);
    }
}
