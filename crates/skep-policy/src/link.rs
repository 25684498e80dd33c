//! Where a symbolic link points, judged by its text alone.
//!
//! Nothing is opened: the target is resolved from the link's own directory as if no other link
//! were in the way. A target that climbs above the project, even to come back, counts as leaving
//! it: where it ends depends on names outside the project.

use crate::dotgit::is_dot_git;
use skep_types::RelPath;

/// Where a link points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkTarget {
    /// Into the project.
    Inside(RelPath),
    /// To an absolute path.
    Absolute,
    /// To a part of the kernel's or the device tree: another thing for everyone who looks.
    System,
    /// Above the project's root.
    Escapes,
    /// Inside, through a name some system reads as `.git`.
    IntoGit(RelPath),
    /// Nowhere: the target is empty or has a NUL byte.
    Nowhere,
}

/// Where the link at `link` with the text `target` points.
pub fn link_target(link: &RelPath, target: &[u8]) -> LinkTarget {
    if target.is_empty() || target.contains(&0) {
        return LinkTarget::Nowhere;
    }
    if target.starts_with(b"/") {
        let first = target.split(|byte| *byte == b'/').find(|name| !matches!(*name, b"" | b"."));
        return match first {
            Some(b"proc" | b"sys" | b"dev") => LinkTarget::System,
            _ => LinkTarget::Absolute,
        };
    }
    let mut text = link.parent().unwrap_or_default().as_bytes().to_vec();
    text.push(b'/');
    text.extend_from_slice(target);
    // A link in the root gives `/target`; RelPath would read that as absolute.
    let text = text.strip_prefix(b"/").unwrap_or(&text);
    match RelPath::parse(text) {
        Err(_) => LinkTarget::Escapes,
        Ok(inside) if inside.components().any(is_dot_git) => LinkTarget::IntoGit(inside),
        Ok(inside) => LinkTarget::Inside(inside),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_from_the_links_directory() {
        let path = |text: &str| RelPath::parse(text.as_bytes()).unwrap();
        let at = |link: &str, target: &str| link_target(&path(link), target.as_bytes());
        assert_eq!(at("a/b/link", "../c"), LinkTarget::Inside(path("a/c")));
        assert_eq!(at("link", "a/b"), LinkTarget::Inside(path("a/b")));
        assert_eq!(at("a/link", ".."), LinkTarget::Inside(RelPath::root()));
        assert_eq!(at("a/link", "../.."), LinkTarget::Escapes);
        assert_eq!(at("link", "../project/x"), LinkTarget::Escapes);
        assert_eq!(at("a/link", "x/../../../project"), LinkTarget::Escapes);
        assert_eq!(at("link", "/etc/passwd"), LinkTarget::Absolute);
        assert_eq!(at("link", "/proc/self/environ"), LinkTarget::System);
        assert_eq!(at("link", "//./dev/sda"), LinkTarget::System);
        assert_eq!(at("a/link", "../.GIT/hooks"), LinkTarget::IntoGit(path(".GIT/hooks")));
        assert_eq!(at("link", ""), LinkTarget::Nowhere);
    }
}
