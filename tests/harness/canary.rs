//! Secrets that are none: random strings where real secrets would lie.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Places below a home directory where people keep secrets.
const PLACES: [&str; 9] = [
    ".ssh/id_ed25519",
    ".aws/credentials",
    ".netrc",
    ".config/gcloud/application_default_credentials.json",
    ".docker/config.json",
    ".claude/.credentials.json",
    ".bash_history",
    ".gnupg/private-keys-v1.d/key",
    "other-project/.env",
];

/// Variables that must not be seen inside.
pub(crate) const VARIABLES: [&str; 7] = [
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "ANTHROPIC_API_KEY",
    "SSH_AUTH_SOCK",
    "DBUS_SESSION_BUS_ADDRESS",
    "LD_PRELOAD_CANARY",
    "SKEP_TEST_CANARY",
];

/// A random string and where it was put.
#[derive(Debug, Clone)]
pub(crate) struct Canary {
    /// The string.
    pub(crate) text: String,
}

impl Canary {
    /// A new one.
    pub(crate) fn new() -> Self {
        let mut bytes = [0_u8; 16];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { text: format!("canary{hex}") }
    }

    /// Puts it into every place of a home directory.
    pub(crate) fn plant(&self, home: &Path) -> Vec<PathBuf> {
        let plant = |place: &&str| {
            let path = home.join(place);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, format!("secret = {}\n", self.text)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            path
        };
        PLACES.iter().map(plant).collect()
    }

    /// Whether bytes carry it, as it is or in base64.
    pub(crate) fn is_in(&self, bytes: &[u8]) -> bool {
        contains(bytes, self.text.as_bytes())
    }

    /// The files below a directory that carry it.
    pub(crate) fn found_below(&self, directory: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut open = vec![directory.to_owned()];
        while let Some(path) = open.pop() {
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            if meta.is_dir() {
                let entries = fs::read_dir(&path).into_iter().flatten();
                open.extend(entries.flatten().map(|entry| entry.path()));
            } else if meta.is_file() && fs::read(&path).is_ok_and(|bytes| self.is_in(&bytes)) {
                found.push(path);
            }
        }
        found
    }
}

/// Whether one string of bytes contains another.
pub(crate) fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}
