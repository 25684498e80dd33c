//! Where the server listens: a unix socket by default, TCP on this host only.

use skep_types::{Code, Problem};
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A unix socket.
    Unix(PathBuf),
    /// TCP on this host.
    Tcp(SocketAddr),
}

impl std::str::FromStr for Listen {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') {
                Ok(Self::Unix(path.into()))
            } else {
                Err(format!("`{text}`: the path of a socket is absolute"))
            };
        }
        let address: SocketAddr = text
            .replace("localhost:", "127.0.0.1:")
            .parse()
            .map_err(|_| format!("`{text}` is neither `unix:/PATH` nor `127.0.0.1:PORT`"))?;
        if !address.ip().is_loopback() {
            return Err(format!(
                "`{text}` is not on this host alone, and this server does not speak TLS; listen \
                 on 127.0.0.1 behind a proxy that does, or use ssh"
            ));
        }
        Ok(Self::Tcp(address))
    }
}

/// How often and how far apart a socket is tried that stands where ours is to be.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// A socket that listens.
#[derive(Debug)]
pub enum Listener {
    /// A unix socket, with its path if we made it.
    Unix(UnixListener, Option<PathBuf>),
    /// TCP.
    Tcp(TcpListener),
}

impl Listener {
    /// Whether callers need a token here.
    pub(crate) fn needs_token(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }
}

/// Binds an address. A socket that nobody listens on any more is replaced; anything else that
/// stands in its place is left alone and refused.
pub fn bind(listen: &Listen) -> Result<Listener, Problem> {
    let failed = |what: String, error: io::Error| {
        let code = match error.kind() {
            io::ErrorKind::AddrInUse => Code::AlreadyExists,
            _ => Code::Io,
        };
        Problem::new(code, format!("cannot listen on {what}: {error}"))
    };
    match listen {
        Listen::Tcp(address) => TcpListener::bind(address)
            .and_then(|listener| skep_sys::from_inside::look_out(&listener).map(|()| listener))
            .map(Listener::Tcp)
            .map_err(|error| failed(format!("`{address}`"), error)),
        Listen::Unix(path) => bind_unix(path)
            .map(|listener| Listener::Unix(listener, Some(path.clone())))
            .map_err(|error| failed(format!("`{}`", path.display()), error)),
    }
}

/// Whether somebody listens there, for longer than the last child of a killed server does: one that was
/// just being started has its sockets until it executes.
fn is_answered(path: &Path) -> bool {
    (0..TRIES).all(|number| {
        if number > 0 {
            std::thread::sleep(PAUSE);
        }
        UnixStream::connect(path).is_ok()
    })
}

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, why.to_owned()));
    let user = rustix::process::geteuid().as_raw();
    let parent = path.parent().unwrap_or(Path::new("/"));
    let directory = fs::symlink_metadata(parent)?;
    if !directory.is_dir() || ![user, 0].contains(&directory.uid()) {
        return refuse("its directory is not this user's");
    }
    // In a directory that others can write, another name could be put in its place at any time.
    if directory.mode() & 0o022 != 0 {
        return refuse("others can write in its directory");
    }
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() || found.uid() != user => {
            return refuse("something else is there");
        }
        Ok(_) if is_answered(path) => return Err(io::ErrorKind::AddrInUse.into()),
        Ok(_) => fs::remove_file(path)?,
    }
    // The mode holds from the first instant: nobody can connect in between.
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    bound
}

/// Sockets that systemd listens on for us.
pub fn inherited() -> Result<Vec<Listener>, Problem> {
    let failed = |error: io::Error| {
        Problem::new(Code::Io, format!("cannot use an inherited socket: {error}"))
    };
    let mut passed = listenfd::ListenFd::from_env();
    let mut listeners = Vec::new();
    for index in 0..passed.len() {
        if let Ok(Some(unix)) = passed.take_unix_listener(index) {
            listeners.push(Listener::Unix(unix, None));
        } else if let Some(tcp) = passed.take_tcp_listener(index).map_err(failed)? {
            if !tcp.local_addr().map_err(failed)?.ip().is_loopback() {
                return Err(Problem::new(
                    Code::Refused,
                    "an inherited TCP socket is not on this host alone",
                ));
            }
            skep_sys::from_inside::look_out(&tcp).map_err(failed)?;
            listeners.push(Listener::Tcp(tcp));
        }
    }
    Ok(listeners)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn only_this_host_is_listened_on() {
        assert!(matches!("127.0.0.1:80".parse::<Listen>(), Ok(Listen::Tcp(_))));
        assert!(matches!("[::1]:80".parse::<Listen>(), Ok(Listen::Tcp(_))));
        assert!(matches!("localhost:80".parse::<Listen>(), Ok(Listen::Tcp(_))));
        assert_eq!("unix:/x".parse(), Ok(Listen::Unix("/x".into())));
        assert_eq!("unix:///x".parse(), Ok(Listen::Unix("/x".into())));
        for bad in ["0.0.0.0:80", "[::]:80", "10.0.0.1:80", "unix:x", "80", "", "evil.test:80"] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_stands_in_the_way_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("skep.sock");
        let listener = bind_unix(&path).unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(bind_unix(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        bind_unix(&path).expect("a stale socket is replaced");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        assert!(bind_unix(&path).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/nowhere", &path).unwrap();
        assert!(bind_unix(&path).is_err());
        fs::remove_file(&path).unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(bind_unix(&path).is_err());
    }
}
