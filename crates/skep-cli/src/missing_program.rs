//! What helps when a command was not found inside: mostly it is installed below the caller's home, which
//! is empty there.

use crate::commands::SUBPROCESS;
use skep_types::escape::visible;
use skep_types::{EndReason, ExecEnd, ExecSpec};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The exit code for it, as shells have it.
const NOT_FOUND: i32 = 127;

/// What is looked at outside.
pub(crate) struct Outside<'a> {
    /// The caller's `PATH`.
    pub(crate) path: &'a OsStr,
    /// The caller's home.
    pub(crate) home: &'a Path,
}

/// What may be the matter with a command that was not found.
pub(crate) fn hint(
    end: &ExecEnd,
    spec: &ExecSpec,
    provider: &str,
    outside: &Outside<'_>,
) -> Option<String> {
    if end.reason != EndReason::StartFailed || end.exit_code != NOT_FOUND {
        return None;
    }
    let word = spec.argv.first()?.as_bytes();
    if word.iter().any(|byte| byte.is_ascii_whitespace() || b"|&;<>$()`*?~'\"".contains(byte)) {
        return Some("no shell reads the command: write `-- sh -c '…'`, or each word apart".into());
    }
    if provider == SUBPROCESS {
        return None;
    }
    if word.contains(&b'/') {
        return Some("`--mount DIR:DIR:ro` shows a directory of the host inside".into());
    }
    Some(match outside.find(OsStr::from_bytes(word)) {
        Some(directory) => outside.show(word, &directory),
        None => "it is not on your PATH either".into(),
    })
}

impl Outside<'_> {
    /// The directory of the caller's `PATH` that has this program.
    fn find(&self, word: &OsStr) -> Option<PathBuf> {
        let runs = |path: &Path| {
            path.metadata()
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        };
        std::env::split_paths(self.path)
            .filter(|directory| directory.is_absolute())
            .find(|directory| runs(&directory.join(word)))
    }

    /// How that directory, and what its programs are made of, can be seen inside.
    fn show(&self, word: &[u8], directory: &Path) -> String {
        let name = |path: &Path| visible(path.as_os_str().as_bytes());
        let (word, place) = (visible(word), name(directory));
        // Programs in `bin` are mostly links to what lies beside it.
        let whole = match directory.parent() {
            Some(above) if directory.ends_with("bin") => above,
            _ => directory,
        };
        match whole.strip_prefix(self.home) {
            Ok(piece) if !piece.as_os_str().is_empty() => format!(
                "`{word}` is in `{place}`, and the home is empty inside; show that piece of it with `sandbox.home = [\"{0}\"]` in the \
                 settings, or for once with `SKEP_SANDBOX_HOME={0}`",
                name(piece)
            ),
            // `~/bin` itself: its programs lie anywhere.
            Ok(_) => format!(
                "`{word}` is in `{place}`, and the home is empty inside; `sandbox.home = [\"bin\"]` in the settings shows it"
            ),
            Err(_) => format!(
                "`{word}` is in `{place}`, which is not inside; `--mount {0}:{0}:ro` shows it, and then call it `{place}/{word}`",
                name(whole)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::ByteString;

    fn missing(word: &str, path: &str, home: &Path) -> Option<String> {
        let end = ExecEnd { reason: EndReason::StartFailed, ..ExecEnd::exited(NOT_FOUND) };
        let spec = ExecSpec { argv: vec![ByteString::from(word)], ..ExecSpec::default() };
        hint(&end, &spec, "namespace", &Outside { path: OsStr::new(path), home })
    }

    #[test]
    fn the_remedy_fits_where_the_program_lies() {
        let base = tempfile::tempdir().unwrap();
        let make = |at: &str| {
            let path = base.path().join(at);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        make("home/.local/bin/claude");
        make("home/bin/mine");
        make("opt/tool/bin/tool");
        let home = base.path().join("home");
        let shown = base.path().display();
        let path =
            format!("relative:{shown}/home/.local/bin:{shown}/home/bin:{shown}/opt/tool/bin");
        let said = |word| missing(word, &path, &home).unwrap();
        assert!(said("claude").contains("sandbox.home = [\".local\"]"), "{}", said("claude"));
        assert!(said("mine").contains("[\"bin\"]"), "{}", said("mine"));
        let tool = said("tool");
        assert!(tool.contains(&format!("--mount {shown}/opt/tool:{shown}/opt/tool:ro")), "{tool}");
        assert!(tool.contains(&format!("{shown}/opt/tool/bin/tool")), "{tool}");
        assert!(said("nowhere").contains("not on your PATH"));
        assert!(said("ls -l").contains("no shell"));
        assert!(said("/usr/local/x").contains("--mount"));
    }
}
