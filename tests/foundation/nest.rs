//! A keeper is begun before it is known what for; it is used, or gone, and nobody can tell which.

use crate::harness::{Lab, for_both, outside, wait_for, wait_for_empty};
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::process::Command;

/// On which processors a process may run.
const ALLOWED: &str = "/proc/self/status";

fn allowed(text: &str) -> String {
    let line = text.lines().find(|line| line.starts_with("Cpus_allowed:"));
    line.unwrap_or_else(|| panic!("{text}")).to_owned()
}

/// While it waits, keeper and init are put where others are not. Commands may use what the caller may.
#[test]
fn commands_have_all_processors_of_the_caller() {
    for_both(|lab| {
        let own = allowed(&std::fs::read_to_string(ALLOWED).unwrap());
        let seen = |line: &[&str]| allowed(&lab.skep(line).run().ok().text());
        // The second is begun with what the first has found out.
        for _ in 0..3 {
            assert_eq!(seen(&["run", "--", "cat", ALLOWED]), own);
        }
        // An init that does not fit makes room for another.
        for _ in 0..8 {
            assert_eq!(seen(&["run", "--user", "root", "--", "cat", ALLOWED]), own);
        }
        lab.create("s");
        lab.skep(["create", "--user", "root", "r"]).run().ok();
        for name in ["s", "r"] {
            assert_eq!(seen(&["exec", name, "--", "cat", ALLOWED]), own);
        }
        for pid in lab.keepers() {
            let keeper = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            assert_eq!(allowed(&keeper), own, "the keeper's own");
        }
        lab.skep(["rm", "s", "r"]).run().ok();
        lab.audit_leftovers();
    });
}

/// Prints for how long its process may keep a processor that others want (`sched_getattr`).
const TURNS: &str = "
import ctypes, struct
attributes = ctypes.create_string_buffer(48)
number = {'x86_64': 315, 'aarch64': 275}[__import__('os').uname().machine]
assert ctypes.CDLL(None).syscall(number, 0, attributes, 48, 0) == 0
size, policy, flags, nice, priority, turn = struct.unpack_from('=IIQiIQ', attributes)
print(policy, nice, turn)";

/// An init that was begun ahead takes short turns until it is up (before Linux 6.12 all are alike). Commands take theirs as the
/// caller does.
#[test]
fn commands_take_turns_as_their_caller_does() {
    let python = "/usr/bin/python3";
    for_both(|lab| {
        let own = Command::new(python).args(["-c", TURNS]).output().unwrap();
        let own = String::from_utf8(own.stdout).unwrap().trim_end().to_owned();
        let seen = |line: &[&str]| lab.skep(line).run().ok().text();
        // The second is begun with what the first has found out, and waits for its command.
        for _ in 0..3 {
            assert_eq!(seen(&["run", "--", python, "-c", TURNS]), own);
        }
        for _ in 0..2 {
            assert_eq!(seen(&["run", "--user", "root", "--", python, "-c", TURNS]), own);
        }
        lab.create("s");
        for _ in 0..2 {
            assert_eq!(seen(&["exec", "s", "--", python, "-c", TURNS]), own);
        }
        // Nor do those who wait for them for long stay in a hurry.
        let mut waits = lab.run_script("echo x > begun; exec sleep 66663").spawn();
        let second = wait_for("the second sandbox", 20, || {
            lab.sandboxes().into_iter().find(|row| row["name"] != "s" && row["state"] == "ready")
        });
        let id = second["id"].as_str().unwrap();
        let begun = lab.state.join("sandboxes").join(id).join("upper/begun");
        wait_for("its command", 20, || begun.exists().then_some(()));
        for one in outside::processes_of(&lab.root) {
            let of = TURNS.replace("number, 0,", &format!("number, {},", one.pid));
            let turns = Command::new(python).args(["-c", &of]).output().unwrap();
            assert_eq!(String::from_utf8(turns.stdout).unwrap().trim_end(), own, "{one:?}");
        }
        lab.skep(["rm", "--discard", id]).run().ok();
        waits.wait().unwrap();
        lab.skep(["rm", "s"]).run().ok();
        lab.audit_leftovers();
    });
}

/// What a view is made of is begun with little room, before it is known how much was asked for.
#[test]
fn a_view_that_was_begun_ahead_has_the_room_that_was_asked_for() {
    for_both(|lab| {
        let room = |flags: &[&str]| -> u64 {
            let look = ["--best-effort", "--", "stat", "-f", "-c", "%b %S", "/tmp"];
            let text = lab.skep(["run"].iter().chain(flags).chain(&look)).run().ok().text();
            let numbers: Vec<u64> = text.split(' ').map(|word| word.parse().unwrap()).collect();
            numbers[0] * numbers[1]
        };
        // The second of each is begun with what the first has found out.
        for _ in 0..2 {
            assert!(room(&[]) >= 1 << 30);
            let limited = room(&["--disk", "300M"]);
            assert!((300_000_000..400 << 20).contains(&limited), "{limited}");
        }
    });
}

/// The place where it is begun hides nothing of the host from what is looked for later.
#[test]
fn what_the_host_shows_is_found_where_a_view_was_begun() {
    for_both(|lab| {
        lab.write("a", "mine\n");
        let shared = lab.directory(lab.root.join("shared/deep"));
        lab.write(shared.join("file"), "theirs\n");
        let deep = format!("{}:/mnt/there", shared.display());
        for _ in 0..2 {
            let look = "cat a /mnt/there/file; ls -d /proc/tty/driver 2> /dev/null; ls /proc/tty";
            let ran = lab.skep(["run", "--mount", &deep, "--", "sh", "-c", look]).run().ok();
            let text = ran.text();
            assert!(text.starts_with("mine\ntheirs\n"), "{text}");
            assert!(text.lines().any(|line| line == "drivers"), "{text}");
        }
    });
}

/// Settings ask for something that it does not fit: it does not stay beside what is made instead.
#[test]
fn one_that_does_not_fit_is_gone_when_the_command_runs() {
    for_both(|lab| {
        for (name, value) in [
            ("SKEP_PROVIDER_NAME", "subprocess"),
            ("SKEP_SANDBOX_NETWORK", "host"),
            ("SKEP_SANDBOX_NETWORK", "allow"),
        ] {
            let script = "echo x > begun; exec sleep 66664";
            let mut run = lab.run_script(script).env(name, value).spawn();
            let sandbox = wait_for("the sandbox", 20, || {
                lab.sandboxes().pop().filter(|row| row["state"] == "ready")
            });
            let id = sandbox["id"].as_str().unwrap();
            let begun = lab.state.join("sandboxes").join(id).join("upper/begun");
            wait_for("its command", 20, || begun.exists().then_some(()));
            // The command line, which waits, and one that it has started.
            assert_eq!(lab.keepers().len(), 2, "{name}={value}");
            lab.skep(["rm", "--discard", id]).run().ok();
            run.wait().unwrap();
            wait_for_empty(name, 10, || outside::processes_of(&lab.root));
        }
        lab.audit_leftovers();
    });
}

/// A line that is refused after it was begun leaves nothing.
#[test]
fn one_that_was_begun_for_nothing_is_gone_with_the_refusal() {
    for_both(|lab| {
        let refused: [&[&str]; 9] = [
            &["run", "--"],
            // Nothing is begun for these.
            &["run", "--no-such-option", "--", "true"],
            &["create", "--no-such-option"],
            &["run", "--host", "http://127.0.0.1:1", "--", "true"],
            &["create", "--host", "http://127.0.0.1:1", "s"],
            &["run", "--cpus", "many", "--", "true"],
            &["run", "--project", "/", "--", "true"],
            &["run", "--from", "nothing", "--", "true"],
            &["create", "--from", "nothing", "s"],
        ];
        for line in refused {
            assert_ne!(lab.skep(line).run().code(), 0, "{line:?}");
            let left = outside::processes_of(&lab.root);
            assert!(left.is_empty(), "{line:?} left {left:?}");
        }
        lab.audit_leftovers();
    });
}

/// Where the caller has closed its first three descriptors, no other comes in their place: what is printed would go there.
#[test]
fn one_without_its_first_descriptors_gets_them_and_nothing_else() {
    for_both(|lab| {
        warm(lab);
        let line = "exec \"$0\" run --keep --name s -- sh -c 'echo x > begun; exec sleep 66662' <&- >&- 2>&-";
        let mut run = lab.program("sh").args(["-c", line, lab.binary.to_str().unwrap()]).spawn();
        let begun = || {
            let sandbox = lab.sandboxes().pop()?;
            let place = lab.state.join("sandboxes").join(sandbox["id"].as_str()?);
            place.join("upper/begun").exists().then_some(())
        };
        wait_for("its command", 20, begun);
        let null = std::fs::metadata("/dev/null").unwrap().rdev();
        let ours = outside::processes_of(&lab.root).into_iter();
        for pid in ours.map(|one| one.pid) {
            for number in 0..3 {
                let held = std::fs::metadata(format!("/proc/{pid}/fd/{number}")).unwrap();
                let nothing = held.rdev() == null || held.file_type().is_fifo();
                assert!(nothing, "{pid} {number}: {held:?}");
            }
        }
        lab.skep(["rm", "--discard", "s"]).run().ok();
        run.wait().unwrap();
        wait_for_empty("processes", 10, || outside::processes_of(&lab.root));
        lab.audit_leftovers();
    });
}

/// What a keeper that waited is told travels as bytes: nothing of it is lost.
#[test]
fn what_is_sent_to_it_is_what_would_have_been_inherited() {
    use std::os::unix::ffi::OsStrExt as _;
    let odd = std::ffi::OsStr::from_bytes(b"od\xffd \n$x");
    for_both(|lab: &Lab| {
        let project = lab.root.join(odd);
        lab.write(project.join("a"), "a\n");
        lab.write(project.join("b/.env"), "S=secret\n");
        let script = "umask; cat a; ls -A b; printenv ODD";
        let line = ["run", "--env", "ODD=\u{1f41d} \"x\"\\", "--", "sh", "-c", script];
        let run = || lab.skep(line).directory(&project).run().ok().text();
        let first = run();
        assert_eq!(first, run());
        assert!(first.ends_with("a\n\u{1f41d} \"x\"\\"), "{first}");
        assert!(!first.contains(".env"), "{first}");
        lab.audit_leftovers();
    });
}

/// Runs until what a start finds out is remembered: from then on everything is begun ahead.
fn warm(lab: &Lab) {
    lab.run_script("true").run().ok();
}

/// What is made ahead of a command is no sign that there was one: whoever comes later takes it all away.
#[test]
fn a_run_that_dies_with_its_keeper_before_it_is_ready_leaves_no_sandbox() {
    for_both(|lab| {
        warm(lab);
        for _ in 0..3 {
            let mut run = lab.run_script("true").env("SKEP_FAILPOINT", "create.ready=stop").spawn();
            wait_for("the keeper to be nearly up", 20, || {
                let mut all = outside::processes_of(&lab.root).into_iter();
                all.find(|one| outside::state_of(one.pid as u32) == Some('T'))
            });
            outside::kill_all(&lab.root);
            run.wait().unwrap();
            wait_for_empty("processes", 10, || outside::processes_of(&lab.root));
            assert_eq!(lab.sandboxes(), Vec::<serde_json::Value>::new());
        }
        lab.audit_leftovers();
    });
}

/// Its fences were on before it was known what it would be.
#[test]
fn a_command_that_was_born_ahead_is_fenced_like_any_other() {
    let script = "grep -E '^(NoNewPrivs|Seccomp|Cap|Sig|Cpus_allowed|Umask|Groups)' /proc/self/status; cat /proc/self/limits; \
                  cut -d: -f1 /proc/net/dev; ls /proc/self/fd; pwd; id; unshare -m true; echo $?; dmesg; echo $?; ps -o pid,sid,args";
    for_both(|lab| {
        warm(lab);
        lab.create("s");
        let of_exec = lab.exec_script("s", script).run();
        let of_run = lab.run_script(script).run();
        // The programs that print this may be other numbers.
        let shown = |ran: &crate::harness::Ran| {
            let text = ran.text();
            let plain = text.lines().filter(|line| !line.contains("ps -o"));
            plain.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(shown(&of_run), shown(&of_exec));
        let text = of_run.text();
        for held in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000"] {
            assert!(text.contains(held), "{held}: {text}");
        }
        lab.skep(["rm", "s"]).run().ok();
        lab.audit_leftovers();
    });
}

/// It begins in the host's network, and has its own before anything runs there.
#[test]
fn the_hosts_network_is_out_of_reach_of_what_was_begun_ahead() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let knock = format!("exec 3<>/dev/tcp/127.0.0.1/{}", listener.local_addr().unwrap().port());
    let outside = Command::new("bash").args(["-c", &knock]).status().unwrap();
    assert!(outside.success(), "the control could not connect");
    let own = std::fs::read_link("/proc/self/ns/net").unwrap();
    for_both(|lab| {
        warm(lab);
        for _ in 0..3 {
            assert_eq!(lab.skep(["run", "--", "bash", "-c", &knock]).run().code(), 1);
            let inside = lab.skep(["run", "--", "readlink", "/proc/self/ns/net"]).run().ok();
            assert_ne!(inside.text(), own.to_str().unwrap());
        }
        lab.create("s");
        assert_eq!(lab.skep(["exec", "s", "--", "bash", "-c", &knock]).run().code(), 1);
        lab.skep(["rm", "s"]).run().ok();
        lab.audit_leftovers();
    });
}

/// What was forked before it let go of its caller shows nothing of it to those inside.
#[test]
fn nothing_of_the_caller_is_left_in_what_was_begun_ahead() {
    let device = |path: &str| std::fs::metadata(path).unwrap().rdev();
    // The second makes an ordinary user's init useless that waits for its plan.
    let users: [&[&str]; 2] = [&[], &["--user", "root"]];
    let with = |lab: &Lab, user: &[&str]| {
        lab.skep(["run"].iter().chain(user).chain(&["--", "true"])).run().ok();
        let canary = "a-word-of-the-caller";
        let script = "echo x > begun; exec sleep 66665";
        let script = format!("{script} # {canary}");
        let run = lab.skep(["run"].iter().chain(user)).args(["--", "sh", "-c", &script]);
        let mut run = run.env("WORD", canary).spawn();
        let sandbox = wait_for("the sandbox", 20, || {
            lab.sandboxes().pop().filter(|row| row["state"] == "ready")
        });
        let id = sandbox["id"].as_str().unwrap();
        let begun = lab.state.join("sandboxes").join(id).join("upper/begun");
        wait_for("its command", 20, || begun.exists().then_some(()));
        let held = outside::processes_of(&lab.root).into_iter().map(|one| one.pid);
        // The command line itself may say what it was told; a command's words are seen by whoever is inside with it.
        let others = held.filter(|pid| *pid != run.id() as i32);
        let ours = others.filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            !line.starts_with(b"sleep") && !line.starts_with(b"sh\0")
        });
        let ours: Vec<i32> = ours.collect();
        assert!(ours.len() >= 2, "keeper and init: {ours:?}");
        for pid in ours {
            for file in ["cmdline", "environ"] {
                let path = format!("/proc/{pid}/{file}");
                let text = std::fs::read(&path).unwrap();
                let text = String::from_utf8_lossy(&text);
                assert!(!text.contains(canary), "{path}: {text}");
            }
            for number in 0..3 {
                let path = format!("/proc/{pid}/fd/{number}");
                assert_eq!(device(&path), device("/dev/null"), "{path}");
            }
        }
        lab.skep(["rm", "--discard", id]).run().ok();
        run.wait().unwrap();
        wait_for_empty("processes", 10, || outside::processes_of(&lab.root));
    };
    for_both(|lab| {
        users.iter().for_each(|user| with(lab, user));
        lab.audit_leftovers();
    });
}
