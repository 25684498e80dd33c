//! `skep image`: what machines and containers are made from.

mod build;
mod kernel;
pub(crate) mod places;

use crate::arguments::{AfterDashes, Json};
use crate::context::Context;
use crate::exit::Outcome;
use crate::tree::Run;
use clap::{Args, Subcommand};
use places::Place;
use std::path::PathBuf;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Image {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List images: skep's own, and those of the Docker engine
    Ls {
        #[command(flatten)]
        json: Json,
    },
    /// Have the Docker engine fetch an image, unless it is here
    Pull {
        /// Name with a tag or a digest
        #[arg(value_name = "REF")]
        reference: String,
        #[command(flatten)]
        json: Json,
    },
    /// Make an image from a directory or a tar archive, without a network
    Import {
        /// A root filesystem (directory or archive), or an archive that `docker save` wrote
        #[arg(value_name = "SOURCE")]
        source: PathBuf,
        /// Name for a root filesystem; images that were saved bring theirs
        #[arg(value_name = "REF")]
        reference: Option<String>,
        /// Keep it here only (default: by skep, for oci and microvm, and by the engine if one answers)
        #[arg(long, value_name = "PLACE")]
        place: Option<Place>,
        #[command(flatten)]
        json: Json,
    },
    /// Make an image from Debian packages, by a recipe
    Build(build::BuildArguments),
    /// Remove an image
    Rm {
        /// Name, digest or id
        #[arg(value_name = "REF")]
        reference: String,
    },
    /// Unpack a kernel for microVMs into the state directory
    Kernel {
        /// A Debian kernel package (default: the cloud kernel, fetched with apt-get)
        #[arg(long, value_name = "FILE")]
        deb: Option<PathBuf>,
        #[command(flatten)]
        json: Json,
    },
}

impl Run for Image {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        match self.what {
            What::Ls { json } => places::list(context, json)?,
            What::Pull { reference, json } => places::pull(context, &reference, json)?,
            What::Import { source, reference, place, json } => {
                places::import(context, &source, reference.as_deref(), place, json)?;
            }
            What::Build(build) => build.run(context)?,
            What::Rm { reference } => places::remove(context, &reference)?,
            What::Kernel { deb, json } => kernel::run(context, deb, json)?,
        }
        Ok(0)
    }
}
