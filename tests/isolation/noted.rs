//! Refused system calls are named and counted, and nothing is let through on the way.

use crate::harness::{for_both, wait_for};
use serde_json::json;

/// A raw system call from python: prints what it returned and the errno.
const CALL: &str = "import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    got = libc.syscall(*arguments)
    return ctypes.get_errno() if got < 0 else 0
";

#[test]
fn proc_7_refused_calls_are_named_and_counted() {
    for_both(|lab| {
        // keyctl, bpf and kexec_load by number; io_uring_setup answers ENOSYS and is no refusal.
        let program = format!(
            "{CALL}print(*[call(250, 0) for _ in range(3)], call(321, 0), call(246, 0), call(425, 1, 0))"
        );
        lab.create("s");
        let command = ["exec", "--json", "s", "--", "/usr/bin/python3", "-c"];
        let end = lab.skep(command).arg(&program).run().ok().json();
        assert_eq!(end["stdout"], "1 1 1 1 1 38\n", "{end}");
        let wanted = json!([
            { "call": "bpf", "count": 1 },
            { "call": "kexec_load", "count": 1 },
            { "call": "keyctl", "count": 3 },
        ]);
        assert_eq!(end["refused"], wanted, "{end}");
        let remembered = lab.skep(["ps", "--json", "s"]).run().ok().json();
        assert_eq!(remembered[0]["refused"], wanted, "{remembered}");
        // The control: who asks for nothing forbidden is told of nothing.
        let end = lab.skep(command).arg("import os; os.getpid()").run().ok().json();
        assert_eq!(end["refused"], json!([]), "{end}");
        lab.run_script("hostname other; true").run().ok().says("refused: sethostname × 1");
    });
}

/// A listener inside could let calls through that the filter hands to skep's own.
#[test]
fn proc_7_no_listener_can_be_added_inside() {
    for_both(|lab| {
        // One instruction: everything is allowed. Flag 8 asks for a listener.
        let program = format!(
            "{CALL}import struct, sys
allow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 1, ctypes.addressof(allow)))
libc.prctl(38, 1, 0, 0, 0)
print(*[call(317, 1, flags, program) for flags in (8, 9, 0x1_0000_0008, 0)])"
        );
        let ran = lab.skep(["run", "--", "/usr/bin/python3", "-c", &program]).run().ok();
        assert_eq!(ran.text(), "38 38 38 0", "{}", ran.describe());
        // The control: outside, the first listener is granted.
        let ran = lab.program("/usr/bin/python3").args(["-c", &program]).run().ok();
        assert!(ran.text().starts_with("0 "), "{}", ran.describe());
    });
}

/// A storm of refused calls is slowed down; it keeps nobody else from being served.
#[test]
fn proc_7_a_storm_of_refused_calls_holds_up_nobody_else() {
    for_both(|lab| {
        lab.create("s");
        let storm = format!("{CALL}print('on', flush=True)\nwhile True: call(250, 0)");
        let command = ["exec", "-d", "s", "--", "/usr/bin/python3", "-c", &storm];
        let exec = lab.skep(command).run().ok().text();
        wait_for("the storm", 20, || {
            lab.skep(["logs", &exec]).run().text().contains("on").then_some(())
        });
        let started = std::time::Instant::now();
        for _ in 0..5 {
            let end = lab.skep(["exec", "--json", "s", "--", "hostname", "x"]).run().json();
            assert_eq!(end["refused"], json!([{ "call": "sethostname", "count": 1 }]), "{end}");
        }
        assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
        lab.skep(["kill", &exec]).run().ok();
        let count = wait_for("the end", 10, || {
            let all = lab.skep(["ps", "--json", "s"]).run().ok().json();
            let storm = all.as_array()?.iter().find(|entry| entry["exec"] == exec.as_str())?;
            storm["refused"][0]["count"].as_u64()
        });
        // So many a second, however fast it asks.
        let allowed = 5_000 * (started.elapsed().as_secs() + 25);
        assert!(count > 100 && count < allowed, "{count} of {allowed}");
    });
}

#[test]
fn proc_7_what_outlives_its_exec_is_refused_with_the_same_answer() {
    for_both(|lab| {
        lab.create("s");
        let late = format!(
            "{CALL}import time
while not os.path.exists('go'): time.sleep(0.01)
open('told', 'w').write(str(call(250, 0)))"
        );
        lab.write("late.py", late);
        let script = "setsid nohup python3 late.py >/dev/null 2>&1 </dev/null &";
        lab.exec_script("s", script).run().ok();
        let script = "touch go; while ! test -s told; do sleep 0.01; done; cat told";
        assert_eq!(lab.exec_script("s", script).within(20).run().ok().text(), "1");
    });
}
