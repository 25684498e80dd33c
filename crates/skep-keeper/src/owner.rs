//! Whose files are the user's inside, where root has started the sandbox.
//!
//! Root may start one in anybody's project. There the project's owner is the user inside: what the
//! owner has can be written, what others have is readable as its mode says, and the processes own
//! nothing outside, as ever. Who owns a directory that is shown writable is asked of its root; an
//! idmapped mount shows that id on disk as 0 inside, and the real root's files as the owner's id,
//! so that each of them still is somebody.
//!
//! The user inside stays number 0 in all of root's sandboxes, and uppers and layers stay in one
//! range whoever the project belongs to.

use crate::failure::{Failure, Step};
use crate::identity::{self, RANGE_LENGTH, RANGE_START};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::Signal;
use skep_sys::process::{Namespaces, clone_with};
use std::fmt::Write as _;
use std::fs::File;

/// Stands for root where the owner's id is above the range. The id is nobody's, and nobody should
/// have files.
const NOBODY: u32 = 65_534;

/// An owner on disk: user and group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    user: u32,
    group: u32,
}

impl Owner {
    /// The real root: every id is itself inside.
    pub const ROOT: Self = Self { user: 0, group: 0 };

    /// Who owns what this was asked of.
    pub fn of(stat: &rustix::fs::Stat) -> Self {
        Self { user: stat.st_uid, group: stat.st_gid }
    }

    /// What files of these ids must have on the host's disks to look inside as the owner's own tree
    /// shows them.
    pub fn outside(self, uid: u32, gid: u32) -> (u32, u32) {
        let one = |owner, id| RANGE_START + inside(owner, id).unwrap_or(NOBODY);
        (one(self.user, uid), one(self.group, gid))
    }

    /// A user namespace in which this owner's id stands for 0 of the range, for as long as it is
    /// held open.
    pub fn namespace(self) -> Result<OwnedFd, Failure> {
        let step = || "make a user namespace for the owner's id".to_owned();
        let (gate, release) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).step(step)?;
        let child = clone_with(Namespaces::USER, || {
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            let _ = rustix::io::read(&gate, &mut [0; 1]);
            0
        })
        .step(step)?;
        let pid = child.pid.as_raw_nonzero().get();
        let write =
            |name: &str, id| identity::write(format!("/proc/{pid}/{name}"), &lines(id)).step(step);
        let made = write("gid_map", self.group)
            .and_then(|()| write("uid_map", self.user))
            .and_then(|()| File::open(format!("/proc/{pid}/ns/user")).step(step));
        let _ = rustix::io::write(&release, &[1]);
        let _ = skep_sys::process::wait_for(&child);
        made.map(OwnedFd::from)
    }
}

/// What an id on disk is inside, in a tree of this owner's; `None` if nothing.
fn inside(owner: u32, id: u32) -> Option<u32> {
    let free = if owner < RANGE_LENGTH { owner } else { NOBODY };
    match id {
        _ if id == owner => Some(0),
        0 => Some(free),
        _ if id == free => None,
        _ => (id < RANGE_LENGTH).then_some(id),
    }
}

/// The same as the text of an id map: on disk, outside, how many.
fn lines(owner: u32) -> String {
    let mut text = String::new();
    let mut line = |from: u32, to: u32, count: u32| {
        if count > 0 {
            let _ = writeln!(text, "{from} {} {count}", RANGE_START + to);
        }
    };
    if owner == 0 {
        line(0, 0, RANGE_LENGTH);
        return text;
    }
    let free = if owner < RANGE_LENGTH { owner } else { NOBODY };
    line(0, free, 1);
    line(1, 1, free - 1);
    line(free + 1, free + 1, RANGE_LENGTH - free - 1);
    line(owner, 0, 1);
    text
}

/// The user namespaces by which owners on disk appear as users inside.
#[derive(Debug)]
pub struct OwnerMaps {
    root: OwnedFd,
    others: Vec<(Owner, OwnedFd)>,
}

impl OwnerMaps {
    /// `root` is the namespace of the sandbox itself.
    pub fn new(root: OwnedFd) -> Self {
        Self { root, others: Vec::new() }
    }

    /// The one for an owner's tree, made when it is first asked for.
    pub fn shown(&mut self, owner: Owner) -> Result<BorrowedFd<'_>, Failure> {
        if owner == Owner::ROOT {
            return Ok(self.root.as_fd());
        }
        let known = self.others.iter().position(|(known, _)| *known == owner);
        let at = match known {
            Some(at) => at,
            None => {
                self.others.push((owner, owner.namespace()?));
                self.others.len() - 1
            }
        };
        Ok(self.others[at].1.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a map says of an id.
    fn looked_up(text: &str, id: u32) -> Option<u32> {
        text.lines().find_map(|line| {
            let numbers: Vec<u32> = line.split(' ').map(|word| word.parse().unwrap()).collect();
            let [from, to, count] = numbers[..] else { panic!("{line}") };
            (from..from + count).contains(&id).then(|| to + (id - from))
        })
    }

    #[test]
    fn the_owner_is_the_user_inside_and_nobody_else_is() {
        for owner in [0, 1, 1000, NOBODY, 65_535, 65_536, 200_000, RANGE_START] {
            let text = lines(owner);
            for id in [0, 1, 2, 999, 1000, 1001, NOBODY, 65_535, 65_536, 200_000] {
                let seen = looked_up(&text, id);
                let same = inside(owner, id).map(|id| RANGE_START + id);
                assert_eq!(seen, same, "{id} in a tree of {owner}: {text}");
                assert_eq!(seen == Some(RANGE_START), id == owner, "{id} in a tree of {owner}");
            }
            assert!(looked_up(&text, 0).is_some(), "root is somebody: {text}");
        }
    }

    #[test]
    fn no_two_ids_become_one() {
        for owner in [0, 1, 1000, NOBODY, 65_535, 65_536] {
            let mut seen: Vec<u32> = (0..70_000).filter_map(|id| inside(owner, id)).collect();
            let all = seen.len();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), all, "{owner}");
            assert!(seen.iter().all(|id| *id < RANGE_LENGTH));
        }
    }
}
