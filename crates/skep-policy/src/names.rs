//! The built-in tables' own patterns: names in a row at any depth, `*` within a name.
//!
//! They need no more than this, and compiling two hundred globs into an automaton would cost
//! every start of `skep` a millisecond or two. Rules that people write go through
//! [`crate::pattern`]. The tables are put in order by `build.rs`.

/// Patterns such as `.env`, `*.pem` or `.cargo/config*`, found by the last name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NameTable {
    /// Those whose last name has no wildcard, in the order of that name.
    plain: &'static [Numbered],
    /// The others, in the order of where they can be taken hold of.
    wild: &'static [(Edge, Numbered)],
}

/// Where a pattern with a wildcard can be taken hold of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Edge {
    /// `*.pem`: names that end with this byte.
    End(u8),
    /// `.env.*`: names that begin with this byte.
    Start(u8),
    /// `*x*`: any name.
    Nowhere,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Numbered {
    number: usize,
    pattern: &'static [u8],
}

impl Numbered {
    pub(crate) const fn of(number: usize, pattern: &'static [u8]) -> Self {
        Self { number, pattern }
    }

    fn last(&self) -> &[u8] {
        last_name(self.pattern)
    }
}

fn last_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

impl NameTable {
    /// They are in the order in which they are searched.
    pub(crate) const fn in_order(
        plain: &'static [Numbered],
        wild: &'static [(Edge, Numbered)],
    ) -> Self {
        Self { plain, wild }
    }

    /// The patterns that match this entry, in order; its parents are not looked at on their own.
    pub(crate) fn entry(&self, path: &[u8]) -> Vec<usize> {
        let matching =
            self.candidates(last_name(path)).filter(|pattern| ends(path, pattern.pattern));
        let mut found: Vec<usize> = matching.map(|pattern| pattern.number).collect();
        found.sort_unstable();
        found
    }

    /// Whether some path with this last name could match. Most names can not, and no path has to
    /// be put together to find that out.
    pub(crate) fn could_match(&self, last: &[u8]) -> bool {
        self.candidates(last).any(|pattern| matches_name(pattern.last(), last))
    }

    fn candidates(&self, last: &[u8]) -> impl Iterator<Item = &Numbered> {
        let from = self.plain.partition_point(|pattern| pattern.last() < last);
        let plain = self.plain[from..].iter().take_while(move |pattern| pattern.last() == last);
        let (end, start) = (last.last().copied(), last.first().copied());
        let edges = [end.map(Edge::End), start.map(Edge::Start), Some(Edge::Nowhere)];
        plain.chain(edges.into_iter().flatten().flat_map(|edge| self.at(edge)))
    }

    fn at(&self, edge: Edge) -> impl Iterator<Item = &Numbered> {
        let from = self.wild.partition_point(|(other, _)| *other < edge);
        let here = self.wild[from..].iter().take_while(move |(other, _)| *other == edge);
        here.map(|(_, pattern)| pattern)
    }
}

fn ends(path: &[u8], pattern: &[u8]) -> bool {
    let slash = |byte: &u8| *byte == b'/';
    let mut names = path.rsplit(slash);
    pattern.rsplit(slash).all(|part| names.next().is_some_and(|name| matches_name(part, name)))
}

/// Whether a name with `*` matches, byte by byte.
pub(crate) fn matches_name(pattern: &[u8], name: &[u8]) -> bool {
    // Nearly every pattern is of another name, which nearly always begins with another byte.
    if pattern.first().is_some_and(|first| *first != b'*' && name.first() != Some(first)) {
        return false;
    }
    let star = |byte: &u8| *byte == b'*';
    let (Some(first), Some(last)) = (pattern.iter().position(star), pattern.iter().rposition(star))
    else {
        return pattern == name;
    };
    let (before, after) = (&pattern[..first], &pattern[last + 1..]);
    let Some(rest) = name.strip_prefix(before) else { return false };
    let Some(mut rest) = rest.strip_suffix(after) else { return false };
    for part in pattern[first..last].split(star).filter(|part| !part.is_empty()) {
        // The earliest place is as good as any: whatever follows has the most room.
        match rest.windows(part.len()).position(|window| window == part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

/// What `build.rs` has to come to.
#[cfg(test)]
impl NameTable {
    /// The patterns, called by their place.
    pub(crate) fn new(patterns: impl IntoIterator<Item = &'static [u8]>) -> Self {
        Self::numbered(patterns.into_iter().enumerate())
    }

    /// The patterns, called by the numbers given.
    pub(crate) fn numbered(patterns: impl IntoIterator<Item = (usize, &'static [u8])>) -> Self {
        let edge = |name: &[u8]| match (name.first(), name.last()) {
            (_, Some(end)) if *end != b'*' => Edge::End(*end),
            (Some(start), _) if *start != b'*' => Edge::Start(*start),
            _ => Edge::Nowhere,
        };
        let (mut plain, mut wild) = (Vec::new(), Vec::new());
        for (number, pattern) in patterns {
            let pattern = Numbered::of(number, pattern);
            match pattern.last().contains(&b'*') {
                false => plain.push(pattern),
                true => wild.push((edge(pattern.last()), pattern)),
            }
        }
        plain.sort_by(|a, b| a.last().cmp(b.last()));
        wild.sort_by_key(|(edge, _)| *edge);
        Self::in_order(plain.leak(), wild.leak())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_in_a_row_at_any_depth() {
        let table = NameTable::new([".env", "*.pem", ".cargo/config*", "a/b"].map(str::as_bytes));
        assert_eq!(table.entry(b"x/y/.env"), [0]);
        assert_eq!(table.entry(b"x.pem"), [1]);
        assert_eq!(table.entry(b"z/.cargo/config.toml"), [2]);
        assert_eq!(table.entry(b"config.toml"), [0usize; 0]);
        assert_eq!(table.entry(b"a/b"), [3]);
        assert_eq!(table.entry(b"a/b/c"), [0usize; 0]);
        assert_eq!(table.entry(b""), [0usize; 0]);
    }

    fn naive(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) => (0..=name.len()).any(|taken| naive(rest, &name[taken..])),
            (Some((a, rest)), Some((b, others))) => a == b && naive(rest, others),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_naive_model(pattern in "[AB*]{0,6}", name in "[AB]{0,8}") {
            prop_assert_eq!(
                matches_name(pattern.as_bytes(), name.as_bytes()),
                naive(pattern.as_bytes(), name.as_bytes())
            );
        }
    }
}
