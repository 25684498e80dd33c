//! Files of a workspace: read, written, listed, moved, removed, packed, watched.
//!
//! Beyond the [`Api`](skep_engine::api::Api): the command line has `skep cp` for these, which means
//! files of the server's host.

use crate::connection::{Client, escaped, read};
use crate::lower;
use bytes::Bytes;
use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use skep_engine::api::{Answer, CopyReport};
use skep_types::{RelPath, SandboxId};

/// What stands at a path of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Entry {
    /// Below the project.
    pub path: RelPath,
    /// `file`, `dir`, `symlink` or `special`.
    pub kind: String,
    /// Type and permission bits, as git writes them.
    pub mode: Option<String>,
    /// Of a file.
    pub size: Option<u64>,
}

fn target(id: &SandboxId, what: &str, path: &RelPath) -> Answer<String> {
    let path = escaped(lower::path(path.as_path())?);
    Ok(format!("/v1/sandboxes/{id}/files{what}?path={path}"))
}

impl Client {
    /// The bytes of a file.
    pub fn read_file(&self, id: &SandboxId, path: &RelPath) -> Answer<Bytes> {
        self.request(Method::GET, &target(id, "", path)?, None)
    }

    /// Writes a file into a directory that is there.
    pub fn write_file(&self, id: &SandboxId, path: &RelPath, bytes: Bytes) -> Answer<CopyReport> {
        read(self.put(&target(id, "", path)?, "application/octet-stream", bytes)?)
    }

    /// What is in a directory.
    pub fn list_files(&self, id: &SandboxId, path: &RelPath) -> Answer<Vec<Entry>> {
        self.get(&target(id, "/list", path)?)
    }

    /// What stands at a path; a link is not followed.
    pub fn stat_file(&self, id: &SandboxId, path: &RelPath) -> Answer<Entry> {
        self.get(&target(id, "/stat", path)?)
    }

    /// Makes a directory; with `parents` those above it too.
    pub fn make_directory(&self, id: &SandboxId, path: &RelPath, parents: bool) -> Answer<Entry> {
        let body = json!({ "path": path, "parents": parents });
        self.post(&format!("/v1/sandboxes/{id}/files/directory"), &body)
    }

    /// Moves an entry to a path where nothing is.
    pub fn move_file(&self, id: &SandboxId, from: &RelPath, to: &RelPath) -> Answer<CopyReport> {
        let body = json!({ "from": from, "to": to });
        self.post(&format!("/v1/sandboxes/{id}/files/move"), &body)
    }

    /// Removes an entry; a directory that is not empty only with `recursive`.
    pub fn remove_file(
        &self,
        id: &SandboxId,
        path: &RelPath,
        recursive: bool,
    ) -> Answer<CopyReport> {
        let target = format!("{}&recursive={recursive}", target(id, "", path)?);
        read(self.request(Method::DELETE, &target, None)?)
    }

    /// A file, or what is in a directory, as a tar.
    pub fn pack_files(&self, id: &SandboxId, path: &RelPath) -> Answer<Bytes> {
        self.request(Method::GET, &target(id, "/tar", path)?, None)
    }

    /// Puts what is in a tar below a directory.
    pub fn unpack_files(&self, id: &SandboxId, path: &RelPath, tar: Bytes) -> Answer<CopyReport> {
        read(self.put(&target(id, "/tar", path)?, "application/x-tar", tar)?)
    }

    /// Who one is to the server: a name, a role, and the only sandbox for an agent.
    pub fn who_am_i(&self) -> Answer<Value> {
        self.get("/v1/whoami")
    }
}
