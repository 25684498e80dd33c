//! `config.json` of the container: made from the policy, pure.
//!
//! The root is the view that the keeper has built, so there is little to mount: what belongs to
//! the processes' own kernel (`/proc`, `/dev`). The container's process is init, without
//! capabilities; what execs wear besides, they put on themselves as everywhere.

use crate::runtime::Flavour;
use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Capability, LinuxBuilder, LinuxCapabilitiesBuilder, LinuxNamespaceBuilder, LinuxNamespaceType,
    Mount, MountBuilder, ProcessBuilder, RootBuilder, Spec, SpecBuilder, UserBuilder,
};
use skep_keeper::vessel::{INIT_COMMAND, ROOT};
use skep_provider::RunSpec;
use std::collections::HashSet;

/// Entries of `/proc` that tell about the host, and those that act on it.
const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/kmsg",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/proc/timer_stats",
];
const READ_ONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"];

/// The bundle's only file, as bytes. `init` is how the program is executed that is init, its arguments
/// excluded.
pub fn config(spec: &RunSpec, flavour: Flavour, init: &[String]) -> Result<Vec<u8>, OciSpecError> {
    let ids = if rustix::process::geteuid().is_root() { Ids::Range } else { Ids::Own };
    Ok(serde_json::to_vec(&make(spec, flavour, ids, init)?)?)
}

/// The container's process is the root of the user namespace around the runtime, because runtimes
/// insist on one. That is an unprivileged id outside, and init then takes on the caller's.
fn make(spec: &RunSpec, flavour: Flavour, ids: Ids, init: &[String]) -> Result<Spec, OciSpecError> {
    let namespaces = [
        LinuxNamespaceType::Pid,
        LinuxNamespaceType::Mount,
        LinuxNamespaceType::Ipc,
        LinuxNamespaceType::Uts,
    ];
    let namespaces = namespaces
        .into_iter()
        .map(|kind| LinuxNamespaceBuilder::default().typ(kind).build())
        .collect::<Result<Vec<_>, _>>()?;
    let paths = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
    let linux = LinuxBuilder::default()
        .namespaces(namespaces)
        .masked_paths(paths(MASKED))
        .readonly_paths(paths(READ_ONLY));
    // gVisor takes a read-only root to mean everything in it. The view is read-only by itself where
    // it has to be.
    let readonly = flavour != Flavour::Gvisor;
    SpecBuilder::default()
        .version("1.0.2")
        .hostname(spec.name.as_str())
        .root(RootBuilder::default().path(ROOT).readonly(readonly).build()?)
        .mounts(mounts(flavour)?)
        .process(process(ids, init)?)
        .linux(without_resources(linux.build()?))
        .build()
}

/// Limits are the keeper's, and devices are those of the view: nothing is asked of cgroups.
fn without_resources(mut linux: oci_spec::runtime::Linux) -> oci_spec::runtime::Linux {
    linux.set_resources(None);
    linux
}

/// Which ids there are around the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ids {
    /// A range: init stays the root of it.
    Range,
    /// One: init takes on the caller's in a user namespace of its own. The kernel lets the root of
    /// one id be mapped only by who could also give files capabilities; init gives that up then.
    Own,
}

fn process(ids: Ids, init: &[String]) -> Result<oci_spec::runtime::Process, OciSpecError> {
    let none = HashSet::new;
    let kept: HashSet<Capability> = match ids {
        Ids::Range => none(),
        Ids::Own => [Capability::Setfcap].into(),
    };
    let capabilities = LinuxCapabilitiesBuilder::default()
        .bounding(kept.clone())
        .effective(kept.clone())
        .inheritable(none())
        .permitted(kept)
        .ambient(none())
        .build()?;
    ProcessBuilder::default()
        .terminal(false)
        .user(UserBuilder::default().uid(0_u32).gid(0_u32).build()?)
        .args(init.iter().cloned().chain([INIT_COMMAND.to_owned()]).collect::<Vec<_>>())
        // Init is named by its path, and commands get the keeper's; youki starts nothing without one.
        .env(vec!["PATH=/usr/bin:/bin".to_owned()])
        .cwd("/")
        .capabilities(capabilities)
        .no_new_privileges(true)
        .rlimits(Vec::new())
        .build()
}

fn mounts(flavour: Flavour) -> Result<Vec<Mount>, OciSpecError> {
    let mount = |target: &str, kind: &str, options: &[&str]| {
        MountBuilder::default()
            .destination(target)
            .typ(kind)
            .source(kind)
            .options(options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>())
            .build()
    };
    let mut mounts = vec![
        mount("/proc", "proc", &["nosuid", "noexec", "nodev"])?,
        mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"])?,
        mount("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"])?,
    ];
    if flavour != Flavour::Gvisor {
        let terminals = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"];
        mounts.insert(2, mount("/dev/pts", "devpts", &terminals)?);
    }
    Ok(mounts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{Base, Instant, SandboxId, SandboxName, WorkspaceDriver};

    fn spec() -> RunSpec {
        let instant = Instant { wall_ns: 0, boot_ns: 0, boot_id: "b".into() };
        RunSpec {
            id: SandboxId::from_random([1; 10]),
            name: SandboxName::parse("bee").unwrap(),
            provider: "oci:runc".into(),
            directory: "/state/sandboxes/x".into(),
            project: "/p".into(),
            driver: WorkspaceDriver::OverlayUserns,
            root_identity: (1, 2),
            layers: Vec::new(),
            hidden: Vec::new(),
            policy: Default::default(),
            asked: Default::default(),
            environment: Default::default(),
            home: "/home/me".into(),
            base: Base { instant, device: 1, inode: 2, commit: None },
            secrets: Default::default(),
        }
    }

    #[test]
    fn the_container_has_no_capabilities_and_cannot_gain_any() {
        let made = make(&spec(), Flavour::Plain, Ids::Range, &["/init".into()]).unwrap();
        let process = made.process().as_ref().unwrap();
        assert_eq!(process.no_new_privileges(), Some(true));
        let capabilities = process.capabilities().as_ref().unwrap();
        for set in [
            capabilities.bounding(),
            capabilities.effective(),
            capabilities.permitted(),
            capabilities.inheritable(),
            capabilities.ambient(),
        ] {
            assert_eq!(set.as_ref().map(HashSet::len), Some(0));
        }
        assert_eq!(made.root().as_ref().unwrap().readonly(), Some(true));
    }

    #[test]
    fn the_network_is_the_one_around_the_runtime() {
        let made = make(&spec(), Flavour::Plain, Ids::Range, &["/init".into()]).unwrap();
        let kinds: Vec<_> = made
            .linux()
            .as_ref()
            .unwrap()
            .namespaces()
            .iter()
            .flatten()
            .map(oci_spec::runtime::LinuxNamespace::typ)
            .collect();
        assert!(!kinds.contains(&LinuxNamespaceType::Network));
        assert!(kinds.contains(&LinuxNamespaceType::Pid));
    }
}
