//! What sandboxes are made from: programs and images, and which of them is meant.

use super::has_ended;
use rustix::fd::OwnedFd;
use skep_images::{ImageError, Images};
use skep_provider::ProviderError;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a program may take to say its version.
const VERSION_PATIENCE: Duration = Duration::from_secs(5);

/// Which file stands at a path: another after an upgrade.
pub fn file_identity(path: &Path) -> String {
    match rustix::fs::stat(path) {
        Ok(file) => {
            let changed = (file.st_mtime, file.st_mtime_nsec);
            format!("{}:{}:{}:{}.{}", file.st_dev, file.st_ino, file.st_size, changed.0, changed.1)
        }
        Err(_) => "none".into(),
    }
}

/// What a program says of itself (`--version`), on one line.
///
/// # Errors
/// A sentence, when it cannot be run, fails, or says nothing for some seconds.
pub fn version_of(program: &Path) -> Result<String, String> {
    use std::process::{Command, Stdio};
    let mut command = Command::new(program);
    command.arg("--version").env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("it cannot be run: {error}"))?;
    let heard = child.stdout.take().map(|output| first_line(output.into()));
    if heard.as_ref().is_none_or(Option::is_none) {
        let _ = child.kill();
    }
    let ended = child.wait().map_err(|error| format!("it cannot be waited for: {error}"))?;
    match heard.flatten() {
        Some(line) if ended.success() => Ok(line),
        Some(_) => Err(format!("`--version` ended with {ended}")),
        None => Err(format!("`--version` did not end in {} seconds", VERSION_PATIENCE.as_secs())),
    }
}

/// The first line of what comes until the end; `None` if that does not come in time.
fn first_line(output: OwnedFd) -> Option<String> {
    let deadline = Instant::now() + VERSION_PATIENCE;
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    while has_ended(&output, deadline.saturating_duration_since(Instant::now())) {
        match rustix::io::read(&output, &mut buffer) {
            Ok(length) if length > 0 && text.len() < 1 << 16 => {
                text.extend_from_slice(&buffer[..length]);
            }
            _ => {
                let text = String::from_utf8_lossy(&text).into_owned();
                return Some(text.lines().next().unwrap_or_default().trim().to_owned());
            }
        }
    }
    None
}

/// Where the files of an image of skep's own are, by what its name means now.
pub fn find_image(images: &Images, reference: &str) -> Result<PathBuf, ProviderError> {
    let wrong = |error: ImageError| match error {
        ImageError::Io { operation, source } => ProviderError::Setup { operation, source },
        other => ProviderError::Invalid(skep_types::chain(&other)),
    };
    match images.find(reference).map_err(wrong)? {
        Some(image) => Ok(images.root_of(&image)),
        None => Err(ProviderError::Missing {
            what: format!("`--image {reference}`"),
            reason: "skep has no image of this name or id".into(),
            remedy: "see `skep image ls`; `skep image import FILE REF` takes one from a file or a directory".into(),
        }),
    }
}
