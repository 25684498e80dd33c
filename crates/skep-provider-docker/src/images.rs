//! The engine's images: what there is, fetching, importing without a network, removing.

use crate::attendant;
use crate::engine::Engine;
use crate::error::{Asked, At, DockerError, said, status};
use bollard::models::ContainerCreateBody;
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
        skep_images::check(reference)?;
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
        skep_images::check(reference)?;
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
        let (name, tag) = skep_images::whole(reference)?;
        let options = options.repo(name).tag(tag).build();
        let file = skep_images::archive_of(source)?;
        let read = || format!("read `{}`", source.display());
        if skep_images::holds_images(&file).at(read)? {
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
        let (name, tag) = skep_images::whole(reference)?;
        let options = CreateImageOptionsBuilder::default().from_src("-").repo(name).tag(tag);
        let body = body_full(Bytes::from(tar));
        let answers = self.docker.create_image(Some(options.build()), Some(body), None);
        self.hear(answers, |_| {})
            .map_err(|reason| refused(format!("import the image `{reference}`"), reason))
    }

    /// Writes the files of an image into an archive: those that a container made of it would have. None
    /// is started.
    pub fn export(&self, reference: &str, archive: &mut File) -> Result<(), DockerError> {
        use std::io::Write;
        skep_images::check(reference)?;
        let step = || format!("take the files of the image `{reference}`");
        let body = ContainerCreateBody {
            image: Some(reference.to_owned()),
            // Some images name no command, and a container must have one.
            cmd: Some(vec!["-".into()]),
            network_disabled: Some(true),
            ..ContainerCreateBody::default()
        };
        let options = None::<bollard::query_parameters::CreateContainerOptions>;
        let made = self.wait(self.docker.create_container(options, body)).asked(step)?;
        let mut written = Ok(());
        let sent = self.hear(self.docker.export_container(&made.id), |bytes| {
            if written.is_ok() {
                written = archive.write_all(&bytes);
            }
        });
        self.wait(attendant::remove(&self.docker, &made.id, None))?;
        written.at(step)?;
        sent.map_err(|reason| refused(step(), reason))
    }

    /// Removes a name, and the image with its last one.
    pub fn remove_image(&self, reference: &str) -> Result<(), DockerError> {
        skep_images::check(reference)?;
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
    fn a_port_is_no_tag() {
        assert!(!has_tag("debian"));
        assert!(!has_tag("host:5000/debian"));
        assert!(has_tag("host:5000/debian:12"));
        assert!(has_tag("debian@sha256:0"));
    }
}
