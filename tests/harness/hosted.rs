//! The same tests through a server: with `SKEP_TEST_HOST=1` every lab has one, and every call of skep
//! that can is made with `SKEP_HOST`.

use super::lab::Lab;
use super::wait::wait_for;
use std::cell::Cell;
use std::ffi::OsStr;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Commands that work on this host alone; docs/api.md says why.
pub(crate) const LOCAL: &[&str] = &[
    "serve",
    "token",
    "completion",
    "man",
    "version",
    "help",
    "__worker",
    "--version",
    "--help",
    "-V",
    "-h",
];

/// Whether the tests are made through a server.
pub(crate) fn wanted() -> bool {
    std::env::var_os("SKEP_TEST_HOST").is_some()
}

/// What a command settles by itself must be seen at once; a server does it every two seconds.
#[track_caller]
pub(crate) fn noticed<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    if wanted() {
        return wait_for(what, 10, look);
    }
    look().unwrap_or_else(|| panic!("not noticed: {what}"))
}

thread_local! {
    /// Whether a call of this test was killed since the last one that was made through a server.
    static DIED: Cell<bool> = const { Cell::new(false) };
}

/// A call was killed: what it left is settled by the next one, or by the server, in its own time.
pub(crate) fn somebody_died() {
    DIED.set(wanted());
}

/// Waits until the server has compared everything twice: the second look began after this call.
fn settled(lab: &Lab) {
    let looks = || {
        let asked = Command::new("curl")
            .args(["-s", "--unix-socket"])
            .arg(lab.state.join("skep.sock"))
            .arg("http://localhost/metrics")
            .output();
        let text = String::from_utf8_lossy(&asked.unwrap().stdout).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("skep_reconcile_seconds_count "));
        line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let before = looks();
    wait_for("the server to look twice", 30, || (looks() >= before + 2).then_some(()));
}

/// Whether a process is a server or one of its workers, which hold nothing of a sandbox.
pub(crate) fn serves(line: &[u8]) -> bool {
    line.starts_with(b"skep: worker") || line.split(|byte| *byte == 0).any(|word| word == b"serve")
}

/// The lab's server, if it has one.
#[derive(Debug, Default)]
pub(crate) struct Hosted {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Unused,
    Running(Child),
    Ended,
}

impl Hosted {
    /// Leads a call to the server.
    pub(crate) fn lead(&self, lab: &Lab, command: &mut Command) {
        if !wanted() {
            return;
        }
        // Options of the whole program, such as another state directory, mean another world.
        let first = command.get_args().next().unwrap_or_default();
        let local = LOCAL.iter().any(|word| first == OsStr::new(word));
        if local || first.as_encoded_bytes().starts_with(b"-") {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Unused) {
            *state = State::Running(start(lab));
        }
        if let State::Running(_) = &*state {
            if DIED.take() {
                settled(lab);
            }
            command.env("SKEP_HOST", format!("unix://{}", lab.state.join("skep.sock").display()));
        }
    }

    /// Ends it; later calls are made without.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Running(mut child) = std::mem::replace(&mut *state, State::Ended) {
            if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
            let _ = child.wait();
        }
    }
}

fn start(lab: &Lab) -> Child {
    let mut command = Command::new(&lab.binary);
    lab.dress(&mut command);
    let log = std::fs::File::create(lab.root.join("server.log")).unwrap();
    command.arg("serve").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let child = command.spawn().unwrap();
    wait_for("the lab's server", 30, || {
        Command::new("curl")
            .args(["-sf", "-o", "/dev/null", "--unix-socket"])
            .arg(lab.state.join("skep.sock"))
            .arg("http://localhost/health/live")
            .status()
            .is_ok_and(|status| status.success())
            .then_some(())
    });
    child
}
