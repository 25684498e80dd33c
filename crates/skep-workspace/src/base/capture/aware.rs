//! The end of what is late: nobody is inside any more who may not know what the user wrote there, and the sandbox has it
//! still. Who takes it away after that, does so.

use super::CAPTURE_BYTES;
use crate::base::memory::{Memory, Record};
use crate::base::moment::Proofs;
use crate::base::{Content, Question, Resolver};
use crate::error::DeriveError;
use crate::git::Repository;
use crate::markers::Markers;
use crate::spec::{HeldTrees, WorkspaceSpec};
use crate::union::{self, Seen, Union};
use skep_types::RelPath;
use std::collections::HashSet;

/// Which of these paths the sandbox has with everything that was late. The others stay as they are: somebody wrote over
/// them who may not have known it.
pub(super) fn aware(
    spec: &WorkspaceSpec,
    trees: &HeldTrees<'_>,
    late: &HashSet<&RelPath>,
) -> Result<Vec<Record>, DeriveError> {
    if late.is_empty() {
        return Ok(Vec::new());
    }
    let union = union::read(&trees.levels, Markers::of(spec.driver))?;
    let memory = Memory::load(&spec.memory)?;
    let (created, moment) = (&spec.base.instant, memory.moment.as_deref());
    let proofs = Proofs::new(&trees.project, created, moment, &memory.anchors);
    let git = Repository::new(&spec.project, spec.base.commit.as_deref());
    let resolver = Resolver::new(proofs, &memory, &git, &spec.memory);
    let mut records = Vec::new();
    for path in late {
        // Of what is shut, or below a mount, it is not known; the others are none the worse for it.
        let known = has_it(trees, &union, &resolver, path).unwrap_or(false);
        records.extend(known.then(|| Record::Aware { path: (*path).clone() }));
    }
    Ok(records)
}

fn has_it(
    trees: &HeldTrees<'_>,
    union: &Union,
    resolver: &Resolver<'_>,
    path: &RelPath,
) -> Result<bool, DeriveError> {
    let Some(Seen::Leaf { level, special: false }) = union.get(path) else { return Ok(false) };
    let inside = |source| DeriveError::read("sandbox", path, source);
    let sandbox = trees.levels[level].root();
    let state = sandbox.state(path).map_err(inside)?;
    let bytes = || Ok(sandbox.read(path, CAPTURE_BYTES).ok());
    let found = trees.project.state_and_meta(path);
    let (project, stat) = found.map_err(|source| DeriveError::read("project", path, source))?;
    let question = Question {
        path,
        project: &project,
        stat: stat.as_ref(),
        made_ns: None,
        removed: false,
        whiteout: false,
        inside: Content { state: &state, bytes: &bytes },
        project_bytes: &|| Ok(None),
    };
    resolver.is_all_there(&question)
}
