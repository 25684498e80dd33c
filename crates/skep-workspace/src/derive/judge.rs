//! Judges each path: base, project and sandbox side by side.

use super::content::Contents;
use super::spelling::Spelling;
use super::{Detail, kind_between};
use crate::base::{Base, BaseBytes, Question, Resolver};
use crate::error::{DeriveError, is_mounted_over};
use crate::merge::{Merged, merge_text};
use crate::spec::{Trees, WorkspaceSpec};
use crate::union::{Seen, Union};
use skep_types::{ChangeKind, ContentHash, EntryState, RelPath, WorkspaceDriver};
use std::collections::{BTreeSet, HashSet};

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
    /// What the change starts from: the base, or what stands there when the base is not known.
    pub(crate) fn old(&self) -> EntryState {
        self.base.state.clone().unwrap_or_else(|| self.project.clone())
    }

    /// What happened, if the sandbox changed anything.
    pub(crate) fn kind(&self) -> Option<ChangeKind> {
        kind_between(&self.old(), &self.sandbox)
    }
}

/// What is looked at, and with what.
pub(crate) struct Judge<'a> {
    pub spec: &'a WorkspaceSpec,
    pub trees: &'a Trees,
    pub resolver: &'a Resolver<'a>,
    pub contents: &'a Contents<'a>,
    pub spelling: Spelling<'a>,
}

/// One path with the sandbox's side read.
struct Subject {
    path: RelPath,
    state: EntryState,
    level: Option<usize>,
}

/// The sandbox worked on what lies under a filesystem that is mounted in the project.
const MOUNTED_OVER: &str = "another filesystem is mounted there in the project, and is not crossed";

/// The sandbox wrote where it was shown nothing.
const HIDDEN: &str = "the project has something here that is hidden from the sandbox";

/// See [`Spelling`].
const FOLDED: &str = "the project's filesystem takes this name for another one that is there";

impl Subject {
    /// The project has nothing of this name and can take nothing.
    fn cannot_land(self, reason: &str, detail: &mut Detail) {
        let entry = Entry {
            path: self.path.clone(),
            base: Base { state: Some(EntryState::Absent), bytes: BaseBytes::Blob, partial: None },
            project: EntryState::Absent,
            sandbox: self.state,
            level: self.level,
            standing: Standing::Conflict(reason.to_owned()),
        };
        detail.entries.insert(self.path, entry);
    }
}

/// What the view hides of the project below the paths it replaced.
#[derive(Default)]
struct Lower {
    paths: Vec<RelPath>,
    /// Directories of the project with at least one entry that is not hidden.
    nonempty: HashSet<RelPath>,
}

impl Judge<'_> {
    /// Judges every path of the union, and what of the project lies below replaced directories.
    pub(crate) fn all(&self, union: &Union) -> Result<Detail, DeriveError> {
        let mut subjects = Vec::new();
        let mut lower = Lower::default();
        if self.spec.driver == WorkspaceDriver::Copy {
            self.lower(union, &RelPath::root(), &mut lower)?;
        }
        let mut detail = Detail::default();
        for (path, seen) in union {
            let subject = self.subject(path, *seen)?;
            if let EntryState::Dir { mode } = subject.state {
                detail.directories.insert(path.clone(), mode);
            }
            subjects.push(subject);
            if seen.cuts() && !self.spec.is_hidden(path) {
                self.lower(union, path, &mut lower)?;
            }
        }
        let filled = filled_directories(&subjects);
        for path in std::mem::take(&mut lower.paths) {
            subjects.push(Subject { path, state: EntryState::Absent, level: None });
        }
        let mut removed = BTreeSet::new();
        for subject in subjects {
            self.one(subject, &filled, &lower, &mut detail, &mut removed)?;
        }
        detail.removed_directories = removed;
        Ok(detail)
    }

    fn subject(&self, path: &RelPath, seen: Seen) -> Result<Subject, DeriveError> {
        let (level, state) = match seen {
            Seen::Gone => (None, EntryState::Absent),
            Seen::TooDeep => (None, EntryState::Special { what: skep_types::SpecialKind::TooDeep }),
            Seen::Leaf { level } | Seen::Dir { level, .. } => {
                let state = self.trees.levels[level]
                    .state(path)
                    .map_err(|source| DeriveError::read("sandbox", path, source))?;
                (Some(level), state)
            }
        };
        Ok(Subject { path: path.clone(), state, level })
    }

    /// Collects what the project has below `top` and the union does not speak of.
    fn lower(&self, union: &Union, top: &RelPath, lower: &mut Lower) -> Result<(), DeriveError> {
        let error = |path: &RelPath, source| DeriveError::read("project", path, source);
        match self.trees.project.stat(top) {
            Err(source) if is_mounted_over(&source) => return Ok(()),
            other => match other.map_err(|source| error(top, source))? {
                Some(stat) if crate::base::is_dir(&stat) => {}
                _ => return Ok(()),
            },
        }
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
                lower.nonempty.insert(directory.clone());
                if union.contains_key(&path) {
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

    fn one(
        &self,
        subject: Subject,
        filled: &HashSet<RelPath>,
        lower: &Lower,
        detail: &mut Detail,
        removed: &mut BTreeSet<RelPath>,
    ) -> Result<(), DeriveError> {
        if self.spec.is_hidden(&subject.path) {
            return self.hidden(subject.path, subject.state, subject.level, detail);
        }
        let error = |source| DeriveError::read("project", &subject.path, source);
        let lands = !subject.state.is_absent() && !filled.contains(&subject.path);
        let (project, stat) = match self.trees.project.state_and_stat(&subject.path) {
            Err(source) if is_mounted_over(&source) => {
                if lands {
                    subject.cannot_land(MOUNTED_OVER, detail);
                }
                return Ok(());
            }
            other => other.map_err(error)?,
        };
        if !self.spelling.is_exact(&subject.path).map_err(error)? {
            if lands {
                subject.cannot_land(FOLDED, detail);
            }
            return Ok(());
        }
        let Subject { path, state: sandbox, level } = subject;
        if sandbox == project || self.is_dependency(&path, &sandbox)? {
            return Ok(());
        }
        let directory = |state: &EntryState| matches!(state, EntryState::Dir { .. });
        if sandbox.is_absent() && directory(&project) && lower.nonempty.contains(&path) {
            // Its entries are changes of their own; it goes when the last of them goes.
            detail.implied.insert(path.clone(), EntryState::Absent);
            removed.insert(path);
            return Ok(());
        }
        if sandbox.is_absent() && directory(&project) && self.holds_hidden(&path)? {
            // All that is left in it was never in the view, and stays.
            return Ok(());
        }
        if project.is_absent()
            && filled.contains(&path)
            && let EntryState::Dir { mode } = sandbox
            && mode == self.ordinary(&path, mode, detail)?
        {
            // It comes with the first of its entries.
            detail.implied.insert(path, sandbox);
            return Ok(());
        }
        let made_ns = if project.is_absent() { self.made(&path, level)? } else { None };
        let question = Question {
            path: &path,
            project: &project,
            stat: stat.as_ref(),
            made_ns,
            removed: sandbox.is_absent(),
        };
        let base = self.resolver.base(&question)?;
        let mut entry = Entry { path, base, project, sandbox, level, standing: Standing::Clean };
        if entry.base.state.as_ref() == Some(&entry.sandbox) {
            Self::unchanged(entry, detail);
            return Ok(());
        }
        entry.standing = self.standing(&entry)?;
        detail.entries.insert(entry.path.clone(), entry);
        Ok(())
    }

    /// The permission bits that a new directory may have without anybody being told: none that let
    /// everyone write or lock its owner out, and no special ones but what the directory above hands on.
    fn ordinary(&self, path: &RelPath, mode: u32, detail: &Detail) -> Result<u32, DeriveError> {
        let parent = path.parent().unwrap_or_default();
        let above = match detail.directories.get(&parent) {
            Some(mode) => *mode,
            None => match self.trees.project.stat(&parent) {
                Ok(stat) => stat.map_or(0, |stat| stat.st_mode),
                Err(source) => return Err(DeriveError::read("project", &parent, source)),
            },
        };
        Ok(ordinary_directory(mode) | (mode & above & 0o2000))
    }

    /// The sandbox has what the base had, and the project has something else.
    fn unchanged(mut entry: Entry, detail: &mut Detail) {
        let parent_gone = entry
            .path
            .parent()
            .is_some_and(|parent| !parent.is_root() && !detail.directories.contains_key(&parent));
        if parent_gone && !entry.project.is_absent() {
            entry.standing = Standing::Conflict(
                "added in the project, inside a directory that the sandbox removed".to_owned(),
            );
            detail.entries.insert(entry.path.clone(), entry);
        } else {
            detail.stale.insert(entry.path.clone(), entry);
        }
    }

    fn hidden(
        &self,
        path: RelPath,
        sandbox: EntryState,
        level: Option<usize>,
        detail: &mut Detail,
    ) -> Result<(), DeriveError> {
        if sandbox.is_absent() {
            return Ok(());
        }
        let standing = match self.trees.project.stat(&path) {
            Ok(None) => Standing::Clean,
            Ok(Some(_)) => Standing::Conflict(HIDDEN.to_owned()),
            Err(source) if is_mounted_over(&source) => Standing::Conflict(MOUNTED_OVER.to_owned()),
            Err(source) => return Err(DeriveError::read("project", &path, source)),
        };
        let base = Base { state: Some(EntryState::Absent), bytes: BaseBytes::Blob, partial: None };
        let project = EntryState::Absent;
        let entry = Entry { path: path.clone(), base, project, sandbox, level, standing };
        detail.entries.insert(path, entry);
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

    fn made(&self, path: &RelPath, level: Option<usize>) -> Result<Option<i128>, DeriveError> {
        let Some(level) = level else { return Ok(None) };
        self.trees.made_ns(level, path)
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
                .stat(hidden)
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
            Merged::Conflict => Standing::Conflict(
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

/// Three-way merge of permission bits.
pub(crate) fn merge_modes(base: u32, ours: u32, theirs: u32) -> Option<u32> {
    match () {
        () if ours == theirs || theirs == base => Some(ours),
        () if ours == base => Some(theirs),
        () => None,
    }
}

/// Directories that hold something that can be applied.
fn filled_directories(subjects: &[Subject]) -> HashSet<RelPath> {
    subjects
        .iter()
        .filter(|subject| !matches!(subject.state, EntryState::Absent | EntryState::Special { .. }))
        .filter_map(|subject| subject.path.parent())
        .collect()
}
