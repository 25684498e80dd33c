//! Limits that nobody in the kernel enforces for us: processor time, and the size of the upper.

use super::accountant::{Accountant, Usage};
use super::deleted::{self, Depth, Found, Searcher};
use super::doubt::{Doubt, Verdict};
use crate::identity::LentIds;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::process::Pid;
use skep_confine::cgroup::Group;
use skep_types::Limits;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Faster than any disk here writes: headroom divided by it is the time in which a limit cannot
/// be passed, so looking twice in that time is often enough.
const FASTEST_WRITER: u64 = 2 << 30;
/// The same for files: faster than any filesystem makes them.
const FASTEST_MAKER: u64 = 200_000;
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_secs(2);
/// The first look comes no later than this after an exec has started.
const FIRST: Duration = Duration::from_millis(50);
/// What must stay free for the host, our own data base among it: this, or a twentieth of a small
/// filesystem.
const RESERVE: u64 = 256 << 20;
/// The same of inodes.
const INODE_RESERVE: u64 = 10_000;
/// How long descriptors are searched for deleted files in passing: a sandbox may hold millions.
const SEARCH: Duration = Duration::from_millis(100);
/// How often somebody who searches longer is asked.
const SEARCHING: Duration = Duration::from_millis(300);
/// How long they are while everyone is held for it; who has more than that has hidden some.
const WHOLE: Duration = Duration::from_secs(3);
/// Between two times that everyone is held for a look.
const HOLDS: Duration = Duration::from_secs(1);
/// Before everyone is held again, because the first look was not enough.
const AGAIN: Duration = Duration::from_millis(25);
/// So much less room is worth a count on a disk that is full.
const SOME: u64 = 16 << 20;
/// With so little left to write, the last count of an exec is always made.
const LITTLE: u64 = 256 << 20;
/// How long the last count of an exec is waited for.
const LAST: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Watches how much lies in the upper, and in those of a copy-on-write system.
///
/// Counting costs time in proportion to what is there, so it is done when the filesystem has lost
/// enough room since the last count for a limit to be near, and now and then in any case.
#[derive(Debug)]
pub struct DiskGuard {
    /// The workspace's first; all lie on one filesystem.
    uppers: Vec<PathBuf>,
    /// Whose files lie there too.
    lent: Option<LentIds>,
    bytes: Option<u64>,
    /// What an exec that runs may have at most, if that is less.
    tightest: Option<u64>,
    inodes: Option<u64>,
    accountant: Option<Accountant>,
    asked: Option<Instant>,
    next: Instant,
    count_at: Instant,
    counted: Usage,
    /// What lay there when the last exec started, if that was too much already: who only makes room
    /// is not ended for what others wrote.
    excused: Usage,
    room: Room,
    /// What is left on the filesystem, as last seen.
    left: u64,
    /// Where there are more descriptors than can be searched in passing.
    searcher: Option<Searcher>,
    /// What it has found last.
    searched: Found,
    /// Most room that was seen with a count, and what was counted then.
    most: (u64, u64),
    /// Whether what is gone may be others', where somebody hides files.
    doubt: Doubt,
    /// More room is gone than the counts explain: everyone is to be held for a whole look.
    suspects: bool,
    /// But not again before this.
    held_until: Instant,
}

/// Whether those inside are held while they are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stand {
    /// They go on.
    Run,
    /// Nobody can move.
    Held,
}

/// What a filesystem has left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Room {
    kind: i64,
    total: u64,
    bytes: u64,
    /// None of a filesystem that makes them as it goes.
    total_inodes: u64,
    inodes: u64,
}

impl DiskGuard {
    /// A guard for these limits.
    pub fn new(uppers: Vec<PathBuf>, limits: &Limits, now: Instant) -> Self {
        Self {
            uppers,
            lent: None,
            bytes: limits.disk.map(|size| size.0),
            tightest: None,
            inodes: limits.inodes,
            accountant: None,
            asked: None,
            next: now,
            count_at: now,
            counted: Usage::default(),
            excused: Usage::default(),
            room: Room::default(),
            left: u64::MAX,
            searcher: None,
            searched: Found::default(),
            most: (0, 0),
            doubt: Doubt::new(now),
            suspects: false,
            held_until: now,
        }
    }

    /// Files of these ids are counted too.
    pub fn count_for(&mut self, lent: Option<LentIds>) {
        self.lent = lent;
    }

    /// The least that an exec which runs may have: looked at as often as that needs.
    pub fn tighten(&mut self, limit: Option<u64>) {
        self.tightest = limit;
    }

    /// What was counted last.
    pub fn bytes(&self) -> u64 {
        self.counted.bytes
    }

    /// An exec starts: something will be written from now on.
    pub fn wake(&mut self, now: Instant) {
        if self.asked.is_none() && self.is_over() {
            self.excuse(now);
        }
        let first = now + self.interval().min(FIRST);
        // A look that is due has waited for this exec, and one that is far ahead was put there before
        // anybody knew of it.
        self.next = if self.next <= now { first } else { self.next.min(first) };
        self.count_at = self.next;
    }

    fn is_over(&self) -> bool {
        let Usage { bytes, inodes } = self.counted;
        self.bytes.is_some_and(|limit| bytes >= limit)
            || self.inodes.is_some_and(|limit| inodes > limit)
            || (self.left < reserve(&self.room) && bytes > reserve(&self.room))
            || (self.room.inodes < inode_reserve(&self.room) && inodes > inode_reserve(&self.room))
    }

    /// Counts while nothing is written yet.
    fn excuse(&mut self, now: Instant) {
        self.count(now, room(&self.uppers));
        if self.asked.take().is_some()
            && let Some(Ok(usage)) = self.accountant.as_ref().map(Accountant::answer)
        {
            self.counted = usage;
        }
        self.excused = if self.is_over() { self.counted } else { Usage::default() };
    }

    /// When to look next.
    pub fn next(&self) -> Option<Instant> {
        let limited = self.bytes.or(self.tightest).is_some() || self.inodes.is_some();
        limited.then_some(self.next)
    }

    /// Whether everyone is to be held, so that nothing can be missed.
    pub fn wants_all_held(&mut self, now: Instant) -> bool {
        now >= self.held_until && std::mem::take(&mut self.suspects)
    }

    /// Has it counted, if that is not under way; whether an answer will come.
    pub fn count_now(&mut self) -> bool {
        if self.asked.is_none() {
            self.count(Instant::now(), room(&self.uppers));
        }
        self.asked.is_some()
    }

    /// Where the answer comes, if one was asked for.
    pub fn answer_comes_on(&self) -> Option<BorrowedFd<'_>> {
        self.asked.and(self.accountant.as_ref()).map(AsFd::as_fd)
    }

    /// Looks, if it is time, and has the upper counted if need be.
    pub fn look(&mut self, now: Instant) {
        if self.next().is_none_or(|next| now < next) {
            return;
        }
        let room = room(&self.uppers);
        self.left = room.bytes;
        self.doubt.note(now, self.unexplained(room.bytes));
        if self.asked.is_some() {
            // However long a count takes, no more than may be is written meanwhile.
            let lost = self.room.bytes.saturating_sub(room.bytes);
            self.suspects |= lost > self.headroom().max(SOME);
            self.next = now + self.interval();
        } else if self.is_near(&room) || now >= self.count_at {
            self.count(now, room);
        } else {
            self.next = now + self.interval();
        }
    }

    fn count(&mut self, now: Instant, room: Room) {
        (self.room, self.left) = (room, room.bytes);
        if self.accountant.is_none() {
            self.accountant = Accountant::start(&self.uppers, self.lent).ok();
        }
        match self.accountant.as_ref().map(Accountant::ask) {
            Some(Ok(())) => self.asked = Some(now),
            // Without the accountant the count is made here; it must be made.
            _ => {
                self.accountant = None;
                self.counted = super::accountant::sum(&self.uppers).unwrap_or_default();
                self.schedule(now);
            }
        }
    }

    /// Counts now, if a limit may have been met in the time that an exec had; says whether one was. A
    /// count that takes long is left for its own time. Where the kernel has `said` so it is made in any case.
    pub fn look_once_more(
        &mut self,
        had: Duration,
        said: bool,
        pids: impl FnOnce() -> Vec<Pid>,
    ) -> bool {
        let seconds = had.as_secs_f64();
        let could = (seconds * FASTEST_WRITER as f64) as u64 >= self.headroom()
            || (seconds * FASTEST_MAKER as f64) as u64 >= self.inode_headroom()
            || said;
        if self.asked.is_none() && (self.next().is_none() || !could) {
            return false;
        }
        if self.asked.is_none() {
            let room = room(&self.uppers);
            // Room that others make at the same time hides what was written: little of it counts.
            if self.headroom() > LITTLE && !self.is_near(&room) && !said {
                return false;
            }
            self.count(Instant::now(), room);
        }
        let Some(answer) = self.answer_comes_on() else { return self.passed().is_some() };
        let answered = poll(&mut [PollFd::from_borrowed_fd(answer, PollFlags::IN)], Some(&LAST));
        answered == Ok(1) && self.judge(&pids(), Stand::Run).is_some()
    }

    fn is_near(&self, room: &Room) -> bool {
        let lost = self.room.bytes.saturating_sub(room.bytes);
        let lost_inodes = self.room.inodes.saturating_sub(room.inodes);
        // What others have filled is counted again only when more goes.
        let full = room.bytes < reserve(room)
            && (lost > SOME || self.counted.bytes > reserve(room) || self.room.total == 0);
        full || lost > self.headroom() / 2 || lost_inodes > self.inode_headroom() / 2
    }

    /// Takes the accountant's answer; says which limit was passed. `pids` are the sandbox's: a file
    /// that was deleted while it is open takes up room without being in the tree.
    pub fn judge(&mut self, pids: &[Pid], stand: Stand) -> Option<String> {
        let asked = self.asked.take()?;
        match self.accountant.as_ref().map(Accountant::answer) {
            Some(Ok(usage)) => self.counted = usage,
            _ => self.accountant = None,
        }
        let left = room(&self.uppers).bytes;
        match stand {
            Stand::Held => self.add_all_deleted(pids, left),
            Stand::Run => {
                let deleted = self.deleted(pids);
                self.add(&deleted);
            }
        }
        if self.room.bytes > self.most.0 {
            self.most = (self.room.bytes, self.counted.bytes);
        }
        let missing = self.unexplained(left);
        self.suspects = missing > SOME
            && (missing >= self.headroom() || (left < reserve(&self.room) && missing > RESERVE));
        // What was there too much and is gone is nobody's to write again.
        self.excused.bytes = self.excused.bytes.min(self.counted.bytes);
        self.excused.inodes = self.excused.inodes.min(self.counted.inodes);
        self.schedule(asked);
        if self.suspects {
            self.next = self.next.min(self.held_until);
        }
        self.passed()
    }

    /// Room that is gone and was not counted: others', or what no look has found.
    fn unexplained(&self, left: u64) -> u64 {
        let (most, counted) = self.most;
        let gone = most.saturating_sub(left).saturating_add(counted);
        gone.saturating_sub(self.counted.bytes)
    }

    /// Nobody moves, so nobody is missed. Where somebody hides files all the same, the room that is gone
    /// is taken for theirs, unless others are seen to take as much; otherwise it is others'.
    fn add_all_deleted(&mut self, pids: &[Pid], left: u64) {
        let found = deleted::search_held(pids, self.room.kind, WHOLE);
        self.add(&found);
        if found.hides || !found.all {
            let missing = self.unexplained(left);
            // More than can be looked at in that time is nobody's by accident.
            let strict = !found.all || left < reserve(&self.room);
            let take_room = || room(&self.uppers).bytes;
            match self.doubt.judge(missing, strict, take_room) {
                Verdict::Theirs => self.counted.bytes = self.counted.bytes.saturating_add(missing),
                Verdict::Others => {}
                Verdict::LookAgain => {
                    self.held_until = Instant::now() + AGAIN;
                    return;
                }
            }
        } else {
            self.doubt.forget();
        }
        self.most = (left, self.counted.bytes);
        self.held_until = Instant::now() + HOLDS;
    }

    fn add(&mut self, found: &Found) {
        self.counted.bytes = self.counted.bytes.saturating_add(found.bytes);
        self.counted.inodes = self.counted.inodes.saturating_add(found.inodes);
    }

    /// Deleted files. A search that does not come to its end is gone on with beside us: what
    /// is not seen must not pass for nothing.
    fn deleted(&mut self, pids: &[Pid]) -> Found {
        let kind = self.room.kind;
        let found = deleted::search(pids, kind, Some(SEARCH), Depth::Tables);
        if found.all {
            (self.searcher, self.searched) = (None, Found::default());
            return found;
        }
        if let Some(answer) = self.searcher.as_ref().and_then(Searcher::answer) {
            (self.searcher, self.searched) = (None, answer);
        }
        if self.searcher.is_none() {
            self.searcher = Searcher::start(pids, kind, None, Depth::Tables).ok();
        }
        let more = |one: u64, other: u64| one.max(other);
        Found {
            bytes: more(found.bytes, self.searched.bytes),
            inodes: more(found.inodes, self.searched.inodes),
            ..found
        }
    }

    fn schedule(&mut self, asked: Instant) {
        let took = asked.elapsed();
        let now = Instant::now();
        // Counting must stay a small part of the time; but an answer is waited for.
        let rarest = if self.searcher.is_some() { SEARCHING } else { LONGEST };
        self.count_at = now + (took * 10).max(LONGEST).min(rarest.max(took * 2));
        // A look at the room that is left costs nothing, however long a count takes.
        self.next = now + self.interval();
    }

    fn headroom(&self) -> u64 {
        let least = self.bytes.into_iter().chain(self.tightest).min();
        least.map_or(u64::MAX, |limit| limit.saturating_sub(self.counted.bytes))
    }

    fn inode_headroom(&self) -> u64 {
        let own = self.inodes.map_or(u64::MAX, |limit| limit.saturating_sub(self.counted.inodes));
        let kept = inode_reserve(&self.room);
        // Where others have taken the rest there is nothing to hurry for.
        let others = kept == 0 || (self.room.inodes < kept && self.counted.inodes <= kept);
        own.min(if others { u64::MAX } else { self.room.inodes.saturating_sub(kept) })
    }

    fn interval(&self) -> Duration {
        let reserve = reserve(&self.room);
        let others = self.left < reserve && self.counted.bytes <= reserve;
        // On a disk that others have filled there is nothing to hurry for.
        let spare = if others { RESERVE } else { self.left.saturating_sub(reserve) };
        let bytes = self.headroom().min(spare) / (2 * FASTEST_WRITER / 1000);
        let inodes = self.inode_headroom() / (2 * FASTEST_MAKER / 1000);
        Duration::from_millis(bytes.min(inodes)).clamp(SHORTEST, LONGEST)
    }

    fn passed(&self) -> Option<String> {
        let Usage { bytes, inodes } = self.counted;
        let more = |limit: &u64| bytes >= *limit && bytes > self.excused.bytes;
        if let Some(limit) = self.bytes.filter(more) {
            return Some(format!("{bytes} bytes written of {limit} allowed"));
        }
        let more = |limit: &u64| inodes > *limit && inodes > self.excused.inodes;
        if let Some(limit) = self.inodes.filter(more) {
            return Some(format!("{inodes} files made of {limit} allowed"));
        }
        let left = room(&self.uppers);
        let reserve = reserve(&left);
        let kept = inode_reserve(&left);
        if left.inodes < kept && inodes > kept && inodes > self.excused.inodes {
            return Some(format!("{} inodes are left for the host, {kept} are kept", left.inodes));
        }
        // Only who takes up much, or may hide it, is ended for a full disk that all share.
        let bytes = bytes.saturating_add(self.doubt.forgiven());
        (left.bytes < reserve && bytes > reserve && bytes > self.excused.bytes)
            .then(|| format!("{} bytes are left for the host, {reserve} are kept", left.bytes))
    }
}

fn room(uppers: &[PathBuf]) -> Room {
    let stat = uppers.first().map(rustix::fs::statfs);
    stat.and_then(Result::ok).map_or(Room::default(), |stat| {
        let block = stat.f_bsize as u64;
        Room {
            kind: stat.f_type,
            total: stat.f_blocks.saturating_mul(block),
            bytes: stat.f_bavail.saturating_mul(block),
            total_inodes: stat.f_files,
            inodes: stat.f_ffree,
        }
    })
}

/// Inodes that are kept for the host, likewise.
fn inode_reserve(room: &Room) -> u64 {
    INODE_RESERVE.min(room.total_inodes / 20)
}

/// What is kept free for the host.
fn reserve(room: &Room) -> u64 {
    RESERVE.min(room.total / 20)
}

/// Watches the processor time of one exec.
pub fn cpu_exceeded(group: Option<&Group>, limits: &Limits) -> bool {
    let Some(limit) = limits.cpu_time else { return false };
    group.and_then(Group::cpu_time).is_some_and(|used| used >= limit)
}

/// When the processor time can have run out at the earliest.
pub fn cpu_next(group: Option<&Group>, limits: &Limits, now: Instant) -> Option<Instant> {
    let limit = limits.cpu_time?;
    let left = limit.saturating_sub(group.and_then(Group::cpu_time)?);
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    Some(now + (left / processors).max(Duration::from_millis(10)))
}
