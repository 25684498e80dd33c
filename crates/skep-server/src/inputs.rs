//! Standard input of execs that were started with `stdin: true`: the server holds their live end
//! until the input is closed or the exec ends.

use crate::relay::{Kind, frame};
use skep_types::{Code, ExecId, Problem};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;

type Held = HashMap<String, Arc<tokio::sync::Mutex<OwnedWriteHalf>>>;

/// The open inputs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inputs {
    held: Arc<Mutex<Held>>,
}

impl Inputs {
    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a stream. Its output is in the log already and is only read away here.
    pub(crate) fn keep(&self, exec: ExecId, stream: UnixStream) {
        let (mut output, input) = stream.into_split();
        self.held().insert(exec.to_string(), Arc::new(tokio::sync::Mutex::new(input)));
        let held = self.clone();
        tokio::spawn(async move {
            let mut buffer = vec![0; 64 << 10];
            while output.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
            held.held().remove(exec.as_str());
        });
    }

    /// Hands bytes on, and closes the input where that was asked for.
    pub(crate) async fn give(&self, exec: &str, bytes: &[u8], close: bool) -> Result<(), Problem> {
        let found = self.held().get(exec).cloned();
        let input = found.ok_or_else(|| {
            let message = format!("the input of exec `{exec}` is not open");
            Problem::new(Code::IllegalState, message)
                .hint("start the exec with `stdin: true`; it is closed when the server restarts")
        })?;
        let failed = |error| Problem::new(Code::IllegalState, format!("exec `{exec}`: {error}"));
        let mut input = input.lock().await;
        for piece in bytes.chunks(16 << 10) {
            input.write_all(&frame(Kind::Stdin, piece)).await.map_err(failed)?;
        }
        if close {
            input.write_all(&frame(Kind::StdinEnd, &[])).await.map_err(failed)?;
        }
        Ok(())
    }
}
