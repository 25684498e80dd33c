//! Other filesystems that are mounted below a project. They are not crossed, and it is said.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use skep_types::RelPath;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// The mount table as it was read, the file that tells when it is another one, and what was last asked of it.
struct Table {
    file: File,
    text: Vec<u8>,
    answer: Option<(PathBuf, Vec<RelPath>)>,
}

impl Table {
    fn read() -> io::Result<Self> {
        let mut file = File::open("/proc/self/mountinfo")?;
        let mut text = Vec::with_capacity(16 << 10);
        file.read_to_end(&mut text)?;
        Ok(Self { file, text, answer: None })
    }

    /// The kernel says so on the file that it was read from: proc_pid_mountinfo(5).
    fn is_still_true(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut watched = [PollFd::new(&self.file, PollFlags::PRI)];
        matches!(poll(&mut watched, Some(&now)), Ok(0))
    }
}

/// Asks the mount table. Making it up takes the kernel a tenth of a millisecond, and nearly always it is the same.
fn ask<T>(question: impl FnOnce(&mut Table) -> T) -> Option<T> {
    thread_local! {
        static LAST: RefCell<Option<Table>> = const { RefCell::new(None) };
    }
    LAST.with_borrow_mut(|last| {
        let known = last.take().filter(Table::is_still_true);
        *last = known.or_else(|| Table::read().ok());
        last.as_mut().map(question)
    })
}

/// Where something is mounted below `project`, sorted.
pub fn below(project: &Path) -> Vec<RelPath> {
    let answer = ask(|table| match &table.answer {
        Some((asked, found)) if asked == project => found.clone(),
        _ => {
            let found = found_below(&table.text, project);
            table.answer = Some((project.to_owned(), found.clone()));
            found
        }
    });
    // Without the table nothing can be said; the view does not cross mounts in any case.
    answer.unwrap_or_default()
}

fn found_below(table: &[u8], project: &Path) -> Vec<RelPath> {
    let mut found: Vec<_> = table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .filter_map(|point| match point.contains(&b'\\') {
            false => relative(point, project),
            true => relative(&unescape(point), project),
        })
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
    fn a_table_is_read_once_as_long_as_it_is_true() {
        let first = Table::read().unwrap();
        assert!(first.is_still_true() && first.is_still_true());
        assert_eq!(below(Path::new("/")), found_below(&first.text, Path::new("/")));
        let kept = || ask(|table| (table.text.as_ptr() as usize, table.answer.clone())).unwrap();
        let (place, answer) = kept();
        assert_eq!(answer.unwrap().0, Path::new("/"));
        assert_eq!(below(Path::new("/nowhere")), []);
        assert_eq!(kept(), (place, Some(("/nowhere".into(), Vec::new()))));
        assert_eq!(ask(|table| table.text.clone()).unwrap(), Table::read().unwrap().text);
    }

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
