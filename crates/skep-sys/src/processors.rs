//! Which processors a process runs on.

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::io;
use std::mem::MaybeUninit;

/// How a process takes its turns on a processor that others want too.
///
/// Everybody has the same share in the long run. But whoever wakes goes on at once if its turn would end before that of
/// the one at work does (EEVDF, Linux 6.12 and later; earlier kernels do not ask how long turns are).
#[derive(Debug, Clone, Copy)]
pub struct Turns(libc::sched_attr);

impl Turns {
    /// Those of this process.
    pub fn own() -> io::Result<Self> {
        let mut attributes = MaybeUninit::<libc::sched_attr>::zeroed();
        let size = size_of::<libc::sched_attr>();
        // SAFETY: the kernel writes no more than `size` bytes there.
        let got =
            unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), size, 0) };
        if got != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: plain numbers, and all of them were zeroed before.
        Ok(Self(unsafe { attributes.assume_init() }))
    }

    /// Short ones, and so soon: for whom somebody waits, and who has little to do.
    pub fn soon(self) -> Self {
        self.lasting(libc::SCHED_OTHER, SOON)
    }

    /// Long ones, and so last: whoever wakes goes first, the kernel's own too.
    pub fn last(self) -> Self {
        self.lasting(libc::SCHED_BATCH, LAST)
    }

    fn lasting(self, policy: libc::c_int, nanoseconds: u64) -> Self {
        let Self(attributes) = self;
        // Whoever runs by other rules was made to.
        if attributes.sched_policy != libc::SCHED_OTHER as u32 {
            return self;
        }
        let sched_policy = policy as u32;
        Self(libc::sched_attr { sched_policy, sched_runtime: nanoseconds, ..attributes })
    }

    /// Has this process take these from now on, and whom it makes.
    pub fn take(&self) -> rustix::io::Result<()> {
        // SAFETY: the structure is as long as it says, and the kernel only reads it.
        match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const self.0, 0) } {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
        }
    }
}

/// Half of what the kernel gives on a machine with two processors, and less than that on larger ones; in nanoseconds.
const SOON: u64 = 700_000;
/// The longest that the kernel allows.
const LAST: u64 = 100_000_000;

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
    fn turns_are_taken_and_given_back() {
        // Each thread has its own, and this one's are others' too.
        let taken = std::thread::spawn(|| {
            let policy = || Turns::own().unwrap().0.sched_policy as libc::c_int;
            let usual = Turns::own().unwrap();
            let took = |turns: Turns| turns.take().map(|()| policy()).unwrap();
            (policy(), took(usual.last()), took(usual.soon()), took(usual))
        });
        let taken = taken.join().unwrap();
        if taken.0 == libc::SCHED_OTHER {
            assert_eq!(taken.1, libc::SCHED_BATCH);
            assert_eq!((taken.2, taken.3), (libc::SCHED_OTHER, libc::SCHED_OTHER));
        }
        let Turns(other) = Turns::own().unwrap().last();
        assert_eq!(Turns(other).soon().0.sched_policy, other.sched_policy, "others' rules stay");
    }

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
