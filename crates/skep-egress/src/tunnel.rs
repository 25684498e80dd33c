//! Bytes in both directions until one side, the clock or the rules end it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::Instant;

/// Room for each direction; large enough that copying costs less than the system calls.
const ROOM: usize = 32 << 10;

/// Counts of a tunnel, kept when it is ended from outside.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) from_outside: AtomicU64,
    pub(crate) to_outside: AtomicU64,
}

impl Counts {
    /// From outside, to outside.
    pub(crate) fn both(&self) -> (u64, u64) {
        (self.from_outside.load(Ordering::Relaxed), self.to_outside.load(Ordering::Relaxed))
    }
}

/// Copies both ways. Each end of input is passed on, so that half-closed protocols work; comes
/// back when both directions ended, one failed, or nothing moved for `idle`.
pub(crate) async fn run(
    inside: impl AsyncRead + AsyncWrite + Unpin,
    outside: impl AsyncRead + AsyncWrite + Unpin,
    counts: &Counts,
    idle: Duration,
) {
    let clock = Idle::new(idle);
    let (mut inside_read, mut inside_write) = tokio::io::split(inside);
    let (mut outside_read, mut outside_write) = tokio::io::split(outside);
    let both = async {
        tokio::try_join!(
            copy(&mut inside_read, &mut outside_write, &counts.to_outside, &clock),
            copy(&mut outside_read, &mut inside_write, &counts.from_outside, &clock),
        )
    };
    tokio::select! {
        _ = both => {}
        () = clock.over() => {}
    }
}

/// How long nothing has moved.
pub(crate) struct Idle {
    start: Instant,
    moved: AtomicU64,
    most: Duration,
}

impl Idle {
    pub(crate) fn new(most: Duration) -> Self {
        Self { start: Instant::now(), moved: AtomicU64::new(0), most }
    }

    /// Something has moved.
    pub(crate) fn touch(&self) {
        self.moved.store(self.start.elapsed().as_secs(), Ordering::Relaxed);
    }

    /// Comes back when nothing has moved for too long.
    pub(crate) async fn over(&self) {
        loop {
            let quiet = self.start.elapsed().as_secs() - self.moved.load(Ordering::Relaxed);
            match self.most.as_secs().checked_sub(quiet) {
                None | Some(0) => return,
                Some(left) => tokio::time::sleep(Duration::from_secs(left)).await,
            }
        }
    }
}

async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    count: &AtomicU64,
    clock: &Idle,
) -> io::Result<()> {
    let mut room = vec![0; ROOM];
    loop {
        let got = from.read(&mut room).await?;
        if got == 0 {
            return to.shutdown().await;
        }
        to.write_all(&room[..got]).await?;
        // TLS keeps bytes back until told.
        to.flush().await?;
        count.fetch_add(got as u64, Ordering::Relaxed);
        clock.touch();
    }
}
