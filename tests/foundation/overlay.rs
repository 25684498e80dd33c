//! What code inside can do to the overlay below it: forged marks, device nodes, mounts of its own.

use crate::harness::{Lab, Who, for_both, for_each, outside};
use std::fs;

/// Forges every mark of both families on files and directories; prints what was let through.
const FORGE: &str = r#"
import os
marks = ["opaque", "whiteout", "redirect", "metacopy", "origin", "impure", "nlink", "upper"]
for path in ["d", "d/sub", "d/one", "new", "new/file", "."]:
    for family in ["user.overlay.", "trusted.overlay.", "user.overlay.overlay."]:
        for mark in marks:
            for value in [b"y", b"x", b"/etc", b""]:
                try:
                    os.setxattr(path, family + mark, value)
                    print(path, family + mark)
                except OSError:
                    pass
"#;
const WORK: &str = "mkdir new; echo f > new/file; echo changed > d/one";

fn base(lab: &Lab) {
    lab.write("d/one", "1\n");
    lab.write("d/two", "2\n");
    lab.write("d/sub/three", "3\n");
}

/// Extended attributes below a directory, one line each.
fn attributes(lab: &Lab) -> String {
    let read = "import os
for folder, folders, files in os.walk('.'):
    for name in folders + files:
        path = os.path.join(folder, name)
        for attribute in os.listxattr(path, follow_symlinks=False):
            print(path, attribute)";
    lab.program("python3").args(["-c", read]).run().ok().text()
}

#[test]
fn fs_9_forged_overlay_marks_change_nothing() {
    for_both(|lab| {
        base(lab);
        lab.skep(["run", "--name", "honest", "--", "sh", "-ec", WORK]).run().ok();
        lab.create("forger");
        lab.exec_script("forger", WORK).run().ok();
        let ran = lab.skep(["exec", "forger", "--", "python3", "-c", FORGE]).run().ok();
        assert!(!ran.text().contains("trusted."), "{}", ran.describe());
        // The view itself is as before: nothing is hidden, nothing seems deleted.
        let list = lab.exec_script("forger", "find . | sort").run().ok().text();
        for path in ["./d/one", "./d/two", "./d/sub/three", "./new/file"] {
            assert!(list.lines().any(|line| line == path), "{path} is hidden: {list}");
        }
        let (honest, forged) = (lab.diff("honest"), lab.diff("forger"));
        assert_eq!(forged["digest"], honest["digest"], "{forged}");
        // Also after another mount of the same upper.
        lab.skep(["stop", "forger"]).run().ok();
        lab.skep(["start", "forger"]).run().ok();
        assert_eq!(lab.exec_script("forger", "find . | sort").run().ok().text(), list);
        assert_eq!(lab.diff("forger")["digest"], honest["digest"]);
        lab.skep(["approve", "forger"]).run().ok();
        assert_eq!(attributes(lab), "", "attributes came with the approval");
        for path in ["d/two", "d/sub/three", "new/file"] {
            assert!(lab.tree().get(path).is_some(), "{path} is gone");
        }
        // Control: outside, the same script does leave marks.
        lab.program("python3").args(["-c", FORGE]).run().ok();
        assert!(attributes(lab).contains("user.overlay.opaque"));
    });
}

#[test]
fn fs_10_device_nodes_cannot_be_made() {
    for_both(|lab| {
        base(lab);
        let script = "for node in 'c 0 0' 'b 254 0' 'b 8 0' 'c 1 1' 'c 10 229'; do \
            mknod node $node 2>/dev/null && echo made $node; rm -f node; done; true";
        assert_eq!(lab.run_script(script).run().ok().text(), "");
        // A node that the project holds (root can make one) cannot be opened inside either.
        if lab.who.is_root() {
            lab.program("mknod").args(["disk", "b", "254", "0"]).run().ok();
            let ran = lab.run_script("head -c 1 disk").run();
            assert_ne!(ran.code(), 0, "{}", ran.describe());
            lab.program("mknod").args(["zero", "c", "1", "5"]).run().ok();
            assert_ne!(lab.run_script("head -c 1 zero").run().code(), 0);
            assert_eq!(lab.program("head").args(["-c", "1", "zero"]).run().ok().stdout, b"\0");
        }
    });
}

/// Kernel defaults, put back on drop.
struct Parameter(&'static str, String);

impl Parameter {
    fn set(name: &'static str, value: &str) -> Self {
        let path = format!("/sys/module/overlay/parameters/{name}");
        let before = fs::read_to_string(&path).unwrap();
        fs::write(path, value).unwrap();
        Self(name, before)
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        let _ = fs::write(format!("/sys/module/overlay/parameters/{}", self.0), &self.1);
    }
}

#[test]
fn fs_10_redirects_and_metacopy_stay_off_whatever_the_kernel_defaults_to() {
    if Who::root().is_err() || !fs::exists("/sys/module/overlay/parameters/metacopy").unwrap() {
        return crate::harness::skip("the kernel's defaults cannot be changed here");
    }
    let _defaults = ["redirect_dir", "metacopy", "index"].map(|name| Parameter::set(name, "Y"));
    for_both(|lab| {
        base(lab);
        lab.create("s");
        let options = lab.exec_script("s", "grep ' overlay ' /proc/self/mountinfo").run();
        let text = options.text();
        for wrong in ["redirect_dir=on", "metacopy=on", "index=on", "nfs_export=on"] {
            assert!(!text.contains(wrong), "{text}");
        }
        // By what happens: a directory cannot be renamed, a changed mode copies the bytes.
        let rename = "import os, errno\ntry:\n    os.rename('d', 'e')\nexcept OSError as error:\n    print(errno.errorcode[error.errno])";
        let renamed = lab.skep(["exec", "s", "--", "python3", "-c", rename]).run().ok().text();
        assert_eq!(renamed, "EXDEV");
        lab.exec_script("s", "chmod 755 d/two").run().ok();
        let upper = lab.state.join("sandboxes").join(lab.sandbox("s")["id"].as_str().unwrap());
        assert_eq!(fs::read(upper.join("upper/d/two")).unwrap(), b"2\n");
    });
}

/// Every way to change mounts or roots, as words and as system calls; prints what was let through.
const MOUNT: &str = r#"
import ctypes, errno, os, subprocess
libc = ctypes.CDLL(None, use_errno=True)
here = os.getcwd().encode()
calls = {
    "mount tmpfs": (165, b"none", here, b"tmpfs", 0, None),
    "mount bind": (165, here, b"/tmp", None, 4096, None),
    "mount remount": (165, None, b"/usr", None, 32 | 4096, None),
    "umount": (166, here, 2),
    "pivot_root": (155, here, here),
    "chroot": (161, here),
    "unshare user": (272, 0x10000000),
    "unshare mount": (272, 0x00020000),
    "open_tree": (428, -100, b"/", 1),
    "move_mount": (429, -100, here, -100, b"/tmp", 0),
    "fsopen": (430, b"tmpfs", 0),
    "fspick": (433, -100, b"/", 0),
    "mount_setattr": (442, -100, b"/", 0, None, 0),
    "setns": (308, 0, 0),
    "open_by_handle_at": (304, -100, None, 0),
}
for name, (number, *arguments) in calls.items():
    if libc.syscall(number, *arguments) >= 0:
        print("LET THROUGH", name)
for line in ["unshare -Urm true", "unshare -r true", "mount -t tmpfs none /tmp", "chroot . true", "nsenter -t 1 -m true"]:
    if subprocess.run(line.split(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
        print("LET THROUGH", line)
"#;

#[test]
fn fs_11_mounts_roots_and_namespaces_cannot_be_changed() {
    for_both(|lab| {
        base(lab);
        let mounts = || fs::read_to_string("/proc/1/mountinfo").unwrap_or_default();
        let before = mounts();
        let ran = lab.skep(["run", "--", "python3", "-c", MOUNT]).run().ok();
        assert_eq!(ran.text(), "", "{}", ran.describe());
        assert!(outside::mounts_of(&lab.root).is_empty());
        if cfg!(target_arch = "x86_64") && !before.is_empty() {
            let ours = |text: &str| text.lines().filter(|line| line.contains("skep")).count();
            assert_eq!(ours(&mounts()), ours(&before));
        }
    });
    // Control: outside, in namespaces of its own, the same script is let through.
    for_each([Who::root()], |lab| {
        let line = ["--mount", "--propagation", "private", "python3", "-c", MOUNT];
        let ran = lab.program("unshare").args(line).run().ok();
        assert!(ran.text().contains("LET THROUGH mount tmpfs"), "{}", ran.describe());
    });
}
