//! The way to a Docker engine of this host.
//!
//! Every call is made by a runtime without threads that lives as long as the [`Engine`] does: the
//! process that asks may fork a keeper afterwards.

use crate::error::{Asked, At, DockerError};
use bollard::{API_DEFAULT_VERSION, Docker};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::runtime::Runtime;

/// Where an engine listens when nobody says otherwise.
pub const DEFAULT_SOCKET: &str = "/var/run/docker.sock";

/// Seconds an answer may take. Making a container on a busy machine takes some.
const PATIENCE: u64 = 120;

/// How long an engine may take to say who it is, and how it is set up. One that stands still
/// does not answer at all.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// The socket that `DOCKER_HOST` names.
///
/// # Errors
/// When it names anything but a socket of this host.
pub fn socket_of(address: Option<&str>) -> Result<PathBuf, DockerError> {
    let Some(address) = address.filter(|address| !address.is_empty()) else {
        return Ok(DEFAULT_SOCKET.into());
    };
    match address.strip_prefix("unix://") {
        Some(path) if path.starts_with('/') => Ok(path.into()),
        _ => Err(DockerError::Remote {
            address: address.to_owned(),
            reason: "only sockets (`unix:///path`) are sure to be".into(),
        }),
    }
}

/// An engine that answers, and that runs on this host's kernel.
pub struct Engine {
    pub(crate) docker: Docker,
    runtime: Runtime,
    /// Its version, as it says.
    pub version: String,
    /// Where it listens.
    pub socket: PathBuf,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Engine").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Engine {
    /// Connects to the engine that `DOCKER_HOST` names.
    ///
    /// # Errors
    /// When nobody answers, or it is not of this host.
    pub fn connect(address: Option<&str>) -> Result<Self, DockerError> {
        let socket = socket_of(address)?;
        let runtime = runtime()?;
        let docker = runtime.block_on(open(&socket))?;
        let version = runtime
            .block_on(answered(&socket, docker.version()))?
            .asked(|| "tell its version".into())?;
        let own = rustix::system::uname().release().to_string_lossy().into_owned();
        let kernel = version.kernel_version.unwrap_or_default();
        if kernel != own {
            return Err(DockerError::Remote {
                address: socket.display().to_string(),
                reason: format!("it runs on the kernel `{kernel}`, this host on `{own}`"),
            });
        }
        Ok(Self { docker, runtime, version: version.version.unwrap_or_default(), socket })
    }

    /// Refuses an engine whose containers have other ids than the host's: nobody in them could
    /// write what belongs to the caller.
    pub(crate) fn refuse_other_ids(&self) -> Result<(), DockerError> {
        let info = self.wait(answered(&self.socket, self.docker.info()))?;
        let info = info.asked(|| "tell how it is set up".into())?;
        let options = info.security_options.unwrap_or_default();
        match options
            .iter()
            .find(|one| one.contains("name=userns") || one.contains("name=rootless"))
        {
            None => Ok(()),
            Some(option) => Err(DockerError::Refused {
                operation: "run containers with this host's ids".into(),
                reason: format!("it maps them to others (`{option}`)"),
            }),
        }
    }

    pub(crate) fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }
}

/// A runtime without threads.
pub(crate) fn runtime() -> Result<Runtime, DockerError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .at(|| "make a runtime".into())
}

/// A client that speaks the engine's own version of the API.
pub(crate) async fn open(socket: &Path) -> Result<Docker, DockerError> {
    let absent =
        |reason: String| DockerError::Absent { socket: socket.display().to_string(), reason };
    let path = socket.to_str().ok_or_else(|| absent("its name is no text".into()))?;
    let docker = Docker::connect_with_unix(path, PATIENCE, API_DEFAULT_VERSION)
        .map_err(|_| absent("there is no such socket".into()))?;
    let negotiated = answered(socket, docker.negotiate_version()).await?;
    negotiated.map_err(|error| absent(skep_types::chain(&error)))
}

/// Waits for the answer to a short question.
pub(crate) async fn answered<F: Future>(
    socket: &Path,
    question: F,
) -> Result<F::Output, DockerError> {
    tokio::time::timeout(ANSWERS_WITHIN, question).await.map_err(|_| DockerError::Absent {
        socket: socket.display().to_string(),
        reason: format!("it said nothing for {} seconds", ANSWERS_WITHIN.as_secs()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_of_this_host_are_taken() {
        assert_eq!(socket_of(None).unwrap(), Path::new(DEFAULT_SOCKET));
        assert_eq!(socket_of(Some("")).unwrap(), Path::new(DEFAULT_SOCKET));
        assert_eq!(socket_of(Some("unix:///run/d.sock")).unwrap(), Path::new("/run/d.sock"));
        for remote in ["tcp://127.0.0.1:2375", "ssh://me@host", "unix://relative", "host:2375"] {
            let error = socket_of(Some(remote)).unwrap_err();
            assert!(matches!(error, DockerError::Remote { .. }), "{remote}: {error}");
        }
    }
}
