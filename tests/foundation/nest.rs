//! A keeper is begun before it is known what for; it is used, or gone, and nobody can tell which.

use crate::harness::{Lab, for_both, outside, wait_for, wait_for_empty};

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
        lab.create("s");
        assert_eq!(seen(&["exec", "s", "--", "cat", ALLOWED]), own);
        for pid in lab.keepers() {
            let keeper = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            assert_eq!(allowed(&keeper), own, "the keeper's own");
        }
        lab.skep(["rm", "s"]).run().ok();
        lab.audit_leftovers();
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
        let refused: [&[&str]; 4] = [
            &["run", "--"],
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
