//! The probes as root and as an ordinary user, with the thing taken away where that can be done.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // A test may.

mod users;

use skep_confine::cgroup::ParentName;
use skep_confine::probe::{Probe, ProbeContext, run_all};
use skep_sys::process::{Namespaces, clone_with, wait_for};
use std::path::Path;

fn context(scratch: &Path) -> ProbeContext {
    ProbeContext {
        scratch: scratch.to_owned(),
        program_directories: ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "."].map(Into::into).into(),
        user_name: "nobody".to_owned(),
        cgroup_parent: ParentName::parse(&format!("skep-test-{}", std::process::id())).unwrap(),
    }
}

fn find<'a>(probes: &'a [Probe], name: &str) -> &'a Probe {
    probes.iter().find(|probe| probe.name == name).unwrap()
}

fn every_probe_answers_with_a_reason_or_success_and_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let probes = run_all(&context(scratch.path()));
    for probe in &probes {
        println!("  {}", serde_json::to_string(probe).unwrap());
        assert_eq!(probe.ok, probe.reason.is_none(), "{probe:?}");
        assert!(!probe.how.is_empty(), "{probe:?}");
    }
    // What this project is tested on has these.
    for name in
        ["user namespace", "own /proc", "overlay", "seccomp", "landlock", "network namespace"]
    {
        assert!(find(&probes, name).ok, "{:?}", find(&probes, name));
    }
    // As root it depends on the filesystem: tmpfs has them since Linux 6.3.
    let idmapped = find(&probes, "idmapped mounts");
    assert!(rustix::process::geteuid().is_root() || !idmapped.ok, "{idmapped:?}");
    let names: std::collections::BTreeSet<_> = probes.iter().map(|probe| probe.name).collect();
    assert_eq!(names.len(), probes.len(), "one row for one thing: {probes:#?}");
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "scratch is left");
}

/// Under the filter no namespace can be made: the probes must say so and not crash.
fn a_host_without_namespaces_is_reported_as_one() {
    let scratch = tempfile::tempdir().unwrap();
    let child = clone_with(Namespaces::NONE, || {
        rustix::thread::set_no_new_privs(true).unwrap();
        // clone3 answers ENOSYS here, as on a kernel that lacks it.
        skep_confine::seccomp::install(skep_confine::seccomp::SeccompVariant::Default).unwrap();
        let probes = run_all(&context(scratch.path()));
        for name in ["user namespace", "overlay", "network namespace"] {
            let probe = find(&probes, name);
            assert!(!probe.ok && probe.reason.is_some() && probe.remedy.is_some(), "{probe:?}");
        }
        0
    });
    assert_eq!(wait_for(&child.unwrap()).unwrap(), 0);
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "scratch is left");
}

fn main() {
    users::run_as_both(&[
        ("every_probe_answers", every_probe_answers_with_a_reason_or_success_and_leaves_nothing),
        ("a_host_without_namespaces", a_host_without_namespaces_is_reported_as_one),
    ]);
}
