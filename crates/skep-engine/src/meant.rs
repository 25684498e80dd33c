//! What a path means that somebody typed to hide or to deny, where it is not the path of a file: absolute,
//! or leading over a link.

use std::path::Path;

/// The patterns, and for each that is a path the place it leads to, if that is another one in the
/// project. `/x` is `x` in the project's root; an absolute path of the host that leads into the project
/// is meant as that.
pub(crate) fn as_meant(project: &Path, typed: &[String]) -> Vec<String> {
    let mut meant = Vec::with_capacity(typed.len());
    for text in typed {
        let below = below(project, text);
        match &below {
            Some(below) => meant.push(format!("/{below}")),
            None => meant.push(text.clone()),
        }
        let text = below.as_deref().unwrap_or(text).trim_start_matches('/');
        // A link may stand anywhere before the first name that means several.
        let (path, rest) = literal_part(text);
        let Ok(place) = project.join(path).canonicalize() else { continue };
        let Ok(place) = place.strip_prefix(project) else { continue };
        if place != Path::new(path)
            && !place.as_os_str().is_empty()
            && let Some(place) = place.to_str()
        {
            meant.push(format!("/{}{rest}", escaped(place)));
        }
    }
    meant
}

/// What an absolute path of the host means in the project, if it leads there by whatever name.
fn below(project: &Path, text: &str) -> Option<String> {
    let path = Path::new(text);
    if !path.is_absolute() {
        return None;
    }
    if let Ok(below) = path.strip_prefix(project) {
        return below.to_str().map(str::to_owned);
    }
    let above = path.ancestors().skip(1).find(|above| above.exists())?;
    let real = above.canonicalize().ok()?;
    let inside = real.strip_prefix(project).ok()?.join(path.strip_prefix(above).ok()?);
    inside.to_str().map(str::to_owned)
}

/// The names before the first that means several, and the rest with its slash.
fn literal_part(text: &str) -> (&str, &str) {
    let Some(wild) = text.find(['*', '?', '[', '{', '\\']) else { return (text, "") };
    match text[..wild].rfind('/') {
        Some(slash) => text.split_at(slash),
        None => ("", text),
    }
}

/// A path as a pattern that means just it.
fn escaped(path: &str) -> String {
    let special = |letter: char| "*?[]{}\\!".contains(letter);
    path.chars().fold(String::new(), |mut text, letter| {
        if special(letter) {
            text.push('\\');
        }
        text.push(letter);
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_absolute_paths_are_followed_into_the_project() {
        let scratch = tempfile::tempdir().unwrap();
        let project = scratch.path().canonicalize().unwrap().join("p");
        std::fs::create_dir_all(project.join("real")).unwrap();
        std::fs::write(project.join("real/secret"), "").unwrap();
        std::os::unix::fs::symlink("real", project.join("conf")).unwrap();
        std::os::unix::fs::symlink("/etc", project.join("out")).unwrap();
        let meant = |text: &str| as_meant(&project, &[text.to_owned()]);
        assert_eq!(meant("conf/secret"), ["conf/secret", "/real/secret"]);
        assert_eq!(meant("conf"), ["conf", "/real"]);
        assert_eq!(meant("real/secret"), ["real/secret"]);
        assert_eq!(meant(&project.join("real/secret").display().to_string()), ["/real/secret"]);
        let through = project.join("conf/secret").display().to_string();
        assert_eq!(meant(&through), ["/conf/secret", "/real/secret"]);
        for same in ["*.pem", "out/passwd", "missing/x", "/real", "/etc/passwd"] {
            assert_eq!(meant(same), [same]);
        }
        assert_eq!(meant("conf/*.txt"), ["conf/*.txt", "/real/*.txt"]);
        let other = scratch.path().join("other");
        std::os::unix::fs::symlink(&project, &other).unwrap();
        let named = other.join("real/secret").display().to_string();
        assert_eq!(meant(&named), ["/real/secret"]);
    }
}
