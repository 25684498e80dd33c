//! Something of the host's in the way of a removal.

use crate::harness::{Lab, Who, for_each, wait_for};
use std::path::Path;

/// Runs a script in a mount namespace of its own, whose mounts the host does not see.
fn apart(lab: &Lab, script: &str) -> crate::harness::Ran {
    lab.program("unshare").args(["-m", "--propagation", "private", "sh", "-c", script]).run()
}

fn precious(lab: &Lab, name: &str) -> std::path::PathBuf {
    lab.write(lab.root.join(name).join("deep/file"), "precious\n");
    lab.root.join(name)
}

fn is_whole(path: &Path) -> bool {
    std::fs::read_to_string(path.join("deep/file")).is_ok_and(|text| text == "precious\n")
}

#[test]
fn clean_2_a_mount_in_the_way_is_not_removed_through() {
    for_each([Who::root()], |lab| {
        // Control: what removes without looking takes the host's files along.
        let lost = precious(lab, "lost");
        let at = lab.root.join("control/m");
        std::fs::create_dir_all(&at).unwrap();
        let (from, to) = (lost.display(), at.display());
        apart(lab, &format!("mount --bind {from} {to}; rm -rf {to} 2> /dev/null"));
        assert!(!is_whole(&lost), "the control removed nothing");

        let kept = precious(lab, "kept");
        lab.write("a", "a\n");
        lab.create("s");
        lab.exec_script("s", "mkdir m; echo more > a; echo open > open").run().ok();
        lab.skep(["stop", "s"]).run().ok();
        let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
        let directory = lab.state.join("sandboxes").join(&id);
        // Somebody's shell stands in it, with a file open.
        let upper = directory.join("upper");
        let shell = format!("cd {} && exec 9< open && exec sleep 600", upper.display());
        let mut shell = lab.program("sh").args(["-c", &shell]).spawn();
        wait_for("the shell to stand there", 10, || {
            let at = std::fs::read_link(format!("/proc/{}/cwd", shell.id())).ok()?;
            (at == upper).then_some(())
        });
        let (from, skep) = (kept.display(), lab.binary.display());
        let script = format!("mount --bind {from} {0}/m && {skep} rm --discard s", upper.display());
        let ran = apart(lab, &script);
        assert_ne!(ran.code(), 0, "{}", ran.describe());
        assert!(ran.errors().contains("cannot remove"), "{}", ran.describe());
        assert!(is_whole(&kept), "the host's files were removed through a mount");
        // It is said, and left where the next try finds it.
        let left = crate::harness::entries(&lab.state.join("trash"));
        assert_eq!(left.len(), 1, "{left:?}");
        // Without the mount the next command finishes; the shell keeps nothing from going.
        lab.skep(["ls"]).run().ok();
        wait_for("the rest to go", 10, || {
            crate::harness::entries(&lab.state.join("trash")).is_empty().then_some(())
        });
        assert!(!directory.exists());
        assert!(is_whole(&kept));
        assert_eq!(lab.tree().get("a").unwrap().bytes, b"a\n");
        let _ = shell.kill();
        let _ = shell.wait();
    });
}
