//! The connection from inside, with the bytes that were looked at before anybody decided.

use bytes::{Buf as _, BytesMut};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Reading gives the bytes seen so far first.
pub(crate) struct Client {
    stream: TcpStream,
    seen: BytesMut,
}

impl Client {
    pub(crate) fn new(stream: TcpStream) -> Self {
        // Small writes of a conversation must not wait for each other.
        let _ = stream.set_nodelay(true);
        Self { stream, seen: BytesMut::new() }
    }

    /// What was read and not yet taken.
    pub(crate) fn seen(&self) -> &[u8] {
        &self.seen
    }

    /// Reads some more without taking it; 0 at the end.
    pub(crate) async fn see_more(&mut self) -> io::Result<usize> {
        self.seen.reserve(4096);
        self.stream.read_buf(&mut self.seen).await
    }

    /// Takes bytes that were seen.
    pub(crate) fn take(&mut self, count: usize) {
        self.seen.advance(count);
    }

    /// The connection, and what was read of it and not yet taken.
    pub(crate) fn into_parts(self) -> (TcpStream, BytesMut) {
        (self.stream, self.seen)
    }

    /// Ends the connection so that the other side knows at once.
    pub(crate) fn reset(self) {
        let _ = rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
    }
}

impl AsyncRead for Client {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let client = self.get_mut();
        if client.seen.is_empty() {
            return Pin::new(&mut client.stream).poll_read(context, buffer);
        }
        let count = client.seen.len().min(buffer.remaining());
        buffer.put_slice(&client.seen.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
