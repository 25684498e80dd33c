//! The fences every process inside wears: prepared once by init, put on between fork and exec.

use crate::failure::Failure;
use crate::protocol::SpawnStage;
use crate::view::system;
use rustix::thread::CapabilitySet;
use skep_confine::landlock::{Fence, FenceAccess, FenceRule, FenceScope};
use skep_confine::privileges;
use skep_confine::seccomp::{self, NotingFilter, SeccompVariant};
use skep_sys::newborn::Step;
use skep_types::{Access, InsideUser, NetworkMode, Policy, SystemView};
use std::io;
use std::path::Path;

/// What is put on, and what could not be had.
#[derive(Debug)]
pub struct Confinement {
    fence: Result<Fence, String>,
    /// The system call filter.
    variant: Option<SeccompVariant>,
    noting: Option<NotingFilter>,
    /// Capabilities that stay; without a word about them, all that are there do.
    kept: Option<CapabilitySet>,
    /// Whether all others are out of reach for good.
    bounded: bool,
}

/// What a package manager does as root: own, enter and change files of other ids, and become their
/// users. All of it means the ids of the sandbox's user namespace only. Not among them: mounting,
/// `chroot` (dpkg needs it for other roots than `/` only), devices, networks, tracing.
const FOR_PACKAGES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID);

/// Capabilities that processes inside keep: none, but for a root-looking user who was given a
/// system to change.
pub fn kept_capabilities(policy: &Policy) -> CapabilitySet {
    match (policy.user, policy.system) {
        (InsideUser::Root, SystemView::Cow) => FOR_PACKAGES,
        _ => CapabilitySet::empty(),
    }
}

/// Which filter a policy asks for.
pub fn variant_of(policy: &Policy) -> SeccompVariant {
    if policy.allow_ptrace { SeccompVariant::Debug } else { SeccompVariant::Default }
}

impl Confinement {
    /// No fences at all.
    pub fn none() -> Self {
        let fence = Err("the provider does not isolate".into());
        Self { fence, variant: None, noting: None, kept: None, bounded: false }
    }

    /// Refused calls are not noted: nobody outside can be told.
    pub fn without_notes(self) -> Self {
        Self { noting: None, ..self }
    }

    /// No fences; only what the user namespace gave is given back.
    pub fn privileges_only() -> Result<Self, Failure> {
        let kept = CapabilitySet::empty();
        let bounded = bound_to(kept)?;
        Ok(Self { kept: Some(kept), bounded, ..Self::none() })
    }

    /// Prepares the fences for the view as it stands now.
    pub fn prepare(policy: &Policy, project: &Path, home: &Path) -> Result<Self, Failure> {
        // The caller's keys belong to the caller. Kernels without keyrings have none to leave.
        let _ = privileges::leave_keyring();
        let kept = kept_capabilities(policy);
        // Once, here: what init starts inherits it. What init itself holds, it keeps.
        let bounded = bound_to(kept)?;
        let variant = variant_of(policy);
        // With a network namespace of their own, abstract sockets of the host are not there.
        let scope = match policy.network {
            NetworkMode::Host => FenceScope::FilesSockets,
            _ => FenceScope::FilesOnly,
        };
        let fence = Fence::prepare(&rules(policy, project, home), scope)
            .map_err(|error| skep_types::chain(&error));
        let noting = NotingFilter::prepare(variant);
        Ok(Self { fence, variant: Some(variant), noting, kept: Some(kept), bounded })
    }

    /// Capabilities (but those that are kept) and the right to gain any.
    pub fn drop_privileges(&self) -> io::Result<()> {
        match self.kept {
            Some(kept) => privileges::drop_held_but(kept).map_err(io::Error::other),
            None => Ok(()),
        }
    }

    /// Landlock, where it can be had; the report says whether.
    pub fn raise_fence(&self) -> io::Result<()> {
        match &self.fence {
            Ok(fence) => fence.restrict_self().map_err(io::Error::other),
            Err(_) => Ok(()),
        }
    }

    /// The system call filter, as the kernel answers it alone.
    pub fn filter_system_calls(&self) -> io::Result<()> {
        match self.variant {
            Some(variant) => seccomp::install(variant),
            None => Ok(()),
        }
    }

    /// The same, in the order in which they are put on, as steps of a process on its way to its program: first
    /// capabilities and the right to gain any, then Landlock, last the filter, which would refuse the others.
    pub fn steps(&self) -> Vec<(SpawnStage, Step<'_>)> {
        let privileges = self.kept.map(|kept| (SpawnStage::Privileges, Step::Privileges(kept)));
        let fence = self.fence.as_ref().ok();
        let fence = fence.map(|fence| (SpawnStage::Landlock, Step::Fence(fence.rules())));
        let filter = match (&self.noting, self.variant) {
            (Some(noting), _) => Some(Step::NotedFilter(noting.program())),
            (None, Some(variant)) => Some(Step::Filter(seccomp::program(variant))),
            (None, None) => None,
        };
        let filter = filter.map(|filter| (SpawnStage::Seccomp, filter));
        [privileges, fence, filter].into_iter().flatten().collect()
    }

    /// Whether capabilities that were given up cannot be had again.
    pub fn is_bounded(&self) -> bool {
        self.bounded
    }

    /// Whether refused calls are noted.
    pub fn notes_refused(&self) -> bool {
        self.noting.is_some()
    }

    /// What the Landlock fence is, or why there is none.
    pub fn fence(&self) -> Result<String, &str> {
        match &self.fence {
            Ok(fence) => Ok(fence.describe()),
            Err(reason) => Err(reason),
        }
    }
}

fn bound_to(kept: CapabilitySet) -> Result<bool, Failure> {
    privileges::bound_to(kept).map_err(|error| Failure::Said {
        operation: "bound the capabilities of the sandbox".into(),
        reason: skep_types::chain(&error),
    })
}

/// A second fence along the lines of the first: what the view lets be written may be written.
fn rules(policy: &Policy, project: &Path, home: &Path) -> Vec<FenceRule> {
    let mut rules = vec![
        FenceRule::new("/", FenceAccess::Read),
        FenceRule::new("/dev", FenceAccess::Device),
        FenceRule::new("/proc", FenceAccess::ReadWrite),
    ];
    let writable = [Path::new("/tmp"), Path::new("/var/tmp"), Path::new("/dev/shm"), home, project];
    rules.extend(writable.map(|path| FenceRule::new(path, FenceAccess::ReadWrite)));
    if policy.system == SystemView::Cow {
        rules.extend(
            system::directories().into_iter().map(|p| FenceRule::new(p, FenceAccess::ReadWrite)),
        );
    }
    for mount in policy.mounts.iter().filter(|mount| mount.access == Access::Rw) {
        rules.push(FenceRule::new(mount.target.as_path(), FenceAccess::ReadWrite));
    }
    rules
}
