//! The vocabulary of skep.
//!
//! Every other crate speaks in these types: what a sandbox is, which states it has, what a policy
//! may say, what a change set holds, how an exec ends, how an error looks. There is no I/O here
//! and no clock, no environment, no randomness: values come in and go out.
//!
//! Two habits run through all of it. Text is parsed once, at the edge, into a type that cannot be
//! wrong ([`SandboxName`], [`RelPath`], [`ByteSize`]); code that holds such a value need not check
//! it again. And names are bytes ([`ByteString`]): Linux has no other kind, so no path, argument or
//! variable is ever decoded on its way through, and every sink for people escapes it
//! ([`escape::visible`]).
//!
//! ```
//! use skep_types::{RelPath, SandboxName};
//! assert_eq!(RelPath::parse(b"src//./main.rs").unwrap().to_string(), "src/main.rs");
//! assert!(RelPath::parse(b"../../etc/passwd").is_err());
//! assert!(SandboxName::parse("fix-login").is_ok());
//! ```
//!
//! What is deliberately not here: decisions (see `skep-policy`), and anything that knows how a
//! thing is stored or shown.

mod approval;
mod bytes;
mod change;
mod egress;
mod enforcement;
mod entry;
pub mod escape;
mod event;
mod exec;
mod hash;
mod id;
mod idle;
mod machine;
mod name;
mod outward;
mod path;
mod policy;
mod problem;
mod quantity;
mod sandbox;
mod state;
mod strays;

pub use approval::{AppliedPath, Approval, ApprovalKind, ApprovalState};
pub use bytes::ByteString;
pub use change::{
    Change, ChangeKind, ChangeSet, Conflict, Drift, Hunk, HunkId, HunkLine, Reviewed, Risk,
    Selection, Totals, Verdict,
};
pub use egress::{
    DescriptorError, EGRESS_WORD, EgressConfig, EgressDescriptors, EgressEntry, EgressLimits,
    EgressPeer, EgressProbe, EgressSecret, EgressStats, EgressVerdict, FromEgress,
    MAX_EGRESS_MESSAGE, SecretValue, ToEgress, egress_message,
};
pub use enforcement::{EnforcementReport, Layer, LayerReport};
pub use entry::{EntryState, SpecialKind};
pub use event::Event;
pub use exec::{EndReason, Exec, ExecEnd, ExecSpec, ExecStats, RefusedCall, TerminalSize};
pub use hash::{ChangeSetDigest, ContentHash, DigestError};
pub use id::{ApprovalId, ExecId, IdError, LayerId, SandboxId};
pub use idle::IdleStop;
pub use machine::{Accelerator, MachineSpec};
pub use name::{NameError, RESERVED_WORDS, SandboxName};
pub use outward::{EgressDeath, EgressPolicy, PlainSecret, PublishedPort, Secret, SecretSource};
pub use path::{RelPath, RelPathError};
pub use policy::{Access, ChangeRules, InsideUser, Limits, Mount, NetworkMode, Policy, SystemView};
pub use problem::{Code, Problem, chain};
pub use quantity::{ByteSize, QuantityError, parse_duration, show_duration, written_duration};
pub use sandbox::{Base, Instant, KeeperIdentity, Sandbox, WorkspaceDriver};
pub use state::{IllegalTransition, SandboxState, TRANSITIONS};
pub use strays::StraysEnded;
