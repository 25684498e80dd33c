//! The number of a state directory, by which it knows its containers again.

use crate::error::{At, DockerError};
use std::fmt::Write as _;
use std::io;
use std::path::Path;

/// In the state directory.
const FILE: &str = "docker-instance";
const BYTES: usize = 16;

/// The number, which is made when it is first asked for. A path would not do: several directories
/// can have the same one, each as its container sees it.
pub fn of(state_dir: &Path) -> Result<String, DockerError> {
    let file = state_dir.join(FILE);
    let step = || format!("read `{}`", file.display());
    if let Some(number) = read(&file).at(step)? {
        return Ok(number);
    }
    let number = random().at(|| "get random bytes".into())?;
    // Whole under its name, and never exchanged: of two who make one, the second takes the first's.
    let new = state_dir.join(format!("{FILE}.{number}"));
    std::fs::write(&new, &number).at(|| format!("write `{}`", new.display()))?;
    let made = std::fs::hard_link(&new, &file);
    let _ = std::fs::remove_file(&new);
    match made {
        Ok(()) => Ok(number),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read(&file)
            .at(step)?
            .ok_or_else(|| DockerError::Invalid(format!("`{}` is damaged", file.display()))),
        Err(error) => Err(error).at(|| format!("write `{}`", file.display())),
    }
}

fn read(file: &Path) -> io::Result<Option<String>> {
    let number = match std::fs::read_to_string(file) {
        Ok(number) => number,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // An empty one would be everybody's.
    let sound = number.len() == 2 * BYTES && number.bytes().all(|byte| byte.is_ascii_hexdigit());
    match sound {
        true => Ok(Some(number)),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "it holds no number")),
    }
}

fn random() -> io::Result<String> {
    let mut bytes = [0; BYTES];
    let mut filled = 0;
    while filled < BYTES {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
    }
    let mut number = String::new();
    for byte in bytes {
        let _ = write!(number, "{byte:02x}");
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_keeps_its_number_and_no_other_has_it() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let number = of(one.path()).unwrap();
        assert_eq!(of(one.path()).unwrap(), number);
        assert_ne!(of(other.path()).unwrap(), number);
        assert_eq!(std::fs::read_dir(one.path()).unwrap().count(), 1);
        std::fs::write(one.path().join(FILE), "").unwrap();
        assert!(of(one.path()).is_err());
    }
}
