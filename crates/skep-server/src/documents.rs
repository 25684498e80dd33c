//! Answers as JSON: what the engine says, with the keys that CLI.md promises.
//!
//! The types of the vocabulary already serialise to most of them. Added here is what the command
//! line shows and the types do not hold in that form; left out is what must not leave the host.

use serde::Serialize;
use serde_json::{Value, json};
use skep_engine::api::{LogChunk, SandboxView};
use skep_types::{Change, ChangeSet, Code, EntryState, Exec, Problem, RelPath, Sandbox};

pub(crate) type Document = Result<Value, Problem>;

/// Anything that needs nothing added.
pub(crate) fn plain(value: &impl Serialize) -> Document {
    let value = serde_json::to_value(value).map_err(|error| {
        Problem::new(Code::Internal, format!("cannot write the answer as JSON: {error}"))
    })?;
    Ok(skep_client::wire::out(value))
}

/// A sandbox as remembered.
pub(crate) fn sandbox(sandbox: &Sandbox) -> Document {
    let mut document = plain(sandbox)?;
    document["base_commit"] = json!(sandbox.base.commit);
    document["profile"] = json!(sandbox.policy.profile);
    // Values may be secrets; whoever set them knows them.
    document["policy"]["env"] = json!({});
    Ok(document)
}

/// A sandbox that was looked at.
pub(crate) fn view(view: &SandboxView) -> Document {
    let mut document = sandbox(&view.sandbox)?;
    let largest: Result<Vec<_>, _> = view
        .largest
        .iter()
        .map(|(path, bytes)| plain(&json!({ "path": path, "bytes": bytes })))
        .collect();
    document["upper_bytes"] = json!(view.upper_bytes);
    document["upper_inodes"] = json!(view.upper_inodes);
    document["base_bytes"] = json!(view.base_bytes);
    document["system_bytes"] = json!(view.system_bytes);
    document["largest"] = Value::Array(largest?);
    document["running"] = json!(view.running);
    document["facts"] = json!(view.facts);
    document["warnings"] = json!(view.warnings);
    Ok(document)
}

/// An exec: as remembered, with its end spread out.
pub(crate) fn exec(exec: &Exec) -> Document {
    let mut document = plain(exec)?;
    let end = exec.end.as_ref();
    document["exec"] = json!(exec.id);
    document["command"] = plain(&exec.spec.argv)?;
    document["running"] = json!(end.is_none());
    document["exit_code"] = json!(end.map(|end| end.exit_code));
    document["signal"] = json!(end.and_then(|end| end.signal));
    document["reason"] = json!(end.map(|end| end.reason));
    document["message"] = json!(end.and_then(|end| end.message.clone()));
    document["limits_hit"] = json!(end.map(|end| end.limits_hit.clone()).unwrap_or_default());
    document["truncated"] = json!(end.is_some_and(|end| end.truncated));
    document["stats"] = json!(end.map(|end| end.stats));
    // Values may be secrets; whoever set them knows them.
    document["spec"]["env"] = json!({});
    Ok(document)
}

/// Kept output.
pub(crate) fn chunk(chunk: &LogChunk) -> Value {
    let bytes = chunk.bytes.as_bytes();
    let mut document = json!({ "offset": chunk.offset, "stream": chunk.stream });
    match std::str::from_utf8(bytes) {
        Ok(text) => document["text"] = json!(text),
        Err(_) => document["b64"] = json!(skep_client::wire::base64(bytes)),
    }
    document
}

/// An entry of a directory.
pub(crate) fn entry(path: &RelPath, state: &EntryState) -> Document {
    let mut document = plain(state)?;
    document["mode"] = json!(state.git_mode());
    let named = plain(&json!({ "path": path }))?;
    if let (Some(document), Value::Object(named)) = (document.as_object_mut(), named) {
        document.extend(named);
    }
    Ok(document)
}

/// A change set.
pub(crate) fn change_set(set: &ChangeSet) -> Document {
    let mut document = plain(set)?;
    for (change, shown) in
        set.changes.iter().zip(document["changes"].as_array_mut().into_iter().flatten())
    {
        add_to_change(change, shown);
    }
    Ok(document)
}

fn add_to_change(change: &Change, document: &mut Value) {
    document["old_mode"] = json!(change.old.git_mode());
    document["new_mode"] = json!(change.new.git_mode());
    document["size"] = match &change.new {
        EntryState::File { size, .. } => json!(size),
        EntryState::Symlink { target } => json!(target.as_bytes().len()),
        _ => json!(0),
    };
}
