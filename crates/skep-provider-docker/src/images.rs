//! The engine's images: what there is, fetching, importing without a network, removing.

use crate::engine::Engine;
use crate::error::{Asked, At, DockerError, said, status};
use bollard::query_parameters::{
    CreateImageOptionsBuilder, ImportImageOptionsBuilder, ListImagesOptionsBuilder,
    RemoveImageOptionsBuilder,
};
use bollard::{body_full, body_try_stream};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// One image.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Image {
    /// `sha256:…` of its configuration.
    pub id: String,
    /// Names with tags.
    pub tags: Vec<String>,
    /// Names with digests, for those that came from a registry.
    pub digests: Vec<String>,
    /// Bytes.
    pub size: u64,
}

/// What an image would have the engine do.
#[derive(Debug)]
pub(crate) struct Settings {
    /// `sha256:…` of its configuration.
    pub(crate) id: String,
    /// Names of the variables that it sets.
    pub(crate) variables: Vec<String>,
    /// Where it asks for volumes.
    pub(crate) volumes: Vec<String>,
}

/// How many bytes are sent at once.
const CHUNK: usize = 256 << 10;

impl Engine {
    /// All images, by name.
    pub fn images(&self) -> Result<Vec<Image>, DockerError> {
        let options = ListImagesOptionsBuilder::default().digests(true).build();
        let listed =
            self.wait(self.docker.list_images(Some(options))).asked(|| "list images".into())?;
        let named = |name: &String| !name.contains("<none>");
        let mut images: Vec<Image> = listed
            .into_iter()
            .map(|image| Image {
                id: image.id,
                tags: image.repo_tags.into_iter().filter(named).collect(),
                digests: image.repo_digests.into_iter().filter(named).collect(),
                size: u64::try_from(image.size).unwrap_or(0),
            })
            .collect();
        images.sort_by(|one, other| (&one.tags, &one.id).cmp(&(&other.tags, &other.id)));
        Ok(images)
    }

    /// The image of this name, digest or id, if it is here.
    pub fn image(&self, reference: &str) -> Result<Option<Image>, DockerError> {
        check_reference(reference)?;
        match self.wait(self.docker.inspect_image(reference)) {
            Ok(image) => Ok(Some(Image {
                id: image.id.unwrap_or_default(),
                tags: image.repo_tags.unwrap_or_default(),
                digests: image.repo_digests.unwrap_or_default(),
                size: image.size.and_then(|size| u64::try_from(size).ok()).unwrap_or(0),
            })),
            Err(error) if status(&error) == Some(404) => Ok(None),
            Err(error) => Err(error).asked(|| format!("look at the image `{reference}`")),
        }
    }

    /// What the image of this name, digest or id says about its containers, if it is here.
    pub(crate) fn settings(&self, reference: &str) -> Result<Option<Settings>, DockerError> {
        check_reference(reference)?;
        let image = match self.wait(self.docker.inspect_image(reference)) {
            Ok(image) => image,
            Err(error) if status(&error) == Some(404) => return Ok(None),
            Err(error) => return Err(error).asked(|| format!("look at the image `{reference}`")),
        };
        let says = image.config.unwrap_or_default();
        let name = |line: String| line.split('=').next().unwrap_or_default().to_owned();
        let variables = says.env.unwrap_or_default().into_iter().map(name);
        Ok(Some(Settings {
            id: image.id.unwrap_or_default(),
            variables: variables.filter(|name| !name.is_empty()).collect(),
            volumes: says.volumes.unwrap_or_default(),
        }))
    }

    /// Fetches an image, unless it is here. `progress` hears a line at a time.
    pub fn pull(
        &self,
        reference: &str,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Image, DockerError> {
        if let Some(image) = self.image(reference)? {
            return Ok(image);
        }
        // Without a tag the engine would fetch every tag there is.
        let whole = match has_tag(reference) {
            true => reference.to_owned(),
            false => format!("{reference}:latest"),
        };
        let options = CreateImageOptionsBuilder::default().from_image(&whole).build();
        let answers = self.docker.create_image(Some(options), None, None);
        let mut last = String::new();
        self.hear(answers, |info| {
            let line = [info.id, info.status].into_iter().flatten().collect::<Vec<_>>().join(": ");
            if line != last {
                progress(&line);
                last = line;
            }
        })
        .map_err(|reason| refused(format!("fetch the image `{whole}`"), reason))?;
        self.image(&whole)?.ok_or(DockerError::NoImage(whole))
    }

    /// Makes an image from a root filesystem: a directory, or a tar archive of one (which the
    /// engine unpacks if it is compressed). It has its name only when all of it is there.
    pub fn import(&self, source: &Path, reference: &str) -> Result<Image, DockerError> {
        self.import_saying(source, reference, Vec::new())
    }

    /// The same, with what the image says about itself: lines of a Dockerfile.
    pub(crate) fn import_saying(
        &self,
        source: &Path,
        reference: &str,
        says: Vec<String>,
    ) -> Result<Image, DockerError> {
        let options = CreateImageOptionsBuilder::default().from_src("-").changes(says);
        let (name, tag) = split_tag(reference)?;
        let options = options.repo(name).tag(tag).build();
        let file = archive_of(source)?;
        if holds_images(&file)? {
            return Err(DockerError::Invalid(format!(
                "`{}` holds images with names of their own, not a root filesystem: leave out `{reference}`",
                source.display()
            )));
        }
        let body = body_try_stream(chunks(file));
        let answers = self.docker.create_image(Some(options), Some(body), None);
        self.hear(answers, |_| {})
            .map_err(|reason| refused(format!("import `{}`", source.display()), reason))?;
        self.image(reference)?.ok_or_else(|| DockerError::NoImage(reference.to_owned()))
    }

    /// Takes over images that `docker save` wrote, under the names they have. Returns what the
    /// engine says about them.
    pub fn load(&self, source: &Path) -> Result<Vec<String>, DockerError> {
        let file = File::open(source).at(|| format!("open `{}`", source.display()))?;
        let options = ImportImageOptionsBuilder::default().quiet(true).build();
        let answers = self.docker.import_image(options, body_try_stream(chunks(file)), None);
        let mut told = Vec::new();
        self.hear(answers, |info| {
            told.extend(info.stream.map(|line| line.trim().to_owned()).filter(|l| !l.is_empty()));
        })
        .map_err(|reason| refused(format!("load `{}`", source.display()), reason))?;
        match told.is_empty() {
            true => {
                Err(refused(format!("load `{}`", source.display()), "it holds no image".into()))
            }
            false => Ok(told),
        }
    }

    /// Makes an image of a small root filesystem that is already in memory.
    pub(crate) fn import_bytes(&self, tar: Vec<u8>, reference: &str) -> Result<(), DockerError> {
        let (name, tag) = split_tag(reference)?;
        let options = CreateImageOptionsBuilder::default().from_src("-").repo(name).tag(tag);
        let body = body_full(Bytes::from(tar));
        let answers = self.docker.create_image(Some(options.build()), Some(body), None);
        self.hear(answers, |_| {})
            .map_err(|reason| refused(format!("import the image `{reference}`"), reason))
    }

    /// Removes a name, and the image with its last one.
    pub fn remove_image(&self, reference: &str) -> Result<(), DockerError> {
        check_reference(reference)?;
        let options = RemoveImageOptionsBuilder::default().build();
        match self.wait(self.docker.remove_image(reference, Some(options), None)) {
            Ok(_) => Ok(()),
            Err(error) if status(&error) == Some(404) => {
                Err(DockerError::NoImage(reference.to_owned()))
            }
            Err(error) => Err(error).asked(|| format!("remove the image `{reference}`")),
        }
    }

    /// Everything that a long request answers; the first that says no ends it.
    fn hear<T>(
        &self,
        answers: impl Stream<Item = Result<T, bollard::errors::Error>>,
        mut each: impl FnMut(T),
    ) -> Result<(), String> {
        let mut answers = std::pin::pin!(answers);
        while let Some(answer) = self.wait(answers.next()) {
            match answer {
                Ok(info) => each(info),
                Err(error) => return Err(said(&error)),
            }
        }
        Ok(())
    }
}

fn refused(operation: String, reason: String) -> DockerError {
    DockerError::Refused { operation, reason }
}

/// Whether a reference ends in a tag or a digest. A colon before a slash belongs to a port.
fn has_tag(reference: &str) -> bool {
    let name = reference.rsplit_once('/').map_or(reference, |(_, name)| name);
    name.contains(':') || name.contains('@')
}

/// Name and tag, for an image that is to be made: a digest cannot be chosen.
fn split_tag(reference: &str) -> Result<(&str, &str), DockerError> {
    let start = reference.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match reference[start..].find(':') {
        Some(colon) => (&reference[..start + colon], &reference[start + colon + 1..]),
        None => (reference, "latest"),
    };
    if reference.contains('@') || name.is_empty() || tag.is_empty() {
        return Err(DockerError::Invalid(format!(
            "`{reference}` is no name for an image: it looks like `NAME` or `NAME:TAG`"
        )));
    }
    Ok((name, tag))
}

/// Longest name of an image, as registries have it, with a digest.
const MAX_REFERENCE: usize = 512;

/// Refuses what is no name, digest or id of an image. The client writes it into the path of its
/// request as it is: `../containers/x` would be a container, and what follows a `?` an option.
fn check_reference(reference: &str) -> Result<(), DockerError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._/:@-".contains(&byte);
    let segment = |segment: &str| !["", ".", ".."].contains(&segment);
    if reference.len() <= MAX_REFERENCE
        && reference.bytes().all(plain)
        && reference.split('/').all(segment)
    {
        return Ok(());
    }
    Err(DockerError::Invalid(format!(
        "`{reference}` is no image: it looks like `NAME:TAG`, `NAME@sha256:…` or an id"
    )))
}

/// The archive, or one made of a directory: as it stands, owners and links included.
fn archive_of(source: &Path) -> Result<File, DockerError> {
    use std::io::Seek;
    let step = || format!("read `{}`", source.display());
    if !source.is_dir() {
        return File::open(source).at(step);
    }
    let file = tempfile_in_memory().at(|| "make room for an archive".into())?;
    let mut builder = tar::Builder::new(io::BufWriter::new(file));
    builder.follow_symlinks(false);
    builder.append_dir_all(".", source).at(step)?;
    let mut file = builder
        .into_inner()
        .and_then(|writer| writer.into_inner().map_err(io::IntoInnerError::into_error))
        .at(step)?;
    file.rewind().at(step)?;
    Ok(file)
}

/// A file without a name, gone when it is closed.
fn tempfile_in_memory() -> io::Result<File> {
    let flags =
        rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    Ok(File::from(rustix::fs::open("/var/tmp", flags, mode)?))
}

/// Whether a plain archive is one that holds images rather than files. The file stands where it
/// stood before. Of a compressed one nothing is known.
fn holds_images(file: &File) -> Result<bool, DockerError> {
    use std::io::Seek;
    let step = || "read the archive".to_owned();
    let mut reader = file;
    let mut names = tar::Archive::new(reader);
    let found = names.entries_with_seek().ok().is_some_and(|entries| {
        entries.take_while(Result::is_ok).flatten().any(|entry| {
            let path = entry.path_bytes();
            let name = path.strip_prefix(b"./").unwrap_or(&path);
            name == b"manifest.json" || name == b"oci-layout"
        })
    });
    reader.rewind().at(step)?;
    Ok(found)
}

/// A file, piece by piece. Reading blocks, and nothing else is going on.
fn chunks(file: File) -> impl Stream<Item = Result<Bytes, io::Error>> + Send + 'static {
    futures_util::stream::unfold(Some(file), |file| async move {
        let mut file = file?;
        let mut buffer = vec![0; CHUNK];
        match file.read(&mut buffer) {
            Ok(0) => None,
            Ok(length) => {
                buffer.truncate(length);
                Some((Ok(Bytes::from(buffer)), Some(file)))
            }
            Err(error) => Some((Err(error), None)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_one_object_of_one_kind() {
        for good in ["debian", "host:5000/a/b_c.d-e:12", "a@sha256:0f", "sha256:0f", "0f3a"] {
            check_reference(good).unwrap();
        }
        let long = "a".repeat(MAX_REFERENCE + 1);
        for bad in [
            "", "..", "../x", "a/../x", "a//b", "/a", "a/", "a?x", "a#x", "a%2f", "a b", "ä", &long,
        ] {
            assert!(check_reference(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_port_is_no_tag() {
        assert!(!has_tag("debian"));
        assert!(!has_tag("host:5000/debian"));
        assert!(has_tag("host:5000/debian:12"));
        assert!(has_tag("debian@sha256:0"));
        assert_eq!(split_tag("host:5000/debian").unwrap(), ("host:5000/debian", "latest"));
        assert_eq!(split_tag("debian:12").unwrap(), ("debian", "12"));
        assert!(split_tag("debian@sha256:0").is_err() && split_tag(":12").is_err());
    }

    #[test]
    fn an_archive_of_images_is_told_from_a_root_filesystem() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("file"), "x").unwrap();
        std::os::unix::fs::symlink("nowhere", place.path().join("link")).unwrap();
        assert!(!holds_images(&archive_of(place.path()).unwrap()).unwrap());
        std::fs::write(place.path().join("manifest.json"), "[]").unwrap();
        assert!(holds_images(&archive_of(place.path()).unwrap()).unwrap());
    }
}
