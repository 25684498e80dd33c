//! Sandboxes without isolation: plain processes of the caller on a copy-on-write workspace.

use skep_keeper::kept::Kind;
use skep_keeper::vessel::Vessel;
use skep_provider::capabilities::Selection;
use skep_provider::{Boundary, Capabilities, Look, ProviderError, RunSpec};
use skep_sys::process::{Namespaces, clone_with, wait_for};
use skep_types::{Layer, NetworkMode, WorkspaceDriver};

/// Runs plain processes.
#[derive(Debug, Default)]
pub struct Subprocess;

impl Subprocess {
    /// Whether the workspace can be shown in the project's place: by root in a mount namespace, by
    /// a user in a user namespace with one.
    fn has_mounts() -> bool {
        if !rustix::process::geteuid().is_root() {
            return skep_confine::probe::user_namespace().ok;
        }
        clone_with(Namespaces::MOUNT, || 0).is_ok_and(|child| wait_for(&child).is_ok())
    }
}

impl Kind for Subprocess {
    fn name(&self) -> &'static str {
        "subprocess"
    }

    /// Only what cgroups and counting give.
    fn capabilities(&self, _: &str) -> Capabilities {
        Capabilities {
            boundary: Boundary::None,
            layers: vec![Layer::Memory, Layer::Cpu, Layer::Pids, Layer::Disk, Layer::Io],
            networks: vec![NetworkMode::Host],
            system_cow: false,
            images: false,
            unprivileged: true,
            selection: Selection::Named,
        }
    }

    /// A process can be made everywhere.
    fn probe(&self, _: &str) -> Result<(), ProviderError> {
        Ok(())
    }

    fn look(&self, _: &str) -> Result<Look, ProviderError> {
        Ok(Look::whole("there is nothing to try: a process of the host, and no isolation"))
    }

    fn vessel(&self, _: &RunSpec) -> Result<Vessel, ProviderError> {
        Ok(Vessel::Bare { mounts: Self::has_mounts() })
    }

    fn can_use(&self, driver: WorkspaceDriver) -> bool {
        match driver {
            WorkspaceDriver::Copy => true,
            // Mounted by init itself, whose user it is; markers of root's are not needed for that.
            WorkspaceDriver::OverlayRoot => false,
            WorkspaceDriver::OverlayUserns | WorkspaceDriver::FuseOverlayfs => Self::has_mounts(),
        }
    }
}
