//! The warnings of a list. Two sandboxes that are at odds over a path are each told of the other: a list of
//! both says it once, path by path, with everybody who is in it.

use skep_engine::api::SandboxView;
use std::collections::BTreeSet;

/// What the engine says of two sandboxes that changed the same paths (`early_warning.rs` there).
struct Overlap<'a> {
    /// The other sandbox.
    with: &'a str,
    /// The paths that are named, as they are shown.
    paths: Vec<&'a str>,
    /// Whether there are some that are not.
    more: bool,
}

impl<'a> Overlap<'a> {
    /// None for any other warning.
    fn read(warning: &'a str) -> Option<Self> {
        let (with, rest) = warning.strip_prefix("sandbox `")?.split_once("` also touched `")?;
        let (paths, more) = rest.rsplit_once('`')?;
        let more = more.strip_prefix(" and ").is_some_and(|more| more.ends_with(" more"));
        Some(Self { with, paths: paths.split("`, `").collect(), more })
    }
}

/// Sandboxes of one project, and what they are at odds over.
struct Dispute<'a> {
    project: &'a [u8],
    /// None stands for the paths that nobody named.
    path: Option<&'a str>,
    names: BTreeSet<&'a str>,
}

/// The warnings of all, those of several sandboxes about one path in one line.
pub(crate) fn folded(views: &[SandboxView]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut disputes: Vec<Dispute<'_>> = Vec::new();
    for view in views {
        for warning in &view.warnings {
            match Overlap::read(warning) {
                Some(overlap) => add(&mut disputes, view, &overlap),
                None => lines.push(format!("{}: {warning}", view.sandbox.name)),
            }
        }
    }
    disputes.sort_by_key(|dispute| dispute.path.is_none());
    lines.extend(disputes.iter().map(|dispute| said(dispute, views)));
    lines
}

fn add<'a>(disputes: &mut Vec<Dispute<'a>>, view: &'a SandboxView, overlap: &Overlap<'a>) {
    let project = view.sandbox.project.as_bytes();
    let unnamed = overlap.more.then_some(None);
    for path in overlap.paths.iter().copied().map(Some).chain(unnamed) {
        let known = disputes.iter().position(|one| one.project == project && one.path == path);
        let at = known.unwrap_or_else(|| {
            disputes.push(Dispute { project, path, names: BTreeSet::new() });
            disputes.len() - 1
        });
        disputes[at].names.extend([view.sandbox.name.as_str(), overlap.with]);
    }
}

/// In the order of the list.
fn said(dispute: &Dispute<'_>, views: &[SandboxView]) -> String {
    let place = |name: &str| views.iter().position(|view| view.sandbox.name.as_str() == name);
    let mut names: Vec<&str> = dispute.names.iter().copied().collect();
    names.sort_by_key(|name| place(name).unwrap_or(usize::MAX));
    let all = names.join(", ");
    match dispute.path {
        Some(path) => format!("`{path}`: changed differently in {all}"),
        None => {
            let words = names.join(" ");
            format!("more paths: changed differently in {all} (`skep compare {words}` lists them)")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    fn view(name: &str, warnings: &[&str]) -> SandboxView {
        let warnings = warnings.iter().map(|text| (*text).to_owned()).collect();
        SandboxView { warnings, ..fake::view(name) }
    }

    #[test]
    fn each_path_is_warned_of_once() {
        let views = [
            view(
                "try-2",
                &["sandbox `try-3` also touched `f`", "sandbox `try-1` also touched `f`, `g`"],
            ),
            view(
                "try-1",
                &["sandbox `try-3` also touched `f`", "sandbox `try-2` also touched `f`, `g`"],
            ),
            view(
                "try-3",
                &[
                    "sandbox `try-2` also touched `f`",
                    "sandbox `try-1` also touched `f`",
                    "is large",
                ],
            ),
        ];
        assert_eq!(
            folded(&views),
            [
                "try-3: is large",
                "`f`: changed differently in try-2, try-1, try-3",
                "`g`: changed differently in try-2, try-1",
            ]
        );
    }

    #[test]
    fn what_is_not_named_is_not_forgotten() {
        let views = [
            view("a", &["sandbox `b` also touched `1`, `2`, `3` and 4 more"]),
            view("b", &["sandbox `a` also touched `1`, `2`, `3` and 4 more"]),
        ];
        let lines = folded(&views);
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert_eq!(
            lines[3],
            "more paths: changed differently in a, b (`skep compare a b` lists them)"
        );
    }

    #[test]
    fn the_same_path_of_two_projects_is_two_paths() {
        let mut views = [
            view("a", &["sandbox `b` also touched `f`"]),
            view("c", &["sandbox `d` also touched `f`"]),
        ];
        views[1].sandbox.project = "/q".into();
        let expected = ["`f`: changed differently in a, b", "`f`: changed differently in c, d"];
        assert_eq!(folded(&views), expected);
    }
}
