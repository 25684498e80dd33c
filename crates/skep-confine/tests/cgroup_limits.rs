//! Groups on this host's real cgroups: attacks stopped by the limits, with a control that shows
//! they work when the limit is off; and nothing left behind.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // A test may.

mod users;

use skep_confine::cgroup::{CgroupHost, Feature, Group, GroupLimits, ParentName, join};
use skep_confine::report::{Fallback, report_limits};
use skep_sys::process::{Child, Namespaces, clone_with, wait_for};
use skep_types::{ByteSize, ExecId, Layer, Limits, SandboxId};
use std::time::{Duration, Instant};

fn parent() -> ParentName {
    ParentName::parse(&format!("skep-test-{}", std::process::id())).unwrap()
}

fn id() -> SandboxId {
    SandboxId::from_random([7; 10])
}

fn exec() -> ExecId {
    ExecId::from_random([9; 10])
}

/// Runs only where groups can be made; in CI as root that is everywhere.
fn host_with(features: &[Feature]) -> Option<CgroupHost> {
    let host = CgroupHost::detect(parent());
    let lacking: Vec<_> = features.iter().filter_map(|f| host.missing().get(f)).collect();
    if lacking.is_empty() {
        return Some(host);
    }
    let root = rustix::process::geteuid().is_root();
    assert!(!(root && std::env::var_os("CI").is_some()), "{lacking:?}");
    println!("  skipped: {lacking:?}");
    None
}

fn run_in(group: &Group, body: impl FnOnce() -> i32) -> Child {
    let files = group.procs_files().unwrap();
    clone_with(Namespaces::NONE, || if join(&files).is_err() { 99 } else { body() }).unwrap()
}

fn nothing_left(directories: Vec<std::path::PathBuf>) {
    for directory in directories {
        assert!(!directory.exists(), "{directory:?} is left");
        assert!(!directory.parent().unwrap().exists(), "the parent of {directory:?} is left");
    }
}

fn directories(group: &Group) -> Vec<std::path::PathBuf> {
    group.directories().map(Into::into).collect()
}

/// Takes and touches `bytes` of memory.
fn eat(bytes: usize) -> i32 {
    let mut memory = vec![1u8; bytes];
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = byte.wrapping_add(1));
    i32::from(std::hint::black_box(&memory)[0] != 2)
}

fn fork_children(count: i32) -> i32 {
    let mut refused = 0;
    let mut children = Vec::new();
    for _ in 0..count {
        match clone_with(Namespaces::NONE, || {
            std::thread::sleep(Duration::from_millis(200));
            0
        }) {
            Ok(child) => children.push(child),
            Err(_) => refused += 1,
        }
    }
    children.iter().for_each(|child| drop(wait_for(child)));
    refused
}

fn memory_is_capped_and_the_kill_is_counted() {
    let Some(host) = host_with(&[Feature::Memory]) else { return };
    let limits = GroupLimits { memory: Some(ByteSize(24 << 20)), ..GroupLimits::default() };
    let group = host.create(&id(), &limits).unwrap();
    assert_eq!(wait_for(&run_in(&group, || eat(4 << 20))).unwrap(), 0);
    assert_eq!(group.oom_kills(), Some(0));
    let child = group.child(&exec(), &GroupLimits::default()).unwrap();
    assert_eq!(wait_for(&run_in(&child, || eat(96 << 20))).unwrap(), 128 + 9);
    // v2 counts the first victim once more when it takes the rest of its group along.
    assert!(group.oom_kills() >= Some(1) && child.oom_kills() == group.oom_kills());
    assert!(group.memory_peak().unwrap() > 20 << 20);
    // A pipe and a memory file are charged too: res-3.
    let file = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let code = wait_for(&run_in(&child, || {
        let block = vec![1u8; 1 << 20];
        (0..96).map(|_| rustix::io::write(&file, &block)).filter(Result::is_err).count() as i32
    }))
    .unwrap();
    assert_eq!(code, 128 + 9);
    drop(file);
    let places = directories(&group);
    child.remove().unwrap();
    group.remove().unwrap();
    nothing_left(places);
    let control = host.create(&id(), &GroupLimits::default()).unwrap();
    assert_eq!(wait_for(&run_in(&control, || eat(96 << 20))).unwrap(), 0, "control");
    control.remove().unwrap();
}

fn a_fork_bomb_stops_at_the_limit() {
    let Some(host) = host_with(&[Feature::Pids]) else { return };
    let limits = GroupLimits { pids: Some(10), ..GroupLimits::default() };
    let group = host.create(&id(), &limits).unwrap();
    let child = group.child(&exec(), &GroupLimits::default()).unwrap();
    // In the sandbox's groups first, as pid 1 inside is, then in the exec's.
    let files = group.procs_files().unwrap();
    let bomb = clone_with(Namespaces::NONE, || {
        let own = child.procs_files().is_ok_and(|own| join(&files).is_ok() && join(&own).is_ok());
        if own { fork_children(30) } else { 99 }
    });
    assert_eq!(wait_for(&bomb.unwrap()).unwrap(), 21, "refused");
    assert_eq!(group.pids_max_hits(), Some(21));
    child.remove().unwrap();
    group.remove().unwrap();
    let control = host.create(&id(), &GroupLimits::default()).unwrap();
    assert_eq!(wait_for(&run_in(&control, || fork_children(30))).unwrap(), 0, "control");
    control.remove().unwrap();
}

fn the_processor_rate_holds() {
    let Some(host) = host_with(&[Feature::Cpu, Feature::CpuTime]) else { return };
    let used = |limits| {
        let group = host.create(&id(), &limits).unwrap();
        let spinner = run_in(&group, || {
            loop {
                std::hint::spin_loop();
            }
        });
        let start = Instant::now();
        std::thread::sleep(Duration::from_millis(600));
        let share = group.cpu_time().unwrap().as_secs_f64() / start.elapsed().as_secs_f64();
        group.kill().unwrap();
        wait_for(&spinner).unwrap();
        group.remove().unwrap();
        share
    };
    let tenth = used(GroupLimits { cpus: Some(0.1), ..GroupLimits::default() });
    assert!(tenth < 0.2, "{tenth} processors used of 0.1");
    let control = used(GroupLimits::default());
    assert!(control > tenth * 1.5, "control: {control} against {tenth}");
}

fn kill_ends_what_ignores_signals_and_forks() {
    let Some(host) = host_with(&[Feature::Kill, Feature::Freeze]) else { return };
    let group = host.create(&id(), &GroupLimits::default()).unwrap();
    let child = group.child(&exec(), &GroupLimits::default()).unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let restless = run_in(&child, || {
        skep_sys::signal::ignore(15);
        let _ = rustix::process::setsid();
        let grandchild = clone_with(Namespaces::NONE, || {
            let _ = rustix::process::setsid();
            let _ = rustix::io::write(&writer, b"x");
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        drop(grandchild);
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    rustix::io::read(&reader, &mut [0u8; 1]).unwrap();
    assert_eq!(group.pids().len(), 2);
    child.freeze().unwrap();
    child.thaw().unwrap();
    // Also from a frozen state.
    child.freeze().unwrap();
    child.kill().unwrap();
    assert_eq!(wait_for(&restless).unwrap(), 128 + 9);
    assert_eq!(group.pids().len(), 0);
    group.kill().unwrap();
    group.remove().unwrap();
    assert!(host.find_owned().is_empty());
}

fn a_frozen_group_does_nothing() {
    let Some(host) = host_with(&[Feature::Freeze, Feature::CpuTime, Feature::Kill]) else { return };
    let group = host.create(&id(), &GroupLimits::default()).unwrap();
    let spinner = run_in(&group, || {
        loop {
            std::hint::spin_loop();
        }
    });
    group.freeze().unwrap();
    // What ran before is booked with the next tick of the clock.
    std::thread::sleep(Duration::from_millis(50));
    let before = group.cpu_time().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(group.cpu_time().unwrap(), before);
    group.thaw().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(group.cpu_time().unwrap() > before, "control");
    group.kill().unwrap();
    wait_for(&spinner).unwrap();
    group.remove().unwrap();
}

fn the_report_is_what_the_kernel_says() {
    let asked = Limits {
        memory: Some(ByteSize(64 << 20)),
        cpus: Some(0.5),
        pids: Some(33),
        ..Limits::default()
    };
    let host = CgroupHost::detect(parent());
    match host.create(&id(), &GroupLimits::from(&asked)) {
        Ok(mut group) => {
            for (layer, feature) in [
                (Layer::Memory, Feature::Memory),
                (Layer::Cpu, Feature::Cpu),
                (Layer::Pids, Feature::Pids),
            ] {
                let report = report_limits(Some(&group), &asked, Fallback::default());
                let usable = !host.missing().contains_key(&feature);
                assert_eq!(report.enforces(layer), usable, "{report:?}");
            }
            // Raised behind our back, it is no longer what was asked.
            let other = GroupLimits {
                pids: Some(99),
                memory: Some(ByteSize(99 << 20)),
                ..GroupLimits::default()
            };
            group.set_limits(&other);
            let report = report_limits(Some(&group), &asked, Fallback::default());
            assert!(!report.enforces(Layer::Pids) && !report.enforces(Layer::Memory), "{report:?}");
            group.set_limits(&GroupLimits::from(&asked));
            let again = report_limits(Some(&group), &asked, Fallback::default());
            assert_eq!(
                again.enforces(Layer::Memory),
                !host.missing().contains_key(&Feature::Memory)
            );
            group.remove().unwrap();
        }
        Err(error) => {
            println!("  nothing writable: {error}");
            let report = report_limits(None, &asked, Fallback::default());
            assert!(Layer::ALL.iter().all(|layer| !report.enforces(*layer)));
        }
    }
}

fn what_a_killed_keeper_left_is_found_and_removed() {
    let Some(host) = host_with(&[Feature::Kill]) else { return };
    let group = host.create(&id(), &GroupLimits::default()).unwrap();
    let sleeper = run_in(&group, || {
        std::thread::sleep(Duration::from_secs(60));
        0
    });
    while host.open(&id()).is_none_or(|group| group.pids().is_empty()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(host.create(&id(), &GroupLimits::default()).is_err(), "in use");
    let places = directories(&group);
    drop(group);
    let later = CgroupHost::locate(parent());
    assert_eq!(later.find_owned().into_iter().collect::<Vec<_>>(), [id()]);
    later.remove_by_id(&id()).unwrap();
    assert_eq!(wait_for(&sleeper).unwrap(), 128 + 9);
    later.remove_by_id(&id()).unwrap();
    nothing_left(places);
}

/// The hierarchies of v1 alone, as on a host without the unified one: killing and freezing go
/// through the freezer, processor time through cpuacct.
fn host_without_v2() -> Option<CgroupHost> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let old: Vec<&str> = mounts.lines().filter(|line| !line.contains(" cgroup2 ")).collect();
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let host = CgroupHost::locate_in(parent(), old.join("\n").as_bytes(), &own);
    (!host.missing().contains_key(&Feature::Kill)).then_some(host)
}

fn v1_alone_kills_freezes_and_counts() {
    let Some(host) = host_without_v2() else { return };
    assert!(host.describe(Feature::Kill).unwrap().contains("v1"));
    let group = host.create(&id(), &GroupLimits::default()).unwrap();
    let child = group.child(&exec(), &GroupLimits::default()).unwrap();
    // Forks as fast as it can: only the freezer gets hold of all of it.
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let bomb = run_in(&child, || {
        for _ in 0..8 {
            let _ = clone_with(Namespaces::NONE, || {
                loop {
                    if let Ok(born) = clone_with(Namespaces::NONE, || 0) {
                        let _ = wait_for(&born);
                    }
                }
            });
        }
        let _ = rustix::io::write(&writer, b"x");
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    rustix::io::read(&reader, &mut [0u8; 1]).unwrap();
    child.freeze().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let before = group.cpu_time().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(group.cpu_time().unwrap(), before);
    child.thaw().unwrap();
    child.kill().unwrap();
    assert_eq!(wait_for(&bomb).unwrap(), 128 + 9);
    assert!(group.pids().is_empty());
    let places = directories(&group);
    group.remove().unwrap();
    nothing_left(places);
}

/// A directory for an ordinary user in every hierarchy that matters; on a v2 host in the one.
fn delegated_places() -> Vec<std::path::PathBuf> {
    let name = format!("skep-test-delegated-{}", std::process::id());
    let top = std::path::Path::new("/sys/fs/cgroup");
    if top.join("cgroup.controllers").exists() {
        std::fs::write(top.join("cgroup.subtree_control"), "+memory +pids +cpu").unwrap();
        return vec![top.join(name)];
    }
    let hierarchies = ["unified", "memory", "pids", "cpu"].map(|hierarchy| top.join(hierarchy));
    hierarchies.iter().filter(|path| path.exists()).map(|path| path.join(&name)).collect()
}

/// Root hands these to an ordinary user, who then makes groups there. On v2 the user's process has
/// to step aside first: it stands in the directory it wants to divide.
fn a_delegated_directory_is_enough_for_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let places = delegated_places();
    for place in &places {
        std::fs::create_dir(place).unwrap();
        for path in
            [place.clone(), place.join("cgroup.procs"), place.join("cgroup.subtree_control")]
        {
            if path.exists() {
                std::os::unix::fs::chown(path, Some(users::NOBODY), Some(users::NOBODY)).unwrap();
            }
        }
    }
    let user = clone_with(Namespaces::NONE, || {
        for place in &places {
            std::fs::write(place.join("cgroup.procs"), "0").unwrap();
        }
        users::become_user(users::NOBODY);
        memory_is_capped_and_the_kill_is_counted();
        a_fork_bomb_stops_at_the_limit();
        the_report_is_what_the_kernel_says();
        let host = CgroupHost::detect(parent());
        let all = [Feature::Memory, Feature::Pids, Feature::Cpu];
        assert!(all.iter().all(|feature| host.describe(*feature).is_some()), "{host:?}");
        0
    });
    let code = wait_for(&user.unwrap()).unwrap();
    for place in &places {
        // Where the user's process has stepped aside to.
        let own = std::fs::read_dir(place).unwrap().flatten();
        own.filter(|entry| entry.path().is_dir())
            .for_each(|entry| std::fs::remove_dir(entry.path()).unwrap());
        std::fs::remove_dir(place).unwrap();
    }
    assert_eq!(code, 0);
}

fn main() {
    users::run_as_both(&[
        ("memory_is_capped_and_the_kill_is_counted", memory_is_capped_and_the_kill_is_counted),
        ("a_fork_bomb_stops_at_the_limit", a_fork_bomb_stops_at_the_limit),
        ("the_processor_rate_holds", the_processor_rate_holds),
        ("kill_ends_what_ignores_signals_and_forks", kill_ends_what_ignores_signals_and_forks),
        ("a_frozen_group_does_nothing", a_frozen_group_does_nothing),
        ("the_report_is_what_the_kernel_says", the_report_is_what_the_kernel_says),
        ("what_a_killed_keeper_left", what_a_killed_keeper_left_is_found_and_removed),
        ("v1_alone_kills_freezes_and_counts", v1_alone_kills_freezes_and_counts),
        ("a_delegated_directory", a_delegated_directory_is_enough_for_an_ordinary_user),
    ]);
}
