//! What an earlier start found inside, kept for the next one.
//!
//! Probing takes a process that puts on every fence and tries what must fail: more than a
//! millisecond, a fifth of a start. Its answer depends on the kernel, on this program, on where the
//! caller stands and on the policy. All of these are part of the name it is kept under, so that a
//! change of any of them asks anew; and so does the time, for what is in none of them. What a start
//! sees by itself (the fence it prepared, the workspace it mounted) is compared each time, and a
//! fence that cannot be put on fails the exec whatever is written here.
//!
//! A caller who typed a limit or requires a layer counts on the answer: then it is never recalled.
//! Nor is it where somebody else than the keeper has a part in making the namespaces.

use crate::identity::IdMap;
use crate::vessel::Vessel;
use serde::{Deserialize, Serialize};
use skep_provider::RunSpec;
use skep_types::{ContentHash, EnforcementReport, NetworkMode, Policy};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How long an answer is good for.
const GOOD_FOR: Duration = Duration::from_secs(600);
/// More answers than this are not kept: there are few policies, but many possible ones.
const KEPT: usize = 64;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// By the probe inside.
    pub report: EnforcementReport,
    /// Whether a cgroup could be made. Not taken for true: a start that begins ahead of it looks
    /// whether it is so again.
    pub counted: bool,
    /// What was read back of its limits: what holds memory, processors and tasks, where it does.
    #[serde(default)]
    pub limits: Option<EnforcementReport>,
}

/// The place of one answer.
#[derive(Debug)]
pub struct Known {
    path: PathBuf,
}

impl Known {
    /// The place for a start from `here`, unless it has to be asked anew.
    pub fn of(spec: &RunSpec, vessel: &Vessel, map: IdMap, here: Option<&Here>) -> Option<Self> {
        let counts_on_it = !spec.asked.is_empty() || !spec.policy.require.is_empty();
        let other = *vessel != Vessel::Namespaces || spec.policy.network != NetworkMode::None;
        if counts_on_it || other {
            return None;
        }
        // The sandbox's directory is `sandboxes/ID` in the state directory.
        let state = spec.directory.ancestors().nth(2)?;
        let name = ContentHash::of(&circumstances(spec, map, here?)?).to_string();
        Some(Self { path: state.join("probed").join(name) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was found, if that is not too long ago.
    pub fn recall(&self) -> Option<Found> {
        let found = rustix::fs::stat(&self.path).ok()?;
        let made =
            SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(found.st_mtime).ok()?);
        // A time to come is no time to trust.
        let age = SystemTime::now().duration_since(made).ok()?;
        if age > GOOD_FOR {
            return None;
        }
        serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()
    }

    /// Keeps what was found. A failure costs the next start a probe, nothing else.
    pub fn remember(&self, found: &Found) {
        let Some(directory) = self.path.parent() else { return };
        let _ = std::fs::DirBuilder::new().mode(0o700).create(directory);
        forget_old(directory);
        let draft = self.path.with_extension(std::process::id().to_string());
        let written = std::fs::File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)
            .and_then(|mut file| file.write_all(&crate::protocol::to_json(found)));
        let kept = written.is_ok() && std::fs::rename(&draft, &self.path).is_ok();
        if !kept {
            let _ = std::fs::remove_file(&draft);
        }
    }
}

/// Where this process stands: all that an answer depends on and no plan changes.
#[derive(Debug, Serialize)]
pub struct Here {
    version: &'static str,
    /// Device, inode, time of change.
    program: (u64, u64, i64, u64),
    kernel: (Vec<u8>, Vec<u8>),
    boot: String,
    mounts: (u64, u64),
    users: (u64, u64),
}

impl Here {
    /// `None` if that cannot be told.
    pub fn look() -> Option<Self> {
        let program = rustix::fs::stat("/proc/self/exe").ok()?;
        let namespace = |name: &str| rustix::fs::stat(Path::new("/proc/self/ns").join(name)).ok();
        let namespace = |name| namespace(name).map(|stat| (stat.st_dev, stat.st_ino));
        let kernel = rustix::system::uname();
        Some(Self {
            version: env!("CARGO_PKG_VERSION"),
            program: (program.st_dev, program.st_ino, program.st_mtime, program.st_mtime_nsec),
            kernel: (kernel.release().to_bytes().to_vec(), kernel.version().to_bytes().to_vec()),
            boot: skep_sys::process::boot_id().ok()?,
            mounts: namespace("mnt")?,
            users: namespace("user")?,
        })
    }
}

/// Everything an answer depends on.
fn circumstances(spec: &RunSpec, map: IdMap, here: &Here) -> Option<Vec<u8>> {
    // Neither changes what is enforced, and both are different in every other project.
    let policy = Policy { env: Default::default(), scope: Vec::new(), ..spec.policy.clone() };
    serde_json::to_vec(&(here, map, spec.driver, &spec.home, policy)).ok()
}

/// Takes away all answers when there are too many of them: those in use come back.
fn forget_old(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let entries: Vec<_> = entries.flatten().collect();
    if entries.len() >= KEPT {
        for entry in entries {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::Layer;

    #[test]
    fn an_answer_is_recalled_until_it_is_old() {
        let directory = tempfile::tempdir().unwrap();
        let known = Known { path: directory.path().join("probed/x") };
        assert_eq!(known.recall(), None);
        let mut report = EnforcementReport::default();
        report.on(Layer::Syscalls, "seccomp");
        let found = Found { report, counted: true, limits: None };
        known.remember(&found);
        assert_eq!(known.recall(), Some(found));
        for (when, age) in [("long ago", GOOD_FOR * 2), ("to come", Duration::ZERO)] {
            let file = std::fs::File::options().write(true).open(&known.path).unwrap();
            let time = match age {
                Duration::ZERO => SystemTime::now() + GOOD_FOR,
                age => SystemTime::now() - age,
            };
            file.set_modified(time).unwrap();
            assert_eq!(known.recall(), None, "{when}");
        }
    }

    #[test]
    fn answers_do_not_pile_up() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..KEPT * 2 {
            Known { path: directory.path().join(format!("probed/{number}")) }.remember(&Found {
                report: EnforcementReport::default(),
                counted: false,
                limits: None,
            });
        }
        let left = std::fs::read_dir(directory.path().join("probed")).unwrap().count();
        assert!(left <= KEPT, "{left}");
    }
}
