//! Commits that nobody here wrote: the project is at one, the sandbox makes the next, and hunks
//! approved in random order end there exactly.
//!
//! `SKEP_TEST_HISTORY` names a repository (a work tree or a bare one); without it one is made up.
//! `SKEP_TEST_HISTORY_PAIRS` says how many commits back to go.

use super::desk::{Random, hunks};
use crate::harness::{Lab, Tree, for_both};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes the directory it stands in equal to another, as an agent would: only what differs.
const SYNC: &str = r#"
import filecmp, os, shutil, sys
source = sys.argv[1]
def entries(top):
    found = {}
    for directory, names, files in os.walk(top):
        for name in names + files:
            path = os.path.join(directory, name)
            found[os.path.relpath(path, top)] = path
    return found
wanted, here = entries(source), entries('.')
for name in sorted(here, reverse=True):
    path = here[name]
    other = wanted.get(name)
    same_kind = other and os.path.islink(other) == os.path.islink(path) and os.path.isdir(other) == os.path.isdir(path)
    if not same_kind:
        if os.path.isdir(path) and not os.path.islink(path): os.rmdir(path)
        else: os.unlink(path)
for name in sorted(wanted):
    path = wanted[name]
    if os.path.islink(path):
        if not os.path.islink(name) or os.readlink(name) != os.readlink(path):
            if os.path.lexists(name): os.unlink(name)
            os.symlink(os.readlink(path), name)
    elif os.path.isdir(path):
        os.makedirs(name, exist_ok=True)
    else:
        if not (os.path.exists(name) and filecmp.cmp(path, name, shallow=False)):
            with open(path, 'rb') as old, open(name, 'wb') as new: shutil.copyfileobj(old, new)
        mode = os.stat(path).st_mode & 0o777
        if os.stat(name).st_mode & 0o777 != mode: os.chmod(name, mode)
"#;

fn git(repository: &Path, arguments: &[&str]) -> String {
    let safe = "safe.directory=*";
    let output = Command::new("git")
        .args(["-c", safe, "-C"])
        .arg(repository)
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The tree of a commit as plain files.
fn export(repository: &Path, commit: &str, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    let mut archive = Command::new("git")
        .args(["-c", "safe.directory=*", "-c", "tar.umask=0022", "-C"])
        .arg(repository)
        .args(["archive", commit])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let bytes = archive.stdout.take().unwrap();
    let done = Command::new("tar").args(["-x", "-C"]).arg(to).stdin(bytes).status();
    assert!(done.unwrap().success());
    assert!(archive.wait().unwrap().success());
}

/// A repository with a history of its own, for machines without another.
fn made_up(lab: &Lab) -> PathBuf {
    let repository = lab.root.join("made-up");
    std::fs::create_dir(&repository).unwrap();
    git(&repository, &["init", "-q", "."]);
    let mut random = Random::new(7);
    let mut lines: Vec<String> = (0..400).map(|n| format!("line {n}")).collect();
    for commit in 0..8 {
        for _ in 0..12 {
            let at = random.below(lines.len());
            match random.below(3) {
                0 => lines[at] = format!("changed in {commit}"),
                1 => lines.insert(at, format!("inserted in {commit}")),
                _ => drop(lines.remove(at)),
            }
        }
        std::fs::write(repository.join("text"), lines.join("\n")).unwrap();
        std::fs::write(repository.join(format!("new-{commit}")), format!("{commit}\n")).unwrap();
        let _ = std::fs::remove_file(repository.join(format!("new-{}", commit - 2)));
        git(&repository, &["add", "-A", "."]);
        let identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"];
        git(&repository, &[&identity[..], &["commit", "-qm", "x"]].concat());
    }
    repository
}

/// One step of a history. Gives how many hunks there were and how many approvals it took.
fn follow(
    lab: &Lab,
    random: &mut Random,
    repository: &Path,
    from: &str,
    to: &str,
) -> (usize, usize) {
    std::fs::remove_dir_all(&lab.project).unwrap();
    export(repository, from, &lab.project);
    lab.own_below(&lab.project);
    let tools = lab.root.join("tools");
    let _ = std::fs::remove_dir_all(&tools);
    export(repository, to, &tools.join("next"));
    lab.tool("sync.py", SYNC);
    lab.own_below(&tools);
    lab.worked("s", "python3 /tools/sync.py /tools/next");
    let (mut seen, mut approvals) = (0, 0);
    loop {
        let diff = lab.diff("s");
        let changes = diff["changes"].as_array().unwrap();
        if changes.is_empty() {
            break;
        }
        let found = hunks(&diff, None);
        if approvals == 0 {
            seen = found.len();
        }
        let mut line: Vec<String> = Vec::new();
        for change in changes.iter().filter(|one| one["risk"] == "ask" || one["risk"] == "block") {
            line.extend(["--allow-risky".into(), change["path"].as_str().unwrap().into()]);
        }
        let some = 1 + found.len() / 10;
        let mut chosen: BTreeSet<String> = BTreeSet::new();
        for _ in 0..some {
            if !found.is_empty() {
                chosen.insert(found[random.below(found.len())].id.clone());
            }
        }
        chosen.into_iter().for_each(|id| line.extend(["--hunk".into(), id]));
        // What has no hunks (binaries, modes, links, empty files, plain renames), by its name.
        if found.is_empty() || random.chance(4) {
            let bare = |one: &&serde_json::Value| one["hunks"].as_array().unwrap().is_empty();
            line.push("--".into());
            line.extend(
                changes.iter().filter(bare).map(|one| one["path"].as_str().unwrap().into()),
            );
        }
        let ran = lab.skep(["approve", "s", "--json"]).args(&line).run();
        assert_eq!(ran.code(), 0, "{from}..{to}: {}", ran.describe());
        approvals += 1;
        assert!(approvals < 2000, "{from}..{to}: it does not come to an end");
    }
    let ignore_owner = |mut tree: Tree| {
        tree.nodes.remove(Path::new(""));
        tree.nodes.values_mut().for_each(|node| (node.uid, node.gid) = (0, 0));
        tree
    };
    let next = ignore_owner(Tree::read(&tools.join("next")));
    ignore_owner(lab.tree()).assert_equals(&next, &format!("{from}..{to}"));
    lab.skep(["rm", "s"]).run().ok();
    (seen, approvals)
}

#[test]
fn heavy_hunks_of_a_real_history_in_random_order_end_at_the_next_commit() {
    for_both(|lab| {
        let mut random = Random::printed();
        let named = std::env::var_os("SKEP_TEST_HISTORY").map(PathBuf::from);
        let repository = named.unwrap_or_else(|| made_up(lab));
        let pairs =
            std::env::var("SKEP_TEST_HISTORY_PAIRS").ok().and_then(|text| text.parse().ok());
        let count = format!("-n{}", pairs.unwrap_or(5_usize) + 1);
        let commits = git(&repository, &["rev-list", "--first-parent", &count, "HEAD"]);
        let commits: Vec<&str> = commits.lines().collect();
        let mut sum = (0, 0, 0);
        for pair in commits.windows(2) {
            let (hunks, approvals) = follow(lab, &mut random, &repository, pair[1], pair[0]);
            sum = (sum.0 + 1, sum.1 + hunks, sum.2 + approvals);
        }
        println!("{} steps, {} hunks, {} approvals", sum.0, sum.1, sum.2);
        assert!(sum.0 > 0 && sum.1 > 0);
    });
}
