//! Who the processes of a sandbox are, inside and outside.
//!
//! An ordinary user has one id to map: the caller's own, which the child maps by itself. Root is
//! not left as root: real user 0 without any capability still owns most of the host's files. Its
//! sandboxes are mapped, 65,536 ids long, to a range that belongs to nobody.

use crate::failure::{Failure, Step};
use serde::{Deserialize, Serialize};
use skep_sys::subordinate;
use skep_types::{InsideUser, SystemView};
use std::io;
use std::path::Path;
use std::sync::OnceLock;

/// First id of the range that root's sandboxes are mapped to. It lies above the ranges that
/// distributions and container managers hand out, and below 2³¹, where some tools stop counting.
pub const RANGE_START: u32 = 0x7000_0000;
/// How many ids are mapped.
pub const RANGE_LENGTH: u32 = 0x1_0000;

/// How ids are mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum IdMap {
    /// One user and one group id: inside, outside.
    Own {
        /// User id.
        user: (u32, u32),
        /// Group id.
        group: (u32, u32),
        /// Inside from 1 on: what `/etc/subuid` and `/etc/subgid` lend the caller.
        lent: Option<LentIds>,
    },
    /// All ids from 0 on to an unprivileged range.
    Range,
    /// Not at all: there is no user namespace.
    Host,
}

/// Subordinate ids: the first, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentIds {
    /// Of users.
    pub users: (u32, u32),
    /// Of groups.
    pub groups: (u32, u32),
}

impl LentIds {
    /// What the caller was lent, if the kernel and the two programs really map it: tried.
    fn of_caller() -> Option<Self> {
        let lent = subordinate::lent()?;
        subordinate::can_map(lent).ok()?;
        let pair = |range: subordinate::Range| (range.start, range.count);
        Some(Self { users: pair(lent.users), groups: pair(lent.groups) })
    }
}

impl IdMap {
    /// The map for a caller with these effective ids.
    ///
    /// A root-looking user who was given a system to change installs packages, and those want more
    /// users than one: there the ids that the caller was lent are mapped too.
    ///
    /// Root of a user namespace that does not have the range (`unshare -Ur`, a rootless container)
    /// is root of nothing else, and keeps its one id.
    pub fn for_caller(uid: u32, gid: u32, user: InsideUser, system: SystemView) -> Self {
        match (uid, user) {
            (0, _) if has_range() => Self::Range,
            (uid, InsideUser::Caller) => {
                Self::Own { user: (uid, uid), group: (gid, gid), lent: None }
            }
            (uid, InsideUser::Root) => {
                let many = system == SystemView::Cow;
                let lent = if many { LentIds::of_caller() } else { None };
                Self::Own { user: (0, uid), group: (0, gid), lent }
            }
        }
    }

    /// The map that nearly every sandbox of this caller has.
    pub fn usual() -> Self {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Self::for_caller(uid.as_raw(), gid.as_raw(), InsideUser::Caller, SystemView::Ro)
    }

    /// The subordinate ids in it.
    pub fn lent(self) -> Option<LentIds> {
        match self {
            Self::Own { lent, .. } => lent,
            Self::Range | Self::Host => None,
        }
    }

    /// User and group id that processes inside have, as they see them.
    pub fn inside(self) -> (u32, u32) {
        match self {
            Self::Own { user, group, .. } => (user.0, group.0),
            Self::Range | Self::Host => (0, 0),
        }
    }

    /// What an id inside is on the host's disks.
    pub fn outside(self, uid: u32, gid: u32) -> (u32, u32) {
        match self {
            Self::Own { user, group, .. } => (user.1, group.1),
            Self::Range => (RANGE_START.saturating_add(uid), RANGE_START.saturating_add(gid)),
            Self::Host => (uid, gid),
        }
    }

    /// Written by the process itself, just born into its user namespace.
    ///
    /// The kernel lets an unprivileged process map its own id only after it gave up `setgroups`:
    /// dropping a group could otherwise open files that deny that group.
    pub fn write_own(self) -> Result<(), Failure> {
        let Self::Own { user, group, lent: None } = self else { return Ok(()) };
        match write("/proc/self/setgroups", "deny") {
            // A kernel without this file does not ask for it either.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.step(|| "give up setgroups".into())?,
        }
        write("/proc/self/gid_map", &format!("{} {} 1", group.0, group.1))
            .step(|| "map the group id".into())?;
        write("/proc/self/uid_map", &format!("{} {} 1", user.0, user.1))
            .step(|| "map the user id".into())
    }

    /// Written by the keeper for a child that waits for it.
    pub fn write_for(self, pid: i32) -> Result<(), Failure> {
        if let Self::Own { user, group, lent } = self {
            let Some(lent) = lent else { return Ok(()) };
            let lines = |own: (u32, u32), more: (u32, u32)| {
                [(own.0, own.1, 1), (own.0 + 1, more.0, more.1)]
            };
            let (users, groups) = (lines(user, lent.users), lines(group, lent.groups));
            return subordinate::map_ids(pid, &users, &groups).map_err(|error| {
                Failure::missing(
                    "the map of subordinate ids",
                    error.to_string(),
                    "look at `/etc/subuid` and `/etc/subgid`; without a line there, one id is mapped",
                )
            });
        }
        if self != Self::Range {
            return Ok(());
        }
        let map = format!("0 {RANGE_START} {RANGE_LENGTH}");
        write(format!("/proc/{pid}/gid_map"), &map).step(|| "map the group ids".into())?;
        write(format!("/proc/{pid}/uid_map"), &map).step(|| "map the user ids".into())
    }
}

/// Changes to the user that all processes inside are (the range's first id).
pub fn become_inside_root() -> Result<(), Failure> {
    use rustix::process::{Gid, Uid};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let step = || "become the user inside".to_owned();
    set_thread_groups(&[]).step(step)?;
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).step(step)?;
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).step(step)
}

/// In a container, whose user is root of one id: takes on the caller's own id in a user namespace
/// below, and gives up what that namespace grants.
pub fn take_on(around: IdMap, wanted: InsideUser) -> Result<(), Failure> {
    let IdMap::Own { user, group, .. } = around else { return Ok(()) };
    if wanted == InsideUser::Root {
        return Ok(());
    }
    skep_sys::process::unshare(skep_sys::process::Namespaces::USER)
        .step(|| "make a user namespace in the container".into())?;
    IdMap::Own { user: (user.1, user.0), group: (group.1, group.0), lent: None }.write_own()?;
    skep_confine::privileges::drop_all()
        .map_err(|error| Failure::invalid(skep_types::chain(&error)))
}

/// Whether the range exists in the user namespace that this process began in, for users and for groups. Looked up once.
pub fn has_range() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(look_for_range)
}

fn look_for_range() -> bool {
    let covered = |path: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().any(covers_range)
    };
    covered("/proc/self/uid_map") && covered("/proc/self/gid_map")
}

/// Whether a line of an id map (inside, outside, count) has the whole range.
fn covers_range(line: &str) -> bool {
    let numbers: Vec<u64> =
        line.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [inside, _, count] = numbers[..] else { return false };
    let (start, end) = (u64::from(RANGE_START), u64::from(RANGE_START) + u64::from(RANGE_LENGTH));
    inside <= start && end <= inside + count
}

/// One write, because the kernel takes a map only whole.
pub(crate) fn write(path: impl AsRef<Path>, text: &str) -> io::Result<()> {
    use std::io::Write;
    std::fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_root_does_not_have_the_range() {
        assert!(covers_range("         0          0 4294967295"));
        assert!(!covers_range("         0       1000          1"));
        assert!(!covers_range("         0     100000      65536"));
        assert!(!covers_range("nonsense"));
    }
}
