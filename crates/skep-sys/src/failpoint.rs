//! Failpoints: places where a test can make the process die or an operation fail.
//!
//! They exist in debug builds only; in a release build [`hit`] is an empty function. The variable
//! `SKEP_FAILPOINT` holds `name=action` or `name:N=action` (the Nth time, from 1), separated by
//! `;`. Actions: `kill` (SIGKILL to ourselves), `eio`, `enospc`, `stop` (SIGSTOP to ourselves), `panic`.

use std::io;

/// Reaches a failpoint.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn hit(_name: &str) -> io::Result<()> {
    Ok(())
}

/// Finds out what is armed, for a process that lets go of its environment before it reaches any.
pub fn arm() {
    #[cfg(debug_assertions)]
    armed::arm();
}

/// Reaches a failpoint.
#[cfg(debug_assertions)]
pub fn hit(name: &str) -> io::Result<()> {
    armed::hit(name)
}

#[cfg(debug_assertions)]
mod armed {
    use rustix::io::Errno;
    use rustix::process::{Signal, getpid, kill_process};
    use std::collections::HashMap;
    use std::io;
    use std::sync::{Mutex, OnceLock, PoisonError};

    #[derive(Clone, Copy)]
    enum Action {
        Kill,
        Stop,
        Panic,
        Fail(Errno),
    }

    struct Armed {
        name: String,
        nth: u64,
        action: Action,
    }

    fn parse(text: &str) -> Option<Armed> {
        let (place, action) = text.split_once('=')?;
        let (name, nth) = match place.split_once(':') {
            Some((name, nth)) => (name, nth.parse().ok()?),
            None => (place, 1),
        };
        let action = match action {
            "kill" => Action::Kill,
            "stop" => Action::Stop,
            "panic" => Action::Panic,
            "eio" => Action::Fail(Errno::IO),
            "enospc" => Action::Fail(Errno::NOSPC),
            _ => return None,
        };
        Some(Armed { name: name.to_owned(), nth, action })
    }

    pub(super) fn arm() {
        armed();
    }

    fn armed() -> &'static [Armed] {
        static ARMED: OnceLock<Vec<Armed>> = OnceLock::new();
        ARMED.get_or_init(|| {
            let text = std::env::var("SKEP_FAILPOINT").unwrap_or_default();
            text.split(';').filter_map(parse).collect()
        })
    }

    pub(super) fn hit(name: &str) -> io::Result<()> {
        static COUNTS: OnceLock<Mutex<HashMap<String, u64>>> = OnceLock::new();
        if armed().is_empty() {
            return Ok(());
        }
        let counts = COUNTS.get_or_init(Mutex::default);
        let count = {
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            let count = counts.entry(name.to_owned()).or_insert(0);
            *count += 1;
            *count
        };
        match armed().iter().find(|point| point.name == name && point.nth == count) {
            None => Ok(()),
            Some(Armed { action: Action::Fail(errno), .. }) => Err((*errno).into()),
            Some(Armed { action: Action::Panic, .. }) => {
                std::panic::resume_unwind(Box::new("a failpoint"))
            }
            Some(Armed { action: Action::Stop, .. }) => {
                kill_process(getpid(), Signal::STOP)?;
                // Another thread may take the signal, and this one would run on for a moment
                // before the whole process stands still: it waits here to be caught.
                std::thread::sleep(std::time::Duration::from_millis(100));
                Ok(())
            }
            Some(Armed { action: Action::Kill, .. }) => {
                kill_process(getpid(), Signal::KILL)?;
                loop {
                    std::thread::park();
                }
            }
        }
    }
}
