//! Requests as the bodies that the server takes.

use serde_json::{Map, Value, json};
use skep_engine::api::{ApproveRequest, CreateRequest, GcRequest};
use skep_types::{ByteSize, Code, ExecSpec, Limits, Problem};
use std::path::Path;
use std::time::Duration;

/// A path; the server takes text only.
pub(crate) fn path(path: &Path) -> Result<&str, Problem> {
    path.to_str().ok_or_else(|| {
        let shown = skep_types::escape::visible(path.as_os_str().as_encoded_bytes());
        let message = format!("`{shown}` is not text, and cannot be named to a server");
        Problem::new(Code::Usage, message).hint("do it on the server's host, without `--host`")
    })
}

fn size(size: ByteSize) -> String {
    format!("{}B", size.0)
}

/// Rounded up: a limit must not become zero.
fn time(time: Duration) -> String {
    let whole = time.as_millis();
    let more = u128::from(time > Duration::from_millis(u64::try_from(whole).unwrap_or(u64::MAX)));
    format!("{}ms", whole + more)
}

/// Limits with units.
pub(crate) fn limits(limits: &Limits) -> Value {
    let mut body = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(key.to_owned(), value);
        }
    };
    put("memory", limits.memory.map(|value| json!(size(value))));
    put("cpus", limits.cpus.map(|value| json!(value)));
    put("cpu_time", limits.cpu_time.map(|value| json!(time(value))));
    put("pids", limits.pids.map(|value| json!(value)));
    put("disk", limits.disk.map(|value| json!(size(value))));
    put("inodes", limits.inodes.map(|value| json!(value)));
    put("open_files", limits.open_files.map(|value| json!(value)));
    put("timeout", limits.timeout.map(|value| json!(time(value))));
    put("grace", limits.grace.map(|value| json!(time(value))));
    put("idle_timeout", limits.idle_timeout.map(|value| json!(time(value))));
    put("silence_timeout", limits.silence_timeout.map(|value| json!(time(value))));
    put("output", limits.output.map(|value| json!(size(value))));
    put("io_weight", limits.io_weight.map(|value| json!(value)));
    Value::Object(body)
}

/// How a server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reached {
    /// By a socket of this host.
    Here,
    ByNetwork,
}

/// What to create. Every field is named here, so that a new one is not forgotten silently.
///
/// A server behind a socket of this host hears all that the command line knows. One behind the
/// network hears neither of the caller's home, which is not its own, nor of variables that are not
/// passed by default: the rest of an environment is full of tokens.
pub(crate) fn create(request: &CreateRequest, reached: Reached) -> Result<Value, Problem> {
    let strange = |error: serde_json::Error| {
        Problem::new(Code::Usage, format!("this cannot be asked of a server: {error}"))
    };
    // Paths that are not text cannot be written as JSON.
    let mut body = serde_json::to_value(request).map_err(strange)?;
    body["limits"] = limits(&request.limits);
    body["ttl"] = json!(request.ttl.map(time));
    match reached {
        Reached::Here => body["home"] = json!(path(&request.home)?),
        Reached::ByNetwork => {
            let passed = |name: &str| name == "SHELL" || skep_policy::is_passed_by_default(name);
            let mut variables = request.host_env.clone();
            variables.retain(|name, _| passed(name));
            body["host_env"] = json!(variables);
            body["home"] = Value::Null;
        }
    }
    if let Some(fields) = body.as_object_mut() {
        // It travels as a header.
        fields.remove("idempotency_key");
    }
    Ok(body)
}

/// What to run.
pub(crate) fn exec(spec: &ExecSpec) -> Value {
    let ExecSpec { argv, env, workdir, tty, limits: wanted } = spec;
    json!({
        "command": argv,
        "env": env,
        "workdir": workdir,
        "tty": tty,
        "limits": limits(wanted),
    })
}

/// What to approve.
pub(crate) fn approve(request: &ApproveRequest) -> Value {
    let ApproveRequest { selection, digest, beside, dry_run, allow_risky, commit, check } = request;
    let mut body = json!({
        "selection": selection,
        "digest": digest,
        "dry_run": dry_run,
        "allow_risky": allow_risky,
        "commit": commit,
        "check": check,
    });
    if let Some(beside) = beside {
        body["beside"] = json!(beside);
    }
    body
}

/// How gc shall go about it. Every field is named, so that a new one is not forgotten silently.
pub(crate) fn gc(request: &GcRequest) -> Value {
    let GcRequest { dry_run, older_than, max_size, archive, only } = request;
    json!({
        "dry_run": dry_run,
        "older_than": older_than.map(time),
        "max_size": max_size.map(size),
        "archive": archive,
        "only": only,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::parse_duration;

    #[test]
    fn limits_come_back_as_they_were() {
        let body = limits(&Limits {
            memory: Some(ByteSize(1 << 20)),
            timeout: Some(Duration::from_millis(1500)),
            grace: Some(Duration::from_nanos(1)),
            ..Limits::default()
        });
        assert_eq!(body["memory"].as_str().unwrap().parse(), Ok(ByteSize(1 << 20)));
        let timeout = parse_duration(body["timeout"].as_str().unwrap()).unwrap();
        assert_eq!(timeout, Duration::from_millis(1500));
        assert_eq!(body["grace"], "1ms");
        assert!(body.get("pids").is_none());
    }
}
