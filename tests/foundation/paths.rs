//! Paths that try to leave the project: in arguments, in links, and in links that move.

use crate::harness::{Lab, Tree, attack, for_both, long};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A directory beside the project that no approval may touch.
pub(super) fn outside(lab: &Lab) -> PathBuf {
    let path = lab.root.join("outside");
    lab.write(path.join("x"), "outside\n");
    path
}

#[test]
fn fs_1_paths_that_leave_the_project_are_refused_as_arguments() {
    for_both(|lab| {
        lab.write("a", "a\n");
        lab.skep(["run", "--name", "s", "--", "sh", "-c", "echo b > a"]).run().ok();
        for path in ["../..", "../outside", "/etc/passwd", "a/../../b"] {
            for command in ["diff", "approve", "reject"] {
                let ran = lab.without_effect(lab.skep([command, "s", "--json", "--", path]));
                assert!(matches!(ran.code(), 2 | 3 | 5), "{}", ran.describe());
                assert!(!ran.problem()["message"].as_str().unwrap().is_empty());
            }
            let ran = lab.without_effect(lab.skep(["create", "--scope", path, "--json"]));
            assert!(matches!(ran.code(), 2 | 3 | 5), "{}", ran.describe());
        }
        lab.skep(["diff", "s", "--", "a"]).run().ok();
    });
}

#[test]
fn fs_1_a_working_directory_is_looked_up_inside() {
    for_both(|lab| {
        let secret = lab.directory(lab.root.join("only-outside"));
        lab.create("s");
        let secret = secret.to_str().unwrap();
        for place in [secret, "/proc/1/root/work/../nowhere", "/nowhere/../.."] {
            let ran = lab.skep(["exec", "s", "--workdir", place, "--", "pwd"]).run();
            assert!(ran.code() == 125 || ran.text() == "/", "{}", ran.describe());
        }
        // The matching allow: directories that are there, also by a path with dots in it.
        lab.exec_script("s", "mkdir -p d/e").run().ok();
        let inside = lab.project.join("d/e/../e");
        let line = ["exec", "s", "--workdir", inside.to_str().unwrap(), "--", "/bin/pwd"];
        assert_eq!(lab.skep(line).run().ok().text(), lab.project.join("d/e").to_str().unwrap());
    });
}

#[test]
fn fs_1_dots_inside_stay_inside() {
    for_both(|lab| {
        let marker = lab.root.join("escaped");
        let script = "echo x > ../escaped; echo x > /proc/self/cwd/../escaped; cd / && echo x > \
            ../../../../../../escaped; echo x > \"$1\"; true";
        let sandbox = ["run", "--", "sh", "-c", script, "sh", marker.to_str().unwrap()];
        lab.skep(sandbox).run().ok();
        assert!(!marker.exists() && !PathBuf::from("/escaped").exists());
        // Control: without a sandbox the first word of the script is enough.
        lab.program("sh").args(["-c", "echo x > ../escaped"]).run().ok();
        assert!(marker.exists());
    });
}

#[test]
fn fs_2_a_link_to_a_secret_is_reported_not_followed() {
    for_both(|lab| {
        let secret = lab.home.join(".ssh/id_ed25519");
        lab.write("config", "harmless\n");
        lab.write("dir/file", "harmless\n");
        let script = "ln -s \"$1\" link; rm config; ln -s \"$1\" config; rm -r dir; \
            ln -s \"$(dirname \"$1\")\" dir; ln -s /etc hosts; ls -lR; cat link config dir/* || true";
        let secret_text = secret.to_str().unwrap();
        let line = ["run", "--name", "s", "--", "sh", "-c", script, "sh", secret_text];
        let mut artefacts = vec![lab.skep(line).run().ok()];
        for line in [
            &["diff", "s"][..],
            &["diff", "s", "--json"],
            &["diff", "s", "--stat"],
            &["ls", "--json"],
            &["events", "--json"],
            &["ps", "s", "--json"],
            &["approve", "s", "--dry-run"],
            &["approve", "s", "--json"],
        ] {
            artefacts.push(lab.skep(line).run());
        }
        for artefact in &artefacts {
            let both = [&artefact.stdout[..], &artefact.stderr].concat();
            assert!(!lab.canary.is_in(&both), "{}", artefact.describe());
        }
        let diff = lab.diff("s");
        let changes = diff["changes"].as_array().unwrap();
        let row = |path: &str| changes.iter().find(|change| change["path"] == path).unwrap();
        assert_eq!((&row("link")["kind"], &row("link")["risk"]), (&"added".into(), &"ask".into()));
        assert_eq!(row("config")["kind"], "type");
        assert_eq!(
            artefacts.last().unwrap().code(),
            5,
            "links that leave need a word of their own"
        );

        let risky = ["--allow-risky", "link", "--allow-risky", "config", "--allow-risky", "dir"];
        let line = lab.skep(["approve", "s", "--allow-risky", "hosts"]).args(risky);
        line.run().ok();
        assert_eq!(fs::read_link(lab.project.join("link")).unwrap(), secret);
        // Control: whoever follows the link does get at the secret.
        assert!(lab.canary.is_in(&fs::read(lab.project.join("config")).unwrap()));
    });
}

#[test]
fn fs_3_nothing_is_created_through_a_dangling_link() {
    for_both(|lab| {
        let outside = outside(lab);
        lab.write("d/x", "base\n");
        symlink(outside.join("new"), lab.project.join("dangling")).unwrap();
        symlink("/tmp", lab.project.join("tmp")).unwrap();
        lab.who.own(&lab.project.join("dangling"));
        lab.who.own(&lab.project.join("tmp"));
        let before = Tree::read(&outside);
        let name = format!("{}-planted", lab.root.file_name().unwrap().display());
        let script = format!(
            "echo x > dangling; echo x > tmp/{name}; echo changed > d/x; mkdir e; echo y > e/y"
        );
        lab.skep(["run", "--name", "s", "--", "sh", "-c", &script]).run().ok();
        // Meanwhile the host turns both parents into links that lead out.
        fs::rename(lab.project.join("d"), lab.root.join("moved-away")).unwrap();
        symlink(&outside, lab.project.join("d")).unwrap();
        symlink(&outside, lab.project.join("e")).unwrap();
        let ran = lab.skep(["approve", "s"]).run();
        assert_eq!(ran.code(), 4, "{}", ran.describe());
        Tree::read(&outside).assert_equals(&before, "written outside");
        assert!(!PathBuf::from("/tmp").join(&name).exists());
        // Control: a write through the same links does create the file.
        fs::write(lab.project.join("dangling"), "x").unwrap();
        assert!(outside.join("new").exists());
    });
}

/// Exchanges two names until dropped.
pub(super) struct Swapper(Child);

impl Swapper {
    pub(super) fn start(lab: &Lab, one: &str, other: &str) -> Option<Self> {
        let program = attack::program("swap")?;
        let mut command = lab.program(program).args([one, other]).into_command();
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "swapping\n");
        Some(Self(child))
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn heavy_fs_4_a_parent_swapped_with_a_link_never_leads_out() {
    for_both(|lab| {
        let outside = outside(lab);
        lab.write(outside.join("sub/y"), "outside\n");
        let before = Tree::read(&outside);
        lab.write("d/x", "base\n");
        lab.write("d/sub/y", "base\n");
        symlink(&outside, lab.project.join("link")).unwrap();
        lab.who.own(&lab.project.join("link"));
        let script = "echo changed > d/x; echo changed > d/sub/y; echo new > d/new; rm -r d/sub/y";
        let seconds = if long() { 30 } else { 3 };
        let Some(swapper) = Swapper::start(lab, "d", "link") else { return };
        let (start, mut applied, mut refused) = (Instant::now(), 0, 0);
        while start.elapsed() < Duration::from_secs(seconds) {
            lab.skep(["run", "--name", "s", "--keep", "--", "sh", "-c", script]).run();
            for line in [&["diff", "s", "--json"][..], &["approve", "s"], &["undo"]] {
                match lab.skep(line).run().code() {
                    0 => applied += 1,
                    _ => refused += 1,
                }
            }
            lab.skep(["rm", "--discard", "s"]).run();
        }
        // Control: somebody who trusts the path writes outside before long.
        let target = lab.project.join("d/control");
        crate::harness::wait_for("a careless writer to be led out", 20, || {
            let _ = fs::write(&target, "led out");
            outside.join("control").exists().then_some(())
        });
        drop(swapper);
        println!("{applied} calls went through, {refused} were refused");
        fs::remove_file(outside.join("control")).unwrap();
        Tree::read(&outside).assert_equals(&before, "written outside");
    });
}

#[test]
fn fs_5_what_skep_writes_is_private_and_cannot_be_waited_for() {
    for_both(|lab| {
        let outside = outside(lab);
        let before = Tree::read(&outside);
        lab.write("d/x", "base\n");
        // Links, a FIFO and a hard link at names that a careless tool would take for its own.
        let names =
            [".skep", ".skep-stage", ".skep.tmp", "d/.x.tmp", "d/x~", "d/x.new", "d/.x.swp"];
        for name in names {
            symlink(outside.join("x"), lab.project.join(name)).unwrap();
            lab.who.own(&lab.project.join(name));
        }
        lab.program("mkfifo").arg("d/.x.skep").run().ok();
        fs::hard_link(outside.join("x"), lab.project.join("d/hard")).unwrap();
        lab.skep(["run", "--name", "s", "--", "sh", "-c", "echo new > d/x; echo new > d/hard"])
            .run()
            .ok();
        lab.skep(["approve", "s"]).run().ok();
        assert_eq!(lab.tree().get("d/x").unwrap().bytes, b"new\n");
        assert_eq!(lab.tree().get("d/hard").unwrap().bytes, b"new\n");
        Tree::read(&outside).assert_equals(&before, "written through a planted name");
        let mode = |path: &str| Tree::read(&lab.state).get(path).unwrap().mode;
        for path in ["", "sandboxes", "approvals", "locks", "trash"] {
            assert_eq!(mode(path), 0o700, "state directory `{path}`");
        }
        // Control: a copy to the planted name does follow it.
        lab.program("sh").args(["-c", "echo led > d/x.new"]).run().ok();
        assert_eq!(fs::read(outside.join("x")).unwrap(), b"led\n");
    });
}
