//! Giving up what a process holds.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
    set_no_new_privs,
};

/// What could not be given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// A set of capabilities.
    Capabilities(&'static str),
    /// The right to gain any.
    NewPrivileges,
}

/// Gives up the capabilities of this process, but for `kept`, and sets `no_new_privs`.
///
/// 1. The ambient set, which hands capabilities to programs without file capabilities.
/// 2. Effective, permitted and inheritable.
/// 3. `no_new_privs`: setuid and file capabilities have no effect from here on.
pub fn drop_held_but(kept: CapabilitySet) -> Result<(), (Held, Errno)> {
    let failed = |set| move |errno| (Held::Capabilities(set), errno);
    match clear_ambient_capability_set() {
        // Before Linux 4.3 there is none.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(errno) => return Err(failed("ambient")(errno)),
    }
    let held = capabilities(None).map_err(failed("permitted"))?;
    let left = CapabilitySets {
        effective: held.effective & kept,
        permitted: held.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, left).map_err(failed("effective, permitted and inheritable"))?;
    set_no_new_privs(true).map_err(|errno| (Held::NewPrivileges, errno))
}
