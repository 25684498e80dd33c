//! What can be typed: options that several commands share, and where the command line is cut.

pub(crate) mod exec;
pub(crate) mod sandbox;
pub(crate) mod target;

use clap::Args;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Options that every command takes.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct GlobalArguments {
    /// State directory (default: $XDG_STATE_HOME/skep) [env: SKEP_HOME]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options")]
    pub(crate) home: Option<PathBuf>,
    /// Remember in this PostgreSQL instead of the state directory [env: SKEP_STORE]
    #[arg(long, global = true, value_name = "URL", help_heading = "Global options")]
    pub(crate) store: Option<String>,
    /// Ask this server (unix:///PATH or http://127.0.0.1:PORT) [env: SKEP_HOST, SKEP_TOKEN]
    #[arg(long, global = true, value_name = "URL", help_heading = "Global options")]
    pub(crate) host: Option<String>,
    /// Say only what went wrong
    #[arg(long, short, global = true, conflicts_with = "verbose", help_heading = "Global options")]
    pub(crate) quiet: bool,
    /// Say more: where things are, and the details of errors
    #[arg(long, short, global = true, help_heading = "Global options")]
    pub(crate) verbose: bool,
    /// No colours, also on a terminal [env: NO_COLOR; CLICOLOR_FORCE=1: always]
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) no_color: bool,
}

/// `--json`, for commands that answer with data.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Json {
    /// Print JSON on standard output, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,
}

/// What stood behind the first `--`, for commands that give it a meaning of their own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AfterDashes(pub(crate) Option<Vec<OsString>>);

/// Whether a command has words of its own behind `--`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dashes {
    /// `--` only ends the options.
    Ordinary,
    /// The command line is cut at the first `--`, before anything is parsed: what follows is
    /// never looked at as an option, a name or another `--`.
    Cut,
}

impl Dashes {
    /// Cuts the words of one command.
    pub(crate) fn cut(self, mut words: Vec<OsString>) -> (Vec<OsString>, AfterDashes) {
        let at = words.iter().position(|word| word == "--").filter(|_| self == Self::Cut);
        let after = at.map(|at| {
            let after = words.split_off(at + 1);
            words.truncate(at);
            after
        });
        (words, AfterDashes(after))
    }
}

/// Whether `--json` stands before the first `--`: even an error in the command line is then JSON.
pub(crate) fn wants_json(line: &[OsString]) -> bool {
    line.iter().skip(1).take_while(|word| *word != "--").any(|word| word == "--json")
}

/// A command line cut at its command word: what stands before it, the word, and what follows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Global options before the command.
    pub(crate) before: Vec<OsString>,
    /// The command word.
    pub(crate) word: String,
    /// Everything behind it.
    pub(crate) after: Vec<OsString>,
}

/// Finds the command word; `None` if there is none (help, version, or a mistake).
pub(crate) fn cut_at_command(line: &[OsString]) -> Option<Cut> {
    let mut at = 1;
    while let Some(word) = line.get(at) {
        if word == "--home" || word == "--store" || word == "--host" {
            at += 2;
        } else if starts_with_dash(word) {
            at += 1;
        } else {
            let word = word.to_str()?.to_owned();
            let (before, after) = (line[1..at].to_vec(), line[at + 1..].to_vec());
            return Some(Cut { before, word, after });
        }
    }
    None
}

fn starts_with_dash(word: &OsStr) -> bool {
    word.as_encoded_bytes().first() == Some(&b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_command_word_is_found_behind_global_options() {
        let cut = cut_at_command(&words("skep -q --home /x --home=/y run --json a")).unwrap();
        assert_eq!(cut.word, "run");
        assert_eq!(cut.before, words("-q --home /x --home=/y"));
        assert_eq!(cut.after, words("--json a"));
        assert_eq!(cut_at_command(&words("skep --help")), None);
    }

    #[test]
    fn only_the_first_dashes_cut() {
        let (head, after) = Dashes::Cut.cut(words("name -- sh -c -- x"));
        assert_eq!(head, words("name"));
        assert_eq!(after.0, Some(words("sh -c -- x")));
        assert_eq!(Dashes::Ordinary.cut(words("a -- b")).0, words("a -- b"));
    }

    #[test]
    fn json_behind_the_dashes_belongs_to_the_command() {
        assert!(wants_json(&words("skep run --json -- x")));
        assert!(!wants_json(&words("skep run -- x --json")));
    }
}
