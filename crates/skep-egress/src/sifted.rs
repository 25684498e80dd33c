//! A stream whose reading is looked at on the way, and whose writing is not.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What looks at the bytes that are read.
pub(crate) trait Sieve {
    /// Reads from `inner` what may pass now.
    fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        inner: &mut S,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>>;
}

/// A stream and its sieve.
pub(crate) struct Sifted<S, V> {
    inner: S,
    sieve: V,
}

impl<S, V: Sieve> Sifted<S, V> {
    pub(crate) fn new(inner: S, sieve: V) -> Self {
        Self { inner, sieve }
    }
}

impl<S: AsyncRead + Unpin, V: Sieve + Unpin> AsyncRead for Sifted<S, V> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { inner, sieve } = self.get_mut();
        sieve.poll_read(inner, context, buffer)
    }
}

impl<S: AsyncWrite + Unpin, V: Unpin> AsyncWrite for Sifted<S, V> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
