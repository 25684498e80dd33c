//! Sandboxes in containers of a Docker engine on this host, and the engine's images.
//!
//! The engine makes the container; everything in it is skep's. The container's process is init
//! (`skep __init`), which knocks at a socket that is mounted into the container and from there on
//! does what it does everywhere: execs, terminals, signals, limits, the report. Commands never go
//! through the engine, so a restart of it ends nothing, and their semantics are the keeper's.
//!
//! - [`Docker`] is the provider's [`Kind`].
//! - `container` makes the request from a policy, as data: read-only root, no capabilities, no
//!   network, limits, and the workspace as an overlay volume whose upper is ours.
//! - `host_view` is the image for sandboxes without one: empty directories, at which the host's
//!   are mounted read-only.
//! - [`attend`] is the process beside each container (`skep __docker`). It talks to the engine, so
//!   that the keeper needs no async runtime, and removes the container when the keeper is gone.
//! - [`Engine`] is the way to the engine for short questions, and has the images. Its runtime has
//!   no threads: whoever asks may fork a keeper afterwards.
//!
//! ```no_run
//! use skep_keeper::kept::Kept;
//! use skep_provider::Provider;
//! let skep = || "/usr/bin/skep".into();
//! let engine = skep_provider_docker::Named::default;
//! let provider = Kept::new(skep_provider_docker::Docker::new("/state".into(), skep, engine));
//! assert_eq!(provider.name(), "docker");
//! ```
//!
//! What is deliberately not here: engines of other hosts (a sandbox's files are on this one), the
//! engine's own `exec`, networks of the engine (the only way out of a sandbox is skep's: the keeper makes
//! its doors in the container's network namespace, which takes root).

mod address;
mod attendant;
mod container;
mod engine;
mod error;
mod host_view;
mod images;
mod instance;
mod recipe;
mod record;

pub use address::{Address, DEFAULT_SOCKET, Named};
pub use attendant::{ATTENDANT_COMMAND, attend};
pub use engine::Engine;
pub use error::DockerError;
pub use images::Image;
pub use recipe::{Build, Recipe};

use attendant::Order;
use container::{INSTANCE_LABEL, Parts, SANDBOX_LABEL};
use error::{Asked, At};
use record::Record;
use skep_keeper::kept::Kind;
use skep_keeper::vessel::{
    Attended, DOOR, NO_RESOLV_CONF, RESOLV_CONF, SystemEntry, Vessel, hosts_file, system_entries,
};
use skep_provider::capabilities::{SHARED_KERNEL_LAYERS, Selection};
use skep_provider::{Boundary, Capabilities, Look, ProviderError, RunSpec};
use skep_types::{InsideUser, Layer, NetworkMode, SandboxId, WorkspaceDriver};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Runs sandboxes in containers of a Docker engine.
#[derive(Debug)]
pub struct Docker {
    state_dir: PathBuf,
    skep: fn() -> PathBuf,
    engine: fn() -> Named,
}

impl Docker {
    /// `skep` is this program; `engine` is how the engine is named. Both are asked when they are
    /// needed.
    pub fn new(state_dir: PathBuf, skep: fn() -> PathBuf, engine: fn() -> Named) -> Self {
        Self { state_dir, skep, engine }
    }

    fn engine(&self) -> Result<Engine, DockerError> {
        Engine::connect(&(self.engine)())
    }

    /// Everything on disk that the container is given, and the order for its attendant.
    fn order(&self, spec: &RunSpec) -> Result<Order, DockerError> {
        let engine = self.engine()?;
        let instance = instance::of(&self.state_dir)?;
        self.remove_orphans(&engine, &instance)?;
        let ids = ids_inside(spec)?;
        let door = prepare_door(spec, ids)?;
        let skep = (self.skep)();
        let view = match &spec.policy.image {
            None => View::of_host(&engine, &skep, &self.state_dir, ids.0)?,
            Some(reference) => View::of_image(&engine, &skep, reference)?,
        };
        let body = container::body(&Parts {
            spec,
            image: &view.image,
            system: &view.system,
            covered: &view.covered,
            settings: view.settings.as_deref(),
            variables: &view.variables,
            program: &view.program,
            program_files: &view.program_files,
            ids,
            home: &self.state_dir,
            instance: &instance,
            door: &door,
        })?;
        Ok(Order {
            address: engine.address.clone(),
            engine: engine.version.clone(),
            directory: spec.directory.clone(),
            // Copies of a state directory have the same sandboxes.
            name: format!("skep-{}-{}", spec.id, &instance[..8]),
            instance,
            project: container::project_link(spec, &door),
            body,
            foreign: spec.policy.image.is_some(),
        })
    }

    /// Containers and volumes of this state directory whose sandbox is not there any more. Others
    /// are nobody's business here.
    fn remove_orphans(&self, engine: &Engine, instance: &str) -> Result<(), DockerError> {
        use bollard::query_parameters::{ListContainersOptionsBuilder, ListVolumesOptionsBuilder};
        let own = format!("{INSTANCE_LABEL}={instance}");
        let filters = HashMap::from([("label".to_owned(), vec![own])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let containers = engine
            .wait(engine.docker.list_containers(Some(options)))
            .asked(|| "list containers".into())?;
        for container in containers {
            if let (true, Some(id)) = (self.is_orphan(container.labels.as_ref()), container.id) {
                engine.wait(attendant::remove(&engine.docker, &id, None))?;
            }
        }
        let options = ListVolumesOptionsBuilder::default().filters(&filters).build();
        let volumes = engine
            .wait(engine.docker.list_volumes(Some(options)))
            .asked(|| "list volumes".into())?;
        for volume in volumes.volumes.unwrap_or_default() {
            if self.is_orphan(Some(&volume.labels)) {
                engine.wait(attendant::remove_volume(&engine.docker, &volume.name))?;
            }
        }
        Ok(())
    }

    fn is_orphan(&self, labels: Option<&HashMap<String, String>>) -> bool {
        let sandbox = labels.and_then(|labels| labels.get(SANDBOX_LABEL));
        let sandbox = sandbox.and_then(|id| id.parse::<SandboxId>().ok());
        // What cannot be looked at may be there.
        let is_gone = |id: SandboxId| {
            let directory = self.state_dir.join("sandboxes").join(id.as_str());
            matches!(directory.try_exists(), Ok(false))
        };
        sandbox.is_some_and(is_gone)
    }
}

/// In the state directory: what everybody may read of the host's settings.
const SETTINGS: &str = "images/settings";

/// Whose system a container shows, and how init is executed on it.
struct View {
    image: String,
    system: Vec<SystemEntry>,
    covered: Vec<PathBuf>,
    /// What is shown at `/etc`, if not the host's.
    settings: Option<PathBuf>,
    variables: Vec<String>,
    program: Vec<String>,
    program_files: Vec<(PathBuf, String)>,
}

impl View {
    /// The host's, where this program is at home.
    fn of_host(
        engine: &Engine,
        skep: &Path,
        state_dir: &Path,
        user: u32,
    ) -> Result<Self, DockerError> {
        let system = system_entries();
        let image = host_view::ensure(engine, &system)?;
        let settings = match user {
            0 => {
                let copy = state_dir.join(SETTINGS);
                host_view::copy_for_all(Path::new("/etc"), &copy)
                    .at(|| "copy what everybody may read of `/etc`".into())?;
                Some(copy)
            }
            _ => None,
        };
        let (program, program_files) = container::plain_program(skep);
        let (covered, variables) = (Vec::new(), Vec::new());
        Ok(Self { image, system, covered, settings, variables, program, program_files })
    }

    /// An image's, by what its name means now. This program brings its loader and libraries.
    fn of_image(engine: &Engine, skep: &Path, reference: &str) -> Result<Self, DockerError> {
        let found = engine.settings(reference)?;
        let found = found.ok_or_else(|| DockerError::NoImage(reference.to_owned()))?;
        if let Some(volume) = found.volumes.first() {
            return Err(DockerError::Invalid(format!(
                "the image `{reference}` asks for a volume at `{volume}`: what is written there would be in no review and under no limit"
            )));
        }
        let libraries = skep_machine::initramfs::libraries(skep).map_err(|error| {
            DockerError::Invalid(format!("cannot bring skep along: {}", skep_types::chain(&error)))
        })?;
        let (program, program_files) = container::brought_program(skep, &libraries);
        Ok(Self {
            image: found.id,
            system: Vec::new(),
            // The loader would put what it names into init.
            covered: vec![attendant::PRELOAD.into()],
            settings: None,
            variables: found.variables,
            program,
            program_files,
        })
    }
}

/// The directory at which init knocks, with the small files that the container is given: they are
/// skep's, whatever the host says.
fn prepare_door(spec: &RunSpec, (uid, gid): (u32, u32)) -> Result<PathBuf, DockerError> {
    let door = spec.directory.join(DOOR);
    let step = || format!("prepare `{}`", door.display());
    match std::fs::remove_dir_all(&door) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).at(step);
        }
        _ => {}
    }
    std::fs::create_dir_all(door.join("nothing")).at(step)?;
    let resolver = match spec.policy.network {
        NetworkMode::Allow => RESOLV_CONF,
        NetworkMode::None | NetworkMode::Host => NO_RESOLV_CONF,
    };
    let files = [
        ("empty", String::new()),
        ("hosts", hosts_file(spec.name.as_str())),
        ("resolv.conf", resolver.to_owned()),
    ];
    for (name, content) in files {
        std::fs::write(door.join(name), content).at(step)?;
    }
    for (link, lower) in container::lower_links(spec, &door) {
        std::os::unix::fs::symlink(lower, link).at(step)?;
    }
    // The user in the container reads these and knocks here; links are the engine's.
    for name in ["", "nothing", "empty", "hosts", "resolv.conf"] {
        std::os::unix::fs::lchown(door.join(name), Some(uid), Some(gid)).at(step)?;
    }
    Ok(door)
}

/// Who the commands are. Containers have the host's ids, so that root becomes the project's owner:
/// root without capabilities could write nothing of another's.
fn ids_inside(spec: &RunSpec) -> Result<(u32, u32), DockerError> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if !uid.is_root() {
        return Ok((uid.as_raw(), gid.as_raw()));
    }
    let owner = rustix::fs::lstat(&spec.project)
        .map_err(std::io::Error::from)
        .at(|| format!("look at `{}`", spec.project.display()))?;
    Ok((owner.st_uid, owner.st_gid))
}

/// What cannot be had is refused before anything is made.
fn refuse(spec: &RunSpec) -> Result<(), ProviderError> {
    let missing = |what: &str, reason: &str| {
        Err(ProviderError::Missing {
            what: what.to_owned(),
            reason: reason.to_owned(),
            remedy: "use `--provider namespace`".into(),
        })
    };
    if spec.policy.scope.iter().any(|part| !part.is_root()) {
        return missing("`--scope`", "the workspace is mounted by the Docker engine, as a whole");
    }
    // The engine's network namespaces are the host's root's, whoever asked for the container.
    if spec.policy.network == NetworkMode::Allow && !rustix::process::geteuid().is_root() {
        return missing(
            "`--net allow`",
            "only root may enter the network namespace of a Docker container, where the way to skep's proxy is made",
        );
    }
    if spec.policy.user == InsideUser::Root && ids_inside(spec)?.0 != 0 {
        return missing(
            "`--user root`",
            "containers have this host's ids, and root's would be those of the host's root",
        );
    }
    let project = rustix::fs::lstat(&spec.project).map_err(|error| ProviderError::Setup {
        operation: format!("look at `{}`", spec.project.display()),
        source: error.into(),
    })?;
    if (project.st_dev, project.st_ino) != spec.root_identity {
        return Err(ProviderError::Invalid(format!(
            "`{}` is another directory than when the sandbox was created",
            spec.project.display()
        )));
    }
    Ok(())
}

impl Kind for Docker {
    fn name(&self) -> &'static str {
        "docker"
    }

    fn capabilities(&self, _: &str) -> Capabilities {
        Capabilities {
            boundary: Boundary::SharedKernel,
            // The cgroup is the engine's, which sets no weight.
            layers: SHARED_KERNEL_LAYERS
                .iter()
                .copied()
                .filter(|layer| *layer != Layer::Io)
                .collect(),
            networks: vec![NetworkMode::None, NetworkMode::Allow],
            system_cow: false,
            images: true,
            unprivileged: true,
            selection: Selection::Named,
        }
    }

    fn probe(&self, _: &str) -> Result<(), ProviderError> {
        let engine = self.engine()?;
        engine.refuse_other_ids()?;
        host_view::ensure(&engine, &system_entries())?;
        Ok(())
    }

    fn look(&self, _: &str) -> Result<Look, ProviderError> {
        let engine = self.engine()?;
        engine.refuse_other_ids()?;
        Ok(Look::whole("asked the engine, which answered; no container was run"))
    }

    fn circumstances(&self, word: &str) -> String {
        let Named { host, verified, certificates } = (self.engine)();
        let certificates = certificates.filter(|_| verified).unwrap_or_default();
        format!("{word} {} {}", host.unwrap_or_default(), certificates.display())
    }

    /// The engine mounts as root: what root's overlay leaves in a user's work directory the user
    /// could not remove.
    fn can_use(&self, driver: WorkspaceDriver) -> bool {
        match driver {
            WorkspaceDriver::OverlayUserns => rustix::process::geteuid().is_root(),
            WorkspaceDriver::Copy => true,
            WorkspaceDriver::OverlayRoot | WorkspaceDriver::FuseOverlayfs => false,
        }
    }

    fn vessel(&self, spec: &RunSpec) -> Result<Vessel, ProviderError> {
        refuse(spec)?;
        let order = self.order(spec)?;
        let mut line = serde_json::to_vec(&order)
            .map_err(|error| ProviderError::Invalid(format!("cannot make the order: {error}")))?;
        line.push(b'\n');
        Ok(Vessel::Attended(Box::new(Attended {
            skep: (self.skep)(),
            command: ATTENDANT_COMMAND.to_owned(),
            order: line,
        })))
    }

    /// An engine that does not answer is asked another time: what it holds has no processes left.
    fn clear(&self, _: &SandboxId, directory: &Path) -> Result<(), ProviderError> {
        let instance = instance::of(&self.state_dir)?;
        let Some(record) = Record::read(directory, &instance) else { return Ok(()) };
        let engine = match Engine::at(record.address.clone()) {
            Ok(engine) => engine,
            Err(DockerError::Absent { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let volume = record.volume.as_deref();
        engine.wait(attendant::remove(&engine.docker, &record.container, volume))?;
        Record::remove(directory);
        Ok(())
    }

    /// The engine mounts the workspace where the whole host sees it, and an engine that is gone unmounts
    /// nothing: removed under it, the upper would be an overlay's without a name.
    fn refuse_removal(&self, id: &SandboxId, directory: &Path) -> Result<(), ProviderError> {
        let instance = instance::of(&self.state_dir)?;
        if Record::read(directory, &instance).is_none() {
            return Ok(());
        }
        // It may have come back, or the attendant may just be at it.
        self.clear(id, directory)?;
        let mounts = std::fs::read("/proc/self/mountinfo").map_err(|source| {
            ProviderError::Setup { operation: "look at the mounts".into(), source }
        })?;
        let upper = format!("upperdir={}/upper", directory.display());
        match String::from_utf8_lossy(&mounts).split([',', ' ', '\n']).any(|word| word == upper) {
            false => Ok(()),
            true => Err(ProviderError::Missing {
                what: "the removal of the sandbox".into(),
                reason: "the Docker engine has its workspace mounted, and does not answer".into(),
                remedy: "start the engine, and remove the sandbox again; its changes are kept until then".into(),
            }),
        }
    }

    fn facts(&self, spec: &RunSpec, _: BTreeMap<String, String>) -> BTreeMap<String, String> {
        let record = instance::of(&self.state_dir)
            .ok()
            .and_then(|instance| Record::read(&spec.directory, &instance));
        let Some(record) = record else { return BTreeMap::new() };
        BTreeMap::from([
            ("container".to_owned(), record.container),
            ("image".to_owned(), record.image),
            ("engine".to_owned(), format!("Docker {}", record.engine)),
            ("socket".to_owned(), record.address.to_string()),
        ])
    }
}
