//! Files that git knew to be clean, noted while the project still proved it.
//!
//! Once a file was edited, nothing in the project tells what it was at create; and git's index alone
//! does not either, for the file may have been edited between the last `git status` and create. So
//! the question is asked while it has an answer: some time after create, for every path of the index,
//! whether the file on disk is *still* the one from before create (the proof of the module above) and
//! *has the very times, size and inode that the index holds*. Then its bytes at create are the
//! blob the index names, and one line is noted: no byte is read or copied. `docs/design/git-base.md`
//! has the argument in full.
//!
//! The list is a file of its own, `tracked`, put in place whole. It is read only where a base is
//! unknown otherwise.

use super::Proof;
use super::memory::make_private;
use crate::error::DeriveError;
use crate::held::Held;
use crate::spec::WorkspaceSpec;
use crate::tree::{Meta, TreeRoot};
use gix::index::entry::{Flags, Mode as EntryMode};
use rustix::fs::{FileType, Stat};
use skep_types::RelPath;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

const LIST: &str = "tracked";
/// Larger indexes are left alone: the note is an aid, and must not cost as much as it saves.
const MOST_ENTRIES: usize = 200_000;
/// Attributes by which the file on disk and the blob may differ although git calls the file clean.
/// (Line ends and `$Id$` change the size, which is compared.)
const CONVERTING: [&[u8]; 2] = [b"filter", b"working-tree-encoding"];

/// What a path was at create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tracked {
    /// The blob's id, in hexadecimal digits.
    pub blob: String,
    pub mode: u32,
    pub size: u64,
    pub link: bool,
}

/// A pass over the index that can be made in small steps.
pub struct TrackedPass {
    index: gix::index::File,
    written: (u32, u32),
    at: usize,
    lines: Vec<u8>,
    /// By directory: whether its attributes may convert files.
    converted: HashMap<RelPath, bool>,
    target: PathBuf,
}

/// How far a pass is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// There is more to look at.
    Unfinished,
    /// The list is in place.
    Done,
}

impl TrackedPass {
    /// Begins a pass; `None` where there is nothing to gain: no repository, an index of a kind that is
    /// not read, attributes that convert files, or a list that is there already.
    pub fn begin(spec: &WorkspaceSpec) -> Option<Self> {
        let target = spec.memory.join(LIST);
        if target.exists() {
            return None;
        }
        let repository = gix::open_opts(&spec.project, crate::git::isolated()).ok()?;
        if repository.workdir()? != spec.project
            || converts(&repository.common_dir().join("info/attributes"))
        {
            return None;
        }
        let path = repository.index_path();
        let written = std::fs::metadata(&path).ok()?;
        let written = std::os::unix::fs::MetadataExt::mtime(&written)
            .try_into()
            .ok()
            .zip(std::os::unix::fs::MetadataExt::mtime_nsec(&written).try_into().ok())?;
        let decode = gix::index::decode::Options::default();
        let index = gix::index::File::at(path, repository.object_hash(), true, decode).ok()?;
        let good = !index.is_sparse() && index.entries().len() <= MOST_ENTRIES;
        good.then_some(Self {
            index,
            written,
            at: 0,
            lines: Vec::new(),
            converted: HashMap::new(),
            target,
        })
    }

    /// Looks at some more paths; with the last of them the list is put in place.
    pub fn step(&mut self, spec: &WorkspaceSpec, count: usize) -> Result<Pass, DeriveError> {
        let project = TreeRoot::open(&spec.project)
            .map_err(|error| DeriveError::read("project", &RelPath::root(), error))?;
        let held = Held::new(&project);
        let proof = Proof::new(&held, &spec.base.instant, HashMap::new());
        let end = self.index.entries().len().min(self.at + count);
        while self.at < end {
            self.directory(spec, &project, &proof)?;
        }
        if self.at < self.index.entries().len() {
            return Ok(Pass::Unfinished);
        }
        self.finish()?;
        Ok(Pass::Done)
    }

    /// The entries of one directory: each is looked at, *then* the directory is proven, so that one
    /// that was put in its place meanwhile is noticed.
    fn directory(
        &mut self,
        spec: &WorkspaceSpec,
        project: &TreeRoot,
        proof: &Proof<'_>,
    ) -> Result<(), DeriveError> {
        let Some(parent) = self.path(self.at).and_then(|path| path.parent()) else {
            self.at += 1;
            return Ok(());
        };
        let mut seen = Vec::new();
        while let Some(path) =
            self.path(self.at).filter(|path| path.parent().as_ref() == Some(&parent))
        {
            let stat =
                project.stat(&path).map_err(|error| DeriveError::read("project", &path, error))?;
            if let Some(stat) = stat.filter(|stat| self.is_clean(self.at, stat)) {
                seen.push((path, self.at, stat));
            }
            self.at += 1;
        }
        proof.look_again();
        if seen.is_empty() || self.is_converted(spec, &parent) {
            return Ok(());
        }
        for (path, at, stat) in seen {
            if !spec.is_hidden(&path) && proof.present(&path, &Meta::of(&stat))? {
                let (id, mode) = (self.index.entries()[at].id, stat.st_mode);
                let head = format!("{id} {mode:o} {}\0", stat.st_size);
                self.lines.extend_from_slice(head.as_bytes());
                self.lines.extend_from_slice(path.as_bytes());
                self.lines.push(0);
            }
        }
        Ok(())
    }

    /// Whether attributes of a directory, or of one above it, may convert its files.
    fn is_converted(&mut self, spec: &WorkspaceSpec, directory: &RelPath) -> bool {
        let chain = [directory.clone()].into_iter().chain(directory.ancestors());
        chain.into_iter().any(|directory| {
            let file = spec.project.join(directory.as_path()).join(".gitattributes");
            *self.converted.entry(directory).or_insert_with(|| converts(&file))
        })
    }

    fn path(&self, at: usize) -> Option<RelPath> {
        let entry = self.index.entries().get(at)?;
        let path: &[u8] = entry.path(&self.index);
        RelPath::parse(path).ok()
    }

    /// Whether the index speaks of exactly this file, and was written after its last change: what
    /// changed in the very tick in which the index was written could not be told apart.
    fn is_clean(&self, at: usize, stat: &Stat) -> bool {
        let entry = &self.index.entries()[at];
        let unusual = Flags::SKIP_WORKTREE | Flags::INTENT_TO_ADD | Flags::ASSUME_VALID;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                entry.mode == EntryMode::FILE || entry.mode == EntryMode::FILE_EXECUTABLE
            }
            FileType::Symlink => entry.mode == EntryMode::SYMLINK,
            _ => false,
        };
        let (noted, now) = (&entry.stat, stat);
        // The index keeps the lower halves only.
        let times = [
            (noted.mtime.secs, now.st_mtime as u32),
            (noted.mtime.nsecs, now.st_mtime_nsec as u32),
            (noted.ctime.secs, now.st_ctime as u32),
            (noted.ctime.nsecs, now.st_ctime_nsec as u32),
            (noted.ino, now.st_ino as u32),
            (noted.size, now.st_size as u32),
        ];
        kind && entry.stage_raw() == 0
            && !entry.flags.intersects(unusual)
            && times.iter().all(|(noted, now)| noted == now)
            && (noted.mtime.secs, noted.mtime.nsecs) < self.written
    }

    /// Whole, under its checksum, by a rename. Lost with the machine it is missed, not believed.
    fn finish(&mut self) -> Result<(), DeriveError> {
        let write = || -> io::Result<()> {
            let sum = blake3::hash(&self.lines).to_hex();
            let new = self.target.with_extension("new");
            if let Some(directory) = new.parent() {
                make_private(directory)?;
            }
            std::fs::write(&new, [sum.as_bytes(), b"\n", &self.lines].concat())?;
            std::fs::rename(&new, &self.target)
        };
        write().map_err(|source| DeriveError::Memory {
            operation: "write",
            path: self.target.clone(),
            source,
        })
    }
}

/// Whether a file of attributes may make git convert what it checks out. One that cannot be read may.
fn converts(path: &Path) -> bool {
    match std::fs::read(path) {
        Ok(text) => {
            CONVERTING.iter().any(|word| text.windows(word.len()).any(|part| part == *word))
        }
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// The list, if there is one and it is whole.
pub(crate) fn load(memory: &Path) -> HashMap<RelPath, Tracked> {
    std::fs::read(memory.join(LIST)).ok().and_then(|bytes| parse(&bytes)).unwrap_or_default()
}

fn parse(bytes: &[u8]) -> Option<HashMap<RelPath, Tracked>> {
    let cut = bytes.iter().position(|byte| *byte == b'\n')?;
    let (sum, lines) = (&bytes[..cut], &bytes[cut + 1..]);
    if blake3::hash(lines).to_hex().as_bytes() != sum {
        return None;
    }
    let mut list = HashMap::new();
    let mut parts = lines.split(|byte| *byte == 0);
    while let (Some(head), Some(path)) = (parts.next(), parts.next()) {
        let mut words = std::str::from_utf8(head).ok()?.split(' ');
        let blob = words.next()?.to_owned();
        let mode = u32::from_str_radix(words.next()?, 8).ok()?;
        let size = words.next()?.parse().ok()?;
        let link = FileType::from_raw_mode(mode) == FileType::Symlink;
        list.insert(RelPath::parse(path).ok()?, Tracked { blob, mode: mode & 0o7777, size, link });
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{Base, WorkspaceDriver};
    use std::fs;

    struct Scene {
        root: tempfile::TempDir,
        spec: Option<WorkspaceSpec>,
    }

    impl Scene {
        fn new(files: &[&str]) -> Self {
            let root = tempfile::tempdir().unwrap();
            for name in ["project", "upper", "memory", "project/dir"] {
                fs::create_dir(root.path().join(name)).unwrap();
            }
            let scene = Self { root, spec: None };
            files.iter().for_each(|file| scene.write(file, "first\n"));
            scene.git(&["init", "-q", "."]);
            scene.git(&["add", "."]);
            scene
        }

        fn project(&self) -> PathBuf {
            self.root.path().join("project")
        }

        fn write(&self, path: &str, text: &str) {
            fs::write(self.project().join(path), text).unwrap();
        }

        fn git(&self, line: &[&str]) {
            let status =
                std::process::Command::new("git").args(line).current_dir(self.project()).status();
            assert!(status.unwrap().success());
        }

        /// Past every tick, refreshes the index, and creates.
        fn create(&mut self) {
            crate::base::now().unwrap();
            self.git(&["update-index", "-q", "--refresh"]);
            fs::File::options()
                .append(true)
                .open(self.project().join(".git/index"))
                .unwrap()
                .set_modified(std::time::SystemTime::now())
                .unwrap();
            let project = self.project();
            let (device, inode) = TreeRoot::open(&project).unwrap().identity().unwrap();
            let instant = crate::base::now().unwrap();
            self.spec = Some(WorkspaceSpec {
                base: Base { instant, device, inode, commit: None },
                driver: WorkspaceDriver::OverlayUserns,
                upper: self.root.path().join("upper"),
                layers: Vec::new(),
                dependency_layers: Vec::new(),
                hidden: Vec::new(),
                memory: self.root.path().join("memory"),
                project,
            });
        }

        fn noted(&self) -> Vec<String> {
            let spec = self.spec.as_ref().unwrap();
            let Some(mut pass) = TrackedPass::begin(spec) else { return Vec::new() };
            while pass.step(spec, 1).unwrap() == Pass::Unfinished {}
            assert!(TrackedPass::begin(spec).is_none(), "made once");
            let mut names: Vec<_> = load(&spec.memory).keys().map(ToString::to_string).collect();
            names.sort();
            names
        }
    }

    #[test]
    fn clean_files_are_noted_and_no_others() {
        let mut scene = Scene::new(&["clean", "dirty", "later", "dir/deep", "same-size"]);
        // Dirty at create, in two ways that git sees and one that only the times tell.
        scene.write("dirty", "edited before create\n");
        scene.write("same-size", "FIRST\n");
        scene.write("untracked", "x\n");
        scene.create();
        scene.write("later", "edited after create\n");
        assert_eq!(scene.noted(), ["clean", "dir/deep"]);
    }

    #[test]
    fn a_directory_put_in_place_after_create_is_not_believed() {
        let mut scene = Scene::new(&["clean", "dir/deep"]);
        scene.create();
        let project = scene.project();
        fs::rename(project.join("dir"), scene.root.path().join("away")).unwrap();
        fs::create_dir(project.join("dir")).unwrap();
        fs::rename(scene.root.path().join("away/deep"), project.join("dir/deep")).unwrap();
        assert_eq!(scene.noted(), ["clean"]);
    }

    #[test]
    fn where_files_are_converted_nothing_is_noted() {
        let mut scene = Scene::new(&["clean", "dir/deep"]);
        scene.write("dir/.gitattributes", "*.bin filter=lfs\n");
        scene.create();
        assert_eq!(scene.noted(), ["clean"]);
        let mut scene = Scene::new(&["clean", "dir/deep"]);
        scene.write(".gitattributes", "*.bin filter=lfs\n");
        scene.create();
        assert!(scene.noted().is_empty(), "below it too");
        let mut scene = Scene::new(&["clean"]);
        fs::write(scene.project().join(".git/info/attributes"), "* working-tree-encoding=UTF-16\n")
            .unwrap();
        scene.create();
        assert!(scene.noted().is_empty());
    }

    #[test]
    fn a_damaged_list_is_no_list() {
        let mut scene = Scene::new(&["clean"]);
        scene.create();
        assert_eq!(scene.noted(), ["clean"]);
        let path = scene.root.path().join("memory").join(LIST);
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(parse(&damaged).is_none(), "byte {at}");
        }
        assert!(parse(&bytes[..bytes.len() - 1]).is_none());
    }
}
