//! Directories of sandboxes that left nothing, kept for the next ones.
//!
//! Most runs change nothing, and the five directories of each were made only to be removed again. On a
//! disk where freed blocks are discarded at once, or that is busy, that is what such a run waits for. So
//! the directories of a removed sandbox are kept, if they are as they were made, and the next sandbox
//! begins with them. There are never more than [`KEPT`], they lie in a place of their own, and whatever
//! is there is whole: it came by one rename and leaves by one.
//!
//! Untrusted code could write to the upper's root: what it may have left there (names, attributes, flags)
//! is looked for, and what it may have changed (owner, mode) is set anew. Whatever is not known to be as
//! new is not kept.
//!
//! What every sandbox leaves (the ends of its execs, overlayfs's own directories) stays in a spare one. Who
//! takes it moves that into the trash, two renames, and removes it while it waits for its processes: the
//! disk's time is then nobody's.

use crate::{Layout, layout, trash};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, chmodat, ioctl_getflags, openat, unlinkat};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;
use skep_types::SandboxId;
use std::fs::{DirEntry, read_dir, rename};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How many are kept at most: as many as a person runs at once.
const KEPT: usize = 4;
/// What is in each.
const PARTS: [&str; 4] = ["upper", "work", "messages", "execs"];
/// What some have besides, made by skep itself; it goes.
const EXTRAS: [&str; 3] = ["mask", "base", "begun"];
/// The number of an overlay, by the two families of its marks; the next one gets its own.
const OVERLAYS: [&std::ffi::CStr; 2] = [c"user.overlay.uuid", c"trusted.overlay.uuid"];
/// The time of the directory is seen inside.
const NOW: Timestamps = Timestamps {
    last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
    last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
};
/// More than this many ends of execs are not worth it.
const FEW: usize = 8;

/// Overlayfs's own directory. It makes a new one at every mount, and would take this for the trace of a crash.
const OVERLAYS_OWN: &str = "work/work";

/// Moves a spare directory to where that of `id` will be; whether there was one. What the last sandbox
/// left in it is in the trash then, until [`clear`] removes it. Nothing of that is ever in the new place.
pub fn take(layout: &Layout, id: &SandboxId) -> bool {
    let Ok(spares) = read_dir(layout.spares()) else { return false };
    // Somebody else may be faster with any of them, also with this one: then there is none.
    let ours = layout.spares().join(id.as_str());
    if !spares.flatten().any(|spare| rename(spare.path(), &ours).is_ok()) {
        return false;
    }
    let emptied = empty_out(&ours, &left_of(layout, id));
    let taken = emptied.and_then(|()| rename(&ours, layout.sandbox(id))).is_ok();
    if !taken {
        let _ = trash::discard(&ours, &layout.trash());
    }
    taken
}

/// Removes what [`take`] has put into the trash. If that fails, it goes with the rest of the trash.
pub fn clear(layout: &Layout, id: &SandboxId) {
    let _ = left_of(layout, id).iter().try_for_each(|left| trash::remove(left));
}

/// Where in the trash things go that were found in the spare directory of `id`: overlayfs's own, and ends.
fn left_of(layout: &Layout, id: &SandboxId) -> [PathBuf; 1 + FEW] {
    std::array::from_fn(|number| layout.trash().join(format!("{id}.{number}")))
}

fn empty_out(directory: &Path, left: &[PathBuf]) -> io::Result<()> {
    let [own, ends @ ..] = left else { return Ok(()) };
    match rename(directory.join(OVERLAYS_OWN), own) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut places = ends.iter();
    for end in read_dir(directory.join("execs"))? {
        let place = places.next().ok_or_else(|| io::Error::other("more ends than were kept"))?;
        rename(end?.path(), place)?;
    }
    Ok(())
}

/// Keeps the directory of a removed sandbox, in which nothing runs, for another one. `Ok(false)`: it is
/// not as new, or there are enough; what is left of it is to be removed.
pub fn keep(layout: &Layout, directory: &Path) -> io::Result<bool> {
    let spares = layout.spares();
    let (Some(name), Ok(there)) = (directory.file_name(), open(directory)) else {
        return Ok(false);
    };
    let kept = match read_dir(&spares) {
        Ok(kept) => kept.count(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            layout::make_private(&spares)?;
            0
        }
        Err(error) => return Err(error),
    };
    if kept >= KEPT || !is_known(directory)? || !make_as_new(&there, directory)? {
        return Ok(false);
    }
    match rename(directory, spares.join(name)) {
        // Somebody who found it without its row has thrown it away meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        moved => moved.map(|()| true),
    }
}

/// Whether nothing is there that is not known.
fn is_known(directory: &Path) -> io::Result<bool> {
    let known = |entry: &DirEntry| {
        PARTS.iter().chain(&EXTRAS).any(|part| entry.file_name().as_bytes() == part.as_bytes())
    };
    let entries = read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    Ok(entries.iter().all(known))
}

/// Takes out what few sandboxes have, and looks for what an untouched one does not.
fn make_as_new(there: &OwnedFd, directory: &Path) -> io::Result<bool> {
    let [upper, work, messages, execs] = parts(there)?;
    if !is_untouched(&upper, &messages)? || names(&messages)?.next().is_some() {
        return Ok(false);
    }
    let ends = names(&execs)?.take(FEW + 1).collect::<io::Result<Vec<_>>>()?;
    let files = ends.iter().all(|(_, kind)| *kind == FileType::RegularFile);
    // What overlayfs keeps for itself while it is mounted.
    let own = names(&work)?.collect::<io::Result<Vec<_>>>()?;
    if ends.len() > FEW || !files || own.iter().any(|entry| !is_overlays_own(entry)) {
        return Ok(false);
    }
    // What was printed goes with its sandbox. That a command ended may stay: the store remembers it too.
    for (name, _) in ends.iter().filter(|(name, _)| !name.as_bytes().ends_with(b".end")) {
        unlinkat(&execs, name.as_c_str(), AtFlags::empty())?;
    }
    for (name, _) in &own {
        // Who may not write to a directory may not move it elsewhere either.
        chmodat(&work, name.as_c_str(), Mode::from_raw_mode(0o700), AtFlags::empty())?;
    }
    EXTRAS.iter().try_for_each(|extra| trash::remove(&directory.join(extra)))?;
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    for part in [&upper, &work] {
        let stat = rustix::fs::fstat(part)?;
        if (stat.st_uid, stat.st_gid) != (user.as_raw(), group.as_raw()) {
            rustix::fs::fchown(part, Some(user), Some(group))?;
        }
        rustix::fs::fchmod(part, Mode::from_raw_mode(0o700))?;
    }
    rustix::fs::futimens(&upper, &NOW)?;
    rustix::fs::fchmod(there, Mode::from_raw_mode(0o700))?;
    Ok(true)
}

fn is_overlays_own((name, kind): &(std::ffi::CString, FileType)) -> bool {
    name.as_bytes() == b"work" && *kind == FileType::Directory
}

/// An upper in which nothing was made, and on which nothing was set: its flags are those of a directory
/// that was made beside it and that nobody inside can write.
fn is_untouched(upper: &OwnedFd, beside: &OwnedFd) -> io::Result<bool> {
    let flags = |directory: &OwnedFd| match ioctl_getflags(directory) {
        Err(Errno::NOTTY | Errno::OPNOTSUPP) => Ok(None),
        known => known.map(Some),
    };
    Ok(names(upper)?.next().is_none() && is_unmarked(upper)? && flags(upper)? == flags(beside)?)
}

/// Takes off what overlayfs itself puts on an upper; whether there was no other attribute.
fn is_unmarked(upper: &OwnedFd) -> io::Result<bool> {
    let mut list = [0; 64];
    let length = match rustix::fs::flistxattr(upper, &mut list) {
        Ok(length) => length,
        // A filesystem without attributes has none to leave.
        Err(Errno::OPNOTSUPP) => return Ok(true),
        // More of them than there is room for.
        Err(Errno::RANGE) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let list = list.get(..length).unwrap_or_default();
    for name in list.split_inclusive(|byte| *byte == 0) {
        match std::ffi::CStr::from_bytes_with_nul(name) {
            Ok(name) if OVERLAYS.contains(&name) => rustix::fs::fremovexattr(upper, name)?,
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn parts(there: &OwnedFd) -> io::Result<[OwnedFd; 4]> {
    let open = |name| Ok::<_, io::Error>(openat(there, name, directory_flags(), Mode::empty())?);
    let [upper, work, messages, execs] = PARTS;
    Ok([open(upper)?, open(work)?, open(messages)?, open(execs)?])
}

/// What is in a directory.
fn names(
    directory: &OwnedFd,
) -> io::Result<impl Iterator<Item = io::Result<(std::ffi::CString, FileType)>>> {
    let itself = |name: &std::ffi::CStr| name == c"." || name == c"..";
    let entries = Dir::read_from(directory.as_fd())?.filter_map(move |entry| match entry {
        Ok(entry) if itself(entry.file_name()) => None,
        Ok(entry) => Some(Ok((entry.file_name().to_owned(), entry.file_type()))),
        Err(error) => Some(Err(error.into())),
    });
    Ok(entries)
}

fn open(directory: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(directory, directory_flags(), Mode::empty())?)
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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
            layout::make_private(&directory.join("work/work/incompat/volatile")).unwrap();
            fs::write(directory.join("execs/x.end"), "{}").unwrap();
            fs::write(directory.join("execs/x.head"), "what was printed").unwrap();
            directory
        }
    }

    #[test]
    fn one_that_is_as_new_is_kept_and_taken() {
        let place = Place::new();
        let old = place.sandbox("old");
        layout::make_private(&old.join("mask/d")).unwrap();
        assert!(keep(&place.layout, &old).unwrap());
        assert!(!old.exists());
        let spare = place.layout.spares().join("old/execs");
        assert_eq!(fs::read_dir(&spare).unwrap().count(), 1, "what was printed is still there");
        let id = SandboxId::from_random([7; 10]);
        let new = place.layout.sandbox(&id);
        assert!(take(&place.layout, &id));
        let mut there: Vec<_> =
            fs::read_dir(&new).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        there.sort();
        assert_eq!(there, ["execs", "messages", "upper", "work"]);
        let empty = |part: &str| fs::read_dir(new.join(part)).unwrap().next().is_none();
        assert!(PARTS.into_iter().all(empty));
        let trash = || fs::read_dir(place.layout.trash()).unwrap().count();
        assert_eq!(trash(), 2, "overlayfs's own directory, and an end");
        clear(&place.layout, &id);
        assert_eq!(trash(), 0);
        assert!(!take(&place.layout, &SandboxId::from_random([8; 10])));
    }

    #[test]
    fn one_that_cannot_be_emptied_serves_nobody() {
        let place = Place::new();
        assert!(keep(&place.layout, &place.sandbox("old")).unwrap());
        let id = SandboxId::from_random([7; 10]);
        // In the way of the rename: a directory that is not empty.
        layout::make_private(&place.layout.trash().join(format!("{id}.0/d"))).unwrap();
        assert!(!take(&place.layout, &id));
        assert!(!place.layout.sandbox(&id).exists());
        assert_eq!(fs::read_dir(place.layout.spares()).unwrap().count(), 0);
    }

    #[test]
    fn one_that_is_not_as_new_is_left() {
        type Mark = fn(&Path);
        let marks: [(&str, Mark); 6] = [
            ("a change", |there| fs::write(there.join("upper/file"), "x").unwrap()),
            ("a message", |there| fs::write(there.join("messages/feedback.json"), "x").unwrap()),
            ("something unknown", |there| fs::write(there.join("settling.json"), "x").unwrap()),
            ("an unknown work directory", |there| {
                fs::create_dir(there.join("work/index")).unwrap()
            }),
            ("a part that is a link", |there| {
                fs::remove_dir(there.join("messages")).unwrap();
                std::os::unix::fs::symlink("/", there.join("messages")).unwrap();
            }),
            ("a directory among the ends", |there| fs::create_dir(there.join("execs/d")).unwrap()),
        ];
        for (what, mark) in marks {
            let place = Place::new();
            let directory = place.sandbox("old");
            mark(&directory);
            assert!(!keep(&place.layout, &directory).unwrap_or(false), "{what}");
            assert!(directory.exists(), "{what}");
        }
    }

    #[test]
    fn no_more_than_a_few_are_kept() {
        let place = Place::new();
        let kept = (0..KEPT + 2)
            .filter(|number| keep(&place.layout, &place.sandbox(&format!("s{number}"))).unwrap());
        assert_eq!(kept.count(), KEPT);
    }
}
