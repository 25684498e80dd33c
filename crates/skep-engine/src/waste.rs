//! Directories of sandboxes that left nothing, removed while somebody waits for something else.
//!
//! Most runs change nothing, and the directories of each are made only to be removed again. On a disk
//! where freed blocks are discarded at once, or that is busy, that is what the end of such a run would
//! wait for. So the directory of a removed sandbox in which nothing is left is only moved away, and the
//! next run that has the time removes it while its command is at work ([`crate::chores`]): the disk's time is
//! then nobody's. There are never more than [`MOST`].
//!
//! They are not used again: whoever was inside may have handed on a descriptor of what it saw there.
//!
//! Only what holds nothing of anybody's waits: no change, no message, no output.

use crate::{Layout, layout, trash};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, chmodat, openat};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs::{self, DirEntry, read_dir, rename};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How many wait at most: commands that end at once leave no time to remove any.
const MOST: usize = 256;
/// From here on somebody begins to remove them who has no time to spare,
const MANY: usize = 32;
/// so many at once.
const SOME: usize = 16;
/// What is in each.
const PARTS: [&str; 4] = ["upper", "work", "messages", "execs"];
/// And this, until its keeper has gone.
const KEEPERS_OWN: &str = "keeper.sock";
/// Overlayfs's own directories, one in the other. They are shut, and whoever removes a state directory by
/// hand would be in trouble with them.
const OVERLAYS_OWN: [&CStr; 3] = [c"work", c"incompat", c"volatile"];

/// The directory of a removed sandbox that may wait: nothing is in it that somebody could miss.
#[derive(Debug)]
pub struct Waste {
    place: PathBuf,
}

impl Waste {
    /// Looks into the directory of one in which nothing can change any more; its keeper may still be on its way
    /// out. `None`: it holds something, or enough are waiting; it is to be removed when its keeper has gone.
    pub fn found(layout: &Layout, directory: &Path) -> Option<Self> {
        let (name, there) = (directory.file_name()?, open(directory).ok()?);
        let place = layout.waste();
        let waiting = match waiting(&place) {
            Ok(waiting) => waiting,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                layout::make_private(&place).ok()?;
                0
            }
            Err(_) => return None,
        };
        let nothing = waiting < MOST && is_known(directory).ok()? && holds_nothing(&there).ok()?;
        nothing.then(|| Self { place: place.join(name) })
    }

    /// Moves it to where it waits, now that its keeper has gone. False: it is to be removed.
    pub fn keep(self, directory: &Path) -> bool {
        // A keeper that could not take everything away leaves its socket, to say so. And somebody who found the
        // directory without its row may have thrown it away meanwhile.
        !directory.join(KEEPERS_OWN).exists() && rename(directory, self.place).is_ok()
    }
}

/// Removes some where so many wait that somebody has to begin.
pub fn clear_if_much(layout: &Layout) {
    if waiting(&layout.waste()).is_ok_and(|waiting| waiting >= MANY) {
        clear(layout, &|removed| removed < SOME);
    }
}

/// Removes what waits, as long as `goes_on` says so of how many were removed. What cannot be removed now is tried
/// again by the next one.
pub fn clear(layout: &Layout, goes_on: &impl Fn(usize) -> bool) {
    let Ok(waiting) = read_dir(layout.waste()) else { return };
    for (_, directory) in waiting.flatten().enumerate().take_while(|(removed, _)| goes_on(*removed))
    {
        let _ = trash::remove(&directory.path());
    }
}

/// How many wait there. Nearly every filesystem counts the directories in a directory, as its links; nothing else is there.
/// Some say one or two of every directory.
fn waiting(place: &Path) -> io::Result<usize> {
    match fs::metadata(place)?.nlink() {
        0..=2 => Ok(read_dir(place)?.count()),
        links => Ok(links as usize - 2),
    }
}

/// Whether nothing is there that is not known.
fn is_known(directory: &Path) -> io::Result<bool> {
    let names = || PARTS.iter().chain([&KEEPERS_OWN]);
    let known =
        |entry: &DirEntry| names().any(|name| entry.file_name().as_bytes() == name.as_bytes());
    let entries = read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    Ok(entries.iter().all(known))
}

/// Whether there is only what every sandbox leaves: how its commands ended, and overlayfs's own.
fn holds_nothing(there: &OwnedFd) -> io::Result<bool> {
    let [upper, work, messages, execs] = PARTS.map(|part| open_in(there, part));
    let is_end = |(name, kind): &(CString, FileType)| {
        *kind == FileType::RegularFile && name.as_bytes().ends_with(b".end")
    };
    let is_own = |(name, kind): &(CString, FileType)| {
        *kind == FileType::Directory && name.as_c_str() == OVERLAYS_OWN[0]
    };
    let work = work?;
    Ok(all(&upper?, |_| false)?
        && all(&messages?, |_| false)?
        && all(&execs?, is_end)?
        && all(&work, is_own)?
        && unlock(&work).is_ok())
}

/// Opens up what overlayfs has shut.
fn unlock(work: &OwnedFd) -> io::Result<()> {
    let mut inside = work.try_clone()?;
    for name in OVERLAYS_OWN {
        match chmodat(&inside, name, Mode::RWXU, AtFlags::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            other => other?,
        }
        inside = openat(&inside, name, directory_flags(), Mode::empty())?;
    }
    Ok(())
}

/// Whether this holds for everything in a directory.
fn all(directory: &OwnedFd, holds: impl Fn(&(CString, FileType)) -> bool) -> io::Result<bool> {
    for entry in Dir::read_from(directory.as_fd())? {
        let entry = entry?;
        let name = entry.file_name();
        let itself = name == c"." || name == c"..";
        if !itself && !holds(&(name.to_owned(), entry.file_type())) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn open(directory: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(directory, directory_flags(), Mode::empty())?)
}

fn open_in(there: &OwnedFd, part: &str) -> io::Result<OwnedFd> {
    Ok(openat(there, part, directory_flags(), Mode::empty())?)
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn keep(layout: &Layout, directory: &Path) -> bool {
        Waste::found(layout, directory).is_some_and(|waste| waste.keep(directory))
    }

    struct Place {
        _base: tempfile::TempDir,
        layout: Layout,
    }

    impl Place {
        fn new() -> Self {
            let base = tempfile::tempdir().unwrap();
            let layout = Layout::open(&base.path().join("state"), || Ok(())).unwrap();
            Self { _base: base, layout }
        }

        /// A sandbox's directory as it is when nothing was done in it.
        fn sandbox(&self, name: &str) -> PathBuf {
            let directory = self.layout.sandboxes().join(name);
            for part in PARTS {
                layout::make_private(&directory.join(part)).unwrap();
            }
            let own = directory.join("work/work/incompat/volatile");
            layout::make_private(&own).unwrap();
            fs::write(own.join("dirty"), "").unwrap();
            let shut = |path: &Path| {
                fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
            };
            own.ancestors().take(3).for_each(shut);
            fs::write(directory.join("execs/x.end"), "{}").unwrap();
            directory
        }

        fn waiting(&self) -> usize {
            fs::read_dir(self.layout.waste()).unwrap().count()
        }
    }

    #[test]
    fn one_that_holds_nothing_waits_and_can_be_removed_by_anybody_who_may() {
        let place = Place::new();
        let old = place.sandbox("old");
        assert!(keep(&place.layout, &old));
        assert!(!old.exists());
        let own = place.layout.waste().join("old/work/work/incompat/volatile");
        let open = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777 == 0o700;
        assert!(own.ancestors().take(3).all(open), "a plain `rm -r` would fail");
        clear(&place.layout, &|_| true);
        assert_eq!(place.waiting(), 0);
    }

    #[test]
    fn one_that_holds_something_is_left() {
        type Mark = fn(&Path);
        let marks: [(&str, Mark); 8] = [
            ("a change", |there| fs::write(there.join("upper/file"), "x").unwrap()),
            ("a message", |there| fs::write(there.join("messages/feedback.json"), "x").unwrap()),
            ("output", |there| fs::write(there.join("execs/x.head"), "secret").unwrap()),
            ("a base", |there| fs::create_dir(there.join("base")).unwrap()),
            ("something unknown", |there| fs::write(there.join("settling.json"), "x").unwrap()),
            ("an unknown work directory", |there| {
                fs::create_dir(there.join("work/index")).unwrap()
            }),
            ("a part that is a link", |there| {
                fs::remove_dir(there.join("messages")).unwrap();
                std::os::unix::fs::symlink("/", there.join("messages")).unwrap();
            }),
            ("a directory among the ends", |there| {
                fs::create_dir(there.join("execs/d.end")).unwrap()
            }),
        ];
        for (what, mark) in marks {
            let place = Place::new();
            let directory = place.sandbox("old");
            mark(&directory);
            assert!(!keep(&place.layout, &directory), "{what}");
            assert!(directory.exists(), "{what}");
        }
    }

    #[test]
    fn one_whose_keeper_left_something_is_removed_at_once() {
        let place = Place::new();
        let old = place.sandbox("old");
        fs::write(old.join(KEEPERS_OWN), "").unwrap();
        // On its way out it still has its socket.
        let waste = Waste::found(&place.layout, &old).unwrap();
        assert!(!waste.keep(&old));
        let waste = Waste::found(&place.layout, &old).unwrap();
        fs::remove_file(old.join(KEEPERS_OWN)).unwrap();
        assert!(waste.keep(&old));
    }

    #[test]
    fn no_more_than_a_few_wait() {
        let place = Place::new();
        let counted = || waiting(&place.layout.waste()).unwrap_or(0);
        assert_eq!(counted(), 0);
        let kept = (0..MOST + 2)
            .filter(|number| keep(&place.layout, &place.sandbox(&format!("s{number}"))));
        assert_eq!(kept.count(), MOST);
        assert_eq!((counted(), place.waiting()), (MOST, MOST));
    }
}
