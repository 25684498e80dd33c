//! What stood in the project's directories at create, by name, noted while the project still proved it.
//!
//! Where the user has removed something from a directory, nothing in it tells any more what was there. A file
//! that the sandbox has at such a place may be a new one, or one that somebody inside had read before, and
//! wrote after the user removed it: a mounted overlay even shows removed files for a while. To take it for
//! new would bring back what the user removed.
//!
//! So the keeper of a sandbox in which something was done goes through the directories some time after, a few
//! at a time and the upper ones first, and notes the names in those that are as they were at create. It is an
//! aid: of what is not noted, the times of directories have to tell, as far as they can.
//!
//! The list is a file of its own, `names`, put in place whole. It is read only where something new stands where
//! the user did something, too.

use super::Proof;
use super::memory::{make_private, memory_error};
use super::tracked::Pass;
use crate::error::DeriveError;
use crate::held::Held;
use crate::spec::WorkspaceSpec;
use crate::tree::TreeRoot;
use rustix::fs::FileType;
use skep_types::{RelPath, WorkspaceDriver};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

const LIST: &str = "names";
/// More are not noted: the note is an aid, and must not cost as much as the project is large.
const MOST_NAMES: usize = 200_000;
/// Digits of the checksum at the end.
const SUM_DIGITS: usize = 2 * blake3::OUT_LEN;

/// A pass over the directories that can be made in small steps.
pub struct NamesPass {
    waiting: VecDeque<RelPath>,
    left: usize,
    list: BufWriter<File>,
    sum: blake3::Hasher,
    target: PathBuf,
}

impl NamesPass {
    /// Begins a pass; `None` where there is nothing to gain: a copy has everything, or a list is there already.
    pub fn begin(spec: &WorkspaceSpec) -> Option<Self> {
        let target = spec.memory.join(LIST);
        if spec.driver == WorkspaceDriver::Copy || target.exists() {
            return None;
        }
        make_private(&spec.memory).ok()?;
        let list = BufWriter::new(File::create(unfinished(&target)).ok()?);
        let (waiting, sum) = (VecDeque::from([RelPath::root()]), blake3::Hasher::new());
        Some(Self { waiting, left: MOST_NAMES, list, sum, target })
    }

    /// Looks at some more directories; with the last of them the list is put in place.
    pub fn step(&mut self, spec: &WorkspaceSpec, count: usize) -> Result<Pass, DeriveError> {
        let project = TreeRoot::open(&spec.project)
            .map_err(|error| DeriveError::read("project", &RelPath::root(), error))?;
        let held = Held::new(&project);
        let proof = Proof::new(&held, &spec.base.instant, HashMap::new());
        let target = self.target.clone();
        let written = |source| memory_error("write", &target, source);
        for _ in 0..count {
            let Some(directory) = self.waiting.pop_front() else {
                return self.finish().map_err(written).map(|()| Pass::Done);
            };
            // What cannot be listed, or is too large, is not noted.
            let Ok(Some(names)) = project.list_some(&directory, self.left) else { continue };
            // Listed first and proven afterwards, so that what came or went meanwhile is noticed.
            proof.look_again();
            if !proof.untouched_directory(&directory)? {
                continue;
            }
            self.left -= names.len();
            for (name, kind) in &names {
                let enters = *kind == FileType::Directory && name != b".git";
                let inside = directory.join(name).ok().filter(|_| enters);
                self.waiting.extend(inside.filter(|path| !spec.is_hidden(path)));
            }
            let names = names.iter().map(|(name, _)| &name[..]);
            let parts = [directory.as_bytes()].into_iter().chain(names);
            let lines: Vec<u8> = parts.flat_map(|part| [part, b"\0"].concat()).chain([0]).collect();
            self.sum.update(&lines);
            self.list.write_all(&lines).map_err(written)?;
        }
        Ok(Pass::Unfinished)
    }

    /// Lost with the machine it is missed, not believed.
    fn finish(&mut self) -> io::Result<()> {
        self.list.write_all(self.sum.finalize().to_hex().as_bytes())?;
        self.list.flush()?;
        std::fs::rename(unfinished(&self.target), &self.target)
    }
}

fn unfinished(target: &Path) -> PathBuf {
    target.with_extension("new")
}

/// Everything that is noted, if there is a list and it is whole.
pub(super) fn load(memory: &Path) -> HashSet<RelPath> {
    std::fs::read(memory.join(LIST)).ok().and_then(|bytes| parse(&bytes)).unwrap_or_default()
}

fn parse(bytes: &[u8]) -> Option<HashSet<RelPath>> {
    let (lines, sum) = bytes.split_at_checked(bytes.len().checked_sub(SUM_DIGITS)?)?;
    if blake3::hash(lines).to_hex().as_bytes() != sum {
        return None;
    }
    let mut paths = HashSet::new();
    let mut parts = lines.split(|byte| *byte == 0);
    while let Some(directory) = parts.next() {
        let Ok(directory) = RelPath::parse(directory) else { break };
        let names = parts.by_ref().take_while(|name| !name.is_empty());
        paths.extend(names.filter_map(|name| directory.join(name).ok()));
    }
    Some(paths)
}
