//! Judges each path: base, project and sandbox side by side.

use super::content::Contents;
use super::spelling::Spelling;
use super::{Detail, kind_between};
use crate::base::memory::Settled;
use crate::base::{Base, BaseBytes, Content, Question, Resolver};
use crate::error::{DeriveError, is_mounted_over};
use crate::merge::{Merged, merge_modes, merge_text};
use crate::spec::{HeldTrees, WorkspaceSpec};
use crate::union::{Seen, Union};
use skep_types::{
    Change, ChangeKind, ContentHash, EntryState, RelPath, SpecialKind, WorkspaceDriver,
};
use std::collections::HashSet;

/// The level that is written to.
const UPPER: usize = 0;

/// One path where the sandbox differs from the base, or the project stands in the way.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub path: RelPath,
    pub base: Base,
    /// What stands in the project now.
    pub project: EntryState,
    /// What the view shows.
    pub sandbox: EntryState,
    /// The level that holds the sandbox's bytes.
    pub level: Option<usize>,
    pub standing: Standing,
}

/// How the project's side stands to the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The project is as in the base.
    Clean,
    /// It moved, and both sides merge to this.
    Merges(MergeResult),
    /// It moved, and they do not.
    Conflict(String),
    /// The same, for lines that both changed: hunks elsewhere in the file may merge.
    Collides(String),
}

impl Standing {
    /// Why the whole cannot be taken over.
    pub(crate) fn conflict(&self) -> Option<&String> {
        match self {
            Self::Clean | Self::Merges(_) => None,
            Self::Conflict(reason) | Self::Collides(reason) => Some(reason),
        }
    }
}

/// What both sides merge to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MergeResult {
    pub state: EntryState,
    pub bytes: MergedBytes,
}

/// Where a merge result's bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MergedBytes {
    /// The sandbox's bytes.
    Sandbox,
    /// The project's bytes.
    Project,
    /// New ones.
    New(Vec<u8>),
}

impl Entry {
    /// Of something new in the sandbox where the project has nothing and had nothing.
    fn new_in_sandbox(path: RelPath, sandbox: EntryState, level: Option<usize>) -> Self {
        let base = Base::known(EntryState::Absent, BaseBytes::Blob);
        let (project, standing) = (EntryState::Absent, Standing::Clean);
        Self { path, base, project, sandbox, level, standing }
    }

    /// The entry of a change that says all of it, see [`Entry::is_plain`].
    pub(crate) fn of_plain(change: &Change) -> Self {
        Self::new_in_sandbox(change.path.clone(), change.new.clone(), Some(UPPER))
    }

    /// Whether the change alone tells everything: something new in the upper. A million of these is
    /// not kept twice.
    fn is_plain(&self, kind: ChangeKind) -> bool {
        kind == ChangeKind::Added
            && self.level == Some(UPPER)
            && self.project.is_absent()
            && self.standing == Standing::Clean
            && self.base.state == Some(EntryState::Absent)
            && self.base.bytes == BaseBytes::Blob
            && self.base.partial.is_none()
    }

    /// The base, as it is remembered.
    pub(crate) fn settled(&self) -> Settled {
        let Base { partial, late, .. } = self.base.clone();
        Settled { state: self.old(), partial, late }
    }

    /// What the change starts from: the base, or what stands there when the base is not known.
    pub(crate) fn old(&self) -> EntryState {
        self.base.state.clone().unwrap_or_else(|| self.project.clone())
    }

    /// Whether the user put a directory here in the place of something else, or of nothing that the sandbox
    /// had seen, and the sandbox has none.
    pub(crate) fn is_in_place_of_other(&self) -> bool {
        let directory = |state: &EntryState| matches!(state, EntryState::Dir { .. });
        let other = self.base.state.as_ref().is_some_and(|base| !directory(base));
        other
            && directory(&self.project)
            && !directory(&self.sandbox)
            && !(self.sandbox.is_absent() && self.base.state == Some(EntryState::Absent))
    }

    /// What happened, if the sandbox changed anything.
    pub(crate) fn kind(&self) -> Option<ChangeKind> {
        kind_between(&self.old(), &self.sandbox)
    }
}

/// What is looked at, and with what.
pub(crate) struct Judge<'a> {
    pub spec: &'a WorkspaceSpec,
    pub trees: &'a HeldTrees<'a>,
    pub resolver: &'a Resolver<'a>,
    pub contents: &'a Contents<'a>,
    pub spelling: Spelling<'a>,
}

/// One path with the sandbox's side read.
struct Subject<'p> {
    path: &'p RelPath,
    state: EntryState,
    level: Option<usize>,
    made_ns: Option<i128>,
    /// Whether the project's entries below it are out of sight.
    cuts: bool,
}

/// The sandbox worked on what lies under a filesystem that is mounted in the project.
const MOUNTED_OVER: &str = "another filesystem is mounted there in the project, and is not crossed";

/// The sandbox wrote where it was shown nothing.
const HIDDEN: &str = "the project has something here that is hidden from the sandbox";

/// See [`Spelling`].
const FOLDED: &str = "the project's filesystem takes this name for another one that is there";

impl Subject<'_> {
    /// The project has nothing of this name and can take nothing.
    fn cannot_land(self, reason: &str, found: &mut Found) {
        found.put(Entry {
            standing: Standing::Conflict(reason.to_owned()),
            ..Entry::new_in_sandbox(self.path.clone(), self.state, self.level)
        });
    }
}

/// What stood at a path before either side changed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A directory, or it is not known what: then the sandbox removed it.
    Directory,
    /// Nothing.
    Nothing,
    /// Something else.
    Other,
}

/// What the view hides of the project below the paths it replaced.
#[derive(Default)]
struct Lower {
    paths: Vec<RelPath>,
    /// Directories of the project with at least one entry that is not hidden.
    nonempty: HashSet<RelPath>,
}

/// What was found so far.
struct Found<'u> {
    union: &'u Union,
    /// Directories that hold something that can be applied.
    filled: HashSet<&'u [u8]>,
    lower: Lower,
    /// Directories that the user made since, where the sandbox never had one.
    theirs: HashSet<RelPath>,
    /// The topmost of those in whose place there was something else: see [`Found::came_with_theirs`].
    in_place: HashSet<RelPath>,
    changes: Vec<Change>,
    detail: Detail,
}

impl Found<'_> {
    /// Takes an entry: its change, if there is one, and the entry itself, unless it says no more.
    fn put(&mut self, entry: Entry) {
        self.note_in_place(&entry);
        if let Some(kind) = entry.kind() {
            let (path, old) = (entry.path.clone(), entry.old());
            if entry.is_plain(kind) {
                self.changes.push(Change::new(path, kind, old, entry.sandbox));
                return;
            }
            self.changes.push(Change::new(path, kind, old, entry.sandbox.clone()));
        }
        self.detail.entries.insert(entry.path.clone(), entry);
    }

    /// The sandbox has what the base had.
    fn put_stale(&mut self, entry: Entry) {
        self.note_in_place(&entry);
        self.detail.stale.insert(entry.path.clone(), entry);
    }

    fn note_in_place(&mut self, entry: &Entry) {
        if entry.is_in_place_of_other() {
            self.in_place.insert(entry.path.clone());
        }
    }

    /// Whether it lies in a directory that the user put where none was: it came with that one, and the
    /// sandbox never had it. What becomes of it is decided with the directory.
    fn came_with_theirs(&self, path: &RelPath) -> bool {
        !self.in_place.is_empty() && path.ancestors().any(|parent| self.in_place.contains(&parent))
    }
}

impl Judge<'_> {
    /// Judges every path of the union, and what of the project lies below replaced directories.
    pub(crate) fn all(&self, union: &Union) -> Result<(Vec<Change>, Detail), DeriveError> {
        let mut found = Found {
            union,
            filled: filled_directories(union),
            lower: Lower::default(),
            theirs: HashSet::new(),
            in_place: HashSet::new(),
            changes: Vec::new(),
            detail: Detail::default(),
        };
        if self.spec.driver == WorkspaceDriver::Copy {
            self.lower(union, &RelPath::root(), &mut found.lower)?;
        }
        for (path, seen) in union.iter() {
            let subject = self.subject(path, seen)?;
            if let EntryState::Dir { mode } = subject.state {
                found.detail.directories.insert(path.clone(), mode);
            }
            self.one(subject, &mut found)?;
        }
        for path in std::mem::take(&mut found.lower.paths) {
            let state = EntryState::Absent;
            let subject = Subject { path: &path, state, level: None, made_ns: None, cuts: false };
            self.one(subject, &mut found)?;
        }
        found.detail.below_replaced(&found.changes);
        Ok((found.changes, found.detail))
    }

    fn subject<'p>(&self, path: &'p RelPath, seen: Seen) -> Result<Subject<'p>, DeriveError> {
        let (level, state, made_ns) = match seen {
            Seen::Gone => (None, EntryState::Absent, None),
            Seen::TooDeep => (None, EntryState::Special { what: SpecialKind::TooDeep }, None),
            Seen::Leaf { level, .. } | Seen::Dir { level, .. } => {
                let (state, meta) = self.trees.levels[level]
                    .state_and_meta(path)
                    .map_err(|source| DeriveError::read("sandbox", path, source))?;
                let made_ns = meta.and_then(|meta| self.trees.made_ns(level, &meta));
                (Some(level), state, made_ns)
            }
        };
        Ok(Subject { path, state, level, made_ns, cuts: seen.cuts() })
    }

    /// Collects what the project has below the directory `top` and the union does not speak of.
    fn lower(&self, union: &Union, top: &RelPath, lower: &mut Lower) -> Result<(), DeriveError> {
        let error = |path: &RelPath, source| DeriveError::read("project", path, source);
        let mut pending = vec![top.clone()];
        while let Some(directory) = pending.pop() {
            let names = match self.trees.project.list(&directory) {
                Err(source) if is_mounted_over(&source) => continue,
                other => other.map_err(|source| error(&directory, source))?,
            };
            for (name, kind) in names {
                let path = directory
                    .join(&name)
                    .map_err(|e| error(&directory, std::io::Error::other(e)))?;
                if self.spec.is_hidden(&path) {
                    continue;
                }
                if !lower.nonempty.contains(&directory) {
                    lower.nonempty.insert(directory.clone());
                }
                if union.get(&path).is_some() {
                    continue;
                }
                if kind == rustix::fs::FileType::Directory {
                    pending.push(path.clone());
                }
                lower.paths.push(path);
            }
        }
        Ok(())
    }

    fn one(&self, subject: Subject<'_>, found: &mut Found<'_>) -> Result<(), DeriveError> {
        if self.spec.is_hidden(subject.path) {
            return self.hidden(subject, found);
        }
        let error = |source| DeriveError::read("project", subject.path, source);
        let lands = !subject.state.is_absent() && !found.filled.contains(subject.path.as_bytes());
        let (project, stat) = match self.trees.project.state_and_meta(subject.path) {
            Err(source) if is_mounted_over(&source) => {
                if lands {
                    subject.cannot_land(MOUNTED_OVER, found);
                }
                return Ok(());
            }
            other => other.map_err(error)?,
        };
        let directory = |state: &EntryState| matches!(state, EntryState::Dir { .. });
        if subject.cuts && directory(&project) {
            self.lower(found.union, subject.path, &mut found.lower)?;
        }
        if !self.spelling.is_exact(subject.path).map_err(error)? {
            if lands {
                subject.cannot_land(FOLDED, found);
            }
            return Ok(());
        }
        let Subject { path, state: sandbox, level, made_ns, cuts } = subject;
        if sandbox == project || self.is_dependency(path, &sandbox)? {
            return Ok(());
        }
        let bytes = || self.contents.inside(level, path, &sandbox);
        let question = Question {
            path,
            project: &project,
            stat: stat.as_ref(),
            made_ns: made_ns.filter(|_| project.is_absent()),
            removed: sandbox.is_absent(),
            whiteout: sandbox.is_absent() && cuts,
            inside: Content { state: &sandbox, bytes: &bytes },
            project_bytes: &|| self.contents.project(path, &project),
        };
        if sandbox.is_absent() && !project.is_absent() && found.came_with_theirs(path) {
            let mut entry = Entry::new_in_sandbox(path.clone(), sandbox, level);
            entry.project = project;
            found.put_stale(entry);
            return Ok(());
        }
        if sandbox.is_absent() && directory(&project) {
            let nonempty = found.lower.nonempty.contains(path);
            match self.stood_before(&question)? {
                Before::Nothing if self.has_above(path, found) => {
                    found.theirs.insert(path.clone());
                }
                // Its entries tell that they are below a directory that the sandbox removed.
                Before::Nothing if nonempty => return Ok(()),
                Before::Directory if nonempty => {
                    // Its entries are changes of their own; it goes when the last of them goes.
                    found.detail.implied.insert(path.clone(), EntryState::Absent);
                    found.detail.removed_directories.insert(path.clone());
                    return Ok(());
                }
                Before::Nothing | Before::Directory | Before::Other => {}
            }
        }
        if sandbox.is_absent() && directory(&project) && self.holds_hidden(path)? {
            // All that is left in it was never in the view, and stays.
            return Ok(());
        }
        if project.is_absent()
            && found.filled.contains(path.as_bytes())
            && let EntryState::Dir { mode } = sandbox
            && mode == self.ordinary(path, mode, &found.detail)?
        {
            // It comes with the first of its entries.
            found.detail.implied.insert(path.clone(), sandbox);
            return Ok(());
        }
        let (base, path) = (self.resolver.base(&question)?, path.clone());
        let mut entry = Entry { path, base, project, sandbox, level, standing: Standing::Clean };
        if entry.base.state.as_ref() == Some(&entry.sandbox) {
            self.unchanged(entry, found);
            return Ok(());
        }
        entry.standing = self.standing(&entry)?;
        found.put(entry);
        Ok(())
    }

    /// What stood where the project has a directory now and the sandbox has nothing. In a copy, and in a
    /// directory that the sandbox made anew, what came later is not seen either.
    fn stood_before(&self, question: &Question<'_>) -> Result<Before, DeriveError> {
        Ok(match self.resolver.base(question)?.state {
            None | Some(EntryState::Dir { .. }) => Before::Directory,
            Some(EntryState::Absent) => {
                // One that came with an approval is nobody's entry; what was approved in it tells.
                let path = question.path;
                let settled = self.contents.memory.settled.range(path..);
                let approved = settled
                    .take_while(|(below, _)| below.as_bytes().starts_with(path.as_bytes()))
                    .any(|(below, settled)| below.starts_with(path) && !settled.state.is_absent());
                if approved { Before::Directory } else { Before::Nothing }
            }
            Some(_) => Before::Other,
        })
    }

    /// Whether the sandbox has the directory that a path is in, or never had it.
    fn has_above(&self, path: &RelPath, found: &Found<'_>) -> bool {
        let above = path.parent().filter(|parent| !parent.is_root());
        above.is_none_or(|parent| {
            found.detail.directories.contains_key(&parent) || found.theirs.contains(&parent)
        })
    }

    /// The permission bits that a new directory may have without anybody being told: none that let
    /// everyone write or lock its owner out, and no special ones but what the directory above hands on.
    fn ordinary(&self, path: &RelPath, mode: u32, detail: &Detail) -> Result<u32, DeriveError> {
        let parent = path.parent().unwrap_or_default();
        let above = match detail.directories.get(&parent) {
            Some(mode) => *mode,
            None => match self.trees.project.meta(&parent) {
                Ok(stat) => stat.map_or(0, |stat| stat.mode),
                Err(source) => return Err(DeriveError::read("project", &parent, source)),
            },
        };
        Ok(ordinary_directory(mode) | (mode & above & 0o2000))
    }

    /// The sandbox has what the base had, and the project has something else.
    fn unchanged(&self, mut entry: Entry, found: &mut Found<'_>) {
        let directories = &found.detail.directories;
        let parent_gone = entry
            .path
            .parent()
            .filter(|parent| !parent.is_root() && !directories.contains_key(parent))
            .is_some_and(|parent| !found.theirs.contains(&parent));
        // That it went was approved: what stands there now is new, and the user's alone.
        let settled = |parent: RelPath| {
            let settled = self.contents.memory.settled.get(&parent);
            settled.is_some_and(|settled| settled.state.is_absent())
        };
        let parent_gone = parent_gone && !entry.path.ancestors().any(settled);
        if parent_gone && !entry.project.is_absent() {
            entry.standing = Standing::Conflict(
                "added in the project, inside a directory that the sandbox removed".to_owned(),
            );
            found.put(entry);
        } else {
            found.put_stale(entry);
        }
    }

    fn hidden(&self, subject: Subject<'_>, found: &mut Found<'_>) -> Result<(), DeriveError> {
        let Subject { path, state, level, .. } = subject;
        if state.is_absent() {
            return Ok(());
        }
        let standing = match self.trees.project.meta(path) {
            Ok(None) => Standing::Clean,
            Ok(Some(_)) => Standing::Conflict(HIDDEN.to_owned()),
            Err(source) if is_mounted_over(&source) => Standing::Conflict(MOUNTED_OVER.to_owned()),
            Err(source) => return Err(DeriveError::read("project", path, source)),
        };
        found.put(Entry { standing, ..Entry::new_in_sandbox(path.clone(), state, level) });
        Ok(())
    }

    /// Whether this is what a dependency layer shows anyway.
    fn is_dependency(&self, path: &RelPath, sandbox: &EntryState) -> Result<bool, DeriveError> {
        for layer in &self.trees.dependencies {
            let state = layer
                .state(path)
                .map_err(|source| DeriveError::read("dependency layer", path, source))?;
            if !state.is_absent() {
                return Ok(state == *sandbox);
            }
        }
        Ok(false)
    }

    fn standing(&self, entry: &Entry) -> Result<Standing, DeriveError> {
        if matches!(entry.sandbox, EntryState::Special { .. }) {
            return Ok(Standing::Clean);
        }
        let conflict = |reason: &str| Ok(Standing::Conflict(reason.to_owned()));
        let Some(base) = &entry.base.state else {
            return conflict(if entry.project.is_absent() {
                "removed from the project, or never there: it cannot be told"
            } else {
                "changed in the project since the sandbox was created, and its earlier content is \
                 not known"
            });
        };
        let replaced_directory = matches!(entry.project, EntryState::Dir { .. })
            && !matches!(entry.sandbox, EntryState::Dir { .. });
        if replaced_directory && self.holds_hidden(&entry.path)? {
            return conflict("the directory holds paths that are hidden from the sandbox");
        }
        if *base == entry.project {
            return Ok(Standing::Clean);
        }
        match (base, &entry.project, &entry.sandbox) {
            (EntryState::Absent, _, _) => conflict("added in the project too, with other content"),
            (_, EntryState::Absent, _) => {
                conflict("removed from the project, changed in the sandbox")
            }
            (_, _, EntryState::Absent) => {
                conflict("changed in the project, removed in the sandbox")
            }
            (EntryState::File { .. }, EntryState::File { .. }, EntryState::File { .. }) => {
                self.merge_files(entry, base)
            }
            (
                EntryState::Dir { mode: base },
                EntryState::Dir { mode: ours },
                EntryState::Dir { mode: theirs },
            ) => Ok(merge_modes(*base, *ours, *theirs).map_or_else(mode_conflict, |mode| {
                Standing::Merges(MergeResult {
                    state: EntryState::Dir { mode },
                    bytes: MergedBytes::Project,
                })
            })),
            _ => conflict("changed in the project and in the sandbox, and not to the same"),
        }
    }

    fn holds_hidden(&self, path: &RelPath) -> Result<bool, DeriveError> {
        for hidden in self.spec.hidden.iter().filter(|hidden| hidden.starts_with(path)) {
            let found = self
                .trees
                .project
                .meta(hidden)
                .map_err(|source| DeriveError::read("project", hidden, source))?;
            if found.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn merge_files(&self, entry: &Entry, base: &EntryState) -> Result<Standing, DeriveError> {
        let (EntryState::File { hash: base_hash, mode: base_mode, .. }, Some(ours), Some(theirs)) =
            (base, file_parts(&entry.project), file_parts(&entry.sandbox))
        else {
            return Ok(Standing::Conflict("not a file on every side".to_owned()));
        };
        let Some(mode) = merge_modes(*base_mode, ours.2, theirs.2) else {
            return Ok(mode_conflict());
        };
        let merged = |hash, size, bytes| {
            Standing::Merges(MergeResult { state: EntryState::File { hash, size, mode }, bytes })
        };
        if ours.0 == *base_hash || ours.0 == theirs.0 {
            return Ok(merged(theirs.0, theirs.1, MergedBytes::Sandbox));
        }
        if theirs.0 == *base_hash {
            return Ok(merged(ours.0, ours.1, MergedBytes::Project));
        }
        let sides = (
            self.contents.base(entry)?,
            self.contents.project(&entry.path, &entry.project)?,
            self.contents.sandbox(entry)?,
        );
        let (Some(base), Some(ours), Some(theirs)) = sides else {
            let reason = "changed in the project too, and too large or not kept to be merged";
            return Ok(Standing::Conflict(reason.to_owned()));
        };
        Ok(match merge_text(&base, &ours, &theirs) {
            Merged::Clean(bytes) => {
                merged(ContentHash::of(&bytes), bytes.len() as u64, MergedBytes::New(bytes))
            }
            Merged::Conflict => Standing::Collides(
                "the same lines changed in the project and in the sandbox".into(),
            ),
        })
    }
}

fn mode_conflict() -> Standing {
    Standing::Conflict("both sides changed the permission bits, to different ones".to_owned())
}

fn file_parts(state: &EntryState) -> Option<(ContentHash, u64, u32)> {
    match state {
        EntryState::File { hash, size, mode } => Some((*hash, *size, *mode)),
        _ => None,
    }
}

/// The nearest permission bits that are nothing to look at in a new directory.
pub(crate) fn ordinary_directory(mode: u32) -> u32 {
    (mode & 0o775) | 0o700
}

/// Directories that hold something that can be applied.
fn filled_directories(union: &Union) -> HashSet<&[u8]> {
    let mut filled = HashSet::new();
    let mut last: Option<&[u8]> = None;
    for (path, _) in union.iter().filter(|(_, seen)| seen.lands()) {
        let parent = path.parent_bytes();
        // Paths are sorted: those of one directory come in a row.
        if last != Some(parent) {
            filled.insert(parent);
            last = Some(parent);
        }
    }
    filled
}
