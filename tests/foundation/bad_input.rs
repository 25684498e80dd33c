//! What makes no sense is refused with a typed error and a code, and changes nothing.

use crate::harness::{Lab, for_both, outside};

/// Lines that must fail, with the exit code of the contract and the stable error code.
const LINES: [(&str, i32, &str); 40] = [
    ("frobnicate", 2, "usage"),
    ("create --frobnicate", 2, "usage"),
    ("run --frobnicate -- true", 2, "usage"),
    ("run --json", 2, "usage"),
    ("exec s", 2, "usage"),
    ("create ls", 2, "usage"),
    ("create ../x", 2, "usage"),
    ("create -- -x", 2, "usage"),
    ("create --memory 512", 2, "usage"),
    ("create --memory 12Q", 2, "usage"),
    ("create --memory -1M", 2, "usage"),
    ("create --memory 99999999999999999999G", 2, "usage"),
    ("create --disk 0x10M", 2, "usage"),
    ("create --pids 0", 2, "usage"),
    ("create --pids -5", 2, "usage"),
    ("create --pids many", 2, "usage"),
    ("create --cpus 0", 2, "usage"),
    ("create --cpus nan", 2, "usage"),
    ("create --timeout 10", 2, "usage"),
    ("create --timeout 5parsecs", 2, "usage"),
    ("create --ttl -1s", 2, "usage"),
    ("create --net everything", 2, "usage"),
    ("create --system rw", 2, "usage"),
    ("create --require magic", 2, "usage"),
    ("create --label nokey", 2, "usage"),
    ("create --env =value", 2, "usage"),
    ("create --mount nodestination", 2, "usage"),
    ("create --dataset nopath", 2, "usage"),
    ("create --dataset ../x=/tmp", 2, "usage"),
    ("create --hide [", 2, "usage"),
    ("approve s --digest zz", 4, "digest_mismatch"),
    ("logs --from -1 x", 2, "usage"),
    ("gc --older-than soon", 2, "usage"),
    ("ls --state purple", 2, "usage"),
    ("show nobody", 3, "not_found"),
    ("rm nobody", 3, "not_found"),
    ("diff nobody/at/all -s nobody", 3, "not_found"),
    ("logs zzzzzzzz", 3, "not_found"),
    ("kill zzzzzzzz", 3, "not_found"),
    ("create s", 4, "already_exists"),
];

#[track_caller]
fn fails(lab: &Lab, words: &[&str], exit: i32, code: &str) {
    // `--json` before the first `--`, where there is one.
    let at = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let mut words = words.to_vec();
    words.insert(at, "--json");
    let ran = lab.skep(&words).run().exits(exit);
    let problem = ran.problem();
    assert_eq!(problem["code"], code, "{}", ran.describe());
    assert!(ran.stdout.is_empty(), "{}", ran.describe());
    assert!(!problem["message"].as_str().unwrap().is_empty());
    assert_eq!(lab.sandboxes().len(), 1, "a sandbox was made: {}", ran.describe());
}

#[test]
fn bad_lines_are_refused_and_change_nothing() {
    for_both(|lab| {
        lab.write("a", "a");
        lab.create("s");
        let look = || (lab.tree(), lab.sandboxes(), outside::processes_of(&lab.root).len());
        let before = look();
        for (line, exit, code) in LINES {
            if line == "run --json" {
                lab.skep(["run", "--json"]).run().exits(2);
                continue;
            }
            fails(lab, &line.split(' ').collect::<Vec<_>>(), exit, code);
        }
        assert_eq!(look(), before);
    });
}

#[test]
fn missing_paths_are_named_in_the_error() {
    for_both(|lab| {
        lab.write("a", "a");
        for line in [
            &["create", "--mount", "/no/such/path:/x"][..],
            &["create", "--archive", "/no/such/path"],
            &["create", "--dataset", "d=/no/such/path"],
            &["create", "--project", "/no/such/path"],
            &["create", "--env-file", "/no/such/path"],
        ] {
            let ran = lab.without_effect(lab.skep(line).arg("--json"));
            assert!(matches!(ran.code(), 2 | 3), "{}", ran.describe());
            let message = ran.problem()["message"].as_str().unwrap().to_owned();
            assert!(message.contains("/no/such/path"), "{message}");
        }
    });
}

#[test]
fn unknown_settings_are_errors() {
    for_both(|lab| {
        let config = lab.home.join(".config/skep/config.toml");
        for text in
            ["frobnicate = 1\n", "[limits]\nmemory = \"lots\"\n", "not toml", "limits = 3\n"]
        {
            lab.write(&config, text);
            let ran = lab.skep(["create", "s", "--json"]).run();
            assert_eq!(ran.code(), 2, "{text}: {}", ran.describe());
            let hints = ran.errors();
            assert!(hints.contains("config.toml"), "the file is not named: {hints}");
        }
        std::fs::remove_file(&config).unwrap();
        std::fs::remove_dir(config.parent().unwrap()).unwrap();
        lab.write("skep.toml", "frobnicate = 1\n");
        let ran = lab.skep(["create", "s", "--json"]).run();
        assert_eq!(ran.code(), 2, "{}", ran.describe());
        std::fs::remove_file(lab.project.join("skep.toml")).unwrap();
        lab.create("s");
    });
}

#[test]
fn what_cannot_be_enforced_is_refused_not_ignored() {
    for_both(|lab| {
        lab.write("a", "a");
        let line = ["create", "--provider", "namespace", "--require", "kernel", "--json"];
        let ran = lab.without_effect(lab.skep(line));
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        let ran = lab.without_effect(lab.skep(["create", "--provider", "nonesuch", "--json"]));
        assert!(matches!(ran.code(), 2 | 5), "{}", ran.describe());
        lab.skep(["create", "--require", "filesystem", "--require", "network"]).run().ok();
    });
}

#[test]
fn a_word_that_is_no_name_never_means_a_sandbox_elsewhere() {
    for_both(|lab| {
        lab.skep(["run", "--name", "precious", "--", "sh", "-c", "echo work > work"]).run().ok();
        let id = lab.skep(["show", "precious", "--json"]).run().ok().json()["id"].clone();
        let id = id.as_str().unwrap();
        // Short beginnings mean nothing, to nobody.
        for length in [1, 3, 5] {
            let short = &id[..length];
            for line in [
                &["show", short][..],
                &["exec", short, "--", "true"],
                &["stop", short],
                &["rm", "--discard", short],
                &["net", "allow", short, "example.org"],
            ] {
                let ran = lab.skep(line).run();
                assert!(matches!(ran.code(), 3 | 125), "{}", ran.describe());
            }
        }
        // A longer one may be looked at, and not be destroyed or opened.
        let start = &id[..8];
        lab.skep(["show", start]).run().ok();
        for line in [
            &["rm", "--discard", start][..],
            &["stop", start],
            &["net", "allow", start, "example.org"],
            &["approve", "-s", start],
            &["reject", "-s", start],
            &["rebase", start],
        ] {
            lab.skep(line).run().exits(3).says("the whole name or id is wanted");
        }
        // Nor does the beginning of an approval's id.
        let approved = lab.skep(["approve", "precious", "--json"]).run().ok().json();
        let approval = approved["approval"].as_str().unwrap();
        let before = lab.tree();
        lab.skep(["undo", &approval[..8]]).run().exits(3).says("the whole id is wanted");
        lab.tree().assert_equals(&before, "it was undone");
        lab.skep(["undo", approval]).run().ok();
        // Nor does `--discard` go to whatever is the newest.
        lab.skep(["rm", "--discard"]).run().exits(2).says("skep rm --discard precious");
        assert_eq!(lab.diff("precious")["changes"].as_array().unwrap().len(), 1);
        lab.skep(["rm", "--discard", id]).run().ok();
    });
}

#[test]
fn nobodys_name_stands_for_anothers_id() {
    for_both(|lab| {
        lab.create("first");
        let id = lab.sandbox("first")["id"].as_str().unwrap().to_owned();
        for line in [&["create", "--json", &id][..], &["fork", "first", "--json", "--name", &id]] {
            let problem = lab.skep(line).run().exits(4).problem();
            assert_eq!(problem["code"], "already_exists", "{problem}");
            assert!(problem["hint"].is_string(), "{problem}");
        }
        // One that looks like an id and is nobody's is a name like any other.
        lab.create("thenewtestbranch");
        lab.skep(["rm", "thenewtestbranch"]).run().ok();
        assert_eq!(lab.skep(["show", &id, "--json"]).run().ok().json()["name"], "first");
        lab.skep(["rm", &id]).run().ok();
        // Gone, its id can be a name.
        lab.create(&id);
        assert_eq!(lab.sandbox(&id)["name"], id);
    });
}

#[test]
fn labels_that_begin_with_skep_are_skeps_own() {
    for_both(|lab| {
        for label in ["skep.keep=true", "skep.ttl=1", "skep.anything=x"] {
            for line in [
                &["create", "--json", "--label", label][..],
                &["run", "--json", "--label", label, "--", "true"],
            ] {
                let problem = lab.without_effect(lab.skep(line)).exits(2).problem();
                assert!(problem["hint"].to_string().contains("skep."), "{problem}");
            }
        }
        lab.skep(["create", "s", "--label", "skeptic=yes"]).run().ok();
        lab.skep(["run", "--keep", "--name", "kept", "--", "true"]).run().ok();
        let shown = lab.skep(["show", "kept", "--json"]).run().ok().json();
        assert_eq!(shown["labels"]["skep.keep"], "true", "{shown}");
    });
}

#[test]
fn unreviewed_work_is_not_removed_by_accident() {
    for_both(|lab| {
        lab.skep(["run", "--name", "s", "--", "sh", "-c", "echo x > x"]).run().ok();
        for line in [
            &["rm", "s", "--json"][..],
            &["create", "s", "--fresh", "--json"],
            &["gc", "--older-than", "1ms", "--json"],
        ] {
            let ran = lab.skep(line).run();
            assert!(line[0] == "gc" || ran.code() == 4, "{}", ran.describe());
            assert_eq!(lab.diff("s")["changes"].as_array().unwrap().len(), 1);
        }
        let ran = lab.skep(["run", "--rm", "--name", "t", "--", "sh", "-c", "echo x > x"]).run();
        assert_eq!(lab.diff("t")["changes"].as_array().unwrap().len(), 1, "{}", ran.describe());
        lab.skep(["create", "s", "--fresh", "--discard"]).run().ok();
        assert!(lab.diff("s")["changes"].as_array().unwrap().is_empty());
    });
}
