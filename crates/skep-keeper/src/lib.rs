//! The process that holds one running sandbox.
//!
//! Three processes make a sandbox. The **keeper** is a fork of whoever started it, in its own
//! session, with one thread and no secrets: it holds the socket, the cgroup, the logs and the
//! clocks. **Init** is its child and number 1 inside: it builds the view, starts processes and
//! reaps them. Every **exec** is a fork of init that puts on the fences and becomes the caller's
//! program. Init dies with the keeper, everything inside dies with init, and all mounts are in
//! init's mount namespace: a killed keeper leaves an empty cgroup and a socket file, nothing else.
//!
//! - [`start`] brings one up and returns what was found to be enforced.
//! - [`Client`] talks to one: execs, signals, freezing, writing through the view, stopping.
//! - Output is kept by [`skep_provider::log`], readable without the keeper.
//!
//! The keeper does not know the store. What must outlive it is written into the sandbox's
//! directory: `execs/<id>.head`, `.tail0`, `.tail1` (output) and `execs/<id>.end` (how it ended).
//!
//! ```no_run
//! use skep_keeper::Client;
//! # fn example(id: &skep_types::SandboxId) -> Result<(), skep_provider::ProviderError> {
//! let keeper = Client::connect(id, std::path::Path::new("/state/sandboxes/x"))?;
//! # drop(keeper); Ok(()) }
//! ```
//!
//! How init comes to be is the [`vessel`]'s business: a fork in namespaces of the keeper's, a
//! program executed by bubblewrap or by an OCI runtime, or a plain child. Everything else is the
//! same for all of them.
//!
//! What is deliberately not here: an async runtime (a forked process must be simple), and decisions
//! about changes (the engine's).

mod caller;
mod census;
mod channel;
mod client;
mod confinement;
mod executed;
mod failure;
mod held;
mod identity;
mod init;
mod keeper;
pub mod kept;
mod known;
mod launch;
mod machine;
mod network;
mod owner;
mod pause;
mod probe;
mod protocol;
mod refresh;
mod relay;
mod seen;
mod spawn;
pub mod vessel;
mod view;
mod writer;

pub use client::Client;
pub use executed::run_executed;
pub use identity::IdMap;
pub use keeper::{Usage, usage};
pub use launch::{CGROUP_PARENT, Nest, start};
pub use network::rules_unavailable;
#[doc(hidden)]
pub use protocol::{FrameKind, Request, parse_frame, push_frame};
pub use protocol::{Operation, Reply, VERSION};
pub use view::fuse::unavailable as fuse_overlayfs_unavailable;

use skep_provider::RunSpec;
use skep_workspace::WorkspaceSpec;

/// The workspace of a running sandbox, as the review looks at it.
pub fn workspace_of(spec: &RunSpec) -> WorkspaceSpec {
    WorkspaceSpec {
        project: spec.project.clone(),
        base: spec.base.clone(),
        driver: spec.driver,
        upper: spec.directory.join("upper"),
        layers: spec.layers.clone(),
        dependency_layers: Vec::new(),
        hidden: spec.hidden.clone(),
        memory: spec.directory.join("base"),
    }
}
