//! An exec over a WebSocket: a terminal, or pipes, from far away.

use crate::asking::{Ask, parse};
use crate::bodies::ExecBody;
use crate::calls::{Call, Company};
use crate::places::Held;
use crate::relay::Kind;
use crate::streaming::{self, Input, Output};
use axum::extract::ws::{Message, WebSocket};
use futures_util::SinkExt as _;
use futures_util::stream::{SplitSink, SplitStream, StreamExt as _};
use serde::Deserialize;
use serde_json::{Value, json};
use skep_types::{Code, Problem, TerminalSize};
use std::time::Duration;

/// For the first message.
const PATIENCE: Duration = Duration::from_secs(10);
/// The status of a connection that has become a WebSocket.
const SWITCHED: u16 = 101;
/// Input handed on in one frame.
const PIECE: usize = 16 << 10;

/// What a client says besides input.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Control {
    Resize(TerminalSize),
    Signal(i32),
    StdinEnd(bool),
}

/// Serves one socket to its end. The exec goes on when the client goes away.
pub(crate) async fn serve(mut socket: WebSocket, ask: Ask, sandbox: String, _place: Held) {
    match begin(&mut socket, &ask, sandbox).await {
        Ok(Some((exec, output, input))) => {
            // The head of the answer said nothing of what was asked: the act is here.
            ask.note(SWITCHED, Some(&exec));
            pump(socket, &ask, output, input).await;
        }
        Ok(None) => {}
        Err(problem) => {
            ask.note(problem.code.http_status(), None);
            let _ = socket.send(text(&json!({ "error": problem }))).await;
            let _ = socket.send(Message::Close(None)).await;
        }
    }
}

fn text(value: &Value) -> Message {
    Message::Text(value.to_string().into())
}

async fn begin(
    socket: &mut WebSocket,
    ask: &Ask,
    sandbox: String,
) -> Result<Option<(String, Output, Input)>, Problem> {
    let usage = |message: String| Problem::new(Code::Usage, message);
    let first = tokio::time::timeout(PATIENCE, socket.recv()).await;
    let first = first.map_err(|_| usage("nothing was asked in time".into()))?;
    let Some(Ok(Message::Text(asked))) = first else {
        return match first {
            None | Some(Err(_) | Ok(Message::Close(_))) => Ok(None),
            _ => Err(usage("the first message is text: what to run".into())),
        };
    };
    let body: ExecBody = parse(&asked)?;
    // Whoever is attached ends it; there is no wall clock unless it was asked for.
    let last = body.last;
    let spec = Box::new(body.resolve()?);
    let call = Call::Exec { sandbox, spec, company: Company::Attached, clocked: false, last };
    let mut reply = ask.ask(call, &asked).await?;
    let stream = reply.stream.take();
    let stream = stream.ok_or_else(|| Problem::new(Code::Internal, "an exec without its end"))?;
    let (output, input) = streaming::split(streaming::adopt(stream)?);
    let exec = reply.json()?;
    // A client that has gone meanwhile is noticed by the pump.
    let _ = socket.send(text(&json!({ "exec": exec["id"] }))).await;
    let id = exec["id"].as_str().unwrap_or_default().to_owned();
    Ok(Some((id, output, input)))
}

async fn pump(socket: WebSocket, ask: &Ask, output: Output, input: Input) {
    let (mut to_client, from_client) = socket.split();
    let mut stopping = ask.app.stopping.clone();
    // Each direction on its own: a command that waits for its output to be taken before it reads
    // on must not wait for ever.
    let shut_out = tokio::select! {
        () = send_output(&mut to_client, output) => false,
        () = hand_input_on(from_client, input) => false,
        () = crate::serve::told(&mut stopping) => false,
        () = ask.until_shut_out() => true,
    };
    if shut_out {
        let last = async {
            let _ = to_client.send(text(&json!({ "error": crate::guard::shut_out() }))).await;
            let _ = to_client.close().await;
        };
        // A client that takes nothing does not hold this up.
        let _ = tokio::time::timeout(PATIENCE, last).await;
    }
}

async fn send_output(client: &mut SplitSink<WebSocket, Message>, mut output: Output) {
    loop {
        let message = match output.next().await {
            Ok(Some((kind @ (Kind::Stdout | Kind::Stderr), bytes))) => {
                let mut message = Vec::with_capacity(bytes.len() + 1);
                message.push(kind as u8);
                message.extend_from_slice(&bytes);
                Message::Binary(message.into())
            }
            Ok(Some((Kind::End, bytes))) => {
                let end: Value = serde_json::from_slice(&bytes).unwrap_or_default();
                let _ = client.send(text(&json!({ "end": end }))).await;
                let _ = client.close().await;
                return;
            }
            Ok(Some(_)) => continue,
            Ok(None) | Err(_) => {
                let _ = client.close().await;
                return;
            }
        };
        if client.send(message).await.is_err() {
            return;
        }
    }
}

/// Until the client goes away; the end of its input is not that.
async fn hand_input_on(mut client: SplitStream<WebSocket>, mut input: Input) {
    while let Some(Ok(message)) = client.next().await {
        let handed = match message {
            Message::Binary(bytes) => match bytes.split_first() {
                Some((0, bytes)) => hand_on(&mut input, bytes).await,
                _ => return,
            },
            Message::Text(asked) => match serde_json::from_str(&asked) {
                Ok(Control::Resize(size)) => {
                    let size = serde_json::to_vec(&size).unwrap_or_default();
                    input.send(Kind::Resize, &size).await
                }
                Ok(Control::Signal(signal)) => {
                    input.send(Kind::Signal, signal.to_string().as_bytes()).await
                }
                Ok(Control::StdinEnd(true)) => input.send(Kind::StdinEnd, &[]).await,
                Ok(Control::StdinEnd(false)) => Ok(()),
                Err(_) => return,
            },
            Message::Close(_) => return,
            Message::Ping(_) | Message::Pong(_) => Ok(()),
        };
        if handed.is_err() {
            return;
        }
    }
}

async fn hand_on(input: &mut Input, bytes: &[u8]) -> Result<(), Problem> {
    for piece in bytes.chunks(PIECE) {
        input.send(Kind::Stdin, piece).await?;
    }
    Ok(())
}
