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
        let mut others = self.0;
        others.unset(sched_getcpu());
        match others.count() {
            0 => Ok(()),
            _ => Ok(sched_setaffinity(Some(other), &others)?),
        }
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
