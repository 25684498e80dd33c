//! Who takes itself out of a guard's looks: by a program that nobody may read, by how the looks are
//! timed, by descriptors that are in nobody's table.

use crate::harness::{Lab, Ran, Who, attack, for_both, for_each, wait_for};
use std::os::unix::fs::PermissionsExt as _;

pub(super) fn hit(ran: &Ran) -> Vec<String> {
    let end = ran.json();
    let list = end["limits_hit"].as_array().unwrap();
    list.iter().map(|limit| limit.as_str().unwrap().to_owned()).collect()
}

/// A mount with a program of the host's that may be executed and not read: the kernel shows nothing of who
/// runs it but to root of the host. Another one like it, which can be read, is the control.
pub(super) fn perls(lab: &Lab) -> String {
    let directory = lab.root.join("perls");
    std::fs::create_dir_all(&directory).unwrap();
    for (name, mode) in [("plain", 0o755), ("shut", 0o711)] {
        let copy = directory.join(name);
        std::fs::copy("/usr/bin/perl", &copy).unwrap();
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    format!("{}:/perls:ro", directory.display())
}

const PERLS: [&str; 2] = ["plain", "shut"];

/// Memory of a process that shows its size and nothing else.
#[test]
fn res_2_memory_of_an_unreadable_program_is_counted() {
    for_both(|lab| {
        let mount = perls(lab);
        for perl in PERLS {
            let words = ["run", "--json", "--best-effort", "--memory", "128M", "--mount", &mount];
            let script = "my $x = 'x' x 300_000_000; sleep 20";
            let ran = lab.skep(words).args(["--", &format!("/perls/{perl}"), "-e", script]).run();
            assert_eq!(ran.json()["reason"], "oom", "{perl}: {}", ran.describe());
        }
    });
}

/// The mark by which an exec's processes are known does not show either.
#[test]
fn res_11_a_timeout_takes_an_unreadable_daemon_along() {
    for_both(|lab| {
        let mount = perls(lab);
        for name in PERLS {
            lab.skep(["create", name, "--mount", &mount]).run().ok();
            // Another one, so that not everyone may be ended.
            lab.skep(["exec", "-d", name, "--", "sleep", "600"]).run().ok();
            let script = "use POSIX; if (!fork) { setsid(); $| = 1; open F, '>>', 'beat'; select F; \
                          $| = 1; while (1) { print F 'x'; select undef, undef, undef, 0.02 } } \
                          sleep 60";
            let words = ["exec", name, "--json", "--timeout", "1s", "--grace", "100ms", "--"];
            let ran = lab.skep(words).args([&format!("/perls/{name}"), "-e", script]).run();
            assert_eq!(ran.json()["reason"], "timeout", "{}", ran.describe());
            let id = lab.sandbox(name)["id"].as_str().unwrap().to_owned();
            let beat = lab.state.join("sandboxes").join(id).join("upper/beat");
            let length = || std::fs::metadata(&beat).map_or(0, |found| found.len());
            assert!(length() > 0, "control: it wrote");
            wait_for("the daemon to stand", 5, || {
                let before = length();
                std::thread::sleep(std::time::Duration::from_millis(200));
                (length() == before).then_some(())
            });
            lab.skep(["stop", name]).run().ok();
        }
    });
}

/// However many commands came after it.
#[test]
fn res_11_a_kill_takes_a_daemon_along_after_many_other_execs() {
    for_each([Who::user()], |lab| {
        lab.create("s");
        let script = "setsid sh -c 'while :; do printf x >> beat; sleep 0.02; done' & sleep 600";
        let exec = lab.skep(["exec", "-d", "s", "--", "sh", "-c", script]).run().ok().text();
        lab.skep(["exec", "-d", "s", "--", "sleep", "600"]).run().ok();
        for _ in 0..135 {
            lab.skep(["exec", "s", "--", "true"]).run().ok();
        }
        let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
        let beat = lab.state.join("sandboxes").join(id).join("upper/beat");
        let length = || std::fs::metadata(&beat).map_or(0, |found| found.len());
        let before = length();
        wait_for("it to write", 10, || (length() > before).then_some(()));
        lab.skep(["kill", exec.trim()]).run().ok();
        wait_for("the daemon to stand", 5, || {
            let before = length();
            std::thread::sleep(std::time::Duration::from_millis(200));
            (length() == before).then_some(())
        });
    });
}

/// Files without a name behind descriptors that nobody can see: of a program that may not be read, and
/// under way between two sockets.
#[test]
fn res_5_deleted_files_that_cannot_be_seen_are_held_by_the_limit() {
    let sent = "import os, socket, array, time\na, b = socket.socketpair()\nfor i in range(24):\n  \
        f = os.open('gone', os.O_RDWR | os.O_CREAT | os.O_TRUNC)\n  os.unlink('gone')\n  \
        os.write(f, b'x' * 10_000_000)\n  a.sendmsg([b'x'], [(socket.SOL_SOCKET, \
        socket.SCM_RIGHTS, array.array('i', [f]))])\n  os.close(f)\ntime.sleep(20)\n";
    let kept = "for my $i (1 .. 24) { open $f[$i], '>', 'gone'; unlink 'gone'; \
        syswrite $f[$i], 'x' x 10_000_000 } sleep 20";
    let shut = "import ctypes, os, time\nctypes.CDLL(None).prctl(4, 0)\nkept = []\nfor i in range(24):\n  \
        f = os.open('gone', os.O_RDWR | os.O_CREAT | os.O_TRUNC); os.unlink('gone'); kept.append(f)\n  \
        os.write(f, b'x' * 10_000_000)\ntime.sleep(20)\n";
    for_both(|lab| {
        let mount = perls(lab);
        let commands = [
            ["/perls/plain", "-e", kept],
            ["/perls/shut", "-e", kept],
            ["python3", "-c", sent],
            ["python3", "-c", shut],
        ];
        for command in commands {
            let words = ["run", "--json", "--disk", "60M", "--mount", &mount, "--"];
            let ran = lab.skep(words).args(command).run();
            assert_eq!(ran.json()["reason"], "disk_limit", "{command:?}: {}", ran.describe());
            assert_eq!(hit(&ran), ["disk"]);
        }
    });
}

/// Mapped and closed: at a low address, whose name has zeros in front; beside a file whose name is no text; a
/// small part of a large one.
const MAPPED: &str = "
import ctypes, mmap, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
if sys.argv[1] == 'name':
    odd = os.open(b'\\xff\\xfe', os.O_RDWR | os.O_CREAT); os.write(odd, b'x' * 4096)
    held = mmap.mmap(odd, 4096)
for index in range(24):
    file = os.open('gone', os.O_RDWR | os.O_CREAT | os.O_TRUNC); os.unlink('gone')
    os.write(file, b'x' * 10_000_000)
    length = 10_000_000 if sys.argv[1] == 'name' else 4096
    at, fixed = (0x2000000 + index * 8192, 0x100000) if sys.argv[1] == 'low' else (None, 0)
    assert libc.mmap(at, length, 1, 1 | fixed, file, 0) != ctypes.c_void_p(-1).value
    os.close(file); time.sleep(0.02)
time.sleep(20)
";

#[test]
fn res_5_mapped_files_are_counted_wherever_and_beside_whatever_they_are() {
    for_both(|lab| {
        for how in ["low", "name", "part"] {
            let words = ["run", "--json", "--disk", "60M", "--", "/usr/bin/python3", "-c"];
            let ran = lab.skep(words).args([MAPPED, how]).run();
            assert_eq!(ran.json()["reason"], "disk_limit", "{how}: {}", ran.describe());
        }
    });
}

/// A rule of Landlock keeps its file for good, and nothing shows it.
#[test]
fn res_5_no_fence_inside_keeps_deleted_files() {
    let program = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n\
        print(libc.syscall(444, None, 0, 1), os.strerror(ctypes.get_errno()))";
    for_both(|lab| {
        let words = ["run", "--", "/usr/bin/python3", "-c", program];
        assert_eq!(lab.skep(words).run().ok().text(), "-1 Operation not supported");
    });
}

/// A program that runs and was deleted.
#[test]
fn res_5_programs_that_were_deleted_are_counted() {
    let program = "import os, shutil, subprocess, time\nfor index in range(6):\n  \
        shutil.copy('/bin/sleep', 'p'); open('p', 'ab').write(bytes(40 << 20))\n  \
        subprocess.Popen(['./p', '20']); os.unlink('p'); time.sleep(0.05)\ntime.sleep(20)";
    for_both(|lab| {
        let words = ["run", "--json", "--disk", "100M", "--", "/usr/bin/python3", "-c", program];
        let ran = lab.skep(words).run();
        assert_eq!(ran.json()["reason"], "disk_limit", "{}", ran.describe());
    });
}

/// A process that has another number at every look, in a crowd that makes looks slow.
#[test]
fn res_5_a_process_that_changes_its_number_is_found() {
    for_both(|lab| {
        let Some(hop) = attack::program("hop") else { return };
        std::fs::copy(hop, lab.project.join("hop")).unwrap();
        let words = ["run", "--json", "--disk", "60M", "--", "./hop", "disk", "240", "1200", "15"];
        let ran = lab.skep(words).run();
        assert_eq!(ran.json()["reason"], "disk_limit", "{}", ran.describe());
        let words = ["run", "--json", "--best-effort", "--memory", "200M", "--"];
        let ran = lab.skep(words).args(["./hop", "memory", "600", "1200", "15"]).run();
        assert_eq!(ran.json()["reason"], "oom", "{}", ran.describe());
    });
}

/// Number 1 has the user of those inside: without its descriptors it could neither look nor end anybody.
#[test]
fn proc_2_the_limits_of_number_1_are_nobodys() {
    for_both(|lab| {
        let script = "import resource, sys\ntry: resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))\n\
            except PermissionError: print('refused')\n\
            print(resource.prlimit(0, resource.RLIMIT_NOFILE)[0] > 100)";
        let ran = lab.skep(["run", "--", "python3", "-c", script]).run().ok();
        assert_eq!(ran.text(), "refused\nTrue");
    });
}

/// Pending signals are counted for the caller, too.
#[test]
fn res_12_pending_signals_are_left_to_the_caller() {
    for_both(|lab| {
        let text = lab.skep(["run", "--", "bash", "-c", "ulimit -i"]).run().ok().text();
        let most = rustix::process::getrlimit(rustix::process::Resource::Sigpending).maximum;
        let inside: u64 = text.trim().parse().unwrap();
        assert!(most.is_none_or(|most| inside <= (most / 16).max(256)), "{inside} of {most:?}");
    });
}

/// A limit that comes with an exec is looked after at once, wherever the last look was put.
#[test]
fn res_5_a_tight_limit_of_one_exec_is_looked_after_at_once() {
    for_both(|lab| {
        lab.create("s");
        lab.exec_script("s", "head -c 30M /dev/zero > f; sleep 0.3").run().ok();
        let ran = lab.skep(["exec", "s", "--json", "--disk", "10M", "--", "sleep", "1.5"]).run();
        assert_eq!(ran.json()["reason"], "disk_limit", "{}", ran.describe());
    });
}

/// What was there too much, and is gone, is not allowed again.
#[test]
fn res_5_a_limit_that_was_passed_once_is_not_wider_afterwards() {
    for_both(|lab| {
        lab.skep(["create", "s", "--disk", "20M"]).run().ok();
        let large = lab.root.join("large");
        std::fs::write(&large, vec![1; 80 << 20]).unwrap();
        lab.who.own(&large);
        lab.skep(["cp", large.to_str().unwrap(), "s:large"]).run().ok();
        let ran = lab.skep(["exec", "s", "--json", "--", "sleep", "10"]).run();
        assert_eq!(ran.json()["reason"], "disk_limit", "control: {}", ran.describe());
        // Who tidies up is let.
        lab.exec_script("s", "sleep 0.3; rm large; sleep 3").run().ok();
        let script = "for i in 1 2 3; do head -c 15M /dev/zero > w$i; done; sleep 10";
        let ran = lab.skep(["exec", "s", "--json", "--", "sh", "-c", script]).run();
        assert_eq!(ran.json()["reason"], "disk_limit", "{}", ran.describe());
    });
}

/// The kernel counts descriptors under way for all of a user, and compares with the sender's own limit.
/// The limit is low here, so that nobody else on this host is concerned.
#[test]
fn res_12_descriptors_under_way_in_one_sandbox_stop_no_other() {
    let flood = "import socket, os, time, array\nkept = []\ncount = 0\nnull = os.open('/dev/null', 0)\n\
        try:\n  while count < 2000:\n    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
        \x20   kept += [a, b]\n    for _ in range(4):\n      a.sendmsg([b'x'], [(socket.SOL_SOCKET, \
        socket.SCM_RIGHTS, array.array('i', [null] * 50))])\n      count += 50\n\
        except OSError as error: print(error, flush=True)\n\
        open('sent', 'w').write(str(count))\ntime.sleep(600)\n";
    for_both(|lab| {
        let few = |words: &[&str]| {
            let call = lab.program("prlimit").arg("--nofile=900:900").arg(&lab.binary);
            call.args(words).run()
        };
        few(&["create", "flood"]).ok();
        few(&["create", "other"]).ok();
        few(&["exec", "-d", "flood", "--", "python3", "-c", flood]).ok();
        let id = lab.sandbox("flood")["id"].as_str().unwrap().to_owned();
        let sent = lab.state.join("sandboxes").join(id).join("upper/sent");
        let count = wait_for("it to be refused", 20, || {
            std::fs::read_to_string(&sent).ok()?.parse::<u64>().ok()
        });
        assert!(count >= 600, "control: it sent {count}");
        assert_eq!(few(&["exec", "other", "--", "echo", "works"]).ok().text(), "works");
        assert_eq!(few(&["run", "--", "echo", "works"]).ok().text(), "works");
        few(&["rm", "--discard", "flood"]).ok();
    });
}

/// Tasks of others are not what an exec's own limit refused it.
#[test]
fn tasks_of_other_execs_are_not_felt_by_one() {
    for_both(|lab| {
        lab.create("s");
        let many = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 600 & done; touch there; wait";
        lab.skep(["exec", "-d", "s", "--", "sh", "-c", many]).run().ok();
        lab.exec_script("s", "until [ -e there ]; do sleep 0.02; done").run().ok();
        let quiet = ["exec", "s", "--json", "--pids", "8", "--", "sh", "-c"];
        let ran = lab.skep(quiet).arg("/bin/true && sleep 0.3").run().ok();
        assert!(hit(&ran).is_empty(), "{}", ran.describe());
        // Control: its own are.
        let own = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1 & done; wait";
        let ran = lab.skep(quiet).arg(own).run();
        assert_eq!(hit(&ran), ["pids"], "{}", ran.describe());
    });
}

/// The kernel counts an exec's tasks with those of others; when they are gone it may have no more for that.
#[test]
fn res_1_the_tasks_of_one_exec_are_held_when_others_have_gone() {
    for_both(|lab| {
        lab.create("s");
        let others = "for i in $(seq 30); do sleep 600 & done; touch there; wait";
        let exec = lab.skep(["exec", "-d", "s", "--", "sh", "-c", others]).run().ok().text();
        lab.exec_script("s", "until [ -e there ]; do sleep 0.02; done").run().ok();
        let script = "touch begun; until [ -e go ]; do /bin/sleep 0.05; done; \
                      for i in $(seq 20); do /bin/sleep 30 & done; echo made; wait";
        let words = ["exec", "s", "--json", "--pids", "6", "--timeout", "25s", "--", "sh", "-c"];
        let ran = std::thread::scope(|scope| {
            scope.spawn(|| {
                let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
                let begun = lab.state.join("sandboxes").join(id).join("upper/begun");
                wait_for("it to begin", 10, || begun.exists().then_some(()));
                lab.skep(["kill", exec.trim()]).run().ok();
                lab.exec_script("s", "touch go").run().ok();
            });
            lab.skep(words).arg(script).run()
        });
        assert_eq!(hit(&ran), ["pids"], "{}", ran.describe());
        let reason = if lab.who.is_root() { "exited" } else { "pids_limit" };
        assert_eq!(ran.json()["reason"], reason, "{}", ran.describe());
        lab.skep(["stop", "s"]).run().ok();
    });
}

/// Signals and codes say nothing by themselves: a limit is felt by who has met it.
#[test]
fn res_5_nobody_gives_itself_the_verdict_of_a_limit() {
    for_both(|lab| {
        let run = |script: &str| {
            lab.skep(["run", "--json", "--disk", "16M", "--", "sh", "-c", script]).run()
        };
        let ran = run("kill -XFSZ $$");
        assert_eq!((&ran.json()["reason"], hit(&ran)), (&"signal".into(), vec![]));
        let message = ran.json()["message"].to_string();
        assert!(message.contains("at most 16 MiB"), "{message}");
        let ran = run("exit 153");
        assert_eq!((&ran.json()["reason"], hit(&ran)), (&"exited".into(), vec![]));
        // Control: who has met it.
        let ran = run("exec head -c 40M /dev/zero > f");
        let felt = (ran.json()["reason"].clone(), hit(&ran));
        assert_eq!(felt, ("disk_limit".into(), vec!["disk".to_owned()]), "{}", ran.describe());
    });
}

/// What was used is used, also by who detached itself.
#[test]
fn the_time_of_a_detached_process_is_its_execs() {
    for_both(|lab| {
        let burn = "import time\nwhile time.process_time() < 0.6: pass";
        let script = format!("(setsid python3 -c '{burn}' &); sleep 2.5");
        let ran = lab.skep(["run", "--json", "--", "sh", "-c", &script]).run().ok();
        let used = ran.json()["stats"]["cpu_ms"].as_u64().unwrap();
        assert!((400..2500).contains(&used), "{}", ran.describe());
    });
}

/// A thread goes on after the first one of its process has ended, and the process shows nothing any more.
const HEADLESS: &str = "
import ctypes, os, sys, threading, time
def files():
    kept = []
    for number in range(25):
        file = os.open('gone', os.O_CREAT | os.O_RDWR); os.unlink('gone'); kept.append(file)
        for _ in range(10): os.write(file, bytes(1 << 20)); time.sleep(0.002)
    time.sleep(3); os._exit(0)
def memory():
    kept = []
    for number in range(30): kept.append(b'x' * (10 << 20)); time.sleep(0.02)
    time.sleep(3); os._exit(0)
threading.Thread(target={'files': files, 'memory': memory}[sys.argv[1]]).start()
if sys.argv[2] == 'nameless': ctypes.CDLL(None).prctl(15, b'\\xff\\xfe')
if sys.argv[2] != 'whole': ctypes.CDLL(None).syscall(60, 0)
time.sleep(60)
";

#[test]
fn res_5_res_2_a_process_without_its_first_thread_hides_nothing() {
    for_both(|lab| {
        // The name of the second is no text; the third of each is the control.
        for how in ["headless", "nameless", "whole"] {
            for (what, limit) in [("files", ["--disk", "60M"]), ("memory", ["--memory", "100M"])] {
                let call = lab.skep(["run", "--best-effort", "--json"]).args(limit);
                let ran = call.args(["--", "/usr/bin/python3", "-c", HEADLESS, what, how]).run();
                let expected = if what == "files" { "disk" } else { "memory" };
                assert_eq!(hit(&ran), [expected], "{what} {how}: {}", ran.describe());
            }
        }
    });
}
