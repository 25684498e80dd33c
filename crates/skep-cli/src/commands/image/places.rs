//! Images in both places: skep's own store, which `oci` and `microvm` show, and the Docker engine's.

use crate::arguments::Json;
use crate::context::Context;
use crate::exit::Failure;
use crate::render::table::table;
use clap::ValueEnum;
use serde::Serialize;
use skep_engine::api::CreateRequest;
use skep_images::Images;
use skep_provider_docker::{DockerError, Engine};
use skep_types::{Code, Problem, escape};
use std::path::Path;

/// Who keeps an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Place {
    // skep, in the state directory: for oci and microvm
    Skep,
    // The Docker engine
    Docker,
}

/// An image somewhere.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Kept {
    tags: Vec<String>,
    place: Place,
    id: String,
    digests: Vec<String>,
    size: u64,
}

impl From<skep_provider_docker::Image> for Kept {
    fn from(image: skep_provider_docker::Image) -> Self {
        let skep_provider_docker::Image { id, tags, digests, size } = image;
        Self { tags, place: Place::Docker, id, digests, size }
    }
}

impl From<skep_images::Image> for Kept {
    fn from(image: skep_images::Image) -> Self {
        let skep_images::Image { id, tags, size, .. } = image;
        Self { tags, place: Place::Skep, id, digests: Vec::new(), size }
    }
}

/// `skep image ls`.
pub(super) fn list(context: &Context, json: Json) -> Result<(), Failure> {
    let own = own(context)?.list().map_err(|error| error.problem())?;
    let mut images: Vec<Kept> = own.into_iter().map(Kept::from).collect();
    match engine_if_any(context)? {
        Some(engine) => {
            images.extend(engine.images().map_err(problem)?.into_iter().map(Kept::from))
        }
        None => context.output.say("no Docker engine is used here; these are skep's own images"),
    }
    images.sort();
    if json.json {
        return context.output.document(&images);
    }
    let rows: Vec<_> = images
        .iter()
        .map(|image| {
            let name = image.tags.first().or(image.digests.first());
            let name = name.map_or_else(|| "-".to_owned(), |name| visible(name));
            let place = match image.place {
                Place::Skep => "skep",
                Place::Docker => "docker",
            };
            let size = skep_types::ByteSize(image.size).to_string();
            vec![name, place.to_owned(), short(&image.id), size]
        })
        .collect();
    context.output.text(&table(context.output.style, &["IMAGE", "PLACE", "ID", "SIZE"], &rows))
}

/// `skep image pull`.
pub(super) fn pull(context: &Context, reference: &str, json: Json) -> Result<(), Failure> {
    let mut progress = |line: &str| context.output.say(&visible(line));
    let image = open(context)?.pull(reference, &mut progress).map_err(not_fetched)?;
    show(context, &image.into(), json)
}

/// An image that was named for a new sandbox is brought to whoever will show it, if it is not there: from
/// the other place, or for the engine from a registry. What is asked of a server has to be there.
pub(crate) fn ensure(context: &Context, request: &CreateRequest) -> Result<(), Problem> {
    let Some(reference) = &request.image else { return Ok(()) };
    if context.host().is_some() {
        return Ok(());
    }
    let word = match &request.provider {
        Some(typed) => typed.clone(),
        None => provider_in_force(context, &request.project)?,
    };
    match word.as_str() {
        "docker" => ensure_in_engine(context, reference),
        "microvm" | "oci" => ensure_own(context, reference),
        word if word.starts_with("oci:") => ensure_own(context, reference),
        _ => Ok(()),
    }
}

/// The one that the settings name.
fn provider_in_force(context: &Context, project: &Path) -> Result<String, Problem> {
    let settings = context.api()?.config(Some(project))?;
    let set = settings.into_iter().find(|(key, ..)| key == "provider.name");
    Ok(set.and_then(|(_, value, _)| value.as_str().map(str::to_owned)).unwrap_or_default())
}

fn ensure_in_engine(context: &Context, reference: &str) -> Result<(), Problem> {
    let (own, engine) = (own(context)?, open(context)?);
    let here = engine.image(reference).map_err(problem)?.is_some();
    let kept = own.find(reference).map_err(|error| error.problem())?;
    match kept.filter(|_| !here) {
        Some(image) => {
            context.output.say("handing the image over to the Docker engine");
            engine.import(&own.root_of(&image), reference).map(drop).map_err(problem)
        }
        None => {
            let mut progress = |line: &str| context.output.say(&visible(line));
            engine.pull(reference, &mut progress).map(drop).map_err(not_fetched)
        }
    }
}

/// One that only the engine has is taken from there. If nobody has it, the provider says so.
fn ensure_own(context: &Context, reference: &str) -> Result<(), Problem> {
    let own = own(context)?;
    if own.find(reference).map_err(|error| error.problem())?.is_some() {
        return Ok(());
    }
    let Some(engine) = engine_if_any(context)? else { return Ok(()) };
    if engine.image(reference).map_err(problem)?.is_none() {
        return Ok(());
    }
    context.output.say("taking the image from the Docker engine");
    let images = images_directory(context)?;
    let archive = images.join(format!("export-{}.tar", std::process::id()));
    let taken = std::fs::File::create(&archive)
        .map_err(|error| cannot_write(&archive, &error))
        .and_then(|mut file| engine.export(reference, &mut file).map_err(problem))
        .and_then(|()| own.import(&archive, reference).map_err(|error| error.problem()));
    let _ = std::fs::remove_file(&archive);
    taken.map(drop)
}

/// `skep image import`.
pub(super) fn import(
    context: &Context,
    source: &Path,
    reference: Option<&str>,
    place: Option<Place>,
    json: Json,
) -> Result<(), Failure> {
    let source = context.surroundings.directory.join(source);
    let Some(reference) = reference else {
        return load(context, &source, place, json);
    };
    let kept =
        keep(context, &source, reference, place, &|engine| engine.import(&source, reference))?;
    show(context, &kept, json)
}

/// Keeps a root filesystem in the places that were meant, and returns it as the last of them has it. If
/// one refuses it, neither has it.
pub(super) fn keep(
    context: &Context,
    source: &Path,
    reference: &str,
    place: Option<Place>,
    hand_over: &dyn Fn(&Engine) -> Result<skep_provider_docker::Image, DockerError>,
) -> Result<Kept, Problem> {
    refuse_servers(context)?;
    let engine = match place {
        Some(Place::Skep) => None,
        Some(Place::Docker) => Some(open(context)?),
        None => engine_if_any(context)?,
    };
    let own = own(context)?;
    let mut draft = None;
    if place != Some(Place::Docker) {
        let made = own.draft(source, reference).map_err(|error| error.problem())?;
        let count = made.image().left_out;
        if count > 0 {
            context.output.say(&format!("{count} devices, pipes or sockets were left out"));
        }
        draft = Some(made);
    }
    // What had the name before is given up only when the engine has taken the new one.
    let handed = engine.map(|engine| hand_over(&engine)).transpose().map_err(problem)?;
    let kept = draft.map(|draft| draft.keep().map_err(|error| error.problem())).transpose()?;
    match (handed, kept) {
        (Some(image), _) => Ok(image.into()),
        (None, Some(image)) => Ok(image.into()),
        (None, None) => Err(Problem::new(Code::Internal, "the image was kept nowhere")),
    }
}

/// Images that `docker save` wrote are the engine's: they have layers and names of their own.
fn load(context: &Context, source: &Path, place: Option<Place>, json: Json) -> Result<(), Failure> {
    if source.is_dir() || place == Some(Place::Skep) {
        let message = "an image made from a root filesystem needs a name";
        let problem = Problem::new(Code::Usage, message);
        return Err(problem.hint("say `skep image import SOURCE NAME:TAG`").into());
    }
    let loaded = open(context)?.load(source).map_err(problem)?;
    if json.json {
        return context.output.document(&serde_json::json!({ "loaded": loaded }));
    }
    let lines: String = loaded.iter().map(|line| format!("{}\n", visible(line))).collect();
    context.output.text(&lines)
}

/// `skep image rm`.
pub(super) fn remove(context: &Context, reference: &str) -> Result<(), Failure> {
    refuse_servers(context)?;
    let removed = own(context)?.remove(reference).map_err(|error| error.problem())?;
    let engine = match removed {
        true => engine_if_any(context)?,
        false => Some(open(context)?),
    };
    match engine.map(|engine| engine.remove_image(reference)) {
        None | Some(Ok(())) => {}
        Some(Err(DockerError::NoImage(_))) if removed => {}
        Some(Err(error)) => return Err(problem(error).into()),
    }
    context.output.say(&format!("image {} was removed", visible(reference)));
    Ok(())
}

/// An image, by its id.
pub(super) fn show(context: &Context, image: &Kept, json: Json) -> Result<(), Failure> {
    match json.json {
        true => context.output.document(image),
        false => context.output.text(&format!("{}\n", visible(&image.id))),
    }
}

/// `images` in the state directory, made if need be.
pub(super) fn images_directory(context: &Context) -> Result<std::path::PathBuf, Problem> {
    let images = crate::wiring::prepare(context.global())?.join("images");
    std::fs::create_dir_all(&images).map_err(|error| cannot_write(&images, &error))?;
    Ok(images)
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Problem {
    Problem::new(Code::Io, format!("cannot make `{}`: {error}", path.display()))
}

fn own(context: &Context) -> Result<Images, Problem> {
    Ok(Images::new(&crate::wiring::prepare(context.global())?))
}

fn refuse_servers(context: &Context) -> Result<(), Problem> {
    if context.host().is_none() {
        return Ok(());
    }
    let problem = Problem::new(Code::Usage, "images are those of this host, not of a server's");
    Err(problem.hint("leave out `--host`, or run it on the server"))
}

/// The engine of this host.
fn open(context: &Context) -> Result<Engine, Problem> {
    connect(context)?.map_err(problem)
}

/// The same, if there is one. skep's own images need none, so that one which cannot be used is only said.
fn engine_if_any(context: &Context) -> Result<Option<Engine>, Problem> {
    match connect(context)? {
        Ok(engine) => Ok(Some(engine)),
        Err(DockerError::Absent { .. }) => Ok(None),
        Err(error @ DockerError::Remote { .. }) => {
            context.output.say(&format!("left out: {}", visible(&error.to_string())));
            Ok(None)
        }
        Err(error) => Err(problem(error)),
    }
}

fn connect(context: &Context) -> Result<Result<Engine, DockerError>, Problem> {
    refuse_servers(context)?;
    Ok(Engine::connect(&crate::wiring::docker_engine()))
}

fn problem(error: DockerError) -> Problem {
    error.problem()
}

/// There are other ways to an image than a registry.
fn not_fetched(error: DockerError) -> Problem {
    let problem = problem(error);
    match problem.hint {
        Some(_) => problem,
        None => problem.hint("`skep image import FILE REF` takes one from a file or a directory"),
    }
}

fn visible(text: &str) -> String {
    escape::visible(text.as_bytes())
}

/// As much of an id as people compare.
fn short(id: &str) -> String {
    let digest = id.split_once(':').map_or(id, |(_, digest)| digest);
    visible(digest.get(..12).unwrap_or(digest))
}
