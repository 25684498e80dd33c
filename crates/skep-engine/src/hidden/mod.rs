//! The project's files that the inside must not see: found by [`search`], covered by [`mask`].
//!
//! The search goes through the whole project but for packages and caches, where only what the caller
//! hides is looked for; the report says so. What it could not look at is not hidden, and the
//! report says so. Where the caller typed names or globs, it is refused then.

mod mask;
mod search;

pub use mask::make_mask;
pub(crate) use search::{SearchError, Searched, search, topmost};

use skep_types::{Access, EnforcementReport, Layer, LayerReport, Policy};

const UNSEARCHED: &str = "the search for secrets could not list ";

/// The report says how much is hidden, and whether more could have been.
pub(crate) fn note_hidden(report: &mut EnforcementReport, hidden: usize, searched: &Searched) {
    let Some(LayerReport { how, reason, .. }) = report.0.get_mut(&Layer::Filesystem) else {
        return;
    };
    // A walk of all packages at every start would cost more than the start; see SECURITY.md.
    let paths = crate::review::counted(hidden as u64, "path", "paths");
    how.push_str(&format!(", {paths} hidden (not searched for in packages and caches)"));
    if let Searched::Except { directory, others } = searched {
        let others = match others {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let more = format!(
            "{UNSEARCHED}`{directory}`{others}: `.env` files and keys there may be readable by \
             their names"
        );
        *reason = Some(reason.take().into_iter().chain([more]).collect::<Vec<_>>().join("; "));
    }
}

/// The report says what of the host was opened on request: somebody else's sandbox cannot be judged
/// otherwise.
pub(crate) fn note_opened(report: &mut EnforcementReport, policy: &Policy) {
    let Some(LayerReport { how, reason, .. }) = report.0.get_mut(&Layer::Filesystem) else {
        return;
    };
    if let Some(writable) = writable_outside(policy) {
        // Before what else is said: `unsearched` takes the rest of the sentence.
        *reason = Some([writable].into_iter().chain(reason.take()).collect::<Vec<_>>().join("; "));
    }
    let mounts = policy.mounts.iter().map(|mount| {
        let access = match mount.access {
            Access::Ro => "ro",
            Access::Rw => "rw",
        };
        format!("`{}` at `{}` ({access})", mount.source, mount.target)
    });
    let home = policy.home.iter().map(|piece| format!("`~/{piece}` (ro)"));
    let opened: Vec<String> = mounts.chain(home).collect();
    if !opened.is_empty() {
        how.push_str(&format!("; of the host also: {}", opened.join(", ")));
    }
    if !policy.show.is_empty() {
        how.push_str(&format!("; shown on request: `{}`", policy.show.join("`, `")));
    }
}

/// What of the host is written by whoever writes inside.
pub(crate) fn writable_outside(policy: &Policy) -> Option<String> {
    let writable = policy.mounts.iter().filter(|mount| mount.access == Access::Rw);
    let places: Vec<String> =
        writable.map(|mount| format!("`{}` at `{}`", mount.source, mount.target)).collect();
    let many = !places.is_empty();
    many.then(|| format!("the host's own files can be written inside: {}", places.join(", ")))
}

/// What a report says of directories that could not be searched for secrets.
pub fn unsearched(report: &EnforcementReport) -> Option<&str> {
    let reason = report.0.get(&Layer::Filesystem)?.reason.as_deref()?;
    reason.find(UNSEARCHED).and_then(|at| reason.get(at..))
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::RelPath;

    #[test]
    fn what_could_not_be_searched_is_said_beside_other_reasons() {
        let mut report = EnforcementReport::default();
        report.on(Layer::Filesystem, "overlay");
        note_hidden(&mut report, 1, &Searched::Whole);
        assert_eq!(unsearched(&report), None);
        report.0.get_mut(&Layer::Filesystem).unwrap().reason = Some("no overlay".into());
        let directory = RelPath::parse(b"a/shut").unwrap();
        note_hidden(&mut report, 1, &Searched::Except { directory, others: 2 });
        let said = unsearched(&report).unwrap();
        assert!(said.starts_with("the search for secrets could not list `a/shut` and 2 more"));
        assert!(report.0[&Layer::Filesystem].reason.as_ref().unwrap().starts_with("no overlay; "));
    }
}
