//! The way to a Docker engine of this host.
//!
//! Every call is made by a runtime without threads that lives as long as the [`Engine`] does: the
//! process that asks may fork a keeper afterwards.

use crate::address::{Address, Named};
use crate::error::{Asked, At, DockerError};
use bollard::{API_DEFAULT_VERSION, Docker};
use std::future::Future;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Seconds an answer may take. Making a container on a busy machine takes some.
const PATIENCE: u64 = 120;

/// How long an engine may take to say who it is, and how it is set up. One that stands still
/// does not answer at all.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// An engine that answers, and that runs on this host's kernel.
pub struct Engine {
    pub(crate) docker: Docker,
    runtime: Runtime,
    /// Its version, as it says.
    pub version: String,
    /// Where it listens.
    pub address: Address,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Engine").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Engine {
    /// Connects to the engine that was named.
    ///
    /// # Errors
    /// When nobody answers, or it is not of this host.
    pub fn connect(named: &Named) -> Result<Self, DockerError> {
        Self::at(Address::of(named)?)
    }

    /// Connects to the engine that listens there.
    pub(crate) fn at(address: Address) -> Result<Self, DockerError> {
        let runtime = runtime()?;
        let docker = runtime.block_on(open(&address))?;
        let version = runtime
            .block_on(answered(&address, docker.version()))?
            .asked(|| "tell its version".into())?;
        let own = rustix::system::uname().release().to_string_lossy().into_owned();
        let kernel = version.kernel_version.unwrap_or_default();
        if kernel != own {
            return Err(DockerError::Remote {
                address: address.to_string(),
                reason: format!(
                    "it is not of this host: it runs on the kernel `{kernel}`, this host on `{own}`"
                ),
            });
        }
        Ok(Self { docker, runtime, version: version.version.unwrap_or_default(), address })
    }

    /// Refuses an engine whose containers have other ids than the host's: nobody in them could
    /// write what belongs to the caller.
    pub(crate) fn refuse_other_ids(&self) -> Result<(), DockerError> {
        let info = self.wait(answered(&self.address, self.docker.info()))?;
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
pub(crate) async fn open(address: &Address) -> Result<Docker, DockerError> {
    let absent = |reason: String| DockerError::Absent { address: address.to_string(), reason };
    let docker = match address {
        Address::Socket { socket } => {
            let path = socket.to_str().ok_or_else(|| absent("its name is no text".into()))?;
            Docker::connect_with_unix(path, PATIENCE, API_DEFAULT_VERSION)
                .map_err(|_| absent("there is no such socket".into()))?
        }
        Address::Tls { tcp, certificates } => {
            let [authority, certificate, key] = Address::certificates(certificates)?;
            let (key, certificate, authority) = (&key, &certificate, &authority);
            Docker::connect_with_ssl(
                tcp,
                key,
                certificate,
                authority,
                PATIENCE,
                API_DEFAULT_VERSION,
            )
            .map_err(|error| absent(skep_types::chain(&error)))?
        }
    };
    let negotiated = answered(address, docker.negotiate_version()).await?;
    negotiated.map_err(|error| absent(skep_types::chain(&error)))
}

/// Waits for the answer to a short question.
pub(crate) async fn answered<F: Future>(
    address: &Address,
    question: F,
) -> Result<F::Output, DockerError> {
    tokio::time::timeout(ANSWERS_WITHIN, question).await.map_err(|_| DockerError::Absent {
        address: address.to_string(),
        reason: format!("it said nothing for {} seconds", ANSWERS_WITHIN.as_secs()),
    })
}
