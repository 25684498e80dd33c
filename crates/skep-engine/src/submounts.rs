//! Other filesystems that are mounted below a project. They are not crossed, and it is said.

use skep_types::RelPath;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Where something is mounted below `project`, sorted.
pub fn below(project: &Path) -> Vec<RelPath> {
    // Without the table nothing can be said; the view does not cross mounts in any case.
    let mut table = Vec::with_capacity(16 << 10);
    let _ = File::open("/proc/self/mountinfo").and_then(|mut file| file.read_to_end(&mut table));
    let mut found: Vec<_> = table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(unescape)
        .filter_map(|point| relative(&point, project))
        .collect();
    found.sort();
    found.dedup();
    found
}

fn relative(point: &[u8], project: &Path) -> Option<RelPath> {
    let project = std::os::unix::ffi::OsStrExt::as_bytes(project.as_os_str());
    let rest = point.strip_prefix(project)?.strip_prefix(b"/")?;
    RelPath::parse(rest).ok().filter(|path| !path.is_root())
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|digits| {
            *first == b'\\' && digits.iter().all(|digit| (b'0'..=b'7').contains(digit))
        });
        match digits {
            Some(digits) => {
                let value =
                    digits.iter().fold(0u32, |sum, digit| sum * 8 + u32::from(digit - b'0'));
                out.push(value as u8);
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_strictly_below_count() {
        let project = Path::new("/home/me/pro ject");
        let at = |text: &str| relative(&unescape(text.as_bytes()), project).map(|p| p.to_string());
        assert_eq!(at("/home/me/pro\\040ject/data"), Some("data".into()));
        assert_eq!(at("/home/me/pro\\040ject"), None);
        assert_eq!(at("/home/me/pro\\040jects"), None);
        assert_eq!(at("/"), None);
    }
}
