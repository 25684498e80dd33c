//! Programs on a real terminal: its size, its keys, and how it is left behind.

use crate::harness::{Lab, Terminal, for_both};

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
