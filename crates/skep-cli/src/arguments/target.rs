//! Which sandbox is meant: `[NAME]`, `-s NAME`, `[NAME] [PATH…]`.

use clap::Args;
use std::ffi::OsString;

/// `[NAME]` or `-s NAME`; left out: the newest sandbox of the project.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Name {
    /// Sandbox: a name, an id, or 6 or more characters of its beginning (default: the newest here)
    #[arg(value_name = "NAME", conflicts_with = "sandbox")]
    pub(crate) name: Option<String>,
    /// The same, as an option
    #[arg(short, long, value_name = "NAME")]
    pub(crate) sandbox: Option<String>,
}

impl Name {
    /// What was typed, in whichever way.
    pub(crate) fn typed(&self) -> Option<&str> {
        self.name.as_deref().or(self.sandbox.as_deref())
    }
}

/// `[NAME] [PATH…]`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct NameAndPaths {
    /// Sandbox, then paths, directories or quoted globs; behind `--` only paths
    #[arg(value_name = "NAME|PATH")]
    pub(crate) words: Vec<OsString>,
    /// Sandbox (then every word is a path)
    #[arg(short, long, value_name = "NAME")]
    pub(crate) sandbox: Option<String>,
}
