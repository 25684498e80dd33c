//! A kernel for microVMs.

use crate::arguments::Json;
use crate::context::Context;
use crate::exit::Failure;
use skep_machine::MachineError;
use skep_machine::kernel;
use skep_types::{Code, Problem};
use std::path::{Path, PathBuf};

/// `skep image kernel`.
pub(super) fn run(context: &Context, deb: Option<PathBuf>, json: Json) -> Result<(), Failure> {
    let images = super::places::images_directory(context)?;
    let kernel = match deb {
        Some(package) => unpack(&package, &images)?,
        None => fetched(context, &images)?,
    };
    if json.json {
        let document = serde_json::json!({ "release": kernel.release, "image": kernel.image });
        context.output.document(&document)
    } else {
        context.output.text(&format!("{}\n", kernel.release))
    }
}

fn unpack(package: &Path, images: &Path) -> Result<kernel::Kernel, Failure> {
    kernel::unpack(package, &images.join("kernel")).map_err(|error| problem(&error).into())
}

fn fetched(context: &Context, images: &Path) -> Result<kernel::Kernel, Failure> {
    let scratch = images.join(format!("download-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).map_err(|error| {
        Problem::new(Code::Io, format!("cannot make `{}`: {error}", scratch.display()))
    })?;
    context.output.say("fetching a kernel");
    let unpacked = match kernel::download(&scratch) {
        Ok(package) => unpack(&package, images),
        Err(error) => Err(problem(&error).into()),
    };
    let _ = std::fs::remove_dir_all(&scratch);
    unpacked
}

fn problem(error: &MachineError) -> Problem {
    match error {
        MachineError::Missing { remedy, .. } => {
            Problem::from_error(Code::MissingCapability, error).hint(remedy.clone())
        }
        _ => Problem::from_error(Code::Io, error),
    }
}
