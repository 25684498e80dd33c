//! The guest's init: the first and only program of ours inside the machine.
//!
//! It loads the modules, mounts the share as the root of everything it starts, says that it is
//! ready, and then runs what it is told over the serial line until the machine is switched off.
//! It never returns to the kernel: if it cannot go on, it switches the machine off.

mod doors;
mod groups;
mod lines;
mod places;

use crate::carried::BY_GUEST;
use crate::initramfs::{MODULES, NETWORK_MODULES};
use crate::qemu::{NETWORK_WORD, PROBE_ANSWER, PROBE_WORD};
use crate::wire::{self, Kind, Ready};
use doors::Doors;
use lines::Lines;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use skep_sys::signal::SignalFd;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// File below the root of the share from which the guest reads the nonce.
pub const NONCE: &str = "run/skep-nonce";

/// Whether this process was started by a guest's kernel as its init.
pub fn is_init(argument: Option<&std::ffi::OsStr>) -> bool {
    argument.is_some_and(|name| name == crate::initramfs::INIT) && std::process::id() == 1
}

/// Tries to reach hosts: asked and answered in bytes that only the two who speak know.
pub type Knock = fn(&[u8]) -> Vec<u8>;

/// Bytes for the host that may wait here before connections are no longer read from.
const CROWDED: usize = 1 << 20;

/// The life of the guest's init.
pub fn run(knock: Knock) -> ! {
    let error = match live(knock) {
        Ok(()) => io::Error::other("skep: the line was closed"),
        Err(error) => error,
    };
    // The console is kept on the host, and there is nobody else to tell.
    let _ = rustix::io::write(rustix::stdio::stderr(), format!("{error}\n").as_bytes());
    loop {
        let _ = rustix::system::reboot(rustix::system::RebootCommand::PowerOff);
    }
}

fn live(knock: Knock) -> io::Result<()> {
    places::mount_own()?;
    let words = std::fs::read_to_string("/proc/cmdline")?;
    if words.contains(PROBE_WORD) {
        return Err(io::Error::other(PROBE_ANSWER));
    }
    places::load_modules(MODULES)?;
    if words.split_ascii_whitespace().any(|word| word == NETWORK_WORD) {
        // Without them connections cannot be redirected, which is found out and said later.
        let _ = places::load_modules(NETWORK_MODULES);
    }
    let serial = places::open_serial()?;
    let command_line = CommandLine::read()?;
    rustix::system::sethostname(command_line.name.as_bytes())?;
    let groups = groups::Groups::mount();
    let ready = match places::mount_view(&command_line.project) {
        Ok(shared) => command_line.ready(shared, None),
        Err(error) => command_line.ready(Default::default(), Some(error.to_string())),
    };
    let mut guest = Guest {
        signals: SignalFd::new(&[libc::SIGCHLD])?,
        lines: Lines::new(groups, knock),
        doors: Doors::default(),
        serial,
        inbox: wire::Inbox::default(),
        out: Vec::new(),
    };
    wire::push_json(&mut guest.out, 0, Kind::Ready, &ready?);
    guest.serve()
}

/// What the host wrote for us on the kernel's command line.
struct CommandLine {
    configuration: String,
    name: String,
    project: PathBuf,
}

impl CommandLine {
    fn read() -> io::Result<Self> {
        let text = std::fs::read_to_string("/proc/cmdline")?;
        let value = |key: &str| {
            text.split_ascii_whitespace()
                .find_map(|word| word.strip_prefix(key))
                .unwrap_or_default()
        };
        let hex = value("skep.project=").as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let project: Option<Vec<u8>> = hex.chunks(2).map(byte).collect();
        let project =
            project.ok_or_else(|| io::Error::other("the project's path is unreadable"))?;
        Ok(Self {
            configuration: value("skep.configuration=").to_owned(),
            name: value("skep.name=").to_owned(),
            project: OsString::from_vec(project).into(),
        })
    }

    fn ready(&self, shared: places::Shared, failure: Option<String>) -> io::Result<Ready> {
        Ok(Ready {
            configuration: self.configuration.clone(),
            nonce: shared.nonce,
            project: shared.project,
            boot_id: skep_sys::process::boot_id()?,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            failure,
        })
    }
}

struct Guest {
    signals: SignalFd,
    lines: Lines,
    doors: Doors,
    serial: OwnedFd,
    inbox: wire::Inbox,
    out: Vec<u8>,
}

impl Guest {
    fn serve(mut self) -> io::Result<()> {
        loop {
            self.wait()?;
            while self.signals.next()?.is_some() {}
            while let Some(ended) = skep_sys::process::wait_any()? {
                self.lines.ended(&ended);
            }
            self.hear()?;
            self.lines.pump(&mut self.out);
            self.doors.pump(self.is_calm(), &mut self.out);
            self.say()?;
        }
    }

    fn is_calm(&self) -> bool {
        self.out.len() < CROWDED
    }

    fn wait(&self) -> io::Result<()> {
        let mut interest = PollFlags::IN;
        if !self.out.is_empty() {
            interest |= PollFlags::OUT;
        }
        let mut watched = vec![
            PollFd::new(&self.serial, interest),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        let inside = self.lines.interests().chain(self.doors.interests(self.is_calm()));
        watched.extend(inside.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)));
        match poll(&mut watched, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn hear(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match rustix::io::read(&self.serial, &mut buffer) {
                Ok(0) => return Err(io::Error::other("the host has hung up")),
                Ok(length) => self.inbox.push(&buffer[..length]),
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            while let Some(frame) = self.inbox.take().map_err(io::Error::other)? {
                match frame.kind {
                    Kind::Network => {
                        let (number, network): (u64, _) = serde_json::from_slice(frame.payload)?;
                        let answer = (number, self.doors.open(&network));
                        wire::push_json(&mut self.out, 0, Kind::Networked, &answer);
                    }
                    Kind::Rules => {
                        let (number, rules): (u64, String) = serde_json::from_slice(frame.payload)?;
                        let ruled = self.doors.load(&rules).err().map(|error| error.to_string());
                        wire::push_json(&mut self.out, 0, Kind::Ruled, &(number, ruled));
                    }
                    _ if frame.line & BY_GUEST != 0 => self.doors.obey(&frame, &mut self.out)?,
                    _ => self.lines.obey(&frame, &mut self.out)?,
                }
            }
        }
    }

    fn say(&mut self) -> io::Result<()> {
        while !self.out.is_empty() {
            match rustix::io::write(&self.serial, &self.out) {
                Ok(length) => drop(self.out.drain(..length)),
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
