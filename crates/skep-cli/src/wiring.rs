//! The only file that names an engine, a provider or a store.

use crate::context::{Global, show_path};
use skep_engine::api::Api;
use skep_types::{Code, Problem};

/// Opens the engine in this process.
pub(crate) fn open(global: &Global) -> Result<Box<dyn Api>, Problem> {
    let config = global.user_config()?;
    let message = format!(
        "this binary has no engine (state directory `{}`, settings `{}`, home `{}`, user `{}`)",
        show_path(&global.state_dir),
        config.map_or_else(|| "none".to_owned(), |(_, name)| name),
        show_path(&global.home),
        global.user_name()
    );
    Err(Problem::new(Code::Internal, message))
}
