//! Which exec a connection out of the sandbox belongs to.
//!
//! The egress process asks with the two addresses of a socket. Two things can be said for certain,
//! and by nobody inside otherwise:
//!
//! 1. There has been only one exec, so whatever happens inside is its doing.
//! 2. The kernel says which socket has those addresses, `/proc` says which processes hold it, and
//!    all of them descend from the main process of one exec. A process cannot choose its
//!    ancestors: who loses his parent goes to init.
//!
//! Everything else is unknown: a process that has detached from its exec, a socket that execs
//! share, one whose process was gone before we looked, more processes than can be looked through
//! in [`BUDGET`]. Cgroups are not asked: a process that detached before its exec had a group is put
//! into one by a guess (see `groups`).

use super::Keeper;
use crate::vessel::pid_of;
use rustix::process::Pid;
use skep_confine::usage::children_of;
use skep_sys::socket_diag::{Transport, inode_of};
use skep_types::{EgressPeer, ExecId, ToEgress};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

/// How long one question may keep the keeper from its other work.
const BUDGET: Duration = Duration::from_millis(50);

/// Who holds a socket, as far as was looked.
#[derive(Debug, Default, PartialEq, Eq)]
enum Holder {
    #[default]
    Nobody,
    One(ExecId),
    Unclear,
}

impl Holder {
    fn and(&mut self, exec: Option<&ExecId>) {
        *self = match (std::mem::take(self), exec) {
            (Self::Nobody, Some(exec)) => Self::One(exec.clone()),
            (Self::One(one), Some(exec)) if one == *exec => Self::One(one),
            _ => Self::Unclear,
        };
    }
}

/// How many execs there have been.
#[derive(Debug, Default)]
pub(super) enum ExecsSoFar {
    #[default]
    None,
    One(ExecId),
    More,
}

impl ExecsSoFar {
    /// One more has been started.
    pub(super) fn one_more(&mut self, exec: &ExecId) {
        *self = match self {
            Self::None => Self::One(exec.clone()),
            _ => Self::More,
        };
    }

    /// Whether there was one.
    pub(super) fn any(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Something else than an exec runs inside.
    pub(super) fn something_else(&mut self) {
        *self = Self::More;
    }
}

impl Keeper<'_> {
    /// Answers the egress process.
    pub(super) fn tell_owners(&mut self, question: u64, peers: &[EgressPeer]) {
        let execs = match &self.state.so_far {
            ExecsSoFar::None => vec![None; peers.len()],
            ExecsSoFar::One(exec) => vec![Some(exec.to_string()); peers.len()],
            ExecsSoFar::More => self.owners_of(peers),
        };
        if let Some(egress) = &self.attendants.egress {
            // If it is gone we hear of it by its socket.
            let _ = egress.tell(&ToEgress::Owners { question, execs });
        }
    }

    fn owners_of(&self, peers: &[EgressPeer]) -> Vec<Option<String>> {
        let Some(egress) = &self.attendants.egress else { return Vec::new() };
        let inode = |peer: &EgressPeer| {
            let transport = if peer.udp { Transport::Udp } else { Transport::Tcp };
            inode_of(egress.diagnosis()?, transport, peer.local, peer.remote).ok().flatten()
        };
        let inodes: Vec<Option<u64>> = peers.iter().map(inode).collect();
        let mut holders: HashMap<u64, Holder> =
            inodes.iter().flatten().map(|inode| (*inode, Holder::Nobody)).collect();
        if holders.is_empty() || !self.find_holders(&mut holders) {
            return vec![None; peers.len()];
        }
        let name = |inode: &Option<u64>| match holders.get(inode.as_ref()?)? {
            Holder::One(exec) => Some(exec.to_string()),
            Holder::Nobody | Holder::Unclear => None,
        };
        inodes.iter().map(name).collect()
    }

    /// Looks through all processes of the sandbox; whether there was time for that.
    fn find_holders(&self, holders: &mut HashMap<u64, Holder>) -> bool {
        let end = Instant::now() + BUDGET;
        let mains: HashMap<Pid, &ExecId> = self
            .state
            .execs
            .iter()
            .filter_map(|(exec, running)| Some((pid_of(running.process.as_ref()?)?, exec)))
            .collect();
        let mut open: Vec<(Pid, Option<&ExecId>)> = vec![(self.init.pid, None)];
        let mut seen = HashSet::new();
        while let Some((pid, exec)) = open.pop() {
            if Instant::now() > end {
                return false;
            }
            if !seen.insert(pid) {
                continue;
            }
            let exec = mains.get(&pid).copied().or(exec);
            for inode in sockets_of(pid) {
                if let Some(holder) = holders.get_mut(&inode) {
                    holder.and(exec);
                }
            }
            open.extend(children_of(pid).into_iter().map(|child| (child, exec)));
        }
        true
    }
}

/// Inodes of the sockets a process has open.
fn sockets_of(pid: Pid) -> Vec<u64> {
    let entries = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()));
    let links = entries.into_iter().flatten().flatten().filter_map(|entry| {
        let link = fs::read_link(entry.path()).ok()?;
        let text = std::str::from_utf8(link.as_os_str().as_bytes()).ok()?;
        text.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    });
    links.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_of_two_execs_is_nobodys() {
        let (one, two) = (ExecId::from_random([1; 10]), ExecId::from_random([2; 10]));
        let held_by = |execs: &[Option<&ExecId>]| {
            let mut holder = Holder::default();
            execs.iter().for_each(|exec| holder.and(*exec));
            holder
        };
        assert_eq!(held_by(&[]), Holder::Nobody);
        assert_eq!(held_by(&[Some(&one), Some(&one)]), Holder::One(one.clone()));
        for shared in [[Some(&one), Some(&two)], [Some(&one), None], [None, Some(&one)]] {
            assert_eq!(held_by(&shared), Holder::Unclear);
        }
    }

    #[test]
    fn own_sockets_and_children_are_found() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&socket);
        let link = fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
        let own = rustix::process::getpid();
        let found =
            sockets_of(own).iter().any(|inode| link.to_str().unwrap().contains(&inode.to_string()));
        assert!(found);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        assert!(children_of(own).contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
