//! The microvm provider: a sandbox whose commands run in a guest with a kernel of its own.
//!
//! It is a sandbox in namespaces with one thing more: a machine ([`skep_machine`]), booted inside
//! the sandbox's namespaces on the sandbox's view. So everything but the place where commands run
//! is the same, the review first of all; and an escape from the guest ends in an ordinary sandbox.
//!
//! KVM is used only where a guest was seen to boot with it; `/dev/kvm` being there says little.
//! Otherwise the guest's instructions are emulated, which is some twenty times slower and is done
//! only where a setting allows it (`provider.microvm.emulation`).
//!
//! The guest has no network card; what the rules allow is reached over the line it has.
//!
//! What it does not do yet: the host's network, a copy-on-write system, limits of total
//! processor time (the guest's processors are the machine's).
//!
//! ```no_run
//! use skep_keeper::kept::Kept;
//! use skep_provider::Provider;
//! let microvm = skep_provider_microvm::Microvm::new(
//!     "/home/me/.local/state/skep".into(),
//!     Box::new(|| skep_provider_microvm::Surroundings {
//!         emulation: skep_provider_microvm::Emulation::Allowed,
//!         program: "/usr/bin/skep".into(),
//!         kernel: None,
//!     }),
//! );
//! assert_eq!(Kept::new(microvm).name(), "microvm");
//! ```

mod accelerator;

use accelerator::Known;
use skep_images::Images;
use skep_keeper::kept::{Kind, file_identity, find_image, probe_namespaces, version_of};
use skep_keeper::vessel::Vessel;
use skep_machine::kernel::{self, Kernel};
use skep_machine::{MachineError, MachineSpec, initramfs};
use skep_provider::capabilities::{Boundary, Capabilities, SHARED_KERNEL_LAYERS, Selection};
use skep_provider::{Look, ProviderError, RunSpec};
use skep_types::{ExecSpec, Layer, NetworkMode};
use std::path::{Path, PathBuf};

/// Whether the guest's instructions may be run in software.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emulation {
    /// `provider.microvm.emulation = true`.
    Allowed,
    /// The default.
    Refused,
}

/// What is asked only when a machine is wanted: it costs time, and most sandboxes have none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surroundings {
    /// Whether emulation is allowed.
    pub emulation: Emulation,
    /// This very program, which is the guest's init.
    pub program: PathBuf,
    /// The kernel that the settings name: an image, or a directory with `boot` and `lib/modules` in it.
    pub kernel: Option<PathBuf>,
}

/// Memory of a guest for which none was asked, in MiB: what is not used is not taken, but the
/// guest's kernel keeps a table of all of it.
const DEFAULT_MEMORY: u64 = 2048;
/// The least a guest runs with, beside its initial file system.
const LEAST_MEMORY: u64 = 128;

const QEMU: &[&str] = &["/usr/bin/qemu-system-x86_64"];
const SHARE_DAEMON: &[&str] = &["/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd"];

/// Runs the commands of a sandbox in a guest.
pub struct Microvm {
    images: PathBuf,
    store: Images,
    surroundings: Box<dyn Fn() -> Surroundings + Send + Sync>,
}

/// Everything a machine is made of.
struct Parts {
    qemu: PathBuf,
    share_daemon: PathBuf,
    kernel: Kernel,
    initramfs: PathBuf,
    emulation: Emulation,
}

impl Microvm {
    /// For sandboxes whose state lies in `state_dir`.
    pub fn new(
        state_dir: PathBuf,
        surroundings: Box<dyn Fn() -> Surroundings + Send + Sync>,
    ) -> Self {
        Self { images: state_dir.join("images"), store: Images::new(&state_dir), surroundings }
    }

    /// Where a kernel is looked for: ours first, then the host's own.
    fn kernel_places(&self) -> [PathBuf; 3] {
        [self.images.join("kernel"), "/var/lib/skep/kernel".into(), "/".into()]
    }

    /// The one that was named, and no other; else the first that is found.
    fn find_kernel(&self, around: &Surroundings) -> Result<Kernel, MachineError> {
        match &around.kernel {
            Some(named) => kernel::named(named),
            None => kernel::find(&self.kernel_places()),
        }
    }

    fn parts(&self) -> Result<Parts, MachineError> {
        let qemu = installed(QEMU, "QEMU", "qemu-system-x86")?;
        let share_daemon =
            installed(SHARE_DAEMON, "the share daemon virtiofsd", "qemu-system-common")?;
        let around = (self.surroundings)();
        let kernel = self.find_kernel(&around)?;
        let directory = self.images.join("initramfs");
        let Surroundings { emulation, program, .. } = around;
        let initramfs = initramfs::prepare(&directory, &kernel, &program)?;
        Ok(Parts { qemu, share_daemon, kernel, initramfs, emulation })
    }

    fn machine(&self, spec: &RunSpec) -> Result<MachineSpec, ProviderError> {
        let parts = self.parts().map_err(missing)?;
        let accelerator = accelerator::choose(&self.images, &parts).map_err(missing)?;
        let image = spec.policy.image.as_deref();
        let image = image.map(|name| find_image(&self.store, name)).transpose()?;
        let limits = &spec.policy.limits;
        let wanted = limits.memory.map_or(DEFAULT_MEMORY, |memory| memory.0 >> 20);
        let memory_mib = match spec.asked.contains(&Layer::Memory) {
            true => wanted,
            false => wanted.min(DEFAULT_MEMORY),
        };
        let least = least_memory(&parts.initramfs);
        if memory_mib < least {
            return Err(ProviderError::Invalid(format!(
                "a machine does not boot with {memory_mib} MiB of memory; give it `--memory {least}M` or more"
            )));
        }
        let available = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let processors = limits.cpus.map_or(available, |rate| rate.ceil().max(1.0) as u32);
        let version = version_of(&parts.qemu).map_err(|reason| {
            missing(MachineError::Missing {
                what: "QEMU",
                reason,
                remedy: "install the Debian package qemu-system-x86 anew".into(),
            })
        })?;
        Ok(MachineSpec {
            version,
            qemu: parts.qemu,
            share_daemon: parts.share_daemon,
            kernel: parts.kernel.image,
            initramfs: parts.initramfs,
            image,
            accelerator,
            memory_mib,
            processors: processors.min(available),
            console: spec.directory.join("console.log"),
        })
    }
}

/// The guest's kernel holds the initial file system twice while it unpacks it, and some more.
fn least_memory(initramfs: &Path) -> u64 {
    let size = std::fs::metadata(initramfs).map_or(0, |metadata| metadata.len() >> 20);
    LEAST_MEMORY + 3 * size
}

fn installed(places: &[&str], what: &'static str, package: &str) -> Result<PathBuf, MachineError> {
    let found = places.iter().map(Path::new).find(|path| path.is_file());
    found.map(Path::to_owned).ok_or_else(|| MachineError::Missing {
        what,
        reason: format!("looked for {}", places.join(", ")),
        remedy: format!("install the Debian package {package}"),
    })
}

fn missing(error: MachineError) -> ProviderError {
    let what = "the microvm provider".to_owned();
    match error {
        MachineError::Missing { what: part, reason, remedy } => {
            ProviderError::Missing { what, reason: format!("{part} is missing ({reason})"), remedy }
        }
        other => ProviderError::Missing {
            what,
            reason: skep_types::chain(&other),
            remedy: "see `skep doctor`".into(),
        },
    }
}

/// What has no meaning in a guest is refused, not ignored.
fn refuse_processor_time(time: Option<std::time::Duration>) -> Result<(), ProviderError> {
    match time {
        None => Ok(()),
        Some(_) => Err(ProviderError::Missing {
            what: "`--cpu-time`".into(),
            reason: "processor time is used by the machine, not by one command in it".into(),
            remedy: "use `--timeout`, or another provider".into(),
        }),
    }
}

impl Kind for Microvm {
    fn name(&self) -> &'static str {
        "microvm"
    }

    fn capabilities(&self, _: &str) -> Capabilities {
        // Commands speak to the guest's kernel, which neither of these stands before.
        let none_inside = [Layer::Syscalls, Layer::Landlock];
        let mut layers = SHARED_KERNEL_LAYERS.to_vec();
        layers.retain(|layer| !none_inside.contains(layer));
        layers.push(Layer::Kernel);
        Capabilities {
            boundary: Boundary::VirtualMachine,
            layers,
            networks: vec![NetworkMode::None, NetworkMode::Allow],
            system_cow: false,
            images: true,
            unprivileged: true,
            selection: Selection::WhenRequired,
        }
    }

    fn probe(&self, word: &str) -> Result<(), ProviderError> {
        probe_namespaces(word)?;
        let parts = self.parts().map_err(missing)?;
        accelerator::choose(&self.images, &parts).map(drop).map_err(missing)
    }

    fn look(&self, word: &str) -> Result<Look, ProviderError> {
        probe_namespaces(word)?;
        let qemu = installed(QEMU, "QEMU", "qemu-system-x86").map_err(missing)?;
        installed(SHARE_DAEMON, "the share daemon virtiofsd", "qemu-system-common")
            .map_err(missing)?;
        let around = (self.surroundings)();
        let kernel = self.find_kernel(&around).map_err(missing)?;
        let emulation = around.emulation;
        let parts = format!("found QEMU, virtiofsd and a kernel (`{}`)", kernel.image.display());
        let known = accelerator::known(&self.images, &kernel.image, &qemu, emulation);
        Ok(match known.map_err(missing)? {
            Known::Kvm => {
                Look::whole(format!("{parts}; a guest booted with KVM since the host did"))
            }
            Known::Emulation => {
                Look::whole(format!("{parts}; its instructions will be emulated, as is allowed"))
            }
            Known::Nothing => Look {
                how: parts,
                untried: Some("no guest was booted to see whether `/dev/kvm` works".into()),
            },
        })
    }

    /// Allowing emulation turns a refusal into a machine, at once; and another kernel or QEMU makes another
    /// one.
    fn circumstances(&self, word: &str) -> String {
        let around = (self.surroundings)();
        let kernel = self.find_kernel(&around).map(|kernel| kernel.image).unwrap_or_default();
        let files = [kernel.as_path(), Path::new(QEMU[0])].map(file_identity).join(" ");
        let kernel = kernel.display();
        match around.emulation {
            Emulation::Allowed => format!("{word} emulation {kernel} {files}"),
            Emulation::Refused => format!("{word} {kernel} {files}"),
        }
    }

    fn vessel(&self, spec: &RunSpec) -> Result<Vessel, ProviderError> {
        refuse_processor_time(spec.policy.limits.cpu_time)?;
        Ok(Vessel::Machine(Box::new(self.machine(spec)?)))
    }

    fn refuse(&self, command: &ExecSpec) -> Result<(), ProviderError> {
        refuse_processor_time(command.limits.cpu_time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_without_emulation_is_none_with_it() {
        let circumstances = |emulation| {
            let program = || "/skep".into();
            let around = move || Surroundings { emulation, program: program(), kernel: None };
            Microvm::new("/state".into(), Box::new(around)).circumstances("microvm")
        };
        assert_ne!(circumstances(Emulation::Allowed), circumstances(Emulation::Refused));
    }
}
