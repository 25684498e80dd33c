//! Which command wrote a path: the right one, or none.

use super::desk::change;
use crate::harness::{Lab, for_both};
use serde_json::Value;
use std::collections::BTreeMap;

/// Runs a script in a sandbox that is up, and lets some ticks of the clock of files pass before it ends;
/// gives the exec.
fn ran(lab: &Lab, script: &str) -> String {
    quick(lab, &format!("{script}; sleep 0.03"))
}

fn quick(lab: &Lab, script: &str) -> String {
    let line = ["exec", "s", "--json", "--", "sh", "-ec", script];
    lab.skep(line).run().ok().json()["exec"].as_str().unwrap().to_owned()
}

/// Who is named for each path; it must be one of those that wrote it, or nobody. Gives how many are.
fn right(lab: &Lab, wrote: &BTreeMap<&str, &str>) -> usize {
    let diff = lab.diff("s");
    let mut named = 0;
    for (path, exec) in wrote {
        match &change(&diff, path)["exec"] {
            Value::Null => {}
            found => {
                assert_eq!(found, exec, "{path}: {diff}");
                named += 1;
            }
        }
    }
    named
}

fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[test]
fn commands_one_after_the_other_are_not_mixed_up() {
    for_both(|lab| {
        lab.up("s");
        let paths: Vec<String> = (0..20).map(|number| format!("q{number}")).collect();
        let execs: Vec<String> =
            paths.iter().map(|path| quick(lab, &format!("echo {path} > {path}"))).collect();
        let wrote =
            paths.iter().map(String::as_str).zip(execs.iter().map(String::as_str)).collect();
        let named = right(lab, &wrote);
        println!("{named} of 20 are named");
        assert!(named > 0, "nobody is named at all");
        // Kernels since 6.13 stamp files finely enough for any pace.
        if kernel() >= (6, 13) {
            assert_eq!(named, 20, "{}", lab.diff("s")["warnings"]);
        }
    });
}

/// The kernel's marks of removed entries share one time, and what a new directory leaves out has none.
#[test]
fn who_removed_something_is_right_or_not_said() {
    for_both(|lab| {
        lab.write("x", "x\n");
        lab.write("z", "z\n");
        lab.write("y/1", "1\n");
        lab.write("y/2", "2\n");
        lab.up("s");
        let first = ran(lab, "rm x");
        let second = ran(lab, "rm -r y; rm z; mkdir y; echo 3 > y/3");
        let third = ran(lab, "chmod 700 y; echo q > q");
        let (first, second, third) = (first.as_str(), second.as_str(), third.as_str());
        let wrote = [
            ("x", first),
            ("z", second),
            ("y/1", second),
            ("y/2", second),
            ("y/3", second),
            ("q", third),
        ];
        assert!(right(lab, &wrote.into()) >= 2, "the two that were written are named");
    });
}

/// What skep wrote, or copied, while a command was alive was not written by that command.
#[test]
fn what_skep_writes_is_nobodys() {
    for_both(|lab| {
        lab.write("f", "1\n2\n3\n4\n5\n6\n7\n8\n9\n");
        lab.write("g", "1\n2\n3\n4\n5\n6\n7\n8\n9\na\nb\nc\nd\ne\n");
        lab.up("s");
        let writer = ran(lab, "sed -i s/2/two/ f; sed -i 's/1/one/; s/e/E/' g; echo n > n");
        let line =
            ["exec", "-d", "s", "--", "sh", "-c", "while ! test -e /tmp/end; do sleep 0.05; done"];
        lab.skep(line).run().ok();
        let wrote = [("f", writer.as_str()), ("g", writer.as_str()), ("n", writer.as_str())];
        assert_eq!(right(lab, &wrote.into()), 3);
        lab.write("f", "1\n2\n3\n4\n5\n6\n7\n8\nnine\n");
        // Left as it is while the other one runs, which may have read it.
        lab.skep(["rebase", "s"]).run().exits(4);
        let hunk = super::desk::hunks(&lab.diff("s"), Some("g"))[0].id.clone();
        lab.skep(["reject", "s", "--hunk", &hunk]).run().ok();
        right(lab, &wrote.into());
        // A copy of what was there, made while the other one lives.
        lab.skep(["snapshot", "s", "l"]).run().ok();
        right(lab, &wrote.into());
        lab.inside("s", "touch /tmp/end");
        lab.skep(["stop", "s"]).run().ok();
        lab.skep(["restore", "s", "l"]).run().ok();
        right(lab, &wrote.into());
    });
}

/// Several at a time, each over in a moment: their starts are noted before others let them begin.
#[test]
fn quick_commands_beside_each_other_are_right_or_not_said() {
    for_both(|lab| {
        lab.up("s");
        let paths: Vec<String> = (0..24).map(|number| format!("p{number}")).collect();
        let mut wrote: BTreeMap<&str, String> = BTreeMap::new();
        for group in paths.chunks(4) {
            let run = |path: &str| quick(lab, &format!("echo {path} > {path}"));
            let execs: Vec<String> = std::thread::scope(|scope| {
                let running: Vec<_> =
                    group.iter().map(|path| scope.spawn(move || run(path))).collect();
                running.into_iter().map(|run| run.join().unwrap()).collect()
            });
            wrote.extend(group.iter().map(String::as_str).zip(execs));
        }
        let wrote = wrote.iter().map(|(path, exec)| (*path, exec.as_str())).collect();
        println!("{} of 24 are named", right(lab, &wrote));
    });
}
