//! What a provider can do, as data: for choosing one, for refusing early, and for the table that
//! `skep providers` shows.

use serde::{Deserialize, Serialize};
use skep_types::{Layer, NetworkMode, Policy, SystemView};

/// What stands between the processes inside and the host, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Boundary {
    /// Nothing: ordinary processes of the caller.
    None,
    /// The host's kernel, with namespaces and filters.
    SharedKernel,
    /// A kernel of its own in user space, which answers the system calls.
    UserSpaceKernel,
    /// A virtual machine with a kernel of its own.
    VirtualMachine,
}

impl Boundary {
    /// The words for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::SharedKernel => "shared-kernel",
            Self::UserSpaceKernel => "user-space-kernel",
            Self::VirtualMachine => "virtual-machine",
        }
    }
}

/// Whether `auto` may take a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    /// For every policy that it satisfies.
    Always,
    /// Only where a layer is required that cheaper ones do not have.
    WhenRequired,
    /// Never: it must be named.
    Named,
}

/// What a provider can do where the host lets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// What stands between inside and host.
    pub boundary: Boundary,
    /// Layers that it can enforce.
    pub layers: Vec<Layer>,
    /// Networks that it can give.
    pub networks: Vec<NetworkMode>,
    /// Whether the system directories can be copy-on-write.
    pub system_cow: bool,
    /// Whether it can show an image instead of the host's system.
    pub images: bool,
    /// Whether an ordinary user can use it.
    pub unprivileged: bool,
    /// Whether `auto` may take it.
    pub selection: Selection,
}

/// Everything that a shared kernel can enforce.
pub const SHARED_KERNEL_LAYERS: &[Layer] = &[
    Layer::Filesystem,
    Layer::Network,
    Layer::Processes,
    Layer::Memory,
    Layer::Cpu,
    Layer::Pids,
    Layer::Disk,
    Layer::Io,
    Layer::Syscalls,
    Layer::Landlock,
];

impl Capabilities {
    /// Why a policy cannot be satisfied by any host with this provider, if so.
    ///
    /// A provider without any boundary has the host's network whatever the defaults say, and its
    /// report says so; only a network that was `typed` is held against it.
    pub fn lacks(&self, policy: &Policy, typed: Option<NetworkMode>) -> Option<String> {
        if let Some(layer) = policy.require.iter().find(|layer| !self.layers.contains(layer)) {
            return Some(format!("it does not enforce `{layer}`, which is required"));
        }
        let network = match self.boundary {
            Boundary::None => {
                typed.or((policy.network == NetworkMode::Allow).then_some(policy.network))
            }
            _ => Some(policy.network),
        };
        if let Some(network) = network.filter(|network| !self.networks.contains(network)) {
            return Some(format!("it cannot give `--net {}`", word_for(network)));
        }
        if policy.image.is_some() && !self.images {
            return Some("it has no images (`--image`)".into());
        }
        if policy.system == SystemView::Cow && !self.system_cow {
            return Some("it has no copy-on-write system directories (`--system cow`)".into());
        }
        None
    }
}

/// The word that is typed for a network mode.
pub fn word_for(mode: NetworkMode) -> String {
    format!("{mode:?}").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespaces() -> Capabilities {
        Capabilities {
            boundary: Boundary::SharedKernel,
            layers: SHARED_KERNEL_LAYERS.to_vec(),
            networks: vec![NetworkMode::None],
            system_cow: false,
            images: false,
            unprivileged: true,
            selection: Selection::Always,
        }
    }

    #[test]
    fn a_policy_that_asks_for_more_is_told_what_is_lacking() {
        let mut policy = Policy::default();
        assert_eq!(namespaces().lacks(&policy, None), None);
        policy.require.insert(Layer::Kernel);
        assert!(namespaces().lacks(&policy, None).is_some_and(|why| why.contains("`kernel`")));
        policy = Policy { network: NetworkMode::Host, ..Policy::default() };
        assert!(namespaces().lacks(&policy, None).is_some_and(|why| why.contains("--net host")));
        let bare = Capabilities { boundary: Boundary::None, ..namespaces() };
        assert_eq!(bare.lacks(&policy, None), None);
        assert!(bare.lacks(&policy, Some(NetworkMode::Host)).is_some());
        policy = Policy { system: SystemView::Cow, ..Policy::default() };
        assert!(namespaces().lacks(&policy, None).is_some_and(|why| why.contains("--system cow")));
    }

    #[test]
    fn boundaries_are_ordered_by_strength() {
        assert!(Boundary::VirtualMachine > Boundary::UserSpaceKernel);
        assert!(Boundary::UserSpaceKernel > Boundary::SharedKernel);
        assert!(Boundary::SharedKernel > Boundary::None);
    }
}
