//! The kept output of all execs of a sandbox together: bounded, the oldest goes first.
//!
//! Each exec's own log has a limit; a thousand execs had a thousand times as much, on the disk of the state
//! directory, where no limit of the sandbox's own disk counts.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::SystemTime;

/// How many times its limit of output a sandbox keeps.
const LOGS: u64 = 16;

/// What is known of the output that is kept.
#[derive(Debug, Default)]
pub struct Shelf {
    /// Bytes, when it was last counted.
    counted: Option<u64>,
    /// What those that began since then may add.
    promised: u64,
}

#[derive(Debug)]
struct Kept {
    bytes: u64,
    last: SystemTime,
}

impl Shelf {
    /// Makes room for an exec that may keep `next` bytes, where one may keep `limit`. The logs of those
    /// that `runs` says yes to stay. Counts only when it may be too much; what cannot be removed is tried
    /// again with the next exec.
    pub fn make_room(
        &mut self,
        directory: &Path,
        limit: u64,
        next: u64,
        runs: impl Fn(&str) -> bool,
    ) -> io::Result<()> {
        let most = limit.saturating_mul(LOGS);
        self.promised = self.promised.saturating_add(next);
        if self.counted.is_some_and(|counted| counted.saturating_add(self.promised) <= most) {
            return Ok(());
        }
        let logs = logs(directory)?;
        let mut bytes: u64 = logs.values().map(|kept| kept.bytes).sum();
        let mut oldest: Vec<_> = logs.iter().filter(|(exec, _)| !runs(exec)).collect();
        oldest.sort_by_key(|(_, kept)| kept.last);
        for (exec, kept) in oldest {
            if bytes.saturating_add(next) <= most {
                break;
            }
            for name in PARTS {
                match std::fs::remove_file(directory.join(format!("{exec}.{name}"))) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            bytes -= kept.bytes;
        }
        (self.counted, self.promised) = (Some(bytes), next);
        Ok(())
    }
}

/// The files of a log, behind the exec's id.
const PARTS: [&str; 3] = ["head", "tail0", "tail1"];

fn logs(directory: &Path) -> io::Result<BTreeMap<String, Kept>> {
    let mut found: BTreeMap<String, Kept> = BTreeMap::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some((exec, part)) = name.to_str().and_then(|name| name.split_once('.')) else {
            continue;
        };
        // Most have printed nothing, and have only an end here: that is not looked at.
        if !PARTS.contains(&part) {
            continue;
        }
        let Ok(about) = entry.metadata() else { continue };
        let last = about.modified()?;
        let kept = found.entry(exec.to_owned()).or_insert(Kept { bytes: 0, last });
        kept.bytes += about.len();
        kept.last = kept.last.max(last);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_oldest_logs_go_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: usize, age: u64| {
            let path = folder.path().join(name);
            std::fs::write(&path, vec![b'x'; bytes]).unwrap();
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        };
        // Ten bytes each may keep: a hundred and sixty together.
        write("a.head", 80, 50);
        write("a.tail1", 20, 40);
        write("a.end", 500, 50);
        write("b.head", 50, 60);
        write("c.head", 9, 1);
        let mut shelf = Shelf::default();
        shelf.make_room(folder.path(), 10, 1, |_| false).unwrap();
        assert_eq!(names(folder.path()), ["a.end", "a.head", "a.tail1", "b.head", "c.head"]);
        // One byte more than there is room for: the oldest of those that do not run.
        shelf.make_room(folder.path(), 10, 2, |exec| exec == "b").unwrap();
        assert_eq!(
            names(folder.path()),
            ["a.end", "b.head", "c.head"],
            "what says how it ended stays"
        );
        // Counted once, it is not looked at again before there may be too much.
        write("d.head", 1000, 0);
        shelf.make_room(folder.path(), 10, 10, |_| false).unwrap();
        assert!(names(folder.path()).contains(&"d.head".to_owned()));
        shelf.make_room(folder.path(), 10, 100, |exec| exec == "d").unwrap();
        assert_eq!(names(folder.path()), ["a.end", "d.head"]);
    }
}
