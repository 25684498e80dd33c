//! Sandboxes in containers of an OCI runtime: `oci:runc`, `oci:crun`, `oci:youki`, `oci:runsc`
//! (gVisor), or any other by its absolute path.
//!
//! The keeper makes namespaces as it always does, builds the same view in them, and starts the
//! runtime there with a bundle that says: this root, these namespaces, no capabilities, and init as
//! the container's process. Execs, terminals, signals, limits and the report then work as
//! everywhere, because the same init does them. What the runtime adds is its own boundary around
//! the processes; with gVisor that is a kernel of its own.
//!
//! - [`Oci`] is the provider's [`Kind`].
//! - `bundle` makes `config.json` from a policy.
//! - `runtime` knows the runtimes: where they are, how they are called, what they cannot do.
//!
//! ```no_run
//! use skep_keeper::kept::Kept;
//! use skep_provider::Provider;
//! let provider = Kept::new(skep_provider_oci::Oci::new("/state".into(), || "/usr/bin/skep".into()));
//! assert!(provider.serves("oci:runsc"));
//! ```
//!
//! Images are skep's own ([`skep_images`]): unpacked in the state directory, and shown read-only in place
//! of the host's system.
//!
//! What is deliberately not here: the runtime's own `exec`, whose semantics differ from runtime to
//! runtime.

mod bundle;
mod runtime;

use runtime::Flavour;
use skep_images::Images;
use skep_keeper::kept::{Kind, file_identity, probe_namespaces, version_of};
use skep_keeper::vessel::{
    Cgroups, INIT_PROGRAM, RUNTIME_FILE, Runtime, Tasks, Vessel, brought_program,
};
use skep_provider::capabilities::{SHARED_KERNEL_LAYERS, Selection};
use skep_provider::{Boundary, Capabilities, Look, ProviderError, RunSpec};
use skep_types::{Layer, NetworkMode};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Runs sandboxes in containers of an OCI runtime.
#[derive(Debug)]
pub struct Oci {
    images: Images,
    skep: fn() -> PathBuf,
}

impl Oci {
    /// For sandboxes whose state lies in `state_dir`. `skep` tells the program that has the hidden
    /// command `__init`: this one.
    pub fn new(state_dir: PathBuf, skep: fn() -> PathBuf) -> Self {
        Self { images: Images::new(&state_dir), skep }
    }

    /// The image that a sandbox shows, by what its name means now; and how init is executed on it.
    fn system(&self, spec: &RunSpec) -> Result<System, ProviderError> {
        let Some(reference) = &spec.policy.image else {
            let init = vec![INIT_PROGRAM.to_owned()];
            return Ok(System { init, brought: Vec::new(), image: None });
        };
        let image = skep_keeper::kept::find_image(&self.images, reference)?;
        let libraries = skep_machine::initramfs::libraries(&(self.skep)()).map_err(|error| {
            ProviderError::Invalid(format!(
                "cannot bring skep along: {}",
                skep_types::chain(&error)
            ))
        })?;
        let (init, brought) = brought_program(&libraries);
        Ok(System { init, brought, image: Some(image) })
    }
}

/// Whose system a container shows, and how init is executed on it.
struct System {
    init: Vec<String>,
    brought: Vec<(PathBuf, String)>,
    image: Option<PathBuf>,
}

impl Kind for Oci {
    fn name(&self) -> &'static str {
        "oci"
    }

    fn words(&self) -> Vec<String> {
        ["runc", "crun", "youki", "runsc"].map(|name| format!("oci:{name}")).into()
    }

    fn serves(&self, word: &str) -> bool {
        word == "oci" || word.starts_with("oci:")
    }

    fn capabilities(&self, word: &str) -> Capabilities {
        let mut layers = SHARED_KERNEL_LAYERS.to_vec();
        let foreign = Flavour::of(word) == Flavour::Gvisor;
        if foreign {
            // It has no Landlock of its own, and its processes are not the host's to count.
            layers.retain(|layer| !matches!(layer, Layer::Landlock | Layer::Pids));
            layers.push(Layer::Kernel);
        }
        Capabilities {
            boundary: if foreign { Boundary::UserSpaceKernel } else { Boundary::SharedKernel },
            layers,
            networks: vec![NetworkMode::None, NetworkMode::Allow],
            system_cow: false,
            images: true,
            unprivileged: true,
            selection: if foreign { Selection::WhenRequired } else { Selection::Named },
        }
    }

    fn probe(&self, word: &str) -> Result<(), ProviderError> {
        let found = runtime::find(word)?;
        runtime::version(&found)?;
        probe_namespaces(word)
    }

    fn look(&self, word: &str) -> Result<Look, ProviderError> {
        let found = runtime::find(word)?;
        let version = runtime::version(&found)?;
        probe_namespaces(word)?;
        let program = found.program.display();
        Ok(Look::whole(format!(
            "`{program}` said `{version}`, and namespaces were made for it; no container was run"
        )))
    }

    fn vessel(&self, spec: &RunSpec) -> Result<Vessel, ProviderError> {
        let found = runtime::find(&spec.provider)?;
        let System { init, brought, image } = self.system(spec)?;
        let config = bundle::config(spec, found.flavour, &init)
            .map_err(|error| ProviderError::Invalid(format!("cannot make the bundle: {error}")))?;
        Ok(Vessel::Runtime(Box::new(Runtime {
            arguments: found.arguments(&spec.id, spec.policy.network),
            tasks: match found.flavour {
                Flavour::Gvisor => Tasks::Foreign,
                Flavour::Plain | Flavour::Crun | Flavour::Youki => Tasks::Host,
            },
            cgroups: match found.flavour {
                Flavour::Crun | Flavour::Youki => Cgroups::Hidden,
                Flavour::Plain | Flavour::Gvisor => Cgroups::Seen,
            },
            program: found.program,
            config,
            brought,
            image,
            skep: (self.skep)(),
        })))
    }

    /// An upgrade changes the file, and says nothing about what runs.
    fn circumstances(&self, word: &str) -> String {
        match runtime::find(word) {
            Ok(found) => format!("{word} {}", file_identity(&found.program)),
            Err(_) => word.to_owned(),
        }
    }

    /// The version is asked of the file that was started, if it is still the same.
    fn facts(
        &self,
        spec: &RunSpec,
        mut seen: BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let file = seen.remove(RUNTIME_FILE);
        let program = seen.get("runtime").map(PathBuf::from);
        if let Some(program) = program.filter(|program| Some(file_identity(program)) == file)
            && let Ok(version) = version_of(&program)
        {
            seen.insert("version".into(), version);
        }
        seen.insert("container".to_owned(), spec.id.to_string());
        seen
    }
}
