//! Which paths a person means on the command line.
//!
//! A word is first the path it spells (a directory means everything below it), and then a glob
//! from the project's root. Both are needed: `pages/[id].tsx` is a common file name and also a
//! pattern. [`PathSelector::settled`] decides per word: what literally names something is that
//! thing only, so that naming a file can never take others along.

use crate::pattern::{PatternError, PatternSet, Reach, is_wild};
use skep_types::{ByteString, RelPath};

#[derive(Debug, Clone)]
struct Word {
    typed: ByteString,
    /// The path it spells, when it spells one inside the project.
    literal: Option<RelPath>,
    /// The glob it is, when it has wildcards and is well formed.
    glob: Option<PatternSet>,
}

/// A selection of paths. Without any word it selects everything.
#[derive(Debug, Clone, Default)]
pub struct PathSelector {
    words: Vec<Word>,
}

impl PathSelector {
    /// Reads the words as typed, relative to the project's root.
    ///
    /// A word that is not well formed as a glob (`a[`) is the path it spells; a word that could
    /// leave the project is an error. A word that is not UTF-8 is only a path, never a glob.
    pub fn parse(words: &[ByteString]) -> Result<Self, PatternError> {
        let words = words.iter().map(parse_word).collect::<Result<_, _>>()?;
        Ok(Self { words })
    }

    /// Whether nothing in particular was named.
    pub fn is_everything(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether the selection has this path.
    pub fn matches(&self, path: &RelPath) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| word.matches(path))
    }

    /// The same selection for a known list of paths: a word that literally names one of them, or
    /// a directory above one, no longer acts as a glob.
    #[must_use]
    pub fn settled<'a>(mut self, paths: impl IntoIterator<Item = &'a RelPath> + Clone) -> Self {
        for word in self.words.iter_mut().filter(|word| word.glob.is_some()) {
            let Some(literal) = &word.literal else { continue };
            if paths.clone().into_iter().any(|path| path.starts_with(literal)) {
                word.glob = None;
            }
        }
        self
    }

    /// The words that match none of these paths, as typed.
    pub fn unmatched<'a>(
        &self,
        paths: impl IntoIterator<Item = &'a RelPath> + Clone,
    ) -> Vec<&ByteString> {
        let idle = |word: &&Word| !paths.clone().into_iter().any(|path| word.matches(path));
        self.words.iter().filter(idle).map(|word| &word.typed).collect()
    }
}

impl Word {
    fn matches(&self, path: &RelPath) -> bool {
        self.literal.as_ref().is_some_and(|literal| path.starts_with(literal))
            || self.glob.as_ref().is_some_and(|glob| glob.first(path).is_some())
    }
}

fn parse_word(typed: &ByteString) -> Result<Word, PatternError> {
    let bytes = typed.as_bytes();
    if bytes.is_empty() {
        return Err(PatternError::Empty(typed.clone()));
    }
    if bytes.contains(&0) {
        return Err(PatternError::Nul(typed.clone()));
    }
    let literal = RelPath::parse(bytes.strip_prefix(b"/").unwrap_or(bytes))
        .map_err(|_| PatternError::Parent(typed.clone()))?;
    let glob = std::str::from_utf8(bytes)
        .ok()
        .filter(|text| is_wild(text))
        .and_then(|text| PatternSet::new(&[text], Reach::Exact).ok());
    Ok(Word { typed: typed.clone(), literal: Some(literal), glob })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(bytes: &[u8]) -> RelPath {
        RelPath::parse(bytes).unwrap()
    }

    fn selector(words: &[&str]) -> PathSelector {
        let words: Vec<ByteString> = words.iter().map(|word| ByteString::from(*word)).collect();
        PathSelector::parse(&words).unwrap()
    }

    #[test]
    fn paths_directories_and_globs() {
        let all = selector(&[]);
        assert!(all.is_everything() && all.matches(&path(b"anything")));
        let some = selector(&["src/", "*.md", "docs/**/x"]);
        for (candidate, expected) in [
            ("src/a/b", true),
            ("src", true),
            ("srcs", false),
            ("README.md", true),
            ("docs/README.md", false),
            ("docs/a/b/x", true),
            ("docs/x", true),
        ] {
            assert_eq!(some.matches(&path(candidate.as_bytes())), expected, "{candidate}");
        }
        assert!(selector(&["."]).matches(&path(b"a")));
    }

    #[test]
    fn a_name_with_brackets_is_itself_once_settled() {
        let paths = [path(b"pages/[id].tsx"), path(b"pages/i.tsx")];
        let typed = selector(&["pages/[id].tsx"]);
        assert!(paths.iter().all(|path| typed.matches(path)));
        let settled = typed.settled(&paths);
        assert!(settled.matches(&paths[0]) && !settled.matches(&paths[1]));
        let glob = selector(&["pages/[ij].tsx"]).settled(&paths);
        assert!(glob.matches(&paths[1]) && !glob.matches(&paths[0]));
    }

    #[test]
    fn says_which_words_matched_nothing() {
        let paths = [path(b"a"), path(b"b/c")];
        let some = selector(&["a", "x", "b", "*.rs"]);
        let idle: Vec<String> = some.unmatched(&paths).iter().map(ToString::to_string).collect();
        assert_eq!(idle, ["x", "*.rs"]);
    }

    #[test]
    fn odd_words() {
        assert!(selector(&["a["]).matches(&path(b"a[")));
        assert!(selector(&["-rf"]).matches(&path(b"-rf")));
        let bytes = PathSelector::parse(&[ByteString::from(&b"\xff*"[..])]).unwrap();
        assert!(bytes.matches(&path(b"\xff*")) && !bytes.matches(&path(b"\xffa")));
        for bad in [&b""[..], b"..", b"a/../../b", b"a\0"] {
            assert!(PathSelector::parse(&[bad.into()]).is_err(), "{bad:?}");
        }
    }

    /// Matches names against names, one wildcard at a time, without a library.
    fn naive(pattern: &[&[u8]], names: &[&[u8]]) -> bool {
        match (pattern.split_first(), names.split_first()) {
            (None, None) => true,
            (Some((&b"**", [])), _) => !names.is_empty(),
            (Some((&b"**", rest)), _) => {
                (0..=names.len()).any(|skipped| naive(rest, &names[skipped..]))
            }
            (Some((first, rest)), Some((name, others))) => {
                naive_name(first, name) && naive(rest, others)
            }
            _ => false,
        }
    }

    fn naive_name(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) => {
                (0..=name.len()).any(|taken| naive_name(rest, &name[taken..]))
            }
            (Some((b'?', rest)), Some((_, others))) => naive_name(rest, others),
            (Some((first, rest)), Some((byte, others))) => {
                first == byte && naive_name(rest, others)
            }
            _ => false,
        }
    }

    fn model(word: &str, candidate: &RelPath) -> bool {
        let pattern: Vec<&[u8]> = word.split('/').map(str::as_bytes).collect();
        let names: Vec<&[u8]> = candidate.components().collect();
        naive(&pattern, &names) || candidate.starts_with(&path(word.as_bytes()))
    }

    proptest! {
        #[test]
        fn agrees_with_a_naive_model(
            pattern in proptest::collection::vec("[ab*?.]{1,3}|\\*\\*", 1..5),
            names in proptest::collection::vec("[ab.]{1,3}", 1..6),
        ) {
            // `.` and `..` are steps of a path, not names.
            prop_assume!(pattern.iter().chain(&names).all(|name| name != "." && name != ".."));
            let word = pattern.join("/");
            let candidate = path(names.join("/").as_bytes());
            prop_assert_eq!(selector(&[&word]).matches(&candidate), model(&word, &candidate));
        }

        #[test]
        fn every_name_selects_itself(bytes in proptest::collection::vec(1u8.., 1..30)) {
            if let Ok(candidate) = RelPath::parse(&bytes) {
                let word = PathSelector::parse(&[candidate.to_byte_string()]);
                prop_assert!(candidate.is_root() || word.unwrap().matches(&candidate));
            }
        }
    }
}
