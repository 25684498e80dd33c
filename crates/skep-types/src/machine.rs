//! The microVM a sandbox may run in.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A machine to boot, with everything that makes it what it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSpec {
    /// The QEMU program.
    pub qemu: PathBuf,
    /// What it says of itself.
    pub version: String,
    /// The share daemon.
    pub share_daemon: PathBuf,
    /// The guest's kernel.
    pub kernel: PathBuf,
    /// Its initial file system.
    pub initramfs: PathBuf,
    /// The root filesystem of the image that the guest sees, named after its content.
    pub image: Option<PathBuf>,
    /// How instructions are run.
    pub accelerator: Accelerator,
    /// Memory of the guest, in MiB.
    pub memory_mib: u64,
    /// Processors of the guest.
    pub processors: u32,
    /// What the guest's console says is kept here.
    pub console: PathBuf,
}

/// How the guest's instructions are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accelerator {
    /// By the processor.
    Kvm,
    /// One by one, in software.
    Emulation,
}

impl Accelerator {
    /// QEMU's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Emulation => "tcg",
        }
    }
}
