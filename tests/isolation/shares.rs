//! Limits and figures of one exec beside others: each has its own, also where no cgroup counts.

use super::evasion::hit;
use crate::harness::{Lab, Ran, for_both, wait_for};
use serde_json::Value;

/// Takes as much memory as this, or as much time as there is, and says that it has begun.
const HOLDS: &str =
    "x = bytearray(90 << 20); open('holds', 'w').close()\nimport time; time.sleep(600)";
const SPINS: &str = "touch spins; while :; do :; done";

fn beside(lab: &Lab, command: &[&str], sign: &str) -> String {
    let exec = lab.skep(["exec", "-d", "s", "--"]).args(command).run().ok().text();
    let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
    let sign = lab.state.join("sandboxes").join(id).join("upper").join(sign);
    wait_for("the other one to begin", 20, || sign.exists().then_some(()));
    exec.trim().to_owned()
}

fn exec(lab: &Lab, flags: &[&str], script: &str) -> Ran {
    lab.skep(["exec", "s", "--json"]).args(flags).args(["--", "sh", "-c", script]).within(60).run()
}

fn exec_of(lab: &Lab, id: &str) -> Value {
    let all = lab.skep(["ps", "s", "--json"]).run().ok().json();
    let found = all.as_array().unwrap().iter().find(|exec| exec["exec"] == id);
    found.unwrap_or_else(|| panic!("no exec {id}: {all}")).clone()
}

/// Who passes a limit of its own is ended, and nobody else; who has none of that is not ended for others.
#[test]
fn res_2_res_4_one_execs_limits_are_held_against_what_is_its_own() {
    for_both(|lab| {
        lab.skep(["create", "s", "--best-effort"]).run().ok();
        let holds = beside(lab, &["python3", "-c", HOLDS], "holds");
        let spins = beside(lab, &["sh", "-c", SPINS], "spins");
        // What the others have is not its own.
        let flags = ["--memory", "50M", "--cpu-time", "1s"];
        let ran = exec(lab, &flags, "sleep 2.5; echo fine").ok();
        assert_eq!(ran.json()["reason"], "exited", "{}", ran.describe());
        assert!(hit(&ran).is_empty(), "{}", ran.describe());
        // Control: its own is, detached or not.
        let bomb = "python3 -c 'x = bytearray(200 << 20); import time; time.sleep(20)'";
        let ran = exec(lab, &["--memory", "50M"], bomb).exits(137);
        assert_eq!(ran.json()["reason"], "oom", "{}", ran.describe());
        let spin = "setsid sh -c 'while :; do :; done' & sleep 40";
        let ran = exec(lab, &["--cpu-time", "1s"], spin).exits(137);
        assert_eq!(ran.json()["reason"], "cpu_limit", "{}", ran.describe());
        for other in [&holds, &spins] {
            let now = exec_of(lab, other);
            assert_eq!(now["running"], true, "ended for what another one did: {now}");
            lab.skep(["kill", other]).run().ok();
        }
        // And what is told of them is theirs.
        let ended = |id: &str| {
            wait_for("the end", 10, || {
                Some(exec_of(lab, id)).filter(|exec| exec["running"] == false)
            })
        };
        let (holds, spins) = (ended(&holds), ended(&spins));
        let memory = |exec: &Value| exec["stats"]["memory_peak_bytes"].as_u64().unwrap();
        let time = |exec: &Value| exec["stats"]["cpu_ms"].as_u64().unwrap();
        assert!(memory(&holds) > 85 << 20 && memory(&spins) < 60 << 20, "{holds} {spins}");
        assert!(time(&spins) > 1_000 && time(&holds) < 1_000, "{holds} {spins}");
        lab.skep(["stop", "s"]).run().ok();
    });
}

/// A signal says nothing by itself.
#[test]
fn res_4_nobody_gives_itself_the_verdict_of_its_time() {
    for_both(|lab| {
        let words = ["run", "--json", "--best-effort", "--cpu-time", "30s", "--", "sh", "-c"];
        let ran = lab.skep(words).arg("kill -XCPU $$").run();
        assert_eq!(ran.json()["reason"], "signal", "{}", ran.describe());
        assert!(hit(&ran).is_empty(), "{}", ran.describe());
    });
}
