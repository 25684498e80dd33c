//! The container of a sandbox, as data: made from the policy, nothing is asked or done here.
//!
//! The view is the one that every provider shows: system directories read-only, private `/tmp`,
//! `/run` and home in memory, the workspace in the project's place. What differs is who mounts it.

use crate::error::DockerError;
use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig,
    Mount, MountBindOptions, MountBindOptionsPropagationEnum, MountType, MountVolumeOptions,
    MountVolumeOptionsDriverConfig, ResourcesUlimits,
};
use serde::{Deserialize, Serialize};
use skep_keeper::vessel::{DOOR_SOCKET, INIT_COMMAND, INIT_PROGRAM, MASKED, MaskKind, SystemEntry};
use skep_provider::RunSpec;
use skep_types::{Access, WorkspaceDriver};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Where the container has the directory with the socket at which init knocks.
const DOOR_INSIDE: &str = "/run/.skep-door";
/// Label: the path of the state directory that the container belongs to, for people.
const HOME_LABEL: &str = "skep.home";
/// Label: the number of that state directory. Another one may be seen at the same path, in
/// containers for development that share the engine's socket.
pub const INSTANCE_LABEL: &str = "skep.instance";
/// Label: the sandbox it belongs to.
pub const SANDBOX_LABEL: &str = "skep.sandbox";

/// What the engine's `mount(2)` takes of options, with room for what it adds.
const LONGEST_OPTIONS: usize = 4000;

/// Everything that a container is made from.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// The sandbox.
    pub spec: &'a RunSpec,
    /// The image's name.
    pub image: &'a str,
    /// System directories of the host that are shown; none with an image of its own.
    pub system: &'a [SystemEntry],
    /// Files and directories in them that nobody inside may read.
    pub covered: &'a [PathBuf],
    /// What is shown at `/etc`, if not the host's.
    pub settings: Option<&'a Path>,
    /// Variables that the image would set.
    pub variables: &'a [String],
    /// How init is executed inside, its own arguments excluded.
    pub program: &'a [String],
    /// What that needs: on the host, inside.
    pub program_files: &'a [(PathBuf, String)],
    /// User and group id of the caller.
    pub ids: (u32, u32),
    /// The state directory.
    pub home: &'a Path,
    /// Its number.
    pub instance: &'a str,
    /// The directory of the sandbox's with the door and files of skep's own.
    pub door: &'a Path,
}

/// The container.
pub fn body(parts: &Parts<'_>) -> Result<ContainerCreateBody, DockerError> {
    let Parts { spec, ids: (uid, gid), .. } = *parts;
    let mut entry = parts.program.to_vec();
    entry.extend([INIT_COMMAND.to_owned(), format!("{DOOR_INSIDE}/{DOOR_SOCKET}")]);
    Ok(ContainerCreateBody {
        hostname: Some(spec.name.as_str().to_owned()),
        user: Some(format!("{uid}:{gid}")),
        // Init is not confined yet when its loader reads them. Commands get the keeper's.
        env: Some(parts.variables.iter().map(|name| format!("{name}=")).collect()),
        // The engine would execute the image's itself, beside init and without our filter.
        healthcheck: Some(HealthConfig {
            test: Some(vec!["NONE".into()]),
            ..HealthConfig::default()
        }),
        image: Some(parts.image.to_owned()),
        entrypoint: Some(entry),
        cmd: Some(Vec::new()),
        working_dir: Some("/".into()),
        network_disabled: Some(true),
        labels: Some(labels(parts)?),
        host_config: Some(host_config(parts)?),
        ..ContainerCreateBody::default()
    })
}

/// Whose it is.
fn labels(parts: &Parts<'_>) -> Result<HashMap<String, String>, DockerError> {
    Ok(HashMap::from([
        (HOME_LABEL.to_owned(), text(parts.home)?),
        (INSTANCE_LABEL.to_owned(), parts.instance.to_owned()),
        (SANDBOX_LABEL.to_owned(), parts.spec.id.to_string()),
    ]))
}

fn host_config(parts: &Parts<'_>) -> Result<HostConfig, DockerError> {
    let limits = &parts.spec.policy.limits;
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let masked = |wanted: MaskKind| -> Vec<String> {
        let paths = MASKED.iter().filter(|(_, kind)| *kind == wanted);
        paths.map(|(path, _)| (*path).to_owned()).collect()
    };
    // A list of our own replaces the engine's, which covers parts of `/sys`. All of it describes the
    // host, and no other provider shows it.
    let hidden = masked(MaskKind::Hide).into_iter().chain(["/sys".to_owned()]).collect();
    let memory = limits.memory.map(|memory| number(memory.0));
    Ok(HostConfig {
        // The whole of what was asked for, swap included: none of it.
        memory,
        memory_swap: memory,
        nano_cpus: limits.cpus.map(|cpus| (cpus * 1e9) as i64),
        // Init is one more.
        pids_limit: limits.pids.map(|pids| number(pids.saturating_add(1))),
        ulimits: Some(vec![ResourcesUlimits {
            name: Some("core".into()),
            soft: Some(0),
            hard: Some(0),
        }]),
        network_mode: Some("none".into()),
        auto_remove: Some(true),
        readonly_rootfs: Some(true),
        cap_drop: Some(vec!["ALL".into()]),
        // Init puts a filter of ours on every command, which refuses more than the engine's; the
        // engine's own, older than the kernel, would refuse what init needs to do so.
        security_opt: Some(vec!["no-new-privileges".into(), "seccomp=unconfined".into()]),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        ipc_mode: Some("private".into()),
        init: Some(false),
        // What init says goes to the keeper; the engine keeps nothing.
        log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: None }),
        masked_paths: Some(hidden),
        readonly_paths: Some(masked(MaskKind::ReadOnly)),
        shm_size: Some(number(scratch(parts.spec))),
        mounts: Some(mounts(parts)?),
        tmpfs: Some(memory_filesystems(parts)?),
        ..HostConfig::default()
    })
}

/// Bytes for each filesystem in memory; they count as the sandbox's memory.
fn scratch(spec: &RunSpec) -> u64 {
    let limits = &spec.policy.limits;
    let size = limits.disk.map_or(10 << 30, |size| size.0);
    limits.memory.map_or(size, |memory| size.min(memory.0))
}

fn memory_filesystems(parts: &Parts<'_>) -> Result<HashMap<String, String>, DockerError> {
    let size = scratch(parts.spec);
    let (uid, gid) = parts.ids;
    let shared = format!("rw,exec,nosuid,nodev,size={size},mode=1777");
    let own = format!("rw,exec,nosuid,nodev,size={size},mode=0700,uid={uid},gid={gid}");
    // Writable to its user: only the fence forbids it, which is how the fence is probed.
    let run = format!("rw,noexec,nosuid,nodev,size={size},mode=0755,uid={uid},gid={gid}");
    Ok(HashMap::from([
        ("/tmp".to_owned(), shared.clone()),
        ("/var/tmp".to_owned(), shared),
        ("/run".to_owned(), run),
        (text(&parts.spec.home)?, own),
    ]))
}

fn mounts(parts: &Parts<'_>) -> Result<Vec<Mount>, DockerError> {
    let Parts { spec, door, .. } = *parts;
    let mut mounts = Vec::new();
    for entry in parts.system {
        if let SystemEntry::Directory(path) = entry {
            let own = parts.settings.filter(|_| path == Path::new("/etc"));
            mounts.push(bind(own.unwrap_or(path), &text(path)?, Access::Ro)?);
        }
    }
    for path in parts.covered {
        mounts.push(bind(&door.join("empty"), &text(path)?, Access::Ro)?);
    }
    for name in ["hosts", "resolv.conf"] {
        mounts.push(bind(&door.join(name), &format!("/etc/{name}"), Access::Ro)?);
    }
    for (source, target) in parts.program_files {
        mounts.push(bind(source, target, Access::Ro)?);
    }
    mounts.push(bind(door, DOOR_INSIDE, Access::Ro)?);
    mounts.push(bind(&spec.directory.join("messages"), "/run/skep", Access::Ro)?);
    let failed = |reason| DockerError::Refused { operation: "show the home".into(), reason };
    // Links in directories that were taken apart are left out: the engine would follow them outside.
    for piece in skep_keeper::vessel::shown_home(spec).map_err(failed)?.pieces {
        let path = spec.home.join(piece);
        mounts.push(bind(&path, &text(&path)?, Access::Ro)?);
    }
    mounts.push(workspace(parts)?);
    for mount in &spec.policy.mounts {
        let target = text(mount.target.as_path())?;
        mounts.push(bind(mount.source.as_path(), &target, mount.access)?);
    }
    for place in state_in_view(parts) {
        mounts.push(bind(&door.join("nothing"), &text(&place)?, Access::Ro)?);
    }
    Ok(mounts)
}

/// Every place where skep's own state would be seen: in a system directory, in a piece of the home,
/// or in a mount.
fn state_in_view<'a>(parts: &'a Parts<'_>) -> impl Iterator<Item = PathBuf> + 'a {
    let system = parts.system.iter().filter_map(|entry| match entry {
        // The copy of the settings holds nothing that is not everybody's.
        SystemEntry::Directory(path) if parts.settings.is_some() && path == Path::new("/etc") => {
            None
        }
        SystemEntry::Directory(path) if parts.home.starts_with(path) => Some(parts.home.into()),
        _ => None,
    });
    let mounts = parts.spec.policy.mounts.iter().filter_map(|mount| {
        let below = parts.home.strip_prefix(mount.source.as_path()).ok()?;
        Some(mount.target.as_path().join(below))
    });
    let pieces = parts.spec.policy.home.iter().map(|piece| parts.spec.home.join(piece.as_path()));
    let home = pieces.filter(|piece| parts.home.starts_with(piece)).map(|_| parts.home.into());
    system.chain(home).chain(mounts)
}

/// Without what is mounted below it: the engine would show that writable.
fn bind(source: &Path, target: &str, access: Access) -> Result<Mount, DockerError> {
    Ok(Mount {
        typ: Some(MountType::BIND),
        source: Some(text(source)?),
        target: Some(target.to_owned()),
        read_only: Some(access == Access::Ro),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            non_recursive: Some(true),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    })
}

/// The workspace in the project's place: an overlay that the engine mounts as a volume without a
/// name, which goes with the container; or the copy.
fn workspace(parts: &Parts<'_>) -> Result<Mount, DockerError> {
    let spec = parts.spec;
    let target = text(&spec.project)?;
    if spec.driver == WorkspaceDriver::Copy {
        return bind(&spec.directory.join("upper"), &target, Access::Rw);
    }
    let options = HashMap::from([
        ("type".to_owned(), "overlay".to_owned()),
        ("device".to_owned(), "overlay".to_owned()),
        ("o".to_owned(), overlay_options(spec, parts.door)?),
    ]);
    Ok(Mount {
        typ: Some(MountType::VOLUME),
        target: Some(target),
        volume_options: Some(MountVolumeOptions {
            // Else the engine would copy what the image has there into it.
            no_copy: Some(true),
            labels: Some(labels(parts)?),
            driver_config: Some(MountVolumeOptionsDriverConfig {
                name: Some("local".into()),
                options: Some(options),
            }),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    })
}

/// The links through which the option string names what lies below, topmost first: paths that skep
/// made, whatever the project is called.
pub fn lower_links(spec: &RunSpec, door: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mask = (!spec.hidden.is_empty()).then(|| spec.directory.join("mask"));
    let lowers = spec.layers.iter().cloned().chain(mask).chain([spec.project.clone()]);
    lowers.enumerate().map(|(index, lower)| (door.join(format!("l{index}")), lower)).collect()
}

/// The link that stands for the project, which the attendant makes: the engine may see another
/// directory under the project's name.
pub fn project_link(spec: &RunSpec, door: &Path) -> Option<ProjectLink> {
    let (link, project) = lower_links(spec, door).pop()?;
    (spec.driver != WorkspaceDriver::Copy).then_some(ProjectLink {
        link,
        project,
        identity: spec.root_identity,
    })
}

/// The project, and how the engine is told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectLink {
    /// Named in the option string.
    pub link: PathBuf,
    /// The project.
    #[serde(with = "skep_provider::paths::one")]
    pub project: PathBuf,
    /// Its device and inode.
    pub identity: (u64, u64),
}

fn overlay_options(spec: &RunSpec, door: &Path) -> Result<String, DockerError> {
    let plain = |path: &Path| -> Result<String, DockerError> {
        let text = text(path)?;
        let harmless = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@".contains(&byte);
        match text.bytes().all(harmless) {
            true => Ok(text),
            false => Err(DockerError::Invalid(format!(
                "the state directory cannot be named to the Docker engine: `{text}` has characters other than letters, digits and `/._-+@`; name another one with `--home DIR`"
            ))),
        }
    };
    let lowers: Vec<String> =
        lower_links(spec, door).iter().map(|(link, _)| plain(link)).collect::<Result<_, _>>()?;
    let options = format!(
        "userxattr,index=off,metacopy=off,redirect_dir=nofollow,lowerdir={},upperdir={},workdir={}",
        lowers.join(":"),
        plain(&spec.directory.join("upper"))?,
        plain(&spec.directory.join("work"))?,
    );
    // `mount(2)` cuts what is longer without a word, and another tree would be seen.
    if options.len() > LONGEST_OPTIONS {
        return Err(DockerError::Invalid(format!(
            "a sandbox with {} layers has more of them than the Docker engine can mount",
            lowers.len()
        )));
    }
    Ok(options)
}

/// Names travel as JSON, which has no other bytes.
fn text(path: &Path) -> Result<String, DockerError> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        DockerError::Invalid(format!(
            "`{}` is no UTF-8 text, and the Docker engine can be told no other names; use `--provider namespace`",
            path.display()
        ))
    })
}

/// How init is executed where the host's libraries are in place.
pub fn plain_program(skep: &Path) -> (Vec<String>, Vec<(PathBuf, String)>) {
    (vec![INIT_PROGRAM.to_owned()], vec![(skep.to_owned(), INIT_PROGRAM.to_owned())])
}

/// How it is executed where nothing of the host's is.
pub fn brought_program(
    skep: &Path,
    libraries: &[PathBuf],
) -> (Vec<String>, Vec<(PathBuf, String)>) {
    let (program, libraries) = skep_keeper::vessel::brought_program(libraries);
    let (_, mut files) = plain_program(skep);
    files.extend(libraries);
    (program, files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{Base, Instant, SandboxId, SandboxName};

    fn spec() -> RunSpec {
        let instant = Instant { wall_ns: 0, boot_ns: 0, boot_id: "b".into() };
        RunSpec {
            id: SandboxId::from_random([1; 10]),
            name: SandboxName::parse("bee").unwrap(),
            provider: "docker".into(),
            directory: "/state/sandboxes/x".into(),
            project: "/p,lowerdir=/etc".into(),
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

    fn made(spec: &RunSpec) -> Result<ContainerCreateBody, DockerError> {
        body(&Parts {
            spec,
            image: "i",
            system: &[SystemEntry::Directory("/usr".into())],
            covered: &["/etc/ld.so.preload".into()],
            settings: None,
            variables: &["LD_PRELOAD".to_owned()],
            program: &["/init".to_owned()],
            program_files: &[],
            ids: (1000, 100),
            home: Path::new("/state"),
            instance: "n",
            door: Path::new("/state/sandboxes/x/door"),
        })
    }

    #[test]
    fn the_container_can_do_nothing_and_belongs_to_its_sandbox() {
        let spec = spec();
        let body = made(&spec).unwrap();
        let host = body.host_config.unwrap();
        assert_eq!(body.user.as_deref(), Some("1000:100"));
        assert_eq!(host.cap_drop, Some(vec!["ALL".to_owned()]));
        assert_eq!(host.readonly_rootfs, Some(true));
        assert_eq!(host.network_mode.as_deref(), Some("none"));
        assert!(host.security_opt.unwrap().contains(&"no-new-privileges".to_owned()));
        assert_eq!(body.env, Some(vec!["LD_PRELOAD=".to_owned()]));
        assert_eq!(body.healthcheck.unwrap().test, Some(vec!["NONE".to_owned()]));
        let labels = body.labels.unwrap();
        assert_eq!(labels[SANDBOX_LABEL], spec.id.to_string());
        let writable: Vec<_> = host
            .mounts
            .unwrap()
            .into_iter()
            .filter(|mount| mount.read_only != Some(true))
            .collect();
        assert_eq!(writable.len(), 1);
        assert_eq!(writable[0].target.as_deref(), Some("/p,lowerdir=/etc"));
    }

    #[test]
    fn a_project_cannot_put_options_into_the_mount() {
        let spec = spec();
        let door = spec.directory.join("door");
        let options = overlay_options(&spec, &door).unwrap();
        assert!(options.contains("lowerdir=/state/sandboxes/x/door/l0,upperdir="), "{options}");
        assert!(!options.contains("/etc"), "{options}");
        let odd = RunSpec { directory: "/state,x/sandboxes/x".into(), ..spec };
        assert!(made(&odd).is_err());
    }

    #[test]
    fn the_state_is_covered_wherever_it_would_be_seen() {
        let mut spec = spec();
        let mount = |source: &str| skep_types::Mount {
            source: source.into(),
            target: "/seen".into(),
            access: Access::Ro,
        };
        spec.policy.mounts = vec![mount("/"), mount("/elsewhere")];
        let made = made(&spec).unwrap().host_config.unwrap().mounts.unwrap();
        let covers = |target: &str| {
            made.iter().any(|mount| {
                mount.target.as_deref() == Some(target)
                    && mount.source.as_deref() == Some("/state/sandboxes/x/door/nothing")
            })
        };
        assert!(covers("/seen/state") && !covers("/seen"));
    }

    #[test]
    fn too_many_layers_are_refused_and_never_cut() {
        let layers = vec![PathBuf::from("/l"); 200];
        assert!(made(&RunSpec { layers, ..spec() }).is_err());
    }
}
