//! Whoever is killed, nothing is left, and what happened has a name.

use super::{for_both, run};
use crate::harness::{Docker, Lab, Who, outside, skip, wait_for, wait_for_empty};

fn sleepers(lab: &Lab, seconds: &str) -> Vec<i32> {
    let asleep = |process: &outside::Process| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        line.starts_with(b"sleep\0") && line.windows(seconds.len()).any(|w| w == seconds.as_bytes())
    };
    let processes = outside::processes_of(&lab.root).into_iter();
    processes.filter(asleep).map(|process| process.pid).collect()
}

const DAEMONS: &str = "trap '' TERM; setsid sleep 4783 & (setsid sh -c 'sleep 4783 & exit' &); \
                       setsid setsid nohup sleep 4783 >/dev/null 2>&1 & sleep 4783";

fn with_daemons(lab: &Lab) {
    lab.skep(["create", "s", "--provider", "docker"]).run().ok();
    lab.skep(["exec", "-d", "s", "--", "sh", "-c", DAEMONS]).run().ok();
    wait_for("the processes", 10, || (sleepers(lab, "4783").len() == 4).then_some(()));
}

#[test]
fn res_11_stop_ends_everything_and_the_container() {
    for_both(|lab, engine| {
        with_daemons(lab);
        assert_eq!(engine.containers().len(), 1);
        lab.skep(["stop", "s"]).run().ok();
        assert_eq!(sleepers(lab, "4783"), Vec::<i32>::new());
        engine.assert_empty();
        assert_eq!(outside::mounts_of(&lab.root), Vec::<String>::new());
    });
}

#[test]
fn res_11_a_killed_keeper_leaves_no_container() {
    for_both(|lab, engine| {
        with_daemons(lab);
        let keeper = *lab.keepers().iter().min().unwrap();
        outside::kill(keeper);
        wait_for_empty("processes", 15, || sleepers(lab, "4783"));
        wait_for_empty("containers", 15, || engine.containers());
        // Typed, and usable again.
        lab.skep(["exec", "s", "--", "true"]).run().ok();
    });
}

/// The attendant is killed too: init sees the end of its channel, and the engine removes what has
/// ended.
#[test]
fn res_11_a_killed_keeper_and_attendant_leave_no_container() {
    for_both(|lab, engine| {
        with_daemons(lab);
        let of_binary = |process: &outside::Process| {
            let exe = std::fs::read_link(format!("/proc/{}/exe", process.pid)).unwrap_or_default();
            exe.starts_with(lab.binary.parent().unwrap())
        };
        let line = |pid: i32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        for process in outside::processes_of(&lab.root).into_iter().filter(of_binary) {
            let line = line(process.pid);
            if !line.windows(6).any(|word| word == b"__init") {
                outside::kill(process.pid);
            }
        }
        wait_for_empty("processes", 15, || sleepers(lab, "4783"));
        wait_for_empty("containers", 15, || engine.containers());
        lab.skep(["exec", "s", "--", "true"]).run().ok();
    });
}

#[test]
fn clean_9_a_container_removed_by_hand_is_a_lost_exec_and_a_stopped_sandbox() {
    for_both(|lab, engine| {
        lab.skep(["create", "s", "--provider", "docker"]).run().ok();
        let script = "echo kept > file; echo before; sleep 4784";
        let call = lab.skep(["exec", "--json", "s", "--", "sh", "-c", script]).within(60);
        let exec = call.spawn();
        wait_for("the process", 10, || sleepers(lab, "4784").first().copied());
        let [container] = &engine.containers()[..] else { panic!("no container") };
        engine.ask(&["rm", "--force", container]);
        let done = exec.wait_with_output().unwrap();
        let end: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        assert_eq!(end["stdout"], "before\n", "{end}");
        assert!(["lost", "killed"].contains(&end["reason"].as_str().unwrap()), "{end}");
        wait_for("the state", 10, || (lab.sandbox("s")["state"] == "stopped").then_some(()));
        // The work is still there, and goes on in another container, of a new image.
        let image = engine.ask(&["images", "--quiet", "skep/host-view"]);
        engine.ask(&["rmi", "--force", image.lines().next().unwrap()]);
        assert_eq!(lab.exec_script("s", "cat file").run().ok().text(), "kept");
    });
}

/// Commands do not go through the engine: its death ends none of them.
#[test]
fn clean_9_an_engine_killed_in_the_middle_of_an_exec() {
    for_both(|lab, engine| {
        lab.skep(["create", "s", "--provider", "docker"]).run().ok();
        let script = "echo one; until [ -e go ]; do sleep 0.05; done; echo two";
        let exec = lab.skep(["exec", "--json", "s", "--", "sh", "-c", script]).within(60).spawn();
        wait_for("the exec", 10, || {
            let listed = lab.skep(["ps", "s", "--json"]).run().ok().json();
            (!listed.as_array().unwrap().is_empty()).then_some(())
        });
        engine.crash();
        lab.exec_script("s", "touch go").run().ok();
        let done = exec.wait_with_output().unwrap();
        let end: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        assert_eq!((&end["stdout"], &end["reason"]), (&"one\ntwo\n".into(), &"exited".into()));
        // Without an engine a sandbox is stopped all the same, and a new one refused, with a reason.
        lab.skep(["stop", "s"]).run().ok();
        assert_eq!(outside::processes_of(&lab.root).len(), 0);
        let refused = run(lab, &[], "true").run().exits(5);
        assert!(refused.errors().contains("no Docker engine answers"), "{}", refused.errors());
        engine.resume();
        // What the engine kept of it goes when somebody next looks.
        run(lab, &["--name", "t"], "true").run().ok();
        lab.skep(["exec", "s", "--", "true"]).run().ok();
        lab.skep(["stop", "s"]).run().ok();
        wait_for_empty("containers", 15, || engine.containers());
    });
}

/// What is not ours stays; what was ours and has no sandbox any more goes.
#[test]
fn only_own_orphans_are_removed() {
    for_both(|lab, engine| {
        run(lab, &[], "true").run().ok();
        let image = engine.ask(&["images", "--quiet", "skep/host-view"]);
        let make = |labels: &[&str]| {
            let mut words = vec!["create"];
            words.extend(labels.iter().flat_map(|label| ["--label", label]));
            words.extend([image.lines().next().unwrap(), "/x"]);
            engine.ask(&words)
        };
        let home = format!("skep.home={}", lab.state.display());
        let number = std::fs::read_to_string(lab.state.join("docker-instance")).unwrap();
        let own = format!("skep.instance={}", number.split(' ').next().unwrap());
        let gone = "skep.sandbox=aaaaaaaaaaaaaaaa";
        let orphan = make(&[&home, &own, gone]);
        let foreign = make(&[]);
        let other = make(&["skep.home=/elsewhere", gone]);
        // Another directory that is seen at the same path, in a container that shares the socket.
        let namesake = make(&[&home, "skep.instance=0123456789abcdef0123456789abcdef", gone]);
        run(lab, &[], "true").run().ok();
        let left = engine.containers();
        assert!(left.contains(&foreign) && left.contains(&other), "{left:?}");
        assert!(left.contains(&namesake), "{left:?}");
        assert!(!left.contains(&orphan), "{left:?}");
        engine.ask(&["rm", &foreign, &other, &namesake]);
    });
}

/// A backup that was put beside, a state directory that was baked into an image: what it knows of is not its own.
#[test]
fn a_copied_state_directory_leaves_the_containers_of_the_original_alone() {
    for_both(|lab, engine| {
        lab.skep(["create", "first", "--provider", "docker"]).run().ok();
        let copy = lab.root.join("copy");
        let copied = std::process::Command::new("cp").arg("-a").arg(&lab.state).arg(&copy).status();
        assert!(copied.unwrap().success());
        lab.skep(["create", "second", "--provider", "docker"]).run().ok();
        let before = engine.containers();
        assert_eq!(before.len(), 2);
        let in_copy = |words: &[&str]| lab.skep(words).env("SKEP_HOME", copy.to_str().unwrap());
        in_copy(&["run", "--provider", "docker", "--", "true"]).run().ok();
        assert_eq!(engine.containers(), before);
        for name in ["first", "second"] {
            assert_eq!(lab.exec_script(name, "echo still here").run().ok().text(), "still here");
            lab.skep(["rm", "--discard", name]).run().ok();
        }
        std::fs::remove_dir_all(&copy).unwrap();
    });
}

/// An engine may have mounts of its own, and another directory at the project's path. Then it would show that
/// one, with nothing in it hidden, and its bytes would be the agent's changes.
#[test]
fn clean_8_an_engine_that_sees_another_tree_starts_nothing() {
    let Ok(root) = Who::root() else { return skip("a Docker engine is started by root") };
    let mut lab = Lab::new(root);
    lab.write("file", "mine\n");
    let other = lab.root.join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("file"), "another's\n").unwrap();
    let Some(engine) = Docker::start_seeing(other, lab.project.clone()) else { return };
    lab.variables.push(("DOCKER_HOST".into(), engine.host()));
    let ran = run(&lab, &["--name", "s"], "ls; cat file").run().exits(5);
    assert_eq!(ran.text(), "", "nothing is shown");
    ran.says("cannot mount this project");
    // The control: that is what the engine sees at this path.
    let image = engine.ask(&["images", "--quiet"]);
    let bound = format!("{}:/usr:ro", lab.project.display());
    let made = engine.ask(&["create", "--volume", &bound, image.lines().next().unwrap(), "x"]);
    let out = lab.root.join("seen");
    engine.ask(&["cp", &format!("{made}:/usr/file"), out.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "another's\n");
    engine.ask(&["rm", &made]);
    engine.assert_empty();
    drop(engine);
    lab.audit();
}

/// The engine has the workspace mounted for the whole host. Gone, it unmounts nothing: the upper must
/// not go from under the mount, and what knows of it stays.
#[test]
fn clean_2_a_sandbox_whose_workspace_a_dead_engine_has_mounted_is_not_removed() {
    for_both(|lab, engine| {
        lab.skep(["create", "s", "--provider", "docker"]).run().ok();
        lab.exec_script("s", "echo kept > file").run().ok();
        let overlays = || {
            let all = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            let upper = format!("upperdir={}", lab.root.display());
            all.lines().filter(|line| line.contains(&upper)).count()
        };
        engine.crash();
        let ran = lab.skep(["rm", "--discard", "s"]).within(60).run();
        // An ordinary user's workspace is a copy, which nobody has mounted.
        if lab.who.is_root() {
            assert_eq!(overlays(), 1, "the control: it is still mounted");
            ran.exits(5).says("does not answer");
            let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
            assert!(lab.state.join("sandboxes").join(id).join("upper/file").exists());
            engine.resume();
            lab.skep(["rm", "--discard", "s"]).within(60).run().ok();
        } else {
            ran.ok();
            engine.resume();
        }
        assert_eq!(overlays(), 0);
        // What a start clears away of those that are gone.
        run(lab, &[], "true").within(60).run().ok();
    });
}

/// Lets an engine stand still, and go on when the test is over.
struct Standing(rustix::process::Pid);

impl Standing {
    fn of(engine: &Docker) -> Self {
        let pid = rustix::process::Pid::from_raw(engine.pid()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::CONT);
    }
}

/// An engine that stands still takes connections and says nothing.
#[test]
fn an_engine_that_hangs_holds_nobody_up() {
    let Some(engine) = Docker::start() else { return };
    let Ok(root) = Who::root() else { return skip("not root") };
    let lab = super::lab(root, &engine);
    lab.skep(["create", "s", "--provider", "docker"]).run().ok();
    let standing = Standing::of(&engine);
    let listed = lab.skep(["providers", "--json"]).within(40).run().ok().json();
    let docker = listed.as_array().unwrap().iter().find(|row| row["name"] == "docker").unwrap();
    assert!(docker.to_string().contains("said nothing"), "{docker}");
    // Commands do not go through it.
    lab.skep(["exec", "s", "--", "true"]).within(20).run().ok();
    lab.skep(["stop", "s"]).within(40).run().ok();
    lab.skep(["start", "s"]).within(40).run().exits(5).says("said nothing");
    drop(standing);
    lab.skep(["start", "s"]).within(60).run().ok();
    lab.skep(["rm", "--discard", "s"]).within(60).run().ok();
    lab.audit();
    engine.assert_empty();
}
