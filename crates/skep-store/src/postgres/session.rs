//! One connection, used by one thread at a time.

use super::fault::{Fault, Outcome};
use std::future::Future;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, NoTls, Row};

/// Parameters of a statement.
pub(super) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// What every session is told first. A client that stands still inside a transaction (a stopped
/// process) holds the write lock: the server ends such a session by itself.
const SETTINGS: &str = "SET lock_timeout = '10s'; SET statement_timeout = '30s'; \
     SET idle_in_transaction_session_timeout = '10s'; \
     SET client_encoding = 'UTF8'; SET client_min_messages = 'warning'";

/// A connection with the small runtime that drives it. The runtime has no thread of its own: it
/// works only while somebody waits for an answer, so forking a keeper beside it is sound.
pub(super) struct Session {
    runtime: Runtime,
    client: Client,
    stall: Duration,
    /// Set when an answer did not come or the connection ended: it is not used again.
    pub(super) broken: bool,
}

impl Session {
    pub(super) fn open(config: &Config, stall: Duration) -> Outcome<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Fault::Io)?;
        let client = runtime.block_on(async {
            let connected = tokio::time::timeout(stall, config.connect(NoTls)).await;
            let (client, connection) = connected.map_err(|_| Fault::Stalled)??;
            // Ends with the connection; how it ended is told by the next call.
            drop(tokio::spawn(connection));
            Ok::<_, Fault>(client)
        })?;
        let mut session = Self { runtime, client, stall, broken: false };
        session.batch(SETTINGS)?;
        Ok(session)
    }

    /// Statements without parameters, in one exchange.
    pub(super) fn batch(&mut self, sql: &str) -> Outcome<()> {
        let answer = wait(&self.runtime, self.stall, self.client.batch_execute(sql));
        self.note(answer)
    }

    pub(super) fn execute(&mut self, sql: &str, parameters: Parameters<'_>) -> Outcome<u64> {
        let answer = wait(&self.runtime, self.stall, self.client.execute(sql, parameters));
        self.note(answer)
    }

    pub(super) fn query(&mut self, sql: &str, parameters: Parameters<'_>) -> Outcome<Vec<Row>> {
        let answer = wait(&self.runtime, self.stall, self.client.query(sql, parameters));
        self.note(answer)
    }

    /// The first row, if there is one.
    pub(super) fn first(&mut self, sql: &str, parameters: Parameters<'_>) -> Outcome<Option<Row>> {
        Ok(self.query(sql, parameters)?.into_iter().next())
    }

    fn note<T>(&mut self, answer: Outcome<T>) -> Outcome<T> {
        if answer.as_ref().is_err_and(Fault::is_lost) || self.client.is_closed() {
            self.broken = true;
        }
        answer
    }
}

fn wait<T>(
    runtime: &Runtime,
    stall: Duration,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Outcome<T> {
    let answer = runtime.block_on(async { tokio::time::timeout(stall, answer).await });
    Ok(answer.map_err(|_| Fault::Stalled)??)
}
