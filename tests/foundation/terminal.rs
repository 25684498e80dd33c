//! Programs on a real terminal: its size, its keys, and how it is left behind.

use crate::harness::{Lab, Terminal, for_both, wait_for_empty};

fn start(lab: &Lab, script: &str) -> Terminal {
    Terminal::start(lab.skep(["run", "-t", "--", "sh", "-c", script]), 33, 101)
}

#[test]
fn run_on_a_terminal_has_its_size_and_one_of_its_own() {
    for_both(|lab| {
        let script = "test -t 0 && test -t 1 && test -t 2 && stty size && tty; exit 5";
        let mut terminal = start(lab, script);
        terminal.wait_to_show("33 101");
        terminal.wait_to_show("/dev/pts/");
        assert_eq!(terminal.end().code(), Some(5), "{}", terminal.screen());
    });
}

#[test]
fn ctrl_c_reaches_the_program() {
    for_both(|lab| {
        let script =
            "trap 'echo INTERRUPTED; exit 9' INT; echo READY; while :; do sleep 0.05; done";
        let mut terminal = start(lab, script);
        terminal.wait_to_show("READY");
        terminal.type_in("\x03");
        terminal.wait_to_show("INTERRUPTED");
        assert_eq!(terminal.end().code(), Some(9));
        // And ends one that does not care, with the code of the signal.
        let mut terminal = start(lab, "echo READY; exec sleep 1000");
        terminal.wait_to_show("READY");
        terminal.type_in("\x03");
        assert_eq!(terminal.end().code(), Some(130), "{}", terminal.screen());
    });
}

#[test]
fn resizing_reaches_the_program() {
    for_both(|lab| {
        let script = "trap 'stty size' WINCH; echo READY; until test -e done; do sleep 0.05; done";
        let terminal = start(lab, script);
        terminal.wait_to_show("READY");
        terminal.resize(44, 122);
        terminal.wait_to_show("44 122");
        terminal.resize(20, 60);
        terminal.wait_to_show("20 60");
    });
}

#[test]
fn ctrl_z_stops_a_job_of_the_shell_inside() {
    for_both(|lab| {
        lab.create("s");
        let mut terminal = Terminal::start(lab.skep(["shell", "s"]), 24, 80);
        terminal.type_in("set -m; echo RE''ADY\n");
        terminal.wait_to_show("READY");
        terminal.type_in("sh -c 'echo LOOP''ING; exec sleep 1000'\n");
        terminal.wait_to_show("LOOPING");
        terminal.type_in("\x1a");
        terminal.type_in("echo AFT''ER; jobs\n");
        terminal.wait_to_show("AFTER");
        terminal.wait_to_show("Stopped");
        // A shell with stopped jobs wants to hear it twice.
        terminal.type_in("exit 4\nexit 4\n");
        assert_eq!(terminal.end().code(), Some(4), "{}", terminal.screen());
    });
}

#[test]
fn the_terminal_is_left_as_it_was_found() {
    for_both(|lab| {
        let mut terminal = start(lab, "echo READY; read line; stty raw -echo; exit 3");
        let before = Terminal::start(lab.program("true"), 24, 80).modes();
        terminal.wait_to_show("READY");
        assert_ne!(terminal.modes(), before, "the keys of the host's terminal are passed on raw");
        terminal.type_in("typed\r");
        assert_eq!(terminal.end().code(), Some(3));
        assert_eq!(terminal.modes(), before);
        // Also when skep is ended by a signal.
        let mut terminal = start(lab, "echo READY; exec sleep 1000");
        terminal.wait_to_show("READY");
        terminal.type_in("\x03");
        terminal.end();
        assert_eq!(terminal.modes(), before);
    });
}

#[test]
fn keys_and_colours_pass_unchanged() {
    for_both(|lab| {
        let script =
            "stty raw -echo; echo READY; head -c 6 | od -An -tx1; printf '\\033[31mred\\033[0m'";
        let mut terminal = start(lab, script);
        terminal.wait_to_show("READY");
        terminal.type_in("\x1b[A\x7f\x04\x00");
        terminal.wait_to_show("1b 5b 41 7f 04 00");
        terminal.wait_to_show("\x1b[31mred\x1b[0m");
        terminal.end();
    });
}

/// The harness's calls have an empty standard input that is at its end from the start.
#[test]
fn input_that_has_ended_ends_on_a_terminal_too() {
    for_both(|lab| {
        lab.create("s");
        lab.skep(["run", "-t", "--", "cat"]).within(20).run().ok();
        for _ in 0..5 {
            lab.skep(["exec", "-t", "s", "--", "cat"]).within(20).run().ok();
        }
        // A line that was not finished, and more readers than one.
        let exec = ["exec", "-t", "s", "--", "sh", "-c", "cat; read line; cat; echo; echo OVER"];
        let text = lab.skep(exec).input("no newline").within(20).run().ok().text();
        assert!(text.contains("no newline") && text.contains("OVER"), "{text}");
        // A shell that sets the modes of its terminal, and one that starts only later.
        let shell = "sleep 0.3; exec bash --norc -i";
        lab.skep(["exec", "-t", "s", "--", "sh", "-c", shell]).within(20).run().ok();
    });
}

#[test]
fn a_shell_without_a_terminal_reads_its_commands_and_ends() {
    for_both(|lab| {
        lab.create("s");
        lab.skep(["shell", "s"]).within(20).run().ok();
        let typed = "test -t 0 || echo PLAIN\nexit 6\n";
        let ran = lab.skep(["shell", "s"]).input(typed).within(20).run().exits(6);
        assert_eq!(ran.text(), "PLAIN");
    });
}

#[test]
fn who_ends_skep_ends_the_shell_on_its_terminal() {
    for_both(|lab| {
        lab.create("s");
        let shell = |line: &[&str], command: &str| {
            let mut terminal = Terminal::start(lab.skep(line), 24, 80);
            terminal.type_in(command);
            terminal.wait_to_show("READY");
            terminal.signal(rustix::process::Signal::TERM);
            terminal.end().code()
        };
        // It ignores the first signal, and not that its terminal was hung up.
        assert_eq!(shell(&["shell", "s"], "echo RE''ADY\n"), Some(129));
        let deaf = "trap '' TERM HUP; echo RE''ADY; exec sleep 4781";
        assert_eq!(shell(&["exec", "-t", "s", "--", "sh", "-c", deaf], ""), Some(137));
        wait_for_empty("processes of ended execs", 10, || {
            let execs = lab.skep(["ps", "s", "--json"]).run().ok().json();
            let execs = execs.as_array().cloned().unwrap_or_default();
            execs.into_iter().filter(|exec| exec["running"] == true).collect()
        });
    });
}
