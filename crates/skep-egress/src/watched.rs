//! Bytes that pass before it is certain what they are, and stop if they become what must be judged.

use crate::first_bytes::{FirstBytes, classify};
use crate::sifted::{Sieve, Sifted};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// Reads from the inside what may pass. Nothing is given out that makes TLS or a request of HTTP of
/// what was given out before: reading fails then.
pub(crate) struct Watched {
    /// All bytes so far; `None` once they are something else for good.
    line: Option<Vec<u8>>,
    changed: Arc<AtomicBool>,
}

impl Watched {
    /// Before `inner`. The flag tells afterwards whether it ended for that reason.
    pub(crate) fn before<S>(inner: S) -> (Sifted<S, Self>, Arc<AtomicBool>) {
        let changed = Arc::new(AtomicBool::new(false));
        (Sifted::new(inner, Self { line: Some(Vec::new()), changed: changed.clone() }), changed)
    }
}

impl Sieve for Watched {
    fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        inner: &mut S,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(inner).poll_read(context, buffer))?;
        let Some(line) = &mut self.line else { return Poll::Ready(Ok(())) };
        line.extend_from_slice(&buffer.filled()[before..]);
        match classify(line) {
            FirstBytes::NeedMore => {}
            FirstBytes::Other => self.line = None,
            FirstBytes::Tls | FirstBytes::Http1 | FirstBytes::Http2 => {
                buffer.set_filled(before);
                self.changed.store(true, Ordering::Relaxed);
                return Poll::Ready(Err(io::ErrorKind::PermissionDenied.into()));
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// What passes of pieces that come one after the other, and whether it was ended.
    async fn through(pieces: &[&[u8]]) -> (Vec<u8>, bool) {
        let (mut from, to) = tokio::io::duplex(4096);
        let (mut watched, changed) = Watched::before(to);
        let mut passed = Vec::new();
        for piece in pieces {
            from.write_all(piece).await.unwrap();
            let mut buffer = [0; 4096];
            match watched.read(&mut buffer).await {
                Ok(count) => passed.extend_from_slice(&buffer[..count]),
                Err(_) => break,
            }
        }
        (passed, changed.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn half_a_request_passes_and_its_end_does_not() {
        let slow: [&[u8]; 3] = [b"GET /", b" HTTP/1.1\r\nHost: other.test\r\n", b"\r\n"];
        assert_eq!(through(&slow).await, (b"GET /".to_vec(), true));
        assert_eq!(through(&[b"\x16", b"\x03\x01\x02"]).await, (b"\x16".to_vec(), true));
        let raw: [&[u8]; 4] = [b"hel", b"lo\n", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01"];
        assert_eq!(through(&raw).await, (raw.concat(), false));
    }
}
