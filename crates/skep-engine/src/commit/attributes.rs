//! What git would not commit as it lies in the work tree.
//!
//! A filter (git-crypt, git-lfs, sops), an encoding, line ends or `$Id$` make git store other bytes than
//! the file has. Skep runs no filter; committing the bytes as they are would put what the user keeps
//! encrypted into the history in the clear. Such paths are refused, by the attributes that are in force.

use super::Content;
use super::identity::Identity;
use super::repository::Repository;
use gix::bstr::{BStr, ByteSlice as _};
use gix_attributes::search::{MetadataCollection, Outcome};
use gix_attributes::{Search, StateRef};
use skep_types::{Code, Problem};
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The attributes that make git store other bytes.
const CONVERTING: [&str; 6] = ["filter", "working-tree-encoding", "ident", "text", "eol", "crlf"];
/// Attributes of a believable size.
const MOST_BYTES: u64 = 1 << 20;

/// The attributes in force in a repository; those of directories are read when a path asks for them.
pub(super) struct Conversions<'a> {
    repository: &'a Repository,
    /// Speaks for attribute files that the work tree does not have, as git lets it.
    index: OnceCell<Option<gix::index::File>>,
    root: Option<PathBuf>,
    /// Attribute files of the user.
    own: Vec<PathBuf>,
    /// `info/attributes`, which is above all others.
    last: PathBuf,
    converts_line_ends: bool,
}

impl<'a> Conversions<'a> {
    pub(super) fn of(repository: &'a Repository, identity: &Identity, home: &Path) -> Self {
        let users = identity.attributes_file.clone();
        let users = users.unwrap_or_else(|| home.join(".config/git/attributes"));
        Self {
            repository,
            index: OnceCell::new(),
            root: repository.root().map(Path::to_owned),
            own: vec![PathBuf::from("/etc/gitattributes"), users],
            last: repository.common_dir().join("info/attributes"),
            converts_line_ends: identity.converts_line_ends,
        }
    }

    /// Refuses a path of the repository that git would store otherwise.
    pub(super) fn check(&self, path: &BStr, content: &Content) -> Result<(), Problem> {
        let Content::File { bytes, .. } = content else { return Ok(()) };
        let set = self.converting(path)?;
        let has = |name: &str| set.contains(name);
        let line_ends = bytes.contains_str("\r\n")
            && (has("text") || has("eol") || has("crlf") || self.converts_line_ends);
        let reason = if has("filter") {
            "has a filter (`filter` in git's attributes), and skep runs none"
        } else if has("working-tree-encoding") {
            "has another encoding in git than here (`working-tree-encoding`)"
        } else if has("ident") && bytes.contains_str("$Id:") {
            "has an `$Id$` that git replaces (`ident`)"
        } else if line_ends {
            "has line ends that git converts (`text`, `eol` or `core.autocrlf`)"
        } else {
            return Ok(());
        };
        let path = skep_types::escape::visible(path);
        Err(Problem::new(Code::Refused, format!("`{path}` {reason}; commit it with git")))
    }

    /// Which of them are set for a path.
    fn converting(&self, path: &BStr) -> Result<BTreeSet<&'static str>, Problem> {
        let mut collection = MetadataCollection::default();
        let mut search = Search::default();
        let builtin = b"[attr]binary -diff -merge -text";
        let added = search.add_patterns_buffer(builtin, "".into(), None, &mut collection, true);
        added.map_err(|error| unreadable(Path::new("attributes"), &error))?;
        for (file, root) in self.files(path) {
            let bytes = match (read(&file)?, root) {
                (Some(bytes), _) => Some(bytes),
                (None, Some(root)) => self.staged(&file, root),
                (None, None) => None,
            };
            let Some(bytes) = bytes else { continue };
            let macros = root.is_none_or(|root| file.parent() == Some(root));
            let list =
                search.add_patterns_buffer(&bytes, file.clone(), root, &mut collection, macros);
            list.map_err(|error| unreadable(&file, &error))?;
        }
        let mut found = Outcome::default();
        found.initialize_with_selection(&collection, CONVERTING);
        let case = gix_attributes::glob::pattern::Case::Sensitive;
        search.pattern_matching_relative_path(path, case, Some(false), &mut found);
        let set = found.iter_selected().filter(|found| {
            !matches!(found.assignment.state, StateRef::Unset | StateRef::Unspecified)
        });
        let names: Vec<String> =
            set.map(|found| found.assignment.name.as_str().to_owned()).collect();
        Ok(CONVERTING.into_iter().filter(|name| names.iter().any(|set| set == name)).collect())
    }

    /// The same file as the index has it.
    fn staged(&self, file: &Path, root: &Path) -> Option<Vec<u8>> {
        let index = self.index.get_or_init(|| self.repository.index()).as_ref()?;
        let path = file.strip_prefix(root).ok()?.as_os_str().as_bytes();
        self.repository.staged(index, path.into())
    }

    /// Those that speak of a path, the weakest first, each with the root its patterns count from.
    fn files(&self, path: &BStr) -> Vec<(PathBuf, Option<&Path>)> {
        let mut files: Vec<(PathBuf, Option<&Path>)> =
            self.own.iter().map(|file| (file.clone(), None)).collect();
        if let Some(root) = self.root.as_deref() {
            let below = path.to_path_lossy();
            let mut above: Vec<&Path> = below.ancestors().skip(1).collect();
            above.reverse();
            files.extend(
                above.iter().map(|dir| (root.join(dir).join(".gitattributes"), Some(root))),
            );
        }
        files.push((self.last.clone(), None));
        files
    }
}

/// A file of attributes; `None` if there is none. git does not follow a link there either.
fn read(file: &Path) -> Result<Option<Vec<u8>>, Problem> {
    let kind = match std::fs::symlink_metadata(file) {
        Ok(found) => found,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(unreadable(file, &error)),
    };
    let followed = kind.is_symlink() && !file.ends_with(".gitattributes");
    if !kind.is_file() && !followed {
        return Ok(None);
    }
    if kind.len() > MOST_BYTES {
        return Err(unreadable(file, &"it is too large"));
    }
    match std::fs::read(file) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(unreadable(file, &error)),
    }
}

fn is_absent(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

fn unreadable(file: &Path, error: &dyn std::fmt::Display) -> Problem {
    let file = skep_types::ByteString::from(file);
    Problem::new(Code::Io, format!("git's attributes in `{file}` cannot be read: {error}"))
}
