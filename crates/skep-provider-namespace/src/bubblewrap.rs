//! Sandboxes in namespaces that an installed `bwrap` makes.

use crate::namespace::in_namespaces;
use skep_keeper::kept::Kind;
use skep_keeper::vessel::Vessel;
use skep_provider::{Capabilities, Look, ProviderError, RunSpec};
use skep_types::NetworkMode;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Where the program may be: never looked for in `PATH`, never in a project.
const PROGRAMS: &[&str] = &["/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap"];

/// Runs sandboxes in namespaces made by bubblewrap.
#[derive(Debug)]
pub struct Bubblewrap {
    skep: fn() -> PathBuf,
}

impl Bubblewrap {
    /// `skep` tells the program that has the hidden command `__init`: this one.
    pub fn new(skep: fn() -> PathBuf) -> Self {
        Self { skep }
    }
}

fn program() -> Result<&'static Path, ProviderError> {
    PROGRAMS.iter().map(Path::new).find(|path| path.is_file()).ok_or_else(|| {
        ProviderError::Missing {
            what: "the bubblewrap provider".into(),
            reason: "`bwrap` is not installed".into(),
            remedy: "install the package `bubblewrap`".into(),
        }
    })
}

fn run(arguments: &[&str]) -> Result<Output, ProviderError> {
    let program = program()?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().stdin(Stdio::null()).current_dir("/");
    command.output().map_err(|source| ProviderError::Setup {
        operation: format!("run `{}`", program.display()),
        source,
    })
}

impl Kind for Bubblewrap {
    fn name(&self) -> &'static str {
        "bubblewrap"
    }

    fn capabilities(&self, _: &str) -> Capabilities {
        let mut capabilities = in_namespaces();
        capabilities.networks.push(NetworkMode::Allow);
        capabilities
    }

    fn probe(&self, _: &str) -> Result<(), ProviderError> {
        let tried = run(&[
            "--unshare-user",
            "--unshare-pid",
            "--unshare-net",
            "--cap-add",
            "ALL",
            "--dev-bind",
            "/",
            "/",
            "--",
            "/bin/true",
        ])?;
        if tried.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&tried.stderr).trim().replace('\n', "; ");
        Err(ProviderError::Missing {
            what: "the bubblewrap provider".into(),
            reason: format!("`bwrap` could not make namespaces: {said}"),
            remedy: "let it make user namespaces: an AppArmor profile for `bwrap`, or `sysctl user.max_user_namespaces=65536`"
                .into(),
        })
    }

    fn look(&self, word: &str) -> Result<Look, ProviderError> {
        self.probe(word).map(|()| Look::whole("ran `/bin/true` in namespaces that `bwrap` made"))
    }

    fn vessel(&self, _: &RunSpec) -> Result<Vessel, ProviderError> {
        Ok(Vessel::Bubblewrap { bwrap: program()?.to_owned(), skep: (self.skep)() })
    }

    fn facts(&self, _: &RunSpec, _: BTreeMap<String, String>) -> BTreeMap<String, String> {
        let version = run(&["--version"]).ok();
        let version =
            version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        version.map(|version| ("version".to_owned(), version)).into_iter().collect()
    }
}
