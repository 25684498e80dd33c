//! The engine over HTTP: REST under `/v1`, server-sent events, WebSocket, OpenAPI.
//!
//! A request goes through these steps, each in a module of its own:
//!
//! 1. `listen` and `serve` accept a connection: over a unix socket whose other end the kernel
//!    names, or over TCP on this host.
//! 2. `guard` turns away what comes from another site, in another form, without a token, or from
//!    a role that may not (`roles` is the whole matrix, as data); it gives the request an id, and
//!    writes the lines about it.
//! 3. A handler in `routes` says what is asked, as a `calls::Call`. Bodies (`bodies`) refuse
//!    unknown fields.
//! 4. `pool` hands the call to a *worker*: another process of the same program, with one thread
//!    and the engine in it (`worker`, `answer`, `documents`). Its answer is passed on as it is.
//!
//! Why workers: the engine forks keepers and probes, and sometimes enters a user namespace for
//! good. A process with threads must do neither. It also means that a panic, or a crash, in the
//! engine costs one request, and that what a killed server had begun is finished by its workers.
//!
//! The live end of an exec that somebody is attached to is passed from the worker to the server as
//! a descriptor (`relay`, `streaming`, `attach`). Everything else about execs is read from what the
//! keeper keeps, so a client, a server or both may go away and come back (`following`).
//!
//! ```no_run
//! // What `skep serve` does, in short:
//! # fn example(config: skep_server::Config) -> Result<(), skep_types::Problem> {
//! skep_server::serve(config)
//! # }
//! ```
//!
//! What is deliberately not here: decisions about sandboxes (the engine's), a concrete provider or
//! store (the binary's), the environment, the clock.

mod answer;
mod app;
mod asking;
mod attach;
mod audit;
mod bodies;
mod calls;
mod canary;
mod documents;
mod failure;
mod filling;
mod following;
mod frame;
mod guard;
mod incoming;
mod inputs;
pub mod listen;
mod measure;
mod places;
mod pool;
mod relay;
mod roles;
mod routes;
mod schema;
mod serve;
mod sessions;
mod shown;
mod statuses;
mod staying;
mod streaming;
mod tokens;
mod traces;
mod watching;
pub mod worker;

pub use app::openapi;
pub use pool::WorkerCommand;
pub use roles::Role;
pub use serve::{Config, serve};
pub use tokens::{NewToken, Token, Tokens};

/// A line that cannot be written (a full disk, a reader that has gone) is lost, and nothing else is: the
/// library would say so on standard error, and panic where that fails as well.
struct Lossy(std::io::Stderr);

impl std::io::Write for Lossy {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.write_all(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

/// Structured logs on standard error, one JSON object per line.
pub fn log_to_stderr(verbose: bool) {
    let level = if verbose { tracing::Level::DEBUG } else { tracing::Level::INFO };
    // A second one in the same process changes nothing.
    let _ = tracing_subscriber::fmt()
        .json()
        .with_max_level(level)
        .with_writer(|| Lossy(std::io::stderr()))
        .try_init();
}

#[cfg(test)]
mod tests {
    use crate::roles::MATRIX;
    use serde_json::Value;
    use std::collections::BTreeSet;

    #[test]
    fn every_endpoint_has_a_row_in_the_matrix_and_every_row_an_endpoint() {
        let document: Value = serde_json::from_str(&crate::openapi()).unwrap();
        let mut endpoints = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                endpoints.insert((method.to_uppercase(), path.clone()));
            }
        }
        let rows: BTreeSet<_> =
            MATRIX.iter().map(|row| (row.0.to_owned(), row.1.to_owned())).collect();
        assert_eq!(rows.len(), MATRIX.len(), "a row stands twice");
        assert_eq!(endpoints, rows);
    }

    #[test]
    fn the_checked_in_document_is_the_served_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        if std::env::var_os("SKEP_WRITE_OPENAPI").is_some() {
            std::fs::write(path, crate::openapi()).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            kept == crate::openapi(),
            "docs/openapi.json is not what the code says; SKEP_WRITE_OPENAPI=1 cargo test -p skep-server writes it"
        );
    }

    #[test]
    fn every_endpoint_says_how_it_fails() {
        let document: Value = serde_json::from_str(&crate::openapi()).unwrap();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, endpoint) in methods.as_object().unwrap() {
                let says = endpoint["responses"].get("default").is_some();
                assert!(says || path == "/health/live", "{method} {path}");
                let told = endpoint["responses"].as_object().unwrap().keys();
                let failures = told.filter(|status| status.starts_with(['4', '5'])).count();
                assert!(failures >= 3 || path == "/health/live", "{method} {path}");
                assert!(endpoint["summary"].is_string(), "{method} {path}");
            }
        }
    }
}
