//! What the user removed stays removed, and what is new is new: who was inside when, and what anybody has seen.

use super::desk::paths;
use super::drift::{KINDS, known_to_git, numbered, with};
use crate::harness::{Lab, for_both, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;

/// Waits until it is noted what stood in the project. Where git knows a file that is not needed.
pub(super) fn noted(lab: &Lab, name: &str) {
    let id = lab.sandbox(name)["id"].as_str().unwrap().to_owned();
    let names = lab.state.join("sandboxes").join(id).join("base/names");
    wait_for("names of the project", 20, || names.exists().then_some(()));
}

/// A command that has read a file, and writes what it made of it when it is told to.
fn stale_writer(lab: &Lab, name: &str, file: &str) {
    let script = format!(
        "cp {file} /tmp/read; echo more >> /tmp/read; touch /tmp/has-read
         while [ ! -e /tmp/go ]; do sleep 0.05; done
         mkdir -p $(dirname {file}); cat /tmp/read > {file}; echo new > new; touch /tmp/done"
    );
    lab.skep(["exec", "-d", name, "--", "sh", "-c", &script]).run().ok();
    lab.inside(name, "while [ ! -e /tmp/has-read ]; do sleep 0.05; done");
}

/// Somebody inside has read a file; the user deletes it; and then it is written inside.
#[test]
fn diff_6_a_file_deleted_before_the_stale_write_stays_deleted() {
    for_both(|lab| {
        for (kind, deep) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
            fs::remove_dir_all(&lab.project).unwrap();
            let file = if deep { "d/sub/f" } else { "f" };
            lab.write(file, "committed\n");
            lab.write("keep", "keep\n");
            known_to_git(lab, kind);
            if kind == "dirty" {
                lab.write(file, "edited\n");
            }
            lab.up("s");
            // Somebody saved something at the top, as editors do.
            lab.write("keep.new", "kept\n");
            fs::rename(lab.project.join("keep.new"), lab.project.join("keep")).unwrap();
            stale_writer(lab, "s", file);
            if !["clean", "dirty"].contains(&kind) {
                noted(lab, "s");
            }
            if deep {
                fs::remove_dir_all(lab.project.join("d")).unwrap();
            } else {
                fs::remove_file(lab.project.join(file)).unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            lab.inside("s", "touch /tmp/go; while [ ! -e /tmp/done ]; do sleep 0.05; done");
            // What is new beside it is new.
            assert!(paths(&lab.diff("s")).contains(&"new".to_owned()), "{kind}");
            lab.conflicts(&["s", file]);
            assert!(!lab.project.join(file).exists(), "{kind}");
            lab.approve(&["s", "new"]);
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

/// A later command sees that it is gone, and what it makes there is new.
#[test]
fn what_the_user_removed_is_gone_for_the_next_command_and_may_be_made_anew() {
    for_both(|lab| {
        lab.write("d/f", "old\n");
        lab.write("d/replaced", "old\n");
        lab.up("s");
        lab.inside("s", "cat d/f d/replaced");
        noted(lab, "s");
        fs::remove_file(lab.project.join("d/f")).unwrap();
        lab.write("d/new", "new\n");
        fs::rename(lab.project.join("d/new"), lab.project.join("d/replaced")).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        lab.inside("s", "test ! -e d/f && grep new d/replaced && echo made > d/f");
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("d/f"), b"made\n");
    });
}

/// Nothing stood there, and that is known although what was moved is older than the last save beside it.
#[test]
fn what_is_moved_into_a_directory_that_was_touched_is_new() {
    for_both(|lab| {
        lab.write("d/v", "v\n");
        lab.up("s");
        lab.inside(
            "s",
            "echo made > made; mkdir tree; echo in > tree/in; echo 1 > one; echo 1 > d/first",
        );
        lab.approve(&["s", "d/first"]);
        lab.inside("s", "mv one d/one");
        for script in ["mv made d/made", "mv tree d/tree"] {
            lab.write("d/new", "new\n");
            fs::rename(lab.project.join("d/new"), lab.project.join("d/v")).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(300));
            lab.inside("s", script);
            lab.write("d/later", "later\n");
        }
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("d/one"), b"1\n");
        assert_eq!(lab.bytes("d/made"), b"made\n");
        assert_eq!(lab.bytes("d/tree/in"), b"in\n");
    });
}

/// A command that has read a file which the user then deletes, and that has just written it: nobody has looked since.
/// Returns its keepers.
fn unnoted_write(lab: &Lab) -> Vec<i32> {
    fs::remove_dir_all(&lab.project).unwrap();
    lab.write("f", "old\n");
    lab.write("go", "");
    lab.up("s");
    let script = "cp f /tmp/read; echo more >> /tmp/read
        while [ ! -s go ]; do sleep 0.01; done; cat /tmp/read > f; sleep 60";
    lab.skep(["exec", "-d", "s", "--", "sh", "-c", script]).run().ok();
    noted(lab, "s");
    let (keepers, id) = (lab.keepers(), lab.sandbox("s")["id"].as_str().unwrap().to_owned());
    fs::remove_file(lab.project.join("f")).unwrap();
    // In place: a running sandbox sees it.
    lab.write("go", "now");
    let written = lab.state.join("sandboxes").join(id).join("upper/f");
    wait_for("the write", 20, || written.exists().then_some(()));
    keepers
}

fn kill_all(keepers: Vec<i32>) {
    for keeper in keepers {
        kill_process(Pid::from_raw(keeper).unwrap(), Signal::KILL).unwrap();
        let gone = || (!Path::new(&format!("/proc/{keeper}")).exists()).then_some(());
        wait_for("the keeper's end", 20, gone);
    }
}

/// Those who come later have not read what the user deleted, and go on with what somebody wrote who had. Its keeper did
/// not come to note that: it was killed, or the state was taken before.
#[test]
fn what_a_keeper_left_unnoted_is_not_of_those_who_come_later() {
    for_both(|lab| {
        let ways = ["killed", "forked", "taken", "killed and frozen"];
        for (way, again) in ways
            .into_iter()
            .zip(["echo x >> f", "sed -i s/more/x/ f"].into_iter().cycle())
            .chain([("killed", "sed -i s/more/x/ f"), ("forked", "sed -i s/more/x/ f")])
        {
            let keepers = unnoted_write(lab);
            let name = match way {
                "killed" => {
                    kill_all(keepers);
                    "s"
                }
                "killed and frozen" => {
                    kill_all(keepers);
                    lab.skep(["snapshot", "s", "one"]).run().ok();
                    "s"
                }
                "forked" => {
                    lab.skep(["fork", "s", "--name", "t"]).run().ok();
                    "t"
                }
                _ => {
                    lab.skep(["snapshot", "s", "one"]).run().ok();
                    lab.skep(["create", "t", "--from", "s:one"]).run().ok();
                    "t"
                }
            };
            lab.inside(name, again);
            lab.conflicts(&[name, "f"]);
            assert!(!lab.project.join("f").exists(), "{way}");
            for name in ["s", "t"] {
                lab.skep(["rm", "--discard", name]).run();
            }
        }
    });
}

/// What outlives its command is looked after: what it wrote is noted while it is there and when it ends.
#[test]
fn what_somebody_wrote_who_outlived_a_command_is_noted() {
    for_both(|lab| {
        lab.write("f", "old\n");
        lab.write("d/g", numbered(30));
        lab.write("go", "");
        lab.up("s");
        let script = "(cp f /tmp/read; echo more >> /tmp/read; touch /tmp/has-read
            while [ ! -s go ]; do sleep 0.01; done
            cat /tmp/read > f; echo new > d/new; sed -i 's/^2$/two/' d/g) >/dev/null 2>&1 &
            while [ ! -e /tmp/has-read ]; do sleep 0.01; done";
        lab.inside("s", script);
        noted(lab, "s");
        fs::remove_file(lab.project.join("f")).unwrap();
        lab.write("go", "now");
        let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
        let index = lab.state.join("sandboxes").join(id).join("base/index");
        let told = || fs::read_to_string(&index).ok()?.contains("\"d/g\"").then_some(());
        wait_for("a look at what was written", 20, told);
        // And then the user saves beside it.
        lab.write("d/g", with(30, &[(28, "the user's")]));
        lab.inside("s", "sed -i s/more/again/ f");
        lab.conflicts(&["s", "f"]);
        lab.approve(&["s", "d"]);
        assert_eq!(lab.bytes("d/new"), b"new\n");
        assert_eq!(lab.bytes("d/g"), with(30, &[(2, "two"), (28, "the user's")]).into_bytes());
        assert!(!lab.project.join("f").exists());
    });
}

/// What the user made after create, and removes after the sandbox has changed it.
#[test]
fn what_the_user_made_and_removed_is_not_brought_back() {
    for_both(|lab| {
        let edit: [(&str, &str); 3] = [
            ("yes 123456789012345 | head -c 1100K > d/n", "sed -i 1s/^1/A/ d/n"),
            ("mkdir d/n; echo user > d/n/in", "rm -r d/n; echo agent > d/n"),
            ("ln -s user d/n", "ln -sfn agent d/n"),
        ];
        for (user, agent) in edit {
            lab.write("d/v", "v\n");
            lab.up("s");
            lab.inside("s", "true");
            noted(lab, "s");
            lab.program("sh").args(["-c", user]).run().ok();
            std::thread::sleep(std::time::Duration::from_millis(300));
            lab.inside("s", agent);
            lab.conflicts(&["s"]);
            lab.program("sh").args(["-c", "rm -r d/n"]).run().ok();
            lab.conflicts(&["s"]);
            assert!(!lab.project.join("d/n").exists(), "{user}");
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

/// What was in conflict with an edit is so with the deletion that follows, however the sandbox goes on.
#[test]
fn a_conflict_does_not_go_away_with_the_file() {
    for_both(|lab| {
        for again in ["sed -i 's/^2$/two/' f", "echo more >> f", "rm f; echo other > f"] {
            fs::remove_dir_all(&lab.project).unwrap();
            lab.write("f", numbered(8));
            lab.up("s");
            lab.write("f", with(8, &[(8, "the user's")]));
            lab.inside("s", "sed -i 's/^1$/one/' f");
            lab.conflicts(&["s"]);
            fs::remove_file(lab.project.join("f")).unwrap();
            lab.conflicts(&["s"]);
            std::thread::sleep(std::time::Duration::from_millis(20));
            lab.inside("s", again);
            lab.conflicts(&["s"]);
            assert!(!lab.project.join("f").exists(), "{again}");
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

/// An overlay that is mounted takes a directory that it made for its own, also when the project has it by now.
#[test]
fn what_is_removed_from_an_approved_directory_is_shown() {
    for_both(|lab| {
        lab.write("k", "k\n");
        lab.up("s");
        lab.inside("s", "mkdir -p n/sub; echo a > n/a; echo b > n/b; echo c > n/sub/c");
        noted(lab, "s");
        lab.approve(&["s"]);
        lab.inside("s", "rm n/a; cat n/b > m; rm n/b n/sub/c");
        let diff = lab.diff("s");
        assert_eq!(paths(&diff), ["m", "n/a", "n/sub/c"], "{diff:#}");
        lab.approve(&["s"]);
        assert!(!lab.project.join("n/a").exists() && !lab.project.join("n/b").exists());
        lab.inside("s", "test ! -e n/a && test ! -e n/b && test -e m");
    });
}

/// A name that the sandbox once had for itself, and that is the user's by now.
#[test]
fn a_file_that_the_user_made_later_is_not_removed_unseen() {
    for_both(|lab| {
        for (end, remove) in
            [("rm n", "rm n"), ("true", "rm n"), ("rm n", "mv n m"), ("echo undone", "rm n")]
        {
            fs::remove_dir_all(&lab.project).unwrap();
            lab.write("f", "f\n");
            lab.up("s");
            lab.inside("s", "echo the agents > n");
            lab.inside("s", end);
            if end == "true" {
                lab.skep(["reject", "s", "n"]).run().ok();
            }
            if end == "echo undone" {
                lab.approve(&["s"]);
                lab.skep(["undo"]).run().ok();
                lab.inside("s", "rm n");
            }
            lab.write("n", "the user's\n");
            lab.inside("s", &format!("grep user n && {remove}"));
            assert!(paths(&lab.diff("s")).contains(&"n".to_owned()), "{end}, {remove}");
            lab.conflicts(&["s"]);
            assert_eq!(lab.bytes("n"), b"the user's\n", "{end}, {remove}");
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
        // In a directory of which all names were noted at once.
        lab.write("d/k", "k\n");
        lab.up("s");
        lab.inside("s", "for i in $(seq 1200); do echo $i > d/n$i; done");
        lab.write("d/u", "the user's\n");
        lab.inside("s", "grep user d/u && rm d/u");
        assert!(paths(&lab.diff("s")).contains(&"d/u".to_owned()));
        lab.conflicts(&["s", "d/u"]);
    });
}

/// Another tree in the place of one: the directories in it came along with their old times.
#[test]
fn what_went_with_a_directory_that_was_replaced_stays_gone() {
    for_both(|lab| {
        for kind in ["no-git", "clean"] {
            fs::remove_dir_all(&lab.project).unwrap();
            lab.write("src/d/f", "old\n");
            lab.write("src.new/d/g", "g\n");
            known_to_git(lab, kind);
            lab.up("s");
            stale_writer(lab, "s", "src/d/f");
            noted(lab, "s");
            for (from, to) in [("src", "away"), ("src.new", "src")] {
                fs::rename(lab.project.join(from), lab.project.join(to)).unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            lab.inside("s", "touch /tmp/go; while [ ! -e /tmp/done ]; do sleep 0.05; done");
            lab.conflicts(&["s", "src/d/f"]);
            assert!(!lab.project.join("src/d/f").exists(), "{kind}");
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

/// The first command of a sandbox that was started anew; but somebody has looked before it.
#[test]
fn what_a_copy_in_has_looked_up_is_looked_up_anew() {
    for_both(|lab| {
        lab.write("d/f", numbered(5));
        lab.up("s");
        lab.inside("s", "true");
        noted(lab, "s");
        lab.skep(["stop", "s"]).run().ok();
        lab.skep(["start", "s"]).run().ok();
        let file = lab.write(lab.root.join("x"), "x\n");
        lab.skep(["cp"]).arg(&file).arg("s:d/n").run().ok();
        lab.skep(["snapshot", "s", "one"]).run().ok();
        fs::rename(lab.project.join("d"), lab.project.join("d2")).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        lab.inside("s", "test ! -e d/f || sed -i s/1/one/ d/f");
        assert!(!paths(&lab.diff("s")).contains(&"d/f".to_owned()), "{:#}", lab.diff("s"));
    });
}

/// Its own time says that it is newer than the sandbox, and yet somebody has read it.
#[test]
fn what_was_saved_before_the_names_were_noted_stays_deleted() {
    for_both(|lab| {
        lab.write("d/f", "old\n");
        lab.skep(["create", "s"]).run().ok();
        lab.write("d/new", "saved\n");
        fs::rename(lab.project.join("d/new"), lab.project.join("d/f")).unwrap();
        lab.inside("s", "true");
        noted(lab, "s");
        stale_writer(lab, "s", "d/f");
        fs::remove_file(lab.project.join("d/f")).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        lab.inside("s", "touch /tmp/go; while [ ! -e /tmp/done ]; do sleep 0.05; done");
        lab.conflicts(&["s", "d/f"]);
        assert!(!lab.project.join("d/f").exists());
    });
}

/// Made by the user when the names had been noted, changed inside, and removed: no list tells of it. But it was looked
/// at when nothing could be told of it, and a file in its place tells no more.
#[test]
fn what_was_in_doubt_when_it_was_looked_at_stays_so() {
    for_both(|lab| {
        lab.write("go", "");
        lab.up("s");
        lab.inside("s", "true");
        noted(lab, "s");
        lab.write("u", "the user's\n");
        std::thread::sleep(std::time::Duration::from_millis(300));
        let script = "echo more >> u; while [ ! -s go ]; do sleep 0.01; done
            sed -i s/more/again/ u; echo new > new";
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", script]).run().ok();
        let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
        let upper = lab.state.join("sandboxes").join(id).join("upper");
        wait_for("the write", 20, || upper.join("u").exists().then_some(()));
        fs::remove_file(lab.project.join("u")).unwrap();
        // The keeper looks.
        std::thread::sleep(std::time::Duration::from_millis(1500));
        lab.write("go", "now");
        wait_for("the end", 20, || upper.join("new").exists().then_some(()));
        lab.inside("s", "true");
        lab.conflicts(&["s", "u"]);
        lab.approve(&["s", "new"]);
        assert!(!lab.project.join("u").exists());
    });
}
