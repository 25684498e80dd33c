//! A sandbox that was made ahead, before anybody asked for it, becomes somebody's.
//!
//! What it was made from is what was asked for, or it would not be given away. What it could not know
//! is what it is called, which variables its commands get, and what the project is now: until now
//! nothing was written inside, so that the project of this moment is the base.

use super::Keeper;
use super::owners::ExecsSoFar;
use crate::failure::Failure;
use crate::protocol::Reply;
use serde::{Deserialize, Serialize};
use skep_types::{Base, ByteString, SandboxName};
use skep_workspace::WorkspaceSpec;
use std::collections::BTreeMap;
use std::time::Instant;

/// What becomes of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Adoption {
    /// What it is called from now on. The host name inside stays.
    pub name: SandboxName,
    /// What its commands find in their environment.
    pub environment: BTreeMap<String, ByteString>,
    /// What the project is.
    pub base: Base,
}

impl Keeper<'_> {
    /// Once, and only while nothing has ever run in it.
    pub(super) fn operate_adopt(&mut self, client: u64, adoption: Adoption) {
        let state = &mut self.state;
        let unused = matches!(state.so_far, ExecsSoFar::None) && state.execs.is_empty();
        let waits = state.adoption.is_none() && unused && !state.frozen && !state.stopping;
        let answer = match waits {
            true => {
                state.adoption = Some(adoption);
                state.idle_since = Some(Instant::now());
                Ok(Reply::Done)
            }
            false => Err(Failure::invalid("it is somebody's already")),
        };
        self.reply(client, &answer);
    }

    /// What it is called.
    pub(super) fn name(&self) -> &SandboxName {
        self.state.adoption.as_ref().map_or(&self.spec.name, |adoption| &adoption.name)
    }

    /// What commands find in their environment, before the way out adds to it.
    pub(super) fn given_environment(&self) -> &BTreeMap<String, ByteString> {
        let adoption = self.state.adoption.as_ref();
        adoption.map_or(&self.spec.environment, |adoption| &adoption.environment)
    }

    /// Where base bytes are captured to and from.
    pub(super) fn workspace(&self) -> WorkspaceSpec {
        let workspace = crate::workspace_of(self.spec);
        match &self.state.adoption {
            Some(adoption) => WorkspaceSpec { base: adoption.base.clone(), ..workspace },
            None => workspace,
        }
    }
}
