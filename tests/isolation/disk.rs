//! What may be written: the upper is counted, however the bytes are put away.

use crate::harness::{Lab, for_both, for_each, outside, wait_for, wait_for_empty};
use serde_json::Value;
use std::path::Path;

/// More than the limit by this much is the stated overshoot: what a disk takes while skep looks.
const OVERSHOOT: u64 = 400 << 20;

fn fill(lab: &Lab, program: &str) -> Value {
    lab.write("keep.txt", "kept\n");
    lab.skep(["run", "--json", "--name", "s", "--keep", "--disk", "16M", "--timeout", "30s", "--"])
        .args(["/usr/bin/python3", "-c", program])
        .run()
        .json()
}

/// Bytes below a directory, by plain means.
fn size(path: &Path) -> u64 {
    let ran = std::process::Command::new("du").args(["-s", "-B1"]).arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

fn ended_by_the_disk(lab: &Lab, end: &Value) {
    assert_eq!(end["reason"], "disk_limit", "{end}");
    assert_eq!(end["limits_hit"], serde_json::json!(["disk"]), "{end}");
    assert_eq!(end["exit_code"], 137, "{end}");
    let written = size(&lab.state);
    assert!(written < (16 << 20) + OVERSHOOT, "{written} bytes were written");
    assert_eq!(std::fs::read(lab.project.join("keep.txt")).unwrap(), b"kept\n");
    // The data base works on.
    assert_eq!(lab.sandbox("s")["state"], "stopped");
    lab.skep(["rm", "--discard", "s"]).run().ok();
    assert!(outside::processes_of(&lab.root).is_empty());
}

#[test]
fn res_5_many_files_are_a_sum() {
    for_both(|lab| {
        let program = "i = 0\nwhile True:\n  open(f'f{i}', 'wb').write(bytes(4 << 20)); i += 1";
        ended_by_the_disk(lab, &fill(lab, program));
        // Control: below the limit nobody is ended.
        let end = fill(lab, "open('f', 'wb').write(bytes(8 << 20)); import time; time.sleep(0.3)");
        assert_eq!(end["reason"], "exited", "{end}");
    });
}

/// It comes a moment after a command began, without anybody's call: whoever looks at the host's processes, as
/// `Lab::without_effect` does, is told by its name that nobody left it.
#[test]
fn res_5_who_counts_the_upper_says_so_and_ends_with_its_keeper() {
    for_both(|lab| {
        lab.create("s");
        lab.skep(["exec", "-d", "s", "--", "sleep", "4764"]).run().ok();
        let counting = || -> Vec<_> {
            let all = outside::processes_of(&lab.root);
            all.into_iter().filter(|one| one.command.starts_with("skep: count")).collect()
        };
        let found =
            wait_for("the count", 10, || Some(counting()).filter(|found| !found.is_empty()));
        assert_eq!(found.len(), 1, "{found:?}");
        lab.keepers().into_iter().for_each(outside::kill);
        wait_for_empty("processes that count", 10, counting);
    });
}

/// Whoever lives on after its exec has ended is held by the same limits, and the next exec is not the
/// one to pay for it.
#[test]
fn res_5_what_outlives_its_exec_is_held_by_the_limit_too() {
    for_both(|lab| {
        let daemon = "(setsid python3 -c 'import time
time.sleep(0.3)
for i in range(400):
  open(f\"w{i}\", \"wb\").write(bytes(4 << 20)); time.sleep(0.02)
time.sleep(4719)' >/dev/null 2>&1 &)";
        let run = |name: &str, flags: &[&str]| {
            lab.skep(["create", "--name", name]).args(flags).run().ok();
            lab.exec_script(name, daemon).run().ok();
        };
        let alive = || !outside::processes_with("4719").is_empty();
        run("s", &["--disk", "20M"]);
        wait_for("the end of the daemon", 30, || (!alive()).then_some(()));
        let written = size(&lab.state);
        assert!(written < (20 << 20) + OVERSHOOT, "{written} bytes were written");
        let shown = lab.skep(["show", "s", "--json"]).run().ok().json();
        let warnings = shown["warnings"].to_string();
        assert!(warnings.contains("disk_limit"), "{warnings}");
        let events = lab.skep(["events", "--json"]).run().ok().text();
        assert_eq!(events.matches("strays.ended").count(), 1, "{events}");
        lab.skep(["rm", "--discard", "s"]).run().ok();
        // Control: where there is room, it lives on and nothing is said.
        run("c", &["--disk", "2G"]);
        let upper = |name: &str| {
            let id = lab.sandbox(name)["id"].as_str().unwrap().to_owned();
            size(&lab.state.join("sandboxes").join(id).join("upper"))
        };
        wait_for("more than the limit was", 30, || (upper("c") > 60 << 20).then_some(()));
        assert!(alive(), "the daemon lives on");
        lab.skep(["rm", "--discard", "c"]).run().ok();
    });
}

/// Where memory is only looked at, the looks go on for whoever outlives its exec.
#[test]
fn res_2_what_outlives_its_exec_is_held_by_the_memory_limit_too() {
    for_both(|lab| {
        let daemon = "(setsid python3 -c 'import time
time.sleep(0.3); held = bytearray(400 << 20); time.sleep(4720)' >/dev/null 2>&1 &)";
        let create = ["create", "--name", "s", "--best-effort", "--memory", "64M"];
        lab.skep(create).run().ok();
        lab.exec_script("s", daemon).run().ok();
        let alive = || !outside::processes_with("4720").is_empty();
        wait_for("the end of the daemon", 30, || (!alive()).then_some(()));
        // Control: with room for it, it is still there a while later.
        lab.skep(["create", "--name", "c", "--best-effort", "--memory", "1G"]).run().ok();
        lab.exec_script("c", daemon).run().ok();
        let resident = || outside::processes_with("4720").len();
        wait_for("the daemon", 10, || (resident() > 0).then_some(()));
        lab.exec_script("c", "sleep 1").run().ok();
        assert!(alive(), "it has room");
        lab.skep(["rm", "--discard", "c"]).run().ok();
    });
}

#[test]
fn res_5_tiny_files_are_counted_by_what_they_take() {
    for_both(|lab| {
        let program = "import os\ni = 0\nwhile True:\n  os.makedirs(f'd{i >> 8}', exist_ok=True)\n  \
            open(f'd{i >> 8}/f{i}', 'w').write('x'); i += 1";
        ended_by_the_disk(lab, &fill(lab, program));
    });
}

/// Below a path that is longer than the kernel follows in one piece.
#[test]
fn res_5_bytes_hidden_deep_are_counted() {
    for_both(|lab| {
        let program = "import os\nn = 'd' * 250\nfor i in range(20): os.mkdir(n); os.chdir(n)\n\
            for i in range(200): open(f'f{i}', 'wb').write(bytes(4 << 20))\nprint('wrote')";
        ended_by_the_disk(lab, &fill(lab, program));
    });
}

/// In a directory that its owner may not read.
#[test]
fn res_5_bytes_in_a_closed_directory_are_counted() {
    for_both(|lab| {
        let program = "import os\nos.mkdir('c'); os.chdir('c'); os.chmod('.', 0o300)\n\
            for i in range(200): open(f'f{i}', 'wb').write(bytes(4 << 20))\nprint('wrote')";
        ended_by_the_disk(lab, &fill(lab, program));
    });
}

/// In files that have no name any more.
#[test]
fn res_5_bytes_of_deleted_open_files_are_counted() {
    for_both(|lab| {
        let program = "import os\nkept = []\nfor i in range(200):\n  f = open('f', 'wb'); os.unlink('f')\n  \
            f.write(bytes(4 << 20)); f.flush(); kept.append(f)\nprint('wrote')";
        ended_by_the_disk(lab, &fill(lab, program));
    });
}

/// Descriptors that lead nowhere, more than can be searched in passing, hide nothing.
#[test]
fn res_5_bytes_of_deleted_files_are_found_among_many_descriptors() {
    for_both(|lab| {
        let program = "import os, resource, time\n\
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n\
            f = os.open('u', os.O_RDWR | os.O_CREAT); os.unlink('u')\n\
            try:\n  while True: os.dup(f)\nexcept OSError: pass\n\
            for i in range(15):\n  if os.fork() == 0: time.sleep(60); os._exit(0)\n\
            if os.fork(): time.sleep(60); os._exit(0)\n\
            os.closerange(3, hard)\nkept = []\nfor i in range(20):\n  \
            f = os.open('d', os.O_RDWR | os.O_CREAT); os.unlink('d'); kept.append(f)\n  \
            for j in range(4): os.write(f, bytes(1 << 20)); time.sleep(0.003)\n\
            time.sleep(60)";
        ended_by_the_disk(lab, &fill(lab, program));
    });
}

/// Room that is taken without being written would be gone before any look.
#[test]
fn res_5_room_cannot_be_taken_at_once() {
    let program = "import ctypes, fcntl, os, struct\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        f = os.open('f', os.O_RDWR | os.O_CREAT)\nos.write(f, bytes(1 << 20))\n\
        def take(mode):\n  \
        r = libc.fallocate(f, mode, ctypes.c_long(0), ctypes.c_long(1 << 20))\n  \
        return ctypes.get_errno() if r else 0\n\
        def resv(request):\n  \
        try: fcntl.ioctl(f, request, struct.pack('hhxxxxqqiiiiii', 0, 0, 0, 1 << 20, 0, 0, 0, 0, 0, 0)); return 0\n  \
        except OSError as e: return e.errno\n\
        print(take(0), take(1), take(16), resv(0x40305828), resv(0x4030582a), take(3))";
    for_both(|lab| {
        let ran = lab.skep(["run", "--", "/usr/bin/python3", "-c", program]).run().ok();
        assert_eq!(ran.text().trim(), "95 95 95 95 95 0", "{}", ran.describe());
        // Control: the filesystem itself takes them, as far as it has them.
        let outside = lab.program("/usr/bin/python3").args(["-c", program]).run().ok().text();
        assert!(outside.starts_with("0 0 "), "{outside}");
        std::fs::remove_file(lab.project.join("f")).unwrap();
        // The C library writes instead, and is stopped.
        let many = "import os\nfor i in range(60):\n  \
            f = os.open(f'F{i}', os.O_RDWR | os.O_CREAT); os.posix_fallocate(f, 0, 15 << 20)";
        ended_by_the_disk(lab, &fill(lab, many));
    });
}

/// The disk is smaller than the limit: what is kept for the host is kept at any speed.
#[test]
fn res_5_the_hosts_reserve_is_kept_where_the_disk_is_smaller_than_the_limit() {
    for_each([crate::harness::Who::root()], |lab| {
        lab.write("a", "a\n");
        let (skep, state) = (lab.binary.display(), lab.state.display());
        let writer = "import time\nfor i in range(400):\n  open(f'f{i}', 'wb').write(bytes(1 << 20)); time.sleep(0.004)";
        lab.write("writer.py", writer);
        let script = format!(
            "mkdir -p {state}; mount -t tmpfs -o size=300m,mode=700 none {state}
             {skep} create s > /dev/null
             {skep} exec s --json -- /usr/bin/python3 writer.py; echo
             echo left $(stat -f -c '%a %S' {state})
             {skep} exec s -- true; echo works $?; {skep} rm --discard s > /dev/null 2>&1"
        );
        let line = ["--mount", "--propagation", "private", "sh", "-c", &script];
        let ran = lab.program("unshare").args(line).run().ok();
        let text = ran.text();
        assert!(text.contains("disk_limit"), "{}", ran.describe());
        assert!(text.lines().any(|line| line == "works 0"), "{}", ran.describe());
        let left = text.lines().find_map(|line| line.strip_prefix("left ")).unwrap();
        let left: Vec<u64> = left.split(' ').map(|word| word.parse().unwrap()).collect();
        assert!(left[0] * left[1] > 4 << 20, "{}", ran.describe());
    });
}

/// The same of inodes.
#[test]
fn res_5_inodes_are_kept_for_the_host_too() {
    for_each([crate::harness::Who::root()], |lab| {
        lab.write("a", "a\n");
        let (skep, state) = (lab.binary.display(), lab.state.display());
        let maker = "import time\nfor i in range(30000):\n  open(f'f{i}', 'wb').close(); i % 40 or time.sleep(0.006)";
        lab.write("maker.py", maker);
        let script = format!(
            "mkdir -p {state}; mount -t tmpfs -o size=300m,nr_inodes=20000,mode=700 none {state}
             {skep} create s > /dev/null
             {skep} exec s --json -- /usr/bin/python3 maker.py; echo
             echo left $(stat -f -c '%d' {state})
             {skep} exec s -- true; echo works $?; {skep} rm --discard s > /dev/null 2>&1"
        );
        let line = ["--mount", "--propagation", "private", "sh", "-c", &script];
        let ran = lab.program("unshare").args(line).run().ok();
        let text = ran.text();
        assert!(text.contains("disk_limit"), "{}", ran.describe());
        assert!(text.lines().any(|line| line == "works 0"), "{}", ran.describe());
        let left = text.lines().find_map(|line| line.strip_prefix("left ")).unwrap();
        assert!(left.parse::<u64>().unwrap() > 300, "{}", ran.describe());
    });
}

/// Files that were deleted and are open are files.
#[test]
fn res_5_deleted_files_count_as_inodes() {
    for_both(|lab| {
        let program = "import os, time\nkept = []\nfor i in range(3000):\n  \
            kept.append(os.open('f', os.O_CREAT | os.O_RDWR)); os.unlink('f')\ntime.sleep(20)";
        let call = lab.skep(["run", "--json", "--", "/usr/bin/python3", "-c", program]);
        let ran = call.env("SKEP_LIMITS_INODES", "1000").run();
        assert_eq!(ran.json()["reason"], "disk_limit", "{}", ran.describe());
    });
}

/// Or that are mapped only: neither a name nor a descriptor leads to them.
#[test]
fn res_5_bytes_of_deleted_mapped_files_are_counted() {
    for_both(|lab| {
        let program = "import os, mmap, time\nkept = []\nfor i in range(200):\n  f = open('f', 'w+b'); os.unlink('f')\n  \
            f.write(bytes(4 << 20)); f.flush(); kept.append(mmap.mmap(f.fileno(), 4 << 20)); f.close()\n  \
            time.sleep(0.01)\nprint('wrote')";
        ended_by_the_disk(lab, &fill(lab, program));
    });
}

/// Copied up from the project: a file of which one byte is changed takes its whole size.
#[test]
fn res_5_files_of_the_project_count_when_they_are_changed() {
    for_both(|lab| {
        for number in 0..12 {
            lab.write(format!("big{number}"), vec![1; 4 << 20]);
        }
        let before = lab.tree();
        let program = "for i in range(12):\n  f = open(f'big{i}', 'r+b'); f.write(b'x'); f.close()\n\
            import time; time.sleep(5); print('changed')";
        let end = fill(lab, program);
        ended_by_the_disk(lab, &end);
        lab.tree().without("keep.txt").assert_equals(&before, "the project was changed");
    });
}

#[test]
fn res_7_a_huge_hole_is_refused_at_the_limit() {
    for_both(|lab| {
        let program = "import os\ntry: os.truncate(os.open('s', os.O_CREAT | os.O_RDWR), 8 << 40); print('made')\n\
            except OSError as e: print('refused', e.errno)";
        // The signal comes first unless it is ignored, as Python does.
        let end = fill(lab, program);
        assert_eq!(end["stdout"], "refused 27\n", "{end}");
        // A hole below the limit costs nothing and is kept.
        let end = lab.exec_script("s", "truncate -s 15M hole && stat -c '%s %b' hole").run().ok();
        assert_eq!(end.text(), "15728640 0");
    });
}

/// The number of files is limited too, here by the project's own settings, which may narrow.
/// The kernel ends the writer of one large file before anybody has looked; its shell says so only by
/// its exit code.
#[test]
fn res_5_one_large_file_of_a_shell_is_felt_as_the_disk() {
    for_both(|lab| {
        let script = "head -c 40000000 /dev/zero > big; exit $?";
        let line = ["run", "--json", "--disk", "4M", "--", "sh", "-c", script];
        let end = lab.skep(line).run().json();
        assert_eq!(end["limits_hit"], serde_json::json!(["disk"]), "{end}");
        assert_ne!(end["exit_code"], 0, "{end}");
    });
}

#[test]
fn res_6_empty_files_are_counted() {
    for_both(|lab| {
        lab.write("skep.toml", "[limits]\ninodes = 2000\n");
        let program = "i = 0\nwhile True:\n  open(f'f{i}', 'w').close(); i += 1";
        let words = ["run", "--json", "--name", "s", "--keep", "--timeout", "30s", "--"];
        let end = lab.skep(words).args(["/usr/bin/python3", "-c", program]).run().json();
        assert_eq!(end["reason"], "disk_limit", "{end}");
        assert_eq!(end["limits_hit"], serde_json::json!(["disk"]), "{end}");
        let made = lab.diff("s")["totals"]["files"].as_u64().unwrap();
        assert!((2000..60_000).contains(&made), "{made} files were made");
        // Control: fewer are fine.
        let program =
            "for i in range(1000): open(f'g{i}', 'w').close()\nimport time; time.sleep(0.2)";
        let words = ["run", "--json", "--", "/usr/bin/python3", "-c", program];
        assert_eq!(lab.skep(words).run().ok().json()["reason"], "exited");
    });
}

/// A directory of nearly a million entries, which is the limit: listed in bounded time and memory.
#[test]
fn heavy_res_6_a_million_entries_are_listed() {
    if !crate::harness::long() {
        return;
    }
    for_both(|lab| {
        let program = "import os\nfor i in range(990000): os.close(os.open(f'f{i}', os.O_CREAT | os.O_WRONLY))";
        let words =
            ["run", "--json", "--name", "s", "--keep", "--", "/usr/bin/python3", "-c", program];
        let end = lab.skep(words).within(600).run().ok().json();
        assert_eq!(end["reason"], "exited", "{}", end["limits_hit"]);
        let call = lab.program("/usr/bin/time").args(["-f", "%M"]).arg(&lab.binary);
        let ran = call.args(["diff", "s", "--stat"]).within(600).run().ok();
        let kilobytes: u64 = ran.errors().trim().lines().last().unwrap().parse().unwrap();
        println!("{kilobytes} kB for 990,000 entries");
        assert!(kilobytes < 3 << 20, "the diff took {kilobytes} kB");
        lab.skep(["rm", "--discard", "s"]).within(600).run().ok();
    });
}

/// A file of many pieces with holes between them: reviewed and applied in bounded time, and the holes stay.
#[test]
fn res_7_a_file_full_of_holes_keeps_them() {
    for_both(|lab| {
        let pieces: u64 = if crate::harness::long() { 1_000_000 } else { 2_000 };
        let program = format!(
            "import os\nf = os.open('holes', os.O_CREAT | os.O_RDWR, 0o644)\n\
             for i in range({pieces}): os.pwrite(f, b'x', i * 8192)\n"
        );
        let words = ["run", "--json", "--name", "s", "--keep", "--", "/usr/bin/python3", "-c"];
        lab.skep(words).arg(&program).within(900).run().ok();
        let upper = lab.state.join("sandboxes").join(lab.sandbox("s")["id"].as_str().unwrap());
        let before = std::fs::metadata(upper.join("upper/holes")).unwrap();
        lab.skep(["diff", "s"]).within(900).run().ok();
        lab.skep(["approve", "s"]).within(900).run().ok();
        let applied = std::fs::metadata(lab.project.join("holes")).unwrap();
        use std::os::unix::fs::MetadataExt;
        assert_eq!(applied.len(), before.len());
        assert!(before.blocks() * 512 < before.len() * 3 / 4, "there were no holes to keep");
        // A little more for the list of pieces.
        assert!(applied.blocks() <= before.blocks() + before.blocks() / 10, "holes were filled");
        // A million pieces are given back to the disk one by one.
        lab.skep(["rm", "s"]).within(900).run().ok();
    });
}

/// A file that grows while it is looked at: every look is a cut, never a torn line.
#[test]
fn res_7_a_file_that_grows_during_a_diff_is_cut_once() {
    for_both(|lab| {
        lab.create("s");
        let program = "import time\ni = 0\nf = open('log', 'w', buffering=1)\n\
            while True:\n  f.write(f'line {i} of many that are written\\n'); i += 1\n  \
            if i % 20 == 0: time.sleep(0.01)";
        lab.skep(["exec", "-d", "s", "--", "/usr/bin/python3", "-c", program]).run().ok();
        crate::harness::wait_for("the first lines", 20, || {
            (lab.diff("s")["changes"][0]["size"].as_u64()? > 1_000).then_some(())
        });
        let mut last = 0;
        for _ in 0..5 {
            let size = lab.diff("s")["changes"][0]["size"].as_u64().unwrap();
            assert!(size > last, "it does not grow: {last}, {size}");
            last = size;
        }
        lab.skep(["stop", "s"]).run().ok();
        lab.skep(["approve", "s", "log"]).run().ok();
        let text = std::fs::read_to_string(lab.project.join("log")).unwrap();
        for (number, line) in text.lines().enumerate() {
            assert_eq!(line, format!("line {number} of many that are written"));
        }
        assert!(text.ends_with('\n') && text.len() as u64 >= last);
    });
}

/// Two sandboxes have a limit each.
#[test]
fn res_5_one_full_sandbox_does_not_end_another() {
    for_both(|lab| {
        lab.create("other");
        let end =
            fill(lab, "i = 0\nwhile True:\n  open(f'f{i}', 'wb').write(bytes(4 << 20)); i += 1");
        assert_eq!(end["reason"], "disk_limit", "{end}");
        lab.exec_script("other", "echo fine > f && cat f").run().ok();
    });
}
