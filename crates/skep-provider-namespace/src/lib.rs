//! Providers that need nothing but this host: namespaces of the keeper's, namespaces made by an
//! installed `bwrap`, and plain processes.
//!
//! They are thin: [`skep_keeper`] does the work, and each of them says which vessel init is put
//! into, whether that works here, and what it can enforce.
//!
//! - [`Namespace`]: the default. Kernel namespaces, an overlay, a system call filter, Landlock.
//! - [`Bubblewrap`]: the same view, filters and limits; only the namespaces are made by `bwrap`, for
//!   hosts whose security module lets nobody else make user namespaces.
//! - [`Subprocess`]: no isolation. It must be named, and every report says so. The work is still
//!   done on the copy-on-write workspace, so the review is the same.
//!
//! ```no_run
//! use skep_keeper::kept::Kept;
//! use skep_provider::Provider;
//! let provider = Kept::new(skep_provider_namespace::Bubblewrap::new(|| "/usr/bin/skep".into()));
//! assert_eq!(provider.name(), "bubblewrap");
//! ```

mod bubblewrap;
mod namespace;
mod subprocess;

pub use bubblewrap::Bubblewrap;
pub use namespace::Namespace;
pub use subprocess::Subprocess;
