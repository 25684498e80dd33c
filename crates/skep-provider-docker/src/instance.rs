//! The number of a state directory, by which it knows its containers again.

use crate::error::{At, DockerError};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// In the state directory.
const FILE: &str = "docker-instance";
const BYTES: usize = 16;

/// The number, which is made when it is first asked for. A path would not do: several directories
/// can have the same one, each as its container sees it.
///
/// A copy of a state directory gets one of its own: the containers of the original are not its own.
pub fn of(state_dir: &Path) -> Result<String, DockerError> {
    let file = state_dir.join(FILE);
    let found = read(&file).at(|| format!("read `{}`", file.display()))?;
    let found = match found {
        Found::Own(number) => return Ok(number),
        found => found,
    };
    let number = random().at(|| "get random bytes".into())?;
    let new = state_dir.join(format!("{FILE}.{number}"));
    let step = || format!("write `{}`", new.display());
    let mut made = File::create_new(&new).at(step)?;
    let inode = made.metadata().at(step)?.ino();
    made.write_all(format!("{number} {inode}").as_bytes()).at(step)?;
    // Whole under its name. Of two who make one, the second takes the first's.
    let placed = match found {
        Found::Copied => std::fs::rename(&new, &file),
        _ => std::fs::hard_link(&new, &file),
    };
    let _ = std::fs::remove_file(&new);
    match placed {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).at(|| format!("write `{}`", file.display()));
        }
        _ => {}
    }
    match read(&file).at(|| format!("read `{}`", file.display()))? {
        Found::Own(number) => Ok(number),
        _ => Err(DockerError::Invalid(format!("`{}` changes while it is read", file.display()))),
    }
}

/// What the file says.
enum Found {
    Nothing,
    Own(String),
    /// It was made as another file: the number belongs to the directory this one is a copy of.
    Copied,
}

/// A number, and which inode it was written to.
fn read(path: &Path) -> io::Result<Found> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let (number, inode) = text.split_once(' ').unwrap_or((&text, ""));
    // An empty one would be everybody's.
    let sound = number.len() == 2 * BYTES && number.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !sound {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it holds no number"));
    }
    match inode.parse() == Ok(file.metadata()?.ino()) {
        true => Ok(Found::Own(number.to_owned())),
        false => Ok(Found::Copied),
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
        // A copy is another one, and the original stays what it is.
        let copy = tempfile::tempdir().unwrap();
        std::fs::copy(one.path().join(FILE), copy.path().join(FILE)).unwrap();
        let own = of(copy.path()).unwrap();
        assert_ne!(own, number);
        assert_eq!((of(copy.path()).unwrap(), of(one.path()).unwrap()), (own, number));
        std::fs::write(one.path().join(FILE), "").unwrap();
        assert!(of(one.path()).is_err());
    }
}
