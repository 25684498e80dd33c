//! Each layer taken away: skep refuses, or says exactly what is missing. Never silently less.

use crate::harness::{Lab, attack, for_both, for_each, skip};
use std::path::PathBuf;

#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const SECCOMP: &str = "317";
    pub(super) const PIVOT_ROOT: &str = "155";
}
#[cfg(target_arch = "aarch64")]
mod number {
    pub(super) const SECCOMP: &str = "277";
    pub(super) const PIVOT_ROOT: &str = "41";
}

const LANDLOCK_CREATE_RULESET: &str = "444";

/// A program that runs another one without some system calls.
fn without(lab: &Lab) -> Option<PathBuf> {
    let copy = lab.root.join("bin/nocall");
    std::fs::copy(attack::program("nocall")?, &copy).unwrap();
    Some(copy)
}

#[test]
fn proc_14_without_landlock_the_report_says_so_and_require_refuses() {
    for_both(|lab| {
        let Some(without) = without(lab) else { return };
        let call = |words: &[&str]| {
            lab.program(&without)
                .arg(LANDLOCK_CREATE_RULESET)
                .arg(&lab.binary)
                .args(["run", "--json"])
                .args(words)
                .args(["--", "true"])
        };
        let report = call(&[]).run().ok().json()["enforcement"]["landlock"].clone();
        assert_eq!(report["enforced"], false, "{report}");
        assert!(report["reason"].as_str().unwrap().contains("Landlock"), "{report}");
        let ran = lab.without_effect(call(&["--require", "landlock"]));
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        // Control: with the call, the layer is on.
        let report = lab.skep(["run", "--json", "--", "true"]).run().ok().json();
        assert_eq!(report["enforcement"]["landlock"]["enforced"], true, "{report}");
        // And the fence is what it is called: `/run` is writable in the view, and fenced.
        lab.run_script("echo x > /run/x").run().exits(2);
        let bare = lab.program(&without).arg(LANDLOCK_CREATE_RULESET).arg(&lab.binary);
        bare.args(["run", "--", "sh", "-c", "echo x > /run/x"]).run().ok();
    });
}

#[test]
fn proc_14_without_seccomp_nothing_runs_even_with_best_effort() {
    for_both(|lab| {
        let Some(without) = without(lab) else { return };
        for words in [vec![], vec!["--best-effort"]] {
            let call = lab
                .program(&without)
                .env("NO_PRCTL_SECCOMP", "1")
                .arg(number::SECCOMP)
                .arg(&lab.binary)
                .args(["run", "--json"])
                .args(words)
                .args(["--", "sh", "-c", "echo ran > ran"]);
            let ran = lab.without_effect(call);
            assert!(matches!(ran.code(), 5 | 125), "{}", ran.describe());
            assert!(ran.problem()["message"].as_str().is_some());
        }
    });
}

/// The mount calls (fsopen, mount_setattr), `pivot_root` and `clone3`: no view without them.
#[test]
fn proc_14_without_the_calls_that_make_the_view_nothing_runs() {
    for_both(|lab| {
        let Some(without) = without(lab) else { return };
        for missing in ["430", "442", number::PIVOT_ROOT, "435"] {
            let call = lab.program(&without).arg(missing).arg(&lab.binary);
            // Named: without `clone3`, bubblewrap may still make the same namespaces.
            let line = ["run", "--provider", "namespace", "--", "sh", "-c", "echo ran"];
            let ran = lab.without_effect(call.args(line));
            assert!(matches!(ran.code(), 5 | 125), "without {missing}: {}", ran.describe());
            assert!(!ran.text().contains("ran"), "{}", ran.describe());
        }
    });
}

/// What failed is told by the one it failed for, whatever else broke because of that: with the call,
/// the kernel and what to do.
#[test]
fn proc_14_without_a_call_the_refusal_names_it() {
    let needed = [
        ("428", "open_tree"),
        ("429", "move_mount"),
        ("430", "fsopen"),
        ("442", "mount_setattr"),
        (number::PIVOT_ROOT, "pivot_root"),
        ("435", "clone3"),
    ];
    for_both(|lab| {
        let Some(without) = without(lab) else { return };
        for (missing, name) in needed {
            let call = lab.program(&without).arg(missing).arg(&lab.binary);
            let line = ["run", "--json", "--provider", "namespace", "--", "true"];
            let ran = lab.without_effect(call.args(line));
            assert_eq!(ran.code(), 5, "without {name}: {}", ran.describe());
            let problem = ran.problem();
            assert_eq!(problem["code"], "missing_capability", "{problem}");
            let message = problem["message"].as_str().unwrap();
            assert!(message.contains(&format!("`{name}`")), "{problem}");
            assert!(problem["hint"].as_str().unwrap().contains("Linux 5.12"), "{problem}");
        }
    });
}

/// Everything that is ended through a handle is ended without the call for it, too.
#[test]
fn proc_14_without_signals_through_handles_nothing_hangs() {
    for_both(|lab| {
        let Some(without) = without(lab) else { return };
        let call = |line: &[&str]| {
            let call = lab.program(&without).arg("424").arg(&lab.binary).args(line);
            call.within(12).run()
        };
        call(&["run", "--", "true"]).ok();
        let late = call(&["run", "--timeout", "300ms", "--grace", "100ms", "--", "sleep", "4741"]);
        late.exits(124);
    });
}

/// An answer that was found when capabilities could be bounded is none where they cannot.
#[test]
fn proc_14_without_the_right_to_bound_capabilities_the_report_says_so() {
    for_both(|lab| {
        let Some(without) = without(lab) else { return };
        let report = |line: &mut dyn FnMut() -> crate::harness::Call| {
            line().run().ok().json()["enforcement"]["processes"].clone()
        };
        let plain = report(&mut || lab.skep(["run", "--json", "--", "true"]));
        assert_eq!(plain["enforced"], true, "{plain}");
        let refused = report(&mut || {
            let call = lab.program(&without).env("NO_CAPBSET_DROP", "1").arg("999");
            call.arg(&lab.binary).args(["run", "--json", "--", "true"])
        });
        assert_eq!(refused["enforced"], false, "{refused}");
        assert!(refused["reason"].as_str().unwrap().contains("capabilities"), "{refused}");
    });
}

/// In a user namespace of its own, a user can forbid further ones to what runs there.
#[test]
fn proc_14_without_user_namespaces_it_is_refused_with_the_remedy() {
    for_each([crate::harness::Who::user()], |lab| {
        let limit = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" \"$@\"";
        let call = |words: &[&str]| {
            lab.program("unshare")
                .args(["-U", "--map-current-user", "--keep-caps", "sh", "-c", limit])
                .arg(&lab.binary)
                .args(words)
        };
        let ran = call(&["run", "--json", "--best-effort", "--", "sh", "-c", "echo ran"]).run();
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        let problem = ran.problem();
        assert_eq!(problem["code"], "provider_unavailable", "{problem}");
        assert!(problem["hint"].as_str().unwrap().contains("max_user_namespaces"), "{problem}");
        assert!(lab.sandboxes().is_empty());
        // The doctor finds the same, by trying.
        let ran = call(&["doctor"]).run();
        let line = ran
            .text()
            .lines()
            .find(|line| line.starts_with("missing  user namespace"))
            .map(str::to_owned);
        assert!(line.is_some_and(|line| line.starts_with("missing")), "{}", ran.describe());
    });
}

/// Root with every cgroup read-only, as in most containers.
#[test]
fn proc_14_without_cgroups_root_too_is_polled_and_told_so() {
    for_each([crate::harness::Who::root()], |lab| {
        let read_only = "awk '$9 ~ /^cgroup/ || $10 ~ /^cgroup/ { print $5 }' /proc/self/mountinfo | \
            while read m; do mount -o remount,bind,ro $m || exit 9; done; exec \"$0\" \"$@\"";
        let call = |words: &[&str]| {
            lab.program("unshare")
                .args(["-m", "sh", "-c", read_only])
                .arg(&lab.binary)
                .args(["run", "--json"])
                .args(words)
        };
        let report = call(&["--", "true"]).run().ok().json()["enforcement"].clone();
        assert_eq!(report["memory"]["enforced"], false, "{report}");
        assert_eq!(report["memory"]["how"], "polled and ended when over", "{report}");
        assert_eq!(report["pids"]["enforced"], true, "{report}");
        let ran = lab.without_effect(call(&["--memory", "64M", "--", "true"]));
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        // And the stand-in does what it is called.
        let bomb = ["--best-effort", "--memory", "64M", "--", "python3", "-c", MEMORY_BOMB];
        let end = call(&bomb).run().exits(137).json();
        assert_eq!(end["reason"], "oom", "{end}");
    });
}

const MEMORY_BOMB: &str = "x = bytearray(300 << 20)\nimport time; time.sleep(20)";

/// Where the kernel refuses a private `/proc`, as in a container with a masked one.
#[test]
fn proc_14_with_a_masked_proc_it_is_refused_with_the_remedy() {
    for_each([crate::harness::Who::user()], |lab| {
        if !std::path::Path::new("/usr/bin/bwrap").exists() {
            return skip("bwrap is not installed");
        }
        let call = lab
            .program("bwrap")
            .args(["--dev-bind", "/", "/", "--unshare-user", "--unshare-pid", "--proc", "/proc"])
            .args(["--tmpfs", "/proc/bus"])
            .arg(&lab.binary)
            .args(["run", "--json", "--", "sh", "-c", "echo ran"]);
        let ran = call.run();
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        assert!(ran.problem()["message"].as_str().unwrap().contains("/proc"), "{}", ran.describe());
    });
}
