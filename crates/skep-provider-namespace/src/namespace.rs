//! Sandboxes in namespaces that the keeper makes.

use skep_confine::cgroup::ParentName;
use skep_confine::probe::{Probe, ProbeContext};
use skep_keeper::CGROUP_PARENT;
use skep_keeper::kept::{Kind, probe_namespaces};
use skep_keeper::vessel::Vessel;
use skep_provider::capabilities::{SHARED_KERNEL_LAYERS, Selection};
use skep_provider::{Boundary, Capabilities, Finding, Look, ProviderError, RunSpec};
use skep_types::NetworkMode;
use std::path::PathBuf;

/// Runs sandboxes in namespaces of this host.
#[derive(Debug)]
pub struct Namespace {
    state_dir: PathBuf,
    program_directories: Vec<PathBuf>,
    user_name: String,
    egress: bool,
}

impl Namespace {
    /// For sandboxes whose state lies in `state_dir`. The other two are for `doctor`: where programs
    /// are looked for, and whose subordinate ids count.
    pub fn new(state_dir: PathBuf, program_directories: Vec<PathBuf>, user_name: String) -> Self {
        Self { state_dir, program_directories, user_name, egress: false }
    }

    /// This program, executed anew with the word for it, becomes an egress process; so there can be
    /// a way out (`--net allow`).
    pub fn with_egress(self) -> Self {
        Self { egress: true, ..self }
    }
}

impl Kind for Namespace {
    fn name(&self) -> &'static str {
        "namespace"
    }

    fn capabilities(&self, _: &str) -> Capabilities {
        let mut capabilities = in_namespaces();
        if self.egress {
            capabilities.networks.push(NetworkMode::Allow);
        }
        capabilities
    }

    fn probe(&self, word: &str) -> Result<(), ProviderError> {
        probe_namespaces(word)
    }

    fn look(&self, word: &str) -> Result<Look, ProviderError> {
        self.probe(word).map(|()| Look::whole("made a user namespace and mounted in it"))
    }

    fn findings(&self) -> Vec<Finding> {
        let Ok(cgroup_parent) = ParentName::parse(CGROUP_PARENT) else { return Vec::new() };
        let probes = skep_confine::probe::run_all(&ProbeContext {
            scratch: self.state_dir.clone(),
            program_directories: self.program_directories.clone(),
            user_name: self.user_name.clone(),
            cgroup_parent,
        });
        let finding = |probe: Probe| Finding {
            name: probe.name.to_owned(),
            ok: probe.ok,
            tried: probe.tried,
            how: probe.how,
            reason: probe.reason,
            remedy: probe.remedy,
        };
        let mut findings: Vec<Finding> = probes.into_iter().map(finding).collect();
        if self.egress {
            findings.push(redirect());
        }
        findings
    }

    fn vessel(&self, _: &RunSpec) -> Result<Vessel, ProviderError> {
        Ok(Vessel::Namespaces)
    }

    fn makes_files(&self) -> bool {
        false
    }
}

/// Whether connections inside can be led to the proxy, found by setting the rules for it.
fn redirect() -> Finding {
    let missing = skep_keeper::rules_unavailable();
    let (reason, remedy) = missing.unzip();
    let reason = reason.map(|reason| {
        format!(
            "{reason}; without it an interface of user space (`/dev/net/tun`) leads to the proxy, and where there is none only the ports that rules name"
        )
    });
    Finding {
        name: "nft-redirect".into(),
        ok: reason.is_none(),
        tried: true,
        how: "set NAT rules in a network namespace of its own, for `--net allow`".into(),
        reason,
        remedy,
    }
}

/// What can be done in namespaces, whoever makes them.
pub(crate) fn in_namespaces() -> Capabilities {
    Capabilities {
        boundary: Boundary::SharedKernel,
        layers: SHARED_KERNEL_LAYERS.to_vec(),
        networks: vec![NetworkMode::None, NetworkMode::Host],
        system_cow: true,
        images: false,
        unprivileged: true,
        selection: Selection::Always,
    }
}
