//! Patterns over paths inside the project: one grammar for every rule, on bytes.
//!
//! A pattern is a path with wildcards: `*` and `?` (one byte) stay within a name, `**` as a whole
//! name crosses directories, `[ab]`, `{a,b}` and `\` work as in a shell. A leading `/` anchors at
//! the project's root, a trailing `/` or `/**` means a directory and everything below it.
//!
//! What a pattern reaches depends on what it does ([`Reach`]): a pattern that *takes away* (hide,
//! deny) errs on the side of matching more, one that *gives* (allow, select) matches exactly what
//! it says.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use skep_types::{ByteString, RelPath};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Why a pattern was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Nothing to match.
    #[error("pattern `{0}` is empty")]
    Empty(ByteString),
    /// A `..` could leave the project.
    #[error("pattern `{0}` contains `..`; patterns stay inside the project")]
    Parent(ByteString),
    /// A name cannot hold a NUL byte.
    #[error("pattern `{0}` contains a NUL byte")]
    Nul(ByteString),
    /// Unbalanced brackets and the like.
    #[error("pattern `{pattern}` is malformed: {reason}")]
    Malformed {
        /// The pattern.
        pattern: ByteString,
        /// What is wrong with it.
        reason: String,
    },
}

/// How far a pattern reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// From the project's root; wildcards match the entry itself, a plain path also what is below.
    Exact,
    /// A single name matches at any depth; whatever matches takes everything below it along.
    Wide,
}

/// A pattern after its slashes were put in order.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Normal {
    /// For globset.
    glob: String,
    /// The path it is, when it has no wildcard and starts at the root.
    literal: Option<RelPath>,
}

fn normalise(text: &str, reach: Reach) -> Result<Normal, PatternError> {
    let shown = || ByteString::from(text);
    if text.contains('\0') {
        return Err(PatternError::Nul(shown()));
    }
    let mut names: Vec<&str> =
        text.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
    if names.contains(&"..") {
        return Err(PatternError::Parent(shown()));
    }
    // `dir/**` takes `dir` along where matching more is the safe side.
    while reach == Reach::Wide && names.len() > 1 && names.last() == Some(&"**") {
        names.pop();
    }
    if names.is_empty() {
        return Err(PatternError::Empty(shown()));
    }
    let anywhere = reach == Reach::Wide && names.len() == 1 && !text.starts_with('/');
    let joined = names.join("/");
    let literal =
        (!anywhere && !is_wild(&joined)).then(|| RelPath::parse(joined.as_bytes()).ok()).flatten();
    let glob = if anywhere { format!("**/{joined}") } else { joined };
    Ok(Normal { glob, literal })
}

/// Whether a text holds a character that a pattern gives a meaning to.
pub fn is_wild(text: &str) -> bool {
    text.contains(['*', '?', '[', '{', '\\'])
}

fn build(glob: &str, text: &str) -> Result<globset::Glob, PatternError> {
    let built = GlobBuilder::new(glob).literal_separator(true).backslash_escape(true).build();
    built.map_err(|error| PatternError::Malformed {
        pattern: text.into(),
        reason: error.kind().to_string(),
    })
}

/// Several patterns of one reach, matched together.
#[derive(Debug, Clone)]
pub(crate) struct PatternSet {
    reach: Reach,
    texts: Vec<String>,
    literals: Vec<Option<RelPath>>,
    set: GlobSet,
}

impl PatternSet {
    /// The patterns as they were typed.
    pub(crate) fn texts(&self) -> &[String] {
        &self.texts
    }

    /// Compiles patterns; the first bad one is the error.
    pub(crate) fn new<T: AsRef<str>>(patterns: &[T], reach: Reach) -> Result<Self, PatternError> {
        let mut builder = GlobSetBuilder::new();
        let mut texts = Vec::with_capacity(patterns.len());
        let mut literals = Vec::with_capacity(patterns.len());
        for text in patterns {
            let text = text.as_ref();
            let normal = normalise(text, reach)?;
            builder.add(build(&normal.glob, text)?);
            texts.push(text.to_owned());
            literals.push(normal.literal);
        }
        let set = builder.build().map_err(|error| PatternError::Malformed {
            pattern: texts.join(" ").into(),
            reason: error.to_string(),
        })?;
        Ok(Self { reach, texts, literals, set })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    pub(crate) fn text(&self, index: usize) -> &str {
        self.texts.get(index).map_or("", String::as_str)
    }

    /// The patterns that are plain paths from the root.
    pub(crate) fn literals(&self) -> impl Iterator<Item = &RelPath> {
        self.literals.iter().flatten()
    }

    /// The first pattern that matches `path`, by its place in the list.
    pub(crate) fn first(&self, path: &RelPath) -> Option<usize> {
        let mut best = self.entry(path.as_bytes()).into_iter().min();
        match self.reach {
            Reach::Wide => {
                for parent in parents(path.as_bytes()) {
                    best = best.into_iter().chain(self.entry(parent)).min();
                }
            }
            Reach::Exact => {
                let below = self.literals.iter().position(|literal| {
                    literal.as_ref().is_some_and(|literal| path.starts_with(literal))
                });
                best = best.into_iter().chain(below).min();
            }
        }
        best
    }

    /// The patterns that match exactly this entry, without looking at its parents.
    pub(crate) fn entry(&self, bytes: &[u8]) -> Vec<usize> {
        if bytes.is_empty() || self.texts.is_empty() {
            return Vec::new();
        }
        self.set.matches(as_path(bytes))
    }
}

/// The directories above an entry, nearest first, the root left out.
pub(crate) fn parents(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &bytes[..at])
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    fn hits(pattern: &str, reach: Reach, candidate: &str) -> bool {
        PatternSet::new(&[pattern], reach).unwrap().first(&path(candidate)).is_some()
    }

    #[test]
    fn a_giving_pattern_matches_what_it_says() {
        for (pattern, candidate, expected) in [
            ("src", "src/a/b.rs", true),
            ("src/", "src/a", true),
            ("./src", "src", true),
            ("src", "lib/src/a", false),
            ("src", "srcs", false),
            ("*.rs", "a.rs", true),
            ("*.rs", "src/a.rs", false),
            ("**/*.rs", "src/a.rs", true),
            ("**/*.rs", "a.rs", true),
            ("src/*", "src/a", true),
            ("src/*", "src/a/b", false),
            ("src/**", "src/a/b", true),
            ("src/**", "src", false),
            ("{a,b}/x", "b/x", true),
            ("a/?", "a/b", true),
            ("a?b", "a/b", false),
            ("*", ".hidden", true),
        ] {
            assert_eq!(hits(pattern, Reach::Exact, candidate), expected, "{pattern} {candidate}");
        }
    }

    #[test]
    fn a_taking_pattern_takes_everything_below_along() {
        for (pattern, candidate, expected) in [
            ("secret", "a/b/secret", true),
            ("secret", "a/secret/b", true),
            ("/secret", "a/secret", false),
            ("/secret", "secret/x", true),
            ("a/secret", "b/a/secret", false),
            ("*.pem", "a/b/c/d/e/x.pem", true),
            ("keys/**", "keys", true),
            ("keys/*", "keys/a/b", true),
        ] {
            assert_eq!(hits(pattern, Reach::Wide, candidate), expected, "{pattern} {candidate}");
        }
    }

    #[test]
    fn bad_patterns_are_refused() {
        let error = |text: &str| PatternSet::new(&[text], Reach::Exact).unwrap_err();
        assert!(matches!(error(""), PatternError::Empty(_)));
        assert!(matches!(error("./"), PatternError::Empty(_)));
        assert!(matches!(error("../x"), PatternError::Parent(_)));
        assert!(matches!(error("a\0"), PatternError::Nul(_)));
        assert!(matches!(error("a[b"), PatternError::Malformed { .. }));
        assert!(error("a[b").to_string().starts_with("pattern `a[b` is malformed"));
    }

    #[test]
    fn any_byte_in_a_name_can_match() {
        let set = PatternSet::new(&["a/*"], Reach::Exact).unwrap();
        for name in [&b"\xff\xfe"[..], b"new\nline", b"\x1b[2J", b"-rf", b"x.", b"...", b"*"] {
            let candidate = path("a").join(name).unwrap();
            assert!(set.first(&candidate).is_some(), "{candidate}");
        }
    }
}
