//! Receipts: a statement of what an approval did, signed with this installation's own key.
//!
//! The statement has the shape of in-toto's, the envelope that of DSSE: the signature covers the
//! payload type and the exact payload bytes, so nothing is re-encoded to verify it.

use crate::Engine;
use crate::problems::{OrProblem, io_problem};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use serde_json::{Value, json};
use skep_types::{AppliedPath, Approval, ApprovalId, ApprovalKind, Code, EntryState, Problem};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
const PREDICATE_TYPE: &str = "urn:skep:approval:v1";

impl Engine {
    pub(crate) fn signed_receipt(&self, id: &ApprovalId) -> Result<Value, Problem> {
        let approval = self.store.find_approval(id.as_str()).or_problem()?;
        let statement = self.statement(&approval)?;
        let key = self.receipt_key()?;
        Ok(seal(&key, &statement))
    }

    fn statement(&self, approval: &Approval) -> Result<Value, Problem> {
        // The row of a deleted sandbox stays for a while; after that its base is not known.
        let sandbox = self.store.sandbox(&approval.sandbox).ok();
        let base = sandbox.as_ref().map(|sandbox| {
            json!({
                "commit": sandbox.base.commit,
                "created_at": sandbox.created_at,
            })
        });
        let mut execs = Vec::new();
        let mut ids: Vec<_> = approval.paths.iter().filter_map(|path| path.exec.clone()).collect();
        ids.sort();
        ids.dedup();
        for id in ids {
            let Ok(exec) = self.exec_by(id.as_str()) else { continue };
            execs.push(json!({
                "id": exec.id,
                "command": exec.spec.argv,
                "started_at": exec.started_at,
                "exit_code": exec.end.as_ref().map(|end| end.exit_code),
                "reason": exec.end.as_ref().map(|end| end.reason),
            }));
        }
        let undoes = match &approval.kind {
            ApprovalKind::Approve => None,
            ApprovalKind::Undo { of } => Some(of),
        };
        Ok(json!({
            "_type": STATEMENT_TYPE,
            "subject": approval.paths.iter().filter_map(subject).collect::<Vec<_>>(),
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "approval": approval.id,
                "undoes": undoes,
                "state": approval.state,
                "sandbox": { "id": approval.sandbox, "name": approval.sandbox_name },
                "project": approval.project,
                "provider": sandbox.as_ref().map(|sandbox| &sandbox.provider),
                "base": base,
                "digest": approval.digest,
                "selection": approval.selection,
                "execs": execs,
                "approver": approval.approver,
                "at": approval.at,
                "commit": approval.commit,
                "paths": approval.paths,
            },
        }))
    }

    /// The key of this installation, made when it is first needed.
    fn receipt_key(&self) -> Result<SigningKey, Problem> {
        let path = self.layout().receipt_key();
        let failed = |error: &io::Error| io_problem("use the receipt key", &path, error);
        if !path.exists() {
            let mut random = [0; 40];
            for part in random.chunks_mut(10) {
                part.copy_from_slice(&(self.config.random)());
            }
            make_key(&path, &random[..32]).map_err(|error| failed(&error))?;
        }
        let bytes = std::fs::read(&path).map_err(|error| failed(&error))?;
        let bytes: [u8; 32] = bytes.try_into().map_err(|_| {
            let message = format!("`{}` is not a receipt key (32 bytes)", path.display());
            Problem::new(Code::Io, message).hint("move it away; a new one is made")
        })?;
        Ok(SigningKey::from_bytes(&bytes))
    }
}

/// Whole or not at all: of two that make it at the same time, one key is used by both.
fn make_key(path: &Path, secret: &[u8]) -> io::Result<()> {
    let new = path.with_extension(format!("{}", std::process::id()));
    let _ = std::fs::remove_file(&new);
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(secret)?;
    file.sync_all()?;
    let linked = std::fs::hard_link(&new, path);
    std::fs::remove_file(&new)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// What stands in the project afterwards. A removal has no subject; it is among the paths.
fn subject(applied: &AppliedPath) -> Option<Value> {
    let digest = match &applied.after {
        EntryState::File { hash, .. } => hash.to_string(),
        EntryState::Symlink { target } => {
            skep_types::ContentHash::of(target.as_bytes()).to_string()
        }
        EntryState::Absent | EntryState::Dir { .. } | EntryState::Special { .. } => return None,
    };
    Some(json!({ "name": applied.path.to_string(), "digest": { "blake3": digest } }))
}

/// Signs a statement.
fn seal(key: &SigningKey, statement: &Value) -> Value {
    let payload = statement.to_string();
    let signature = key.sign(&signed_bytes(PAYLOAD_TYPE, payload.as_bytes()));
    let public = key.verifying_key().to_bytes();
    json!({
        "payloadType": PAYLOAD_TYPE,
        "payload": STANDARD.encode(&payload),
        "signatures": [{ "keyid": key_id(&public), "sig": STANDARD.encode(signature.to_bytes()) }],
        "publicKey": { "type": "ed25519", "key": STANDARD.encode(public) },
        "statement": statement,
    })
}

fn key_id(public: &[u8; 32]) -> String {
    blake3::hash(public).to_hex().chars().take(16).collect()
}

/// DSSE's pre-authentication encoding.
fn signed_bytes(kind: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

/// The statement in a receipt, if the signature over it was made with `public` (or, without one,
/// with the key the receipt itself names, which proves only that it was not altered).
pub fn verify_receipt(receipt: &Value, public: Option<&[u8; 32]>) -> Result<Value, Problem> {
    let wrong =
        |why: &str| Problem::new(Code::Conflict, format!("the receipt is not valid: {why}"));
    let text = |pointer: &str| receipt.pointer(pointer).and_then(Value::as_str);
    let bytes = |pointer: &str| {
        text(pointer)
            .and_then(|text| STANDARD.decode(text).ok())
            .ok_or_else(|| wrong(&format!("`{pointer}` is missing or no base64")))
    };
    let named: [u8; 32] = bytes("/publicKey/key")?
        .try_into()
        .map_err(|_| wrong("the public key has another length"))?;
    if public.is_some_and(|public| *public != named) {
        return Err(wrong("it was signed with another key"));
    }
    let key = VerifyingKey::from_bytes(&named).map_err(|_| wrong("the public key is none"))?;
    let signature = Signature::from_slice(&bytes("/signatures/0/sig")?)
        .map_err(|_| wrong("the signature is none"))?;
    let kind = text("/payloadType").ok_or_else(|| wrong("it has no payload type"))?;
    let payload = bytes("/payload")?;
    key.verify_strict(&signed_bytes(kind, &payload), &signature)
        .map_err(|_| wrong("the signature does not fit"))?;
    let statement: Value =
        serde_json::from_slice(&payload).map_err(|_| wrong("the payload is no JSON"))?;
    match receipt.get("statement") {
        Some(shown) if *shown != statement => {
            Err(wrong("it shows another statement than it signs"))
        }
        _ => Ok(statement),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_verifies_until_anything_in_it_changes() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let statement = json!({ "_type": STATEMENT_TYPE, "subject": [], "predicate": { "a": 1 } });
        let receipt = seal(&key, &statement);
        let public = key.verifying_key().to_bytes();
        assert_eq!(verify_receipt(&receipt, Some(&public)).unwrap(), statement);
        assert_eq!(verify_receipt(&receipt, None).unwrap(), statement);
        assert!(verify_receipt(&receipt, Some(&[1; 32])).is_err());
        let other = json!({ "_type": STATEMENT_TYPE, "subject": [], "predicate": { "a": 2 } });
        for (pointer, value) in [
            ("/payload", json!(STANDARD.encode(other.to_string()))),
            ("/payloadType", json!("text/plain")),
            ("/statement", other),
            ("/signatures/0/sig", json!(STANDARD.encode([3; 64]))),
        ] {
            let mut changed = receipt.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            assert!(verify_receipt(&changed, Some(&public)).is_err(), "{pointer}");
        }
    }

    #[test]
    fn a_key_is_made_once_and_private() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("receipt-key");
        make_key(&path, &[1; 32]).unwrap();
        make_key(&path, &[2; 32]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [1; 32]);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
