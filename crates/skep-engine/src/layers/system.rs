//! What `--system cow` keeps beside the workspace: a fork gets a copy of it, layers do not hold it.

use super::copy_tree;
use crate::Engine;
use crate::layout;
use crate::problems::io_problem;
use skep_types::{Code, Problem, Sandbox, SystemView};
use std::io;
use std::path::Path;

impl Engine {
    /// Copies what was changed in the system's directories: in proportion to that change.
    pub(super) fn carry_system(&self, parent: &Sandbox, fork: &Sandbox) -> Result<(), Problem> {
        if parent.policy.system != SystemView::Cow {
            return Ok(());
        }
        let place = |sandbox: &Sandbox| self.layout().sandbox(&sandbox.id).join("system");
        let (from, to) = (place(parent), place(fork));
        self.while_standing(parent, || {
            copy_areas(&from, &to).map_err(|error| io_problem("fork the system of", &from, &error))
        })
    }
}

/// The uppers alone: the masks are made anew at each start, the work directories are the kernel's.
fn copy_areas(from: &Path, to: &Path) -> io::Result<()> {
    let areas = match std::fs::read_dir(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    layout::make_private(to)?;
    for area in areas {
        let name = area?.file_name();
        layout::make_private(&to.join(&name))?;
        copy_tree(&from.join(&name).join("upper"), &to.join(&name).join("upper"))?;
    }
    Ok(())
}

/// What holds layers and nothing else cannot stand for a sandbox whose system was changed too.
pub(super) fn needs_plain_system(sandbox: &Sandbox, what: &str) -> Result<(), Problem> {
    if sandbox.policy.system != SystemView::Cow {
        return Ok(());
    }
    let message = format!(
        "{what} does not hold the system directories, which sandbox `{}` may have changed (`--system cow`)",
        sandbox.name
    );
    Err(Problem::new(Code::Refused, message).hint("`skep fork` takes them along"))
}
