//! `skep man`: manual pages, in the form that `man -l -` reads.

use crate::arguments::AfterDashes;
use crate::context::{Context, show_path};
use crate::exit::Outcome;
use crate::tree;
use crate::tree::Run;
use clap::Args;
use skep_types::{Code, Problem, escape};
use std::path::{Path, PathBuf};

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The page of this command (default: of skep itself)
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
    /// Write every page into this directory instead: skep.1, skep-run.1, …
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

impl Run for Man {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let mut whole = tree::whole();
        whole.build();
        if let Some(directory) = &self.dir {
            write_all(&whole, directory)?;
            return Ok(0);
        }
        let page = match &self.command {
            None => whole,
            Some(name) => {
                let found = whole.find_subcommand(name).cloned();
                let message =
                    || format!("no command is called `{}`", escape::visible(name.as_bytes()));
                found.ok_or_else(|| Problem::new(Code::NotFound, message()))?
            }
        };
        context.output.bytes(&render(page)?)?;
        Ok(0)
    }
}

fn render(page: clap::Command) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text)?;
    Ok(text)
}

fn write_all(whole: &clap::Command, directory: &Path) -> Result<(), Problem> {
    write_page(whole.clone(), "skep", directory)?;
    for command in whole.get_subcommands().filter(|command| command.get_name() != "help") {
        let name = format!("skep-{}", command.get_name());
        write_page(command.clone(), &name, directory)?;
    }
    Ok(())
}

fn write_page(page: clap::Command, name: &str, directory: &Path) -> Result<(), Problem> {
    let path = directory.join(format!("{name}.1"));
    render(page).and_then(|text| std::fs::write(&path, text)).map_err(|error| {
        Problem::new(Code::Io, format!("cannot write `{}`: {error}", show_path(&path)))
    })
}
