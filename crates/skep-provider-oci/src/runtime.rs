//! The runtimes: where they are, how they are called, and what is known not to work.

use skep_keeper::kept::version_of;
use skep_keeper::vessel::{BUNDLE, RUNTIME_STATE};
use skep_provider::ProviderError;
use skep_types::{NetworkMode, SandboxId};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Where a runtime may be: never looked for in `PATH`, never in a project.
const DIRECTORIES: &[&str] = &[
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/usr/libexec/runtime",
    "/root/.cargo/bin",
];
/// How many ids the first user namespace maps, in `uid_map`.
const EVERY_ID: &str = "4294967295";
/// Who owns what belongs to nobody in this user namespace (`fs.overflowuid`).
const OVERFLOW: u32 = 65534;

/// What a runtime is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// As runc is: namespaces of this kernel.
    Plain,
    /// The same, and it makes cgroups or refuses to start; it can be told not to.
    Crun,
    /// The same, and it makes cgroups wherever it sees any.
    Youki,
    /// gVisor's `runsc`.
    Gvisor,
}

impl Flavour {
    /// By the word that was typed: its last part names the program.
    pub fn of(word: &str) -> Self {
        match word.rsplit(['/', ':']).next().unwrap_or_default() {
            name if name.starts_with("runsc") => Self::Gvisor,
            name if name.starts_with("crun") => Self::Crun,
            name if name.starts_with("youki") => Self::Youki,
            _ => Self::Plain,
        }
    }
}

/// An installed runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Absolute.
    pub program: PathBuf,
    /// What it is like.
    pub flavour: Flavour,
}

/// Finds the runtime a word names: `oci` is `oci:runc`.
pub fn find(word: &str) -> Result<Found, ProviderError> {
    let name = word.strip_prefix("oci:").unwrap_or("runc");
    let missing = |reason: String, remedy: String| ProviderError::Missing {
        what: format!("the provider `{word}`"),
        reason,
        remedy,
    };
    let program = if name.is_empty() {
        let reason = "no runtime is named after `oci:`".to_owned();
        return Err(missing(reason, "say `oci:runc`, or an absolute path".into()));
    } else if name.starts_with('/') {
        let named = Some(PathBuf::from(name)).filter(|path| path.is_file());
        if let Some(why) = named.as_deref().and_then(foreign) {
            return Err(missing(why, "name a runtime of root's or of your own".into()));
        }
        named
    } else if name.contains('/') {
        let reason = format!("`{name}` is neither the name of a program nor an absolute path");
        return Err(missing(reason, "name the runtime by its absolute path".into()));
    } else {
        DIRECTORIES.iter().map(|directory| Path::new(directory).join(name)).find(|p| p.is_file())
    };
    match program {
        Some(program) => Ok(Found { program, flavour: Flavour::of(word) }),
        None => Err(missing(format!("`{name}` is not installed"), remedy(name))),
    }
}

/// Why somebody else could decide what runs here: the program, or a directory on the way to it, is
/// another user's or can be written by everybody.
fn foreign(program: &Path) -> Option<String> {
    let Ok(program) = program.canonicalize() else {
        return Some(format!("`{}` cannot be looked at", program.display()));
    };
    let caller = rustix::process::geteuid().as_raw();
    // In a user namespace root's files have the owner that stands for everybody who is not in it.
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let unmapped = (!map.contains(EVERY_ID)).then_some(OVERFLOW);
    program.ancestors().find_map(|path| {
        let Ok(seen) = path.metadata() else {
            return Some(format!("`{}` cannot be looked at", path.display()));
        };
        let sticky = seen.is_dir() && seen.mode() & 0o1000 != 0;
        if ![Some(0), Some(caller), unmapped].contains(&Some(seen.uid())) {
            Some(format!("`{}` is of user {}", path.display(), seen.uid()))
        } else if seen.mode() & 0o002 != 0 && !sticky {
            Some(format!("`{}` can be written by everybody", path.display()))
        } else if seen.mode() & 0o020 != 0 && !sticky && !is_administrators(&seen, unmapped) {
            Some(format!("`{}` can be written by group {}", path.display(), seen.gid()))
        } else {
            None
        }
    })
}

/// Debian's group for whoever may install into `/usr/local`.
const STAFF: u32 = 50;

/// Whether a group that may write is one of root's own, or one that root gave this directory to.
fn is_administrators(seen: &std::fs::Metadata, unmapped: Option<u32>) -> bool {
    let of_root = seen.uid() == 0 || Some(seen.uid()) == unmapped;
    seen.gid() == 0 || of_root && (seen.gid() == STAFF || Some(seen.gid()) == unmapped)
}

fn remedy(name: &str) -> String {
    match name {
        "youki" => "install it (`cargo install youki`), or name it: `oci:/path/to/youki`".into(),
        name if name.starts_with('/') => "name a runtime that is there".into(),
        name => format!("install the package `{name}`, or name a runtime by its absolute path"),
    }
}

/// How one as runc is called. A keyring of its own would be counted for the user, who may have 200;
/// init leaves the caller's by itself.
const PLAIN: &[&str] = &[
    "--root",
    RUNTIME_STATE,
    "run",
    "--preserve-fds",
    "1",
    "--no-new-keyring",
    "--bundle",
    BUNDLE,
];

impl Found {
    /// What it is told, program name excluded.
    pub fn arguments(&self, id: &SandboxId, network: NetworkMode) -> Vec<String> {
        // "The host's" network is that of the stage: loopback and the doors to skep's proxy.
        let network = match network {
            NetworkMode::None => "--network=none",
            NetworkMode::Allow | NetworkMode::Host => "--network=host",
        };
        // With one id there is no other to hide the sentry behind.
        let rootless = match rustix::process::geteuid().is_root() {
            true => "--rootless=false",
            false => "--rootless",
        };
        let words: Vec<&str> = match self.flavour {
            Flavour::Plain => PLAIN.to_vec(),
            // Limits are the keeper's, whose cgroups are around the runtime.
            Flavour::Crun => [&["--cgroup-manager=disabled"], PLAIN].concat(),
            // It tells everything it does, and it is not for us to hear it.
            Flavour::Youki => [&["--log-level=error"], PLAIN].concat(),
            // ptrace needs no device. Files are shared with the host's view of them, so that what
            // is written is in the upper at once and not in a cache of the sandbox's.
            Flavour::Gvisor => vec![
                "--root",
                RUNTIME_STATE,
                "--platform=ptrace",
                network,
                "--ignore-cgroups",
                "--file-access=shared",
                rootless,
                "run",
                "-bundle",
                BUNDLE,
            ],
        };
        words.into_iter().map(str::to_owned).chain([id.to_string()]).collect()
    }
}

/// What the runtime says of itself, on one line.
pub fn version(found: &Found) -> Result<String, ProviderError> {
    let failed = |reason: String| ProviderError::Missing {
        what: format!("the runtime `{}`", found.program.display()),
        reason,
        remedy: "install it anew, or name another by its absolute path".into(),
    };
    version_of(&found.program).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flavour_is_in_the_name() {
        assert_eq!(Flavour::of("oci"), Flavour::Plain);
        assert_eq!(Flavour::of("oci:runc"), Flavour::Plain);
        assert_eq!(Flavour::of("oci:crun"), Flavour::Crun);
        assert_eq!(Flavour::of("oci:/root/.cargo/bin/youki"), Flavour::Youki);
        assert_eq!(Flavour::of("oci:/opt/gvisor/runsc"), Flavour::Gvisor);
    }

    #[test]
    fn a_missing_runtime_names_the_remedy() {
        let problem = find("oci:nothing-like-it").unwrap_err().problem();
        assert!(problem.message.contains("`nothing-like-it` is not installed"), "{problem:?}");
        assert!(problem.hint.unwrap().contains("absolute path"));
        let problem = find("oci:relative/runc").unwrap_err().problem();
        assert!(problem.message.contains("neither"), "{problem:?}");
    }

    #[test]
    fn a_runtime_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("runc");
        std::fs::write(&program, "").unwrap();
        let word = format!("oci:{}", program.display());
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(&program, 0o755);
        assert_eq!(find(&word).unwrap().program, program);
        mode(&program, 0o757);
        assert!(find(&word).unwrap_err().problem().message.contains("written by everybody"));
        mode(&program, 0o755);
        mode(place.path(), 0o777);
        assert!(find(&word).unwrap_err().problem().message.contains("written by everybody"));
        mode(place.path(), 0o755);
        std::os::unix::fs::chown(&program, None, Some(12345)).unwrap_or_default();
        mode(&program, 0o775);
        if program.metadata().unwrap().gid() == 12345 {
            assert!(find(&word).unwrap_err().problem().message.contains("written by group 12345"));
        }
        assert!(find("oci:").unwrap_err().problem().message.contains("no runtime is named"));
    }

    #[test]
    fn gvisor_has_no_network_and_no_cache_of_files() {
        let found = Found { program: "/usr/bin/runsc".into(), flavour: Flavour::Gvisor };
        let id = SandboxId::from_random([7; 10]);
        let words = found.arguments(&id, NetworkMode::None);
        assert!(words.contains(&"--network=none".to_owned()));
        assert!(words.contains(&"--file-access=shared".to_owned()));
        assert_eq!(words.last(), Some(&id.to_string()));
    }
    #[test]
    fn runtimes_make_no_keyrings_and_no_cgroups_of_their_own() {
        let id = SandboxId::from_random([7; 10]);
        let words = |flavour| {
            let found = Found { program: "/r".into(), flavour };
            found.arguments(&id, NetworkMode::None)
        };
        for flavour in [Flavour::Plain, Flavour::Crun, Flavour::Youki] {
            assert!(words(flavour).contains(&"--no-new-keyring".to_owned()), "{flavour:?}");
        }
        assert_eq!(words(Flavour::Crun)[0], "--cgroup-manager=disabled");
    }
}
