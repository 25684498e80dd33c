//! What a process inside is: ids, capabilities, masks, terminals.

use crate::harness::{Kind, Lab, Terminal, for_both, outside};

/// One field of `/proc/self/status` inside.
fn status(text: &str, field: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field} in {text}")).trim().to_owned()
}

#[test]
fn proc_5_no_capability_no_new_privileges_a_filter_and_mapped_ids() {
    for_both(|lab| {
        let ran =
            lab.run_script("cat /proc/self/status; cat /proc/self/uid_map /proc/self/setgroups");
        let text = ran.run().ok().text();
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(status(&text, set), "0000000000000000", "{set}");
        }
        assert_eq!(status(&text, "NoNewPrivs"), "1");
        assert_eq!(status(&text, "Seccomp"), "2");
        assert_eq!(status(&text, "Groups"), "");
        let (uid, _) = lab.who.ids();
        let map: Vec<&str> = text.lines().rev().nth(1).unwrap().split_whitespace().collect();
        // Root is nobody outside; a user is itself and can be nobody else.
        let expected = match uid {
            0 => vec!["0".to_owned(), 0x7000_0000.to_string(), "65536".to_owned()],
            uid => vec![uid.to_string(), uid.to_string(), "1".to_owned()],
        };
        assert_eq!(map, expected);
        if !lab.who.is_root() {
            assert_eq!(text.lines().last(), Some("deny"));
        }
        // Control: outside, the same user has a bounding set.
        let outside = lab.program("cat").arg("/proc/self/status").run().ok().text();
        assert_ne!(status(&outside, "CapBnd"), "0000000000000000");
    });
}

#[test]
fn proc_6_a_setuid_program_gains_nothing_inside() {
    for_both(|lab| {
        lab.write("x", "");
        let script = "cp /usr/bin/id mine && chmod 4755 mine && ./mine -u; id -u; \
            stat -c %a mine; for f in su sudo passwd mount; do p=$(command -v $f) || continue; \
            stat -c '%u %a' $p; done; su -c 'echo became' </dev/null; sudo -n echo became; true";
        let ran = lab.skep(["run", "--name", "s", "--", "sh", "-c", script]).run().ok();
        let text = ran.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], lines[1], "a setuid copy has another user: {}", ran.describe());
        assert!(!text.contains("became"), "{}", ran.describe());
        // The bit is shown in the review.
        let diff = lab.diff("s");
        let change = diff["changes"].as_array().unwrap().iter().find(|one| one["path"] == "mine");
        assert_ne!(change.unwrap()["risk"], "none", "{diff}");
    });
}

#[test]
fn fs_8_special_bits_are_shown_and_do_not_come_out() {
    for_both(|lab| {
        lab.write("tool", "#!/bin/sh\nid -u\n");
        let script = "cp /usr/bin/id user && chmod 4755 user && cp /usr/bin/id group && \
            chmod 2755 group && mkdir sticky && chmod 3777 sticky && touch sticky/f && chmod 4755 tool";
        lab.skep(["run", "--name", "s", "--", "sh", "-c", script]).run().ok();
        let diff = lab.diff("s");
        for path in ["user", "group", "tool", "sticky"] {
            let change = diff["changes"].as_array().unwrap().iter().find(|one| one["path"] == path);
            let change = change.unwrap_or_else(|| panic!("{path} is not in {diff}"));
            assert!(["ask", "block"].contains(&change["risk"].as_str().unwrap()), "{change}");
        }
        let words = ["approve", "s", "--allow-risky", "user", "--allow-risky", "group"];
        lab.skep(words).args(["--allow-risky", "tool", "--allow-risky", "sticky"]).run().ok();
        // (On a directory, the bit only says whose group new files have.)
        for (path, node) in lab.tree().nodes.iter().filter(|(_, node)| node.kind == Kind::File) {
            assert_eq!(node.mode & 0o6000, 0, "{path:?} came out with {:o}", node.mode);
        }
        assert!(lab.tree().get("user").is_some(), "nothing was applied");
        // Control: a plain copy keeps the bit.
        lab.program("sh").args(["-c", "cp /usr/bin/id ../kept && chmod 4755 ../kept"]).run().ok();
        let kept = std::fs::metadata(lab.root.join("kept")).unwrap();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&kept.permissions()) & 0o4000, 0o4000);
    });
}

/// Masks are judged by what stands there, not by whether a mount was made: an empty file of the
/// kernel's own would look the same to a reader.
#[test]
fn proc_4_masks_are_the_null_device_and_read_only_trees() {
    for_both(|lab| {
        let script = "for f in keys kmsg timer_list interrupts key-users; do \
            [ -e /proc/$f ] && stat -Lc '%n %t:%T' /proc/$f; done; \
            awk '$5 ~ \"^/proc/\" { print $5, $6 }' /proc/self/mountinfo";
        let text = lab.run_script(script).run().ok().text();
        let masked: Vec<&str> = text.lines().filter(|line| line.contains(':')).collect();
        assert!(!masked.is_empty());
        assert!(masked.iter().all(|line| line.ends_with(" 1:3")), "{masked:?}");
        for place in ["/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs"] {
            let line = text.lines().find(|line| line.starts_with(&format!("{place} ")));
            assert!(line.is_some_and(|line| line.contains(" ro,")), "{place}: {line:?}");
        }
    });
}

/// The processes of a sandbox: the program, and number 1, which tells nothing of how skep was
/// called.
#[test]
fn proc_2_number_one_tells_nothing_of_the_callers_command_line() {
    for_both(|lab| {
        let token = format!("token{}", &lab.canary.text[10..]);
        let secret = format!("--label=token={token}");
        let script = "tr '\\0' ' ' < /proc/1/cmdline; for p in /proc/[0-9]*; do \
            tr '\\0' ' ' < $p/cmdline; cat $p/environ; done 2>/dev/null";
        let ran = lab.skep(["run", &secret, "--", "sh", "-c", script]).run().ok();
        assert!(!lab.canary.is_in(&ran.stdout), "{}", ran.describe());
        assert!(!ran.text().contains(&token), "{}", ran.describe());
        let state = lab.state.display().to_string();
        assert!(!ran.text().contains(&state), "{}", ran.describe());
    });
}

#[test]
fn proc_9_the_terminal_inside_is_another_one() {
    for_both(|lab| {
        if !lab.who.is_root() {
            // The harness's terminal belongs to root; the pty inside is made the same way.
            return;
        }
        let script = "tty; ls /dev/pts; stat -c %d /dev/pts; echo done";
        let mut terminal =
            Terminal::start(lab.skep(["run", "-t", "--", "sh", "-c", script]), 24, 80);
        terminal.wait_to_show("done");
        terminal.end();
        let screen = terminal.screen();
        assert!(screen.contains("/dev/pts/0"), "{screen}");
        let device = std::os::unix::fs::MetadataExt::dev(&std::fs::metadata("/dev/pts").unwrap());
        assert!(!screen.lines().any(|line| line.trim() == device.to_string()), "{screen}");
    });
}

/// A process that outlives its exec keeps no terminal, and none of skep's descriptors.
#[test]
fn proc_9_a_background_process_does_not_keep_a_terminal() {
    for_both(|lab: &Lab| {
        lab.create("s");
        lab.exec_script("s", "setsid sleep 4714 </dev/null >/dev/null 2>&1 &").run().ok();
        let sleeper = crate::harness::wait_for("the sleeper", 5, || {
            let all = outside::processes_of(&lab.root);
            let line = |pid: i32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            all.into_iter().find(|one| line(one.pid).starts_with(b"sleep\x004714"))
        });
        let directory = format!("/proc/{}/fd", sleeper.pid);
        let links = std::fs::read_dir(directory).unwrap().flatten();
        let links: Vec<_> = links.map(|entry| std::fs::read_link(entry.path()).unwrap()).collect();
        assert_eq!(links, vec![std::path::PathBuf::from("/dev/null"); 3]);
    });
}
