//! The directories of the next sandboxes, made while nobody waits for them.
//!
//! A directory that is put far from the others (`layout::spread`) lies in a part of the disk that may not
//! have been read yet, and whoever makes it waits for that. So some are made ahead, while the command of a run
//! is at work, and each of the next runs moves one to its place. It is new: no process was ever inside, and
//! nobody has a descriptor of it. (Used ones are never used again: see `waste.rs`.)
//!
//! Those that are made together are made in one directory that is put far from the others, and moved out of it: the
//! disk is waited for once, and not once for each. Where much was removed lately ext4 is slow to make anything, for
//! minutes, and a sandbox makes a dozen files there. So a few places are tried, and the quickest is taken.
//!
//! It is a convenience and nothing else. Where there is none, where somebody else was faster, or where a
//! part is missing, what is needed is made then.

use crate::layout::{Layout, make_private, make_private_in, spread};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What is in each sandbox's directory from the start.
pub const PARTS: [&str; 4] = ["work", "messages", "execs", "upper"];
/// And an empty file, for the record of the next run ([`Layout::blank_record`]).
pub const RECORD: &str = "record";
/// How many are made ahead.
const STOCK: usize = 16;
/// How many places are tried for those that are made together.
const PLACES: usize = 3;
/// What begins so is not finished.
const UNFINISHED: &str = ".making-";
/// The first of those that are made together.
const FIRST: &str = "0";

/// Moves the one that was made ahead, if there is one, to where a sandbox's directory belongs.
pub fn take(layout: &Layout, directory: &Path) -> bool {
    let taken = finished(layout).any(|spare| fs::rename(spare, directory).is_ok());
    if taken {
        // Somebody who writes into the store himself has no use for it.
        let _ = fs::remove_file(directory.join(RECORD));
    }
    taken
}

/// Where the blank record of one lies.
pub fn blank_record(layout: &Layout) -> Option<PathBuf> {
    finished(layout).next().map(|spare| spare.join(RECORD))
}

fn finished(layout: &Layout) -> impl Iterator<Item = PathBuf> {
    let is_finished =
        |entry: &fs::DirEntry| !entry.file_name().as_bytes().starts_with(UNFINISHED.as_bytes());
    let waiting = fs::read_dir(layout.spare()).into_iter().flatten().flatten();
    waiting.filter(is_finished).map(|entry| entry.path())
}

/// Whether there is none.
pub fn is_out(layout: &Layout) -> bool {
    finished(layout).next().is_none()
}

/// Makes what is missing of the stock, as long as `goes_on` says so of how many were made. `name` is one that
/// nobody else uses.
pub fn fill(layout: &Layout, name: &str, goes_on: &impl Fn(usize) -> bool) -> io::Result<()> {
    let missing = STOCK.saturating_sub(finished(layout).count());
    if missing == 0 {
        return Ok(());
    }
    let place = layout.spare();
    if !place.exists() {
        make_private(&place)?;
        spread(&place);
    }
    let nursery = nursery(&place, name)?;
    (0..missing).take_while(|made| goes_on(*made)).try_for_each(|number| {
        let born = nursery.join(number.to_string());
        make(&born)?;
        fs::rename(&born, place.join(format!("{name}-{number}")))
    })?;
    fs::remove_dir(&nursery)
}

/// Makes the directory to make them in, where the first of them was begun the soonest.
fn nursery(place: &Path, name: &str) -> io::Result<PathBuf> {
    let begun = (0..PLACES).map(|number| {
        let nursery = place.join(format!("{UNFINISHED}{name}-{number}"));
        make_private_in(&nursery)?;
        let start = Instant::now();
        make_private_in(&nursery.join(FIRST))?;
        Ok((start.elapsed(), nursery))
    });
    let mut begun = begun.collect::<io::Result<Vec<_>>>()?;
    begun.sort();
    let mut places = begun.into_iter().map(|(_, nursery)| nursery);
    let quickest = places.next().ok_or(io::ErrorKind::NotFound)?;
    for other in places {
        fs::remove_dir(other.join(FIRST))?;
        fs::remove_dir(other)?;
    }
    Ok(quickest)
}

fn make(directory: &Path) -> io::Result<()> {
    make_private_in(directory)?;
    PARTS.into_iter().try_for_each(|part| make_private_in(&directory.join(part)))?;
    let blank = OpenOptions::new().write(true).create_new(true).mode(0o600).to_owned();
    blank.open(directory.join(RECORD)).map(drop)
}

/// Removes what somebody died over.
pub fn clear_unfinished(layout: &Layout) {
    let Ok(waiting) = fs::read_dir(layout.spare()) else { return };
    for entry in waiting.flatten() {
        if entry.file_name().as_bytes().starts_with(UNFINISHED.as_bytes()) {
            let _ = crate::trash::remove(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> (tempfile::TempDir, Layout) {
        let base = tempfile::tempdir().unwrap();
        let layout = Layout::open(&base.path().join("state"), || Ok(())).unwrap();
        (base, layout)
    }

    #[test]
    fn a_stock_is_made_and_each_taken_once() {
        let (_base, layout) = layout();
        let place = |name: &str| layout.sandboxes().join(name);
        let stock = || fs::read_dir(layout.spare()).unwrap().count();
        assert!(is_out(&layout) && !take(&layout, &place("a")));
        fill(&layout, "one", &|made| made < 2).unwrap();
        assert_eq!(stock(), 2, "where they were made is gone");
        fill(&layout, "two", &|_| true).unwrap();
        assert_eq!(stock(), STOCK);
        fill(&layout, "three", &|_| true).unwrap();
        assert_eq!(stock(), STOCK, "it is full");
        for number in 0..STOCK {
            let taken = place(&number.to_string());
            assert!(!is_out(&layout) && take(&layout, &taken));
            assert!(PARTS.iter().all(|part| taken.join(part).is_dir()));
            assert!(!taken.join(RECORD).exists());
        }
        assert!(is_out(&layout) && !take(&layout, &place("b")));
    }

    #[test]
    fn an_unfinished_one_is_nobodys() {
        let (_base, layout) = layout();
        make_private(&layout.spare().join(format!("{UNFINISHED}x/work"))).unwrap();
        assert!(!take(&layout, &layout.sandboxes().join("a")));
        clear_unfinished(&layout);
        assert_eq!(fs::read_dir(layout.spare()).unwrap().count(), 0);
    }
}
