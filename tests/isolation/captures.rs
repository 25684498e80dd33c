//! What skep itself keeps for a sandbox: the base of what was changed inside takes up room, too.

use crate::harness::{Lab, Who, for_both, for_each};
use std::path::Path;

/// Twice what the tighter limit has room for.
const FEW: usize = 80;
/// More than the small disk has room for.
const MANY: usize = 300;
/// Bytes of a file.
const SIZE: usize = 130 << 10;

fn fill_the_project(lab: &Lab, files: usize) {
    for number in 0..files {
        lab.write(
            format!("t{number}"),
            format!("{number} {}\n", "x".repeat(990)).repeat(SIZE / 1000),
        );
    }
}

/// Bytes below a directory, by plain means.
fn size(path: &Path) -> u64 {
    let ran = std::process::Command::new("du").args(["-s", "-B1"]).arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn res_5_what_skep_keeps_of_the_base_is_under_the_disk_limit_too() {
    for_both(|lab| {
        fill_the_project(lab, FEW);
        let kept = |name: &str, disk: &str| {
            let run = ["run", "--keep", "--name", name, "--disk", disk, "--", "sh", "-c"];
            lab.skep(run).args(["rm -f t*; echo n > new"]).run().ok();
            let shown = lab.sandbox(name);
            let base = lab.state.join("sandboxes").join(shown["id"].as_str().unwrap()).join("base");
            let (seen, said) = (size(&base), shown["base_bytes"].as_u64().unwrap());
            // `du` counts the directory itself.
            assert!(seen.abs_diff(said) <= 64 << 10, "{seen} bytes, and {said} are shown");
            seen
        };
        let few = kept("s", "4M");
        assert!(few < 5 << 20, "{few} bytes are kept beside a limit of 4 MiB");
        assert!(few > 2 << 20, "and what has room is kept: {few}");
        // Control: where there is room, all of it is.
        let all = kept("c", "200M");
        assert!(all > (FEW * SIZE) as u64 / 2, "{all}");
        let text = lab.skep(["show", "c"]).run().ok().text();
        assert!(text.contains("kept of the base"), "{text}");

        // Nothing of the user's is lost for it: what was edited meanwhile is a conflict, kept or not.
        for number in [0, FEW - 1] {
            lab.write(format!("t{number}"), "mine\n");
        }
        for number in [0, FEW - 1] {
            lab.skep(["approve", "s", &format!("t{number}")]).run().exits(4);
        }
        lab.skep(["approve", "s", "t5", "new"]).run().ok();
        assert!(!lab.project.join("t5").exists() && lab.project.join("t0").exists());
        for name in ["s", "c"] {
            lab.skep(["rm", "--discard", name]).run().ok();
        }
    });
}

/// A state directory on a small disk of its own: the data base works on, whatever is removed inside.
#[test]
fn res_5_what_skep_keeps_of_the_base_leaves_the_hosts_reserve() {
    for_each([Who::root()], |lab| {
        fill_the_project(lab, MANY);
        let (skep, state) = (lab.binary.display(), lab.state.display());
        let script = format!(
            "mkdir -p {state}; mount -t tmpfs -o size=30m,mode=700 none {state}
             {skep} create s > /dev/null
             {skep} exec s -- sh -c 'rm -f t*'; echo removed $?
             echo left $(stat -f -c '%a %S' {state})
             {skep} exec s -- true; echo works $?; {skep} diff s --stat 2>&1 | tail -1
             {skep} rm --discard s > /dev/null 2>&1"
        );
        let line = ["--mount", "--propagation", "private", "sh", "-c", &script];
        let ran = lab.program("unshare").args(line).run().ok();
        let text = ran.text();
        assert!(text.lines().any(|line| line == "removed 0"), "{}", ran.describe());
        assert!(text.lines().any(|line| line == "works 0"), "{}", ran.describe());
        assert!(text.contains(&format!("{MANY} files changed")), "{}", ran.describe());
        let left = text.lines().find_map(|line| line.strip_prefix("left ")).unwrap();
        let left: Vec<u64> = left.split(' ').map(|word| word.parse().unwrap()).collect();
        assert!(left[0] * left[1] > 2 << 20, "{}", ran.describe());
    });
}
