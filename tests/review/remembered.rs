//! What the kernel remembers of the project between commands.

use crate::harness::{Lab, for_both, skip, wait_for};
use std::fs;
use std::process::{Child, Command, Stdio};

/// Whoever watches how an init asks the kernel to let go of names.
struct Watch {
    strace: Child,
    lab: std::path::PathBuf,
}

impl Watch {
    fn begin(lab: &Lab) -> Self {
        let keeper = lab.keepers()[0];
        let children = format!("/proc/{keeper}/task/{keeper}/children");
        let init = fs::read_to_string(children).unwrap().trim().to_owned();
        let mut strace = Command::new("strace");
        strace.args(["-qq", "-e", "trace=fsconfig", "-o"]).arg(lab.root.join("watched"));
        let strace = strace.args(["-p", &init]).stderr(Stdio::null()).spawn().unwrap();
        let traced = format!("TracerPid:\t{}", strace.id());
        wait_for("the watch", 10, || {
            let status = fs::read_to_string(format!("/proc/{init}/status")).unwrap();
            status.contains(&traced).then_some(())
        });
        Self { strace, lab: lab.root.clone() }
    }

    fn drops(&self) -> usize {
        let watched = fs::read_to_string(self.lab.join("watched")).unwrap_or_default();
        watched.matches("FSCONFIG_CMD_RECONFIGURE").count()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.strace.kill();
        let _ = self.strace.wait();
    }
}

/// To let go of ten thousand names took 15 ms, which the next command after a pause waited for.
#[test]
fn names_are_let_go_of_in_a_pause_and_not_when_a_command_comes() {
    if !crate::harness::running_as_root() {
        return skip("only root can watch an init");
    }
    for_both(|lab| {
        lab.write("a", "one\n");
        lab.write("b", "one\n");
        lab.create("s");
        let read = |path| lab.skep(["exec", "s", "--", "cat", path]).run().ok().text();
        assert_eq!(read("a"), "one");
        let watch = Watch::begin(lab);
        let pause = |drops: usize| {
            wait_for("the names to go", 10, || (watch.drops() == drops).then_some(()));
            // Once is enough.
            std::thread::sleep(std::time::Duration::from_millis(700));
            assert_eq!(watch.drops(), drops);
        };
        assert_eq!(read("a"), "one");
        let first = wait_for("the names to go", 10, || Some(watch.drops()).filter(|&all| all > 0));
        pause(first);
        // What stands there by then is what the next command sees.
        lab.write("new", "two\n");
        fs::rename(lab.project.join("new"), lab.project.join("a")).unwrap();
        fs::remove_file(lab.project.join("b")).unwrap();
        let call =
            lab.skep(["exec", "s", "--", "sh", "-c", "cat a; test -e b; echo $?"]).run().ok();
        assert_eq!(call.text(), "two\n1");
        pause(first + 1);
        // So is what somebody else looked up.
        let put = lab.write(lab.root.join("put"), "put\n");
        lab.skep(["cp", put.to_str().unwrap(), "s:put"]).run().ok();
        pause(first + 2);
        assert_eq!(read("put"), "put");
        drop(watch);
        lab.skep(["rm", "--discard", "s"]).run().ok();
        lab.audit_leftovers();
    });
}
