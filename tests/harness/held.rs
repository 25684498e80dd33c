//! A call that stands still at a failpoint, while the test does something beside it.

use super::call::Call;
use super::outside::state_of;
use super::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Child, Output};

/// A call that was started; ended when dropped.
#[derive(Debug)]
pub(crate) struct Held(Option<Child>);

impl Held {
    /// Starts a call and waits until it stands at the first of these points that it comes to.
    #[track_caller]
    pub(crate) fn at(call: Call, points: &[&str]) -> Self {
        let points: Vec<String> = points.iter().map(|point| format!("{point}=stop")).collect();
        let child = call.env("SKEP_FAILPOINT", points.join(";")).spawn();
        let pid = child.id();
        let held = Self(Some(child));
        wait_for("the call to stand still", 20, || (state_of(pid) == Some('T')).then_some(()));
        held
    }

    /// Starts a call and waits until it holds a directory open (to lock it), or has ended.
    #[track_caller]
    pub(crate) fn waiting_for(call: Call, directory: &Path) -> Self {
        let child = call.spawn();
        let pid = child.id();
        let held = Self(Some(child));
        let opened = || {
            let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
            let mut links = files.flatten().flat_map(|file| std::fs::read_link(file.path()));
            links.any(|link| link == directory).then_some(())
        };
        let ended = || (state_of(pid) == Some('Z')).then_some(());
        wait_for("the call to wait", 20, || opened().or_else(ended));
        held
    }

    /// Whether it has not ended.
    pub(crate) fn goes_on_still(&mut self) -> bool {
        self.0.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// Lets it go on to its end, past the other points too.
    #[track_caller]
    pub(crate) fn go_on(mut self) -> Output {
        let mut child = self.0.take().unwrap();
        drop(child.stdin.take());
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        wait_for("the call to end", 60, || {
            let _ = kill_process(pid, Signal::CONT);
            child.try_wait().unwrap()
        });
        child.wait_with_output().unwrap()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
