//! Metrics, in the form Prometheus reads. Times are histograms: an average hides the slow ones.

use crate::calls::Call;
use axum::http::Method;
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use skep_engine::Tally;
use skep_types::{EgressEntry, EgressVerdict};
use std::sync::OnceLock;

/// Upper bounds in seconds, from a read out of the store to an approval with a check.
const BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// What went through one allowed connection, in bytes.
const BYTES: &str = "skep_egress_bytes";
const SIZES: &[f64] = &[0.0, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

/// One recorder per process: that is how the library is made.
static HANDLE: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Where the server's figures go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Metrics;

impl Metrics {
    /// Sets the recorder up, once.
    pub(crate) fn start() -> Self {
        HANDLE.get_or_init(|| {
            let sizes = Matcher::Full(BYTES.to_owned());
            let builder = PrometheusBuilder::new().set_buckets(BUCKETS).ok()?;
            let builder = builder.set_buckets_for_metric(sizes, SIZES).ok()?;
            let handle = builder.install_recorder().ok()?;
            describe();
            // There from the start, so that a graph of it does not begin with the first replay.
            counter!("skep_idempotency_replays_total").absolute(0);
            Some(handle)
        });
        Self
    }

    /// One answered request.
    pub(crate) fn request(self, method: &Method, route: &str, status: u16, seconds: f64) {
        let (method, route) = (known(method), route.to_owned());
        let status = status.to_string();
        counter!("skep_http_requests_total", "method" => method, "route" => route.clone(), "status" => status)
            .increment(1);
        histogram!("skep_http_request_seconds", "method" => method, "route" => route)
            .record(seconds);
    }

    /// One answered question to the engine.
    pub(crate) fn call(self, name: &'static str, seconds: f64) {
        histogram!(name).record(seconds);
    }

    /// An answer given a second time.
    pub(crate) fn replay(self) {
        counter!("skep_idempotency_replays_total").increment(1);
    }

    /// Something that was let out of a sandbox, or was not; before it, what was denied too often to be written.
    pub(crate) fn verdict(self, entry: &EgressEntry) {
        if let Some(missing) = entry.missing {
            counter!(VERDICTS, "verdict" => "deny", "protocol" => UNWRITTEN).increment(missing);
        }
        let verdict = match entry.verdict {
            EgressVerdict::Allow => "allow",
            EgressVerdict::Deny => "deny",
        };
        let protocol = PROTOCOLS.into_iter().find(|name| *name == entry.proto);
        let protocol = protocol.unwrap_or("other");
        counter!(VERDICTS, "verdict" => verdict, "protocol" => protocol).increment(1);
        if entry.verdict == EgressVerdict::Allow {
            histogram!(BYTES, "direction" => "in").record(entry.bytes_in as f64);
            histogram!(BYTES, "direction" => "out").record(entry.bytes_out as f64);
        }
    }

    /// What there is.
    pub(crate) fn tally(self, tally: Tally) {
        gauge!("skep_sandboxes").set(tally.sandboxes as f64);
        gauge!("skep_sandboxes_running").set(tally.running as f64);
        gauge!("skep_promised_memory_bytes").set(tally.memory as f64);
        gauge!("skep_promised_disk_bytes").set(tally.disk as f64);
    }

    /// The text for `/metrics`.
    pub(crate) fn render(self) -> String {
        match HANDLE.get() {
            Some(Some(handle)) => {
                handle.run_upkeep();
                handle.render()
            }
            _ => String::new(),
        }
    }
}

/// Verdicts, by what was spoken; a flood of denials is counted where it is not written.
const VERDICTS: &str = "skep_egress_verdicts_total";
const PROTOCOLS: [&str; 4] = ["dns", "tcp", "tls", "http"];
const UNWRITTEN: &str = "unwritten";

/// A method by its name, if it is one of those that there are: anybody may send any word.
pub(crate) fn known(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN.into_iter().find(|name| *name == method.as_str()).unwrap_or("other")
}

/// Under which name the time of a question is kept.
pub(crate) fn name_of(call: &Call) -> Option<&'static str> {
    Some(match call {
        Call::Create { .. } => "skep_create_seconds",
        Call::Exec { .. } => "skep_exec_start_seconds",
        Call::Diff { .. } => "skep_diff_seconds",
        Call::Approve { .. } => "skep_apply_seconds",
        Call::Settle => "skep_reconcile_seconds",
        _ => return None,
    })
}

fn describe() {
    describe_counter!("skep_http_requests_total", "Requests answered");
    describe_histogram!("skep_http_request_seconds", "Time to the head of an answer");
    describe_histogram!("skep_create_seconds", "Creating a sandbox, until it is ready");
    describe_histogram!("skep_exec_start_seconds", "Starting an exec");
    describe_histogram!("skep_diff_seconds", "Deriving a change set");
    describe_histogram!("skep_apply_seconds", "Applying an approval");
    describe_histogram!("skep_reconcile_seconds", "Comparing the store with what is there");
    describe_counter!("skep_idempotency_replays_total", "Answers given again for a known key");
    describe_counter!(VERDICTS, "What sandboxes asked for outside: allowed or denied");
    describe_histogram!(BYTES, "Bytes through an allowed connection");
    describe_gauge!("skep_sandboxes", "Sandboxes that are not deleted");
    describe_gauge!("skep_sandboxes_running", "Sandboxes held by a keeper");
    describe_gauge!("skep_promised_memory_bytes", "Memory limits of running sandboxes, added up");
    describe_gauge!("skep_promised_disk_bytes", "Disk limits of all sandboxes, added up");
}
