//! Paths inside a project: relative, normalised, bytes.

use crate::ByteString;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A path below the project's root: no leading slash, no empty, `.` or `..` component, no NUL.
///
/// The empty path is the root itself. The only way in is [`RelPath::parse`] or [`RelPath::join`],
/// so code that holds one cannot be led out of the project by its text. Ordered by bytes.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelPath(Vec<u8>);

/// Why a path is not a [`RelPath`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelPathError {
    /// It starts at the root of the filesystem.
    #[error("path `{0}` is absolute; a path inside the project is expected")]
    Absolute(ByteString),
    /// A `..` would leave the project.
    #[error("path `{0}` leaves the project")]
    Escapes(ByteString),
    /// It holds a NUL byte.
    #[error("path `{0}` contains a NUL byte")]
    Nul(ByteString),
    /// A single name was expected.
    #[error("`{0}` is not a single file name")]
    NotAName(ByteString),
}

impl RelPath {
    /// The project's root.
    pub fn root() -> Self {
        Self::default()
    }

    /// Normalises `bytes`: `a//b/./c/../d` becomes `a/b/d`; refuses to leave the project.
    pub fn parse(bytes: &[u8]) -> Result<Self, RelPathError> {
        if bytes.contains(&0) {
            return Err(RelPathError::Nul(bytes.into()));
        }
        if bytes.first() == Some(&b'/') {
            return Err(RelPathError::Absolute(bytes.into()));
        }
        let mut parts: Vec<&[u8]> = Vec::new();
        for part in bytes.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => {
                    parts.pop().ok_or_else(|| RelPathError::Escapes(bytes.into()))?;
                }
                part => parts.push(part),
            }
        }
        Ok(Self(parts.join(&b'/')))
    }

    /// This path with one more component, as `readdir` gives it.
    pub fn join(&self, name: &[u8]) -> Result<Self, RelPathError> {
        if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
            return Err(RelPathError::NotAName(name.into()));
        }
        if name.contains(&0) {
            return Err(RelPathError::Nul(name.into()));
        }
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.len());
        bytes.extend_from_slice(&self.0);
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        Ok(Self(bytes))
    }

    /// The bytes, without a leading slash.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As a relative [`Path`]; the root is the empty path.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// As a relative [`Path`] that system calls take; the root is `.`.
    pub fn as_path_or_dot(&self) -> &Path {
        if self.is_root() { Path::new(".") } else { self.as_path() }
    }

    /// Whether this is the project's root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The components, first to last.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
    }

    /// The last component.
    pub fn file_name(&self) -> Option<&[u8]> {
        self.components().next_back()
    }

    /// The path without its last component; `None` for the root.
    pub fn parent(&self) -> Option<RelPath> {
        if self.is_root() {
            return None;
        }
        let cut = self.0.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        Some(Self(self.0[..cut].to_vec()))
    }

    /// The bytes of [`RelPath::parent`]; nothing for the root, too.
    pub fn parent_bytes(&self) -> &[u8] {
        let cut = self.0.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        &self.0[..cut]
    }

    /// The parents from the nearest up to and including the root.
    pub fn ancestors(&self) -> impl Iterator<Item = RelPath> {
        std::iter::successors(self.parent(), RelPath::parent)
    }

    /// Whether this path is `other` or lies below it.
    pub fn starts_with(&self, other: &RelPath) -> bool {
        other.is_root()
            || self.0 == other.0
            || (self.0.starts_with(&other.0) && self.0.get(other.0.len()) == Some(&b'/'))
    }

    /// Number of components.
    pub fn depth(&self) -> usize {
        self.components().count()
    }

    /// As a byte string.
    pub fn to_byte_string(&self) -> ByteString {
        self.0.as_slice().into()
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{self}`")
    }
}

/// Shown escaped, see [`crate::escape::visible`]; the root is `.`.
impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            f.write_str(".")
        } else {
            f.write_str(&crate::escape::visible(&self.0))
        }
    }
}

impl Serialize for RelPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_byte_string().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RelPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = ByteString::deserialize(deserializer)?;
        let path = Self::parse(bytes.as_bytes()).map_err(de::Error::custom)?;
        if path.as_bytes() == bytes.as_bytes() {
            Ok(path)
        } else {
            Err(de::Error::custom(format!("path `{bytes}` is not in normal form")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalises_and_refuses_to_leave() {
        let parse = |text: &str| RelPath::parse(text.as_bytes()).map(|path| path.to_string());
        assert_eq!(parse("a//b/./c/../d/").unwrap(), "a/b/d");
        assert_eq!(parse("").unwrap(), ".");
        assert_eq!(parse("a/..").unwrap(), ".");
        assert!(matches!(parse("a/../../b"), Err(RelPathError::Escapes(_))));
        assert!(matches!(parse("/etc"), Err(RelPathError::Absolute(_))));
        assert!(matches!(parse("a\0b"), Err(RelPathError::Nul(_))));
    }

    #[test]
    fn prefix_is_by_component() {
        let path = |text: &str| RelPath::parse(text.as_bytes()).unwrap();
        assert!(path("a/b").starts_with(&path("a")));
        assert!(!path("ab").starts_with(&path("a")));
        assert!(path("a").starts_with(&RelPath::root()));
        assert_eq!(
            path("a/b/c").ancestors().map(|p| p.to_string()).collect::<Vec<_>>(),
            ["a/b", "a", "."]
        );
    }
}
