//! Which commit is checked out, read from the files of the repository: nothing is executed, no
//! configuration is looked at, and nothing large is opened.

use std::fs;
use std::path::{Path, PathBuf};

/// The commit a project stands on; `None` without a repository, without a commit, or when in doubt.
pub fn commit(project: &Path) -> Option<String> {
    let directory = git_directory(project)?;
    let head = small_file(&directory.join("HEAD"))?;
    let head = head.trim();
    match head.strip_prefix("ref: ") {
        None => object_id(head),
        Some(name) => reference(&directory, name.trim()),
    }
}

fn git_directory(project: &Path) -> Option<PathBuf> {
    let dot_git = project.join(".git");
    let metadata = fs::symlink_metadata(&dot_git).ok()?;
    if metadata.is_dir() {
        return Some(dot_git);
    }
    // A worktree or submodule: a file that says where.
    let text = metadata.is_file().then(|| small_file(&dot_git)).flatten()?;
    let path = Path::new(text.strip_prefix("gitdir: ")?.trim());
    Some(if path.is_absolute() { path.to_owned() } else { project.join(path) })
}

fn reference(directory: &Path, name: &str) -> Option<String> {
    if !name.starts_with("refs/") || name.split('/').any(|part| part == "..") {
        return None;
    }
    let common = small_file(&directory.join("commondir"))
        .map(|text| directory.join(text.trim()))
        .unwrap_or_else(|| directory.to_owned());
    for place in [directory, &common] {
        if let Some(id) = small_file(&place.join(name)).and_then(|text| object_id(text.trim())) {
            return Some(id);
        }
    }
    let packed = fs::read_to_string(common.join("packed-refs")).ok()?;
    packed.lines().find_map(|line| {
        let (id, packed_name) = line.split_once(' ')?;
        (packed_name == name).then(|| object_id(id)).flatten()
    })
}

fn small_file(path: &Path) -> Option<String> {
    let metadata = fs::symlink_metadata(path).ok()?;
    (metadata.is_file() && metadata.len() < 4096).then(|| fs::read_to_string(path).ok()).flatten()
}

fn object_id(text: &str) -> Option<String> {
    let good = matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    good.then(|| text.to_owned())
}
