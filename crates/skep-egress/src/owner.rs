//! Which exec a connection belongs to.
//!
//! This process cannot know: it is fenced off from every other process. The keeper can, by the
//! kernel's own tables, and is asked as soon as a connection is accepted. One question is under
//! way at a time and holds everything that came meanwhile. The time that answers took is counted, and
//! the time without questions is taken off again ([`Work`]): beyond [`MOST_WORK`] there is a pause as long
//! as what is left. So a few connections never wait, and however many are made inside, the keeper is
//! never kept busy with them alone.

use skep_types::{EgressPeer, FromEgress};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

/// Connections asked about at once.
const MOST_AT_ONCE: usize = 256;
/// How long a connection waits for its exec to be known. Later it is not known.
const PATIENCE: Duration = Duration::from_millis(200);
/// How much work the keeper is given without a pause.
const MOST_WORK: Duration = Duration::from_millis(20);
/// How long the keeper may take; after that all of a question are unknown.
const KEEPER_PATIENCE: Duration = Duration::from_secs(5);

type Waiting = (EgressPeer, oneshot::Sender<Option<String>>);
type Asked = (u64, oneshot::Sender<Vec<Option<String>>>);

/// Asks the keeper. Without a keeper that answers (a test), every owner is unknown.
#[derive(Default)]
pub(crate) struct Owners {
    queue: Mutex<VecDeque<Waiting>>,
    came: Notify,
    answer: Mutex<Option<Asked>>,
    asking: bool,
}

impl Owners {
    pub(crate) fn new(asking: bool) -> Self {
        Self { asking, ..Self::default() }
    }

    /// The exec that holds the socket, if that can be said for certain.
    pub(crate) async fn of(&self, peer: EgressPeer) -> Option<String> {
        if !self.asking {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        {
            let mut queue = lock(&self.queue);
            if queue.len() >= MOST_AT_ONCE * 4 {
                return None;
            }
            queue.push_back((peer, sender));
        }
        self.came.notify_one();
        timeout(PATIENCE, receiver).await.ok()?.ok().flatten()
    }

    /// The keeper's answer to a question.
    pub(crate) fn answered(&self, question: u64, execs: Vec<Option<String>>) {
        let mut waiting = lock(&self.answer);
        if let Some((_, sender)) = waiting.take_if(|(asked, _)| *asked == question) {
            let _ = sender.send(execs);
        }
    }

    /// Asks for as long as the keeper can be told something.
    pub(crate) async fn ask(self: Arc<Self>, keeper: mpsc::UnboundedSender<FromEgress>) {
        let mut work = Work::new(Instant::now());
        for question in 0.. {
            let batch = self.next_batch().await;
            let (sender, receiver) = oneshot::channel();
            *lock(&self.answer) = Some((question, sender));
            let peers = batch.iter().map(|(peer, _)| *peer).collect();
            let start = Instant::now();
            if keeper.send(FromEgress::WhoHas { question, peers }).is_err() {
                return;
            }
            let execs = timeout(KEEPER_PATIENCE, receiver).await;
            let execs = execs.ok().and_then(Result::ok).unwrap_or_default();
            let pause = work.and(start, Instant::now());
            let execs = execs.into_iter().chain(std::iter::repeat(None));
            for ((_, sender), exec) in batch.into_iter().zip(execs) {
                let _ = sender.send(exec);
            }
            if let Some(pause) = pause {
                sleep(pause).await;
            }
        }
    }

    async fn next_batch(&self) -> Vec<Waiting> {
        loop {
            {
                let mut queue = lock(&self.queue);
                // Who does not wait any more need not be asked about.
                queue.retain(|(_, sender)| !sender.is_closed());
                if !queue.is_empty() {
                    let count = queue.len().min(MOST_AT_ONCE);
                    return queue.drain(..count).collect();
                }
            }
            self.came.notified().await;
        }
    }
}

/// How much the keeper has worked for us lately.
struct Work {
    left: Duration,
    until: Instant,
}

impl Work {
    fn new(now: Instant) -> Self {
        Self { left: Duration::ZERO, until: now }
    }

    /// It worked from `start` to `end`; how long it has to be left alone now.
    fn and(&mut self, start: Instant, end: Instant) -> Option<Duration> {
        let rest = start.saturating_duration_since(self.until);
        self.left = self.left.saturating_sub(rest) + end.saturating_duration_since(start);
        self.until = end;
        (self.left > MOST_WORK).then_some(self.left)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(port: u16) -> EgressPeer {
        let address = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
        EgressPeer { udp: false, local: address(port), remote: address(443) }
    }

    #[test]
    fn a_few_questions_cost_no_pause_and_many_cost_as_much_as_they_took() {
        let start = Instant::now();
        let at = |milliseconds: u64| start + Duration::from_millis(milliseconds);
        let mut work = Work::new(start);
        assert_eq!(work.and(at(0), at(5)), None);
        assert_eq!(work.and(at(10), at(20)), None, "five of them were taken off");
        assert_eq!(work.and(at(20), at(40)), Some(Duration::from_millis(30)));
        assert_eq!(work.and(at(70), at(71)), None, "the pause was kept");
        // One after the other for a second: half of the time the keeper is left alone.
        let (mut now, mut worked) = (at(100), Duration::ZERO);
        while now < at(1100) {
            let end = now + Duration::from_millis(4);
            worked += end - now;
            now = end + work.and(now, end).unwrap_or_default();
        }
        assert!(worked < Duration::from_millis(560), "{worked:?}");
    }

    #[tokio::test]
    async fn answers_find_their_connections_and_late_ones_nobody() {
        let owners = Arc::new(Owners::new(true));
        let (sender, mut keeper) = mpsc::unbounded_channel();
        tokio::spawn(owners.clone().ask(sender));
        let ask = |port| {
            let owners = owners.clone();
            tokio::spawn(async move { owners.of(peer(port)).await })
        };
        let first = ask(1);
        let Some(FromEgress::WhoHas { question, peers }) = keeper.recv().await else { panic!() };
        assert_eq!(peers, [peer(1)]);
        let (second, third) = (ask(2), ask(3));
        tokio::task::yield_now().await;
        owners.answered(question + 7, vec![Some("wrong".into())]);
        owners.answered(question, vec![Some("one".into())]);
        assert_eq!(first.await.unwrap().as_deref(), Some("one"));
        let Some(FromEgress::WhoHas { question, peers }) = keeper.recv().await else { panic!() };
        assert_eq!(peers, [peer(2), peer(3)], "both in one question");
        owners.answered(question, vec![None]);
        assert_eq!((second.await.unwrap(), third.await.unwrap()), (None, None));
        assert_eq!(Owners::new(false).of(peer(4)).await, None);
    }
}
