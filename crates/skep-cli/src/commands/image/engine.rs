//! Images of the Docker engine.

use crate::arguments::Json;
use crate::context::Context;
use crate::exit::Failure;
use crate::render::table::table;
use skep_engine::api::CreateRequest;
use skep_provider_docker::{DockerError, Engine, Image};
use skep_types::{Code, Problem, escape};
use std::path::Path;

/// `skep image ls`.
pub(super) fn list(context: &Context, json: Json) -> Result<(), Failure> {
    let images = open(context)?.images().map_err(problem)?;
    if json.json {
        return context.output.document(&images);
    }
    let rows: Vec<_> = images
        .iter()
        .map(|image| {
            let name = image.tags.first().or(image.digests.first());
            let name = name.map_or_else(|| "-".to_owned(), |name| visible(name));
            vec![name, short(&image.id), skep_types::ByteSize(image.size).to_string()]
        })
        .collect();
    context.output.text(&table(context.output.style, &["IMAGE", "ID", "SIZE"], &rows))
}

/// `skep image pull`.
pub(super) fn pull(context: &Context, reference: &str, json: Json) -> Result<(), Failure> {
    let mut progress = |line: &str| context.output.say(&visible(line));
    let image = open(context)?.pull(reference, &mut progress).map_err(problem)?;
    show(context, &image, json)
}

/// An image that was named for a new sandbox is fetched if it is not here. What is asked of a
/// server has to be there.
pub(crate) fn ensure(context: &Context, request: &CreateRequest) -> Result<(), Problem> {
    match (&request.image, request.provider.as_deref()) {
        (Some(reference), Some("docker")) if context.host().is_none() => {
            let mut progress = |line: &str| context.output.say(&visible(line));
            open(context)?.pull(reference, &mut progress).map(drop).map_err(problem)
        }
        _ => Ok(()),
    }
}

/// `skep image import`.
pub(super) fn import(
    context: &Context,
    source: &Path,
    reference: Option<&str>,
    json: Json,
) -> Result<(), Failure> {
    let source = context.surroundings.directory.join(source);
    let engine = open(context)?;
    let Some(reference) = reference else {
        if source.is_dir() {
            let message = "an image made from a directory needs a name";
            let problem = Problem::new(Code::Usage, message);
            return Err(problem.hint("say `skep image import DIR NAME:TAG`").into());
        }
        let loaded = engine.load(&source).map_err(problem)?;
        if json.json {
            return context.output.document(&serde_json::json!({ "loaded": loaded }));
        }
        let lines: String = loaded.iter().map(|line| format!("{}\n", visible(line))).collect();
        return context.output.text(&lines);
    };
    let image = engine.import(&source, reference).map_err(problem)?;
    show(context, &image, json)
}

/// `skep image rm`.
pub(super) fn remove(context: &Context, reference: &str) -> Result<(), Failure> {
    open(context)?.remove_image(reference).map_err(problem)?;
    context.output.say(&format!("image {} was removed", visible(reference)));
    Ok(())
}

/// An image, by its id.
pub(super) fn show(context: &Context, image: &Image, json: Json) -> Result<(), Failure> {
    match json.json {
        true => context.output.document(image),
        false => context.output.text(&format!("{}\n", visible(&image.id))),
    }
}

/// The engine of this host.
pub(super) fn open(context: &Context) -> Result<Engine, Problem> {
    if context.host().is_some() {
        let message = "images are those of this host's engine, not of a server's";
        let problem = Problem::new(Code::Usage, message);
        return Err(problem.hint("leave out `--host`, or run it on the server"));
    }
    let address = context.surroundings.variable("DOCKER_HOST");
    let address = address.map(|address| address.to_string_lossy().into_owned());
    Engine::connect(address.as_deref()).map_err(problem)
}

fn problem(error: DockerError) -> Problem {
    error.problem()
}

fn visible(text: &str) -> String {
    escape::visible(text.as_bytes())
}

/// As much of an id as people compare.
fn short(id: &str) -> String {
    let digest = id.strip_prefix("sha256:").unwrap_or(id);
    visible(digest.get(..12).unwrap_or(digest))
}
