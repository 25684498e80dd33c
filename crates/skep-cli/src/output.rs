//! Where text goes: data to standard output, everything else to standard error.

use crate::arguments::GlobalArguments;
use crate::attach::terminal;
use crate::exit::Failure;
use crate::json::error::ErrorDocument;
use crate::render::style::Style;
use crate::surroundings::Surroundings;
use serde::Serialize;
use skep_types::escape::{is_deceptive, visible_text};
use skep_types::{Code, Problem};
use std::cell::RefCell;
use std::io::{self, BufWriter, Write};

/// Output of any length is written by so many bytes at a time.
const PIECE: usize = 64 << 10;

/// The two streams, and how talkative and colourful to be.
pub(crate) struct Output {
    stdout: RefCell<Box<dyn Write>>,
    stderr: RefCell<Box<dyn Write>>,
    /// For data on standard output.
    pub(crate) style: Style,
    /// For words on standard error.
    pub(crate) error_style: Style,
    /// How many columns standard output has, if it is a terminal.
    pub(crate) columns: Option<usize>,
    quiet: bool,
    verbose: bool,
    json_errors: bool,
}

impl Output {
    /// The process's own streams, plain until [`Output::styled`] says otherwise.
    pub(crate) fn standard() -> Self {
        Self::new(Box::new(io::stdout()), Box::new(io::stderr()))
    }

    /// Any two streams.
    pub(crate) fn new(stdout: Box<dyn Write>, stderr: Box<dyn Write>) -> Self {
        Self {
            stdout: RefCell::new(stdout),
            stderr: RefCell::new(stderr),
            style: Style::PLAIN,
            error_style: Style::PLAIN,
            columns: None,
            quiet: false,
            verbose: false,
            json_errors: false,
        }
    }

    /// With errors as JSON, for `--json`.
    pub(crate) fn json_errors(mut self, json_errors: bool) -> Self {
        self.json_errors = json_errors;
        self
    }

    /// As the global options and the terminals say.
    pub(crate) fn styled(mut self, global: &GlobalArguments, around: &Surroundings) -> Self {
        let plain = global.no_color || around.variable("NO_COLOR").is_some();
        let forced = ["CLICOLOR_FORCE", "FORCE_COLOR"].iter().any(|name| {
            around.variable(name).is_some_and(|value| value != "0" && value != "false")
        });
        self.style = Style::coloured(!plain && (forced || around.terminals.stdout));
        self.error_style = Style::coloured(!plain && (forced || around.terminals.stderr));
        self.columns =
            terminal::size().filter(|_| around.terminals.stdout).map(|size| size.columns.into());
        self.quiet = global.quiet;
        self.verbose = global.verbose;
        self
    }

    /// Bytes for standard output, out at once.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let mut stdout = self.stdout.borrow_mut();
        stdout.write_all(bytes)?;
        stdout.flush()
    }

    /// Bytes for standard error as they are (a command's own output).
    pub(crate) fn error_bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let mut stderr = self.stderr.borrow_mut();
        stderr.write_all(bytes)?;
        stderr.flush()
    }

    /// Text for standard output.
    pub(crate) fn text(&self, text: &str) -> Result<(), Failure> {
        Ok(self.bytes(text.as_bytes())?)
    }

    /// Text for standard output, in pieces: `write` hands them over one by one, and no more than a
    /// little of it is held at a time.
    pub(crate) fn pieces(
        &self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let mut stdout = self.stdout.borrow_mut();
        let mut buffered = BufWriter::with_capacity(PIECE, &mut *stdout);
        write(&mut buffered)?;
        buffered.flush()?;
        Ok(())
    }

    /// One JSON document on standard output.
    pub(crate) fn document(&self, value: &impl Serialize) -> Result<(), Failure> {
        self.pieces(|out| {
            serde_json::to_writer_pretty(PlainJson(&mut *out), value)?;
            out.write_all(b"\n")
        })
    }

    /// One JSON object on one line of standard output, for streams.
    pub(crate) fn json_line(&self, value: &impl Serialize) -> Result<(), Failure> {
        self.json_text(serde_json::to_string(value))
    }

    fn json_text(&self, text: serde_json::Result<String>) -> Result<(), Failure> {
        let mut text = text.map_err(|error| {
            Problem::new(Code::Internal, format!("cannot write the answer as JSON: {error}"))
        })?;
        text = plain_json(&text);
        text.push('\n');
        self.text(&text)
    }

    /// A line worth saying, unless `--quiet`.
    pub(crate) fn say(&self, line: &str) {
        if !self.quiet {
            self.always(line);
        }
    }

    /// A line only for `--verbose`.
    pub(crate) fn detail(&self, line: &str) {
        if self.verbose {
            self.always(line);
        }
    }

    /// Whether `--quiet` was given.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether `--verbose` was given.
    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// A line that is said in any case.
    pub(crate) fn always(&self, line: &str) {
        // Nobody is left to be told that standard error is gone.
        let _ = self.error_bytes(format!("{line}\n").as_bytes());
    }

    /// A warning.
    pub(crate) fn warn(&self, text: &str) {
        let style = self.error_style;
        self.always(&format!("{} {text}", style.yellow("warning:")));
    }

    /// A question without a line end after it.
    pub(crate) fn ask(&self, question: &str) {
        let _ = self.error_bytes(question.as_bytes());
    }

    /// An error with its hint, as text or (with `--json`) as a document.
    pub(crate) fn problem(&self, problem: &Problem) {
        if self.json_errors {
            self.error_document(problem);
            return;
        }
        let style = self.error_style;
        // Whoever made the text has escaped the names in it; this is the second look.
        let message = visible_text(problem.message.as_bytes());
        self.always(&format!("{} {message}", style.red("error:")));
        // What a check printed: the reason itself is only its last line.
        let output = problem.details.get("output").and_then(serde_json::Value::as_str);
        for line in output.into_iter().flat_map(str::lines) {
            self.always(&format!("  | {}", visible_text(line.as_bytes())));
        }
        if let Some(hint) = &problem.hint {
            let hint = visible_text(hint.as_bytes());
            self.always(&format!("{} {hint}", style.cyan("hint:")));
        }
        if self.verbose && !problem.details.is_null() {
            self.always(&format!("details: {}", problem.details));
        }
    }

    /// What the argument parser has to say: help on standard output, errors on standard error.
    pub(crate) fn usage(&self, error: &clap::Error) {
        let text = error.render().to_string();
        if !error.use_stderr() {
            // A closed pipe behind `skep --help` is nothing to report.
            let _ = self.bytes(text.as_bytes());
        } else if self.json_errors {
            self.error_document(&usage_problem(&text));
        } else {
            let _ = self.error_bytes(text.as_bytes());
        }
    }

    fn error_document(&self, problem: &Problem) {
        let document = ErrorDocument::new(problem);
        match serde_json::to_string(&document) {
            Ok(text) => self.always(&plain_json(&text)),
            Err(_) => self.always(&problem.message),
        }
    }
}

/// Writes JSON as it comes, with what a terminal would act on made plain. The serializer hands over
/// text in whole characters, and only strings have any that are not plain.
struct PlainJson<'a>(&'a mut dyn Write);

impl Write for PlainJson<'_> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(piece) {
            Ok(text) if !piece.is_ascii() || piece.contains(&0x7f) => {
                self.0.write_all(plain_json(text).as_bytes())?;
            }
            _ => self.0.write_all(piece)?,
        }
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The same document with what a terminal would act on, or not show, as `\uXXXX`: outside of ASCII a
/// document has characters only in its strings.
fn plain_json(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match is_deceptive(character) {
            true => {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    plain.push_str(&format!("\\u{unit:04x}"));
                }
            }
            false => plain.push(character),
        }
    }
    plain
}

fn usage_problem(text: &str) -> Problem {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or("the command line is not understood");
    let problem = Problem::new(Code::Usage, first.strip_prefix("error: ").unwrap_or(first));
    match lines.find_map(|line| line.strip_prefix("tip: ")) {
        Some(tip) => problem.hint(tip),
        None => problem.hint("--help shows what can be typed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_unless_they_are_asked_for_or_refused() {
        let coloured = |line: &GlobalArguments, variables: &[(&str, &str)]| {
            let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            let around = Surroundings { variables: variables.collect(), ..Default::default() };
            let output = Output::standard().styled(line, &around);
            assert_eq!(output.style, output.error_style);
            output.style == Style::coloured(true)
        };
        let line = GlobalArguments::default();
        assert!(!coloured(&line, &[]));
        assert!(coloured(&line, &[("CLICOLOR_FORCE", "1")]));
        assert!(coloured(&line, &[("FORCE_COLOR", "1")]));
        assert!(!coloured(&line, &[("CLICOLOR_FORCE", "0"), ("FORCE_COLOR", "")]));
        assert!(!coloured(&line, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
        let plain = GlobalArguments { no_color: true, ..GlobalArguments::default() };
        assert!(!coloured(&plain, &[("CLICOLOR_FORCE", "1")]));
    }
}
