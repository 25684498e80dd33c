//! The only file that names an engine, a provider or a store.

use crate::context::Global;
use skep_engine::api::Api;
use skep_types::{Code, Problem};

/// Opens the engine in this process.
pub(crate) fn open(global: &Global) -> Result<Box<dyn Api>, Problem> {
    let message = format!(
        "no engine is wired into this binary (state directory `{}`, settings `{}`, home `{}`)",
        global.state_dir.display(),
        global.config_file.display(),
        global.home.display()
    );
    Err(Problem::new(Code::Internal, message))
}
