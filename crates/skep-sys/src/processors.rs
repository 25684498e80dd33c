//! Which processors a process runs on.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::io;

/// A set of processors.
#[derive(Debug, Clone, Copy)]
pub struct Processors(CpuSet);

impl Processors {
    /// Those that this process may use.
    pub fn own() -> io::Result<Self> {
        Ok(Self(sched_getaffinity(None)?))
    }

    /// Moves another process, which may use all of these, away from the processor that this one is on; where there is
    /// only one it stays. Until it calls [`Processors::use_all`] it does not come back.
    ///
    /// Some kernels put a child on its parent's processor, where it waits until the parent does: whatever both could do
    /// at the same time is then done in turn.
    pub fn move_away(&self, other: Pid) -> io::Result<()> {
        match self.others() {
            None => Ok(()),
            Some(others) => Ok(sched_setaffinity(Some(other), &others.0)?),
        }
    }

    /// All but the one that this process is on; `None` if there is no other.
    pub fn others(&self) -> Option<Self> {
        let mut others = self.0;
        others.unset(sched_getcpu());
        (others.count() > 0).then_some(Self(others))
    }

    /// Has another process, which may use all of these, go on here and now, before us: on this processor, which we leave to
    /// it until it waits for something or its time is over. `wake` is what it waits for. Until it calls
    /// [`Processors::use_all`] it stays here.
    pub fn go_first<T>(&self, other: Pid, wake: impl FnOnce() -> T) -> T {
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        let is_here = sched_setaffinity(Some(other), &here).is_ok();
        let woken = wake();
        if is_here {
            rustix::thread::sched_yield();
        }
        woken
    }

    /// Lets this process use all of them.
    pub fn use_all(&self) -> io::Result<()> {
        Ok(sched_setaffinity(None, &self.0)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_is_moved_away_from_this_one() {
        let all = Processors::own().unwrap();
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(other.id() as i32).unwrap();
        all.move_away(pid).unwrap();
        let left = sched_getaffinity(Some(pid)).unwrap();
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(left.count(), (all.0.count() - 1).max(1));
        all.use_all().unwrap();
        assert_eq!(Processors::own().unwrap().0, all.0);
    }
}
