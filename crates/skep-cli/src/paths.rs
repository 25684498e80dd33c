//! PATHs as typed, relative to the current directory, become paths of the project.

use crate::context::show_path;
use skep_types::{ByteString, Change, ChangeSet, Code, Problem, RelPath};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

/// From where relative paths are read: the current directory if it is in the project, else the
/// project itself.
pub(crate) fn start<'a>(directory: &'a Path, project: &'a Path) -> &'a Path {
    if directory.starts_with(project) { directory } else { project }
}

/// One path of the project. It need not exist, and nothing is looked up: a symbolic link in it is
/// a path of the project like any other.
pub(crate) fn in_project(word: &OsStr, start: &Path, project: &Path) -> Result<RelPath, Problem> {
    // A variable that is not set, most often; it must not mean the whole project.
    if word.is_empty() {
        let message = "an empty path names nothing".to_owned();
        return Err(Problem::new(Code::Usage, message).hint("`.` is the directory one stands in"));
    }
    let outside = || {
        let message = format!(
            "path `{}` is not in project `{}`",
            show_path(Path::new(word)),
            show_path(project)
        );
        Problem::new(Code::Usage, message)
    };
    let whole = without_dots(&start.join(word)).ok_or_else(outside)?;
    let below = whole.strip_prefix(project).map_err(|_| outside())?;
    RelPath::parse(below.as_os_str().as_bytes())
        .map_err(|error| Problem::new(Code::Usage, error.to_string()))
}

/// One path among those that are known. Paths are shown from the project's root, and what was shown
/// can be typed: a word that names nothing known from the current directory, and nothing that is there,
/// is read from the root, if it names something there.
pub(crate) fn among<'a>(
    word: &OsStr,
    start: &Path,
    project: &Path,
    known: impl IntoIterator<Item = &'a RelPath> + Clone,
) -> Result<RelPath, Problem> {
    let here = in_project(word, start, project)?;
    let names = |path: &RelPath| known.clone().into_iter().any(|known| known.starts_with(path));
    if start == project || names(&here) {
        return Ok(here);
    }
    // What stands here is what is meant, also when nothing can be done with it.
    if std::fs::symlink_metadata(project.join(here.as_path())).is_ok() {
        return Ok(here);
    }
    let from_root = in_project(word, project, project).ok().filter(names);
    Ok(from_root.unwrap_or(here))
}

/// Whether some of the words can be read in two ways, so that the known paths are needed.
pub(crate) fn has_two_readings(words: &[OsString], start: &Path, project: &Path) -> bool {
    let from_root =
        |word: &OsString| Path::new(word).is_absolute() && !Path::new(word).starts_with(project);
    (start != project && !words.is_empty()) || words.iter().any(from_root)
}

/// A selection for `diff`, `approve` and `reject`: paths and globs are made relative to the project. A
/// glob is read from where one stands, as a shell would; with `/` before it, from the project's root, and
/// so is a path that names a change there.
pub(crate) fn select(
    words: &[OsString],
    start: &Path,
    project: &Path,
    set: Option<&ChangeSet>,
) -> Result<Vec<ByteString>, Problem> {
    let changes = set.map_or(&[][..], |set| &set.changes);
    let one = |word: &OsString| {
        let whole = Path::new(word).is_absolute() && !Path::new(word).starts_with(project);
        if let (true, Some(glob)) = (whole, word.as_bytes().strip_prefix(b"/"))
            && is_glob(glob)
        {
            return Ok(ByteString::from(glob));
        }
        if let (true, Some(below)) = (whole, word.as_bytes().strip_prefix(b"/"))
            && let Ok(path) = RelPath::parse(below)
            && changes.iter().any(|change| change.path.starts_with(&path))
        {
            return Ok(ByteString::from(path.as_path_or_dot()));
        }
        let path = among(word, start, project, changes.iter().map(|change| &change.path))?;
        let names = |change: &Change| change.path.starts_with(&path);
        let below = start.strip_prefix(project).unwrap_or(Path::new("")).as_os_str().as_bytes();
        if is_glob(word.as_bytes()) && is_glob(below) && !changes.iter().any(names) {
            return Ok(glob_below(below, word));
        }
        Ok(ByteString::from(path.as_path_or_dot()))
    };
    words.iter().map(one).collect()
}

/// A glob below a directory in whose name the same characters mean nothing.
fn glob_below(directory: &[u8], word: &OsStr) -> ByteString {
    let mut glob = Vec::new();
    for byte in directory {
        match is_glob(&[*byte]) {
            true => glob.extend([b'[', *byte, b']']),
            false => glob.push(*byte),
        }
    }
    glob.push(b'/');
    glob.extend_from_slice(word.as_bytes());
    ByteString::from(glob)
}

/// Whether a word has characters that mean something in a glob.
pub(crate) fn is_glob(word: &[u8]) -> bool {
    word.iter().any(|byte| b"*?[{".contains(byte))
}

/// `a/./b/../c` without dots, by text alone; `None` if it climbs above the root.
fn without_dots(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                if !plain.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStringExt as _;

    fn path(word: &str) -> Result<String, Code> {
        in_project(word.as_ref(), Path::new("/p/src"), Path::new("/p"))
            .map(|path| path.to_string())
            .map_err(|problem| problem.code)
    }

    #[test]
    fn relative_to_where_one_stands() {
        assert_eq!(path("main.rs").unwrap(), "src/main.rs");
        assert_eq!(path("../a").unwrap(), "a");
        assert_eq!(path("/p/x/./y").unwrap(), "x/y");
        assert_eq!(path("..").unwrap(), ".");
        assert_eq!(path("../../etc").unwrap_err(), Code::Usage);
        assert_eq!(path("/etc").unwrap_err(), Code::Usage);
        assert_eq!(path("/pp/x").unwrap_err(), Code::Usage);
        assert_eq!(start(Path::new("/elsewhere"), Path::new("/p")), Path::new("/p"));
    }

    #[test]
    fn globs_are_read_from_where_one_stands() {
        let words = ["*.rs", "x", "../", "./*.md", "/*.md", "../*.c"].map(OsString::from);
        let found = select(&words, Path::new("/p/src"), Path::new("/p"), None).unwrap();
        let wanted = ["src/*.rs", "src/x", ".", "src/*.md", "*.md", "*.c"];
        assert_eq!(found, wanted.map(ByteString::from));
        let odd = select(&["*".into()], Path::new("/p/[a]"), Path::new("/p"), None).unwrap();
        assert_eq!(odd, [ByteString::from("[[]a]/*")]);
        assert_eq!(path("").unwrap_err(), Code::Usage);
    }

    #[test]
    fn a_path_that_was_shown_can_be_typed() {
        let known =
            ["src/in", "in", "src/src/x"].map(|path| RelPath::parse(path.as_bytes()).unwrap());
        let read = |word: &str| {
            among(word.as_ref(), Path::new("/p/src"), Path::new("/p"), &known).unwrap().to_string()
        };
        assert_eq!(read("src/in"), "src/in");
        assert_eq!(read("in"), "src/in", "where one stands comes first");
        assert_eq!(read("src/x"), "src/src/x");
        assert_eq!(read("src"), "src/src");
        assert_eq!(read("nosuch"), "src/nosuch");
    }

    proptest! {
        /// Any bytes: either refused, or a path that is below the project and keeps its bytes.
        #[test]
        fn never_leaves_the_project(word in proptest::collection::vec(any::<u8>(), 0..40)) {
            let word = OsString::from_vec(word);
            if let Ok(found) = in_project(&word, Path::new("/p/src"), Path::new("/p")) {
                prop_assert!(found.components().all(|part| part != b".." && part != b"."));
                let again = in_project(found.as_path().as_os_str(), Path::new("/p"), Path::new("/p"));
                prop_assert_eq!(again.unwrap(), found);
            }
        }

        /// A plain name in the current directory is found there, whatever its bytes.
        #[test]
        fn a_plain_name_keeps_its_bytes(name in proptest::collection::vec(1u8..=255, 1..30)) {
            prop_assume!(!name.contains(&b'/') && name != b"." && name != b"..");
            let word = OsString::from_vec(name.clone());
            let found = in_project(&word, Path::new("/p/src"), Path::new("/p")).unwrap();
            prop_assert_eq!(found.file_name().unwrap(), name.as_slice());
        }
    }
}
