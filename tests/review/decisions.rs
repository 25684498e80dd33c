//! What stands around an approval: the check, the commit, the receipt.

use crate::harness::{Lab, for_both, wait_for};
use serde_json::Value;
use std::fs;

#[track_caller]
fn git(lab: &Lab, line: &[&str]) -> String {
    lab.program("git").args(line).run().ok().text()
}

fn repository(lab: &Lab) {
    git(lab, &["init", "-q", "-b", "main", "."]);
    git(lab, &["config", "user.name", "Ada Project"]);
    git(lab, &["config", "user.email", "ada@example.org"]);
    git(lab, &["add", "."]);
    git(lab, &["commit", "-qm", "first"]);
}

#[test]
fn a_check_decides_inside_with_exactly_the_selection_applied() {
    for_both(|lab| {
        lab.write("a", "old\n");
        let outside = lab.root.join("outside");
        lab.worked("s", "echo new > a; echo new > b");
        // Refused: nothing is changed, and the output is shown.
        let line = ["approve", "s", "--check", "cat a; echo no-good >&2; exit 3"];
        let ran = lab.without_effect(lab.skep(line));
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        assert!(ran.errors().contains("no-good"), "{}", ran.describe());
        // The selection only: `b` is not in it, and the rest of the project is.
        let passes = "test ! -e b && test \"$(cat a)\" = new";
        let ran = lab.without_effect(lab.skep(["approve", "s", "b", "--check", passes]));
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        // Inside: what it writes is gone, what it reaches for is not there.
        let check = format!(
            "{passes} && touch c && (echo x > {} || true) && ! cat {}/.ssh/id_ed25519",
            outside.display(),
            lab.home.display()
        );
        lab.approve(&["s", "a", "--check", &check]);
        assert_eq!(lab.bytes("a"), b"new\n");
        assert!(!lab.project.join("b").exists() && !lab.project.join("c").exists());
        assert!(!outside.exists());
        assert_eq!(lab.sandboxes().len(), 1, "the check left a sandbox");
    });
}

#[test]
fn a_commit_holds_the_applied_paths_and_nothing_else() {
    for_both(|lab| {
        lab.write("a", "old\n");
        lab.write("b", "old\n");
        lab.write("staged", "old\n");
        lab.write("dirty", "old\n");
        repository(lab);
        // The user's own unfinished work.
        lab.write("staged", "staged\n");
        git(lab, &["add", "staged"]);
        lab.write("dirty", "dirty\n");
        // Hooks and filters that must not run.
        let marker = lab.root.join("marker");
        for hook in ["pre-commit", "commit-msg", "post-commit", "prepare-commit-msg"] {
            let path = lab.write(
                format!(".git/hooks/{hook}"),
                format!("#!/bin/sh\ntouch {}\n", marker.display()),
            );
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        lab.worked("s", "echo new > a; echo new > b; rm staged");
        let report = lab.approve(&["s", "a", "--commit", "-m", "take a"]);
        let id = git(lab, &["rev-parse", "HEAD"]);
        assert_eq!(report["commit"], id.as_str(), "{report}");
        assert_eq!(
            git(lab, &["show", "--format=%an <%ae>", "--name-only", "HEAD"]),
            "Ada Project <ada@example.org>\n\na"
        );
        assert!(git(lab, &["log", "-1", "--format=%B"]).contains("Co-authored-by: "));
        assert_eq!(git(lab, &["status", "--porcelain"]), " M dirty\nM  staged");
        git(lab, &["fsck", "--strict"]);
        assert!(!marker.exists(), "a hook ran");
    });
}

#[test]
fn without_a_commit_the_apply_stands_or_is_undone_as_the_flag_says() {
    for_both(|lab| {
        lab.write("a", "old\n");
        repository(lab);
        lab.worked("s", "echo new > a");
        // Somebody else's git holds the index.
        let lock = lab.write(".git/index.lock", "");
        let ran = lab.skep(["approve", "s", "--commit", "-m", "x", "--or-undo"]).run();
        assert_ne!(ran.code(), 0, "{}", ran.describe());
        assert!(ran.errors().contains("nothing was applied"), "{}", ran.describe());
        assert_eq!(lab.bytes("a"), b"old\n", "it was not undone");
        let report =
            lab.skep(["approve", "s", "--json", "--commit", "-m", "x"]).run().exits(1).json();
        assert_eq!(report["commit"], Value::Null);
        assert!(report["notes"].to_string().contains("no commit was made"), "{report}");
        assert_eq!(lab.bytes("a"), b"new\n");
        fs::remove_file(lock).unwrap();
        assert_eq!(git(lab, &["log", "--format=%s"]), "first");
    });
}

/// The statement says what was done, and its signature holds for those bytes and no others.
/// The block of shell in docs/receipts.md, word for word.
/// That it was paused decides nothing, and takes no decision back.
#[test]
fn what_was_decided_outlives_a_pause() {
    for_both(|lab| {
        let state = |name: &str| lab.sandbox(name)["state"].as_str().unwrap().to_owned();
        for (decide, word) in [("approve", "approved"), ("reject", "rejected")] {
            lab.create("s");
            lab.skep(["exec", "s", "--", "sh", "-c", "echo x > new"]).run().ok();
            lab.skep([decide, "s"]).run().ok();
            assert_eq!(state("s"), word);
            lab.skep(["freeze", "s"]).run().ok();
            assert_eq!(state("s"), "frozen");
            lab.skep(["thaw", "s"]).run().ok();
            assert_eq!(state("s"), word);
            // Stopped from there, too.
            lab.skep(["freeze", "s"]).run().ok();
            lab.skep(["stop", "s"]).run().ok();
            assert_eq!(state("s"), word);
            lab.skep(["rm", "s"]).run().ok();
            let _ = fs::remove_file(lab.project.join("new"));
        }
        // Decided while it is frozen; and taken back.
        lab.create("s");
        lab.skep(["exec", "s", "--", "sh", "-c", "echo x > new"]).run().ok();
        lab.skep(["freeze", "s"]).run().ok();
        let report = lab.skep(["approve", "s", "--json"]).run().ok().json();
        assert_eq!(state("s"), "frozen");
        lab.skep(["thaw", "s"]).run().ok();
        assert_eq!(state("s"), "approved");
        lab.skep(["freeze", "s"]).run().ok();
        lab.skep(["undo", report["approval"].as_str().unwrap()]).run().ok();
        lab.skep(["thaw", "s"]).run().ok();
        assert_eq!(state("s"), "ready");
        // A command makes it another one.
        lab.skep(["approve", "s"]).run().ok();
        lab.skep(["exec", "s", "--", "true"]).run().ok();
        lab.skep(["freeze", "s"]).run().ok();
        lab.skep(["thaw", "s"]).run().ok();
        assert_eq!(state("s"), "ready");
    });
}

#[test]
fn a_receipt_is_checked_as_the_manual_says() {
    let page = include_str!("../../docs/receipts.md");
    let block = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    for_both(|lab| {
        lab.worked("s", "echo new > a");
        let approval = lab.approve(&["s"])["approval"].as_str().unwrap().to_owned();
        let receipt = lab.skep(["receipt", &approval]).run().ok().json();
        let verify = |receipt: &Value, key: &str| {
            let (script, file) = (lab.root.join("verify.sh"), lab.root.join("receipt.json"));
            std::fs::write(&script, block).unwrap();
            std::fs::write(&file, receipt.to_string()).unwrap();
            lab.program("sh").arg(&script).arg(&file).arg(key).run()
        };
        let key = receipt["publicKey"]["key"].as_str().unwrap();
        assert_eq!(verify(&receipt, key).ok().json()["predicate"]["approval"], approval.as_str());
        verify(&receipt, "").ok();
        let other = key.chars().rev().collect::<String>();
        assert_ne!(verify(&receipt, &other).code(), 0);
        // Another letter in what was signed.
        let mut changed = receipt.clone();
        let payload = changed["payload"].as_str().unwrap().replacen('e', "f", 1);
        changed["payload"] = payload.into();
        assert_ne!(verify(&changed, key).code(), 0);
    });
}

#[test]
fn a_receipt_is_checked_by_another_program() {
    for_both(|lab| {
        lab.write("a", "old\n");
        lab.worked("s", "echo new > a");
        let approval = lab.approve(&["s"])["approval"].as_str().unwrap().to_owned();
        let receipt = lab.skep(["receipt", &approval]).run().ok().json();
        let predicate = &receipt["statement"]["predicate"];
        assert_eq!(predicate["approval"], approval.as_str());
        assert_eq!(predicate["paths"][0]["path"], "a");
        assert_eq!(predicate["execs"][0]["command"][0], "sh", "{predicate}");
        assert_eq!(predicate["paths"][0]["exec"], predicate["execs"][0]["id"]);
        lab.tool("receipt.json", receipt.to_string());
        let check = "import base64, json, subprocess, sys, os\n\
            r = json.load(open(sys.argv[1])); d = sys.argv[2]\n\
            body = base64.b64decode(r['payload']); kind = r['payloadType'].encode()\n\
            if len(sys.argv) > 3: body = body.replace(b'\"a\"', b'\"b\"')\n\
            assert len(sys.argv) > 3 or json.loads(body) == r['statement']\n\
            pae = b'DSSEv1 %d %s %d %s' % (len(kind), kind, len(body), body)\n\
            open(d + '/pae', 'wb').write(pae)\n\
            open(d + '/sig', 'wb').write(base64.b64decode(r['signatures'][0]['sig']))\n\
            der = bytes.fromhex('302a300506032b6570032100') + base64.b64decode(r['publicKey']['key'])\n\
            open(d + '/key', 'wb').write(der)\n\
            sys.exit(subprocess.call(['openssl', 'pkeyutl', '-verify', '-pubin', '-keyform', 'DER', '-inkey', d + '/key', '-rawin', '-in', d + '/pae', '-sigfile', d + '/sig'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))\n";
        let room = lab.directory(lab.root.join("room"));
        let file = lab.root.join("tools/receipt.json");
        let verify = |changed: &[&str]| {
            lab.program("python3")
                .arg("-c")
                .arg(check)
                .arg(&file)
                .arg(&room)
                .args(changed)
                .run()
                .code()
        };
        assert_eq!(verify(&[]), 0, "{receipt}");
        assert_ne!(verify(&["changed"]), 0);
        // Who approved what, by path.
        let history = lab.skep(["history", "a", "--json"]).run().ok().json();
        assert_eq!(history[0]["approval"], approval.as_str(), "{history}");
        assert_eq!(lab.skep(["history", "zzz", "--json"]).run().ok().json(), Value::Array(vec![]));
    });
}

/// `skep reject s "$FILE"` with `FILE` unset.
#[test]
fn an_empty_path_is_not_everything() {
    for_both(|lab| {
        lab.write("a", "old\n");
        lab.worked("s", "echo new > a; echo b > b");
        for verb in ["approve", "reject", "diff", "conflicts"] {
            let ran = lab.without_effect(lab.skep([verb, "s", ""]));
            assert_eq!(ran.code(), 2, "{verb}: {}", ran.describe());
        }
        for option in ["--allow-risky", "--check"] {
            let ran = lab.without_effect(lab.skep(["approve", "s", option, ""]));
            assert_eq!(ran.code(), 2, "{option}: {}", ran.describe());
        }
        assert_eq!(super::desk::paths(&lab.diff("s")), ["a", "b"], "nothing was dropped");
        for verb in ["approve", "reject"] {
            let ran = lab.without_effect(lab.skep([verb, "s", "nosuch"]));
            assert_eq!(ran.code(), 3, "{verb}: {}", ran.describe());
        }
    });
}

#[test]
fn globs_are_read_from_where_one_stands() {
    for_both(|lab| {
        for name in ["f", "sub/f", "sub/g", "deep/er/f"] {
            lab.write(name, "old\n");
        }
        lab.worked("s", "for f in f sub/f sub/g deep/er/f n; do echo new > $f; done");
        let sub = lab.project.join("sub");
        lab.skep(["approve", "s", "f*"]).directory(&sub).run().ok();
        assert_eq!([lab.bytes("sub/f"), lab.bytes("f")], [b"new\n", b"old\n"]);
        lab.skep(["reject", "s", "*"]).directory(&sub).run().ok();
        assert_eq!(super::desk::paths(&lab.diff("s")), ["deep/er/f", "f", "n"]);
        lab.skep(["approve", "s", "../deep/**"]).directory(&sub).run().ok();
        assert_eq!(lab.bytes("deep/er/f"), b"new\n");
        lab.skep(["approve", "s", "/*"]).directory(&sub).run().ok();
        assert_eq!(lab.bytes("f"), b"new\n");
        assert!(super::desk::paths(&lab.diff("s")).is_empty());
    });
}

#[test]
fn diff_17_an_approval_shows_every_line_it_applies() {
    for_both(|lab| {
        lab.write("old", "1\n2\n3\n4\n5\n");
        lab.worked(
            "s",
            "mv old moved; for n in $(seq 30); do mkdir p$n; echo '{}' > p$n/package.json; \
             echo $n > f$n; done; echo evil > zz_evil.sh",
        );
        let ran = lab.skep(["approve", "s"]).run().ok();
        let said = ran.errors();
        for number in 1..=30 {
            for name in [format!("p{number}/package.json"), format!("f{number}")] {
                let line = format!("  added    {name}  ");
                assert!(said.contains(&line), "{name}: {said}");
            }
            assert!(said.contains(&format!("! note      p{number}/package.json")), "{said}");
        }
        assert!(said.contains("  added    zz_evil.sh"), "{said}");
        assert!(said.contains("  renamed  old -> moved"), "{said}");
    });
}

#[test]
fn a_dry_run_runs_the_check_and_a_rename_is_found_by_its_old_name() {
    for_both(|lab| {
        lab.write("old", "1\n2\n3\n4\n5\n");
        lab.worked("s", "mv old moved");
        let ran = lab.without_effect(lab.skep(["approve", "s", "--dry-run", "--check", "false"]));
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        lab.skep(["approve", "s", "--dry-run", "--check", "test -f moved"]).run().ok();
        lab.skep(["approve", "s", "old"]).run().ok();
        assert!(lab.project.join("moved").exists() && !lab.project.join("old").exists());
    });
}

/// Two commands at the same time: nobody can tell which one wrote, so nobody is named.
#[test]
fn which_of_two_commands_wrote_is_not_guessed() {
    for_both(|lab| {
        lab.write("shared", "old\n");
        lab.up("s");
        lab.inside("s", "echo one > alone");
        let wait = "while ! test -e /tmp/go; do sleep 0.02; done;";
        let begin = |number: u32| {
            let script = format!(
                "{wait} echo {number} >> shared; echo {number} > own{number}; touch /tmp/d{number}; while ! test -e /tmp/end; do sleep 0.02; done"
            );
            lab.skep(["exec", "-d", "s", "--", "sh", "-c", &script]).run().ok();
        };
        begin(1);
        begin(2);
        lab.inside(
            "s",
            "touch /tmp/go; while ! test -e /tmp/d1 -a -e /tmp/d2; do sleep 0.02; done",
        );
        let diff = lab.diff("s");
        let exec = |path: &str| super::desk::change(&diff, path)["exec"].clone();
        assert!(exec("alone").is_string(), "{diff}");
        for path in ["own1", "own2", "shared"] {
            assert_eq!(exec(path), Value::Null, "{path}: {diff}");
        }
        assert!(diff["warnings"].to_string().contains("several commands ran about then"), "{diff}");
        let approval = lab.approve(&["s"])["approval"].as_str().unwrap().to_owned();
        let receipt = lab.skep(["receipt", &approval]).run().ok().json();
        let predicate = &receipt["statement"]["predicate"];
        assert_eq!(predicate["execs"].as_array().unwrap().len(), 1, "{predicate}");
        lab.inside("s", "touch /tmp/end");
    });
}

#[test]
fn a_reject_that_drops_nothing_decides_nothing() {
    for_both(|lab| {
        lab.up("s");
        lab.skep(["reject", "s"]).run().ok();
        assert_eq!(lab.sandbox("s")["state"], "ready");
        lab.inside("s", "echo x > x");
        lab.approve(&["s"]);
        lab.skep(["reject", "s"]).run().ok();
        assert_eq!(lab.sandbox("s")["state"], "approved");
        lab.inside("s", "echo y > y");
        lab.skep(["reject", "s"]).run().ok();
        assert_eq!(lab.sandbox("s")["state"], "rejected");
    });
}

/// A command that runs through a decision may write afterwards.
#[test]
fn what_was_written_after_an_approval_is_not_called_approved_when_it_stops() {
    for_both(|lab| {
        let begin = |script: &str| {
            lab.up("s");
            lab.skep(["exec", "-d", "s", "--", "sh", "-c", script]).run().ok();
            let changed = || !lab.diff("s")["changes"].as_array().unwrap().is_empty();
            wait_for("the first change", 20, || changed().then_some(()));
            for words in [&["freeze", "s"][..], &["approve", "s", "f"], &["thaw", "s"]] {
                lab.skep(words).run().ok();
            }
            changed
        };
        let _ = begin("echo 1 > f; sleep 600");
        lab.skep(["stop", "s"]).run().ok();
        assert_eq!(lab.sandbox("s")["state"], "approved");
        lab.skep(["rm", "s"]).run().ok();
        let changed =
            begin("n=1; while :; do n=$((n+1)); echo $n > new; mv new f; sleep 0.05; done");
        wait_for("another change", 20, || changed().then_some(()));
        lab.skep(["stop", "s"]).run().ok();
        assert_eq!(lab.sandbox("s")["state"], "stopped");
        lab.skep(["rm", "s"]).run().exits(4).says("unreviewed");
        lab.skep(["rm", "--discard", "s"]).run().ok();
    });
}
