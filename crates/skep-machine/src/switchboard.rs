//! The process that holds the host's end of the serial line and connects execs to it, and what the
//! guest wants to reach.
//!
//! It trusts the relays, which are forks of init, and not the guest: what the guest may leave
//! lying here is bounded by the window of each line.

use crate::carried::BY_GUEST;
use crate::console::Keeper;
use crate::outlets::Outlets;
use crate::wire::{self, Frame, Inbox, Kind, WINDOW};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use skep_sys::message::{receive_with, send_with};
use std::collections::BTreeMap;
use std::io;

/// Bytes for the guest that may wait here before relays are no longer read from.
const CROWDED: usize = 1 << 20;
/// And before the guest is taken for one that does not read.
const FLOODED: usize = 32 << 20;

/// What init tells the switchboard.
#[derive(Debug, Serialize, Deserialize)]
pub enum Instruction {
    /// An exec; descriptor: the other end of its relay's socket.
    Connect,
    /// Everybody in the guest stands still. With the question's number, as all that is answered.
    Freeze(u64),
    /// They go on.
    Thaw,
    /// The guest gets a network.
    Network(u64, Box<wire::Network>),
    /// It takes in other rules.
    Rules(u64, String),
}

/// What the switchboard tells init.
#[derive(Debug, Serialize, Deserialize)]
pub enum Announcement {
    /// The guest is up.
    Up(wire::Ready),
    /// An answer to the question of this number.
    Answer(u64, Answer),
}

/// What the guest says to a question.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It stands still.
    Frozen,
    /// Its network stands, or not.
    Networked(wire::Networked),
    /// Its rules are taken in, or why not.
    Ruled(Option<String>),
}

struct Line {
    socket: OwnedFd,
    inbox: Inbox,
    out: Vec<u8>,
    /// The guest has said the last word.
    over: bool,
}

struct Switchboard {
    serial: OwnedFd,
    control: OwnedFd,
    inbox: Inbox,
    out: Vec<u8>,
    lines: BTreeMap<u32, Line>,
    next: u32,
    outlets: Outlets,
    /// What is said outside of any line.
    console: Option<Keeper>,
    /// The guest has said its first words.
    up: bool,
    /// The question that init waits for an answer to.
    asked: Option<u64>,
}

/// Who has something to say, or room.
struct Ready {
    serial: bool,
    control: bool,
    lines: Vec<u32>,
    outlets: Vec<u32>,
    console: bool,
}

/// Until init or the guest is gone. Returns the exit code.
pub fn run(serial: OwnedFd, control: OwnedFd, console: Option<Keeper>) -> i32 {
    let mut board = Switchboard {
        serial,
        control,
        inbox: Inbox::default(),
        out: Vec::new(),
        lines: BTreeMap::new(),
        next: 1,
        outlets: Outlets::default(),
        console,
        up: false,
        asked: None,
    };
    let served = board.serve();
    // The reason is often what was said last.
    if let Some(console) = &mut board.console {
        console.drain();
    }
    i32::from(served.is_err())
}

impl Switchboard {
    fn serve(&mut self) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&self.serial, true)?;
        loop {
            let Ready { serial, control, lines, outlets, console } = self.wait()?;
            if let Some(keeper) = self.console.as_mut().filter(|_| console) {
                keeper.pump();
            }
            if serial {
                self.hear_guest()?;
            }
            if control {
                self.hear_init()?;
            }
            for number in lines {
                self.hear_line(number);
            }
            let calm = self.out.len() < CROWDED;
            for number in outlets {
                self.outlets.pump(number, calm, &mut self.out);
            }
            if self.out.len() > FLOODED {
                return Err(io::Error::other("the guest does not read"));
            }
            flush(&self.serial, &mut self.out)?;
            self.lines.retain(|_, line| {
                let sent = flush(&line.socket, &mut line.out).is_ok();
                sent && !(line.over && line.out.is_empty())
            });
        }
    }

    fn wait(&self) -> io::Result<Ready> {
        let wanted = |out: &[u8], read: bool| {
            let mut flags = if read { PollFlags::IN } else { PollFlags::empty() };
            flags.set(PollFlags::OUT, !out.is_empty());
            flags
        };
        let calm = self.out.len() < CROWDED;
        let mut watched = vec![
            PollFd::new(&self.serial, wanted(&self.out, true)),
            PollFd::new(&self.control, PollFlags::IN),
        ];
        for line in self.lines.values() {
            watched.push(PollFd::new(&line.socket, wanted(&line.out, calm)));
        }
        let outlets = self.outlets.interests(calm);
        for (_, socket, flags) in &outlets {
            watched.push(PollFd::from_borrowed_fd(*socket, *flags));
        }
        if let Some(console) = &self.console {
            watched.push(PollFd::from_borrowed_fd(console.pipe(), PollFlags::IN));
        }
        match poll(&mut watched, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let readable = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        let ready: Vec<bool> = watched.iter().map(|fd| fd.revents().intersects(readable)).collect();
        let lines = self.lines.keys().zip(&ready[2..]).filter(|(_, ready)| **ready);
        let outlets = outlets.iter().zip(&watched[2 + self.lines.len()..]);
        let outlets = outlets.filter(|(_, watched)| !watched.revents().is_empty());
        let console = self.console.is_some() && ready.last() == Some(&true);
        Ok(Ready {
            console,
            serial: ready[0],
            control: ready[1],
            lines: lines.map(|(number, _)| *number).collect(),
            outlets: outlets.map(|((number, ..), _)| *number).collect(),
        })
    }

    fn hear_guest(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        match rustix::io::read(&self.serial, &mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => self.inbox.push(&buffer[..length]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        while let Some(frame) = self.inbox.take().map_err(io::Error::other)? {
            match frame {
                Frame { line: 0, kind: Kind::Ready, payload } => {
                    if !std::mem::replace(&mut self.up, true) {
                        let ready = serde_json::from_slice(payload)?;
                        announce(&self.control, &Announcement::Up(ready))?;
                    }
                }
                Frame { line: 0, kind: Kind::Frozen, payload } => {
                    let number = serde_json::from_slice(payload)?;
                    pass_answer(&self.control, &mut self.asked, (number, Answer::Frozen))?;
                }
                Frame { line: 0, kind: Kind::Networked, payload } => {
                    let (number, stands) = serde_json::from_slice(payload)?;
                    let answer = (number, Answer::Networked(stands));
                    pass_answer(&self.control, &mut self.asked, answer)?;
                }
                Frame { line: 0, kind: Kind::Ruled, payload } => {
                    let (number, ruled) = serde_json::from_slice(payload)?;
                    let answer = (number, Answer::Ruled(ruled));
                    pass_answer(&self.control, &mut self.asked, answer)?;
                }
                Frame { line, kind, payload } if line & BY_GUEST != 0 => {
                    self.outlets.obey((line, kind, payload), &mut self.out)?;
                }
                Frame { line, kind, payload } => pass_on(&mut self.lines, line, kind, payload)?,
            }
        }
        Ok(())
    }

    fn hear_init(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        let (length, descriptors) = receive_with(&self.control, &mut buffer)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match serde_json::from_slice(&buffer[..length])? {
            Instruction::Connect => {
                let socket = descriptors.into_iter().next();
                let socket =
                    socket.ok_or_else(|| io::Error::other("a line came without itself"))?;
                rustix::io::ioctl_fionbio(&socket, true)?;
                let line = Line { socket, inbox: Inbox::default(), out: Vec::new(), over: false };
                self.lines.insert(self.next, line);
                self.next += 1;
            }
            Instruction::Freeze(number) => {
                self.asked = Some(number);
                wire::push_json(&mut self.out, 0, Kind::Freeze, &number);
            }
            Instruction::Thaw => wire::push(&mut self.out, 0, Kind::Thaw, b""),
            Instruction::Network(number, network) => {
                self.asked = Some(number);
                self.outlets.open(network.dns);
                wire::push_json(&mut self.out, 0, Kind::Network, &(number, network));
            }
            Instruction::Rules(number, rules) => {
                self.asked = Some(number);
                wire::push_json(&mut self.out, 0, Kind::Rules, &(number, rules));
            }
        }
        Ok(())
    }

    /// A relay that is gone takes its exec with it.
    fn hear_line(&mut self, number: u32) {
        let Some(line) = self.lines.get_mut(&number) else { return };
        let mut buffer = vec![0; 64 << 10];
        let gone = match rustix::io::read(&line.socket, &mut buffer) {
            Ok(0) => true,
            Ok(length) => {
                line.inbox.push(&buffer[..length]);
                let mut broken = false;
                loop {
                    match line.inbox.take() {
                        Ok(Some(frame)) => {
                            wire::push(&mut self.out, number, frame.kind, frame.payload);
                        }
                        Ok(None) => break,
                        Err(_) => {
                            broken = true;
                            break;
                        }
                    }
                }
                broken
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => false,
            Err(_) => true,
        };
        if gone {
            if !line.over {
                wire::push(&mut self.out, number, Kind::Kill, b"");
            }
            self.lines.remove(&number);
        }
    }
}

/// What nobody has asked, or waits for any more, is not passed on: init would take it for the answer to
/// its next question, and a guest that talks without end would fill the channel.
fn pass_answer(
    control: &OwnedFd,
    asked: &mut Option<u64>,
    (number, answer): (u64, Answer),
) -> io::Result<()> {
    match asked.take_if(|asked| *asked == number) {
        Some(_) => announce(control, &Announcement::Answer(number, answer)),
        None => Ok(()),
    }
}

fn announce(control: &OwnedFd, announcement: &Announcement) -> io::Result<()> {
    send_with(control, &serde_json::to_vec(announcement)?, &[]).map(drop)
}

/// Tells the switchboard something.
pub fn instruct(
    control: &OwnedFd,
    instruction: &Instruction,
    descriptors: &[rustix::fd::BorrowedFd<'_>],
) -> io::Result<()> {
    send_with(control, &serde_json::to_vec(instruction)?, descriptors).map(drop)
}

/// Waits for what the switchboard says.
pub fn hear(control: &OwnedFd) -> io::Result<Announcement> {
    let mut buffer = vec![0; 64 << 10];
    let (length, _) = receive_with(control, &mut buffer)?;
    if length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&buffer[..length])?)
}

fn pass_on(
    lines: &mut BTreeMap<u32, Line>,
    number: u32,
    kind: Kind,
    payload: &[u8],
) -> io::Result<()> {
    // The exec may be over here while the guest still speaks of it.
    let Some(line) = lines.get_mut(&number) else { return Ok(()) };
    wire::push(&mut line.out, 0, kind, payload);
    line.over = matches!(kind, Kind::Ended | Kind::NotStarted);
    if line.out.len() > 4 * WINDOW {
        return Err(io::Error::other("the guest does not keep to the window"));
    }
    Ok(())
}

fn flush(socket: &OwnedFd, out: &mut Vec<u8>) -> io::Result<()> {
    let mut sent = 0;
    while sent < out.len() {
        match rustix::io::write(socket, &out[sent..]) {
            Ok(length) => sent += length,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => break,
            Err(error) => return Err(error.into()),
        }
    }
    out.drain(..sent);
    Ok(())
}
