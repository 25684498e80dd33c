//! Whether a host can be reached, tried from inside a sandbox.
//!
//! `skep net test` wants to know what a program inside would meet, and nobody outside can say that. So a
//! process that wears what an exec wears tries each host twice: by asking the proxy for a connection, as any
//! program may (`proxy`): the verdict is the proxy's own, with its reason; it dials the host, and nothing is sent there.
//! And like a program that knows nothing of proxies (`direct`): the name is asked for, the address
//! connected to, and a little is said. Both verdicts are shown, so allow and deny are proven for both kinds.
//!
//! It is a crate of its own because of where it runs: in a child that the keeper forks, or in the guest of a
//! machine. There may be no async runtime there, and the keeper itself has no use for TLS or DNS. What is said and
//! heard is put together and taken apart by the libraries of the egress process (hickory, rustls, httparse), over
//! blocking sockets with time limits.
//!
//! ```
//! // A question that cannot be read has an empty answer.
//! assert!(skep_knock::answer(b"?").is_empty());
//! let nobody = br#"{"targets":[],"proxy":1}"#;
//! assert_eq!(skep_knock::answer(nobody), b"[]");
//! ```
//!
//! What is deliberately not here: the confinement of the process (the keeper's), and any decision.

mod direct;
mod proxy;

use serde::{Deserialize, Serialize};
use skep_types::EgressProbe;

/// What shall be tried.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Question {
    /// Host and port.
    pub targets: Vec<(String, u16)>,
    /// Port of the proxy.
    pub proxy: u16,
}

impl Question {
    /// Tries everything, each in both ways, and tells what came of it in JSON.
    pub fn try_all(&self) -> Vec<u8> {
        let both = |(host, port): &(String, u16)| {
            let asked = proxy::knock(host, *port, self.proxy);
            let tried = direct::knock(host, *port, &asked);
            [asked, tried]
        };
        let found: Vec<EgressProbe> = self.targets.iter().flat_map(both).collect();
        serde_json::to_vec(&found).unwrap_or_default()
    }
}

/// Tries what is asked for in JSON and answers in JSON. A question that cannot be read has an empty
/// answer.
pub fn answer(question: &[u8]) -> Vec<u8> {
    serde_json::from_slice::<Question>(question)
        .map(|question| question.try_all())
        .unwrap_or_default()
}

/// A host as requests name it.
fn named(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The beginning of an answer of HTTP.
struct Answer<'a> {
    status: u16,
    /// Whether the proxy wrote it.
    by_proxy: bool,
    /// Whether the proxy will judge by what is said, and has dialled nobody yet.
    later: bool,
    /// What follows the head.
    body: &'a [u8],
}

/// Reads it; `None` if the head is not whole, or is none.
fn read_answer(bytes: &[u8]) -> Option<Answer<'_>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = response.parse(bytes).ok()? else { return None };
    let by_proxy = response
        .headers
        .iter()
        .any(|header| header.name.eq_ignore_ascii_case("server") && header.value == b"skep");
    let later = response
        .headers
        .iter()
        .any(|header| header.name.eq_ignore_ascii_case("skep-verdict") && header.value == b"later");
    Some(Answer {
        status: response.code?,
        by_proxy,
        later,
        body: bytes.get(length..).unwrap_or_default(),
    })
}
