//! What is said when something is odd, and what to do next: no silence, no wrong answer, no dead end.

use crate::harness::{Lab, Who, for_both, for_each};
use serde_json::Value;

#[test]
fn a_mount_with_an_unknown_mode_or_at_a_taken_place_is_refused() {
    for_both(|lab| {
        let refused = |words: &[&str], says: &str| {
            let call = lab.skep(["run"]).args(words).args(["--", "true"]);
            let ran = lab.without_effect(call);
            assert_eq!(ran.code(), 2, "{}", ran.describe());
            ran.says(says)
        };
        refused(&["--mount", "/etc:/b:zz"], "neither `ro` nor `rw`");
        refused(&["--mount", "/etc:/b", "--mount", "/usr:/b/"], "the same place inside");
        refused(&["--dataset", "a=/etc", "--dataset", "a=/usr"], "`a` is there twice");
        let both = ["--mount", "/etc:/datasets/a", "--dataset", "a=/usr"];
        refused(&both, "the same place inside");
        let nowhere = refused(&["--mount", "/etc:/usr/newdir"], "nothing can be mounted at");
        nowhere.says("hint: ").says("--system cow");
        // As the hint says, where that can be had.
        if lab.who.is_root() {
            let line = ["run", "--system", "cow", "--mount", "/etc:/usr/newdir"];
            lab.skep(line).args(["--", "test", "-e", "/usr/newdir/passwd"]).run().ok();
        }
        let named = ["run", "--mount", "/etc:/c:d:ro", "--", "test", "-e", "/c:d/passwd"];
        lab.skep(named).run().ok();
    });
}

#[test]
fn words_that_are_refused_are_refused_as_what_they_are() {
    for_both(|lab| {
        let says = |words: &[&str], text: &str| {
            lab.without_effect(lab.skep(words)).exits(2).says(text);
        };
        says(&["create", "--memory", "99999999P"], "too large");
        says(&["create", "env"], "a word of skep's command line");
        says(&["create", "--secret", "TOK@localhost"], "`localhost` is no host");
        lab.skep(["run", "--net", "loopback", "--", "true"]).run().ok();
        lab.skep(["run", "--help"]).run().ok();
    });
}

#[test]
fn without_a_current_directory_everything_works_that_needs_none() {
    for_both(|lab| {
        lab.create("s");
        let gone = lab.directory("gone");
        // The shell stands in it while it is removed.
        let call = |words: &[&str]| {
            std::fs::create_dir_all(&gone).unwrap();
            lab.who.own(&gone);
            let script = "rmdir ../gone && exec \"$0\" \"$@\"";
            let shell = lab.program("sh").args(["-c", script]).arg(&lab.binary);
            shell.args(words).directory(&gone).run()
        };
        let project = lab.project.to_str().unwrap();
        call(&["ls", "--all"]).ok();
        call(&["config"]).ok();
        call(&["show", "s"]).ok();
        call(&["doctor", "--json"]).ok().json();
        assert_eq!(call(&["exec", "s", "--", "pwd"]).ok().text(), project);
        assert_eq!(call(&["run", "--project", project, "--", "pwd"]).ok().text(), project);
        for (words, exit) in [
            (&["run", "--", "true"][..], 125),
            (&["exec", "--", "true"], 125),
            (&["ls"], 1),
            (&["cp", "s:x", "x"], 1),
        ] {
            let ran = call(words).exits(exit).says("the current directory was removed");
            ran.says("hint: change to one that exists");
        }
        assert_eq!(lab.sandboxes().len(), 1);
    });
}

#[test]
fn logs_from_behind_the_end_are_a_mistake() {
    for_both(|lab| {
        lab.create("s");
        let exec = lab.skep(["exec", "s", "--json", "--", "echo", "four"]).run().ok().json();
        let exec = exec["exec"].as_str().unwrap();
        assert_eq!(lab.skep(["logs", exec, "--from", "2"]).run().ok().text(), "ur");
        assert_eq!(lab.skep(["logs", exec, "--from", "5"]).run().ok().text(), "");
        let ran = lab.skep(["logs", exec, "--from", "6"]).run().exits(2);
        ran.says("has 5 bytes of output").says("`--from` is 0 to 5");
    });
}

fn paths(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect()
}

#[test]
fn an_approval_lists_what_the_diff_listed_and_another_digest_is_shown() {
    for_both(|lab| {
        lab.write("old/name", "a file that keeps its content\nwhen it is renamed\n");
        let work = "mkdir -p new/deep; echo x > new/deep/f; mkdir bare; mv old/name old/other";
        lab.skep(["run", "--name", "s", "--", "sh", "-c", work]).run().ok();
        let diff = lab.diff("s");
        let mut listed = Vec::new();
        for change in diff["changes"].as_array().unwrap() {
            listed.extend(change["path"].as_str());
            listed.extend(change["renamed_from"].as_str());
        }
        listed.sort_unstable();
        let digest = diff["digest"].as_str().unwrap();
        let wrong = digest.chars().rev().collect::<String>();
        let line = ["approve", "s", "--json", "--digest", &wrong];
        let problem = lab.without_effect(lab.skep(line)).exits(4).problem();
        assert_eq!(problem["details"]["now"], digest, "{problem}");
        assert!(paths(&problem["details"]["paths"]).contains(&"new/deep/f"), "{problem}");
        assert!(problem["hint"].as_str().unwrap().contains(&format!("--digest {digest}")));
        for more in [&["--dry-run"][..], &[]] {
            let line = ["approve", "s", "--json", "--digest", digest];
            let done = lab.skep(line).args(more).run().ok().json();
            assert_eq!(paths(&done["applied"]), listed, "{done}");
        }
    });
}

#[test]
fn what_was_weakened_and_what_was_hidden_is_said() {
    for_both(|lab| {
        lab.write(".env", "SECRET=1\n");
        let ran = lab.skep(["run", "--", "sh", "-c", "test ! -e .env"]).run().ok();
        ran.says("1 path was hidden inside (`.env`); `--show GLOB`");
        let ran = lab.skep(["run", "--show", ".env", "--", "cat", ".env"]).run().ok();
        assert!(!ran.errors().contains("hidden inside"), "{}", ran.describe());
    });
    // An ordinary user has no cgroup here; with one there is nothing to be said.
    for_each([Who::user()], |lab| {
        let run = |more: &[&str]| {
            lab.skep(["run", "--memory", "512M"]).args(more).args(["--", "true"]).run()
        };
        match run(&[]).code() {
            5 => drop(run(&["--best-effort"]).ok().says("--best-effort: `memory` is not enforced")),
            _ => assert!(!run(&["--best-effort"]).ok().errors().contains("not enforced")),
        }
    });
}

#[test]
fn a_restore_says_where_the_work_before_it_is() {
    for_both(|lab| {
        lab.create("s");
        lab.exec_script("s", "echo one > f").run().ok();
        lab.skep(["snapshot", "s", "first"]).run().ok();
        lab.exec_script("s", "echo two > f").run().ok();
        let ran = lab.skep(["restore", "s", "first"]).run().ok();
        let errors = ran.errors();
        let way = errors
            .lines()
            .find_map(|line| line.strip_prefix("what was there before is kept: skep "));
        let way: Vec<&str> = way.unwrap_or_else(|| panic!("{errors}")).split(' ').collect();
        lab.skep(way).run().ok();
        assert_eq!(lab.skep(["exec", "s", "--", "cat", "f"]).run().ok().text(), "two");
    });
}

/// What `skep doctor` starts, seen by `strace`.
fn started(lab: &Lab, words: &[&str]) -> String {
    let log = lab.root.join("started");
    std::fs::write(&log, "").unwrap();
    lab.who.own(&log);
    let call = lab.program("strace").args(["-f", "-qq", "-e", "trace=execve", "-o"]).arg(&log);
    call.arg(&lab.binary).args(words).within(120).run().ok();
    std::fs::read_to_string(log).unwrap()
}

#[test]
fn doctor_boots_no_guest_by_itself_and_says_each_thing_once() {
    for_both(|lab| {
        assert!(!started(lab, &["doctor"]).contains("qemu"), "a guest was booted unasked");
        assert!(!started(lab, &["providers"]).contains("qemu"), "a guest was booted unasked");
        let rows = lab.skep(["doctor", "--json"]).run().ok().json();
        let rows = rows.as_array().unwrap();
        let mut names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{rows:#?}");
        let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
        let runc = row("provider oci:runc");
        assert!(runc["how"].as_str().unwrap().contains("no container was run"), "{runc}");
        let microvm = row("provider microvm");
        if microvm["tried"] == false {
            assert_eq!(microvm["ok"], false, "{microvm}");
            assert!(microvm["remedy"].as_str().unwrap().contains("doctor --try"), "{microvm}");
        }
        let fuse = lab.program("sh").args(["-c", "test -r /dev/fuse -a -w /dev/fuse"]).run();
        assert_eq!(row("fuse-overlayfs")["ok"], fuse.code() == 0, "{rows:#?}");
        lab.audit_leftovers();
    });
}

/// An ordinary user cannot open `/dev/kvm`, so that no guest is booted here.
#[test]
fn doctor_runs_a_command_on_every_provider_when_it_is_asked_to() {
    for_each([Who::user()], |lab| {
        let rows = lab.skep(["doctor", "--try", "--json"]).within(120).run().ok().json();
        for name in ["namespace", "bubblewrap", "oci:runc", "oci:runsc", "subprocess"] {
            let all = rows.as_array().unwrap().iter();
            let row = all.into_iter().find(|row| row["name"] == format!("provider {name}"));
            let row = row.unwrap_or_else(|| panic!("{rows}"));
            assert_eq!(row["ok"], true, "{row}");
            assert!(row["how"].as_str().unwrap().starts_with("ran `true` in a sandbox"), "{row}");
        }
        assert_eq!(lab.sandboxes().len(), 0);
        lab.audit_leftovers();
    });
}

/// The control of the first: whoever asks for it has a guest booted.
#[test]
fn heavy_doctor_boots_a_guest_when_it_is_asked_to() {
    for_each([Who::root()], |lab| {
        if std::fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
            return crate::harness::skip("there is no /dev/kvm to try");
        }
        assert!(started(lab, &["doctor", "--try"]).contains("qemu"));
        // From then on it is known.
        let rows = lab.skep(["doctor", "--json"]).run().ok().json();
        let mut all = rows.as_array().unwrap().iter();
        let row = all.find(|row| row["name"] == "provider microvm").unwrap();
        assert_eq!(row["tried"], true, "{row}");
    });
}
