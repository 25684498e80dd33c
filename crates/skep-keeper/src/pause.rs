//! Stops every process of the sandbox without a cgroup's freezer, and knows when they stand.
//!
//! A stop signal is only a request: a thread that runs on another processor goes on until it next
//! enters the kernel. A change set read before that would be no consistent cut.

use crate::failure::{Failure, Step};
use rustix::process::Signal;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a process may take to stop. One that is stuck in the kernel cannot write either, but
/// nobody knows for how long.
const PATIENCE: Duration = Duration::from_secs(2);

/// Called by init. Every process but init has stopped when it returns `Ok`.
///
/// None is missed: a process that forks while the signal is on its way starts its fork again after
/// the stop, and programs inside cannot continue each other while none of them runs.
pub(crate) fn pause_everyone() -> Result<(), Failure> {
    let _ = skep_sys::process::signal_everyone(Signal::STOP);
    let start = Instant::now();
    loop {
        let moving = moving(Path::new("/proc")).step(|| "look at the processes".into())?;
        let Some(name) = moving else { return Ok(()) };
        if start.elapsed() > PATIENCE {
            let _ = skep_sys::process::signal_everyone(Signal::CONT);
            return Err(Failure::invalid(format!("process {name} inside does not stop")));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A thread that has neither stopped nor ended, other than init.
fn moving(proc: &Path) -> std::io::Result<Option<String>> {
    for entry in std::fs::read_dir(proc)? {
        let Some(pid) = number(&entry?.file_name()) else { continue };
        if pid == 1 {
            continue;
        }
        // Gone meanwhile: it does not move any more.
        let Ok(tasks) = std::fs::read_dir(proc.join(pid.to_string()).join("task")) else {
            continue;
        };
        for task in tasks.flatten() {
            let Ok(stat) = std::fs::read(task.path().join("stat")) else { continue };
            if !stands(&stat) {
                return Ok(Some(pid.to_string()));
            }
        }
    }
    Ok(None)
}

fn number(name: &std::ffi::OsStr) -> Option<u32> {
    name.to_str()?.parse().ok()
}

/// Stopped, traced or dead. The name before the state is chosen by the process: the last `)` ends
/// it.
fn stands(stat: &[u8]) -> bool {
    let end = stat.iter().rposition(|byte| *byte == b')');
    let state = end.and_then(|end| stat.get(end + 2));
    matches!(state, Some(b'T' | b't' | b'Z' | b'X') | None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_read_behind_the_name() {
        assert!(stands(b"7 (sh) T 1 7 7"));
        assert!(stands(b"7 (a) R b) Z 1 7 7"));
        assert!(!stands(b"7 (a) T b) R 1 7 7"));
        assert!(!stands(b"7 (sh) S 1 7 7"));
        assert!(!stands(b"7 (sh) D 1 7 7"));
    }

    #[test]
    fn a_running_process_is_seen() {
        assert!(moving(Path::new("/proc")).unwrap().is_some(), "this test runs");
    }
}
