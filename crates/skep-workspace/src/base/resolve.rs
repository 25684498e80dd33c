//! The base of one path, from what is settled, proven, captured or noted as clean.

use super::Identity;
use super::late::{Content, Late, all_in, all_kept};
use super::memory::{Memory, Partial};
use super::moment::Proofs;
use super::noted::Noted;
use super::stay::{Sight, Stay};
use crate::error::DeriveError;
use crate::git::Repository;
use crate::tree::Meta;
use skep_types::{ContentHash, EntryState, RelPath};
use std::path::Path;

/// Where the base's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BaseBytes {
    /// In the project, as they stand.
    Project,
    /// Kept under their hash, if they were small enough.
    Blob,
}

/// The base of one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    /// `None` when it cannot be told.
    pub state: Option<EntryState>,
    pub bytes: BaseBytes,
    pub partial: Option<Partial>,
    /// What somebody inside may not know of it.
    pub late: Vec<Late>,
}

impl Base {
    pub(crate) fn known(state: EntryState, bytes: BaseBytes) -> Self {
        Self { state: Some(state), bytes, partial: None, late: Vec::new() }
    }

    fn unknown() -> Self {
        Self { state: None, bytes: BaseBytes::Blob, partial: None, late: Vec::new() }
    }
}

/// A path of the project as it stands, and what the sandbox knows of its own side.
pub(crate) struct Question<'a> {
    pub path: &'a RelPath,
    pub project: &'a EntryState,
    pub stat: Option<&'a Meta>,
    /// When the sandbox's entry was made.
    pub made_ns: Option<i128>,
    /// Whether the sandbox removed it.
    pub removed: bool,
    /// Itself, and not something above it.
    pub whiteout: bool,
    pub inside: Content<'a>,
    pub project_bytes: &'a dyn Fn() -> Result<Option<Vec<u8>>, DeriveError>,
}

impl Question<'_> {
    /// Where nothing stood: to remove what stands there now is not to leave it as it was. It came, and was seen
    /// inside.
    fn removes_what_came(&self) -> bool {
        self.whiteout && !self.project.is_absent()
    }

    /// A base that may be what stands there.
    fn known(&self, state: EntryState) -> Base {
        let standing = state == *self.project;
        let bytes = if standing { BaseBytes::Project } else { BaseBytes::Blob };
        Base::known(state, bytes)
    }
}

/// Knows the base; see the module's text.
pub(crate) struct Resolver<'a> {
    proofs: Proofs<'a>,
    pub memory: &'a Memory,
    git: &'a Repository,
    lists: Noted<'a>,
}

impl<'a> Resolver<'a> {
    /// With what is remembered in `directory`, and the project's repository for what git had clean.
    pub(crate) fn new(
        proofs: Proofs<'a>,
        memory: &'a Memory,
        git: &'a Repository,
        directory: &'a Path,
    ) -> Self {
        Self { proofs, memory, git, lists: Noted::of(directory) }
    }

    /// The base. Where somebody inside may not know all of it, and the sandbox lacks something of that which the user has, it is
    /// not known: whoever it was may have written what it knew.
    pub(crate) fn base(&self, question: &Question<'_>) -> Result<Base, DeriveError> {
        let base = self.as_remembered(question)?;
        let project = Content { state: question.project, bytes: question.project_bytes };
        let unchanged = base.state.as_ref() == Some(question.inside.state);
        let kept = unchanged || all_kept(&base.late, self.memory, &question.inside, &project)?;
        Ok(if kept { base } else { Base::unknown() })
    }

    /// Whether the base is known, and nothing in it is missing that somebody inside may not know.
    pub(crate) fn is_all_there(&self, question: &Question<'_>) -> Result<bool, DeriveError> {
        let base = self.as_remembered(question)?;
        Ok(base.state.as_ref() == Some(question.inside.state)
            || base.state.is_some() && all_in(&base.late, self.memory, &question.inside)?)
    }

    fn as_remembered(&self, question: &Question<'_>) -> Result<Base, DeriveError> {
        let noted = self.noted(question)?;
        Ok(match self.memory.stays.get(question.path) {
            None | Some(Stay::Here) => noted,
            Some(Stay::Seen(sight)) => self.seen(sight, noted, question)?,
            // It came again, and nobody looked yet: what it came from is what stands there, or unknown.
            Some(Stay::Left) if noted.state.as_ref() == Some(question.project) => noted,
            Some(Stay::Left) => Base::unknown(),
        })
    }

    /// What a path came from of which both sides were seen then.
    fn seen(
        &self,
        sight: &Sight,
        noted: Base,
        question: &Question<'_>,
    ) -> Result<Base, DeriveError> {
        let Some(before) = &noted.state else {
            // Whatever stood there before: it came as the project was. Who may know that has to leave it so.
            let stood = sight.as_it_stood();
            let stood = stood.filter(|state| !sight.late || *state == question.inside.state);
            return Ok(stood.map_or_else(Base::unknown, |state| question.known(state.clone())));
        };
        let Some(state) = sight.base(self.memory, before)? else { return Ok(Base::unknown()) };
        let late = sight.owes(&noted.late, before, &state);
        if state == *before {
            return Ok(Base { late, ..noted });
        }
        Ok(Base { late, ..question.known(state) })
    }

    /// The base that is known of the path, from whatever time.
    fn noted(&self, question: &Question<'_>) -> Result<Base, DeriveError> {
        let base = self.own(question)?;
        let Some(state) = &base.state else { return Ok(self.clean(question)?.unwrap_or(base)) };
        // Known by its hash only, as everything in a copy is: the commit may have these very bytes.
        if let (EntryState::File { hash, size, .. }, BaseBytes::Blob) = (state, base.bytes)
            && !self.memory.has_blob(hash)
            && let Some(bytes) = self.git.committed(question.path, *size)
            && ContentHash::of(&bytes) == *hash
        {
            self.memory.keep_blob(&bytes)?;
        }
        Ok(base)
    }

    /// What git had clean at create: the blob that the index named then.
    fn clean(&self, question: &Question<'_>) -> Result<Option<Base>, DeriveError> {
        let Some(noted) = self.lists.clean(question.path) else { return Ok(None) };
        let Some(bytes) = self.git.blob(&noted.blob, noted.size) else { return Ok(None) };
        let state = match noted.link {
            true => EntryState::Symlink { target: bytes.into() },
            false => {
                let hash = ContentHash::of(&bytes);
                self.memory.keep_blob(&bytes)?;
                EntryState::File { hash, size: noted.size, mode: noted.mode }
            }
        };
        Ok(Some(question.known(state)))
    }

    fn own(&self, question: &Question<'_>) -> Result<Base, DeriveError> {
        let Question { path, project, stat, .. } = question;
        if let Some(settled) = self.memory.settled.get(path) {
            if settled.state.is_absent()
                && question.removes_what_came()
                && !self.memory.removed.contains(*path)
            {
                return Ok(Base::unknown());
            }
            let (partial, late) = (settled.partial.clone(), settled.late.clone());
            return Ok(Base { partial, late, ..question.known(settled.state.clone()) });
        }
        if let Some(stat) = stat
            && self.proofs.of(path).present(path, stat)?
        {
            // A write through a mapping whose page was dirty already moves no change time; what was
            // captured shows it.
            let capture = self.memory.captures.get(path).and_then(|capture| capture.state.as_ref());
            if let Some(state @ EntryState::File { hash, .. }) = capture
                && matches!(project, EntryState::File { hash: now, .. } if now != hash)
            {
                return Ok(Base::known(state.clone(), BaseBytes::Blob));
            }
            return Ok(Base::known((*project).clone(), BaseBytes::Project));
        }
        if let Some(base) = self.captured(question) {
            return Ok(base);
        }
        match stat {
            Some(_) => self.unproven_present(question),
            None => self.unproven_absent(question),
        }
    }

    fn captured(&self, question: &Question<'_>) -> Option<Base> {
        let Question { path, project, stat, .. } = question;
        let nothing_stood = match self.memory.captures.get(path) {
            Some(capture) => capture.identity.is_none(),
            None => self.memory.tells_nothing_stood(path),
        };
        if nothing_stood {
            let absent = || Base::known(EntryState::Absent, BaseBytes::Blob);
            return Some(if question.removes_what_came() { Base::unknown() } else { absent() });
        }
        let capture = self.memory.captures.get(path)?;
        let identity = capture.identity?;
        if stat.map(Identity::of) == Some(identity) {
            return Some(Base::known((*project).clone(), BaseBytes::Project));
        }
        Some(capture.state.clone().map_or_else(Base::unknown, |state| question.known(state)))
    }

    fn unproven_present(&self, question: &Question<'_>) -> Result<Base, DeriveError> {
        // An entry came or went in it since, but it is the same directory: taking an empty one
        // away loses nothing.
        let directory = matches!(question.project, EntryState::Dir { .. });
        if question.removed
            && directory
            && self.proofs.of(question.path).same_directory(question.path)?
        {
            return Ok(Base::known(question.project.clone(), BaseBytes::Project));
        }
        Ok(Base::unknown())
    }

    /// Nothing stands there now. Either nothing stood there at create, or nothing when the sandbox made its
    /// entry, and nothing is known to have stood there before; else the user may have removed what the sandbox
    /// started from: also before its entry was made, by somebody who had read it earlier.
    fn unproven_absent(&self, question: &Question<'_>) -> Result<Base, DeriveError> {
        let Question { path, made_ns, .. } = question;
        let proof = self.proofs.of(path);
        let absent = proof.absent(path)?
            || proof.absent_before(path, *made_ns)? && !self.lists.tell_of(path, self.git);
        Ok(if absent { Base::known(EntryState::Absent, BaseBytes::Blob) } else { Base::unknown() })
    }
}
