//! An attached exec over a WebSocket, as the command line's pump wants it.

use crate::connection::{Client, Socket, problem};
use rustix::fd::{AsFd, BorrowedFd};
use serde::Deserialize;
use serde_json::{Value, json};
use skep_provider::{ExecStream, StreamEvent};
use skep_types::{Code, ExecEnd, ExecId, Problem, TerminalSize};
use std::io::{self, Read, Write};
use tungstenite::{Error, Message, WebSocket};

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.read(buffer),
            Self::Tcp(socket) => socket.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.write(bytes),
            Self::Tcp(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Socket {
    fn set_blocking(&self, blocking: bool) -> io::Result<()> {
        match self {
            Self::Unix(socket) => socket.set_nonblocking(!blocking),
            Self::Tcp(socket) => socket.set_nonblocking(!blocking),
        }
    }
}

/// What the server says besides output.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    Exec(ExecId),
    Error(Problem),
    End(Box<ExecEnd>),
}

/// The live end of an exec.
pub(crate) struct Stream {
    socket: WebSocket<Socket>,
}

impl Stream {
    /// Starts an exec and stays with it.
    pub(crate) fn start(
        client: &Client,
        path: &str,
        exec: &Value,
    ) -> Result<(ExecId, Self), Problem> {
        let mut request = tungstenite::ClientRequestBuilder::new(
            format!("ws://{}{path}", client.host())
                .parse()
                .map_err(|_| Problem::new(Code::Usage, "this cannot be asked of a server"))?,
        );
        if let Some(authorization) = client.authorization() {
            request = request.with_header("authorization", authorization);
        }
        let (mut socket, _) =
            tungstenite::client(request, client.connect()?).map_err(|error| match error {
                tungstenite::HandshakeError::Failure(Error::Http(response)) => problem(
                    response.status().as_u16(),
                    response.body().as_deref().unwrap_or_default(),
                ),
                other => lost(&other),
            })?;
        socket.send(Message::text(exec.to_string())).map_err(|error| lost(&error))?;
        loop {
            match socket.read().map_err(|error| lost(&error))? {
                Message::Text(text) => match serde_json::from_str(&text) {
                    Ok(Said::Exec(id)) => {
                        socket.get_ref().set_blocking(false).map_err(|error| lost(&error))?;
                        return Ok((id, Self { socket }));
                    }
                    Ok(Said::Error(problem)) => return Err(problem),
                    _ => return Err(lost(&"an unknown word")),
                },
                Message::Ping(_) | Message::Pong(_) => {}
                _ => return Err(lost(&"it said nothing")),
            }
        }
    }

    /// Sends while the socket blocks. What is sent in one go is small, and the caller sends input
    /// only when there is room for it, so nobody is waited for here.
    fn send(&mut self, message: Message) -> io::Result<()> {
        self.socket.get_ref().set_blocking(true)?;
        let sent = self.socket.send(message).map_err(broken);
        self.socket.get_ref().set_blocking(false)?;
        sent
    }

    fn control(&mut self, value: &Value) -> io::Result<()> {
        self.send(Message::text(value.to_string()))
    }
}

fn lost(error: &dyn std::fmt::Display) -> Problem {
    Problem::new(Code::Unavailable, format!("the connection to the server broke: {error}"))
}

fn broken(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        Error::ConnectionClosed | Error::AlreadyClosed => io::ErrorKind::BrokenPipe.into(),
        other => io::Error::other(other),
    }
}

impl ExecStream for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.socket.get_ref() {
            Socket::Unix(socket) => socket.as_fd(),
            Socket::Tcp(socket) => socket.as_fd(),
        }
    }

    fn next(&mut self) -> io::Result<Option<StreamEvent>> {
        loop {
            match self.socket.read() {
                Ok(Message::Binary(bytes)) => match bytes.split_first() {
                    Some((1, bytes)) => return Ok(Some(StreamEvent::Stdout(bytes.to_vec()))),
                    Some((2, bytes)) => return Ok(Some(StreamEvent::Stderr(bytes.to_vec()))),
                    _ => {}
                },
                Ok(Message::Text(text)) => {
                    if let Ok(Said::End(end)) = serde_json::from_str(&text) {
                        return Ok(Some(StreamEvent::Ended(end)));
                    }
                }
                Ok(Message::Close(_)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(None);
                }
                Err(error) => {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, error.to_string()));
                }
            }
        }
    }

    fn stdin(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut message = Vec::with_capacity(bytes.len() + 1);
        message.push(0);
        message.extend_from_slice(bytes);
        self.send(Message::binary(message))
    }

    fn close_stdin(&mut self) -> io::Result<()> {
        self.control(&json!({ "stdin_end": true }))
    }

    fn resize(&mut self, size: TerminalSize) -> io::Result<()> {
        self.control(&json!({ "resize": size }))
    }

    fn signal(&mut self, signal: i32) -> io::Result<()> {
        self.control(&json!({ "signal": signal }))
    }
}
