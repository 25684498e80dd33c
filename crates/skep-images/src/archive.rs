//! Archives: what was given, as one stream of bytes.

mod directory;

use crate::{At, ImageError};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// The archive, or one made of a directory: as it stands, links included, the same every time.
pub fn of(source: &Path) -> Result<File, ImageError> {
    let step = || format!("read `{}`", source.display());
    if !source.is_dir() {
        return File::open(source).at(step);
    }
    let file = nameless().at(|| "make room for an archive".into())?;
    let mut builder = tar::Builder::new(io::BufWriter::new(file));
    directory::append(&mut builder, source).at(step)?;
    let mut file = builder
        .into_inner()
        .and_then(|writer| writer.into_inner().map_err(io::IntoInnerError::into_error))
        .at(step)?;
    file.rewind().at(step)?;
    Ok(file)
}

/// A file without a name, gone when it is closed.
fn nameless() -> io::Result<File> {
    let flags =
        rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    Ok(File::from(rustix::fs::open("/var/tmp", flags, mode)?))
}

/// Whether a plain archive is one that holds images rather than files. The file stands where it
/// stood before. Of a compressed one nothing is known.
pub fn holds_images(file: &File) -> io::Result<bool> {
    let mut reader = file;
    let mut names = tar::Archive::new(reader);
    let found = names.entries_with_seek().ok().is_some_and(|entries| {
        entries.take_while(Result::is_ok).flatten().any(|entry| {
            let path = entry.path_bytes();
            let name = path.strip_prefix(b"./").unwrap_or(&path);
            name == b"manifest.json" || name == b"oci-layout"
        })
    });
    reader.rewind()?;
    Ok(found)
}

/// The first bytes of compressed files, and who unpacks them.
const COMPRESSED: &[(&[u8], &str)] = &[
    (&[0x1f, 0x8b], "/usr/bin/gzip"),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "/usr/bin/xz"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "/usr/bin/zstd"),
    (b"BZh", "/usr/bin/bzip2"),
];

/// The bytes of an archive, unpacked if it is compressed.
pub(crate) enum Plain {
    /// As it is.
    File(File),
    /// From a program that unpacks it.
    Piped(Child, ChildStdout),
}

impl Plain {
    /// Of this file, from where it stands: its beginning.
    pub(crate) fn of(mut file: File) -> Result<Self, ImageError> {
        let step = || "look at the archive".to_owned();
        let mut start = Vec::new();
        file.by_ref().take(8).read_to_end(&mut start).at(step)?;
        file.rewind().at(step)?;
        let Some((_, program)) = COMPRESSED.iter().find(|(magic, _)| start.starts_with(magic))
        else {
            return Ok(Self::File(file));
        };
        if !Path::new(program).exists() {
            return Err(ImageError::Tool(program));
        }
        let mut child = Command::new(program)
            .arg("-dc")
            .env_clear()
            .stdin(file)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .at(|| format!("run `{program}`"))?;
        match child.stdout.take() {
            Some(output) => Ok(Self::Piped(child, output)),
            None => Err(ImageError::Tool(program)),
        }
    }

    /// Whether all of it came.
    pub(crate) fn finish(self) -> Result<(), ImageError> {
        let Self::Piped(mut child, output) = self else { return Ok(()) };
        drop(output);
        let ended = child.wait().at(|| "wait for the program that unpacks".into())?;
        match ended.success() {
            true => Ok(()),
            false => Err(ImageError::Io {
                operation: "unpack the archive".into(),
                source: io::Error::other(format!("the program that unpacks it ended with {ended}")),
            }),
        }
    }
}

impl Read for Plain {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(buffer),
            Self::Piped(_, output) => output.read(buffer),
        }
    }
}

/// Bytes on their way, with what is to be known of all of them in the end.
pub(crate) struct Counted<R> {
    inner: R,
    hash: blake3::Hasher,
    /// Zero bytes since the last that was none.
    zeros: u64,
}

impl<R: Read> Counted<R> {
    /// From here on.
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, hash: blake3::Hasher::new(), zeros: 0 }
    }

    /// What came, by its hash; `None` if it does not end as archives do, with a block of zeros.
    pub(crate) fn into_hash(self) -> (R, Option<String>) {
        const BLOCK: u64 = 512;
        let hash = self.hash.finalize().to_hex().to_string();
        (self.inner, (self.zeros >= BLOCK).then_some(hash))
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        let came = &buffer[..length];
        self.hash.update(came);
        let zeros = came.iter().rev().take_while(|byte| **byte == 0).count();
        let before = if zeros == length { self.zeros } else { 0 };
        self.zeros = before + zeros as u64;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_of_images_is_told_from_a_root_filesystem() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("file"), "x").unwrap();
        std::os::unix::fs::symlink("nowhere", place.path().join("link")).unwrap();
        assert!(!holds_images(&of(place.path()).unwrap()).unwrap());
        std::fs::write(place.path().join("manifest.json"), "[]").unwrap();
        assert!(holds_images(&of(place.path()).unwrap()).unwrap());
    }
}
