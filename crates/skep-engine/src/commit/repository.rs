//! The host's repository: found, read and written without executing anything.

use super::Content;
use super::identity::Identity;
use super::tree::Edits;
use gix::ObjectId;
use gix::bstr::{BStr, BString};
use gix::index::entry::{Flags, Mode, Stat};
use gix::lock::acquire::Fail;
use gix::objs::tree::EntryKind;
use skep_types::{Approval, Code, ContentHash, EntryState, Problem, RelPath};
use std::collections::HashSet;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long to wait for a git that works on the index.
const PATIENCE: Duration = Duration::from_secs(2);
/// What files kept by git-lfs are in the repository.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// A repository, and where the project lies in it.
pub(super) struct Repository {
    inner: gix::Repository,
    /// The project below the repository's root, with a slash behind it, or empty.
    prefix: Vec<u8>,
}

/// One path of a commit.
pub(super) struct Entry {
    path: BString,
    object: Option<(EntryKind, ObjectId)>,
}

/// A commit that was made.
pub(super) struct Committed {
    pub id: String,
    pub note: Option<String>,
}

fn refused(message: impl Into<String>) -> Problem {
    Problem::new(Code::Refused, message)
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> Problem {
    Problem::new(Code::Io, format!("cannot {what}: {error}"))
}

impl Repository {
    /// The repository a project is in: the nearest upwards, as long as the directories belong to
    /// the project's owner (a planted one in `/tmp` is not the project's).
    pub(super) fn find(project: &Path) -> Result<Self, Problem> {
        let owner = |path: &Path| std::fs::symlink_metadata(path).map(|found| found.uid()).ok();
        let of = owner(project);
        for directory in project.ancestors() {
            if owner(directory) != of {
                break;
            }
            if std::fs::symlink_metadata(directory.join(".git")).is_err() {
                continue;
            }
            let inner = gix::open_opts(directory, skep_workspace::isolated())
                .map_err(|error| failed("open the repository", &error))?;
            let below = project.strip_prefix(directory).unwrap_or(Path::new(""));
            let mut prefix = std::os::unix::ffi::OsStrExt::as_bytes(below.as_os_str()).to_vec();
            if !prefix.is_empty() {
                prefix.push(b'/');
            }
            return Ok(Self { inner, prefix });
        }
        Err(refused("the project is in no git repository"))
    }

    pub(super) fn git_dir(&self) -> &Path {
        self.inner.git_dir()
    }

    /// What is shared by all work trees of the repository.
    pub(super) fn common_dir(&self) -> &Path {
        self.inner.common_dir()
    }

    /// The root of the work tree.
    pub(super) fn root(&self) -> Option<&Path> {
        self.inner.workdir()
    }

    /// What the index has.
    pub(super) fn index(&self) -> Option<gix::index::File> {
        self.inner.open_index().ok()
    }

    /// The bytes of a file that the index has.
    pub(super) fn staged(&self, index: &gix::index::File, path: &BStr) -> Option<Vec<u8>> {
        let entry = index.entry_by_path(path)?;
        let file = matches!(entry.mode, Mode::FILE | Mode::FILE_EXECUTABLE);
        file.then(|| self.inner.find_object(entry.id).ok().map(|object| object.data.clone()))?
    }

    /// Where a path of the project is in the repository.
    pub(super) fn path_of(&self, path: &RelPath) -> BString {
        [self.prefix.as_slice(), path.as_bytes()].concat().into()
    }

    /// Refuses while the user is in the middle of a merge, a rebase or a pick: a commit of some paths
    /// would end it with one parent, or land in the middle of it. git refuses the same.
    pub(super) fn check_idle(&self) -> Result<(), Problem> {
        use gix::state::InProgress;
        let what = match self.inner.state() {
            None | Some(InProgress::Bisect) => return Ok(()),
            Some(InProgress::Merge) => "merge",
            Some(InProgress::CherryPick | InProgress::CherryPickSequence) => "cherry-pick",
            Some(InProgress::Revert | InProgress::RevertSequence) => "revert",
            Some(InProgress::Rebase | InProgress::RebaseInteractive) => "rebase",
            Some(InProgress::ApplyMailbox | InProgress::ApplyMailboxRebase) => "`git am`",
        };
        Err(refused(format!(
            "a {what} is going on in the repository, and part of it cannot be committed; end it with \
             git first"
        )))
    }

    /// The repository's own settings that are there.
    pub(super) fn settings_files(&self) -> Vec<PathBuf> {
        let files =
            [self.inner.common_dir().join("config"), self.inner.git_dir().join("config.worktree")];
        files.into_iter().filter(|path| path.is_file()).collect()
    }

    /// Writes the bytes of one path; nothing refers to them yet.
    pub(super) fn entry(&self, path: &RelPath, content: Content) -> Result<Entry, Problem> {
        if path.components().any(|part| part.eq_ignore_ascii_case(b".git")) {
            return Err(refused(format!("`{path}` is git's own and cannot be committed")));
        }
        let write = |bytes: &[u8]| {
            let id = self.inner.write_blob(bytes);
            id.map(gix::Id::detach).map_err(|error| failed("write git's objects", &error))
        };
        let object = match content {
            Content::Removed => None,
            Content::File { bytes, executable } => {
                let kind = if executable { EntryKind::BlobExecutable } else { EntryKind::Blob };
                Some((kind, write(&bytes)?))
            }
            Content::Link { target } => Some((EntryKind::Link, write(&target)?)),
        };
        Ok(Entry { path: self.path_of(path), object })
    }

    /// Refuses what a commit without filters would get wrong, and says what it holds besides the
    /// approved change: edits of the user's that were not committed before.
    pub(super) fn remarks(
        &self,
        entries: &[Entry],
        approval: &Approval,
    ) -> Result<Vec<String>, Problem> {
        let tree = self.head_tree()?;
        let mut notes = Vec::new();
        // What is removed is in no commit.
        for entry in entries.iter().filter(|entry| entry.object.is_some()) {
            let Some(committed) = self.committed(tree, &entry.path) else { continue };
            if committed.starts_with(LFS_POINTER) {
                return Err(refused(format!(
                    "`{}` is kept by git-lfs, and skep runs no filters; commit it with git",
                    skep_types::escape::visible(&entry.path)
                )));
            }
            let below = entry.path.strip_prefix(self.prefix.as_slice()).unwrap_or(&entry.path);
            let applied = approval.paths.iter().find(|path| path.path.as_bytes() == below);
            let Some(applied) = applied else { continue };
            if let EntryState::File { hash, .. } = applied.before
                && hash != ContentHash::of(&committed)
            {
                notes.push(format!(
                    "`{}` had edits that were not committed; they are in this commit too",
                    applied.path
                ));
            }
        }
        Ok(notes)
    }

    fn committed(&self, tree: Option<ObjectId>, path: &[u8]) -> Option<Vec<u8>> {
        let tree = self.inner.find_tree(tree?).ok()?;
        let entry = tree.lookup_entry(path.split(|byte| *byte == b'/')).ok().flatten()?;
        let mode = entry.mode();
        (mode.is_blob()).then(|| entry.object().ok().map(|object| object.data.clone())).flatten()
    }

    fn head(&self) -> Result<Option<ObjectId>, Problem> {
        let head = self.inner.head().map_err(|error| failed("read the branch", &error))?;
        Ok(head.id().map(gix::Id::detach))
    }

    fn head_tree(&self) -> Result<Option<ObjectId>, Problem> {
        let Some(head) = self.head()? else { return Ok(None) };
        let commit =
            self.inner.find_commit(head).map_err(|error| failed("read the commit", &error))?;
        let tree = commit.tree_id().map_err(|error| failed("read the commit", &error))?;
        Ok(Some(tree.detach()))
    }

    /// 1. git's lock on the index, so that no git of the user's works on it meanwhile.
    /// 2. The tree of the current commit with the entries replaced, and a commit of it.
    /// 3. The branch moves, if it is still where it was read.
    /// 4. The index gets the same entries; everything else in it stays as it is.
    pub(super) fn commit(
        &self,
        entries: &[Entry],
        identity: &Identity,
        message: &str,
    ) -> Result<Committed, Problem> {
        let path = self.inner.index_path();
        let fail = Fail::AfterDurationWithBackoff(PATIENCE);
        let lock = gix::lock::File::acquire_to_update_resource(&path, fail, None, 0)
            .map_err(|error| failed("lock git's index", &error))?;
        let mut index = gix::index::File::at_or_default(
            &path,
            self.inner.object_hash(),
            false,
            gix::index::decode::Options::default(),
        )
        .map_err(|error| failed("read git's index", &error))?;
        if index.is_sparse() {
            return Err(refused("the repository's index is sparse, which skep does not write"));
        }
        if index.entries().iter().any(|entry| entry.stage_raw() != 0) {
            return Err(refused("paths of the repository are unmerged; solve that with git first"));
        }
        let (parent, base) = (self.head()?, self.head_tree()?);
        let mut edits = Edits::default();
        for entry in entries {
            edits.insert(&entry.path, entry.object);
        }
        let tree = match edits.write(&self.inner, base)? {
            Some(tree) => tree,
            None => self.inner.empty_tree().id,
        };
        if Some(tree) == base || (base.is_none() && tree == self.inner.empty_tree().id) {
            return Err(refused("the current commit has all of it already"));
        }
        let (mut author, mut committer) = Default::default();
        let commit = self
            .inner
            .commit_as(
                identity.committer.to_ref(&mut committer),
                identity.author.to_ref(&mut author),
                "HEAD",
                message,
                tree,
                parent,
            )
            .map_err(|error| failed("move the branch", &error))?;
        let id = commit.to_string();
        update(&mut index, entries);
        let note = write_index(&index, lock)
            .err()
            .map(|problem| format!("git's index was not brought up to date: {}", problem.message));
        Ok(Committed { id, note })
    }
}

/// The entries of the commit are neither staged nor unstaged any more.
fn update(index: &mut gix::index::File, entries: &[Entry]) {
    let replaced: HashSet<&[u8]> = entries.iter().map(|entry| entry.path.as_slice()).collect();
    // A file that became a directory, or the other way round, cannot stay beside it.
    let put = entries.iter().filter(|entry| entry.object.is_some());
    let put: HashSet<&[u8]> = put.map(|entry| entry.path.as_slice()).collect();
    let above_put: HashSet<&[u8]> = put.iter().flat_map(|path| above(path)).collect();
    index.remove_entries(|_, path, _| {
        replaced.contains(path as &[u8])
            || above_put.contains(path as &[u8])
            || above(path).any(|directory| put.contains(directory))
    });
    for entry in entries {
        let Some((kind, id)) = entry.object else { continue };
        let mode = match kind {
            EntryKind::BlobExecutable => Mode::FILE_EXECUTABLE,
            EntryKind::Link => Mode::SYMLINK,
            _ => Mode::FILE,
        };
        // No times: git looks at the file itself the next time, and cannot be misled.
        let path = entry.path.as_ref();
        index.dangerously_push_entry(Stat::default(), id, Flags::empty(), mode, path);
    }
    index.sort_entries();
    // It sums up the entries that were just replaced.
    index.remove_tree();
}

/// The directories a path lies in.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    slashes.map(|(at, _)| &path[..at])
}

fn write_index(index: &gix::index::File, mut lock: gix::lock::File) -> Result<(), Problem> {
    let mut bytes = Vec::new();
    index
        .write_to(&mut bytes, gix::index::write::Options::default())
        .map_err(|error| failed("write git's index", &error))?;
    lock.write_all(&bytes).map_err(|error| failed("write git's index", &error))?;
    lock.commit().map_err(|error| failed("write git's index", &error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Mode and bytes by path.
    type Model = BTreeMap<String, (EntryKind, Vec<u8>)>;

    fn identity() -> Identity {
        let time = gix::date::Time { seconds: 1_800_000_000, offset: 0 };
        let who = gix::actor::Signature { name: "A".into(), email: "a@b".into(), time };
        Identity {
            author: who.clone(),
            committer: who,
            wants_signature: false,
            converts_line_ends: false,
            attributes_file: None,
        }
    }

    fn repository(directory: &Path) -> Repository {
        gix::init(directory).unwrap();
        Repository::find(directory).unwrap()
    }

    fn listed(repository: &Repository) -> Model {
        let mut model = Model::new();
        let mut pending = vec![(String::new(), repository.head_tree().unwrap().unwrap())];
        while let Some((above, tree)) = pending.pop() {
            let tree = repository.inner.find_tree(tree).unwrap();
            for entry in tree.decode().unwrap().entries {
                let path = format!("{above}{}", entry.filename);
                if entry.mode.is_tree() {
                    pending.push((format!("{path}/"), entry.oid.to_owned()));
                } else {
                    let bytes = repository.inner.find_object(entry.oid).unwrap().data.clone();
                    model.insert(path, (entry.mode.kind(), bytes));
                }
            }
        }
        model
    }

    fn commit(repository: &Repository, changes: &[(&str, Option<&[u8]>)]) -> Result<(), Problem> {
        let entry = |(path, bytes): &(&str, Option<&[u8]>)| {
            let content = match bytes {
                None => Content::Removed,
                Some(bytes) => Content::File { bytes: bytes.to_vec(), executable: false },
            };
            repository.entry(&RelPath::parse(path.as_bytes()).unwrap(), content).unwrap()
        };
        let entries: Vec<_> = changes.iter().map(entry).collect();
        repository.commit(&entries, &identity(), "message\n").map(drop)
    }

    fn indexed(repository: &Repository) -> Vec<String> {
        let index = repository.inner.open_index().unwrap();
        index.entries().iter().map(|entry| entry.path(&index).to_string()).collect()
    }

    #[test]
    fn a_commit_has_exactly_the_paths_that_were_named() {
        let directory = tempfile::tempdir().unwrap();
        let repository = repository(directory.path());
        let bytes = |text: &'static str| Some(text.as_bytes());
        commit(&repository, &[("a", bytes("1")), ("d/x", bytes("2")), ("d/e/y", bytes("3"))])
            .unwrap();
        commit(&repository, &[("a", None), ("d/e/y", None), ("d.c", bytes("4"))]).unwrap();
        let names = |model: &Model| model.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&listed(&repository)), ["d.c", "d/x"]);
        assert_eq!(indexed(&repository), ["d.c", "d/x"]);
        // A directory becomes a file, a file a directory.
        commit(&repository, &[("d", bytes("5")), ("d/x", None)]).unwrap();
        assert_eq!(names(&listed(&repository)), ["d", "d.c"]);
        assert_eq!(indexed(&repository), ["d", "d.c"]);
        commit(&repository, &[("d.c", None), ("d.c/in", bytes("6"))]).unwrap();
        let model = listed(&repository);
        assert_eq!(model["d.c/in"].1, b"6");
        assert!(!model.contains_key("d.c"));
        let refused = commit(&repository, &[("d.c/in", bytes("6"))]).unwrap_err();
        assert!(refused.message.contains("already"), "{refused}");
    }

    #[test]
    fn what_is_staged_stays_staged_and_out_of_the_commit() {
        let directory = tempfile::tempdir().unwrap();
        let repository = repository(directory.path());
        commit(&repository, &[("mine", Some(b"1")), ("theirs", Some(b"1"))]).unwrap();
        let staged = repository.inner.write_blob(b"staged").unwrap().detach();
        let mut index = repository.inner.open_index().unwrap();
        for (entry, path) in index.entries_mut_with_paths() {
            if path == "mine" {
                entry.id = staged;
            }
        }
        index.write(gix::index::write::Options::default()).unwrap();
        commit(&repository, &[("theirs", Some(b"2"))]).unwrap();
        assert_eq!(listed(&repository)["mine"].1, b"1");
        let index = repository.inner.open_index().unwrap();
        assert_eq!(index.entry_by_path("mine".into()).unwrap().id, staged);
    }

    #[test]
    fn a_locked_index_and_gits_own_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let repository = repository(directory.path());
        let own = RelPath::parse(b"sub/.GIT/config").unwrap();
        assert!(repository.entry(&own, Content::Removed).is_err());
        commit(&repository, &[("a", Some(b"1"))]).unwrap();
        let before = repository.head().unwrap();
        std::fs::write(repository.inner.index_path().with_extension("lock"), b"").unwrap();
        assert!(commit(&repository, &[("a", Some(b"2"))]).is_err());
        assert_eq!(repository.head().unwrap(), before);
    }
}
