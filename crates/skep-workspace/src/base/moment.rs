//! From when on the sandbox takes what it takes from the project as it is by then.
//!
//! A file that the sandbox has not touched is seen by those inside as the user last left it, and a copy that they
//! make of it comes from there. At create nobody is inside, so the proof asks whether the project was
//! touched since. After a rebase with nobody inside the same holds anew: whoever comes later has seen
//! nothing older. So that moment is noted, and what comes into the sandbox later is proven against it, and not
//! against the creation; an edit that the user made in between is in the base.
//!
//! What was in the sandbox already came from before: its path, and whatever lies below where the project does not
//! show through, is *held* and stays with the creation. So do notes about whole directories: each
//! speaks of the time that it was proven against, its *era*, and of paths of that era only.
//!
//! Somebody inside who goes on over the rebase may have read a file before the user edited it, and write what it
//! knew afterwards. Against the moment that would be a change that takes the user's lines away. So
//! there is no moment then, and such a copy has an unknown base, as before.

use super::capture::{Insiders, capture};
use super::memory::{Capture, Durability, Memory, Record};
use super::stay::Stay;
use super::{Proof, now};
use crate::error::DeriveError;
use crate::held::{Held, Kept};
use crate::markers::Markers;
use crate::spec::{Trees, WorkspaceSpec};
use crate::union::{self, Union};
use serde::{Deserialize, Serialize};
use skep_types::{Instant, RelPath, WorkspaceDriver};
use std::collections::{BTreeSet, HashMap};

/// More paths than this are not listed: then the base stays where it was.
const MOST_PATHS: usize = 100_000;

/// What a note was proven against: the creation, or the moment with this time.
pub(crate) type Era = Option<i64>;

/// Directories that were there, by device and inode.
pub(crate) type Anchors = HashMap<RelPath, (u64, u64)>;

/// A moment at which nobody was inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moment {
    wall_ns: i64,
    boot_ns: i64,
    boot_id: String,
    /// Paths that were in the sandbox, and through which the project shows.
    held: BTreeSet<RelPath>,
    /// Those at which, and below which, it does not.
    cuts: BTreeSet<RelPath>,
}

impl Moment {
    fn instant(&self) -> Instant {
        let (wall_ns, boot_ns) = (i128::from(self.wall_ns), i128::from(self.boot_ns));
        Instant { wall_ns, boot_ns, boot_id: self.boot_id.clone() }
    }

    pub(crate) fn era(&self) -> Era {
        Some(self.wall_ns)
    }

    /// Whether a path was in the sandbox then, as far as the project does not show through there.
    pub(crate) fn cuts(&self, path: &RelPath) -> bool {
        self.cuts.contains(path) || path.ancestors().any(|above| self.cuts.contains(&above))
    }

    /// Whether a path was in the sandbox then.
    pub(crate) fn holds(&self, path: &RelPath) -> bool {
        self.held.contains(path) || self.cuts(path)
    }
}

/// The era of a path: what came before the last moment is of the creation's.
pub(crate) fn era_of(moment: Option<&Moment>, path: &RelPath) -> Era {
    moment.filter(|moment| !moment.holds(path)).and_then(Moment::era)
}

/// The proof for each path.
pub(crate) struct Proofs<'a> {
    create: Proof<'a>,
    since: Option<(&'a Moment, Proof<'a>)>,
}

impl<'a> Proofs<'a> {
    pub(crate) fn new(
        project: &'a Held<'a>,
        created: &Instant,
        moment: Option<&'a Moment>,
        anchors: &HashMap<Era, Anchors>,
    ) -> Self {
        let proof = |instant: &Instant, era: Era| {
            Proof::new(project, instant, anchors.get(&era).cloned().unwrap_or_default())
        };
        Self {
            create: proof(created, None),
            since: moment.map(|moment| (moment, proof(&moment.instant(), moment.era()))),
        }
    }

    pub(crate) fn of(&self, path: &RelPath) -> &Proof<'a> {
        match &self.since {
            Some((moment, proof)) if !moment.holds(path) => proof,
            _ => &self.create,
        }
    }

    /// The one for what comes from now on.
    pub(crate) fn latest(&self) -> &Proof<'a> {
        self.since.as_ref().map_or(&self.create, |(_, proof)| proof)
    }

    pub(crate) fn look_again(&self) {
        self.create.look_again();
        if let Some((_, proof)) = &self.since {
            proof.look_again();
        }
    }
}

/// A moment that is still to be noted.
#[derive(Debug)]
pub struct NewMoment {
    records: Vec<Record>,
}

impl NewMoment {
    /// Notes it. In between nobody was inside, and whoever comes sees the project as it was at that moment or
    /// later.
    pub fn note(self, spec: &WorkspaceSpec) -> Result<(), DeriveError> {
        Memory::load(&spec.memory)?.append(self.records, Durability::Power)
    }
}

/// Takes a moment, at which nobody may write into the sandbox. The base of everything that is in it is captured
/// before, as far as it is proven; at most `most` bytes. `insiders` is what is known by now: it may turn out later that
/// somebody is inside, and then the moment is none. Nothing, where there is nothing to gain: in a copy
/// the project does not show through.
pub fn moment(
    spec: &WorkspaceSpec,
    most: Option<u64>,
    insiders: Insiders,
) -> Result<Option<NewMoment>, DeriveError> {
    if spec.driver == WorkspaceDriver::Copy {
        return Ok(None);
    }
    capture(spec, most, insiders)?;
    let (trees, kept) = (Trees::open(spec)?, Kept::default());
    let union = union::read(&trees.held(&kept).levels, Markers::of(spec.driver))?;
    let memory = Memory::load(&spec.memory)?;
    let (mut held, cuts) = inside(&union);
    // What was approved stays as it was settled.
    held.extend(memory.settled.keys().filter(|path| !union.covers(path)).cloned());
    let mut records = written_out(&memory, &union);
    records.extend(left(&memory, &union));
    if held.len() + cuts.len() + records.len() > MOST_PATHS {
        return Ok(None);
    }
    let Instant { wall_ns, boot_ns, boot_id } = now().map_err(|source| DeriveError::Memory {
        operation: "take a moment for",
        path: spec.memory.clone(),
        source,
    })?;
    let (Ok(wall_ns), Ok(boot_ns)) = (wall_ns.try_into(), boot_ns.try_into()) else {
        return Ok(None);
    };
    let moment = Moment { wall_ns, boot_ns, boot_id, held, cuts };
    records.push(Record::Moment { moment: Some(Box::new(moment)) });
    Ok(Some(NewMoment { records }))
}

/// What is in the sandbox: where the project shows through, and where it does not.
fn inside(union: &Union) -> (BTreeSet<RelPath>, BTreeSet<RelPath>) {
    let (mut held, mut cuts) = (BTreeSet::new(), BTreeSet::new());
    for (path, seen) in union.iter() {
        // A directory comes before what is in it.
        if path.ancestors().any(|above| cuts.contains(&above)) {
            continue;
        }
        let list = if seen.cuts() { &mut cuts } else { &mut held };
        list.insert(path.clone());
    }
    (held, cuts)
}

/// What only a list of a directory tells, of a moment before: that list is not asked any more.
fn written_out(memory: &Memory, union: &Union) -> Vec<Record> {
    if memory.moment.is_none() {
        return Vec::new();
    }
    let unwritten = union.iter().map(|(path, _)| path).filter(|path| {
        memory.era_of(path).is_some()
            && !memory.captures.contains_key(*path)
            && !memory.settled.contains_key(*path)
            && memory.is_unlisted(path)
    });
    let nothing =
        |path: &RelPath| Record::Capture { path: path.clone(), capture: Capture::of_nothing() };
    unwritten.map(nothing).collect()
}

/// What was captured and is not in the sandbox any more: made and removed again, for instance. The project
/// shows through there.
fn left(memory: &Memory, union: &Union) -> Vec<Record> {
    let gone = memory.captures.keys().filter(|path| {
        !union.covers(path)
            && !memory.settled.contains_key(*path)
            && memory.stays.get(*path) != Some(&Stay::Left)
    });
    gone.map(|path| Record::Stay { path: path.clone(), stay: Stay::Left }).collect()
}
