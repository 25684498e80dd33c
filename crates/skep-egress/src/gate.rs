//! Between the client and hyper: lets one inspected head through at a time.
//!
//! hyper reads ahead and would parse whatever comes. The gate holds back bytes until a head is
//! whole, looks at it ([`head::inspect`]), and then gives out exactly that head and the body it
//! announces, before it looks for the next one. After a chunked body, or a request for another
//! protocol, it cannot know where the next head begins and passes everything; the service closes
//! the connection after that answer. In the place of a refused head stands a request of our own ([`REFUSED`]),
//! which the service answers with 400 and the reason.

use crate::head::{self, Body, HeadFault};
use crate::sifted::{Sieve, Sifted};
use bytes::BytesMut;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// The method of the request that stands for a refused one. Who sends it is answered in the same way.
pub(crate) const REFUSED: &str = "SKEP-REFUSED";
const IN_ITS_PLACE: &[u8] =
    b"SKEP-REFUSED / HTTP/1.1\r\nhost: refused.invalid\r\nconnection: close\r\n\r\n";

enum Phase {
    /// Collecting.
    Head,
    /// Giving out so many bytes of what is held, then the body.
    Give(usize, Body),
    /// Giving out so many bytes of a body.
    Body(u64),
    /// Passing everything.
    Open,
    /// Ended by a bad head.
    Refused,
}

pub(crate) struct Gate {
    held: BytesMut,
    phase: Phase,
    fault: Arc<OnceLock<HeadFault>>,
}

impl Gate {
    /// Before `inner`. Tells why a head was refused, once one was.
    pub(crate) fn before<S>(inner: S) -> (Sifted<S, Self>, Arc<OnceLock<HeadFault>>) {
        let fault = Arc::new(OnceLock::new());
        let gate = Self { held: BytesMut::new(), phase: Phase::Head, fault: fault.clone() };
        (Sifted::new(inner, gate), fault)
    }

    /// Looks at what is held; whether there is something to give out now.
    fn look(&mut self) -> bool {
        let found = match head::find_end(&self.held) {
            Ok(None) => return false,
            Ok(Some(end)) => head::inspect(&self.held[..end]).map(|head| (end, head)),
            Err(fault) => Err(fault),
        };
        self.phase = match found {
            // Where another protocol may follow, only the other side's answer tells.
            Ok((end, head)) if head.upgrade => Phase::Give(end, Body::Chunked),
            Ok((end, head)) => Phase::Give(end, head.body),
            Err(fault) => {
                let _ = self.fault.set(fault);
                self.held.clear();
                self.held.extend_from_slice(IN_ITS_PLACE);
                Phase::Refused
            }
        };
        true
    }

    /// Moves at most `most` held bytes into `buffer`.
    fn give(&mut self, most: usize, buffer: &mut ReadBuf<'_>) -> usize {
        let count = most.min(self.held.len()).min(buffer.remaining());
        buffer.put_slice(&self.held.split_to(count));
        count
    }

    /// Reads more into what is held; the number of bytes.
    fn poll_more<S: AsyncRead + Unpin>(
        &mut self,
        inner: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut space = [0; 8192];
        let mut buffer = ReadBuf::new(&mut space);
        ready!(Pin::new(inner).poll_read(context, &mut buffer))?;
        self.held.extend_from_slice(buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    }
}

impl Sieve for Gate {
    fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        inner: &mut S,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            match self.phase {
                Phase::Head => {
                    if !self.look() && ready!(self.poll_more(inner, context))? == 0 {
                        return Poll::Ready(Ok(()));
                    }
                }
                Phase::Give(0, Body::Length(length)) => self.phase = Phase::Body(length),
                Phase::Give(0, Body::Chunked) => self.phase = Phase::Open,
                Phase::Give(left, body) => {
                    let given = self.give(left, buffer);
                    self.phase = Phase::Give(left - given, body);
                    return Poll::Ready(Ok(()));
                }
                Phase::Body(0) => self.phase = Phase::Head,
                Phase::Body(left) => {
                    if self.held.is_empty() && ready!(self.poll_more(inner, context))? == 0 {
                        return Poll::Ready(Ok(()));
                    }
                    let most = usize::try_from(left).unwrap_or(usize::MAX);
                    let given = self.give(most, buffer) as u64;
                    self.phase = Phase::Body(left - given);
                    return Poll::Ready(Ok(()));
                }
                Phase::Open if self.held.is_empty() => {
                    return Pin::new(inner).poll_read(context, buffer);
                }
                Phase::Open | Phase::Refused => {
                    self.give(usize::MAX, buffer);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    async fn through(bytes: &[u8]) -> (Vec<u8>, bool) {
        let (mut gate, fault) = Gate::before(bytes);
        let mut out = Vec::new();
        gate.read_to_end(&mut out).await.unwrap();
        (out, fault.get().is_some())
    }

    #[tokio::test]
    async fn heads_and_bodies_pass_until_a_bad_head() {
        let good = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nG\n\nETGET / HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(through(good).await, (good.to_vec(), false));
        let bad = [&good[..], b"GET / HTTP/1.1\nHost: b\n\n"].concat();
        assert_eq!(through(&bad).await, ([&good[..], IN_ITS_PLACE].concat(), true));
        // A head that never ends gives nothing.
        assert_eq!(through(b"GET / HTTP/1.1\r\nHost: a\r\n").await, (Vec::new(), false));
    }
}
