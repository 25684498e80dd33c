//! What changes in a workspace, as it changes.
//!
//! The truth is a comparison of two looks at the upper and the layers: names, inodes, sizes and times,
//! never bytes. inotify(7) on the upper's directories only says when to look again, because it does not
//! tell everything: overlayfs opens the files of its upper without notification, so a write through the
//! mount is silent there. Nothing inside has to stand still, and nothing inside is asked.

use crate::error::DeriveError;
use crate::spec::WorkspaceSpec;
use crate::view::View;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd as _, OwnedFd};
use rustix::fs::FileType;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde::Serialize;
use skep_types::RelPath;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

/// Writes are noticed within this, where looking is cheap.
const PAUSE: Duration = Duration::from_millis(200);
/// Of the time, at most one part in this many is spent on looking.
const SHARE: u32 = 20;
/// Directories that are listened to; in more of them only looking tells.
const DIRECTORIES: usize = 4096;
/// A look at a tree that is being written may meet half a rename; it is taken again.
const ATTEMPTS: usize = 20;

/// What happened at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticedKind {
    /// Something is there now.
    Created,
    /// It is another now: its bytes, its mode or what it is.
    Modified,
    /// Nothing is there any more; for a directory, also for everything that was in it.
    Deleted,
}

/// A change that was noticed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Noticed {
    /// Where.
    pub path: RelPath,
    /// What.
    pub kind: NoticedKind,
}

/// One entry as a look found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Gone,
    Directory { mode: u32 },
    Entry { inode: u64, mode: u32, size: i64, modified: (i64, u64), changed: (i64, u64) },
}

type Marks = BTreeMap<RelPath, Mark>;

/// A workspace that is looked at again and again.
#[derive(Debug)]
pub struct Watch {
    spec: WorkspaceSpec,
    below: RelPath,
    view: View,
    marks: Marks,
    notify: OwnedFd,
    heard: BTreeSet<RelPath>,
    cost: Duration,
}

impl Watch {
    /// Takes the first look; what is below `below` is told.
    pub fn start(spec: &WorkspaceSpec, below: RelPath) -> Result<Self, DeriveError> {
        let failed =
            |error: rustix::io::Errno| DeriveError::read("sandbox", &RelPath::root(), error.into());
        let notify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(failed)?;
        let began = Instant::now();
        let (view, marks) = steady_look(spec)?;
        let mut watch = Self {
            spec: spec.clone(),
            below,
            view,
            marks,
            notify,
            heard: BTreeSet::new(),
            cost: began.elapsed(),
        };
        watch.listen();
        Ok(watch)
    }

    /// Waits for something, until `deadline`, and looks; an empty list is no change. An error means
    /// that the workspace has gone, or was replaced.
    pub fn next(&mut self, patience: Duration) -> Result<Vec<Noticed>, DeriveError> {
        let pause = PAUSE.max(self.cost * SHARE).min(patience.max(PAUSE));
        self.wait(pause);
        let began = Instant::now();
        let (view, marks) = steady_look(&self.spec)?;
        self.cost = began.elapsed();
        let noticed = self.compare(&view, &marks)?;
        (self.view, self.marks) = (view, marks);
        self.listen();
        Ok(noticed)
    }

    fn compare(&self, view: &View, marks: &Marks) -> Result<Vec<Noticed>, DeriveError> {
        let paths: BTreeSet<&RelPath> = self.marks.keys().chain(marks.keys()).collect();
        let mut noticed = Vec::new();
        for path in paths {
            let (before, after) = (self.marks.get(path), marks.get(path));
            if before == after || !path.starts_with(&self.below) {
                continue;
            }
            // A directory that was copied up for what is in it is the same directory.
            if before.is_none() && matches!(after, Some(Mark::Directory { .. })) {
                let was = self.view.holder(path)?.and_then(|tree| tree.stat(path).ok().flatten());
                if was.is_some_and(|stat| crate::base::is_dir(&stat)) {
                    continue;
                }
            }
            let there = |mark: Option<&Mark>, view: &View| match mark {
                Some(mark) => Ok(*mark != Mark::Gone),
                None => view.holder(path).map(|tree| tree.is_some()),
            };
            let kind = match (there(before, &self.view)?, there(after, view)?) {
                (false, false) => continue,
                (false, true) => NoticedKind::Created,
                (true, true) => NoticedKind::Modified,
                (true, false) => NoticedKind::Deleted,
            };
            noticed.push(Noticed { path: path.clone(), kind });
        }
        Ok(noticed)
    }

    /// Until something is heard, at most this long.
    fn wait(&self, pause: Duration) {
        let timeout =
            Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: i64::from(pause.subsec_nanos()) };
        // Whatever comes of it: the look tells.
        let _ = poll(&mut [PollFd::new(&self.notify, PollFlags::IN)], Some(&timeout));
        let mut buffer = [0; 64 << 10];
        while rustix::io::read(&self.notify, &mut buffer).is_ok_and(|length| length > 0) {}
    }

    /// Listens to directories of the upper that are new. One that cannot be listened to is looked at.
    fn listen(&mut self) {
        let upper = self.view.upper();
        self.heard.retain(|path| path.is_root() || self.marks.contains_key(path));
        let directories = self
            .marks
            .iter()
            .filter(|(_, mark)| matches!(mark, Mark::Directory { .. }))
            .map(|(path, _)| path.clone());
        for path in std::iter::once(RelPath::root()).chain(directories) {
            if self.heard.len() >= DIRECTORIES || self.heard.contains(&path) {
                continue;
            }
            let Ok(directory) = upper.open_dir(&path) else { continue };
            let name = format!("/proc/self/fd/{}", directory.as_raw_fd());
            let flags = WatchFlags::CREATE
                | WatchFlags::DELETE
                | WatchFlags::MOVE
                | WatchFlags::ATTRIB
                | WatchFlags::MODIFY;
            if inotify::add_watch(&self.notify, name.as_str(), flags).is_ok() {
                self.heard.insert(path);
            }
        }
    }
}

/// A look that met nothing half done.
fn steady_look(spec: &WorkspaceSpec) -> Result<(View, Marks), DeriveError> {
    let mut attempt = 0;
    loop {
        match View::open(spec).and_then(|view| look(&view).map(|marks| (view, marks))) {
            Err(DeriveError::Read { .. }) if attempt < ATTEMPTS => attempt += 1,
            other => return other,
        }
    }
}

fn look(view: &View) -> Result<Marks, DeriveError> {
    let mut marks = Marks::new();
    for (path, tree) in view.spoken_of() {
        let read = |error: io::Error| DeriveError::read("sandbox", path, error);
        let stat = match tree {
            Some(tree) => tree.stat(path).map_err(read)?,
            None => None,
        };
        let mark = match stat {
            None => Mark::Gone,
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                Mark::Directory { mode: stat.st_mode }
            }
            Some(stat) => Mark::Entry {
                inode: stat.st_ino,
                mode: stat.st_mode,
                size: stat.st_size,
                modified: (stat.st_mtime, stat.st_mtime_nsec),
                changed: (stat.st_ctime, stat.st_ctime_nsec),
            },
        };
        marks.insert(path.clone(), mark);
    }
    Ok(marks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::now;
    use crate::tree::TreeRoot;
    use skep_types::{Base, WorkspaceDriver};
    use std::fs;

    #[test]
    fn what_came_changed_and_went_is_told() {
        let root = tempfile::tempdir().unwrap();
        let [project, upper, memory] = ["project", "upper", "memory"].map(|n| root.path().join(n));
        for directory in [&project, &upper, &memory, &project.join("src")] {
            fs::create_dir(directory).unwrap();
        }
        fs::write(project.join("src/old"), "old").unwrap();
        fs::write(project.join("gone"), "x").unwrap();
        let (device, inode) = TreeRoot::open(&project).unwrap().identity().unwrap();
        let spec = WorkspaceSpec {
            project,
            base: Base { instant: now().unwrap(), device, inode, commit: None },
            driver: WorkspaceDriver::OverlayUserns,
            upper: upper.clone(),
            layers: Vec::new(),
            dependency_layers: Vec::new(),
            hidden: Vec::new(),
            memory,
        };
        let mut watch = Watch::start(&spec, RelPath::root()).unwrap();
        let mut told = || -> Vec<(String, NoticedKind)> {
            let noticed = watch.next(Duration::ZERO).unwrap();
            noticed.into_iter().map(|one| (one.path.to_string(), one.kind)).collect()
        };
        assert_eq!(told(), []);
        fs::create_dir(upper.join("src")).unwrap();
        fs::write(upper.join("src/old"), "other").unwrap();
        fs::write(upper.join("new"), "new").unwrap();
        let kind = rustix::fs::FileType::CharacterDevice;
        let gone = upper.join("gone");
        rustix::fs::mknodat(rustix::fs::CWD, &gone, kind, rustix::fs::Mode::empty(), 0).unwrap();
        let expected = [
            ("gone".to_owned(), NoticedKind::Deleted),
            ("new".to_owned(), NoticedKind::Created),
            ("src/old".to_owned(), NoticedKind::Modified),
        ];
        assert_eq!(told(), expected);
        fs::write(upper.join("new"), "newer").unwrap();
        assert_eq!(told(), [("new".to_owned(), NoticedKind::Modified)]);
        fs::remove_file(upper.join("new")).unwrap();
        assert_eq!(told(), [("new".to_owned(), NoticedKind::Deleted)]);
        fs::remove_dir_all(&upper).unwrap();
        assert!(watch.next(Duration::ZERO).is_err());
    }
}
