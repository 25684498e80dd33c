//! The commands, and how a command line finds its own.

use crate::arguments::{self, AfterDashes, Cut, Dashes, GlobalArguments};
use crate::commands as c;
use crate::context::Context;
use crate::exit::{Family, Outcome};
use clap::{Args, FromArgMatches as _};
use std::ffi::OsString;

/// A command: its arguments, and what it does with them.
pub(crate) trait Run: Args {
    /// Does it.
    fn run(self, after: AfterDashes, context: &Context) -> Outcome;
}

const ABOUT: &str = "Run agents, builds and untrusted commands on a copy of a project, review \
                     what they changed, and take over what you approve";
/// Help is not wider than this, also on a wide terminal.
const WIDTH: usize = 100;

/// One entry of the list of commands.
struct Entry {
    name: &'static str,
    about: &'static str,
    usage: Option<&'static str>,
    family: Family,
    dashes: Dashes,
    hidden: bool,
    reads: bool,
    augment: fn(clap::Command) -> clap::Command,
    start: fn(&clap::ArgMatches, AfterDashes, &Context) -> Outcome,
}

const fn entry<C: Run>(name: &'static str, about: &'static str) -> Entry {
    Entry {
        name,
        about,
        usage: None,
        family: Family::Other,
        dashes: Dashes::Ordinary,
        hidden: false,
        reads: false,
        augment: C::augment_args,
        start: start::<C>,
    }
}

fn start<C: Run>(matches: &clap::ArgMatches, after: AfterDashes, context: &Context) -> Outcome {
    C::from_arg_matches(matches)?.run(after, context)
}

impl Entry {
    /// One whose words behind `--` are its own.
    const fn cut(mut self) -> Self {
        self.dashes = Dashes::Cut;
        self
    }

    /// One that ends as a command inside ended.
    const fn exec(mut self) -> Self {
        self.family = Family::Exec;
        self
    }

    /// One that is in no list.
    const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    /// One that changes nothing, and so works on what is only to be read.
    const fn reads(mut self) -> Self {
        self.reads = true;
        self
    }

    /// With a usage line of its own, where the parser cannot know what `--` means, or which of two words
    /// may be left out.
    const fn usage(mut self, usage: &'static str) -> Self {
        self.usage = Some(usage);
        self
    }

    fn command(&self) -> clap::Command {
        let command = (self.augment)(clap::Command::new(self.name)).about(self.about);
        // What the command says of itself stands before what all say.
        let own = command.get_after_help().map(|own| format!("{own}\n\n")).unwrap_or_default();
        let command = command.after_help(own + &self.family.help());
        match self.usage {
            Some(usage) => command.override_usage(usage),
            None => command,
        }
    }

    /// The parser of this command alone.
    fn parser(&self) -> clap::Command {
        GlobalArguments::augment_args(self.command())
            // The flattened options would leave a description of their own there.
            .about(self.about)
            .bin_name(format!("skep {}", self.name))
            .max_term_width(WIDTH)
    }
}

/// Every command, in the order help lists them.
static ENTRIES: &[Entry] = &[
    entry::<c::run::Run>("run", "Run a command on a copy of the project")
        .usage("skep run [OPTIONS] [--] CMD...")
        .cut()
        .exec(),
    entry::<c::create::Create>("create", "Create a sandbox"),
    entry::<c::exec::Exec>("exec", "Run a command in a sandbox")
        .usage("skep exec [OPTIONS] [NAME] -- CMD...")
        .cut()
        .exec(),
    entry::<c::shell::Shell>("shell", "Open a shell in a sandbox").exec(),
    entry::<c::ls::Ls>("ls", "List sandboxes").reads(),
    entry::<c::show::Show>("show", "Show a sandbox").reads(),
    entry::<c::ps::Ps>("ps", "List the execs of a sandbox").reads(),
    entry::<c::logs::Logs>("logs", "Print the kept output of an exec").reads(),
    entry::<c::kill::Kill>("kill", "End an exec with everything it started").reads(),
    entry::<c::stop::Stop>("stop", "End everything in a sandbox; its changes are kept"),
    entry::<c::start::Start>("start", "Start a stopped sandbox"),
    entry::<c::freeze::Freeze>("freeze", "Pause every process of a sandbox"),
    entry::<c::thaw::Thaw>("thaw", "Let a frozen sandbox go on"),
    entry::<c::rm::Rm>("rm", "Delete sandboxes"),
    entry::<c::diff::Diff>("diff", "Show what a sandbox changed")
        .usage("skep diff [OPTIONS] [NAME] [--] [PATH]...")
        .cut()
        .reads(),
    entry::<c::approve::Approve>("approve", "Apply changes to the project")
        .usage("skep approve [OPTIONS] [NAME] [--] [PATH]...")
        .cut(),
    entry::<c::reject::Reject>("reject", "Drop changes from a sandbox")
        .usage("skep reject [OPTIONS] [NAME] [--] [PATH]...")
        .cut(),
    entry::<c::undo::Undo>("undo", "Reverse an approval"),
    entry::<c::conflicts::Conflicts>("conflicts", "Show where the project moved since create")
        .usage("skep conflicts [OPTIONS] [NAME] [--] [PATH]...")
        .cut()
        .reads(),
    entry::<c::pull::Pull>("pull", "Bring commits made inside into the project's repository"),
    entry::<c::cp::Cp>("cp", "Copy files into a sandbox, or out of it"),
    entry::<c::rebase::Rebase>("rebase", "Take the project's newer state into a sandbox"),
    entry::<c::history::History>("history", "List approvals").reads(),
    entry::<c::receipt::Receipt>("receipt", "Print the signed statement of an approval").reads(),
    entry::<c::snapshot::Snapshot>("snapshot", "Freeze the state of a sandbox under a label")
        .usage("skep snapshot [OPTIONS] [NAME] [LABEL]"),
    entry::<c::restore::Restore>("restore", "Take a sandbox back to a snapshot")
        .usage("skep restore [OPTIONS] [NAME] LABEL"),
    entry::<c::fork::Fork>("fork", "Start new sandboxes from the state of one"),
    entry::<c::compare::Compare>("compare", "Show sandboxes side by side").reads(),
    entry::<c::template::Template>("template", "Named states to create sandboxes from"),
    entry::<c::net::Net>("net", "Show and change what a sandbox may reach")
        .usage("skep net [OPTIONS] [NAME]\n       skep net <COMMAND> [OPTIONS] [NAME] ..."),
    entry::<c::doctor::Doctor>("doctor", "Probe what works on this machine").reads(),
    entry::<c::providers::Providers>("providers", "List where sandboxes can run").reads(),
    entry::<c::image::Image>("image", "What machines and containers are made from"),
    entry::<c::gc::Gc>("gc", "Clean up"),
    entry::<c::stats::Stats>("stats", "Count sandboxes, and what they were promised and use")
        .reads(),
    entry::<c::events::Events>("events", "Print what happened").reads(),
    entry::<c::config::Config>("config", "Print the settings in force").reads(),
    entry::<c::serve::Serve>("serve", "Serve the HTTP API"),
    entry::<c::token::Token>("token", "Tokens for the HTTP API"),
    entry::<c::completion::Completion>("completion", "Print a completion script for a shell"),
    entry::<c::man::Man>("man", "Print a manual page"),
    entry::<c::version::Version>("version", "Print the version"),
    entry::<c::worker::Worker>(c::worker::WORD, "Work for `skep serve`").hidden(),
];

/// The whole tree, for help, suggestions, completion and manual pages.
pub(crate) fn whole() -> clap::Command {
    GlobalArguments::augment_args(clap::Command::new("skep"))
        .about(ABOUT)
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .max_term_width(WIDTH)
        .subcommands(ENTRIES.iter().filter(|entry| !entry.hidden).map(Entry::command))
}

/// Which table of exit codes the command of that name follows.
pub(crate) fn family_of(name: &str) -> Family {
    ENTRIES.iter().find(|entry| entry.name == name).map_or(Family::Other, |entry| entry.family)
}

/// A command line that was understood.
pub(crate) struct Parsed {
    entry: &'static Entry,
    global: GlobalArguments,
    matches: clap::ArgMatches,
    after: AfterDashes,
}

impl Parsed {
    /// Which table of exit codes it follows.
    pub(crate) fn family(&self) -> Family {
        self.entry.family
    }

    /// Whether the command changes nothing that is remembered.
    pub(crate) fn reads(&self) -> bool {
        self.entry.reads
    }

    /// The options that every command takes.
    pub(crate) fn global(&self) -> &GlobalArguments {
        &self.global
    }

    /// Whether the command was given `--json`.
    pub(crate) fn wants_json(&self) -> bool {
        let innermost = std::iter::successors(Some(&self.matches), |matches| {
            matches.subcommand().map(|(_, inner)| inner)
        });
        innermost
            .into_iter()
            .any(|matches| matches!(matches.try_get_one::<bool>("json"), Ok(Some(true))))
    }

    /// Does it.
    pub(crate) fn start(self, context: &Context) -> Outcome {
        (self.entry.start)(&self.matches, self.after, context)
    }
}

/// Parses a command line with the parser of its command alone.
pub(crate) fn parse(line: Vec<OsString>) -> Result<Parsed, Box<clap::Error>> {
    let known = arguments::cut_at_command(&line)
        .and_then(|cut| Some((ENTRIES.iter().find(|entry| entry.name == cut.word)?, cut)));
    match known {
        Some((entry, cut)) => parse_one(entry, cut).map_err(Box::new),
        None => Err(Box::new(what_is_wrong(line))),
    }
}

fn parse_one(entry: &'static Entry, cut: Cut) -> Result<Parsed, clap::Error> {
    let (words, after) = entry.dashes.cut(cut.after);
    let line = [OsString::from("skep")].into_iter().chain(cut.before).chain(words);
    let matches = entry.parser().try_get_matches_from(line)?;
    let global = GlobalArguments::from_arg_matches(&matches)?;
    Ok(Parsed { entry, global, matches, after })
}

/// A line without a known command: help, version, or an error with a suggestion.
fn what_is_wrong(line: Vec<OsString>) -> clap::Error {
    match whole().try_get_matches_from(line) {
        Err(error) => error,
        Ok(_) => whole().error(clap::error::ErrorKind::MissingSubcommand, "no command was given"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::RESERVED_WORDS;

    fn parse_text(text: &str) -> Result<Parsed, Box<clap::Error>> {
        parse(text.split(' ').map(OsString::from).collect())
    }

    #[test]
    fn the_tree_is_sound() {
        whole().debug_assert();
        for entry in ENTRIES {
            entry.parser().debug_assert();
        }
    }

    #[test]
    fn every_command_word_is_reserved() {
        for entry in ENTRIES.iter().filter(|entry| !entry.hidden) {
            assert!(RESERVED_WORDS.contains(&entry.name), "{}", entry.name);
        }
    }

    #[test]
    fn every_option_has_a_help_text() {
        for entry in ENTRIES {
            for argument in entry.command().get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", entry.name, argument.get_id());
            }
        }
    }

    #[test]
    fn global_options_stand_before_or_behind_the_command() {
        assert!(parse_text("skep --home /x ls").unwrap().global().home.is_some());
        assert!(parse_text("skep ls --home=/x -q").unwrap().global().quiet);
    }

    #[test]
    fn options_of_the_command_inside_are_not_ours() {
        assert!(!parse_text("skep run sh --json").unwrap().wants_json());
        assert!(!parse_text("skep run -- sh --json").unwrap().wants_json());
        assert!(parse_text("skep run --json sh").unwrap().wants_json());
        assert!(parse_text("skep template ls --json --home /x").unwrap().wants_json());
    }

    #[test]
    fn help_describes_the_command() {
        for entry in ENTRIES {
            let help = entry.parser().render_help().to_string();
            assert!(help.starts_with(entry.about), "{help}");
            assert!(help.contains(&entry.family.help()), "{help}");
        }
    }

    #[test]
    fn mistakes_are_errors_with_suggestions() {
        let error = parse_text("skep dif").err().unwrap();
        assert!(error.use_stderr());
        assert!(error.render().to_string().contains("diff"), "{}", error.render());
        let error = parse_text("skep run --memroy 1G -- x").err().unwrap();
        assert!(error.render().to_string().contains("--memory"), "{}", error.render());
        for bad in [
            "skep",
            "skep --nonsense",
            "skep ls --nonsense",
            "skep run --memory 0 -- true",
            "skep run --memory 5 -- true",
            "skep run --timeout 5 -- true",
            "skep run --cpus 0 -- true",
            "skep run --pids 0 -- true",
            "skep run --net everything -- true",
            "skep run --require nonsense -- true",
            "skep run --name ../x -- true",
            "skep run --name diff -- true",
            "skep run --rm --keep -- true",
            "skep undo a b",
        ] {
            let error = parse_text(bad).err().unwrap_or_else(|| panic!("{bad}"));
            let help =
                error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
            assert!(error.use_stderr() || help, "{bad}");
        }
    }

    #[test]
    fn help_is_no_error() {
        for line in ["skep --help", "skep help run", "skep run --help", "skep --version"] {
            assert!(!parse_text(line).err().unwrap().use_stderr(), "{line}");
        }
    }
}
