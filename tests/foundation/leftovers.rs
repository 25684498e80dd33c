//! What is left after many sandboxes, after kills at any moment, and what of others is left alone.

use crate::harness::{
    Lab, Ran, Who, for_both, for_each, long, noticed, outside, wait_for, wait_for_empty,
};
use std::fs;
use std::path::Path;
use std::process::Stdio;

/// Kills something of a live sandbox, another thing each time.
fn kill_something(lab: &Lab, round: usize) {
    let script = "echo x > x; (setsid sleep 31536000 > /dev/null 2>&1 &) ; sleep 31536000";
    let mut client = lab.exec_script("s", script).spawn();
    wait_for("the exec", 20, || {
        (outside::processes_with("31536000").len() >= 2 || client.try_wait().unwrap().is_some())
            .then_some(())
    });
    let keeper = lab.keepers();
    assert_eq!(keeper.len(), 1, "{keeper:?}");
    match round % 3 {
        0 => outside::kill(keeper[0]),
        1 => {
            let child = format!("/proc/{0}/task/{0}/children", keeper[0]);
            let init = fs::read_to_string(child).unwrap();
            outside::kill(init.split(' ').next().unwrap().parse().unwrap());
        }
        _ => {
            client.kill().unwrap();
            let _ = client.wait();
            outside::kill(keeper[0]);
        }
    }
    let _ = client.kill();
    let _ = client.wait();
}

#[test]
fn heavy_clean_1_cycles_of_create_exec_kill_leave_nothing() {
    let cycles = if long() { 500 } else { 50 };
    for_both(|lab| {
        lab.write("a", "a\n");
        let before = lab.tree();
        for round in 0..cycles {
            lab.create("s");
            kill_something(lab, round);
            wait_for_empty("processes", 20, || outside::processes_of(&lab.root));
            // A process on its way out has lost its memory, by which the harness knows it, before it has ended.
            wait_for("the end of the keeper", 20, || {
                (lab.sandbox("s")["state"] == "stopped").then_some(())
            });
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
        lab.audit_leftovers();
        lab.tree().assert_equals(&before, "the project was changed");
        // Nothing grows with the number of sandboxes but the database and its log of events.
        for name in ["layers", "approvals", "sandboxes", "trash", "locks"] {
            assert_eq!(fs::read_dir(lab.state.join(name)).unwrap().count(), 0, "{name}");
        }
    });
}

#[test]
fn heavy_clean_1_create_killed_at_any_moment_leaves_nothing() {
    let cycles = if long() { 200 } else { 20 };
    for_both(|lab| {
        lab.write("a", "a\n");
        for round in 0..cycles {
            let mut child = lab.skep(["run", "--name", "s", "--", "sleep", "31536000"]).spawn();
            // A moment that wanders over the whole of the start.
            std::thread::sleep(std::time::Duration::from_millis(round * 7 % 97));
            child.kill().unwrap();
            child.wait().unwrap();
            // The sandbox is there or not; if it is, it can be removed. A keeper that outlived the
            // command line is the sandbox's own.
            for sandbox in lab.sandboxes() {
                lab.skep(["rm", "--discard", sandbox["id"].as_str().unwrap()]).run().ok();
            }
            wait_for_empty("processes", 20, || outside::processes_of(&lab.root));
        }
        lab.audit_leftovers();
    });
}

#[test]
fn a_killed_keeper_loses_the_exec_and_keeps_the_work() {
    for_both(|lab| {
        lab.create("s");
        lab.exec_script("s", "echo work > work").run().ok();
        let exec = lab.skep(["exec", "-d", "s", "--", "sleep", "31536001"]).run().ok().text();
        outside::kill(lab.keepers()[0]);
        wait_for_empty("processes", 10, || outside::processes_of(&lab.root));
        noticed("an end that nobody saw", || {
            let rows = lab.skep(["ps", "s", "--json"]).run().ok().json();
            let mut rows = rows.as_array().unwrap().iter();
            let row = rows.find(|row| row["exec"] == exec.as_str()).unwrap();
            assert!(row["reason"] != "lost" || row["stats"]["duration_ms"].is_null(), "{row}");
            (row["reason"] == "lost").then_some(())
        });
        assert_eq!(lab.sandbox("s")["state"], "stopped");
        assert_eq!(lab.diff("s")["changes"].as_array().unwrap().len(), 1);
        lab.skep(["start", "s"]).run().ok();
        assert_eq!(lab.exec_script("s", "cat work").run().ok().text(), "work");
    });
}

#[test]
fn clean_4_leftovers_of_ours_go_and_of_others_stay() {
    for_both(|lab| {
        // Another instance, with a sandbox at work.
        let other = Lab::new(lab.who);
        other.create("s");
        other.exec_script("s", "echo theirs > theirs").run().ok();
        // A process that looks like a keeper.
        let line = "exec -a 'skep keeper' sleep 31536002";
        let mut look_alike = lab.program("bash").args(["-c", line]).into_command();
        let mut look_alike = look_alike.stdin(Stdio::null()).spawn().unwrap();

        lab.create("s");
        lab.exec_script("s", "echo work > work").run().ok();
        lab.skep(["stop", "s"]).run().ok();
        // Ours: trash of an interrupted removal. Not ours to judge: directories without a row,
        // which with a lost database may be the only copy of somebody's work.
        lab.write(lab.state.join("trash/zzzzzzzzzzzzzzzz/upper/file"), "trash");
        lab.write(lab.state.join("sandboxes/zzzzzzzzzzzzzzzz/upper/work"), "work");
        lab.write(lab.state.join("sandboxes/skep-look-alike/upper/work"), "work");
        lab.skep(["ls"]).run().ok();
        let trash = || fs::read_dir(lab.state.join("trash")).unwrap().count();
        noticed("the trash", || (trash() == 0).then_some(()));
        for line in [&["gc"][..], &["show", "s"], &["ls", "--all"]] {
            lab.skep(line).run().ok();
        }
        for name in ["zzzzzzzzzzzzzzzz", "skep-look-alike"] {
            let path = lab.state.join("sandboxes").join(name);
            assert_eq!(fs::read(path.join("upper/work")).unwrap(), b"work", "{name}");
            fs::remove_dir_all(path).unwrap();
        }
        assert_eq!(
            lab.diff("s")["changes"].as_array().unwrap().len(),
            1,
            "unreviewed work is kept"
        );
        assert!(look_alike.try_wait().unwrap().is_none(), "a look-alike was killed");
        look_alike.kill().unwrap();
        look_alike.wait().unwrap();
        assert_eq!(other.exec_script("s", "cat theirs").run().ok().text(), "theirs");
        other.audit();
    });
}

#[test]
fn clean_4_cgroups_of_others_stay() {
    for_each([Who::root()], |lab| {
        let parents: Vec<_> = outside::cgroups_named("skep")
            .into_iter()
            .filter(|path| path.file_name().is_some_and(|name| name == "skep"))
            .collect();
        lab.create("s");
        let planted: Vec<_> =
            parents.iter().map(|parent| parent.join("zzzz5555zzzz5555")).collect();
        planted.iter().for_each(|path| drop(fs::create_dir(path)));
        lab.skep(["gc"]).run().ok();
        lab.skep(["rm", "s"]).run().ok();
        lab.skep(["ls"]).run().ok();
        let left: Vec<_> = planted.iter().map(|path| fs::remove_dir(path).is_ok()).collect();
        assert!(left.iter().all(|still_there| *still_there), "{planted:?} {left:?}");
    });
}

/// The harness itself: an audit does notice what is left.
#[test]
fn an_audit_notices_a_process_that_is_left() {
    let Ok(who) = Who::user() else { return };
    let lab = Lab::new(who);
    lab.create("s");
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lab.audit_leftovers()));
    assert!(found.is_err());
    assert!(!outside::processes_of(&lab.root).is_empty());
    lab.audit();
}

/// The keeper dies over its cgroups, and whoever clears up after it dies over them too. Whoever comes
/// next finds them.
#[test]
fn cgroups_that_two_died_over_are_removed_by_the_next_command() {
    for_each([Who::root()], |lab| {
        lab.write("a", "a\n");
        // Each process that is followed dies at the first directory it removes.
        let line = ["-f", "-qq", "-o", "/dev/null", "-e", "trace=rmdir"];
        let inject = ["-e", "inject=rmdir:signal=KILL:when=1"];
        let strace = lab.program("strace").args(line).args(inject).arg(&lab.binary);
        // With a limit that was typed there is a group from the first instruction on.
        let run = ["run", "--name", "s", "--rm", "--idle-timeout", "1s", "--pids", "512"];
        let ran = strace.args(run).args(["--", "cat", "a"]).run();
        assert!(ran.code() != 0, "nobody died: {}", ran.describe());
        wait_for_empty("processes", 20, || outside::processes_of(&lab.root));
        for sandbox in lab.sandboxes() {
            lab.skep(["rm", sandbox["name"].as_str().unwrap()]).run().ok();
        }
        assert_eq!(outside::cgroups_of(&lab.ids_ever()), Vec::<std::path::PathBuf>::new());
    });
}

#[test]
fn gc_removes_empty_cgroups_of_deleted_sandboxes_and_no_others() {
    for_each([Who::root()], |lab| {
        lab.create("s");
        let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
        let places = outside::cgroups_of(&[id.clone()].into());
        assert!(!places.is_empty(), "a sandbox of root's has a cgroup");
        let unknown = "zzzzzzzzzzzzzzzz";
        let strange: Vec<_> = places.iter().map(|path| path.with_file_name(unknown)).collect();
        strange.iter().for_each(|path| fs::create_dir_all(path).unwrap());
        lab.skep(["rm", "s"]).run().ok();
        let left = || outside::cgroups_of(&[id.clone()].into());
        assert!(left().is_empty());
        places.iter().for_each(|path| fs::create_dir(path).unwrap());
        let dry = lab.skep(["gc", "--dry-run", "--json"]).run().ok().text();
        assert!(dry.contains(&id) && !dry.contains(unknown), "{dry}");
        assert_eq!(left().len(), places.len(), "a dry run");
        lab.skep(["gc"]).run().ok();
        assert!(left().is_empty(), "{:?}", left());
        for path in &strange {
            assert!(path.is_dir(), "of another state directory: {path:?}");
            fs::remove_dir(path).unwrap();
        }
    });
}

/// Runs a script as an ordinary user, below `place`, with a procfs that hides processes.
fn among_hidden(lab: &Lab, (uid, gid): (u32, u32), place: &Path, script: &str) -> Option<Ran> {
    let prepare = r#"mount -t proc -o hidepid=invisible proc /proc || exit 9
        exec setpriv --reuid $1 --regid $2 --clear-groups env HOME=$3 SKEP_HOME=$3/state skep=$4 sh -euc "$5""#;
    let call = lab.program("unshare").args(["-m", "--propagation", "private", "sh", "-c"]);
    let call = call.args([prepare, "sh", &uid.to_string(), &gid.to_string()]);
    let ran = call.arg(place).arg(&lab.binary).arg(script).directory(place).run();
    if ran.code() == 9 {
        crate::harness::skip("no procfs with hidepid can be mounted here");
        return None;
    }
    Some(ran.ok())
}

/// A procfs that shows nobody else's processes, nor those of one's own that may not be looked into: a keeper
/// that cannot be seen is not taken for dead, and one that is dead is noticed.
#[test]
fn clean_3_a_procfs_that_hides_processes_makes_no_keeper_dead() {
    for_each([Who::root()], |lab| {
        let Ok(user) = Who::user() else { return };
        let place = lab.root.join("theirs");
        for path in [place.clone(), place.join("project")] {
            fs::create_dir(&path).unwrap();
            user.own(&path);
        }
        let run = |script: &str| {
            let script = format!("cd project; {script}");
            among_hidden(lab, user.ids(), &place, &script)
        };
        let begin = "test ! -e /proc/1; $skep create s; $skep exec s -- sh -c 'echo x > x'; \
                     $skep exec -d s -- sleep 31536000";
        let Some(begun) = run(begin) else { return };
        let exec = begun.text().lines().last().unwrap().to_owned();
        // Whoever comes later sees it run, and starts nothing beside it.
        let later = run("$skep ps s; $skep ls; $skep exec s -- true").unwrap().text();
        let line = |said: &str, word: &str| {
            said.lines().find(|line| line.starts_with(word)).unwrap_or_default().to_owned()
        };
        assert!(line(&later, &exec).contains("running"), "{later}");
        assert!(line(&later, "s ").contains("ready"), "{later}");
        let keepers = lab.keepers();
        assert_eq!(keepers.len(), 1, "{keepers:?}");
        outside::kill(keepers[0]);
        wait_for_empty("processes", 20, || outside::processes_of(&lab.root));
        let later = run("$skep ps s; $skep ls; $skep diff s --name-only").unwrap().text();
        assert!(line(&later, &exec).contains("lost"), "{later}");
        assert!(line(&later, "s ").contains("stopped"), "{later}");
        assert!(later.lines().any(|line| line == "x"), "{later}");
        run("$skep rm --discard s").unwrap();
        assert_eq!(fs::read_dir(place.join("state/sandboxes")).unwrap().count(), 0);
    });
}
