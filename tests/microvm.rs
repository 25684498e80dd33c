//! Commands in a guest with its own kernel: the same review, the same ends, and nothing left.
//!
//! Each test boots at least one guest in software, so they run one at a time.

use crate::egress::everywhere::the_way_out;
use crate::foundation::another;
use crate::harness::{Call, Lab, Who, for_both, for_each, wait_for};
use serde_json::Value;

/// Changes of every kind that the review knows.
const CHANGES: &str = "echo new > new.txt; echo more >> a.txt; rm keep.txt; chmod 755 d/x; \
    rm -r d/sub; mkdir d/sub; echo z > d/sub/z; ln -s d other; printf '\\0bin' > bin; \
    mkdir empty; rm link; echo file > link";

fn plant(lab: &Lab) {
    lab.write("a.txt", "one\ntwo\n");
    lab.write("keep.txt", "keep\n");
    lab.write("d/x", "x\n");
    lab.write("d/sub/y", "y\n");
    std::os::unix::fs::symlink("a.txt", lab.project.join("link")).unwrap();
    lab.own_below(&lab.project);
}

fn create(lab: &Lab, name: &str) {
    create_with(lab, name, &[]);
}

fn create_with(lab: &Lab, name: &str, flags: &[&str]) {
    let line = ["create", "--provider", "microvm", name];
    lab.skep(line).args(flags).env("SKEP_MICROVM_EMULATION", "1").within(240).run().ok();
}

/// Pids of a program that belong to this lab: started below one of its keepers.
fn below_keepers(lab: &Lab, program: &str) -> Vec<i32> {
    let parent = |pid: i32| -> Option<i32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
    };
    let keepers = lab.keepers();
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    all.filter(|pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim().starts_with(program)
            && parent(*pid).and_then(parent).is_some_and(|keeper| keepers.contains(&keeper))
    })
    .collect()
}

/// What works there works on the guest's own kernel; the table in SECURITY.md names it.
#[test]
fn heavy_proc_4_to_12_ways_out_end_in_the_guest() {
    for_each([Who::root()], |lab| crate::providers::attacks::assert_as_said(lab, "microvm"));
}

#[test]
fn heavy_the_same_changes_have_the_same_digest_in_a_guest() {
    for_both(|lab| {
        plant(lab);
        let changes = format!("{CHANGES}\n{}", crate::foundation::change_matrix::plant(lab));
        lab.skep(["run", "--name", "plain", "--", "sh", "-c", &changes]).run().ok();
        let script = format!("uname -r; {changes}");
        let line = ["run", "--name", "guest", "--provider", "microvm", "--", "sh", "-c", &script];
        let ran = lab.skep(line).env("SKEP_MICROVM_EMULATION", "1").within(240).run().ok();
        let host = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        assert_ne!(ran.text().trim(), host.trim(), "the command ran on the host's kernel");
        let (plain, guest) = (lab.diff("plain"), lab.diff("guest"));
        assert_eq!(plain["digest"], guest["digest"], "{plain:#}\n{guest:#}");
        let shown: Value = lab.skep(["show", "guest", "--json"]).run().ok().json();
        assert_eq!(shown["enforcement"]["kernel"]["enforced"], true);
        let shown: Value = lab.skep(["show", "plain", "--json"]).run().ok().json();
        assert_eq!(shown["enforcement"]["kernel"]["enforced"], false);
        lab.skep(["approve", "guest"]).run().ok();
        assert_eq!(std::fs::read_to_string(lab.project.join("a.txt")).unwrap(), "one\ntwo\nmore\n");
    });
}

fn facts(lab: &Lab, name: &str) -> Value {
    lab.skep(["show", name, "--json"]).run().ok().json()["provider_facts"].clone()
}

/// Two at once. What is told of each is what was seen when it booted, whatever the settings say now.
#[test]
fn heavy_show_tells_of_the_machines_that_were_booted() {
    for_each([Who::user()], |lab| {
        create(lab, "a");
        let first = facts(lab, "a");
        let kernel = first["kernel"].as_str().unwrap().to_owned();
        let named = ("SKEP_PROVIDER_MICROVM_KERNEL", kernel.as_str());
        let line = ["create", "--provider", "microvm", "--memory", "900M", "b"];
        let call = lab.skep(line).env("SKEP_MICROVM_EMULATION", "1").env(named.0, named.1);
        call.within(240).run().ok();
        let second = facts(lab, "b");
        let machines = below_keepers(lab, "qemu-system");
        for facts in [&first, &second] {
            let pid: i32 = facts["vm_pid"].as_str().unwrap().parse().unwrap();
            assert!(machines.contains(&pid), "{facts} {machines:?}");
            assert!(facts["version"].as_str().unwrap().starts_with("QEMU emulator"), "{facts}");
            assert_eq!(facts["accelerator"], "tcg", "{facts}");
            assert_eq!(facts["kernel"], kernel.as_str());
        }
        assert_ne!(first["vm_pid"], second["vm_pid"]);
        assert_ne!(first["guest_boot"], second["guest_boot"]);
        assert_eq!(second["guest_memory"], "900 MiB");
        for (name, seen) in [("a", &first), ("b", &second)] {
            let script =
                "uname -r; cat /proc/sys/kernel/random/boot_id; echo $$ > mine; cat mine > own";
            let told = lab.exec_script(name, script).within(60).run().ok().text();
            let said = format!("{}\n{}", seen["guest_kernel"], seen["guest_boot"]).replace('"', "");
            assert_eq!(told, said, "{name}");
            assert_eq!(lab.diff(name)["changes"].as_array().unwrap().len(), 2);
        }
        lab.skep(["stop", "a"]).run().ok();
        assert_eq!(facts(lab, "a").as_object().map_or(0, serde_json::Map::len), 0);
        assert_eq!(lab.exec_script("b", "echo still").within(60).run().ok().text(), "still");
    });
}

#[test]
fn heavy_crash_8_res_10_a_guest_under_a_server_that_is_killed() {
    for_each([Who::user()], |lab| {
        create(lab, "s");
        crate::server::crash::an_exec_outlives_the_server(lab);
        crate::isolation::limits::what_ignores_signals_is_ended_in_time(lab, "s");
    });
}

/// A share that is not this view is none: the guest reads what the host has put there a moment ago.
#[test]
fn heavy_clean_8_a_guest_that_sees_another_tree_is_not_taken() {
    for_each([Who::user()], |lab| {
        lab.write("file", "one\n");
        // Another tree; this one, and in it an empty directory in the place of the workspace.
        for fault in ["machine.nonce=eio", "machine.share=eio"] {
            let line = ["create", "--provider", "microvm", "s"];
            let call = lab.skep(line).env("SKEP_MICROVM_EMULATION", "1").within(240);
            let refused = call.env("SKEP_FAILPOINT", fault).run().exits(5);
            refused.says("another machine answered");
            assert!(lab.sandboxes().is_empty());
            lab.audit_leftovers();
        }
    });
}

/// Whoever is root in a guest writes to its console without end: the beginning and the end are kept.
#[test]
fn heavy_a_console_that_is_flooded_does_not_grow() {
    for_each([Who::root()], |lab| {
        let script = "#!/bin/sh\nmkdir -p /tmp/d && mount -t devtmpfs dev /tmp/d\n\
            i=0; while [ $i -lt 20 ]; do yes \"flood $i\" | head -c 65536; i=$((i+1)); done > /tmp/d/ttyS0\n\
            echo THE-LAST-WORD > /tmp/d/ttyS0\ntouch /tmp/flooded\n";
        lab.write("flood.sh", script);
        create(lab, "s");
        let directory = lab.state.join("sandboxes").join(lab.sandbox("s")["id"].as_str().unwrap());
        let size =
            |name: &str| std::fs::metadata(directory.join(name)).map_or(0, |file| file.len());
        let project = lab.project.display();
        let attack = format!(
            "echo '|/bin/sh {project}/flood.sh' > /proc/sys/kernel/core_pattern; sh -c 'kill -SEGV $$'; \
             i=0; while [ ! -e /tmp/flooded ] && [ $i -lt 200 ]; do sleep 0.5; i=$((i+1)); done; ls /tmp/flooded"
        );
        let ran = lab.exec_script("s", &attack).within(150).run();
        assert!(
            ran.text().contains("/tmp/flooded"),
            "the control: {} {}",
            ran.text(),
            ran.errors()
        );
        wait_for("the last word", 60, || {
            let tail = std::fs::read(directory.join("console-tail.log")).unwrap_or_default();
            let said = String::from_utf8_lossy(&tail).into_owned();
            said.contains("THE-LAST-WORD").then_some(())
        });
        let (head, tail) = (size("console.log"), size("console-tail.log"));
        assert!(head == 256 << 10 && tail <= 256 << 10 && tail > 64 << 10, "{head} {tail}");
    });
}

/// The kernel that is named is taken or refused, with what helps.
#[test]
fn a_kernel_that_the_settings_name_wrongly_is_refused() {
    for_each([Who::user()], |lab| {
        let file = lab.write("vmlinuz-1", "no kernel");
        for named in ["/nowhere/vmlinuz-1", "vmlinuz-1", file.to_str().unwrap()] {
            let line = ["create", "--provider", "microvm", "s"];
            let call = lab.skep(line).env("SKEP_PROVIDER_MICROVM_KERNEL", named);
            let refused = call.env("SKEP_MICROVM_EMULATION", "1").run().exits(5);
            refused.says("provider.microvm.kernel").says("lib/modules");
        }
        lab.audit_leftovers();
    });
}

/// The root filesystem of an image is the guest's; the project, the home and what skep says are as everywhere.
#[test]
fn heavy_a_guest_sees_the_system_of_its_image() {
    use crate::providers::images;
    for_both(|lab| {
        images::import(lab, &images::tree(lab, "small"), "small:1");
        lab.write("file", "one\n");
        lab.write(".env", "SECRET=1\n");
        create_with(lab, "s", &["--image", "small:1"]);
        let script = "cat /etc/only-here /etc/resolv.conf; ls -a; ls / /usr; echo two >> file; \
            touch /etc/x || echo shut; touch /tmp/a /var/tmp/a $HOME/a && cat file";
        let ran = lab.exec_script("s", script).within(60).run();
        let said = ran.text();
        let says = ["in the image", "no network", ".\n..\nfile\n", "shut\none\ntwo"];
        assert!(says.iter().all(|word| said.contains(word)), "{said} {}", ran.errors());
        for word in ["SECRET", ".env", ".skep", "usr\n"] {
            assert!(!said.contains(word), "{word} in {said}");
        }
        images::image(lab, &["rm", "small:1"]).run().exits(4).says("in use");
        lab.skep(["run", "--name", "t", "--", "sh", "-c", "echo two >> file"]).run().ok();
        assert_eq!(lab.diff("s")["digest"], lab.diff("t")["digest"]);
    });
}

#[test]
fn heavy_execs_in_a_guest_end_as_elsewhere() {
    for_both(|lab| {
        let sub = lab.directory("sub");
        create_with(lab, "s", &["--workdir", "sub"]);
        assert_eq!(lab.skep(["exec", "s", "--", "pwd"]).run().ok().text(), sub.to_str().unwrap());
        let named = ["exec", "s", "--workdir", "/", "--", "pwd"];
        assert_eq!(lab.skep(named).run().ok().text(), "/");
        let nowhere = ["exec", "s", "--workdir", "/nowhere", "--", "pwd"];
        lab.skep(nowhere).run().exits(125).says("/nowhere");
        assert_eq!(lab.exec_script("s", "exit 7").run().code(), 7);
        assert_eq!(lab.skep(["exec", "s", "--", "/nonexistent"]).run().code(), 127);
        assert_eq!(lab.skep(["exec", "s", "--", "/etc/passwd"]).run().code(), 126);
        assert_eq!(lab.exec_script("s", "kill -9 $$").run().code(), 137);
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
        let back = lab.skep(["exec", "-i", "s", "--", "cat"]).input(bytes.clone()).run().ok();
        assert!(back.stdout == bytes, "{} bytes came back", back.stdout.len());
        // The end of input on a terminal: of a line that was not finished, for every reader.
        let script = ["exec", "-t", "s", "--", "sh", "-c", "cat; read line; echo; echo OVER"];
        let text = lab.skep(script).input("no newline").run().ok().text();
        assert!(text.contains("no newline") && text.contains("OVER"), "{text}");
        lab.skep(["exec", "-t", "s", "--", "cat"]).run().ok();
        let line =
            ["exec", "s", "--timeout", "3s", "--json", "--", "sh", "-c", "echo part; sleep 99"];
        let ran = lab.skep(line).run();
        assert_eq!(ran.code(), 124);
        let end: Value = ran.json();
        assert_eq!(
            (end["reason"].as_str(), end["stdout"].as_str()),
            (Some("timeout"), Some("part\n"))
        );
        // The machine outlives an exec that was ended.
        assert_eq!(lab.exec_script("s", "echo still; hostname").run().ok().text(), "still\ns");
        // Nobody special inside, and none of the machine's devices.
        let status =
            lab.exec_script("s", "grep -E 'CapEff|NoNewPrivs' /proc/self/status").run().ok();
        assert!(status.text().contains("0000000000000000") && status.text().contains("1"));
        assert_eq!(lab.exec_script("s", "ls /dev/vport* /dev/mem 2>/dev/null").run().text(), "");
        let interfaces =
            lab.exec_script("s", "cat /proc/net/dev | tail -n +3 | cut -d: -f1").run().ok();
        assert_eq!(interfaces.text().trim(), "lo");
        crate::server::files::links_lead_nowhere(lab);
    });
}

#[test]
fn heavy_a_diff_of_a_busy_guest_is_one_moment() {
    for_each([Who::user()], |lab| {
        create(lab, "m");
        let script = "i=0; while :; do i=$((i+1)); echo $i > one; echo $i > two; done";
        lab.skep(["exec", "-d", "m", "--", "sh", "-c", script]).run().ok();
        wait_for("both files", 60, || {
            let changes = lab.diff("m");
            changes["changes"].as_array().filter(|changes| changes.len() == 2).map(drop)
        });
        for _ in 0..5 {
            let changes = lab.diff("m");
            let number = |index: usize| -> i64 {
                let lines = &changes["changes"][index]["hunks"][0]["lines"][0];
                let digits: String = lines
                    .as_str()
                    .unwrap_or_default()
                    .chars()
                    .filter(char::is_ascii_digit)
                    .collect();
                digits.parse().unwrap_or(-1)
            };
            let (one, two) = (number(0), number(1));
            // A file may be caught empty, between being cut and being written.
            if one >= 0 && two >= 0 {
                assert!(one == two || one == two + 1, "{one} and {two} were never there together");
            }
        }
    });
}

/// Changes a file through a shared mapping: the bytes stay in the guest until it writes them back.
const MAPPED: &str = "import mmap, sys
f = open('mm', 'r+b'); m = mmap.mmap(f.fileno(), 4)
m[0:4] = b'NEW\\n'; open('mm.done-' + sys.argv[1], 'w').close()
import time; time.sleep(1000)";

/// Runs it detached, and asks for the diff as soon as it has written.
fn a_mapped_write_is_in_the_diff(lab: &Lab, times: &str) {
    lab.exec_script("m", "echo OLD > mm").run().ok();
    let line = ["exec", "-d", "m", "--", "/usr/bin/python3", "-c", MAPPED, times];
    lab.skep(line).run().ok();
    let done =
        format!("for i in $(seq 600); do [ -e mm.done-{times} ] && exit; sleep 0.1; done; exit 1");
    lab.exec_script("m", &done).within(120).run().ok();
    let text = lab.skep(["diff", "m", "mm"]).within(120).run().ok().text();
    assert!(text.contains("+NEW"), "the diff was taken before the guest had written back: {text}");
}

/// The guest obeys an order that was given up on when it gets to it, and answers. That is no answer to
/// the next order.
#[test]
fn heavy_a_pause_that_timed_out_does_not_stand_for_the_next() {
    if std::env::var_os("SKEP_TEST_LONG").is_none() {
        return; // Two minutes; the numbers are held by a unit test of skep-machine.
    }
    for_each([Who::user()], |lab| {
        create(lab, "m");
        a_mapped_write_is_in_the_diff(lab, "before");
        let pid = rustix::process::Pid::from_raw(below_keepers(lab, "qemu-system")[0]).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        let late = lab.skep(["diff", "m"]).within(120).run();
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
        assert_eq!(late.code(), 1, "{}", late.errors());
        assert!(late.errors().contains("does not stand still"), "{}", late.errors());
        a_mapped_write_is_in_the_diff(lab, "after");
    });
}

#[test]
fn heavy_a_machine_that_dies_takes_its_sandbox_along_and_can_start_again() {
    for_each([Who::user()], |lab| {
        create(lab, "m");
        lab.exec_script("m", "echo kept > kept").run().ok();
        for program in ["qemu-system", "virtiofsd"] {
            let script = format!("echo > runs-{program}; sleep 1000");
            let child = lab.skep(["exec", "m", "--json", "--", "sh", "-c", &script]).spawn();
            let id = lab.sandbox("m")["id"].as_str().unwrap().to_owned();
            let upper = lab.state.join("sandboxes").join(id).join("upper");
            let runs = upper.join(format!("runs-{program}"));
            wait_for("the command", 60, || runs.exists().then_some(()));
            let pids = below_keepers(lab, program);
            assert_eq!(pids.len(), 1, "{program}");
            let pid = rustix::process::Pid::from_raw(pids[0]).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            let killed = std::time::Instant::now();
            let output = child.wait_with_output().unwrap();
            assert!(killed.elapsed().as_secs() < 20, "the end was told late");
            let end: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(["killed", "lost"].contains(&end["reason"].as_str().unwrap()), "{end}");
            wait_for("everything to be gone", 60, || lab.keepers().is_empty().then_some(()));
            let start = lab.skep(["start", "m"]).env("SKEP_MICROVM_EMULATION", "1").within(240);
            start.run().ok();
            assert_eq!(lab.exec_script("m", "cat kept").run().ok().text(), "kept");
        }
    });
}

/// What a guest says of itself: which boot it is, which configuration, how much memory.
fn identity(lab: &Lab) -> (String, String, u64) {
    let script = "cat /proc/sys/kernel/random/boot_id; \
        grep -o 'skep.configuration=[^ ]*' /proc/cmdline; grep -o '[0-9]*' /proc/meminfo | head -1";
    let text = lab.exec_script("m", script).within(60).run().ok().text();
    let mut lines = text.lines().map(str::to_owned);
    let mut next = || lines.next().unwrap();
    (next(), next(), next().parse().unwrap())
}

/// A sandbox made anew is another machine, of what is asked for now; what was half written of the last
/// one is not booted; and nothing in or around it outlives its keeper.
#[test]
fn heavy_clean_6_clean_7_res_11_a_machine_made_anew_is_another_one() {
    for_each([Who::user()], |lab| {
        create_with(lab, "m", &["--memory", "900M"]);
        let daemon = [
            "exec",
            "-d",
            "m",
            "--",
            "sh",
            "-c",
            "setsid sh -c 'sleep 4789 & sleep 4789' & sleep 4789",
        ];
        lab.skep(daemon).run().ok();
        let (before, old) = (identity(lab), below_keepers(lab, "qemu-system")[0]);
        for entry in std::fs::read_dir(lab.state.join("images/initramfs")).unwrap().flatten() {
            std::fs::File::options()
                .write(true)
                .open(entry.path())
                .unwrap()
                .set_len(3 << 20)
                .unwrap();
        }
        create_with(lab, "m", &["--fresh", "--memory", "1200M"]);
        let after = identity(lab);
        assert!(
            !std::path::Path::new(&format!("/proc/{old}")).exists(),
            "the old machine is there"
        );
        assert_ne!(before.0, after.0, "the same boot");
        assert_ne!(before.1, after.1, "the same configuration");
        assert!(before.2 < 900 << 10 && after.2 > 1000 << 10, "{before:?} {after:?}");
        let keepers = lab.keepers();
        assert_eq!(below_keepers(lab, "qemu-system").len(), 1, "the control");
        let around = [below_keepers(lab, "qemu-system"), below_keepers(lab, "virtiofsd")].concat();
        crate::harness::outside::kill(*keepers.iter().min().unwrap());
        let left = || {
            around.iter().copied().filter(|pid| {
                std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
            })
        };
        crate::harness::wait_for_empty("what the machine is made of", 20, || {
            left().collect::<Vec<_>>()
        });
    });
}

#[test]
fn heavy_a_guest_that_runs_out_of_memory_says_so() {
    for_each([Who::user()], |lab| {
        let bomb = "b = []\nwhile True: b.append(b'x' * (50 << 20))";
        let line = [
            "run",
            "--provider",
            "microvm",
            "--memory",
            "1G",
            "--json",
            "--",
            "/usr/bin/python3",
            "-c",
            bomb,
        ];
        let ran = lab.skep(line).env("SKEP_MICROVM_EMULATION", "1").within(240).run();
        let end: Value = ran.json();
        assert_eq!(end["reason"], "oom", "{end}");
        // Also where no cgroup can be written: the guest has no more than that.
        let memory = &end["enforcement"]["memory"];
        assert_eq!(memory["enforced"], true, "{memory}");
    });
}

#[test]
fn emulation_must_be_allowed_and_unknown_things_are_refused() {
    for_both(|lab| {
        let kvm_works = std::env::var_os("SKEP_TEST_KVM_WORKS").is_some();
        if !kvm_works {
            let ran = lab.skep(["run", "--provider", "microvm", "--", "true"]).run();
            assert_eq!(ran.code(), 5);
            assert!(ran.errors().contains("provider.microvm.emulation"), "{}", ran.errors());
        }
        for typed in [vec!["--net", "host"], vec!["--system", "cow"], vec!["--cpu-time", "3s"]] {
            let line =
                ["run", "--provider", "microvm"].into_iter().chain(typed).chain(["--", "true"]);
            let ran = lab.skep(line).env("SKEP_MICROVM_EMULATION", "1").run();
            assert_eq!(ran.code(), 5, "{}", ran.errors());
        }
    });
}

/// Whoever logs in has groups, and cannot give them up in a user namespace of one id.
#[test]
fn heavy_a_caller_with_more_than_one_group_has_a_guest() {
    for_each([Who::user()], |lab| {
        if !Who::root().is_ok_and(Who::is_root) {
            return; // whoever runs the tests has the groups they have
        }
        plant(lab);
        let (uid, gid) = lab.who.ids();
        let line = ["run", "--name", "m", "--provider", "microvm", "--", "sh", "-c", "echo x > x"];
        let plain = lab.skep(line).into_command();
        let mut command = std::process::Command::new("setpriv");
        command.args([format!("--reuid={uid}"), format!("--regid={gid}"), "--groups=4,24".into()]);
        command.arg(plain.get_program()).args(plain.get_args()).env_clear();
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("SKEP_MICROVM_EMULATION", "1").current_dir(&lab.project);
        crate::harness::Call::new(command).within(240).run().ok();
        assert_eq!(lab.diff("m")["changes"][0]["path"], "x");
    });
}

fn the_way_out_of_a_guest(lab: &Lab) {
    let emulated = |call: Call| call.env("SKEP_MICROVM_EMULATION", "1");
    the_way_out(lab, "microvm", &emulated, "the same redirect in it");
}

#[test]
fn heavy_the_way_out_of_a_guest_is_that_of_every_sandbox() {
    for_each([Who::user()], the_way_out_of_a_guest);
    if std::env::var_os("SKEP_TEST_LONG").is_some() {
        for_each([Who::root()], the_way_out_of_a_guest);
    }
}

#[test]
fn heavy_root_works_in_anothers_project_in_a_guest() {
    let Ok(user) = Who::user() else { return crate::harness::skip("no ordinary user") };
    for_each([Who::root()], |lab| {
        crate::harness::plant_every_kind(lab);
        another::give(&lab.project, user.ids());
        another::work_is_the_owners(lab, "s", |script| {
            let words = ["run", "--name", "s", "--provider", "microvm", "--", "sh", "-c", script];
            lab.skep(words).env("SKEP_MICROVM_EMULATION", "1").within(240)
        });
    });
}

/// Run by the guest's kernel as root: what the share has where the guest has mounts of its own.
const AS_GUESTS_ROOT: &str = "#!/bin/sh
exec > PROJECT/said.new 2>&1
mkdir -p /tmp/share; mount -o bind / /tmp/share
grep CapEff /proc/self/status
for name in proc sys dev; do echo \"$name: $(ls /tmp/share/$name | wc -l)\"; done
echo shared: $(ls -d /tmp/share/usr /tmp/share/proc)
sync; mv PROJECT/said.new PROJECT/said
";

/// Whoever is root in the guest asks the share for any path. Where it had the `/proc` of the sandbox, it
/// handed out the memory of QEMU and of the share daemon.
#[test]
fn heavy_fs_15_the_share_has_nothing_of_the_hosts_kernel() {
    for_each([Who::root()], |lab| {
        let project = lab.project.to_str().unwrap();
        lab.write("as-root.sh", AS_GUESTS_ROOT.replace("PROJECT", project));
        create(lab, "m");
        // A guest that root has started lets its commands say who is to look at a crash, as root.
        let script = format!(
            "echo '|/bin/sh {project}/as-root.sh' > /proc/sys/kernel/core_pattern && \
             (ulimit -c unlimited; sh -c 'kill -SEGV $$'); \
             for i in $(seq 200); do [ -e said ] && break; sleep 0.2; done; cat said"
        );
        let said = lab.exec_script("m", &script).within(120).run().ok().text();
        // The control: it was root, with every power there, and the share is there.
        assert!(said.contains("ffffffff"), "{said}");
        assert!(said.contains("shared: /tmp/share/proc /tmp/share/usr"), "{said}");
        for name in ["proc: 0", "sys: 0", "dev: 0"] {
            assert!(said.contains(name), "{said}");
        }
        // And the report says which fences a command in there does not wear.
        let shown: Value = lab.skep(["show", "m", "--json"]).run().ok().json();
        let status = lab.exec_script("m", "grep Seccomp: /proc/self/status").run().ok().text();
        assert_eq!(status.split_whitespace().last(), Some("0"), "the control: {status}");
        for layer in ["syscalls", "landlock"] {
            assert_eq!(shown["enforcement"][layer]["enforced"], false, "{layer}: {shown:#}");
        }
        for layer in ["kernel", "filesystem", "processes"] {
            assert_eq!(shown["enforcement"][layer]["enforced"], true, "{layer}: {shown:#}");
        }
        let line = ["run", "--provider", "microvm", "--require", "syscalls", "--", "true"];
        lab.skep(line).env("SKEP_MICROVM_EMULATION", "1").run().exits(5).says("syscalls");
    });
}
