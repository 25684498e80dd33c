//! The base: the project as it was at create, known without having walked or copied it.
//!
//! A lower entry is *proven old* when its change time and those of the directories above it are
//! older than the creation instant. The change time cannot be set by a program, so whatever was
//! written, renamed or linked since is newer. Refinements:
//!
//! - A directory may be newer itself when the one above it is not: something came or went in it, but
//!   it was not replaced, for that would have touched the one above.
//! - A directory whose inode was seen while the proof held (an *anchor*) may be newer itself: an
//!   entry that came into it since is newer too, because renaming and linking touch the entry.
//!   The project's root is such an anchor from the start.
//! - That nothing *was* there needs more: every directory above must be old, for a removed entry
//!   leaves no trace but its directory's change time. Or the sandbox's entry was made after its
//!   directory was last touched: then it was made where nothing stood; unless something is known to have stood
//!   there at create, which whoever made the entry may have read ([`names`], [`tracked`]).

pub(crate) mod capture;
mod copied;
mod known;
mod late;
pub(crate) mod memory;
pub(crate) mod moment;
pub(crate) mod moved;
pub(crate) mod names;
mod noted;
mod resolve;
pub(crate) mod rewind;
mod room;
pub(crate) mod stay;
pub(crate) mod tracked;

pub(crate) use late::{Content, after_approval};
pub(crate) use resolve::{Base, BaseBytes, Question, Resolver};

use crate::error::DeriveError;
use crate::held::Held;
use crate::tree::Meta;
use rustix::fs::{FileType, Stat};
use rustix::time::{ClockId, clock_getres, clock_gettime};
use skep_types::{Instant, RelPath};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::time::Duration;

/// Allowed difference between the wall clock and the boot clock: a slewed clock may run up to this
/// many millionths off.
const SLEW_PPM: i128 = 1000;
/// And both are read one after the other, on ticks.
const SLACK_NS: i128 = 10_000_000;

/// The creation instant, in one call: [`beginning`], and then [`wait_past`] it.
pub fn now() -> io::Result<Instant> {
    let instant = beginning()?;
    wait_past(&instant);
    Ok(instant)
}

/// An instant such that everything done to a filesystem before this call has an older change time.
///
/// It is read from the finest clock: a file saved a moment ago is not taken for a later edit.
pub fn beginning() -> io::Result<Instant> {
    let wall_ns = wall_ns(ClockId::Realtime) + 1;
    Ok(Instant {
        wall_ns,
        boot_ns: self::wall_ns(ClockId::Boottime),
        boot_id: skep_sys::process::boot_id()?,
    })
}

/// The same, where something was changed since `instant`: the clock that changes are stamped with never goes
/// back, so if `witness` carries a time that is not older, nothing that is changed from now on does. Kernels
/// since 6.13 stamp finely what somebody has looked at, and all others no earlier than that.
pub fn wait_past_by(instant: &Instant, witness: &std::path::Path) {
    let stamped = rustix::fs::stat(witness)
        .map(|found| i128::from(found.st_ctime) * 1_000_000_000 + i128::from(found.st_ctime_nsec));
    if stamped.is_ok_and(|stamped| stamped >= instant.wall_ns) && clock_is_sound(instant) {
        return;
    }
    wait_past(instant);
}

/// Returns when every later change carries a change time that is not older than `instant`.
///
/// Filesystems stamp with a clock that moves in ticks of some milliseconds. Work that does not
/// depend on it can be done between [`beginning`] and this; then there is mostly nothing to wait.
pub fn wait_past(instant: &Instant) {
    let tick = clock_getres(ClockId::RealtimeCoarse).tv_nsec;
    loop {
        let wall = wall_ns(ClockId::RealtimeCoarse);
        // Far before it: the clock was set back meanwhile, and the proof is void in any case.
        if wall >= instant.wall_ns || instant.wall_ns - wall > 1_000_000_000 {
            return;
        }
        // What it says is when it last moved.
        let next = wall + i128::from(tick) - wall_ns(ClockId::Realtime);
        let next = u64::try_from(next).unwrap_or(0).clamp(20_000, 1_000_000);
        std::thread::sleep(Duration::from_nanos(next));
    }
}

/// The clock that change times are measured by, in nanoseconds.
pub fn clock_ns() -> i128 {
    wall_ns(ClockId::RealtimeCoarse)
}

fn wall_ns(clock: ClockId) -> i128 {
    let time = clock_gettime(clock);
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// Whether change times can still be compared with `base`: the wall clock was not set back since.
pub(crate) fn clock_is_sound(base: &Instant) -> bool {
    let (wall, boot) = (wall_ns(ClockId::Realtime), wall_ns(ClockId::Boottime));
    let id = skep_sys::process::boot_id().unwrap_or_default();
    no_step_back(base, &Instant { wall_ns: wall, boot_ns: boot, boot_id: id })
}

fn no_step_back(base: &Instant, now: &Instant) -> bool {
    if base.boot_id != now.boot_id {
        return now.wall_ns >= base.wall_ns;
    }
    let elapsed = now.boot_ns - base.boot_ns;
    let offset = (now.wall_ns - base.wall_ns) - elapsed;
    elapsed >= 0 && offset >= -(SLACK_NS + elapsed * SLEW_PPM / 1_000_000)
}

/// What tells one inode at one time from any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Identity {
    pub device: u64,
    pub inode: u64,
    /// Seconds and nanoseconds.
    pub ctime: (i64, i64),
}

impl Identity {
    /// Of no inode: what was copied is known by its state alone.
    pub(crate) const COPIED: Self = Self { device: 0, inode: 0, ctime: (0, 0) };

    pub(crate) fn of(stat: &Meta) -> Self {
        Self { device: stat.device, inode: stat.inode, ctime: stat.changed }
    }
}

pub(crate) fn ctime_ns(stat: &Meta) -> i128 {
    let (seconds, nanoseconds) = stat.changed;
    i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
}

/// How far two stamps of one moment may lie apart: less than this, where one clock moves in ticks.
fn tick_ns() -> i128 {
    let tick = rustix::time::clock_getres(ClockId::RealtimeCoarse);
    i128::from(tick.tv_sec) * 1_000_000_000 + i128::from(tick.tv_nsec)
}

pub(crate) fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Answers whether an entry of the project is as it was at create. See the module's text.
pub(crate) struct Proof<'a> {
    project: &'a Held<'a>,
    created_ns: i128,
    sound: bool,
    anchors: HashMap<RelPath, (u64, u64)>,
    directories: RefCell<HashMap<RelPath, Directory>>,
}

/// What the change time and the anchors say of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Directory {
    stands: Stands,
    /// It is the directory that was there at create.
    same: bool,
    /// And nothing was added to or removed from it since.
    untouched: bool,
}

/// What stands where a directory is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    Nothing,
    Directory { ctime_ns: i128 },
    Other(Meta),
}

impl<'a> Proof<'a> {
    pub(crate) fn new(
        project: &'a Held<'a>,
        created: &Instant,
        anchors: HashMap<RelPath, (u64, u64)>,
    ) -> Self {
        let sound = clock_is_sound(created);
        Self {
            project,
            created_ns: created.wall_ns,
            sound,
            anchors,
            directories: RefCell::default(),
        }
    }

    /// Whether this entry, with this `lstat`, stood here at create with these bytes and mode.
    pub(crate) fn present(&self, path: &RelPath, stat: &Meta) -> Result<bool, DeriveError> {
        if !self.sound || ctime_ns(stat) >= self.created_ns {
            return Ok(false);
        }
        match path.parent() {
            None => Ok(true),
            Some(parent) => Ok(self.directory(&parent)?.same),
        }
    }

    /// Whether nothing stood here at create (nothing stands here now).
    pub(crate) fn absent(&self, path: &RelPath) -> Result<bool, DeriveError> {
        if !self.sound {
            return Ok(false);
        }
        for parent in path.ancestors() {
            let directory = self.directory(&parent)?;
            match directory.stands {
                Stands::Nothing => {}
                Stands::Directory { .. } => return Ok(directory.same && directory.untouched),
                Stands::Other(stat) => return self.present(&parent, &stat),
            }
        }
        Ok(false)
    }

    /// Whether nothing stood here (nothing stands here now) since before the sandbox's entry was
    /// made: the nearest directory was last touched before that, and so were those above it, up to one that is
    /// the same as at create. One that was moved to its place is touched by that, and what is in it is not.
    pub(crate) fn absent_before(
        &self,
        path: &RelPath,
        made_ns: Option<i128>,
    ) -> Result<bool, DeriveError> {
        let Some(made_ns) = made_ns.filter(|_| self.sound) else { return Ok(false) };
        let mut nearest = true;
        for parent in path.ancestors() {
            let directory = self.directory(&parent)?;
            let touched_ns = match directory.stands {
                Stands::Nothing => continue,
                Stands::Directory { .. } if directory.same && !nearest => return Ok(true),
                Stands::Directory { ctime_ns } => ctime_ns,
                Stands::Other(stat) => ctime_ns(&stat),
            };
            if touched_ns + tick_ns() > made_ns {
                return Ok(false);
            }
            if directory.same {
                return Ok(true);
            }
            nearest = false;
        }
        Ok(false)
    }

    /// Whether the directory at `path` is the one that was there at create.
    pub(crate) fn same_directory(&self, path: &RelPath) -> Result<bool, DeriveError> {
        Ok(self.sound && self.directory(path)?.same)
    }

    /// Whether it is that one, and nothing was added to it or removed from it since.
    pub(crate) fn untouched_directory(&self, path: &RelPath) -> Result<bool, DeriveError> {
        let directory = self.directory(path)?;
        Ok(self.sound && directory.same && directory.untouched)
    }

    fn directory(&self, path: &RelPath) -> Result<Directory, DeriveError> {
        if let Some(known) = self.directories.borrow().get(path) {
            return Ok(*known);
        }
        let unknown = |stands| Directory { stands, same: false, untouched: false };
        let known = match self.stat(path)? {
            Some(stat) if stat.kind() == FileType::Directory => {
                let old = ctime_ns(&stat) < self.created_ns;
                let anchored = self.anchors.get(path) == Some(&(stat.device, stat.inode));
                let same = match path.parent() {
                    None => true,
                    Some(parent) => {
                        let parent = self.directory(&parent)?;
                        parent.same && (old || anchored || parent.untouched)
                    }
                };
                let stands = Stands::Directory { ctime_ns: ctime_ns(&stat) };
                Directory { stands, same, untouched: old }
            }
            Some(stat) => unknown(Stands::Other(stat)),
            None => unknown(Stands::Nothing),
        };
        self.directories.borrow_mut().insert(path.clone(), known);
        Ok(known)
    }

    /// Forgets what was seen, so that the next question looks again.
    pub(crate) fn look_again(&self) {
        self.directories.borrow_mut().clear();
        self.project.forget();
    }

    fn stat(&self, path: &RelPath) -> Result<Option<Meta>, DeriveError> {
        self.project.meta(path).map_err(|source| DeriveError::read("project", path, source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::TreeRoot;

    fn instant(wall_ns: i128, boot_ns: i128, boot_id: &str) -> Instant {
        Instant { wall_ns, boot_ns, boot_id: boot_id.to_owned() }
    }

    #[test]
    fn only_a_step_back_voids_the_proof() {
        let base = instant(1_000_000_000_000, 500_000_000_000, "a");
        let after = |wall: i128, boot: i128, id: &str| {
            no_step_back(&base, &instant(base.wall_ns + wall, base.boot_ns + boot, id))
        };
        assert!(after(60_000_000_000, 60_000_000_000, "a"));
        assert!(after(60_000_000_000 - 60_000_000, 60_000_000_000, "a"), "slewed");
        assert!(after(9_000_000_000_000, 60_000_000_000, "a"), "set forward");
        assert!(!after(59_000_000_000, 60_000_000_000, "a"), "set back by a second");
        assert!(after(1, -400_000_000_000, "b"), "another boot");
        assert!(!after(-1, -400_000_000_000, "b"), "another boot with an earlier clock");
    }

    /// What was made a tick after its directory was last touched was made where nothing stood.
    #[test]
    fn a_tick_tells_what_came_first() {
        let dir = tempfile::tempdir().unwrap();
        let root = TreeRoot::open(dir.path()).unwrap();
        let created = now().unwrap();
        std::fs::write(dir.path().join("touched"), b"x").unwrap();
        let held = Held::new(&root);
        let proof = Proof::new(&held, &created, HashMap::new());
        let touched = ctime_ns(&held.meta(&RelPath::root()).unwrap().unwrap());
        let new = RelPath::parse(b"new").unwrap();
        let before = |made| proof.absent_before(&new, Some(made)).unwrap();
        assert!(before(touched + tick_ns()));
        assert!(!before(touched + tick_ns() - 1), "stamps of one tick have no order");
        assert!(!before(touched));
        // What comes after this is told apart. The first stamp may be a fine one, anywhere in its tick.
        (0..2).for_each(|_| wait_past(&beginning().unwrap()));
        std::fs::write(dir.path().join("made"), b"x").unwrap();
        let made = ctime_ns(&held.meta(&RelPath::parse(b"made").unwrap()).unwrap().unwrap());
        assert!(before(made));
    }

    #[test]
    fn a_file_written_before_is_older_and_one_written_after_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let root = TreeRoot::open(dir.path()).unwrap();
        let path = |name: &str| RelPath::parse(name.as_bytes()).unwrap();
        for round in 0..5 {
            let (before, after) = (format!("before{round}"), format!("after{round}"));
            std::fs::write(dir.path().join(&before), b"x").unwrap();
            let created = now().unwrap();
            std::fs::write(dir.path().join(&after), b"x").unwrap();
            let held = Held::new(&root);
            let proof = Proof::new(&held, &created, HashMap::new());
            let old = |name: &str| {
                let stat = held.meta(&path(name)).unwrap().unwrap();
                proof.present(&path(name), &stat).unwrap()
            };
            assert!(old(&before));
            assert!(!old(&after));
        }
    }
}
