//! Ports of the host's loopback that lead to servers inside (`--publish`).
//!
//! The keeper listens before anything else is made, so that a port in use is told early. A process
//! of its own then moves into the sandbox's network namespace with those listeners: what it accepts
//! comes from the host's loopback, what it connects to is the sandbox's.

use super::place::Place;
use crate::failure::{Failure, Step};
use rustix::fd::AsFd;
use rustix::process::Signal;
use skep_sys::from_inside::{self, Origin};
use skep_sys::process::{Child, Namespaces, clone_with, wait_for};
use skep_types::PublishedPort;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Connections at the same time, for all ports of a sandbox; what comes beyond is closed.
const MOST_CONNECTIONS: usize = 512;
/// How long a server inside may take to accept.
const PATIENCE: Duration = Duration::from_secs(5);
/// Each connection has two threads that only copy.
const STACK: usize = 128 << 10;

/// A port of the host, taken.
#[derive(Debug)]
pub struct Taken {
    listener: TcpListener,
    inside: u16,
}

/// Takes all ports, or none.
pub fn take(ports: &[PublishedPort]) -> Result<Vec<Taken>, Failure> {
    let take = |port: &PublishedPort| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.host));
        let listener = listener.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => Failure::invalid(format!(
                "cannot publish port {0}: something on this host listens on 127.0.0.1:{0} already; \
                 choose another with `--publish PORT:{1}`",
                port.host, port.inside
            )),
            _ => Failure::invalid(format!("cannot publish port {}: {error}", port.host)),
        })?;
        from_inside::look_out(&listener)
            .step(|| format!("tell who comes to the published port {}", port.host))?;
        Ok(Taken { listener, inside: port.inside })
    };
    ports.iter().map(take).collect()
}

/// The process that forwards. Dropping it ends it, and frees the ports.
#[derive(Debug)]
pub struct Publisher(Child);

impl Drop for Publisher {
    fn drop(&mut self) {
        let _ = skep_sys::process::send_signal(&self.0.pidfd, Signal::KILL);
        let _ = wait_for(&self.0);
    }
}

impl Publisher {
    /// Starts it; from here on it alone has the ports.
    pub fn start(taken: Vec<Taken>, place: &Place) -> Result<Self, Failure> {
        let step = || "forward published ports".to_owned();
        let (answer, ready) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).step(step)?;
        let child = clone_with(Namespaces::NONE, || {
            let mut keep: Vec<_> = taken.iter().map(|taken| taken.listener.as_fd()).collect();
            keep.push(ready.as_fd());
            let moved = place.enter().and_then(|()| {
                skep_sys::process::close_all_but(&keep)?;
                skep_confine::privileges::drop_all_but(rustix::thread::CapabilitySet::empty())
                    .map_err(io::Error::other)
            });
            if moved.is_err() {
                return 1;
            }
            let _ = skep_sys::memory::set_command_line("skep: publish");
            let _ = rustix::io::write(&ready, b"!");
            forward(&taken)
        })
        .step(step)?;
        let publisher = Self(child);
        drop(ready);
        let mut byte = [0];
        match rustix::io::read(&answer, &mut byte) {
            Ok(1) => Ok(publisher),
            _ => Err(Failure::invalid("cannot forward published ports: the forwarder ended")),
        }
    }
}

/// A thread per port; never returns while one of them lives.
fn forward(taken: &[Taken]) -> i32 {
    let open = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for port in taken {
            let open = Arc::clone(&open);
            let accepting = move || accept_all(port, &open);
            if std::thread::Builder::new().spawn_scoped(scope, accepting).is_err() {
                return 1;
            }
        }
        0
    })
}

fn accept_all(port: &Taken, open: &Arc<AtomicUsize>) {
    loop {
        let Ok((client, _)) = port.listener.accept() else {
            // Out of descriptors or memory: what is open will end and make room.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if from_inside::origin(&client) != Origin::Outside {
            continue; // out of a sandbox, by a rule for this very port
        }
        if open.fetch_add(1, Ordering::Relaxed) >= MOST_CONNECTIONS {
            open.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (inside, counter) = (port.inside, Arc::clone(open));
        let served = std::thread::Builder::new().stack_size(STACK).spawn(move || {
            let _ = serve(client, inside);
            counter.fetch_sub(1, Ordering::Relaxed);
        });
        if served.is_err() {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Both ways, until both are at their end.
fn serve(client: TcpStream, inside: u16) -> io::Result<()> {
    let addresses = [
        SocketAddr::from((Ipv4Addr::LOCALHOST, inside)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, inside)),
    ];
    let connect = |address| TcpStream::connect_timeout(address, PATIENCE);
    let server = connect(&addresses[0]).or_else(|_| connect(&addresses[1]))?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    std::thread::scope(|scope| {
        let back = std::thread::Builder::new().stack_size(STACK);
        let back = back.spawn_scoped(scope, || copy(&server, &client))?;
        copy(&client, &server);
        drop(back.join());
        Ok(())
    })
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    let result = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
    if result.is_err() {
        let _ = from.shutdown(Shutdown::Read);
    }
}
