//! The settings in force: built-in, profile, user's file, project's file, what was typed.

use crate::Desk;
use crate::api::{CreateRequest, Finding};
use crate::problems::{OrProblem, io_problem};
use skep_policy::{ConfigDocument, HostFacts, Origins, Settings, Sources};
use skep_types::{Code, Layer, Limits, Mount, NetworkMode, Problem, RelPath};
use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Largest settings file that is read at all.
const LARGEST: u64 = 256 << 10;

impl Desk {
    /// What is in force for a project, and where each value comes from.
    pub(crate) fn settings(
        &self,
        project: Option<&Path>,
        typed: Option<&ConfigDocument>,
    ) -> Result<(Settings, Origins), Problem> {
        let parse = |text: &[u8], name: &str| {
            ConfigDocument::parse(text, name)
                .map_err(|error| Problem::from_error(Code::Usage, &error))
        };
        let file = |config: &Option<(Vec<u8>, String)>| {
            let document = config.as_ref().map(|(text, name)| parse(text, name)).transpose();
            document.map_err(of_owner)
        };
        let (system, user) = (file(&self.config.system_config)?, file(&self.config.user_config)?);
        let variables =
            self.config.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let environment = ConfigDocument::from_variables(variables)
            .map_err(|error| of_owner(Problem::from_error(Code::Usage, &error)))?;
        let project = match project {
            Some(project) => project_file(project)?,
            None => None,
        };
        let project = project.map(|(text, name)| parse(&text, &name)).transpose()?;
        let sources = Sources {
            host: self.host_facts(),
            system: system.as_ref(),
            user: user.as_ref(),
            environment: environment.as_ref(),
            project: project.as_ref(),
            command_line: typed,
        };
        Settings::resolve(&sources).or_problem()
    }

    /// Whether the settings can be read, for `skep doctor`.
    pub(crate) fn settings_finding(&self) -> Finding {
        let problem = self.settings(None, None).err();
        Finding {
            name: "settings".into(),
            ok: problem.is_none(),
            tried: true,
            how: "the system's file, the user's file and `SKEP_…` variables were read".into(),
            remedy: problem.as_ref().map(|problem| match &problem.hint {
                Some(hint) => hint.clone(),
                None => "mend it: until then nothing is created".into(),
            }),
            reason: problem.map(|problem| problem.message),
        }
    }

    fn host_facts(&self) -> HostFacts {
        let memory = rustix::system::sysinfo();
        let unit = u64::from(memory.mem_unit.max(1));
        let filesystem = rustix::fs::statvfs(self.layout().root()).ok();
        HostFacts {
            memory: Some(memory.totalram as u64 * unit),
            state_filesystem: filesystem.map(|stat| stat.f_blocks * stat.f_frsize),
            open_files: rustix::process::getrlimit(rustix::process::Resource::Nofile)
                .maximum
                .map(skep_types::Limits::most_open_files),
        }
    }
}

/// What is wrong with settings that are the owner's of this state directory, not those of who asks.
fn of_owner(problem: Problem) -> Problem {
    problem.details(serde_json::json!({ "settings": "owner" }))
}

/// Whether a problem is about settings that only the owner of the state directory can mend.
pub fn is_of_owner(problem: &Problem) -> bool {
    problem.details["settings"] == "owner"
}

/// The project's own file. It belongs to the project, so it is read with care: no link is
/// followed, and nothing large is taken in.
fn project_file(project: &Path) -> Result<Option<(Vec<u8>, String)>, Problem> {
    let path = project.join("skep.toml");
    let failed = |error: &std::io::Error| io_problem("read settings", &path, error);
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file =
        match std::fs::File::options().read(true).custom_flags(flags.bits() as i32).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&error)),
        };
    let metadata = file.metadata().map_err(|error| failed(&error))?;
    if !metadata.is_file() || metadata.len() > LARGEST {
        let message =
            format!("`{}` is not a settings file (a regular file up to 256 KiB)", path.display());
        return Err(Problem::new(Code::Usage, message));
    }
    let mut text = Vec::new();
    file.take(LARGEST).read_to_end(&mut text).map_err(|error| failed(&error))?;
    Ok(Some((text, path.display().to_string())))
}

/// What was typed, in the form of a settings file.
pub(crate) fn typed(request: &CreateRequest, project: &Path) -> Result<ConfigDocument, Problem> {
    let mut document =
        ConfigDocument { profile: request.profile.clone(), ..ConfigDocument::default() };
    let limits = &request.limits;
    let into = &mut document.limits;
    into.memory = limits.memory.map(Some);
    into.cpus = limits.cpus.map(Some);
    into.cpu_time = limits.cpu_time.map(Some);
    into.pids = limits.pids.map(Some);
    into.disk = limits.disk.map(Some);
    into.inodes = limits.inodes.map(Some);
    into.open_files = limits.open_files.map(Some);
    into.timeout = limits.timeout.map(Some);
    into.grace = limits.grace.map(Some);
    into.idle_timeout = limits.idle_timeout.map(Some);
    into.silence_timeout = limits.silence_timeout.map(Some);
    into.output = limits.output.map(Some);
    into.io_weight = limits.io_weight.map(Some);
    let sandbox = &mut document.sandbox;
    sandbox.network = network(request)?;
    sandbox.system = request.system;
    sandbox.user = request.user;
    sandbox.best_effort = request.best_effort.then_some(true);
    sandbox.mounts = some(mounts(request)?);
    sandbox.hide = some(request.hide.clone());
    sandbox.show = some(request.show.clone());
    sandbox.env = request.env.clone();
    sandbox.require = Some(request.require.clone()).filter(|layers| !layers.is_empty());
    sandbox.scope = some(scope(request, project)?);
    document.changes.allow = some(request.allow_changes.clone());
    document.changes.deny = some(request.deny_changes.clone());
    let egress = &mut document.egress;
    let allow = skep_policy::canonical_rules(&request.allow)
        .map_err(|error| Problem::from_error(Code::Usage, &error))?;
    egress.allow = some(allow);
    egress.secrets = some(request.secrets.clone());
    egress.secret_env = some(request.secret_env.clone());
    egress.publish = some(request.publish.clone());
    document.provider.name = request.provider.clone();
    Ok(document)
}

/// A rule that is typed says that there is a way out.
fn network(request: &CreateRequest) -> Result<Option<NetworkMode>, Problem> {
    match (request.network, request.allow.is_empty()) {
        (network, true) => Ok(network),
        (None | Some(NetworkMode::Allow), false) => Ok(Some(NetworkMode::Allow)),
        (Some(other), false) => {
            let word = skep_provider::capabilities::word_for(other);
            let message = format!("`--allow` and `--net {word}` do not go together");
            Err(Problem::new(Code::Usage, message).hint("leave one of them out"))
        }
    }
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    Some(list).filter(|list| !list.is_empty())
}

/// Limits that were typed, as the layers that must hold.
pub fn asked_layers(limits: &Limits) -> BTreeSet<Layer> {
    let typed = [
        (limits.memory.is_some(), Layer::Memory),
        (limits.cpus.is_some() || limits.cpu_time.is_some(), Layer::Cpu),
        (limits.pids.is_some(), Layer::Pids),
        (limits.disk.is_some() || limits.inodes.is_some(), Layer::Disk),
        (limits.io_weight.is_some(), Layer::Io),
    ];
    typed.into_iter().filter(|(typed, _)| *typed).map(|(_, layer)| layer).collect()
}

fn mounts(request: &CreateRequest) -> Result<Vec<Mount>, Problem> {
    let mut mounts = Vec::new();
    for mount in &request.mounts {
        mounts.push(mount_of(&mount.source, &mount.target, mount.access, "--mount")?);
    }
    if let Some(archive) = &request.archive {
        mounts.push(mount_of(
            archive,
            Path::new("/candidate"),
            skep_types::Access::Ro,
            "--archive",
        )?);
    }
    for (name, path) in &request.datasets {
        let single = RelPath::root().join(name.as_bytes());
        let name = single.map_err(|error| Problem::from_error(Code::Usage, &error))?;
        let target = Path::new("/datasets").join(name.as_path());
        mounts.push(mount_of(path, &target, skep_types::Access::Ro, "--dataset")?);
    }
    // Of two mounts at one place the first would be there and never be seen.
    let mut places = BTreeSet::new();
    for mount in &mounts {
        let place: PathBuf = mount.target.as_path().components().collect();
        if !places.insert(place) {
            let message = format!("two mounts have the same place inside, `{}`", mount.target);
            return Err(Problem::new(Code::Usage, message).hint("give each its own place"));
        }
    }
    Ok(mounts)
}

/// A mount that can be written and overlaps the project would let changes past the review; one of
/// our own state would show the other sandboxes. (A directory around the state may be mounted: the
/// state is then covered.)
pub(crate) fn check_mounts(mounts: &[Mount], project: &Path, state: &Path) -> Result<(), Problem> {
    for mount in mounts {
        let source = mount.source.as_path();
        let overlaps = source.starts_with(project) || project.starts_with(source);
        let reason = if source.starts_with(state) {
            "it is part of skep's own state"
        } else if mount.access == skep_types::Access::Rw && overlaps {
            "it can be written and overlaps the project, whose changes are to be reviewed"
        } else {
            continue;
        };
        let message = format!("cannot mount `{}`: {reason}", source.display());
        return Err(Problem::new(Code::Refused, message)
            .hint("mount it read-only, or a directory beside it"));
    }
    Ok(())
}

/// A provider's own program (`oci:/PATH`) runs on the host, so that it must be nothing that a
/// sandbox has made: no part of the state, where the uppers are, and none of the project.
pub(crate) fn check_program(word: &str, project: &Path, state: &Path) -> Result<(), Problem> {
    let named = word.split_once(':').map(|(_, name)| Path::new(name));
    // What is not there is the provider's to tell.
    let Some(Ok(program)) = named.filter(|name| name.is_absolute()).map(std::fs::canonicalize)
    else {
        return Ok(());
    };
    let within = |place: &Path| {
        program.starts_with(place)
            || std::fs::canonicalize(place).is_ok_and(|place| program.starts_with(place))
    };
    let reason = if within(state) {
        "it is part of skep's own state"
    } else if within(project) {
        "it is part of the project"
    } else {
        return Ok(());
    };
    let message = format!("cannot run `{}` on the host: {reason}", program.display());
    Err(Problem::new(Code::Refused, message).hint("name an installed runtime, such as `oci:runc`"))
}

fn mount_of(
    source: &Path,
    target: &Path,
    access: skep_types::Access,
    flag: &str,
) -> Result<Mount, Problem> {
    let source = std::fs::canonicalize(source).map_err(|error| {
        Problem::new(Code::Usage, format!("{flag}: `{}`: {error}", source.display()))
            .hint("the source must exist on the host; nothing is made for it")
    })?;
    let normal = target.is_absolute()
        && target.components().all(|part| {
            matches!(part, std::path::Component::RootDir | std::path::Component::Normal(_))
        });
    if !normal || target == Path::new("/") {
        let message = format!("{flag}: `{}` is not an absolute path inside", target.display());
        return Err(Problem::new(Code::Usage, message));
    }
    Ok(Mount { source: source.into(), target: target.into(), access })
}

fn scope(request: &CreateRequest, project: &Path) -> Result<Vec<RelPath>, Problem> {
    let relative = |path: &PathBuf| {
        let inside = path.strip_prefix(project).unwrap_or(path);
        let bytes = std::os::unix::ffi::OsStrExt::as_bytes(inside.as_os_str());
        RelPath::parse(bytes).map_err(|error| Problem::from_error(Code::Usage, &error))
    };
    request.scope.iter().map(relative).collect()
}
