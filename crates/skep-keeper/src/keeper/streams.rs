//! Clients and the output of execs.

use super::{Connection, Keeper};
use crate::protocol::{FrameKind, Operation, Reply, Request, ToInit, VERSION};
use crate::vessel::Tasks;
use rustix::net::SocketFlags;
use skep_provider::Stillness;
use skep_provider::log::Stream;
use skep_types::{ExecId, TerminalSize};

const BUFFER: usize = 64 << 10;

impl Keeper<'_> {
    /// Takes a client in, if it is the same user (or root).
    pub(super) fn welcome(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = rustix::net::accept_with(&self.listener, flags) else { return };
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&socket) else { return };
        let own = rustix::process::geteuid();
        if peer.uid != own && !peer.uid.is_root() {
            return;
        }
        let id = self.state.next_connection;
        self.state.next_connection += 1;
        self.state.connections.insert(id, Connection::new(socket));
        // Who comes has something to say, and has mostly said it by now.
        self.serve_client(id);
    }

    pub(super) fn serve_client(&mut self, id: u64) {
        self.flush(id);
        let Some(connection) = self.state.connections.get_mut(&id) else { return };
        match connection.fill() {
            Ok(true) => {}
            Ok(false) | Err(_) => return self.forget(id),
        }
        loop {
            let Some(connection) = self.state.connections.get_mut(&id) else { return };
            match connection.next_frame() {
                Ok(None) => return,
                Ok(Some((kind, payload))) => self.obey(id, kind, &payload),
                Err(_) => return self.forget(id),
            }
        }
    }

    fn obey(&mut self, client: u64, kind: FrameKind, payload: &[u8]) {
        if kind == FrameKind::Request {
            match serde_json::from_slice::<Request>(payload) {
                // To end means the same in every version.
                Ok(Request { operation: Operation::Stop, .. }) => self.state.stopping = true,
                Ok(Request { version: VERSION, operation }) => self.operate(client, operation),
                Ok(_) | Err(_) => self.refuse_version(client),
            }
            return;
        }
        let attached = self.state.connections.get(&client).and_then(|c| c.attached.clone());
        let Some(exec) = attached else { return self.forget(client) };
        let Some(running) = self.state.execs.get_mut(&exec) else { return };
        match kind {
            FrameKind::Stdin => {
                running.pending.extend_from_slice(payload);
                running.feed();
            }
            FrameKind::StdinEnd => {
                running.stdin_ending = true;
                running.feed();
            }
            FrameKind::Resize => {
                if let Ok(size) = serde_json::from_slice::<TerminalSize>(payload) {
                    match self.vessel.tasks() {
                        Tasks::Host => running.resize(size),
                        Tasks::Foreign => {
                            let _ = self.channel.send(&ToInit::Resize { exec, size }, &[]);
                        }
                    }
                }
            }
            FrameKind::Signal => {
                if let Ok(signal) = serde_json::from_slice(payload) {
                    self.operate_signal(&exec, signal);
                }
            }
            FrameKind::Request
            | FrameKind::Reply
            | FrameKind::Stdout
            | FrameKind::Stderr
            | FrameKind::End
            | FrameKind::LastEnd => self.forget(client),
        }
    }

    fn refuse_version(&mut self, client: u64) {
        self.reply(client, &Ok(crate::protocol::Reply::OtherVersion(VERSION)));
    }

    /// Moves one buffer of output to the log and to the client.
    pub(super) fn pump(&mut self, exec: &ExecId, index: usize) {
        let mut buffer = Vec::with_capacity(BUFFER);
        self.pump_with(exec, index, &mut buffer);
        if let Some(client) = self.state.execs.get(exec).and_then(|running| running.client) {
            self.flush(client);
        }
        self.forget_if_quiet(exec);
    }

    fn pump_with(&mut self, exec: &ExecId, index: usize, buffer: &mut Vec<u8>) -> bool {
        let Some(running) = self.state.execs.get_mut(exec) else { return false };
        if !running.read(index, buffer).unwrap_or(false) {
            return false;
        }
        let kind = match running.outputs[index].stream {
            Stream::Stdout => FrameKind::Stdout,
            Stream::Stderr => FrameKind::Stderr,
        };
        let client = running.client.filter(|_| !running.has_ended());
        if let Some(connection) = client.and_then(|id| self.state.connections.get_mut(&id)) {
            connection.push(kind, buffer);
        }
        true
    }

    /// Everything the main process had printed lies in the pipes when it has ended; take it all.
    pub(super) fn drain(&mut self, exec: &ExecId) {
        let mut buffer = Vec::with_capacity(BUFFER);
        let outputs = self.state.execs.get(exec).map_or(0, |running| running.outputs.len());
        for index in 0..outputs {
            // A background process could go on printing for ever: a pipe holds at most 1 MiB.
            for _ in 0..32 {
                if !self.pump_with(exec, index, &mut buffer) {
                    break;
                }
            }
        }
    }

    /// The look is over: those who asked meanwhile and are still there begin.
    pub(super) fn begin_held_back(&mut self) {
        for (client, order) in std::mem::take(&mut self.state.held_back) {
            if self.state.connections.contains_key(&client) {
                self.operate(client, order);
            }
        }
    }

    fn operate(&mut self, client: u64, operation: Operation) {
        if self.state.over_since.is_some() {
            return self.operate_late(client, operation);
        }
        match operation {
            // Nobody begins while somebody looks at what is there.
            order @ Operation::Exec { .. } if self.state.frozen => {
                self.state.held_back.push((client, order));
            }
            Operation::Exec { exec, command, attach, last } => {
                self.start_exec(client, exec.clone(), *command, attach);
                if let Some(running) = self.state.execs.get_mut(&exec) {
                    running.last = last;
                }
            }
            Operation::Record(order) => self.start_recorded(client, *order),
            Operation::Signal { exec, signal } => {
                self.operate_signal(&exec, signal);
                self.reply(client, &Ok(Reply::Done));
            }
            Operation::Freeze => self.operate_freeze(client, true),
            Operation::Thaw => self.operate_freeze(client, false),
            Operation::Stood => self.operate_stood(client),
            Operation::Refresh => self.operate_refresh(client),
            Operation::Status => self.operate_status(client),
            Operation::Write { path, state } => self.operate_write(client, path, state),
            Operation::Reach { rules } => self.operate_reach(client, rules),
            Operation::Revoke { name } => self.operate_revoke(client, name),
            Operation::Knock { targets } => self.operate_knock(client, targets),
            Operation::Adopt(adoption) => self.operate_adopt(client, *adoption),
            Operation::Stop => self.state.stopping = true,
        }
    }

    /// Between the last end and the stop: init is being killed and answers nothing. Once it has gone nobody
    /// inside is left to move; who wants anything done inside comes too late.
    fn operate_late(&mut self, client: u64, operation: Operation) {
        match operation {
            Operation::Stop => self.state.stopping = true,
            Operation::Status => self.operate_status(client),
            Operation::Freeze | Operation::Thaw | Operation::Signal { .. } => {
                self.init.wait();
                self.reply(client, &Ok(Reply::Done));
            }
            Operation::Stood => {
                self.init.wait();
                self.reply(client, &Ok(Reply::Stood(Stillness::Held)));
            }
            // Which is answered with "ask the store".
            Operation::Record(order) => self.start_recorded(client, *order),
            Operation::Exec { .. }
            | Operation::Write { .. }
            | Operation::Refresh
            | Operation::Reach { .. }
            | Operation::Revoke { .. }
            | Operation::Knock { .. }
            | Operation::Adopt(_) => self.forget(client),
        }
    }
}
