//! Captures: while a sandbox runs, the base of what it changed is put aside as long as the project
//! still proves it. A later edit by the user then has a base to be merged against.

mod aware;
mod sights;

use super::copied::Copied;
use super::known::{Known, Needs};
use super::memory::{self, Capture, Durability, Memory, Record};
use super::moment::{Era, Proofs, era_of};
use super::noted::Noted;
use super::room::Room;
use super::{Identity, Proof, ctime_ns, tick_ns};
use crate::error::DeriveError;
use crate::git::Repository;
use crate::held::Kept;
use crate::markers::Markers;
use crate::spec::{HeldTrees, Trees, WorkspaceSpec};
use crate::tree::{Meta, TreeRoot};
use crate::union::{self, Again, Earlier, Seen, Union};
use aware::aware;
use rustix::fs::FileType;
use sights::gone_away;
use skep_types::{ByteString, EntryState, Instant, RelPath, WorkspaceDriver};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Files up to this size are captured with their bytes; larger ones by identity only.
pub(super) const CAPTURE_BYTES: u64 = 1 << 20;

/// In a directory with more changes than this, its names are noted instead of each that is absent.
const CROWDED: usize = 1_000;

/// What a note takes up, about.
const NOTE_BYTES: u64 = 512;

/// What a capture did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CaptureSummary {
    /// Paths captured now.
    pub captured: u64,
    /// Paths whose base is no longer proven by the project, or, of a copy, no longer there, and was not
    /// captured before.
    pub unproven: u64,
}

/// Captures the base of every changed path that was not captured yet and is still proven.
///
/// Called while execs run and when one ends. The proof is checked before *and* after the bytes are
/// read: else an edit that the user makes meanwhile would become the base, and be reverted.
///
/// At most `most` bytes of files are kept, those of earlier times counted; the rest is noted without
/// its bytes, as what is too large for it is.
pub fn capture(
    spec: &WorkspaceSpec,
    most: Option<u64>,
    insiders: Insiders,
) -> Result<CaptureSummary, DeriveError> {
    Captor::limited(most).capture(spec, insiders)
}

/// Captures again and again for one sandbox, and remembers between two times what was captured.
#[derive(Debug, Default)]
pub struct Captor {
    known: Known,
    most: Option<u64>,
    /// Directories of which everything was captured, as long as `known` loses nothing.
    earlier: Earlier,
    losses: u64,
    copied: Copied,
    /// Since when somebody is inside.
    came_in: Option<i128>,
    last: Option<Look>,
    /// What was noted once and is not in the sandbox now: made and removed again, for instance.
    away: HashSet<RelPath>,
}

/// Who may write something older into the sandbox than what is seen there now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insiders {
    /// Nobody: who comes later sees the project as it is now.
    None,
    /// Somebody, or it is not known.
    Some,
}

/// A look at everything in the sandbox: what is not known from it came later.
#[derive(Debug, Clone)]
struct Look {
    /// When it began ([`clock_ns`](super::clock_ns)).
    began_ns: i128,
    upper: PathBuf,
    layers: Vec<PathBuf>,
    /// What was there, and of which nothing could be noted.
    open: HashSet<RelPath>,
}

impl Look {
    /// Whether this is still the same sandbox in the same state, and not one that was gone back to.
    fn is_of(&self, spec: &WorkspaceSpec) -> bool {
        (&self.upper, &self.layers) == (&spec.upper, &spec.layers)
    }
}

impl Captor {
    /// Keeps so many bytes of files at most.
    pub fn limited(most: Option<u64>) -> Self {
        Self { most, ..Self::default() }
    }

    /// Nobody is inside, and nothing of the project is remembered there: whoever comes sees it as it is at this time
    /// ([`clock_ns`](super::clock_ns)) or later.
    pub fn nobody_before(&mut self, clock_ns: i128) {
        self.came_in = Some(clock_ns);
    }

    /// Nobody is inside at this moment, whatever is remembered of the project there: what the sandbox has itself is seen
    /// by whoever comes.
    pub fn nobody_now(&self, spec: &WorkspaceSpec) -> Result<(), DeriveError> {
        if self.known.late().is_empty() {
            return Ok(());
        }
        let (trees, kept) = (Trees::open(spec)?, Kept::default());
        no_longer_late(spec, &trees.held(&kept), &self.known, Insiders::None)
    }

    /// As [`capture`].
    pub fn capture(
        &mut self,
        spec: &WorkspaceSpec,
        insiders: Insiders,
    ) -> Result<CaptureSummary, DeriveError> {
        let last = self.last.take().filter(|look| look.is_of(spec));
        if last.is_none() {
            self.away.clear();
            // What is away now is found by listing everything.
            self.earlier.forget();
        }
        match self.look(spec, last.as_ref(), insiders) {
            Ok((summary, look)) => {
                self.last = look;
                Ok(summary)
            }
            // What is known from the last one stays known.
            Err(error) => {
                self.last = last;
                Err(error)
            }
        }
    }

    fn look(
        &mut self,
        spec: &WorkspaceSpec,
        last: Option<&Look>,
        insiders: Insiders,
    ) -> Result<(CaptureSummary, Option<Look>), DeriveError> {
        let began_ns = super::clock_ns();
        let trees = Trees::open(spec)?;
        self.known.follow(&spec.memory)?;
        let known = &self.known;
        if known.is_complete_copy() {
            let kept = Kept::default();
            let held = trees.held(&kept);
            let captured = self.copied.capture(spec, &held, known, self.most)?;
            no_longer_late(spec, &held, known, insiders)?;
            return Ok((captured, None));
        }
        if self.losses != known.losses() {
            self.earlier.forget();
            self.losses = known.losses();
        }
        let kept = Kept::default();
        let held = trees.held(&kept);
        let mut again = Again::new(&self.earlier);
        let union = union::read_again(&held.levels, Markers::of(spec.driver), &mut again)?;
        let (listed, read) = again.into_listed();
        let away = gone_away(known, &union, &read, &self.away);
        let (created, moment) = (&spec.base.instant, known.moment());
        let proofs = Proofs::new(&held.project, created, moment, known.anchors());
        let era = moment.and_then(|moment| moment.era());
        let anchored = known.anchors().get(&era).into_iter().flat_map(HashMap::keys);
        let own = self.most.map_or(u64::MAX, |most| most.saturating_sub(known.kept()));
        let mut run = Run {
            trees: &held,
            proofs,
            git: Repository::new(&spec.project, spec.base.commit.as_deref()),
            lists: Noted::of(&spec.memory),
            came_in: self.came_in,
            settled_in: self.came_in.map(|came_in| {
                let anchors = known.anchors().get(&era).cloned().unwrap_or_default();
                Proof::new(&held.project, &at(created, came_in), anchors)
            }),
            insiders,
            last,
            era,
            memory: &spec.memory,
            known,
            room: Room::new(spec.upper.clone(), own),
            records: Vec::new(),
            anchored: anchored.cloned().collect(),
            listed: known.listings(era),
            listed_before: known.listings(None),
            bare: HashSet::new(),
            summary: CaptureSummary::default(),
            unsettled: HashSet::new(),
            open: HashSet::new(),
            shifted: HashMap::new(),
        };
        for (directory, count) in crowded(&union) {
            unless_mounted_over(run.listing(&directory, count))?;
        }
        // What is too deep is never applied, and so needs no base.
        for (path, seen) in union.iter().filter(|(_, seen)| *seen != Seen::TooDeep) {
            if run.is_known_nothing(path) && !run.has_come(path, seen)? {
                run.note_bare(path, seen);
                continue;
            }
            let mut needs = known.needs(path);
            if away.contains(path) && !run.is_as_noted(path)? {
                needs = Needs { left: true, bare: false, ..needs };
            }
            if needs.bare {
                run.note_bare(path, seen);
            }
            let (unproven, noted) = (run.summary.unproven, run.records.len());
            let mut settled = true;
            if needs.left && !spec.is_hidden(path) {
                settled &= unless_mounted_over(run.came_again(path, seen))?;
            } else if needs.path && !spec.is_hidden(path) {
                settled &= unless_mounted_over(run.path(path, seen))?;
                if needs.sight && run.summary.unproven > unproven {
                    settled &= unless_mounted_over(run.newer(path, seen))?;
                }
            }
            if needs.path && run.records.len() == noted {
                run.open.insert(path.clone());
            }
            if needs.below && seen.cuts() {
                settled &= unless_mounted_over(run.subtree(spec, path))?;
            }
            if !settled || run.summary.unproven > unproven {
                run.unsettled.extend(path.parent());
            }
        }
        let Run { records, summary, mut room, unsettled, open, .. } = run;
        if !records.is_empty() && !room.for_notes(records.len() as u64 * NOTE_BYTES) {
            // Tried again the next time; what was open stays so until then.
            return Ok((CaptureSummary { captured: 0, ..summary }, last.cloned()));
        }
        memory::append(&spec.memory, &records, Durability::Process)?;
        no_longer_late(spec, &held, known, insiders)?;
        self.away = away.into_iter().filter(|path| union.get(path).is_none()).collect();
        self.earlier.learn(listed, |directory| unsettled.contains(directory));
        let (upper, layers) = (spec.upper.clone(), spec.layers.clone());
        Ok((summary, Some(Look { began_ns, upper, layers, open })))
    }
}

/// Where nobody is inside, nobody has to learn of what the user wrote.
fn no_longer_late(
    spec: &WorkspaceSpec,
    trees: &HeldTrees<'_>,
    known: &Known,
    insiders: Insiders,
) -> Result<(), DeriveError> {
    if insiders == Insiders::Some {
        return Ok(());
    }
    let records = aware(spec, trees, &known.late())?;
    memory::append(&spec.memory, &records, Durability::Process)
}

/// Below a mount in the project there is no base: the view does not cross it either. Whether there
/// is none.
fn unless_mounted_over(result: Result<(), DeriveError>) -> Result<bool, DeriveError> {
    match result {
        Err(error) if error.is_mounted_over() => Ok(false),
        other => other.map(|()| true),
    }
}

/// For the copy driver, right after the copy was made: remembers every entry of it as the base, so
/// that entries the user adds or removes later are not taken for the sandbox's work.
pub fn remember_copy(spec: &WorkspaceSpec) -> Result<u64, DeriveError> {
    debug_assert_eq!(spec.driver, WorkspaceDriver::Copy);
    let trees = Trees::open(spec)?;
    let mut memory = Memory::load(&spec.memory)?;
    let kept = Kept::default();
    let held = trees.held(&kept);
    let upper = &held.levels[0];
    let mut records = Vec::new();
    for path in union::read(&held.levels, Markers::of(spec.driver))?.into_paths() {
        let state =
            upper.state(&path).map_err(|source| DeriveError::read("sandbox", &path, source))?;
        let capture = Capture { identity: Some(Identity::COPIED), state: Some(state) };
        records.push(Record::Capture { path, capture });
    }
    let count = records.len() as u64;
    records.push(Record::Subtree { path: RelPath::root() });
    memory.append(records, Durability::Process)?;
    Ok(count)
}

struct Run<'a> {
    trees: &'a HeldTrees<'a>,
    proofs: Proofs<'a>,
    git: Repository,
    lists: Noted<'a>,
    came_in: Option<i128>,
    /// Tells what stood there before anybody came in who is inside now.
    settled_in: Option<Proof<'a>>,
    insiders: Insiders,
    last: Option<&'a Look>,
    /// Of what comes now.
    era: Era,
    memory: &'a Path,
    known: &'a Known,
    room: Room,
    records: Vec<Record>,
    anchored: HashSet<RelPath>,
    /// Directories of the project with all their names.
    listed: HashMap<RelPath, HashSet<ByteString>>,
    /// And as they were at create.
    listed_before: HashMap<RelPath, HashSet<ByteString>>,
    /// Directories of the sandbox where the project has none.
    bare: HashSet<RelPath>,
    summary: CaptureSummary,
    /// Directories of the sandbox in which something is still to be captured.
    unsettled: HashSet<RelPath>,
    /// What is in the sandbox, and nothing could be noted of.
    open: HashSet<RelPath>,
    /// Directories, and whether something may have come into them in the project.
    shifted: HashMap<RelPath, bool>,
}

/// The creation's clock at another time.
fn at(created: &Instant, wall_ns: i128) -> Instant {
    let boot_ns = created.boot_ns + (wall_ns - created.wall_ns);
    Instant { wall_ns, boot_ns, boot_id: created.boot_id.clone() }
}

/// Directories in which so much is new or changed that one note for all is less.
fn crowded(union: &Union) -> Vec<(RelPath, usize)> {
    let mut counts: HashMap<&[u8], usize> = HashMap::new();
    for (path, _) in union.iter() {
        *counts.entry(path.parent_bytes()).or_default() += 1;
    }
    counts.retain(|_, count| *count > CROWDED);
    let crowded = counts.into_iter();
    crowded.filter_map(|(path, count)| Some((RelPath::parse(path).ok()?, count))).collect()
}

impl Run<'_> {
    /// Notes what is in a directory that is as it was at create, in place of everything that is not.
    fn listing(&mut self, path: &RelPath, most: usize) -> Result<(), DeriveError> {
        let untouched = |run: &Self| {
            let stat = run.stat(path)?.filter(is_directory);
            Ok(stat.filter(|_| run.proofs.latest().untouched_directory(path).unwrap_or(false)))
        };
        let Some(before): Option<Meta> = untouched(self)? else { return Ok(()) };
        if self.listed.contains_key(path) {
            return Ok(());
        }
        let Some(names) = self
            .root()
            .list_some(path, most)
            .map_err(|source| DeriveError::read("project", path, source))?
        else {
            return Ok(());
        };
        // Proven before and after, as everything that is captured.
        self.proofs.look_again();
        let after: Option<Meta> = untouched(self)?;
        if after.as_ref().map(Identity::of) == Some(Identity::of(&before)) {
            let names: Vec<ByteString> = names.into_iter().map(|(name, _)| name.into()).collect();
            self.listed.insert(path.clone(), names.iter().cloned().collect());
            let since = self.era;
            self.records.push(Record::Listing { path: path.clone(), names, since });
        }
        Ok(())
    }

    /// Whether a note about a directory above says that nothing stood here.
    fn is_known_nothing(&self, path: &RelPath) -> bool {
        if self.bare.is_empty() && self.listed.is_empty() && self.listed_before.is_empty() {
            return false;
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return false };
        let era = self.era_of(path);
        let listed = if era == self.era { &self.listed } else { &self.listed_before };
        // Of a directory from before, what comes into it now is not known by that.
        let bare = self.bare.contains(&parent) && (era.is_none() || self.era_of(&parent) == era);
        bare || listed.get(&parent).is_some_and(|names| !names.contains(name))
    }

    /// Whether the user has something there by now, though nothing stood there: then the sandbox's may come from that.
    /// What was there before is the sandbox's own; a file that was written or moved since may have been put over the
    /// user's.
    fn has_come(&mut self, path: &RelPath, seen: Seen) -> Result<bool, DeriveError> {
        let Some(parent) = path.parent() else { return Ok(false) };
        let shifted = match self.shifted.get(&parent) {
            Some(shifted) => *shifted,
            None => {
                let there = self.stat(&parent)?.is_some_and(|stat| is_directory(&stat));
                let shifted = there && !self.proofs.of(path).untouched_directory(&parent)?;
                self.shifted.insert(parent, shifted);
                shifted
            }
        };
        if !shifted || !self.known.needs(path).path {
            return Ok(false);
        }
        let theirs = self.trees.project.meta(path);
        let theirs = theirs.map_err(|source| DeriveError::read("project", path, source))?;
        let Some(theirs) = theirs else { return Ok(false) };
        let changed = ctime_ns(&theirs);
        let since = theirs.made_ns.map_or(changed, |made| made.min(changed));
        let ours = match seen {
            Seen::Dir { .. } => self.born_ns(path, seen)?,
            _ => self.changed_ns(path, seen)?,
        };
        Ok(ours.is_some_and(|ours| ours + tick_ns() > since))
    }

    /// Everything below is new, too. Paths come sorted: a directory before what is in it.
    fn note_bare(&mut self, path: &RelPath, seen: Seen) {
        if matches!(seen, Seen::Dir { .. }) {
            self.bare.insert(path.clone());
        }
    }

    fn path(&mut self, path: &RelPath, seen: Seen) -> Result<(), DeriveError> {
        let Some(stat) = self.stat(path)? else {
            return self.absent(path, seen);
        };
        if !self.proofs.of(path).present(path, &stat)? {
            if matches!(seen, Seen::Dir { .. }) && self.proofs.of(path).same_directory(path)? {
                return Ok(());
            }
            self.summary.unproven += 1;
            return Ok(());
        }
        let (state, bytes) = self.read(path, &stat)?;
        self.proofs.look_again();
        let after = self.stat(path)?.filter(|after| Identity::of(after) == Identity::of(&stat));
        let proven = match after {
            Some(after) => self.proofs.of(path).present(path, &after)?,
            None => false,
        };
        if !proven {
            self.summary.unproven += 1;
            return Ok(());
        }
        if let Some(bytes) = bytes {
            memory::keep_blob(self.memory, &bytes)?;
        }
        self.record(path, Some(Identity::of(&stat)), state)?;
        if is_directory(&stat) && self.era_of(path) == self.era {
            self.anchor(path, &stat);
        }
        Ok(())
    }

    fn era_of(&self, path: &RelPath) -> Era {
        era_of(self.known.moment(), path)
    }

    /// The state of a small entry, and its bytes when it is a file.
    fn read(
        &mut self,
        path: &RelPath,
        stat: &Meta,
    ) -> Result<(Option<EntryState>, Option<Vec<u8>>), DeriveError> {
        let error = |source| DeriveError::read("project", path, source);
        if stat.kind() != FileType::RegularFile {
            return Ok((Some(self.root().state(path).map_err(error)?), None));
        }
        // Where its bytes have no room: what git had clean has a base all the same.
        if stat.size > CAPTURE_BYTES || !self.room.for_file(stat.size) {
            return Ok((None, None));
        }
        let bytes = match self.root().read(path, CAPTURE_BYTES) {
            Ok(bytes) => bytes,
            // Not readable by us: its identity has to do.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                return Ok((None, None));
            }
            Err(source) => return Err(error(source)),
        };
        let hash = skep_types::ContentHash::of(&bytes);
        let state = EntryState::File { hash, size: bytes.len() as u64, mode: stat.permissions() };
        Ok((Some(state), Some(bytes)))
    }

    fn absent(&mut self, path: &RelPath, seen: Seen) -> Result<(), DeriveError> {
        let made = self.made_ns(path, seen)?;
        let proof = self.proofs.of(path);
        if !proof.absent(path)? {
            if !proof.absent_before(path, made)? {
                self.summary.unproven += 1;
                return Ok(());
            }
            // Nothing stood there when it was made, but something did before: whoever made it may have read
            // that, unless it was gone before anybody came in. Who does not know when that was leaves it open.
            let came_in = self.came_in.filter(|came_in| self.came_since(*came_in, path, made));
            let unseen = proof.absent_before(path, came_in)?;
            let open = self.was_open(path);
            if !unseen && (open || self.lists.tell_of(path, &self.git)) {
                let capture = Capture::of_unknown();
                let unknown = Record::Capture { path: path.clone(), capture };
                self.records.extend(Some(unknown).filter(|_| open || self.came_in.is_some()));
                self.summary.unproven += 1;
                return Ok(());
            }
        }
        self.note_bare(path, seen);
        self.record(path, None, Some(EntryState::Absent))
    }

    /// When something was made in the sandbox, or later than which: it may have been renamed since, and then it
    /// was not there at the last look.
    fn made_ns(&self, path: &RelPath, seen: Seen) -> Result<Option<i128>, DeriveError> {
        if matches!(seen, Seen::Gone | Seen::TooDeep) {
            return Ok(None);
        }
        let born = self.born_ns(path, seen)?;
        let last = self.last.filter(|_| !self.was_open(path) && !self.known.needs(path).left);
        Ok(born.max(last.map(|last| last.began_ns)))
    }

    /// When what the sandbox has at a path was made, wherever that was.
    fn born_ns(&self, path: &RelPath, seen: Seen) -> Result<Option<i128>, DeriveError> {
        let found = self.meta_inside(path, seen)?;
        Ok(found.and_then(|(level, meta)| self.trees.made_ns(level, &meta)))
    }

    /// When it was last written, moved or made.
    fn changed_ns(&self, path: &RelPath, seen: Seen) -> Result<Option<i128>, DeriveError> {
        Ok(self.meta_inside(path, seen)?.map(|(_, meta)| ctime_ns(&meta)))
    }

    fn meta_inside(
        &self,
        path: &RelPath,
        seen: Seen,
    ) -> Result<Option<(usize, Meta)>, DeriveError> {
        let (Seen::Leaf { level, .. } | Seen::Dir { level, .. }) = seen else { return Ok(None) };
        let meta = self.trees.levels[level].meta(path);
        let meta = meta.map_err(|source| DeriveError::read("sandbox", path, source))?;
        Ok(meta.map(|meta| (level, meta)))
    }

    /// Whether what was `made` at a path is of somebody who came in then: what was there already may only have been
    /// replaced.
    fn came_since(&self, came_in: i128, path: &RelPath, made: Option<i128>) -> bool {
        made.is_some_and(|made| made >= came_in) && !self.was_open(path)
    }

    fn was_open(&self, path: &RelPath) -> bool {
        self.last.is_some_and(|last| last.open.contains(path))
    }

    fn record(
        &mut self,
        path: &RelPath,
        identity: Option<Identity>,
        state: Option<EntryState>,
    ) -> Result<(), DeriveError> {
        // An anchor is of its era, as the proof that it came from.
        let anchors = self.era_of(path) == self.era;
        let above = path.ancestors().filter(|parent| anchors && !parent.is_root());
        for parent in above {
            if self.anchored.contains(&parent) {
                break;
            }
            if let Some(stat) = self.stat(&parent)?
                && self.proofs.latest().same_directory(&parent)?
            {
                self.anchor(&parent, &stat);
            }
        }
        let capture = Capture { identity, state };
        self.records.push(Record::Capture { path: path.clone(), capture });
        self.summary.captured += 1;
        Ok(())
    }

    fn anchor(&mut self, path: &RelPath, stat: &Meta) {
        if self.anchored.insert(path.clone()) {
            let (device, inode) = (stat.device, stat.inode);
            let since = self.era;
            self.records.push(Record::Anchor { path: path.clone(), device, inode, since });
        }
    }

    /// What the sandbox removed with a directory: identities are enough, a deletion is not merged.
    fn subtree(&mut self, spec: &WorkspaceSpec, top: &RelPath) -> Result<(), DeriveError> {
        match self.stat(top)? {
            Some(stat) if is_directory(&stat) && !spec.is_hidden(top) => {}
            _ => return Ok(()),
        }
        let mut pending = vec![top.clone()];
        let mut records = Vec::new();
        while let Some(directory) = pending.pop() {
            let error = |source| DeriveError::read("project", &directory, source);
            let Some(_) = self.proven(&directory)? else { return Ok(()) };
            for (name, _) in self.root().list(&directory).map_err(error)? {
                let path = directory.join(&name).map_err(|e| error(std::io::Error::other(e)))?;
                if spec.is_hidden(&path) {
                    continue;
                }
                let Some(stat) = self.proven(&path)? else { return Ok(()) };
                if is_directory(&stat) {
                    pending.push(path.clone());
                }
                let state = if stat.kind() == FileType::RegularFile {
                    None
                } else {
                    Some(self.root().state(&path).map_err(error)?)
                };
                if !self.known.is_captured(&path) || self.known.needs(&path).left {
                    let capture = Capture { identity: Some(Identity::of(&stat)), state };
                    records.push(Record::Capture { path, capture });
                }
            }
        }
        // Each directory was proven before it was listed and each entry after: an entry that came
        // in between is not proven, and we are not here.
        self.summary.captured += records.len() as u64;
        self.records.append(&mut records);
        self.records.push(Record::Subtree { path: top.clone() });
        Ok(())
    }

    /// What stands there, if it is proven to have stood there at create; counted, if it is not.
    fn proven(&mut self, path: &RelPath) -> Result<Option<Meta>, DeriveError> {
        if let Some(stat) = self.stat(path)?
            && self.proofs.of(path).present(path, &stat)?
        {
            return Ok(Some(stat));
        }
        self.summary.unproven += 1;
        Ok(None)
    }

    fn stat(&self, path: &RelPath) -> Result<Option<Meta>, DeriveError> {
        let found = self.root().stat(path);
        let found = found.map_err(|source| DeriveError::read("project", path, source))?;
        Ok(found.map(|stat| Meta::of(&stat)))
    }

    /// The project, every path of it resolved anew: the user works in it.
    fn root(&self) -> &TreeRoot {
        self.trees.project.root()
    }
}

fn is_directory(stat: &Meta) -> bool {
    stat.kind() == FileType::Directory
}
