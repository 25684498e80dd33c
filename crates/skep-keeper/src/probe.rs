//! The enforcement report, asked from inside.
//!
//! A child puts on everything an exec wears and then tries what must fail. What it found, not what
//! was intended, goes into the report.

use crate::confinement::Confinement;
use crate::failure::{Failure, Step};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrV4, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use skep_provider::RunSpec;
use skep_sys::process::{Namespaces, clone_with};
use skep_types::{EnforcementReport, Layer, NetworkMode, WorkspaceDriver};
use std::fs::File;
use std::io::Read;
use std::net::Ipv4Addr;

/// `statfs` type of overlayfs.
const OVERLAY_MAGIC: i64 = 0x794c_7630;

/// What the child found.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Findings {
    failed: Option<String>,
    system_writable: bool,
    workspace_is_overlay: bool,
    other_interfaces: Vec<String>,
    reaches_outside: bool,
    first_process: bool,
    filter_active: bool,
    no_new_privileges: bool,
    capabilities: bool,
}

/// Asks, from a process that wears the fences.
pub fn from_inside(run: &RunSpec, confinement: &Confinement) -> Result<EnforcementReport, Failure> {
    let step = || "probe the sandbox from inside".to_owned();
    let (answer, report) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).step(step)?;
    let child = clone_with(Namespaces::NONE, || {
        let findings = look(run, confinement);
        let _ = rustix::io::write(&report, &crate::protocol::to_json(&findings));
        0
    })
    .step(step)?;
    drop(report);
    let mut bytes = Vec::new();
    File::from(answer).read_to_end(&mut bytes).step(step)?;
    skep_sys::process::wait_for(&child).step(step)?;
    let findings: Findings = serde_json::from_slice(&bytes)
        .map_err(|_| Failure::invalid("the probe inside the sandbox did not answer"))?;
    match findings.failed {
        Some(reason) => Err(Failure::missing(
            "confinement of processes",
            reason,
            "see `skep doctor` for what this host lacks",
        )),
        None => Ok(judge(run, confinement, &findings)),
    }
}

fn look(run: &RunSpec, confinement: &Confinement) -> Findings {
    let worn = confinement
        .drop_privileges()
        .and_then(|()| confinement.raise_fence())
        .and_then(|()| confinement.filter_system_calls());
    if let Err(error) = worn {
        return Findings { failed: Some(skep_types::chain(&error)), ..Findings::default() };
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|rest| rest.trim_start_matches(':').trim().to_owned()).unwrap_or_default()
    };
    let denied = matches!(rustix::process::chroot("/"), Err(Errno::PERM | Errno::NOSYS));
    Findings {
        failed: None,
        system_writable: can_make("/usr/.skep-probe") || can_make("/etc/.skep-probe"),
        workspace_is_overlay: rustix::fs::statfs(&run.project)
            .is_ok_and(|stat| stat.f_type == OVERLAY_MAGIC),
        other_interfaces: other_interfaces(),
        reaches_outside: reaches_outside(),
        first_process: rustix::process::getppid().is_some_and(|parent| parent.is_init()),
        filter_active: field("Seccomp") == "2" && denied,
        no_new_privileges: field("NoNewPrivs") == "1",
        capabilities: ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
            .iter()
            .any(|set| field(set).bytes().any(|digit| digit != b'0')),
    }
}

fn can_make(path: &str) -> bool {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).is_ok()
}

fn other_interfaces() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let names = text.lines().skip(2).filter_map(|line| line.split(':').next());
    names.map(|name| name.trim().to_owned()).filter(|name| name != "lo").collect()
}

/// Connecting a datagram socket sends nothing; it only asks the kernel for a route. The address is
/// one of those reserved for documentation.
fn reaches_outside() -> bool {
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    );
    let address = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 9);
    socket.is_ok_and(|socket| rustix::net::connect(&socket, &address).is_ok())
}

fn judge(run: &RunSpec, confinement: &Confinement, found: &Findings) -> EnforcementReport {
    let mut report = EnforcementReport::default();
    let overlay = match run.driver {
        WorkspaceDriver::OverlayUserns | WorkspaceDriver::OverlayRoot => found.workspace_is_overlay,
        WorkspaceDriver::FuseOverlayfs | WorkspaceDriver::Copy => true,
    };
    let how = format!("view of its own, workspace by {}", run.driver.as_str());
    match (found.system_writable, overlay) {
        (false, true) => report.on(Layer::Filesystem, how),
        (true, _) => report.off(Layer::Filesystem, how, "a system directory could be written"),
        (false, false) => report.off(Layer::Filesystem, how, "the workspace is not an overlay"),
    }
    match run.policy.network {
        NetworkMode::Host => {
            report.off(Layer::Network, "the host's network", "`--net host` was asked for");
        }
        NetworkMode::None if found.reaches_outside || !found.other_interfaces.is_empty() => {
            let reason =
                format!("something besides loopback is there: {:?}", found.other_interfaces);
            report.off(Layer::Network, "network namespace", reason);
        }
        NetworkMode::None => report.on(Layer::Network, "network namespace with loopback only"),
    }
    match (found.first_process, found.capabilities) {
        (true, false) => report.on(Layer::Processes, "pid namespace, no capabilities"),
        (false, _) => report.off(Layer::Processes, "none", "no pid namespace of its own"),
        (true, true) => report.off(Layer::Processes, "pid namespace", "capabilities are left"),
    }
    match found.filter_active && found.no_new_privileges {
        true => report.on(Layer::Syscalls, "seccomp filter, no_new_privs"),
        false => report.off(Layer::Syscalls, "none", "the filter did not refuse a forbidden call"),
    }
    match confinement.fence() {
        Ok(how) => report.on(Layer::Landlock, how),
        Err(reason) => report.off(Layer::Landlock, "none", reason),
    }
    report.off(
        Layer::Kernel,
        "namespaces",
        "the host's kernel is shared; use a microVM or gVisor for hostile code",
    );
    report
}
