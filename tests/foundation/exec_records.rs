//! Execs that are asked of the keeper without opening the store, and how they get into it.
//!
//! That the store was not opened is proven by taking it away: the database is moved out of the state
//! directory while such an exec runs, and would be made anew by whoever opened it.

use crate::harness::{Lab, Ran, entries, for_both, outside, wait_for};
use serde_json::Value;
use std::path::PathBuf;

/// Nothing here holds for calls through a server, which has the store open.
fn is_hosted() -> bool {
    std::env::var_os("SKEP_TEST_HOST").is_some()
}

fn for_both_here(test: impl Fn(&Lab)) {
    if !is_hosted() {
        for_both(test);
    }
}

/// A sandbox that a command has run in, so that the way to it is known.
fn known(lab: &Lab, name: &str) {
    lab.create(name);
    lab.skep(["exec", name, "--", "true"]).run().ok();
    assert!(lab.state.join("ways").join(name).exists());
}

/// What a call does while there is no store.
#[track_caller]
fn without_store<T>(lab: &Lab, call: impl FnOnce() -> T) -> T {
    let away = lab.root.join("away");
    std::fs::create_dir(&away).unwrap();
    let files = || -> Vec<PathBuf> {
        let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        entries(&lab.state).into_iter().filter(|path| name(path).starts_with("skep.db")).collect()
    };
    for file in files() {
        std::fs::rename(&file, away.join(file.file_name().unwrap())).unwrap();
    }
    let result = call();
    assert_eq!(files(), Vec::<PathBuf>::new(), "the store was opened");
    for file in entries(&away) {
        std::fs::rename(&file, lab.state.join(file.file_name().unwrap())).unwrap();
    }
    std::fs::remove_dir(away).unwrap();
    result
}

#[track_caller]
fn fast(lab: &Lab, name: &str, script: &str) -> Ran {
    without_store(lab, || lab.exec_script(name, script).run())
}

fn execs(lab: &Lab, name: &str) -> Vec<Value> {
    lab.skep(["ps", name, "--json"]).run().ok().json().as_array().unwrap().clone()
}

/// Kinds of the events of an exec, in order.
fn story(lab: &Lab, exec: &str) -> Vec<String> {
    let events = lab.skep(["events", "--json"]).run().ok().json_lines();
    let own = events.iter().filter(|event| event["exec"] == exec);
    own.map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn an_exec_without_the_store_is_remembered_like_any_other() {
    for_both_here(|lab| {
        known(lab, "s");
        let ran = fast(lab, "s", "echo out; echo err >&2; echo x > made; exit 3").exits(3);
        assert_eq!((ran.text(), ran.errors()), ("out".into(), "err\n".into()));
        let two = fast(lab, "s", "exit 4").exits(4);
        assert_eq!(two.text(), "");
        let rows = execs(lab, "s");
        let ends: Vec<_> = rows.iter().map(|row| row["exit_code"].as_i64().unwrap()).collect();
        assert_eq!(ends, [0, 3, 4], "{rows:#?}");
        let exec = rows[1]["exec"].as_str().unwrap();
        assert_eq!(rows[1]["reason"], "exited");
        assert_eq!(
            rows[1].as_object().unwrap().keys().collect::<Vec<_>>(),
            rows[0].as_object().unwrap().keys().collect::<Vec<_>>()
        );
        assert_eq!(story(lab, exec), ["exec.started", "exec.ended"]);
        let logs = lab.skep(["logs", exec]).run().ok();
        assert!((logs.text() + &logs.errors()).contains("out"), "{}", logs.describe());
        // Asked again, nothing is doubled.
        assert_eq!(execs(lab, "s"), rows);
        assert_eq!(lab.diff("s")["changes"][0]["path"], "made");
        assert_eq!(entries(&lab.state.join("news")), Vec::<PathBuf>::new());
    });
}

#[test]
fn an_exec_without_the_store_is_seen_while_it_runs_and_can_be_ended() {
    for_both_here(|lab| {
        known(lab, "s");
        let mut follower = lab.skep(["events", "--follow", "--json"]).into_command();
        follower.stdout(std::process::Stdio::piped());
        let mut follower = follower.spawn().unwrap();
        let detached = ["exec", "-d", "s", "--", "sh", "-c", "echo one; sleep 66661"];
        // The follower has the store open, so it stays where it is; the news must get there.
        let exec = lab.skep(detached).run().ok().text();
        use std::io::BufRead as _;
        let lines = std::io::BufReader::new(follower.stdout.take().unwrap()).lines();
        let seen = lines.map_while(Result::ok).find(|line| line.contains(&exec)).unwrap();
        assert!(seen.contains("exec.started"), "{seen}");
        follower.kill().unwrap();
        follower.wait().unwrap();
        let row = execs(lab, "s").pop().unwrap();
        assert_eq!((&row["exec"], &row["running"]), (&exec.as_str().into(), &true.into()));
        wait_for("its output", 10, || {
            lab.skep(["logs", &exec]).run().ok().text().contains("one").then_some(())
        });
        lab.skep(["kill", &exec]).run().ok();
        let row =
            wait_for("the end", 10, || execs(lab, "s").pop().filter(|row| row["running"] == false));
        assert_eq!(row["reason"], "killed");
        assert_eq!(story(lab, &exec), ["exec.started", "exec.ended"]);
    });
}

#[test]
fn what_a_removal_or_a_stop_ends_is_remembered_too() {
    for_both_here(|lab| {
        known(lab, "s");
        let detached = ["exec", "-d", "s", "--", "sleep", "66662"];
        let exec = without_store(lab, || lab.skep(detached).run().ok().text());
        lab.skep(["stop", "s"]).run().ok();
        let row = execs(lab, "s").pop().unwrap();
        assert_eq!((&row["exec"], &row["reason"]), (&exec.as_str().into(), &"killed".into()));
        // A stopped sandbox has no keeper to ask: the store starts it, as ever.
        assert_eq!(lab.exec_script("s", "echo again").run().ok().text(), "again");
        let exec = without_store(lab, || lab.skep(detached).run().ok().text());
        lab.skep(["rm", "--discard", "s"]).run().ok();
        assert_eq!(story(lab, &exec)[0], "exec.started");
        assert!(outside::processes_with("66662").is_empty());
        // The name is free again and leads nowhere.
        let ran = |name| lab.skep(["exec", name, "--", "true"]).run().exits(125);
        ran("s").says("there is no sandbox `s`").says("it was deleted");
        ran("t").says("there is no sandbox `t`").says_not("deleted");
    });
}

#[test]
fn a_name_leads_to_its_own_sandbox_whatever_the_way_says() {
    for_both_here(|lab| {
        known(lab, "a");
        known(lab, "b");
        let way = |name: &str| lab.state.join("ways").join(name);
        let read = |name: &str| std::fs::read_to_string(way(name)).unwrap();
        let host = |name: &str| lab.skep(["exec", name, "--", "uname", "-n"]).run().ok().text();
        let (old_a, forged) = (read("a"), read("b").replace("\"name\":\"b\"", "\"name\":\"a\""));
        assert_ne!(forged, read("b"));
        for bad in [forged.as_str(), read("b").as_str(), "{}", "", "\0"] {
            lab.write(way("a"), bad);
            assert_eq!(host("a"), "a", "{bad}");
        }
        // Made again under the same name, with the old way put back.
        lab.exec_script("a", "touch old").run().ok();
        lab.skep(["rm", "--discard", "a"]).run().ok();
        lab.create("a");
        lab.write(way("a"), old_a);
        assert_eq!(lab.exec_script("a", "ls").run().ok().text(), "");
        assert_eq!(fast(lab, "a", "uname -n; ls").ok().text(), "a");
    });
}

#[test]
fn a_frozen_sandbox_and_bad_words_are_refused_as_ever() {
    for_both_here(|lab| {
        known(lab, "s");
        let way = lab.state.join("ways/s");
        let lines: [&[&str]; 3] = [
            &["exec", "s", "--"],
            &["exec", "s", "--env-file", "/nowhere", "--", "true"],
            &["exec", "s", "--workdir", "/nowhere", "--", "true"],
        ];
        let refused = |line: &[&str]| {
            let ran = lab.skep(line).run();
            (ran.code(), ran.errors())
        };
        let with: Vec<_> = lines.iter().map(|line| refused(line)).collect();
        for (line, with) in lines.iter().zip(with) {
            std::fs::remove_file(&way).unwrap();
            assert_eq!(refused(line), with, "{line:?}");
            lab.skep(["exec", "s", "--", "true"]).run().ok();
        }
        lab.skep(["freeze", "s"]).run().ok();
        lab.skep(["exec", "s", "--", "true"]).run().exits(125).says("frozen");
        lab.skep(["thaw", "s"]).run().ok();
        fast(lab, "s", "exit 9").exits(9);
    });
}

#[test]
fn a_command_after_an_approval_makes_it_reviewable_again() {
    for_both_here(|lab| {
        known(lab, "s");
        lab.exec_script("s", "echo 1 > one").run().ok();
        lab.skep(["approve", "s"]).run().ok();
        assert_eq!(lab.sandbox("s")["state"], "approved");
        fast(lab, "s", "echo 2 > two").ok();
        assert_eq!(lab.sandbox("s")["state"], "ready");
        assert_eq!(lab.diff("s")["changes"][0]["path"], "two");
    });
}

#[test]
fn many_at_once_are_each_remembered_once() {
    for_both_here(|lab| {
        known(lab, "s");
        std::thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || {
                    for _ in 0..3 {
                        lab.exec_script("s", &format!("exit {}", 10 + number))
                            .run()
                            .exits(10 + number);
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| (0..4).for_each(|_| drop(execs(lab, "s"))));
            }
        });
        let rows = execs(lab, "s");
        let mut codes: Vec<_> = rows.iter().map(|row| row["exit_code"].as_i64().unwrap()).collect();
        codes.sort();
        assert_eq!(codes, [0, 10, 10, 10, 11, 11, 11, 12, 12, 12, 13, 13, 13], "{rows:#?}");
        for row in &rows {
            let exec = row["exec"].as_str().unwrap();
            assert_eq!(story(lab, exec), ["exec.started", "exec.ended"]);
        }
    });
}

#[test]
fn a_record_is_written_before_the_command_and_taken_in_once_whoever_dies() {
    for_both_here(|lab| {
        known(lab, "s");
        for point in ["taking.claimed", "taking.rows", "taking.moved"] {
            let detached = ["exec", "-d", "s", "--", "true"];
            let exec = without_store(lab, || lab.skep(detached).run().ok().text());
            let killed = lab.skep(["ps", "s"]).env("SKEP_FAILPOINT", format!("{point}=kill")).run();
            assert_ne!(killed.code(), 0, "{point} is not met");
            wait_for("the end", 10, || {
                let rows = execs(lab, "s");
                let own: Vec<_> = rows.iter().filter(|row| row["exec"] == exec.as_str()).collect();
                assert_eq!(own.len(), 1, "{point}: {rows:#?}");
                (own[0]["running"] == false).then_some(())
            });
            assert_eq!(story(lab, &exec), ["exec.started", "exec.ended"], "{point}");
            assert_eq!(entries(&lab.state.join("news")), Vec::<PathBuf>::new(), "{point}");
        }
        // The keeper has its maker's environment, and dies between the record and the start.
        lab.skep(["create", "k"]).env("SKEP_FAILPOINT", "record.written=kill").run().ok();
        lab.skep(["exec", "k", "--", "true"]).run().ok();
        let ran = without_store(lab, || {
            let ran = lab.exec_script("k", "echo done > effect").run();
            assert_ne!(ran.code(), 0);
            let made = entries(&lab.state.join("sandboxes")).into_iter();
            let made: Vec<_> = made.filter(|one| one.join("upper/effect").exists()).collect();
            assert_eq!(made, Vec::<PathBuf>::new(), "started before it was written down");
            ran
        });
        let rows = execs(lab, "k");
        assert_eq!(rows.len(), 2, "{} {rows:#?}", ran.describe());
        assert_eq!((&rows[1]["running"], &rows[1]["reason"]), (&false.into(), &"lost".into()));
    });
}
