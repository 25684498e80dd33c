//! What this host can do, found by doing it.
//!
//! A version number or a file in `/proc` tells what ought to work; a security module, a container
//! around us or an odd filesystem decides what does. So each probe makes the real thing in a child
//! process or a scratch directory, looks at the result and takes it away again. A probe that fails
//! says why, and what to do about it where something can be done.
//!
//! The probes fork, so the calling process must have one thread only; otherwise they say so.

mod kernel;
mod programs;
mod settings;

use crate::cgroup::{CgroupHost, Feature, ParentName};
use serde::Serialize;
use skep_sys::process::{Namespaces, clone_with, wait_for};
use std::path::PathBuf;

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// What was asked, in a stable word or two.
    pub name: &'static str,
    /// Whether it works.
    pub ok: bool,
    /// Whether it was tried at all.
    pub tried: bool,
    /// What was found, or how it was tried.
    pub how: String,
    /// Why it does not work.
    pub reason: Option<String>,
    /// What a person can do about it.
    pub remedy: Option<String>,
}

impl Probe {
    fn works(name: &'static str, how: impl Into<String>) -> Self {
        Self { name, ok: true, tried: true, how: how.into(), reason: None, remedy: None }
    }

    fn missing(name: &'static str, how: impl Into<String>, reason: impl Into<String>) -> Self {
        let reason = Some(reason.into());
        Self { name, ok: false, tried: true, how: how.into(), reason, remedy: None }
    }

    fn untried(name: &'static str, reason: impl Into<String>) -> Self {
        Self { tried: false, ..Self::missing(name, "not tried", reason) }
    }

    fn of(name: &'static str, how: &str, result: Result<String, String>) -> Self {
        match result {
            Ok(found) if found.is_empty() => Self::works(name, how),
            Ok(found) => Self::works(name, found),
            Err(reason) => Self::missing(name, how, reason),
        }
    }

    /// Adds the remedy to an answer that is not good.
    fn or_else(mut self, remedy: impl Into<String>) -> Self {
        if !self.ok {
            self.remedy = Some(remedy.into());
        }
        self
    }
}

/// What the probes need to know; nothing is taken from the environment.
#[derive(Debug, Clone)]
pub struct ProbeContext {
    /// A directory on the filesystem where uppers will be. Must exist; is left as it was.
    pub scratch: PathBuf,
    /// Directories in which programs are looked for; relative ones are passed over, for they would
    /// mean whatever project the caller stands in.
    pub program_directories: Vec<PathBuf>,
    /// The caller's user name, for `/etc/subuid`.
    pub user_name: String,
    /// Where groups are made.
    pub cgroup_parent: ParentName,
}

/// Whether a user namespace can be made and mounted in: without it there is no sandbox here.
pub fn user_namespace() -> Probe {
    kernel::user_namespace()
}

/// Everything there is to ask, in the order it is shown.
pub fn run_all(context: &ProbeContext) -> Vec<Probe> {
    let mut probes = vec![
        kernel::user_namespace(),
        kernel::own_proc(),
        kernel::overlay(context),
        kernel::idmapped_mounts(context),
        kernel::seccomp_filter(),
        kernel::landlock_fence(context),
        kernel::network_namespace(),
    ];
    probes.extend(cgroups(context));
    probes.extend([settings::apparmor(), settings::selinux(), settings::kvm()]);
    probes.extend([programs::id_ranges(context), kernel::fuse_overlay(context)]);
    probes
}

/// Which controllers can be used, by making, joining and removing a group.
pub fn cgroups(context: &ProbeContext) -> Vec<Probe> {
    const REMEDY: &str = "run as root, or start skep in a group of its own: `systemd-run --user --scope -p Delegate=yes skep …`";
    let host = CgroupHost::detect(context.cgroup_parent.clone());
    let names = [
        ("cgroup memory", Feature::Memory),
        ("cgroup cpu", Feature::Cpu),
        ("cgroup pids", Feature::Pids),
        ("cgroup freeze", Feature::Freeze),
        ("cgroup kill", Feature::Kill),
    ];
    let answer = |(name, feature)| match (host.missing().get(&feature), host.describe(feature)) {
        (None, Some(how)) => Probe::works(name, how),
        (reason, _) => Probe::missing(name, "made a group", reason.cloned().unwrap_or_default())
            .or_else(REMEDY),
    };
    let mut probes: Vec<Probe> = names.into_iter().map(answer).collect();
    probes.push(io_weight(&host, context));
    probes
}

/// Whether a weight would count on the disk at hand. Without one nothing is missing: it is a wish, not a fence.
fn io_weight(host: &CgroupHost, context: &ProbeContext) -> Probe {
    const NAME: &str = "cgroup io weight";
    match host.try_weight(&context.scratch) {
        Ok(found) => Probe::works(NAME, format!("`{}` counts on {}", found.file, found.disks)),
        Err(reason) => Probe::missing(NAME, "made a group and set a weight", reason)
            .or_else("not needed, but for `--io-weight`; it takes the scheduler `bfq` on the disk of the state directory"),
    }
}

/// Runs `body` in a child with namespaces of its own and brings its error text back.
fn in_child(
    namespaces: Namespaces,
    body: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let (reader, writer) = rustix::pipe::pipe().map_err(|error| error.to_string())?;
    let child = clone_with(namespaces, || match body() {
        Ok(()) => 0,
        Err(reason) => {
            let _ = rustix::io::write(&writer, reason.as_bytes());
            1
        }
    })
    .map_err(|error| format!("cannot start a process in new namespaces: {error}"))?;
    drop(writer);
    let code = wait_for(&child).map_err(|error| error.to_string())?;
    if code == 0 {
        return Ok(());
    }
    let mut text = [0u8; 2048];
    let length = rustix::io::read(&reader, &mut text).unwrap_or(0);
    match String::from_utf8_lossy(&text[..length]).into_owned() {
        empty if empty.is_empty() => Err(format!("the probing process ended with {code}")),
        reason => Err(reason),
    }
}
