//! Every kind of entry turned into every other, in the root of the project and below, through a
//! real sandbox; the oracle is a plain copy in which the same script ran.

use crate::harness::{Kind, Lab, Tree, for_both};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Kinds of entries a script can make without privilege, `absent` among them.
const MADE: [&str; 9] =
    ["absent", "file", "exec", "empty", "dir", "emptydir", "symlink", "fifo", "socket"];
/// Where the pairs are: in the root of the project, and nested.
const PLACES: [&str; 2] = ["", "deep/er/"];

/// Shell text that makes an entry; contents differ by path, so that nothing looks like a rename.
fn make(kind: &str, path: &str, when: &str) -> String {
    match kind {
        "absent" => String::new(),
        "file" => format!("echo '{when} {path}' > {path}; chmod 644 {path}\n"),
        "exec" => format!("echo '#!{when} {path}' > {path}; chmod 755 {path}\n"),
        "empty" => format!(": > {path}; chmod 640 {path}\n"),
        "dir" => format!("mkdir {path}; echo '{when} {path}' > {path}/child-{when}\n"),
        "emptydir" => format!("mkdir {path}\n"),
        "symlink" => format!("ln -s 'nowhere/{when}/{path}' {path}\n"),
        "fifo" => format!("mkfifo {path}\n"),
        "socket" => {
            format!("python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('{path}')\"\n")
        }
        "device" => format!("mknod {path} c 1 3\n"),
        other => panic!("{other}"),
    }
}

fn pairs(lab: &Lab) -> Vec<(&'static str, &'static str)> {
    let mut before = MADE.to_vec();
    if lab.who.is_root() {
        before.push("device");
    }
    before.iter().flat_map(|b| MADE.map(|a| (*b, a))).collect()
}

/// What the change set must say of the path itself, and of the child it had or has.
fn expected(before: &str, after: &str) -> BTreeMap<&'static str, &'static str> {
    let mut rows = BTreeMap::new();
    if before == "dir" {
        rows.insert("/child-before", "deleted");
    }
    if after == "dir" {
        rows.insert("/child-after", "added");
    }
    let special = |kind: &str| matches!(kind, "fifo" | "socket" | "device");
    let file = |kind: &str| matches!(kind, "file" | "exec" | "empty");
    let directory = |kind: &str| matches!(kind, "dir" | "emptydir");
    let own = match (before, after) {
        ("absent", "absent") | ("fifo", "fifo") | ("socket", "socket") => None,
        _ if special(before) || special(after) => Some("special"),
        ("absent", "dir") => None,
        ("absent", _) => Some("added"),
        ("dir", "absent") => None,
        (_, "absent") => Some("deleted"),
        ("emptydir", "emptydir") | ("empty", "empty") => None,
        _ if directory(before) && directory(after) => None,
        _ if file(before) && file(after) => Some("modified"),
        ("symlink", "symlink") => Some("modified"),
        _ => Some("type"),
    };
    if let Some(own) = own {
        rows.insert("", own);
    }
    rows
}

fn kinds(diff: &Value) -> BTreeMap<String, String> {
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let changes = diff["changes"].as_array().unwrap().iter();
    changes.map(|change| (word(&change["path"]), word(&change["kind"]))).collect()
}

/// Runs a script in a plain copy of the project and returns the copy.
pub(super) fn in_a_copy(lab: &Lab, script: &str) -> Tree {
    let copy = lab.root.join("copy");
    let from = lab.project.join(".");
    lab.program("cp").args(["-a", "--"]).args([&from, &copy]).run().ok();
    lab.program("sh").args(["-ec", script]).directory(&copy).run().ok();
    let tree = Tree::read(&copy);
    std::fs::remove_dir_all(copy).unwrap();
    tree
}

#[test]
fn diff_1_every_kind_turned_into_every_other() {
    for_both(|lab| {
        let pairs = pairs(lab);
        let name = |place: &str, (b, a): (&str, &str)| format!("{place}{b}-{a}");
        let (mut setup, mut script) =
            ("umask 022; mkdir -p deep/er\n".to_owned(), "umask 022\n".to_owned());
        for place in PLACES {
            for pair in &pairs {
                let path = name(place, *pair);
                setup += &make(pair.0, &path, "before");
                script += &format!("rm -rf {path}\n{}", make(pair.1, &path, "after"));
            }
        }
        lab.program("sh").args(["-ec", &setup]).run().ok();
        let before = lab.tree();
        let oracle = in_a_copy(lab, &script);
        lab.skep(["run", "--name", "s", "--", "sh", "-ec", &script]).run().ok();
        lab.tree().assert_equals(&before, "the project was changed without an approval");

        let mut wanted = BTreeMap::new();
        for place in PLACES {
            for pair in &pairs {
                for (suffix, kind) in expected(pair.0, pair.1) {
                    wanted.insert(format!("{}{suffix}", name(place, *pair)), kind.to_owned());
                }
            }
        }
        let found = kinds(&lab.diff("s"));
        for path in wanted.keys().chain(found.keys()) {
            assert_eq!(found.get(path), wanted.get(path), "{path}");
        }

        lab.skep(["approve", "s"]).run().ok();
        let after = lab.tree();
        for difference in paths_that_differ(&after, &oracle) {
            // Specials are reported and never applied: the path is as it was, and so is what would
            // have come below it; nothing else is.
            let special = |tree: &Tree| {
                let kind = |path| tree.get(path).map(|node| node.kind);
                let special = |kind| matches!(kind, Some(Kind::Fifo | Kind::Socket | Kind::Device));
                difference.ancestors().any(|path| special(kind(path)))
            };
            assert!(special(&before) || special(&oracle), "{difference:?} differs from the copy");
            assert_eq!(after.get(&difference), before.get(&difference), "{difference:?}");
        }
    });
}

fn paths_that_differ(one: &Tree, other: &Tree) -> Vec<std::path::PathBuf> {
    let mut paths: Vec<_> = one.nodes.keys().chain(other.nodes.keys()).cloned().collect();
    paths.sort();
    paths.dedup();
    paths.retain(|path| one.get(path) != other.get(path) && path != Path::new(""));
    paths
}

#[test]
fn diff_1_modes_alone_are_changes() {
    for_both(|lab| {
        let setup =
            "umask 022; echo a > f; echo b > x; chmod 755 x; mkdir d; echo c > d/in; mkdir e";
        lab.program("sh").args(["-ec", setup]).run().ok();
        let script = "chmod 755 f; chmod 600 x; chmod 700 d; chmod 750 e; chmod 644 d/in";
        let oracle = in_a_copy(lab, script);
        lab.skep(["run", "--name", "s", "--", "sh", "-ec", script]).run().ok();
        let found = kinds(&lab.diff("s"));
        let wanted = ["d", "e", "f", "x"].map(|path| (path.to_owned(), "mode".to_owned()));
        assert_eq!(found, wanted.into_iter().collect());
        lab.skep(["approve", "s"]).run().ok();
        lab.tree().assert_equals(&oracle, "project and copy");
    });
}

#[test]
fn diff_2_a_directory_removed_and_made_again_lists_its_old_children() {
    for_both(|lab| {
        let setup = "umask 022; mkdir -p d/sub/deeper; echo 1 > d/one; echo 2 > d/sub/two
            echo 3 > d/sub/deeper/three; mkdir -p r; echo 4 > r/four; echo 5 > r/stays";
        lab.program("sh").args(["-ec", setup]).run().ok();
        // Nested, and repeated in one sandbox by several execs.
        let scripts = [
            "umask 022; rm -r d; mkdir d; echo new > d/new; mkdir d/sub; echo n > d/sub/other",
            "umask 022; rm -r d/sub; mkdir -p d/sub/deeper; echo again > d/sub/deeper/again",
            "umask 022; rm -r r; mkdir r; echo 5 > r/stays; rm -r d; mkdir d; echo new > d/new",
        ];
        let oracle = in_a_copy(lab, &scripts.join("\n"));
        lab.create("s");
        for script in scripts {
            lab.skep(["exec", "s", "--", "sh", "-ec", script]).run().ok();
        }
        let found = kinds(&lab.diff("s"));
        let wanted = [
            ("d/new", "added"),
            ("d/one", "deleted"),
            ("d/sub/deeper/three", "deleted"),
            ("d/sub/two", "deleted"),
            ("r/four", "deleted"),
        ];
        let wanted = wanted.map(|(path, kind)| (path.to_owned(), kind.to_owned()));
        assert_eq!(found, wanted.into_iter().collect());
        lab.skep(["approve", "s"]).run().ok();
        lab.tree().assert_equals(&oracle, "project and copy");
        assert!(lab.diff("s")["changes"].as_array().unwrap().is_empty());
    });
}
