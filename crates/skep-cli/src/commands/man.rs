//! `skep man`: manual pages, in the form that `man -l -` reads.

use crate::arguments::AfterDashes;
use crate::context::{Context, show_path};
use crate::exit::{Family, Outcome};
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

/// Words and what they stand for.
type Terms = [(&'static str, &'static str)];

/// What is read from the environment.
const ENVIRONMENT: &Terms = &[
    ("SKEP_HOME", "The state directory, as --home."),
    ("SKEP_HOST", "The server to ask, as --host."),
    (
        "SKEP_TOKEN, SKEP_TOKEN_FILE",
        "The token to show that server, or a file (mode 0600) with it.",
    ),
    ("SKEP_STORE", "The PostgreSQL to remember in, as --store."),
    (
        "SKEP_SECTION_KEY",
        "A setting, such as SKEP_LIMITS_MEMORY=2G; lists are separated by commas. skep config \
         --reference lists them, skep config --origin shows which are in force.",
    ),
    ("NO_COLOR", "No colours, as --no-color."),
    ("CLICOLOR_FORCE, FORCE_COLOR", "Colours also where output is no terminal; 0 does not count."),
    ("XDG_STATE_HOME, XDG_CONFIG_HOME", "Where the state directory and the settings are."),
    (
        "DOCKER_HOST, DOCKER_TLS_VERIFY, DOCKER_CERT_PATH",
        "The engine of the provider docker, as docker(1) has it.",
    ),
];

/// What is kept on disk.
const FILES: &Terms = &[
    ("~/.local/state/skep", "The state directory: sandboxes, what was approved, kept output."),
    ("~/.config/skep/config.toml", "Your settings."),
    ("/etc/skep/config.toml", "Settings of this machine."),
    ("skep.toml", "Settings of a project, in its root; they can only make things stricter."),
];

fn render(page: clap::Command) -> std::io::Result<Vec<u8>> {
    let sections = sections(page.get_name());
    // What stands below the help of all has sections of its own here.
    let below = page.get_after_help().map(ToString::to_string).unwrap_or_default();
    let own = below.strip_suffix(&tree::family_of(page.get_name()).help()).map(str::trim_end);
    let own = own.filter(|own| !own.is_empty()).map(str::to_owned);
    let mut text = Vec::new();
    let page = match own {
        Some(own) => page.after_help(own),
        None => page.after_help(None::<&str>),
    };
    clap_mangen::Man::new(page).render(&mut text)?;
    for (heading, terms) in sections {
        text.extend(section(heading, terms).into_bytes());
    }
    Ok(text)
}

/// What the page of a command, or of skep itself, has beside the options.
fn sections(name: &str) -> Vec<(&'static str, &'static Terms)> {
    if name != "skep" {
        return vec![(".SH \"EXIT STATUS\"", tree::family_of(name).meanings())];
    }
    vec![
        (".SH \"EXIT STATUS\"\n.SS \"Of run, exec and shell\"", Family::Exec.meanings()),
        (".SS \"Of all others\"", Family::Other.meanings()),
        (".SH ENVIRONMENT", ENVIRONMENT),
        (".SH FILES", FILES),
    ]
}

fn section(heading: &str, terms: &Terms) -> String {
    let mut text = format!("{heading}\n");
    for (term, meaning) in terms {
        text.push_str(&format!(".TP\n\\fB{}\\fR\n{}\n", plain(term), plain(meaning)));
    }
    text
}

/// A text of ours as roff takes it: a dash that can be copied and typed, and no request at the start of a line.
fn plain(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn page(name: Option<&str>) -> String {
        let mut whole = tree::whole();
        whole.build();
        let found = name.map_or(&whole, |name| whole.find_subcommand(name).unwrap()).clone();
        String::from_utf8(render(found).unwrap()).unwrap()
    }

    #[test]
    fn every_page_says_what_exit_codes_mean() {
        let run = page(Some("run"));
        assert!(
            run.contains(".SH \"EXIT STATUS\"\n.TP\n\\fBany\\fR\nthe command's own\n"),
            "{run}"
        );
        assert!(run.contains("\\fB124\\fR\n") && !run.contains("\\fB3\\fR\n"), "{run}");
        let diff = page(Some("diff"));
        assert!(diff.contains("\\fB3\\fR\nnot found\n") && !diff.contains("\\fB124"), "{diff}");
        assert!(!diff.contains("Exit status:") && !diff.contains("EXTRA"), "{diff}");
    }

    #[test]
    fn the_page_of_skep_itself_says_what_is_read_and_where_things_are() {
        let page = page(None);
        for part in ["\"EXIT STATUS\"\n.SS", "ENVIRONMENT\n.TP", "FILES\n.TP"] {
            assert!(page.contains(&format!("\n.SH {part}")), "{part}: {page}");
        }
        for name in
            ["SKEP_HOME", "SKEP_HOST", "NO_COLOR", "CLICOLOR_FORCE", "/etc/skep/config.toml"]
        {
            assert!(page.contains(name), "{name}: {page}");
        }
    }
}
