//! The enforcement report, asked from inside.
//!
//! A child puts on everything an exec wears and then tries what must fail. What it found, not what
//! was intended, goes into the report.

use crate::confinement::{Confinement, kept_capabilities};
use crate::failure::{Failure, Step};
use crate::init::{InitSpec, Manner};
use crate::network;
use crate::view::plan::{MASKED, MaskKind};
use crate::view::system;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrV4, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use skep_provider::RunSpec;
use skep_sys::process::{Namespaces, clone_with};
use skep_types::{EnforcementReport, Layer, NetworkMode, SystemView, WorkspaceDriver};
use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

/// `statfs` type of overlayfs.
const OVERLAY_MAGIC: i64 = 0x794c_7630;
/// And of FUSE.
const FUSE_MAGIC: i64 = 0x6573_5546;

/// A file that the view would let be made and the fence does not.
const FENCED: &str = "/run/.skep-probe";

/// Why a redirect does not count.
pub const DATAGRAM_PASSES: &str = "a datagram was let through";

/// What the child found.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Findings {
    failed: Option<String>,
    system_writable: bool,
    unfenced: bool,
    system_filesystems: Vec<(String, i64)>,
    uncovered: Vec<String>,
    covered: usize,
    workspace_type: i64,
    other_interfaces: Vec<String>,
    reaches_outside: bool,
    knocked: bool,
    datagrams_pass: bool,
    first_process: bool,
    filter_active: bool,
    no_new_privileges: bool,
    capabilities: u64,
    kernel: String,
}

/// Asks, from a process that wears the fences.
pub fn from_inside(
    spec: &InitSpec<'_>,
    confinement: &Confinement,
) -> Result<EnforcementReport, Failure> {
    if let Manner::Bare { .. } = spec.manner {
        // Nothing is worn, and trying what must fail would succeed, on the host.
        return Ok(judge_bare(spec));
    }
    let run = spec.run.as_ref();
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
    let mut findings: Findings = serde_json::from_slice(&bytes)
        .map_err(|_| Failure::invalid("the probe inside the sandbox did not answer"))?;
    if let Some(reason) = findings.failed {
        return Err(Failure::missing(
            "confinement of processes",
            reason,
            "see `skep doctor` for what this host lacks",
        ));
    }
    let host = spec.host_kernel.as_ref();
    let own_kernel = host.is_some_and(|host| *host != findings.kernel);
    let workspace = workspace_type(run.driver).filter(|_| !own_kernel);
    if workspace.is_some_and(|kind| kind != findings.workspace_type) {
        return Err(Failure::missing(
            format!("the provider `{}`", run.provider),
            format!(
                "the workspace is not the one that {} makes: nothing is run in it",
                run.driver.as_str()
            ),
            "use `--provider namespace`",
        ));
    }
    if own_kernel {
        // Its `/proc` tells about itself, and nothing there acts on the host.
        findings.uncovered.clear();
    }
    let mut report = judge(run, confinement, &findings);
    if let (Some(lent), Some(processes)) = (spec.map.lent(), report.0.get_mut(&Layer::Processes)) {
        let (first, count) = lent.users;
        let ids =
            format!("; ids 1 to {count} inside are the caller's subordinate ids from {first} on");
        processes.how.push_str(&ids);
    }
    if own_kernel {
        report.on(Layer::Kernel, format!("a kernel of its own answers (`{}`)", findings.kernel));
    }
    Ok(report)
}

/// Whether what an earlier start found can be true of this one, by what this one sees by itself.
pub fn fits(known: &EnforcementReport, run: &RunSpec, confinement: &Confinement) -> bool {
    let workspace = workspace_type(run.driver);
    let fence = known.0.get(&Layer::Landlock);
    // Where they cannot be bounded, it was not so either, or it is a question for the probe.
    (confinement.is_bounded() || !known.enforces(Layer::Processes))
        && workspace.is_none_or(|kind| kind == filesystem_type(&run.project))
        && match confinement.fence() {
            Ok(how) => fence.is_some_and(|fence| fence.enforced && fence.how == how),
            Err(_) => fence.is_none_or(|fence| !fence.enforced),
        }
}

/// Nothing isolates, and the report says so layer by layer.
fn judge_bare(spec: &InitSpec<'_>) -> EnforcementReport {
    let mut report = EnforcementReport::default();
    let reason = "the provider `subprocess` does not isolate";
    let place = match spec.elsewhere() {
        true => format!(
            "the workspace is a copy at `{}`; the project itself and all else can be written",
            spec.run.directory.join("upper").display()
        ),
        false => format!(
            "workspace by {} in the project's place; all else is the host's",
            spec.run.driver.as_str()
        ),
    };
    report.off(Layer::Filesystem, place, reason);
    report.off(Layer::Network, "the host's network", reason);
    report.off(Layer::Processes, "the host's processes; descendants are ended with it", reason);
    report.off(Layer::Syscalls, "none", reason);
    report.off(Layer::Landlock, "none", reason);
    report.off(Layer::Kernel, "none", "the host's kernel is shared, and nothing stands before it");
    report
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
    let (covered, uncovered) = masks();
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    Findings {
        failed: None,
        kernel,
        unfenced: is_unfenced(run),
        system_writable: run.policy.system == SystemView::Ro && is_system_writable(run),
        system_filesystems: system::directories()
            .into_iter()
            .map(|path| (path.display().to_string(), filesystem_type(path)))
            .collect(),
        covered,
        uncovered,
        workspace_type: filesystem_type(&run.project),
        other_interfaces: other_interfaces(),
        reaches_outside: reaches_outside(),
        knocked: run.policy.network == NetworkMode::Allow && knock(),
        datagrams_pass: run.policy.network == NetworkMode::Allow && datagrams_pass(),
        first_process: rustix::process::getppid().is_some_and(|parent| parent.is_init()),
        filter_active: field("Seccomp") == "2" && denied,
        // gVisor does not show it there.
        no_new_privileges: field("NoNewPrivs") == "1"
            || rustix::thread::no_new_privs().unwrap_or(false),
        capabilities: ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
            .iter()
            // A kernel that does not name a set does not have it.
            .filter(|set| status.contains(*set))
            .map(|set| u64::from_str_radix(&field(set), 16).unwrap_or(u64::MAX))
            .fold(0, |all, set| all | set),
    }
}

fn filesystem_type(path: &Path) -> i64 {
    rustix::fs::statfs(path).map_or(0, |stat| stat.f_type)
}

/// How many masked entries of `/proc` are covered, and which are not: a hidden file must be the
/// very inode of `/dev/null`, a hidden directory must lie on another device than `/proc` and be
/// empty, a read-only one must be mounted so.
fn masks() -> (usize, Vec<String>) {
    let proc_device = rustix::fs::stat("/proc").map(|stat| stat.st_dev);
    let null = rustix::fs::stat("/dev/null").map(|stat| (stat.st_dev, stat.st_ino));
    let is_covered = |path: &str, how: MaskKind| {
        let Ok(stat) = rustix::fs::lstat(path) else { return false };
        match how {
            MaskKind::ReadOnly => rustix::fs::statvfs(path)
                .is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY)),
            MaskKind::Hide if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                proc_device.is_ok_and(|device| device != stat.st_dev)
                    && std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
            }
            MaskKind::Hide => null == Ok((stat.st_dev, stat.st_ino)),
        }
    };
    let there = MASKED.iter().filter(|(path, _)| rustix::fs::lstat(*path).is_ok());
    let (covered, open): (Vec<_>, Vec<_>) = there.partition(|(path, how)| is_covered(path, *how));
    (covered.len(), open.into_iter().map(|(path, _)| (*path).to_owned()).collect())
}

/// What could be made is removed again.
fn can_make(path: &str) -> bool {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let made = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).is_ok();
    if made {
        let _ = std::fs::remove_file(path);
    }
    made
}

/// Where the project or a mount stands nothing is tried: there it is right that a file can be made, and it would
/// be somebody's.
fn is_system_writable(run: &RunSpec) -> bool {
    let free = |probe: &&str| {
        let probe = Path::new(*probe);
        !probe.starts_with(&run.project) && !is_mounted(run, probe)
    };
    ["/usr/.skep-probe", "/etc/.skep-probe"].into_iter().filter(free).any(can_make)
}

fn is_mounted(run: &RunSpec, path: &Path) -> bool {
    run.policy.mounts.iter().any(|mount| path.starts_with(mount.target.as_path()))
}

/// Whether Landlock is not there: `/run` can be written in the view, and only the fence forbids it.
fn is_unfenced(run: &RunSpec) -> bool {
    !is_mounted(run, Path::new(FENCED)) && can_make(FENCED)
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

/// Connects to somewhere nobody is. What takes the connection must be a door, and the keeper looks
/// whether it was (`network::process`).
fn knock() -> bool {
    let connects = |address: SocketAddr| {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        let socket = rustix::net::socket_with(family, kind, flags, None);
        socket.is_ok_and(|socket| {
            match rustix::net::connect(&socket, &address) {
                Ok(()) => {}
                // On the loopback the handshake mostly happens within the call, which still says
                // "soon"; on a busy host it really is soon.
                Err(Errno::INPROGRESS) => {
                    let mut watched = [PollFd::new(&socket, PollFlags::OUT)];
                    let patience = Timespec { tv_sec: 5, tv_nsec: 0 };
                    let _ = poll(&mut watched, Some(&patience));
                }
                Err(_) => return false,
            }
            rustix::net::getpeername(&socket).is_ok()
        })
    };
    // Where there is no IPv6, the second reaches nothing; the keeper knows which it is.
    network::NOWHERE.map(connects)[0]
}

/// Whether a datagram to somewhere is let through. It could not get anywhere; the sender shall
/// know.
fn datagrams_pass() -> bool {
    let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None);
    socket.is_ok_and(|socket| {
        let [nowhere, _] = network::NOWHERE;
        rustix::net::sendto(&socket, b"?", SendFlags::empty(), &nowhere).is_ok()
    })
}

fn judge(run: &RunSpec, confinement: &Confinement, found: &Findings) -> EnforcementReport {
    let mut report = EnforcementReport::default();
    judge_files(run, found, &mut report);
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
        NetworkMode::Allow => judge_redirect(found, &mut report),
    }
    judge_processes(run, found, &mut report);
    match found.filter_active && found.no_new_privileges {
        true if confinement.notes_refused() => {
            report.on(Layer::Syscalls, "seccomp filter (refused calls are noted), no_new_privs");
        }
        true => report.on(Layer::Syscalls, "seccomp filter, no_new_privs"),
        false => report.off(Layer::Syscalls, "none", "the filter did not refuse a forbidden call"),
    }
    match confinement.fence() {
        Ok(how) if found.unfenced => {
            report.off(Layer::Landlock, how, "a fenced directory could be written");
        }
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

fn judge_redirect(found: &Findings, report: &mut EnforcementReport) {
    let how = "network namespace with loopback only, nft redirect to skep's proxy";
    // The keeper's own interface, which leads to the proxy where nothing can be redirected; nobody inside
    // can make one.
    let others: Vec<&String> =
        found.other_interfaces.iter().filter(|name| *name != network::tun::NAME).collect();
    if !others.is_empty() {
        let reason = format!("something besides loopback is there: {others:?}");
        return report.off(Layer::Network, how, reason);
    }
    match (found.knocked, found.datagrams_pass) {
        (true, false) => report.on(Layer::Network, how),
        (false, _) => report.off(Layer::Network, how, "a connection was not taken by the proxy"),
        (_, true) => report.off(Layer::Network, how, DATAGRAM_PASSES),
    }
}

/// What the project's filesystem must be inside; a copy is on whatever the state directory is on.
fn workspace_type(driver: WorkspaceDriver) -> Option<i64> {
    match driver {
        WorkspaceDriver::OverlayUserns | WorkspaceDriver::OverlayRoot => Some(OVERLAY_MAGIC),
        WorkspaceDriver::FuseOverlayfs => Some(FUSE_MAGIC),
        WorkspaceDriver::Copy => None,
    }
}

fn judge_files(run: &RunSpec, found: &Findings, report: &mut EnforcementReport) {
    let mut how = format!(
        "view of its own, workspace by {}, {} entries of /proc found covered",
        run.driver.as_str(),
        found.covered
    );
    let mut wrong = Vec::new();
    if found.system_writable {
        wrong.push("a system directory could be written".to_owned());
    }
    if !found.uncovered.is_empty() {
        wrong.push(format!("not covered: {}", found.uncovered.join(", ")));
    }
    if run.policy.system == SystemView::Cow {
        let by = match found.system_filesystems.first() {
            Some((_, FUSE_MAGIC)) => "fuse-overlayfs",
            _ => "overlay",
        };
        how.push_str(&format!(", system copy-on-write by {by}"));
        let kinds = [OVERLAY_MAGIC, FUSE_MAGIC];
        let plain = found.system_filesystems.iter().filter(|(_, kind)| !kinds.contains(kind));
        wrong.extend(plain.map(|(path, _)| format!("`{path}` is not copy-on-write")));
    }
    match wrong.is_empty() {
        true => report.on(Layer::Filesystem, how),
        false => report.off(Layer::Filesystem, how, wrong.join("; ")),
    }
}

fn judge_processes(run: &RunSpec, found: &Findings, report: &mut EnforcementReport) {
    let kept = kept_capabilities(&run.policy);
    if !found.first_process {
        return report.off(Layer::Processes, "none", "no pid namespace of its own");
    }
    match found.capabilities {
        0 => report.on(Layer::Processes, "pid namespace, no capabilities"),
        held if held & !kept.bits() == 0 => report.on(
            Layer::Processes,
            "pid namespace; kept for `--user root --system cow`, over the sandbox's own ids only: \
             CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_SETUID, CAP_SETGID",
        ),
        _ => report.off(Layer::Processes, "pid namespace", "capabilities are left"),
    }
}
