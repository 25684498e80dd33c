//! Project quotas: a filesystem counts all files that carry one number, and stops at a limit.
//!
//! A directory hands its number on to what is made in it. Only root of the host may set a limit.

use rustix::fd::{AsFd, AsRawFd};
use std::io;

/// What the files of a project take up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Bytes.
    pub bytes: u64,
    /// Files.
    pub inodes: u64,
}

const PROJECT: u32 = 2;
const GET_QUOTA: u32 = 0x80_0007;
const SET_QUOTA: u32 = 0x80_0008;
const GET_STATE: u32 = (b'X' as u32) << 8 | 5;
/// Limits of blocks and of inodes are to be set (`QIF_LIMITS`).
const LIMITS: u32 = 1 | 4;
/// Limits of projects hold (`FS_QUOTA_PDQ_ENFD`).
const ENFORCED: u16 = 1 << 5;
/// New entries of a directory get its number.
const INHERIT: u32 = 0x200;

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    padding: [u8; 8],
}

/// `struct fs_quota_stat` of linux/dqblk_xfs.h; only its second field is of interest.
#[repr(C)]
struct State {
    version: i8,
    flags: u16,
    rest: [u64; 10],
}

/// Whether the filesystem of this file holds projects to their limits.
pub fn is_enforced(at: impl AsFd) -> io::Result<bool> {
    let mut state = State { version: 1, flags: 0, rest: [0; 10] };
    // SAFETY: the kernel fills 80 bytes; `State` has 88.
    unsafe { call(at, GET_STATE, 0, (&raw mut state).cast()) }?;
    Ok(state.flags & ENFORCED != 0)
}

/// The number that this directory hands on; 0 if it hands on none.
pub fn project_of(directory: impl AsFd) -> io::Result<u32> {
    let attributes = attributes(&directory)?;
    Ok(if attributes.flags & INHERIT == 0 { 0 } else { attributes.project })
}

/// Gives a directory, and what will be made in it, to a project.
pub fn give_to_project(directory: impl AsFd, project: u32) -> io::Result<()> {
    let mut attributes = attributes(&directory)?;
    attributes.project = project;
    attributes.flags |= INHERIT;
    let number = directory.as_fd().as_raw_fd();
    // SAFETY: the kernel reads a `struct fsxattr`, which lives until the call returns.
    let result = unsafe { libc::ioctl(number, SET_ATTRIBUTES, &raw const attributes) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What a project takes up on the filesystem of this file.
pub fn usage(at: impl AsFd, project: u32) -> io::Result<Usage> {
    let mut block = empty();
    // SAFETY: the kernel fills a `struct if_dqblk`, which `libc::dqblk` is.
    unsafe { call(at, GET_QUOTA, project, (&raw mut block).cast()) }?;
    Ok(Usage { bytes: block.dqb_curspace, inodes: block.dqb_curinodes })
}

/// Limits a project; `None` is no limit.
pub fn limit(
    at: impl AsFd,
    project: u32,
    bytes: Option<u64>,
    inodes: Option<u64>,
) -> io::Result<()> {
    let mut block = empty();
    // In blocks of 1 KiB, whatever the filesystem's are. 0 would be no limit.
    block.dqb_bhardlimit = bytes.map_or(0, |bytes| (bytes >> 10).max(1));
    block.dqb_ihardlimit = inodes.map_or(0, |inodes| inodes.max(1));
    block.dqb_valid = LIMITS;
    // SAFETY: the kernel reads a `struct if_dqblk`, which lives until the call returns.
    unsafe { call(at, SET_QUOTA, project, (&raw mut block).cast()) }
}

const fn empty() -> libc::dqblk {
    libc::dqblk {
        dqb_bhardlimit: 0,
        dqb_bsoftlimit: 0,
        dqb_curspace: 0,
        dqb_ihardlimit: 0,
        dqb_isoftlimit: 0,
        dqb_curinodes: 0,
        dqb_btime: 0,
        dqb_itime: 0,
        dqb_valid: 0,
    }
}

const GET_ATTRIBUTES: libc::Ioctl = 0x801c_581f;
const SET_ATTRIBUTES: libc::Ioctl = 0x401c_5820;

fn attributes(directory: impl AsFd) -> io::Result<Attributes> {
    let mut found = Attributes::default();
    let number = directory.as_fd().as_raw_fd();
    // SAFETY: the kernel fills a `struct fsxattr`, which `Attributes` is.
    let result = unsafe { libc::ioctl(number, GET_ATTRIBUTES, &raw mut found) };
    if result == 0 { Ok(found) } else { Err(io::Error::last_os_error()) }
}

/// quotactl_fd(2), since Linux 5.14.
///
/// # Safety
/// `data` must be what the command reads or fills.
unsafe fn call(
    at: impl AsFd,
    command: u32,
    project: u32,
    data: *mut libc::c_void,
) -> io::Result<()> {
    let command = command << 8 | PROJECT;
    let number = at.as_fd().as_raw_fd();
    // SAFETY: the caller vouches for `data`; the other arguments are plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_quotactl_fd, number, command, project, data) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With limits it is tried on a kernel that has quotas: see `tests/guest/quota.rs`.
    #[test]
    fn a_filesystem_without_projects_says_so() {
        let place = std::fs::File::open("/proc").unwrap();
        assert!(is_enforced(&place).is_err());
        assert!(usage(&place, 7).is_err());
        assert!(limit(&place, 7, Some(1), None).is_err());
    }

    #[test]
    fn the_kernels_structures_have_their_sizes() {
        assert_eq!(size_of::<Attributes>(), 28);
        assert!(size_of::<State>() >= 80);
        assert_eq!(std::mem::offset_of!(State, flags), 2);
    }
}
