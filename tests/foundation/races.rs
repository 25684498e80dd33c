//! Names that move while skep works: parents swapped under a copy, and a staging directory stolen.

use super::paths::{Swapper, outside};
use crate::harness::{Lab, Tree, attack, for_both, long, wait_for};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

fn seconds() -> Duration {
    Duration::from_secs(if long() { 30 } else { 2 })
}

/// Copies out of a sandbox, alone and with its parent, and into it, for a while. What came out is only
/// ever what is inside.
fn copy_for_a_while(lab: &Lab, wanted: &[u8]) {
    let out = lab.directory(lab.root.join("copied"));
    let planted = lab.write(lab.root.join("planted"), "planted\n");
    let (start, mut copied, mut refused) = (Instant::now(), 0, 0);
    while start.elapsed() < seconds() {
        for from in ["s:top/d/x", "s:top"] {
            let to = out.join("one");
            match lab.skep(["cp", from]).arg(&to).run().code() {
                0 => copied += 1,
                _ => refused += 1,
            }
            let found = Tree::read(&out);
            let read =
                found.nodes.iter().filter(|(path, _)| path.ends_with("x") || path.ends_with("one"));
            for (path, node) in read.filter(|(_, node)| !node.bytes.is_empty()) {
                assert!(node.bytes == wanted || path.ends_with("link"), "{path:?}: {node:?}");
            }
            let _ = fs::remove_file(&to);
            let _ = fs::remove_dir_all(&to);
        }
        lab.skep(["cp"]).arg(&planted).arg("s:top/d/new").run();
    }
    println!("{copied} copies were made, {refused} were refused");
    fs::remove_dir_all(out).unwrap();
}

/// The agent swaps a directory with a link to a place of the host.
#[test]
fn heavy_fs_4_a_parent_swapped_inside_leads_no_copy_out() {
    for_both(|lab| {
        let outside = outside(lab);
        let before = Tree::read(&outside);
        let Some(program) = attack::program("swap") else { return };
        fs::copy(program, lab.project.join("swap")).unwrap();
        lab.create("s");
        let script =
            format!("mkdir -p top/d; echo inside > top/d/x; ln -s {} top/link", outside.display());
        lab.exec_script("s", &script).run().ok();
        let swap = lab.skep(["exec", "-d", "s", "--", "./swap", "top/d", "top/link"]).run().ok();
        wait_for("the swapping", 20, || {
            lab.skep(["logs", &swap.text()]).run().text().contains("swapping").then_some(())
        });
        copy_for_a_while(lab, b"inside\n");
        // Control: somebody who trusts the path in the upper reads outside before long.
        let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
        let careless = lab.state.join("sandboxes").join(id).join("upper/top/d/x");
        wait_for("a careless reader to be led out", 20, || {
            fs::read(&careless).is_ok_and(|bytes| bytes == b"outside\n").then_some(())
        });
        Tree::read(&outside).assert_equals(&before, "written outside");
        lab.skep(["kill", &swap.text()]).run().ok();
    });
}

/// The same by somebody on the host, in the project.
#[test]
fn heavy_fs_4_a_parent_swapped_in_the_project_leads_no_copy_out() {
    for_both(|lab| {
        let outside = outside(lab);
        let before = Tree::read(&outside);
        lab.write("top/d/x", "inside\n");
        symlink(&outside, lab.project.join("top/link")).unwrap();
        lab.who.own(&lab.project.join("top/link"));
        lab.create("s");
        let Some(swapper) = Swapper::start(lab, "top/d", "top/link") else { return };
        copy_for_a_while(lab, b"inside\n");
        let careless = lab.project.join("top/d/x");
        wait_for("a careless reader to be led out", 20, || {
            fs::read(&careless).is_ok_and(|bytes| bytes == b"outside\n").then_some(())
        });
        drop(swapper);
        Tree::read(&outside).assert_equals(&before, "written outside");
    });
}

/// Puts a link in the place of every staging directory, as soon as there is one.
const THIEF: &str = r#"
import os, sys
parent, outside = sys.argv[1:3]
print("waiting", flush=True)
while True:
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        if name.startswith(".skep-") and not name.endswith(".stolen") and not os.path.islink(path):
            try:
                os.rename(path, path + ".stolen")
                os.symlink(outside, path)
            except OSError:
                pass
"#;

struct Thief(Child);

impl Thief {
    fn start(lab: &Lab, outside: &Path) -> Self {
        let call = lab.program("python3").args(["-c", THIEF]).arg(&lab.root).arg(outside);
        let mut child = call.into_command().stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "waiting\n");
        Self(child)
    }
}

impl Drop for Thief {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the thief left beside the project: the links, and what was stolen.
fn loot(lab: &Lab) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let all = crate::harness::entries(&lab.root);
    let ours = |path: &&PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(".skep-");
    all.iter().filter(ours).cloned().partition(|path| path.is_symlink())
}

/// The name is known as soon as the directory is there, which is before anything is in it: whoever
/// may write beside the project can put something else in its place. What skep writes goes through
/// the directory that it made, whatever has its name by then.
#[test]
fn fs_5_a_stolen_staging_directory_leads_nothing_out() {
    for_both(|lab| {
        let outside = outside(lab);
        let before = Tree::read(&outside);
        for number in 0..40 {
            lab.write(format!("f{number}"), "old\n");
        }
        let thief = Thief::start(lab, &outside);
        let (start, mut round, mut stolen) = (Instant::now(), 0, 0);
        while stolen == 0 || (long() && start.elapsed() < seconds()) {
            assert!(start.elapsed() < Duration::from_secs(90), "the thief came too late each time");
            round += 1;
            let script = format!(
                "for f in f*; do echo {round} > $f; done; mkdir n{round}; echo {round} > n{round}/n"
            );
            lab.skep(["run", "--name", "s", "--", "sh", "-c", &script]).run().ok();
            let code = lab.skep(["approve", "s"]).run().code();
            let (links, _) = loot(lab);
            stolen += links.len();
            for number in 0..40 {
                let now = fs::read_to_string(lab.project.join(format!("f{number}"))).unwrap();
                assert!(code != 0 || now == format!("{round}\n"), "f{number}: {now}");
            }
            Tree::read(&outside).assert_equals(&before, "written through the stolen name");
            if let Some(link) = links.first() {
                // Control: whoever goes by the name is led out.
                fs::write(link.join("control"), "led out").unwrap();
                fs::remove_file(outside.join("control")).unwrap();
                // Without its backups an approval is not undone, and says so.
                let project = lab.tree();
                let ran = lab.skep(["undo"]).run();
                assert_ne!(ran.code(), 0, "{}", ran.describe());
                lab.tree().assert_equals(&project, "an undo without backups");
            }
            lab.skep(["rm", "--discard", "s"]).run().ok();
            let (links, directories) = loot(lab);
            links.iter().for_each(|path| fs::remove_file(path).unwrap());
            directories.iter().for_each(|path| fs::remove_dir_all(path).unwrap());
        }
        drop(thief);
        println!("{stolen} of {round} were stolen");
        Tree::read(&outside).assert_equals(&before, "written outside");
    });
}

/// Init is ended with the last command; who has asked it something just before is answered all the same.
#[test]
fn heavy_a_look_at_a_run_that_is_just_ending_is_answered() {
    for_both(|lab| {
        lab.write("a", "a\n");
        let runs = || Loop::start(lab, "while :; do \"$0\" run -- true; done");
        let running = [runs(), runs()];
        // Before that was so, one of thirty looks waited for ever, and the run for its lock.
        for _ in 0..if long() { 1000 } else { 120 } {
            let looked = lab.skep(["diff"]).within(25).run();
            assert!([0, 1, 3, 4].contains(&looked.code()), "{}", looked.describe());
        }
        drop(running);
        wait_for("the last runs to end", 20, || lab.sandboxes().is_empty().then_some(()));
        lab.audit_leftovers();
    });
}

/// A shell that goes on until it is dropped, and then finishes what it has begun.
struct Loop(Child);

impl Loop {
    fn start(lab: &Lab, script: &str) -> Self {
        let script = format!("trap 'exit 0' TERM; {script}");
        Self(lab.program("sh").args(["-c", &script]).arg(&lab.binary).spawn())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}
