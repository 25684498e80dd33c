//! x
#![allow(missing_docs)]
mod engine;
mod error;
mod images;
pub use engine::{Engine, socket_of};
pub use error::DockerError;
pub use images::Image;
