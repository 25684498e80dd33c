//! Which directories can be a project.

use crate::Desk;
use crate::problems::io_problem;
use skep_types::{Code, Problem};
use std::path::{Path, PathBuf};

impl Desk {
    /// The project's real path, if it is a directory that can be one.
    pub(crate) fn check_project(&self, project: &Path) -> Result<PathBuf, Problem> {
        let real = std::fs::canonicalize(project)
            .map_err(|error| io_problem("open project", project, &error))
            .map_err(|problem| Problem { code: Code::NotFound, ..problem })?;
        if !real.is_dir() {
            let message = format!("project `{}` is not a directory", real.display());
            return Err(Problem::new(Code::Usage, message));
        }
        let home =
            std::fs::canonicalize(&self.config.home).unwrap_or_else(|_| self.config.home.clone());
        let state = self.layout().root();
        let refuse = |why: &str| {
            let message = format!("`{}` cannot be a project: {why}", real.display());
            Err(Problem::new(Code::Refused, message)
                .hint("name a directory of its own with `--project DIR`"))
        };
        if real == Path::new("/") {
            return refuse("it is the whole filesystem");
        }
        if home.starts_with(&real) {
            return refuse("it is, or contains, the home directory");
        }
        if state.starts_with(&real) {
            return refuse("skep's state directory lies in it");
        }
        if real.starts_with(state) {
            return refuse("it lies in skep's state directory");
        }
        if let Some(other) = crate::state_place::around(&real) {
            // What lies there is some sandbox's work, or skep's own.
            return refuse(&format!("it lies in skep's state in `{}`", other.display()));
        }
        Ok(real)
    }
}
