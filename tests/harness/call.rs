//! Calling the binary under a deadline.

use super::who::Who;
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{Read, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A call that has not been made yet.
#[derive(Debug)]
pub(crate) struct Call {
    command: Command,
    input: Vec<u8>,
    deadline: Duration,
    who: Option<Who>,
}

impl Call {
    /// Of a command that is ready but for its arguments.
    pub(crate) fn new(command: Command) -> Self {
        Self { command, input: Vec::new(), deadline: Duration::from_secs(60), who: None }
    }

    /// Says who makes the call; the command itself must be dressed already.
    pub(crate) fn by(mut self, who: Who) -> Self {
        self.who = Some(who);
        self
    }

    /// Who makes the call, where that was said.
    pub(crate) fn who(&self) -> Option<Who> {
        self.who
    }

    /// One more argument.
    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// More arguments.
    pub(crate) fn args<I: IntoIterator<Item: AsRef<OsStr>>>(mut self, arguments: I) -> Self {
        self.command.args(arguments);
        self
    }

    /// Sets a variable of skep's own environment.
    ///
    /// Settings and failpoints are of the process that works: such a call goes to no server.
    pub(crate) fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let word = name.as_ref().as_encoded_bytes();
        let ways = [b"SKEP_HOST".as_slice(), b"SKEP_TOKEN"];
        if word.starts_with(b"SKEP_") && !ways.contains(&word) && super::hosted::wanted() {
            self.command.env_remove("SKEP_HOST");
        }
        self.command.env(name, value);
        self
    }

    /// Runs it in another directory than the project.
    pub(crate) fn directory(mut self, path: impl AsRef<Path>) -> Self {
        self.command.current_dir(path);
        self
    }

    /// Bytes for its standard input.
    pub(crate) fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = bytes.into();
        self
    }

    /// Another deadline than a minute.
    pub(crate) fn within(mut self, seconds: u64) -> Self {
        self.deadline = Duration::from_secs(seconds);
        self
    }

    /// Starts it with piped streams; the caller looks after it.
    pub(crate) fn spawn(mut self) -> Child {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.command.spawn().unwrap_or_else(|error| panic!("{:?}: {error}", self.command))
    }

    /// The command as it stands, for what this type does not offer.
    pub(crate) fn into_command(self) -> Command {
        self.command
    }

    /// What is called, without the environment.
    fn line(&self) -> String {
        let words = std::iter::once(self.command.get_program()).chain(self.command.get_args());
        let words: Vec<_> = words.map(|word| format!("{word:?}")).collect();
        let mut line = words.join(" ");
        line.truncate(line.floor_char_boundary(2000));
        line
    }

    /// Runs it to its end.
    #[track_caller]
    pub(crate) fn run(self) -> Ran {
        let line = self.line();
        let (deadline, input) = (Instant::now() + self.deadline, self.input.clone());
        let failed = self.command.get_envs().any(|(name, _)| name == "SKEP_FAILPOINT");
        let mut child = self.spawn();
        let mut stdin = child.stdin.take().unwrap();
        // A command that ends before it has read everything is no failure of the test.
        std::thread::spawn(move || drop(stdin.write_all(&input)));
        let stdout = collect(child.stdout.take().unwrap());
        let stderr = collect(child.stderr.take().unwrap());
        let status = wait(&mut child, deadline, &line);
        if failed || status.signal().is_some() {
            super::hosted::somebody_died();
        }
        let rest = |stream: &mpsc::Receiver<Vec<u8>>| {
            // Whoever still holds the stream after the end was started by skep and forgotten.
            stream.recv_timeout(Duration::from_secs(10)).unwrap_or_else(|_| {
                panic!("{line} has ended ({status}), but somebody holds its output")
            })
        };
        let (stdout, stderr) = (rest(&stdout), rest(&stderr));
        Ran { line, status, stdout, stderr }
    }
}

fn wait(child: &mut Child, deadline: Instant, line: &str) -> ExitStatus {
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("{line} has not ended in time");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn collect(mut stream: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver
}

/// A call that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    line: String,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Ran {
    /// The exit code; minus the signal if one ended it.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| -self.status.signal().unwrap_or(0))
    }

    /// Asserts success.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        self.exits(0)
    }

    /// Asserts an exit code.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "exit code of {}", self.describe());
        self
    }

    /// Standard output as text, without the last newline.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end_matches('\n').to_owned()
    }

    /// Standard error as text.
    pub(crate) fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Standard output as one JSON document.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {}", self.describe()))
    }

    /// Standard output as one JSON document per line.
    #[track_caller]
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        let lines = self.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    /// The `error` object that `--json` puts on standard error.
    #[track_caller]
    pub(crate) fn problem(&self) -> Value {
        let errors = self.errors();
        let line = errors.lines().find(|line| line.starts_with("{\"error\""));
        let line = line.unwrap_or_else(|| panic!("no problem: {}", self.describe()));
        serde_json::from_str::<Value>(line).unwrap()["error"].clone()
    }

    /// Asserts that standard error says something.
    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        assert!(self.errors().contains(text), "`{text}` is not said by {}", self.describe());
        self
    }

    /// Asserts that standard error does not say something.
    #[track_caller]
    pub(crate) fn says_not(self, text: &str) -> Self {
        assert!(!self.errors().contains(text), "says `{text}`: {}", self.describe());
        self
    }

    /// The call with all it gave.
    pub(crate) fn describe(&self) -> String {
        let start =
            |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(4000)]).into_owned();
        let (line, status) = (&self.line, self.status);
        format!(
            "{line}\n{status}\n-- stdout\n{}\n-- stderr\n{}",
            start(&self.stdout),
            start(&self.stderr)
        )
    }
}
