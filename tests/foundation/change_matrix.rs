//! Every kind of entry turned into every other, in the root of the project and below, through a
//! real sandbox; the oracle is a plain copy in which the same script ran.

use crate::harness::{Kind, Lab, Tree, for_both, skip};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Kinds of entries a script can make without privilege, `absent` among them.
const MADE: [&str; 9] =
    ["absent", "file", "exec", "empty", "dir", "emptydir", "symlink", "fifo", "socket"];
/// Where the pairs are: in the root of the project, and nested.
const PLACES: [&str; 2] = ["", "deep/er/"];

/// Makes one entry after the other, each in the place of what was there; contents differ by path, so that
/// nothing looks like a rename. One process, because a guest takes its time over every new one.
const MAKER: &str = r##"
import os, shutil, socket, stat, sys
def clear(path):
    if os.path.lexists(path):
        (shutil.rmtree if stat.S_ISDIR(os.lstat(path).st_mode) else os.unlink)(path)
def file(path, text, mode):
    with open(path, "w") as file: file.write(text)
    os.chmod(path, mode)
def make(kind, path, when):
    if kind == "file": file(path, f"{when} {path}\n", 0o644)
    elif kind == "exec": file(path, f"#!{when} {path}\n", 0o755)
    elif kind == "empty": file(path, "", 0o640)
    elif kind == "dir": os.mkdir(path); file(f"{path}/child-{when}", f"{when} {path}\n", 0o644)
    elif kind == "emptydir": os.mkdir(path)
    elif kind == "symlink": os.symlink(f"nowhere/{when}/{path}", path)
    elif kind == "fifo": os.mkfifo(path)
    elif kind == "socket": socket.socket(socket.AF_UNIX).bind(path)
    elif kind == "device": os.mknod(path, 0o644 | stat.S_IFCHR, os.makedev(1, 3))
    else: assert kind == "absent", kind
os.umask(0o022)
when = sys.argv[1]
for word in sys.argv[2:]:
    kind, path = word.split("=")
    clear(path)
    make(kind, path, when)
"##;

/// Shell text that makes these entries.
fn making(when: &str, entries: impl Iterator<Item = (&'static str, String)>) -> String {
    let words: Vec<_> = entries.map(|(kind, path)| format!("{kind}={path}")).collect();
    format!("python3 -c '{MAKER}' {when} {}\n", words.join(" "))
}

fn pairs(lab: &Lab) -> Vec<(&'static str, &'static str)> {
    let mut before = MADE.to_vec();
    if lab.who.is_root() {
        before.push("device");
    }
    before.iter().flat_map(|b| MADE.map(|a| (*b, a))).collect()
}

fn name(place: &str, (before, after): (&str, &str)) -> String {
    format!("{place}{before}-{after}")
}

/// Makes the project of the matrix, and returns the script that turns every kind into every other.
pub(crate) fn plant(lab: &Lab) -> String {
    let all =
        || PLACES.iter().flat_map(|place| pairs(lab).into_iter().map(move |pair| (place, pair)));
    let before = making("before", all().map(|(place, pair)| (pair.0, name(place, pair))));
    let setup = format!("mkdir -p deep/er; {before}");
    lab.program("sh").args(["-ec", &setup]).run().ok();
    making("after", all().map(|(place, pair)| (pair.1, name(place, pair))))
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
        let script = plant(lab);
        let before = lab.tree();
        let oracle = in_a_copy(lab, &script);
        lab.skep(["run", "--name", "s", "--", "sh", "-ec", &script]).run().ok();
        lab.tree().assert_equals(&before, "the project was changed without an approval");

        let mut wanted = BTreeMap::new();
        for place in PLACES {
            for pair in pairs(lab) {
                for (suffix, kind) in expected(pair.0, pair.1) {
                    wanted.insert(format!("{}{suffix}", name(place, pair)), kind.to_owned());
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

fn run<'a>(script: &'a str, name: &'a str) -> [&'a str; 7] {
    ["run", "--name", name, "--", "sh", "-ec", script]
}

/// The other kinds of marks, no marks at all, and other providers; machines and containers have tests
/// of their own that do this too. gVisor keeps what is no file, directory or link to itself, and
/// fuse-overlayfs cannot remove a socket of the project.
#[test]
fn diff_1_the_matrix_has_one_digest_under_every_driver_and_provider() {
    for_both(|lab| {
        let script = plant(lab);
        let before = lab.tree();
        lab.skep(run(&script, "plain")).run().ok();
        let digest = |name: &str| lab.diff(name)["digest"].as_str().unwrap().to_owned();
        let wanted = digest("plain");
        for driver in ["overlay-root", "copy"] {
            if driver == "overlay-root" && !lab.who.is_root() {
                continue;
            }
            lab.skep(run(&script, driver)).env("SKEP_DRIVER", driver).run().ok();
            assert_eq!(lab.sandbox(driver)["driver"], driver);
            assert_eq!(digest(driver), wanted, "{driver}");
        }
        for provider in ["bubblewrap", "subprocess", "oci:runc"] {
            let name = provider.replace(':', "-");
            let ran = lab.skep(run(&script, &name)).env("SKEP_PROVIDER_NAME", provider).run();
            if ran.code() == 5 {
                skip(&ran.errors());
                continue;
            }
            ran.ok();
            assert_eq!(lab.sandbox(&name)["provider"], provider);
            assert_eq!(digest(&name), wanted, "{provider}");
        }
        lab.tree().assert_equals(&before, "the project");
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
