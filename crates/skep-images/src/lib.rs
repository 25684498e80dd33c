//! Root filesystems of skep's own, for providers that have no engine to keep them: `oci` and `microvm`.
//!
//! An image is a directory below `images/rootfs` in the state directory, unpacked once from an archive
//! or another directory and named after the archive's content. Nothing ever changes it again: sandboxes
//! see it read-only, and one that runs holds a lock on it ([`hold`]), so that it is not removed under it.
//!
//! - [`Images`] is the store: importing, names, removing.
//! - `archive` makes a stream of bytes from whatever was given: a directory, a plain archive, a
//!   compressed one.
//! - `unpack` makes files of it. An archive is not trusted: nothing leads out of the image, and there are
//!   no devices, no owners and no set-id bits in it.
//! - `reference` is the grammar of names.
//!
//! ```no_run
//! let images = skep_images::Images::new("/home/me/.local/state/skep".as_ref());
//! let image = images.import("/tmp/rootfs.tar".as_ref(), "small:1")?;
//! assert_eq!(images.find("small:1")?.map(|found| found.id), Some(image.id));
//! # Ok::<(), skep_images::ImageError>(())
//! ```
//!
//! What is deliberately not here: layers, registries and configurations of images. Whoever wants them has
//! an engine.

mod archive;
mod reference;
mod store;
mod unpack;

pub use archive::{holds_images, of as archive_of};
pub use reference::{check, whole};
pub use store::{Draft, Image, Images, hold};

use skep_types::{Code, Problem};
use std::io;

/// Why an image is not there.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The request is wrong.
    #[error("{0}")]
    Invalid(String),
    /// What was given is no root filesystem.
    #[error("`{source_name}` cannot become an image: {reason}")]
    Unusable {
        /// What was given.
        source_name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A program that unpacks is not here.
    #[error("the archive is compressed, and `{0}` is not installed")]
    Tool(&'static str),
    /// Something runs on it.
    #[error("the image `{0}` is in use by a sandbox that runs")]
    InUse(String),
    /// Something on this host.
    #[error("cannot {operation}")]
    Io {
        /// Operation and object.
        operation: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl ImageError {
    /// The error as callers of `skep image` see it.
    pub fn problem(&self) -> Problem {
        let code = match self {
            Self::Invalid(_) => Code::Usage,
            Self::Tool(_) => Code::MissingCapability,
            Self::InUse(_) => Code::Conflict,
            Self::Unusable { .. } | Self::Io { .. } => Code::Io,
        };
        let problem = Problem::from_error(code, self);
        match self {
            Self::Tool(name) => problem.hint(format!("install `{name}`, or unpack the archive")),
            Self::InUse(_) => problem.hint("stop it first (`skep ls`, `skep stop NAME`)"),
            _ => problem,
        }
    }
}

/// Names what was being done when a file could not be used.
pub(crate) trait At<T> {
    fn at(self, operation: impl FnOnce() -> String) -> Result<T, ImageError>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, operation: impl FnOnce() -> String) -> Result<T, ImageError> {
        self.map_err(|error| ImageError::Io { operation: operation(), source: error.into() })
    }
}
