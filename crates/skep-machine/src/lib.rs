//! The microVM of a sandbox: a guest kernel between the commands and this host's kernel.
//!
//! The view of the sandbox is built by the keeper's init as for every local provider: namespaces,
//! overlay, private `/tmp`. Then, inside those namespaces and without any privilege, a share
//! daemon (`virtiofsd`) offers that view, and QEMU boots a guest whose root is that share. So the
//! upper, and with it the review, is the same as everywhere; and whoever breaks out of the guest
//! stands in the namespace sandbox, not on the host.
//!
//! ```text
//!  keeper ── init ─┬─ switchboard ──(virtio-serial)── guest init ─┬─ command
//!                  ├─ relay per exec ─┘                           └─ command
//!                  ├─ virtiofsd  ── the view
//!                  └─ qemu
//! ```
//!
//! - [`kernel`] finds a kernel and the few modules it needs; [`initramfs`] packs them with this
//!   very program, which is the guest's init ([`guest`]).
//! - [`qemu`] says how the two programs are started: pure, and tested as data. [`share`] is what the guest
//!   sees: the view, or an image with parts of it.
//! - [`wire`] is what travels over the one serial line; [`switchboard`] passes it on, a line per
//!   exec; [`relay`] is what an exec is on the host's side: a process with the exec's standard
//!   descriptors, so that output logs, terminals, limits in time and ends work as they do without
//!   a machine.
//!
//! - [`console`] keeps the beginning and the end of what is said outside of any exec.
//!
//! - [`carried`] and [`outlets`] are the way out, where there is one: connections that the guest opens
//!   travel over the same line and are made by the switchboard, in the sandbox's network namespace.
//!
//! No network card, no port, no password. The guest has no disk. When QEMU ends, for whatever
//! reason, the sandbox ends.
//!
//! What this crate does not do: decide whether a machine is wanted, build the view, or look at
//! changes.
//!
//! ```
//! let mut bytes = Vec::new();
//! skep_machine::wire::push(&mut bytes, 7, skep_machine::wire::Kind::Kill, b"");
//! let (frame, _) = skep_machine::wire::parse(&bytes).unwrap().unwrap();
//! assert_eq!(frame.line, 7);
//! ```

pub mod boot;
pub mod carried;
pub mod console;
pub mod guest;
pub mod initramfs;
pub mod kernel;
pub mod outlets;
pub mod qemu;
pub mod relay;
pub mod share;
pub mod switchboard;
pub mod wire;

pub use skep_types::{Accelerator, MachineSpec};

/// Why there is no machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// Something of the host.
    #[error("cannot {operation}")]
    Io {
        /// Operation and object.
        operation: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Something is not installed.
    #[error("{what} is missing: {reason}")]
    Missing {
        /// What.
        what: &'static str,
        /// Where it was looked for.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// It did not come up, or is not what was asked for.
    #[error("the machine did not come up: {0}")]
    NotUp(String),
}

pub(crate) trait At<T> {
    /// Names the operation and the object of a failure.
    fn at(self, operation: impl FnOnce() -> String) -> Result<T, MachineError>;
}

impl<T, E: Into<std::io::Error>> At<T> for Result<T, E> {
    fn at(self, operation: impl FnOnce() -> String) -> Result<T, MachineError> {
        self.map_err(|error| MachineError::Io { operation: operation(), source: error.into() })
    }
}
