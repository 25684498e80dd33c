//! A sandbox, as `show`, `ls`, `create` and the lifecycle commands print it.

use super::layer::{LayerView, enforcement};
use super::text_and_bytes;
use serde::Serialize;
use skep_engine::api::{SandboxView, SnapshotView};
use skep_types::{Access, Mount, NetworkMode, Policy, PublishedPort, Sandbox};
use std::collections::BTreeMap;

/// The document.
#[derive(Debug, Serialize)]
pub(crate) struct SandboxDocument<'a> {
    id: &'a str,
    name: &'a str,
    state: &'static str,
    state_reason: Option<&'a str>,
    provider: &'a str,
    project: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    project_bytes: Option<String>,
    driver: &'static str,
    base_commit: Option<&'a str>,
    profile: &'a str,
    /// Where commands start that name no directory, if it was said.
    workdir: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workdir_bytes: Option<String>,
    mounts: Vec<MountView>,
    network: NetworkView<'a>,
    changes: RulesView<'a>,
    labels: &'a BTreeMap<String, String>,
    created_at: &'a str,
    updated_at: &'a str,
    version: u64,
    enforcement: BTreeMap<&'static str, LayerView>,
    #[serde(flatten)]
    computed: Option<Computed<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshots: Option<Vec<SnapshotDocument<'a>>>,
}

/// What of the host is mounted inside, beside the project.
#[derive(Debug, Serialize)]
struct MountView {
    source: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_bytes: Option<String>,
    target: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_bytes: Option<String>,
    mode: Access,
}

impl MountView {
    fn new(mount: &Mount) -> Self {
        let (source, source_bytes) = text_and_bytes(mount.source.as_bytes());
        let (target, target_bytes) = text_and_bytes(mount.target.as_bytes());
        Self { source, source_bytes, target, target_bytes, mode: mount.access }
    }
}

/// Globs of changes that may, and may not, be approved.
#[derive(Debug, Serialize)]
struct RulesView<'a> {
    allow: &'a [String],
    deny: &'a [String],
}

/// What can be reached, what is put in on the way, and what leads in. Never a value.
#[derive(Debug, Serialize)]
struct NetworkView<'a> {
    mode: NetworkMode,
    allow: &'a [String],
    secrets: Vec<SecretView<'a>>,
    publish: &'a [PublishedPort],
}

#[derive(Debug, Serialize)]
struct SecretView<'a> {
    name: &'a str,
    source: String,
    hosts: &'a [String],
    /// Whether the inside has its plain value.
    plain: bool,
}

impl<'a> NetworkView<'a> {
    fn new(policy: &'a Policy) -> Self {
        let egress = &policy.egress;
        let edge = egress.secrets.iter().map(|secret| SecretView {
            name: &secret.name,
            source: secret.source.to_string(),
            hosts: &secret.hosts,
            plain: false,
        });
        let plain = egress.secret_env.iter().map(|secret| SecretView {
            name: &secret.name,
            source: secret.source.to_string(),
            hosts: &[],
            plain: true,
        });
        let secrets = edge.chain(plain).collect();
        Self { mode: policy.network, allow: &egress.allow, secrets, publish: &egress.publish }
    }
}

/// What is only known after looking.
#[derive(Debug, Serialize)]
struct Computed<'a> {
    upper_bytes: u64,
    upper_inodes: u64,
    base_bytes: u64,
    system_bytes: u64,
    largest: Vec<LargestView>,
    running: Vec<&'a str>,
    warnings: &'a [String],
    provider_facts: &'a BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct LargestView {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    bytes: u64,
}

/// A snapshot or template.
#[derive(Debug, Serialize)]
pub(crate) struct SnapshotDocument<'a> {
    label: &'a str,
    sandbox: &'a str,
    created_at: &'a str,
    layers: usize,
}

impl<'a> SandboxDocument<'a> {
    /// Of a sandbox as remembered.
    pub(crate) fn new(sandbox: &'a Sandbox) -> Self {
        let (project, project_bytes) = text_and_bytes(sandbox.project.as_bytes());
        let workdir = sandbox.policy.workdir.as_ref();
        let (workdir, workdir_bytes) = workdir.map(|path| text_and_bytes(path.as_bytes())).unzip();
        Self {
            id: sandbox.id.as_str(),
            name: sandbox.name.as_str(),
            state: sandbox.state.as_str(),
            state_reason: sandbox.state_reason.as_deref(),
            provider: &sandbox.provider,
            project,
            project_bytes,
            driver: sandbox.driver.as_str(),
            base_commit: sandbox.base.commit.as_deref(),
            profile: &sandbox.policy.profile,
            workdir,
            workdir_bytes: workdir_bytes.flatten(),
            mounts: sandbox.policy.mounts.iter().map(MountView::new).collect(),
            network: NetworkView::new(&sandbox.policy),
            changes: RulesView {
                allow: &sandbox.policy.allow_changes,
                deny: &sandbox.policy.deny_changes,
            },
            labels: &sandbox.labels,
            created_at: &sandbox.created_at,
            updated_at: &sandbox.updated_at,
            version: sandbox.version,
            enforcement: enforcement(&sandbox.enforcement),
            computed: None,
            snapshots: None,
        }
    }

    /// Of a sandbox that was looked at.
    pub(crate) fn of_view(view: &'a SandboxView) -> Self {
        let largest = |(path, bytes): &(skep_types::RelPath, u64)| {
            let (path, path_bytes) = text_and_bytes(path.as_bytes());
            LargestView { path, path_bytes, bytes: *bytes }
        };
        let computed = Computed {
            upper_bytes: view.upper_bytes,
            upper_inodes: view.upper_inodes,
            base_bytes: view.base_bytes,
            system_bytes: view.system_bytes,
            largest: view.largest.iter().map(largest).collect(),
            running: view.running.iter().map(skep_types::ExecId::as_str).collect(),
            warnings: &view.warnings,
            provider_facts: &view.facts,
        };
        Self { computed: Some(computed), ..Self::new(&view.sandbox) }
    }

    /// With its snapshots.
    pub(crate) fn snapshots(mut self, snapshots: &'a [SnapshotView]) -> Self {
        self.snapshots = Some(snapshots.iter().map(SnapshotDocument::new).collect());
        self
    }
}

impl<'a> SnapshotDocument<'a> {
    /// Of a snapshot or template.
    pub(crate) fn new(view: &'a SnapshotView) -> Self {
        Self {
            label: &view.label,
            sandbox: &view.sandbox,
            created_at: &view.created_at,
            layers: view.layers,
        }
    }
}
