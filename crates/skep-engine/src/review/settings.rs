//! Files of the project that its own git settings lead to: hooks, further settings and attributes that
//! stand under any name (`core.hooksPath = tools/hooks`, `include.path = ../gitconfig`). A change of
//! these is a change of the hooks and settings themselves.
//!
//! Only the project's own settings are read, with a library and without running anything. What a home
//! directory (`~/…`) leads to is not followed: no home is known here.

use skep_types::RelPath;
use skep_workspace::held::Held;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Settings of a believable size.
const MOST_BYTES: u64 = 1 << 20;
/// Files of settings that are read; git itself follows ten.
const MOST_FILES: usize = 16;

/// A place of git's own, and what is read as it.
pub(super) struct Lead {
    pub(super) read_as: RelPath,
    pub(super) target: RelPath,
}

/// Everything that the settings of the repository at `root` (opened as `project`) lead to in it.
pub(super) fn leads(project: &Held<'_>, root: &Path) -> Vec<Lead> {
    let Ok(settings) = RelPath::parse(b".git/config") else { return Vec::new() };
    let mut found: Vec<Lead> = Vec::new();
    let mut pending = vec![settings.clone()];
    let mut read = 0;
    while let Some(file) = pending.pop() {
        read += 1;
        let Ok(bytes) = project.read(&file, MOST_BYTES) else { continue };
        let text = String::from_utf8_lossy(&bytes);
        let Ok(parsed) = gix::config::File::try_from(text.as_ref()) else { continue };
        for (read_as, from, value) in named(&parsed, &file) {
            let Some(target) = inside(root, &from, &value) else { continue };
            if found.iter().any(|lead| lead.target == target) {
                continue;
            }
            if read_as == settings && read < MOST_FILES {
                pending.push(target.clone());
            }
            found.push(Lead { read_as, target });
        }
    }
    found
}

/// What is read as what, from which directory a relative value counts, and the value.
fn named(parsed: &gix::config::File, file: &RelPath) -> Vec<(RelPath, RelPath, Vec<u8>)> {
    let beside = file.parent().unwrap_or_default();
    let mut all = Vec::new();
    let mut add = |read_as: &[u8], from: &RelPath, values: Vec<Vec<u8>>| {
        let read_as = RelPath::parse(read_as).unwrap_or_default();
        all.extend(values.into_iter().map(|value| (read_as.clone(), from.clone(), value)));
    };
    let values = |section: &str, name: &str| -> Vec<Vec<u8>> {
        let sections = parsed.sections_by_name(section).into_iter().flatten();
        sections.flat_map(|section| section.values(name)).map(Into::into).collect()
    };
    add(b".git/hooks", &RelPath::root(), values("core", "hooksPath"));
    add(b".git/info/attributes", &RelPath::root(), values("core", "attributesFile"));
    // A program that `git status` runs; where it is a switch, no file has its name.
    add(b".git/hooks/fsmonitor", &RelPath::root(), values("core", "fsmonitor"));
    add(b".git/config", &beside, values("include", "path"));
    add(b".git/config", &beside, values("includeIf", "path"));
    all
}

/// Where a value leads in the project, links followed; nothing, if it leads elsewhere.
fn inside(root: &Path, from: &RelPath, value: &[u8]) -> Option<RelPath> {
    let value = Path::new(std::ffi::OsStr::from_bytes(value));
    let place = root.join(from.as_path()).join(value);
    let below = match place.canonicalize() {
        Ok(real) => real.strip_prefix(root).ok()?.to_owned(),
        // What is not there yet is meant by its name.
        Err(_) if value.is_absolute() => value.strip_prefix(root).ok()?.to_owned(),
        Err(_) => from.as_path().join(value),
    };
    RelPath::parse(below.as_os_str().as_bytes()).ok().filter(|path| !path.is_root())
}
