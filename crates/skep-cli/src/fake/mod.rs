//! A test double of the API for the command line alone: it answers from memory and writes down
//! what it was asked.

mod api;
mod samples;

pub(crate) use api::{Asked, FakeApi};
pub(crate) use samples::{
    approval, approve_report, change_set, empty_change_set, end, hostile_change_set, sandbox, view,
};

use crate::context::Context;
use crate::output::Output;
use crate::surroundings::{Surroundings, Terminals};
use std::cell::RefCell;
use std::io::{self, Write};
use std::path::Path;
use std::rc::Rc;

/// A stream that can be read afterwards.
#[derive(Clone, Default)]
pub(crate) struct Shared(Rc<RefCell<Vec<u8>>>);

impl Shared {
    /// What was written, as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.borrow().clone()).unwrap()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a command line did.
pub(crate) struct Done {
    /// Exit code.
    pub(crate) code: u8,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
    /// What the API was asked, in order.
    pub(crate) asked: Asked,
}

/// Runs a command line (blanks separate words) against the double, standing in `directory`.
pub(crate) fn skep_in(directory: &Path, api: FakeApi, line: &str) -> Done {
    skep_around(directory, Terminals::default(), api, line)
}

/// The same with some of the streams taken for terminals.
pub(crate) fn skep_at(terminals: Terminals, api: FakeApi, line: &str) -> Done {
    skep_around(Path::new("/p"), terminals, api, line)
}

fn skep_around(directory: &Path, terminals: Terminals, api: FakeApi, line: &str) -> Done {
    let words: Vec<_> = line.split(' ').map(std::ffi::OsString::from).collect();
    let (stdout, stderr) = (Shared::default(), Shared::default());
    let output = Output::new(Box::new(stdout.clone()), Box::new(stderr.clone()))
        .json_errors(crate::arguments::wants_json(&words));
    let asked = api.asked.clone();
    let surroundings = Surroundings {
        directory: directory.to_owned(),
        home: "/home/u".into(),
        user: rustix::process::geteuid().as_raw(),
        terminals,
        ..Surroundings::default()
    };
    let code = match crate::tree::parse(words) {
        Ok(parsed) => {
            let output =
                output.json_errors(parsed.wants_json()).styled(parsed.global(), &surroundings);
            let context = Context::with_api(surroundings, output, Box::new(api));
            let family = parsed.family();
            let outcome = parsed.start(&context);
            crate::exit::finish(outcome, family, &context.output)
        }
        Err(error) => crate::exit::finish(
            Err(crate::exit::Failure::Usage(error)),
            crate::exit::Family::Other,
            &output,
        ),
    };
    Done { code, stdout: stdout.text(), stderr: stderr.text(), asked }
}

/// The same, standing in a directory that is nobody's project.
pub(crate) fn skep(api: FakeApi, line: &str) -> Done {
    skep_in(Path::new("/p"), api, line)
}
