//! Traces for OpenTelemetry, sent to a collector by OTLP over HTTP, where one is set.
//!
//! A request is a span, and what it asks of a worker is a span below it, from when it waits for a free
//! one. A caller's `traceparent` is taken up, so that its trace goes on here. Method, route, status,
//! the request's id and who asked are said; paths, queries, bodies and tokens never.
//!
//! The libraries of OpenTelemetry do the work on a thread of their own; a collector that is slow or
//! away costs the spans, and no request waits for it.

use crate::calls::Call;
use axum::http::{HeaderMap, Method};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{
    SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider,
};
use skep_types::{Code, Problem};
use std::time::Duration;

/// Spans are sent this often.
const PAUSE: Duration = Duration::from_secs(1);
/// A collector that does not take them in this time has lost them.
const PATIENCE: Duration = Duration::from_secs(5);
/// What a collector may answer.
const ANSWER: usize = 64 << 10;

/// Where the server's spans go.
#[derive(Debug)]
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Traces {
    /// Prepares to send to the collector at `http://HOST:PORT[/PATH]`. Nothing is sent yet.
    pub(crate) fn start(url: &str) -> Result<Self, Problem> {
        let shown = skep_types::escape::visible(url.as_bytes());
        let refused = |why: &str| {
            Problem::new(Code::Usage, format!("cannot send traces to `{shown}`: {why}"))
                .hint("name a collector as `http://HOST:PORT`; it takes OTLP over HTTP")
        };
        let parsed: axum::http::Uri = url.parse().map_err(|_| refused("it is not a URL"))?;
        match parsed.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(refused("this server does not speak TLS")),
            _ => return Err(refused("it is not a URL of HTTP")),
        }
        if parsed.authority().is_none_or(|place| place.as_str().contains('@')) {
            return Err(refused("it names no host, or a password"));
        }
        let endpoint = match parsed.path() {
            "" | "/" => format!("{}/v1/traces", url.trim_end_matches('/')),
            _ => url.to_owned(),
        };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector)
            .with_protocol(Protocol::HttpJson)
            .with_endpoint(endpoint)
            .with_timeout(PATIENCE)
            .build()
            .map_err(|error| refused(&error.to_string()))?;
        let batches = BatchConfigBuilder::default().with_scheduled_delay(PAUSE).build();
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource =
            Resource::builder_empty().with_service_name("skep").with_attribute(version).build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_resource(resource)
            .build();
        let tracer = provider.tracer("skep-server");
        Ok(Self { provider, tracer })
    }

    /// A request begins.
    pub(crate) fn begin_request(
        &self,
        method: &Method,
        route: &str,
        headers: &HeaderMap,
    ) -> Context {
        let parent = TraceContextPropagator::new()
            .extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let span = self
            .tracer
            .span_builder(format!("{method} {route}"))
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new("http.request.method", method.to_string()),
                KeyValue::new("http.route", route.to_owned()),
            ])
            .start_with_context(&self.tracer, &parent);
        parent.with_span(span)
    }

    /// A question to a worker begins, if it is part of a request.
    pub(crate) fn begin_call(&self, call: &Call) -> Option<Context> {
        let parent = Context::current();
        if !parent.span().span_context().is_valid() {
            return None;
        }
        let span = self
            .tracer
            .span_builder(format!("engine {}", call.word()))
            .with_kind(SpanKind::Internal)
            .start_with_context(&self.tracer, &parent);
        Some(parent.with_span(span))
    }

    /// Sends what is left, for a while.
    pub(crate) fn stop(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(PATIENCE) {
            tracing::warn!(%error, "traces were left unsent");
        }
    }
}

/// A request was answered. Returns the id of its trace, for the log.
pub(crate) fn end_request(
    context: &Context,
    request_id: &str,
    who: Option<&str>,
    status: u16,
) -> String {
    let span = context.span();
    span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
    span.set_attribute(KeyValue::new("skep.request_id", request_id.to_owned()));
    if let Some(who) = who {
        span.set_attribute(KeyValue::new("skep.who", who.to_owned()));
    }
    if status >= 500 {
        span.set_status(Status::error(format!("status {status}")));
    }
    span.end();
    span.span_context().trace_id().to_string()
}

/// A worker answered.
pub(crate) fn end_call(context: &Context, problem: Option<&Problem>) {
    let span = context.span();
    if let Some(problem) = problem {
        // The code alone: a message may name files.
        let code = serde_json::to_value(problem.code).unwrap_or_default();
        span.set_status(Status::error(code.as_str().unwrap_or_default().to_owned()));
    }
    span.end();
}

/// One request to the collector, on the exporter's thread, which has no runtime.
#[derive(Debug)]
struct Collector;

#[async_trait::async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { tokio::time::timeout(PATIENCE, send(request)).await })?
    }
}

async fn send(request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let (mut parts, body) = request.into_parts();
    let place = parts.uri.authority().ok_or("the collector has no address")?.clone();
    let host = place.host().trim_start_matches('[').trim_end_matches(']');
    skep_sys::names::keep_built_in();
    let stream = tokio::net::TcpStream::connect((host, place.port_u16().unwrap_or(80))).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    parts.headers.insert(axum::http::header::HOST, place.as_str().parse()?);
    parts.uri = parts.uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
    let answer = sender.send_request(Request::from_parts(parts, Full::new(body))).await?;
    let (parts, body) = answer.into_parts();
    let body = Limited::new(body, ANSWER).collect().await?.to_bytes();
    connection.abort();
    Ok(Response::from_parts(parts, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_addresses_of_a_collector_are_taken() {
        for good in
            ["http://127.0.0.1:4318", "http://localhost:4318/", "http://[::1]:1/x/v1/traces"]
        {
            assert!(Traces::start(good).is_ok(), "{good}");
        }
        for bad in
            ["", "x", "127.0.0.1:4318", "https://a.test", "ftp://a.test", "http://u:p@a.test"]
        {
            assert_eq!(Traces::start(bad).unwrap_err().code, Code::Usage, "{bad}");
        }
    }
}
