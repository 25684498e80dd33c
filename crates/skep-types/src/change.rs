//! Change sets: what a sandbox changed against the base, and what an approval names.

use crate::{ByteString, ChangeSetDigest, ContentHash, EntryState, ExecId, RelPath, SandboxName};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// Was not there.
    Added,
    /// Other bytes (or another link target).
    Modified,
    /// Is no longer there.
    Deleted,
    /// Moved here from `renamed_from`, possibly edited.
    Renamed,
    /// Only the permission bits.
    Mode,
    /// Another kind of thing (file, directory, symlink).
    Type,
    /// A device, FIFO or socket: shown, never applied.
    Special,
}

/// How careful to be with a change.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Risk {
    /// Nothing known.
    #[default]
    None,
    /// Worth a look: runs in a build or in CI.
    Note,
    /// Runs when a directory is opened: needs `--allow-risky`.
    Ask,
    /// Git's own files and the like: needs `--allow-risky`.
    Block,
}

/// What the acceptance rules say of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether it may be approved at all.
    pub allowed: bool,
    /// The rule, and where it stands.
    pub reason: String,
}

/// Names a hunk by its content: 16 hexadecimal digits.
///
/// Derived from the path, the lines of the hunk with those around them, and which of the places in
/// the base it is that begin with these lines: so the same change has the same id whatever else
/// changed, and the same lines elsewhere have another.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HunkId(String);

impl HunkId {
    /// From the first eight bytes of a hash.
    pub fn from_hash(hash: &ContentHash) -> Self {
        Self(hash.to_string().chars().take(16).collect())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HunkId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!(
                "`{text}` is not a hunk id (16 hexadecimal digits, as `skep diff` shows them)"
            ))
        }
    }
}

impl TryFrom<String> for HunkId {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<HunkId> for String {
    fn from(id: HunkId) -> String {
        id.0
    }
}

impl fmt::Display for HunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for HunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One line of a hunk, with its end-of-line bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HunkLine {
    /// In both.
    Context(ByteString),
    /// Only in the base.
    Removed(ByteString),
    /// Only in the new content.
    Added(ByteString),
}

/// In JSON a line is one string that starts with ` `, `-` or `+`, as in a unified diff (or its
/// base64 form when it is not UTF-8).
impl Serialize for HunkLine {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (mark, text) = match self {
            Self::Context(text) => (b' ', text),
            Self::Removed(text) => (b'-', text),
            Self::Added(text) => (b'+', text),
        };
        let mut line = vec![mark];
        line.extend_from_slice(text.as_bytes());
        ByteString::from(line).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for HunkLine {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let line = ByteString::deserialize(deserializer)?;
        match line.as_bytes().split_first() {
            Some((b' ', text)) => Ok(Self::Context(text.into())),
            Some((b'-', text)) => Ok(Self::Removed(text.into())),
            Some((b'+', text)) => Ok(Self::Added(text.into())),
            _ => Err(serde::de::Error::custom("a hunk line starts with ` `, `-` or `+`")),
        }
    }
}

/// A stretch of changed lines with up to three lines of context on each side.
///
/// `old_start`/`new_start` count from 1, as in a unified diff (and are the line *before* when the
/// count is 0).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hunk {
    /// Derived from content.
    pub id: HunkId,
    /// First line in the base.
    pub old_start: u32,
    /// Lines in the base.
    pub old_lines: u32,
    /// First line in the new content.
    pub new_start: u32,
    /// Lines in the new content.
    pub new_lines: u32,
    /// The lines.
    pub lines: Vec<HunkLine>,
}

/// One changed path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Where.
    pub path: RelPath,
    /// What happened.
    pub kind: ChangeKind,
    /// What stood there in the base.
    pub old: EntryState,
    /// What stands there now.
    pub new: EntryState,
    /// Where it came from, when it was moved.
    pub renamed_from: Option<RelPath>,
    /// Whether the content is not text (then there are no hunks).
    pub binary: bool,
    /// Whether the content is text that is not shown as hunks: larger than [`Change::LARGEST_TEXT`], or
    /// behind all that one look shows.
    pub too_large: bool,
    /// Lines added and removed, for text.
    pub added: u64,
    /// Lines removed, for text.
    pub removed: u64,
    /// How careful to be.
    pub risk: Risk,
    /// Why.
    pub risk_reasons: Vec<String>,
    /// Whether the project's ignore rules match it.
    pub ignored: bool,
    /// What the acceptance rules say.
    pub verdict: Option<Verdict>,
    /// Which exec wrote it last, when known.
    pub exec: Option<ExecId>,
    /// The text changes.
    pub hunks: Vec<Hunk>,
}

impl Change {
    /// Texts above this many bytes have no hunks.
    pub const LARGEST_TEXT: u64 = 4 << 20;

    /// A change of which nothing is known yet but what happened.
    pub fn new(path: RelPath, kind: ChangeKind, old: EntryState, new: EntryState) -> Self {
        Self {
            path,
            kind,
            old,
            new,
            renamed_from: None,
            binary: false,
            too_large: false,
            added: 0,
            removed: 0,
            risk: Risk::None,
            risk_reasons: Vec::new(),
            ignored: false,
            verdict: None,
            exec: None,
            hunks: Vec::new(),
        }
    }
}

/// A path where the project moved and the sandbox changed too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// Where.
    pub path: RelPath,
    /// What is in the way.
    pub reason: String,
}

/// A path where the project moved since the sandbox was created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    /// Where.
    pub path: RelPath,
    /// Whether both sides merge without a conflict.
    pub merges: bool,
    /// What happened.
    pub reason: String,
}

/// Sums over a change set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Changed paths (ignored ones not counted).
    pub files: u64,
    /// Lines added.
    pub added: u64,
    /// Lines removed.
    pub removed: u64,
    /// Changed paths that the project's ignore rules match.
    pub ignored: u64,
}

/// Everything a sandbox changed. Sorted by the bytes of the path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChangeSet {
    /// Whose.
    pub sandbox: SandboxName,
    /// What the project was at create: a commit, or a word saying that there is none.
    pub base: String,
    /// Over path, kind, base content and mode, new content and mode of every change, ignored ones
    /// included: equal on every provider.
    pub digest: ChangeSetDigest,
    /// Over what stands in the project wherever an approval would merge, which the digest does not
    /// cover; none where nothing would be merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<ContentHash>,
    /// The changes.
    pub changes: Vec<Change>,
    /// Where the project moved in a way that does not merge.
    pub conflicts: Vec<Conflict>,
    /// Where the project moved at all.
    pub drift: Vec<Drift>,
    /// Other sandboxes of this project that changed the same paths.
    pub warnings: Vec<String>,
    /// Sums.
    pub totals: Totals,
}

/// What somebody looked at before an approval: the sandbox's work, and what it would be merged with.
///
/// As text it is the digest, and where something would be merged `+` and the other side's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reviewed {
    /// Of the change set.
    pub digest: ChangeSetDigest,
    /// See [`ChangeSet::beside`].
    pub beside: Option<ContentHash>,
}

impl fmt::Display for Reviewed {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(text, "{}", self.digest)?;
        self.beside.map_or(Ok(()), |beside| write!(text, "+{beside}"))
    }
}

impl FromStr for Reviewed {
    type Err = <ChangeSetDigest as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.split_once('+') {
            None => Self { digest: text.parse()?, beside: None },
            Some((digest, beside)) => {
                Self { digest: digest.parse()?, beside: Some(beside.parse()?) }
            }
        })
    }
}

impl Serialize for Reviewed {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl ChangeSet {
    /// What an approval of it is bound to.
    pub fn reviewed(&self) -> Reviewed {
        Reviewed { digest: self.digest, beside: self.beside }
    }

    /// The same without the lines; counts and digest stay those of the whole.
    pub fn without_hunks(mut self) -> Self {
        self.changes.iter_mut().for_each(|change| change.hunks.clear());
        self
    }

    /// The digest over some changes, and over the directories that come and go with them without
    /// being changes of their own; both must be sorted by path.
    ///
    /// Everything has a length before it, so no two change sets have the same bytes.
    pub fn digest_of(
        changes: &[Change],
        directories: &BTreeMap<RelPath, EntryState>,
    ) -> ChangeSetDigest {
        let mut hasher = blake3::Hasher::new_derive_key("skep 2026 change set v1");
        for change in changes {
            hash_bytes(&mut hasher, change.path.as_bytes());
            hash_bytes(&mut hasher, format!("{:?}", change.kind).as_bytes());
            hash_state(&mut hasher, &change.old);
            hash_state(&mut hasher, &change.new);
            match &change.renamed_from {
                None => hash_bytes(&mut hasher, b"in place"),
                Some(from) => {
                    hash_bytes(&mut hasher, b"renamed from");
                    hash_bytes(&mut hasher, from.as_bytes());
                }
            }
        }
        for (path, becomes) in directories {
            hash_bytes(&mut hasher, b"directory");
            hash_bytes(&mut hasher, path.as_bytes());
            hash_state(&mut hasher, becomes);
        }
        ChangeSetDigest::from_bytes(*hasher.finalize().as_bytes())
    }
}

fn hash_bytes(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

fn hash_state(hasher: &mut blake3::Hasher, state: &EntryState) {
    hash_bytes(hasher, state.noun().as_bytes());
    match state {
        EntryState::Absent | EntryState::Special { .. } => {}
        EntryState::File { hash, size, mode } => {
            hash_bytes(hasher, hash.as_bytes());
            hash_bytes(hasher, &size.to_le_bytes());
            hash_bytes(hasher, &mode.to_le_bytes());
        }
        EntryState::Symlink { target } => hash_bytes(hasher, target.as_bytes()),
        EntryState::Dir { mode } => hash_bytes(hasher, &mode.to_le_bytes()),
    }
}

/// Which part of a change set is meant. Empty means everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Selection {
    /// Paths (a directory means everything below it) and globs.
    pub paths: Vec<ByteString>,
    /// Hunks.
    pub hunks: Vec<HunkId>,
    /// Whether ignored paths are included without being named.
    pub ignored: bool,
}

impl Selection {
    /// Whether nothing in particular was named.
    pub fn is_everything(&self) -> bool {
        self.paths.is_empty() && self.hunks.is_empty()
    }
}
