//! What stood in the project's directories soon after create, by name.
//!
//! Where the user has removed something from a directory, nothing in it tells any more what was there. A file
//! that the sandbox has at such a place may be a new one, or one that somebody inside had read before, and
//! wrote after the user removed it: a mounted overlay even shows removed files for a while. To take it for
//! new would bring back what the user removed.
//!
//! So the keeper of a sandbox in which something was done goes through the directories some time after, a few
//! at a time and the upper ones first, and notes their names. Whether each was there at create is not asked: who was
//! inside when it was removed may have read it in any case. It is an aid: of what is not noted, the times of
//! directories have to tell, as far as they can. What is *not* in the list tells nothing: the user may have made
//! it since.
//!
//! The list is a file of its own, `names`, put in place whole. It is read only where something new stands where
//! the user did something, too.

use super::memory::{make_private, memory_error};
use super::tracked::Pass;
use crate::error::DeriveError;
use crate::spec::WorkspaceSpec;
use crate::tree::TreeRoot;
use rustix::fs::FileType;
use skep_types::{RelPath, WorkspaceDriver};
use std::collections::{HashSet, VecDeque};
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
        let target = self.target.clone();
        let written = |source| memory_error("write", &target, source);
        for _ in 0..count {
            let Some(directory) = self.waiting.pop_front() else {
                return self.finish().map_err(written).map(|()| Pass::Done);
            };
            // What cannot be listed, or is too large, is not noted.
            let Ok(Some(names)) = project.list_some(&directory, self.left) else { continue };
            let mut found = Vec::new();
            for (name, kind) in names {
                let Ok(path) = directory.join(&name) else { continue };
                let enters = kind == FileType::Directory && name != b".git";
                self.waiting
                    .extend(Some(path.clone()).filter(|_| enters && !spec.is_hidden(&path)));
                found.push(name);
            }
            self.left -= found.len();
            let parts =
                [directory.as_bytes()].into_iter().chain(found.iter().map(|name| &name[..]));
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

/// Everything that is noted; nothing, if there is no list or it is not whole.
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

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::Base;
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    fn path(name: &str) -> RelPath {
        RelPath::parse(name.as_bytes()).unwrap()
    }

    /// A project, of which `touch` is done after create, and what is noted of it then.
    fn noted(touch: impl Fn(&Path)) -> (tempfile::TempDir, WorkspaceSpec) {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        for directory in ["project/calm/sub", "project/touched/sub", "project/.git", "upper"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        for file in ["calm/f", "calm/sub/f", "touched/f", "touched/sub/f", "touched/gone", ".git/f"]
        {
            fs::write(at("project").join(file), "x").unwrap();
        }
        let instant = super::super::now().unwrap();
        let found = fs::metadata(at("project")).unwrap();
        let spec = WorkspaceSpec {
            project: at("project"),
            base: Base { instant, device: found.dev(), inode: found.ino(), commit: None },
            driver: WorkspaceDriver::OverlayUserns,
            upper: at("upper"),
            layers: Vec::new(),
            dependency_layers: Vec::new(),
            hidden: Vec::new(),
            memory: at("memory"),
        };
        touch(&at("project"));
        let mut pass = NamesPass::begin(&spec).unwrap();
        while pass.step(&spec, 1).unwrap() == Pass::Unfinished {}
        assert!(NamesPass::begin(&spec).is_none(), "once");
        (base, spec)
    }

    fn check(spec: &WorkspaceSpec, stood: &[&str], not: &[&str]) {
        let names = load(&spec.memory);
        stood.iter().for_each(|name| assert!(names.contains(&path(name)), "{name}"));
        not.iter().for_each(|name| assert!(!names.contains(&path(name)), "{name}"));
    }

    #[test]
    fn what_stood_is_noted_also_beside_what_came_and_went() {
        let (_base, spec) = noted(|project| {
            fs::write(project.join("touched/new"), "x").unwrap();
            fs::remove_file(project.join("touched/gone")).unwrap();
        });
        let stood =
            ["calm", "calm/sub/f", "touched", "touched/f", "touched/sub/f", "touched/new", ".git"];
        check(&spec, &stood, &["calm/new", "touched/gone", ".git/f"]);
        let mut bytes = fs::read(spec.memory.join(LIST)).unwrap();
        bytes[3] ^= 1;
        fs::write(spec.memory.join(LIST), bytes).unwrap();
        check(&spec, &[], &["calm"]);
    }

    #[test]
    fn something_new_at_the_top_hides_nothing_below_it() {
        let (_base, spec) = noted(|project| fs::write(project.join("new"), "x").unwrap());
        check(&spec, &["calm", "calm/f", "calm/sub/f", "touched/sub/f", "new"], &["newer"]);
    }
}
