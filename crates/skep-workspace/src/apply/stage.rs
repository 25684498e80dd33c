//! Staging: everything that can fail for want of space, access or agreement happens here, before
//! the commit point and out of sight.

use super::attributes::{carry, carry_whole, default_list, inherit};
use super::copy::Copier;
use super::journal::{INTENT, Intent, JOURNAL, Journal, JournalDir, Mark, Record};
use super::plan::working_mode;
use super::staging::{Staging, choose_place, own};
use super::verify::{check_project, check_request, check_space};
use super::{ApplyError, ApplyRequest, Phase, Progress, Source, Staged, Target};
use crate::tree::{TreeRoot, means_absent};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use skep_sys::failpoint;
use skep_types::{ContentHash, EntryState, RelPath};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Up to this many files are synced one by one; more are synced with their whole filesystem.
const SYNC_SINGLY: usize = 8;
/// Bits that a file from a sandbox never brings along.
const PRIVILEGE_BITS: u32 = 0o6000;

/// Verifies, stages, syncs and writes the journal. On error nothing is left behind.
///
/// The order, and why:
/// 1. the intent, so that whatever follows can be found and removed (its ctime also tells when the
///    verification began);
/// 2. the verification, so that a refusal comes before any work;
/// 3. the bytes, compared with the reviewed hash as they are written;
/// 4. a sync of them, because the journal promises that they exist;
/// 5. the journal, synced with its directory: from here the caller may commit.
pub fn stage(request: ApplyRequest<'_>) -> Result<Staged, ApplyError> {
    let index = check_request(request.id, &request.targets)?;
    let project = request.project.canonicalize().map_err(own("find", request.project))?;
    let root = TreeRoot::open(&project).map_err(own("open", &project))?;
    if root.identity().map_err(own("look at", &project))? != request.root_identity {
        return Err(ApplyError::RootChanged { project });
    }
    let place = choose_place(&root).map_err(own("look above", &project))?;
    let dir = JournalDir::open(request.journal_dir)?;
    let intent = Intent {
        id: request.id.clone(),
        project: project.as_path().into(),
        root: request.root_identity,
        place,
        note: request.note,
    };
    dir.write(INTENT, &intent)?;
    let mut removed = true;
    let prepared = check_project(&root, &request.targets, &index, request.progress)
        .and_then(|stats| check_space(&root, &request.targets).map(|()| stats));
    let staged = prepared.and_then(|stats| {
        let staging = make_staging(&root, &intent)?;
        let work = Work::new(&root, &staging, request.progress);
        match write_all(work, &dir, &intent, request.targets, &stats) {
            Ok(journal) => Ok((staging, journal)),
            Err(error) => {
                removed = staging.remove().is_ok();
                Err(error)
            }
        }
    });
    match staged {
        Ok((staging, journal)) => Ok(Staged { root, staging, dir, journal }),
        Err(error) => {
            // Beside the first error these are best effort. The intent stays as long as there is
            // something that only recovery can still remove.
            if dir.remove(JOURNAL).is_ok() && removed {
                let _ = dir.remove(INTENT);
            }
            Err(error)
        }
    }
}

fn make_staging(root: &TreeRoot, intent: &Intent) -> Result<Staging, ApplyError> {
    let path = super::staging::staging_path(intent);
    let staging = Staging::make(root, intent).map_err(own("make", &path))?;
    match staging.probe_exchange() {
        Ok(true) => Ok(staging),
        Ok(false) => {
            let _ = staging.remove();
            Err(ApplyError::Refused {
                path: RelPath::root(),
                reason: "its filesystem cannot exchange two entries (renameat2 RENAME_EXCHANGE)"
                    .to_owned(),
            })
        }
        Err(error) => {
            let _ = staging.remove();
            Err(own("try an exchange in", &path)(error))
        }
    }
}

fn write_all(
    mut work: Work<'_>,
    dir: &JournalDir,
    intent: &Intent,
    targets: Vec<Target>,
    stats: &[Option<Stat>],
) -> Result<Journal, ApplyError> {
    let path = work.staging.path();
    let staging = work.staging.mark().map_err(own("look at", path))?.ino;
    failpoint::hit("apply.staging_made").map_err(own("make", path))?;
    let total = targets.len() as u64;
    let mut records = Vec::with_capacity(targets.len());
    for (done, (target, stat)) in targets.into_iter().zip(stats).enumerate() {
        (work.progress)(Progress { phase: Phase::Stage, done: done as u64, total });
        if target.before == target.after {
            continue;
        }
        let slot = u32::try_from(records.len()).map_err(|_| ApplyError::Refused {
            path: target.path.clone(),
            reason: "there are too many paths".to_owned(),
        })?;
        records.push(work.stage_one(slot, target, stat.as_ref())?);
    }
    work.sync().map_err(own("sync", path))?;
    failpoint::hit("apply.synced").map_err(own("sync", path))?;
    let verified_from = dir.written_at(INTENT)?;
    let stripped = work.stripped;
    let journal = Journal { intent: intent.clone(), staging, verified_from, records, stripped };
    dir.write(JOURNAL, &journal)?;
    failpoint::hit("apply.journal_written").map_err(own("write the journal of", path))?;
    Ok(journal)
}

/// What staging keeps between targets.
struct Work<'a> {
    root: &'a TreeRoot,
    staging: &'a Staging,
    progress: &'a mut dyn FnMut(Progress),
    copier: Copier,
    sources: HashMap<PathBuf, TreeRoot>,
    owners: HashMap<RelPath, Owner>,
    /// The access lists that directories give to what is made in them.
    lists: HashMap<RelPath, Option<Vec<u8>>>,
    stripped: Vec<RelPath>,
    unsynced: Vec<File>,
    files: usize,
}

type Owner = (u32, u32);

impl<'a> Work<'a> {
    fn new(
        root: &'a TreeRoot,
        staging: &'a Staging,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Self {
        Self {
            root,
            staging,
            progress,
            copier: Copier::new(),
            sources: HashMap::new(),
            owners: HashMap::new(),
            lists: HashMap::new(),
            stripped: Vec::new(),
            unsynced: Vec::new(),
            files: 0,
        }
    }

    fn stage_one(
        &mut self,
        slot: u32,
        target: Target,
        found: Option<&Stat>,
    ) -> Result<Record, ApplyError> {
        let fail = |source| ApplyError::Path {
            operation: "stage the new version of",
            path: target.path.clone(),
            source,
        };
        let name = slot.to_string();
        let after = self.after_of(&target);
        let dir_to_dir =
            matches!((&target.before, &after), (EntryState::Dir { .. }, EntryState::Dir { .. }));
        let staged = match &after {
            EntryState::File { mode, .. } => Some(self.stage_file(&name, *mode, &target, found)?),
            EntryState::Symlink { target: points_to } => {
                Some(self.stage_link(&name, points_to.as_bytes(), &target, found).map_err(fail)?)
            }
            EntryState::Dir { mode } if !dir_to_dir => {
                Some(self.stage_dir(&name, *mode, &target, found).map_err(fail)?)
            }
            EntryState::Dir { .. } | EntryState::Absent | EntryState::Special { .. } => None,
        };
        failpoint::hit("apply.staged").map_err(fail)?;
        let found = found.map(Mark::of);
        Ok(Record { slot, path: target.path, before: target.before, after, found, staged })
    }

    /// The state as it will be: files from a sandbox lose their privilege bits.
    fn after_of(&mut self, target: &Target) -> EntryState {
        match &target.after {
            EntryState::File { hash, size, mode }
                if mode & PRIVILEGE_BITS != 0
                    && !matches!(target.source, Source::Backup { .. }) =>
            {
                self.stripped.push(target.path.clone());
                EntryState::File { hash: *hash, size: *size, mode: mode & !PRIVILEGE_BITS }
            }
            after => after.clone(),
        }
    }

    fn stage_file(
        &mut self,
        name: &str,
        mode: u32,
        target: &Target,
        found: Option<&Stat>,
    ) -> Result<Mark, ApplyError> {
        let fail = |source| ApplyError::Path {
            operation: "stage the new version of",
            path: target.path.clone(),
            source,
        };
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(self.staging.fd(), name, flags, Mode::RUSR | Mode::WUSR);
        let mut file = fd.map(File::from).map_err(|errno| fail(errno.into()))?;
        let written = self.fill(&mut file, target).map_err(fail)?;
        let EntryState::File { hash, size, .. } = &target.after else {
            return Err(ApplyError::DigestMismatch { path: target.path.clone() });
        };
        if written != (*hash, *size) {
            return Err(ApplyError::DigestMismatch { path: target.path.clone() });
        }
        let mark = self.dress(&file, mode, target, found).map_err(fail)?;
        self.files += 1;
        if self.unsynced.len() < SYNC_SINGLY {
            self.unsynced.push(file);
        }
        Ok(mark)
    }

    /// Writes the bytes; gives their hash and length.
    fn fill(&mut self, file: &mut File, target: &Target) -> io::Result<(ContentHash, u64)> {
        let limit = match &target.after {
            EntryState::File { size, .. } => *size,
            _ => 0,
        };
        let (mut source, stat) = match &target.source {
            Source::Bytes(bytes) => {
                file.write_all(bytes)?;
                return Ok((ContentHash::of(bytes), bytes.len() as u64));
            }
            Source::None if matches!(target.before, EntryState::File { .. }) => {
                self.root.open_file(&target.path)?
            }
            // Only an empty file has no source; the hash decides.
            Source::None => return Ok((ContentHash::of(b""), 0)),
            Source::File { root, path } | Source::Backup { root, path } => {
                self.source_tree(root)?.open_file(path)?
            }
        };
        self.copier.copy(&mut source, &stat, file, limit)
    }

    /// Gives a new entry what the one has that it replaces, or that it brings back: owner and
    /// attributes; then its mode, which would be lost by the former.
    fn dress(
        &mut self,
        entry: impl AsFd,
        mode: u32,
        target: &Target,
        found: Option<&Stat>,
    ) -> io::Result<Mark> {
        let pinned = OFlags::PATH | OFlags::NOFOLLOW;
        let same_kind =
            std::mem::discriminant(&target.before) == std::mem::discriminant(&target.after);
        let model = match &target.source {
            Source::Backup { root, path } => {
                Some(self.source_tree(root)?.open_beneath(path, pinned)?)
            }
            _ if same_kind => Some(self.root.open_beneath(&target.path, pinned)?),
            _ => match &target.like {
                Some(like) => Some(self.root.open_beneath(like, pinned)?),
                None => None,
            },
        };
        let owner = match &model {
            Some(model) => owner_of(&rustix::fs::fstat(model)?),
            None => self.owner_for(&target.path, found)?,
        };
        own_by(&entry, owner)?;
        match model {
            // The same bytes come back.
            Some(model) if matches!(target.source, Source::Backup { .. }) => {
                carry_whole(model, &entry)?;
            }
            Some(model) => carry(model, &entry)?,
            None => {
                let directory = matches!(target.after, EntryState::Dir { .. });
                if let Some(list) = self.list_for(&target.path)? {
                    inherit(&list, &entry, directory)?;
                }
            }
        }
        rustix::fs::fchmod(&entry, Mode::from_raw_mode(mode))?;
        Ok(Mark::of(&rustix::fs::fstat(&entry)?))
    }

    fn source_tree(&mut self, path: &PathBuf) -> io::Result<&TreeRoot> {
        if !self.sources.contains_key(path) {
            self.sources.insert(path.clone(), TreeRoot::open(path)?);
        }
        self.sources.get(path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn stage_link(
        &mut self,
        name: &str,
        points_to: &[u8],
        target: &Target,
        found: Option<&Stat>,
    ) -> io::Result<Mark> {
        rustix::fs::symlinkat(points_to, self.staging.fd(), name)?;
        let kept = match &target.source {
            Source::Backup { root, path } => self.source_tree(root)?.stat(path)?,
            _ => None,
        };
        let (uid, gid) = match kept {
            Some(kept) => owner_of(&kept),
            None => self.owner_for(&target.path, found)?,
        };
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(self.staging.fd(), name, Some(uid), Some(gid), flags)?;
        }
        let stat = rustix::fs::statat(self.staging.fd(), name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(Mark::of(&stat))
    }

    fn stage_dir(
        &mut self,
        name: &str,
        mode: u32,
        target: &Target,
        found: Option<&Stat>,
    ) -> io::Result<Mark> {
        rustix::fs::mkdirat(self.staging.fd(), name, Mode::RWXU)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(self.staging.fd(), name, flags, Mode::empty())?;
        let mark = self.dress(&dir, working_mode(mode), target, found)?;
        self.owners.insert(target.path.clone(), owner_of(&rustix::fs::fstat(&dir)?));
        Ok(mark)
    }

    /// The owner of what is replaced; else whom a file would have that the project's owner makes
    /// there: nobody else works in a project, and a directory that belongs to somebody else and
    /// can be written by all makes nothing theirs.
    fn owner_for(&mut self, path: &RelPath, found: Option<&Stat>) -> io::Result<Owner> {
        if let Some(stat) = found {
            return Ok(owner_of(stat));
        }
        let parent = path.parent().unwrap_or_default();
        if let Some(owner) = self.owners.get(&parent) {
            return Ok(*owner);
        }
        let stat = self.root.stat(&parent)?;
        let is_dir = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let owner = match stat.filter(is_dir) {
            Some(stat) => owner_in(&stat, self.project_owner()?),
            None if parent.is_root() => return Err(io::ErrorKind::NotFound.into()),
            None => self.owner_for(&parent, None)?,
        };
        self.owners.insert(parent, owner);
        Ok(owner)
    }

    /// The access list that something new would have at `path`: of the nearest directory above that
    /// is there, from which those that are made for it have theirs.
    fn list_for(&mut self, path: &RelPath) -> io::Result<Option<Vec<u8>>> {
        let parent = path.parent().unwrap_or_default();
        if let Some(list) = self.lists.get(&parent) {
            return Ok(list.clone());
        }
        let list = match self.root.open_dir(&parent) {
            Ok(directory) => default_list(directory)?,
            Err(error) if means_absent(&error) && !parent.is_root() => self.list_for(&parent)?,
            Err(error) => return Err(error),
        };
        self.lists.insert(parent, list.clone());
        Ok(list)
    }

    /// Who owns the project's root.
    fn project_owner(&self) -> io::Result<Owner> {
        let stat = self.root.stat(&RelPath::root())?;
        stat.map(|stat| owner_of(&stat)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Makes what was staged durable. An error is final: after a failed fsync the kernel may have
    /// dropped the pages, and a second one would say that all is well.
    fn sync(&mut self) -> io::Result<()> {
        if self.files > SYNC_SINGLY {
            return Ok(rustix::fs::syncfs(self.staging.fd())?);
        }
        for file in self.unsynced.drain(..) {
            file.sync_all()?;
        }
        Ok(rustix::fs::fsync(self.staging.fd())?)
    }
}

/// Whom a new entry of a directory belongs to. The group is the directory's where that is the
/// owner's own, or hands its group on.
fn owner_in(directory: &Stat, (uid, gid): Owner) -> Owner {
    let hands_on = Mode::from_raw_mode(directory.st_mode).contains(Mode::SGID);
    let of_directory = directory.st_uid == uid || hands_on;
    (uid, if of_directory { directory.st_gid } else { gid })
}

fn owner_of(stat: &Stat) -> Owner {
    (stat.st_uid, stat.st_gid)
}

/// Only root gives files away. The group, anybody may set who is in it.
fn own_by(entry: impl AsFd, (uid, gid): Owner) -> io::Result<()> {
    let stat = rustix::fs::fstat(&entry)?;
    let (uid, gid) = (
        (stat.st_uid != uid).then(|| Uid::from_raw(uid)),
        (stat.st_gid != gid).then(|| Gid::from_raw(gid)),
    );
    if rustix::process::geteuid().is_root() {
        if uid.is_some() || gid.is_some() {
            rustix::fs::fchown(&entry, uid, gid)?;
        }
        return Ok(());
    }
    match gid.map(|gid| rustix::fs::fchown(&entry, None, Some(gid))) {
        None | Some(Ok(()) | Err(Errno::PERM)) => Ok(()),
        Some(Err(errno)) => Err(errno.into()),
    }
}
