//! Images that skep makes itself.

use super::places::{self, Place};
use crate::arguments::Json;
use crate::context::Context;
use crate::exit::Failure;
use clap::{Args, ValueEnum};
use skep_provider_docker::{Build, DockerError, Recipe};
use skep_types::Problem;
use std::path::{Path, PathBuf};

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct BuildArguments {
    /// What to make
    #[arg(value_name = "RECIPE")]
    recipe: RecipeWord,
    /// Name of the image
    #[arg(value_name = "REF", default_value = "skep/agent:latest")]
    reference: String,
    /// Release of Debian (default: the recipe's)
    #[arg(long, value_name = "NAME")]
    suite: Option<String>,
    /// Where packages come from: an address, or a directory (default: as apt is set up here)
    #[arg(long, value_name = "URL|DIR")]
    mirror: Option<String>,
    /// This package instead of the recipe's (may be repeated)
    #[arg(long, value_name = "NAME")]
    package: Vec<String>,
    /// Keep it here only (default: by skep, for oci and microvm, and by the engine if one answers)
    #[arg(long, value_name = "PLACE", conflicts_with = "output")]
    place: Option<Place>,
    /// Write the root filesystem here, as a tar archive, and keep no image
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    json: Json,
}

/// What there is a recipe for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RecipeWord {
    // What coding agents need
    Agent,
}

impl BuildArguments {
    /// `skep image build`.
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let RecipeWord::Agent = self.recipe;
        let recipe = Recipe::agent().map_err(problem)?;
        if let Some(output) = &self.output {
            let output = context.surroundings.directory.join(output);
            self.make(&recipe, &output, context)?;
            let shown = skep_types::escape::visible(output.as_os_str().as_encoded_bytes());
            return context.output.text(&format!("{shown}\n"));
        }
        skep_images::whole(&self.reference).map_err(|error| error.problem())?;
        let archive =
            places::images_directory(context)?.join(format!("build-{}.tar", std::process::id()));
        let made = self.make(&recipe, &archive, context).and_then(|()| {
            places::keep(context, &archive, &self.reference, self.place, &|engine| {
                recipe.hand_over(engine, &archive, &self.reference)
            })
        });
        let _ = std::fs::remove_file(&archive);
        places::show(context, &made?, self.json)
    }

    fn make(&self, recipe: &Recipe, archive: &Path, context: &Context) -> Result<(), Problem> {
        let build = Build {
            suite: self.suite.clone(),
            mirror: self.mirror.clone(),
            packages: self.package.clone(),
        };
        let mut progress =
            |line: &str| context.output.say(&skep_types::escape::visible(line.as_bytes()));
        recipe.make(&build, archive, &mut progress).map_err(problem)
    }
}

fn problem(error: DockerError) -> Problem {
    error.problem()
}
