//! Random work on both sides, random selections, against the model.

use super::desk::{HunkSeen, Random, hunks, seed};
use super::model::{File, Says, Text, World};
use crate::harness::{Lab, for_both, long};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

/// Independent directories per sandbox, and files in each.
const CASES: usize = 50;
const FILES: usize = 3;

/// Seeds that once found something, and one that is always tried.
const SEEDS: [u64; 1] = [1];

fn put(lab: &Lab, path: &str, text: Option<&Text>) {
    let at = lab.project.join(path);
    match text {
        Some(text) => {
            lab.write(path, text.bytes(path));
            fs::set_permissions(&at, fs::Permissions::from_mode(text.mode())).unwrap();
        }
        None => drop(fs::remove_file(&at)),
    }
}

/// Brings the sandbox's files to what the model says, touching only those that differ.
fn work_inside(lab: &Lab, old: &World, new: &World) {
    let mut script = String::new();
    for (number, (path, file)) in new.iter().enumerate() {
        let before = &old[path].sandbox;
        if *before == file.sandbox || file.users {
            continue;
        }
        match &file.sandbox {
            None => script += &format!("rm {path}\n"),
            Some(text) => {
                lab.tool(&format!("n{number}"), text.bytes(path));
                script +=
                    &format!("cat /tools/n{number} > {path}; chmod {:o} {path}\n", text.mode());
            }
        }
    }
    lab.inside("s", &script);
}

/// The project against the model.
#[track_caller]
fn check_project(lab: &Lab, world: &World, what: &str) {
    for (path, file) in world {
        let at = lab.project.join(path);
        let bytes = fs::read(&at).ok();
        let expected = file.project.as_ref().map(|text| text.bytes(path));
        if bytes != expected {
            let text = |bytes: Option<Vec<u8>>| {
                bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            };
            panic!(
                "{what}: {path}\nis {}\nshould be {}\nmodel {file:#?}",
                text(bytes).unwrap_or("absent".into()),
                text(expected).unwrap_or("absent".into())
            );
        }
        if let Some(text) = &file.project {
            let mode = fs::metadata(&at).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, text.mode(), "{what}: mode of {path}, model {file:#?}");
        }
    }
}

/// The change set against the model. Gives the hunks by path and slot.
#[track_caller]
fn check_diff(diff: &Value, world: &World, what: &str) -> BTreeMap<(String, usize), HunkSeen> {
    let conflicts: Vec<&str> = diff["conflicts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|conflict| conflict["path"].as_str().unwrap())
        .collect();
    let changed = super::desk::paths(diff);
    for (path, file) in world {
        let says = file.says();
        let (is_changed, conflict) = (changed.contains(path), conflicts.contains(&path.as_str()));
        assert_eq!(conflict, says == Says::Conflict, "{what}: conflict of {path}? {file:#?}");
        let shown = if is_changed { super::desk::change(diff, path).clone() } else { Value::Null };
        assert_eq!(
            is_changed,
            says != Says::Nothing,
            "{what}: change of {path}? {file:#?}\n{shown:#}"
        );
    }
    let mut found = BTreeMap::new();
    for hunk in hunks(diff, None) {
        let slot = hunk.lines.iter().find_map(|line| {
            let rest = line.split_once('«').filter(|_| !line.starts_with(' '))?.1;
            rest.split_once('»')?.0.parse::<usize>().ok()
        });
        let file = &world[&hunk.path];
        if file.base.is_some() && file.sandbox.is_some() {
            found.insert((hunk.path.clone(), slot.unwrap()), hunk);
        }
    }
    for (path, file) in world.iter().filter(|(_, file)| file.says() != Says::Nothing) {
        let seen: Vec<usize> =
            found.keys().filter(|(of, _)| of == path).map(|(_, slot)| *slot).collect();
        assert_eq!(seen, file.pending(), "{what}: hunks of {path}: {file:#?}");
    }
    found
}

/// One random selection, approved or rejected.
fn decide(lab: &Lab, random: &mut Random, world: &mut World, what: &str) {
    let diff = lab.diff("s");
    let seen = check_diff(&diff, world, what);
    let reject = random.chance(4);
    let mut line: Vec<String> = vec![if reject { "reject" } else { "approve" }.into(), "s".into()];
    let mut after = world.clone();
    for (path, file) in world.iter() {
        if file.says() != Says::Change || random.chance(3) {
            continue;
        }
        let pending = file.pending();
        let chosen: Vec<usize> = pending.iter().copied().filter(|_| !random.chance(2)).collect();
        let target = after.get_mut(path).unwrap();
        if !reject && (pending.is_empty() || random.chance(3)) {
            line.push(path.clone());
            target.approve(None);
            continue;
        }
        if chosen.is_empty() {
            continue;
        }
        for slot in &chosen {
            line.extend(["--hunk".into(), seen[&(path.clone(), *slot)].id.clone()]);
        }
        // All hunks are the file: its mode comes along.
        let whole = chosen.len() == pending.len();
        if reject && whole {
            target.drop_all();
        } else if reject {
            target.reject(&chosen);
        } else {
            target.approve(if whole { None } else { Some(&chosen) });
        }
    }
    if line.len() == 2 {
        return;
    }
    if !reject
        && random.chance(3)
        && let Some((path, _)) = world.iter().find(|(_, file)| file.says() == Says::Conflict)
    {
        let refused = lab.skep(&line).arg(path).run();
        assert_eq!(refused.code(), 4, "{what}: {}", refused.describe());
        check_project(lab, world, &format!("{what}: refused"));
    }
    let ran = lab.skep(&line).run();
    assert_eq!(ran.code(), 0, "{what}: {}", ran.describe());
    check_project(lab, &after, &format!("{what}: {}", line[0]));
    if !reject && random.chance(3) {
        lab.skep(["undo"]).run().ok();
        check_project(lab, world, &format!("{what}: undone"));
        check_diff(&lab.diff("s"), world, &format!("{what}: undone"));
    } else {
        *world = after;
    }
}

fn try_seed(lab: &Lab, seed: u64) {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    fs::remove_dir_all(&lab.project).unwrap();
    lab.directory("");
    let mut world = World::new();
    for case in 0..CASES {
        lab.directory(format!("c{case}"));
        for file in 0..FILES {
            world.insert(format!("c{case}/f{file}"), File::new(&mut random));
        }
    }
    world.iter().for_each(|(path, file)| put(lab, path, file.base.as_ref()));
    lab.up("s");
    for round in 0..4 {
        let what = format!("seed {seed}, round {round}");
        let old = world.clone();
        for file in world.values_mut() {
            if random.chance(2) {
                file.agent(&mut random);
            }
        }
        work_inside(lab, &old, &world);
        // The user's hand, after the agent's: what was there before the agent wrote is captured.
        lab.diff("s");
        for (path, file) in &mut world {
            if random.chance(4) {
                file.user(&mut random);
                put(lab, path, file.project.as_ref());
            }
        }
        decide(lab, &mut random, &mut world, &what);
        decide(lab, &mut random, &mut world, &what);
    }
    let line: Vec<String> = world
        .iter()
        .filter(|(_, file)| file.says() == Says::Change)
        .map(|(path, _)| path.clone())
        .collect();
    if !line.is_empty() {
        lab.skep(["approve", "s"]).args(&line).run().ok();
        line.iter().for_each(|path| world.get_mut(path).unwrap().approve(None));
    }
    check_project(lab, &world, &format!("seed {seed}, at the end"));
    check_diff(&lab.diff("s"), &world, &format!("seed {seed}, at the end"));
    lab.skep(["rm", "--discard", "s"]).run().ok();
}

#[test]
fn heavy_random_edits_on_both_sides_and_random_selections_match_a_model() {
    for_both(|lab| {
        // As root and as a user: 500 cases in every run, 10,000 in the long one.
        let sandboxes = if long() { 100 } else { 4 };
        let first = seed();
        println!("SKEP_TEST_SEED={first}");
        let typed = std::env::var_os("SKEP_TEST_SEED").is_some();
        let stored = SEEDS.into_iter().filter(|_| !typed);
        let fresh = (0..sandboxes).map(|at| first + at);
        stored.chain(fresh).for_each(|seed| try_seed(lab, seed));
    });
}
