//! Where an engine listens, by the variables that Docker's own command line reads.
//!
//! A socket of this host, or TCP with TLS on which both sides show who they are. TCP alone is refused: whoever
//! can connect there is root on this host, and nobody could tell who answers.

use crate::error::DockerError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// Where an engine listens when nobody says otherwise.
pub const DEFAULT_SOCKET: &str = "/var/run/docker.sock";

/// What both sides show, in one directory: as `docker` has it.
const AUTHORITY: &str = "ca.pem";
const CERTIFICATE: &str = "cert.pem";
const KEY: &str = "key.pem";

/// How an engine was named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Named {
    /// `DOCKER_HOST`.
    pub host: Option<String>,
    /// `DOCKER_TLS_VERIFY` is set.
    pub verified: bool,
    /// `DOCKER_CERT_PATH`, or where `docker` looks without it.
    pub certificates: Option<PathBuf>,
}

/// Where an engine listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Address {
    /// On a port, with TLS.
    Tls {
        /// `HOST:PORT`.
        tcp: String,
        /// The directory with the certificates.
        certificates: PathBuf,
    },
    /// On a socket of this host.
    Socket {
        /// Absolute.
        socket: PathBuf,
    },
}

impl Address {
    /// The one that is meant.
    ///
    /// # Errors
    /// When it is neither a socket of this host nor a port with TLS.
    pub fn of(named: &Named) -> Result<Self, DockerError> {
        let Some(host) = named.host.as_deref().filter(|host| !host.is_empty()) else {
            return Ok(Self::Socket { socket: DEFAULT_SOCKET.into() });
        };
        let refused = |reason: &str| {
            Err(DockerError::Remote { address: host.to_owned(), reason: reason.to_owned() })
        };
        if let Some(path) = host.strip_prefix("unix://").filter(|path| path.starts_with('/')) {
            return Ok(Self::Socket { socket: path.into() });
        }
        let Some(tcp) = host.strip_prefix("tcp://").map(|rest| rest.trim_end_matches('/')) else {
            return refused(
                "it is not of this host, or could not be: only sockets (`unix:///path`) and ports with TLS (`tcp://host:port`) are taken",
            );
        };
        if !names_a_port(tcp) {
            return refused("it names no host and port (`tcp://host:port`)");
        }
        match (&named.certificates, named.verified) {
            (Some(certificates), true) => {
                Ok(Self::Tls { tcp: tcp.to_owned(), certificates: certificates.clone() })
            }
            _ => refused(
                "without TLS nobody knows who answers at a port; `DOCKER_TLS_VERIFY=1`, and `DOCKER_CERT_PATH` for the certificates",
            ),
        }
    }

    /// Authority, certificate and key, where they can be read. Without them the other side would only hang up.
    pub(crate) fn certificates(directory: &Path) -> Result<[PathBuf; 3], DockerError> {
        let files = [AUTHORITY, CERTIFICATE, KEY].map(|name| directory.join(name));
        for file in &files {
            std::fs::File::open(file).map_err(|error| {
                DockerError::Invalid(format!(
                    "cannot read `{}`, which `DOCKER_TLS_VERIFY` needs: {error}; `DOCKER_CERT_PATH` names the directory",
                    file.display()
                ))
            })?;
        }
        Ok(files)
    }
}

/// `HOST:PORT`, and nothing that would lead a request elsewhere.
fn names_a_port(tcp: &str) -> bool {
    let Some((host, port)) = tcp.rsplit_once(':') else { return false };
    let harmless = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    !host.is_empty() && host.bytes().all(harmless) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tls { tcp, .. } => write!(formatter, "tcp://{tcp}"),
            Self::Socket { socket } => write!(formatter, "{}", socket.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(host: &str, verified: bool) -> Named {
        let host = Some(host.to_owned());
        Named { host, verified, certificates: Some("/certificates".into()) }
    }

    #[test]
    fn sockets_of_this_host_and_ports_with_tls_are_taken() {
        let socket = |path: &str| Address::Socket { socket: path.into() };
        assert_eq!(Address::of(&Named::default()).unwrap(), socket(DEFAULT_SOCKET));
        assert_eq!(Address::of(&named("", true)).unwrap(), socket(DEFAULT_SOCKET));
        let at = Address::of(&named("unix:///run/d.sock", false)).unwrap();
        assert_eq!(at, socket("/run/d.sock"));
        let tls =
            |tcp: &str| Address::Tls { tcp: tcp.into(), certificates: "/certificates".into() };
        for (host, tcp) in [
            ("tcp://127.0.0.1:2376", "127.0.0.1:2376"),
            ("tcp://[::1]:2376/", "[::1]:2376"),
            ("tcp://localhost:2376", "localhost:2376"),
        ] {
            assert_eq!(Address::of(&named(host, true)).unwrap(), tls(tcp), "{host}");
            let error = Address::of(&named(host, false)).unwrap_err();
            assert!(error.to_string().contains("DOCKER_TLS_VERIFY"), "{error}");
        }
        for host in [
            "ssh://me@host",
            "unix://relative",
            "host:2375",
            "tcp://host",
            "tcp://host:0",
            "tcp://me@host:2376",
            "tcp://host/path:2376",
        ] {
            let error = Address::of(&named(host, true)).unwrap_err();
            assert!(matches!(error, DockerError::Remote { .. }), "{host}: {error}");
        }
    }

    #[test]
    fn a_record_of_before_names_a_socket() {
        let read = |text: &str| serde_json::from_str::<Address>(text).unwrap();
        let socket = Address::Socket { socket: "/s".into() };
        assert_eq!(read(r#"{"socket":"/s"}"#), socket);
        for address in [socket, Address::Tls { tcp: "h:1".into(), certificates: "/c".into() }] {
            assert_eq!(read(&serde_json::to_string(&address).unwrap()), address);
        }
    }
}
