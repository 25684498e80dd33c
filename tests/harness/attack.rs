//! Attack programs, compiled once per run.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The static binary of `tests/attack/NAME.c`; `None` (and a skip) without a compiler.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/attack");
    let source = tests.join(format!("{name}.c"));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("attack");
    std::fs::create_dir_all(&target).unwrap();
    let binary = target.join(name);
    let changed = |path: &Path| path.metadata().and_then(|meta| meta.modified()).ok();
    if changed(&binary).is_some_and(|at| Some(at) > changed(&source)) {
        return Some(binary);
    }
    // Tests run in parallel: each compiles to a name of its own and renames.
    let thread = std::thread::current().id();
    let own = target.join(format!("{name}.{}-{thread:?}", std::process::id()));
    let made = Command::new("gcc")
        .args(["-static", "-O1", "-Wall", "-Werror", "-D_GNU_SOURCE", "-pthread", "-o"])
        .args([&own, &source])
        .output();
    match made {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!("cannot compile {name}: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            super::skip(&format!("gcc cannot be started: {error}"));
            return None;
        }
    }
    std::fs::rename(&own, &binary).unwrap();
    Some(binary)
}
