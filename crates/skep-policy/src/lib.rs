//! Pure decisions with reasons: risk classes, acceptance rules, hide lists, profiles and narrowing.

mod bare;
mod dotgit;
mod link;
mod pattern;
mod risk;

pub use bare::{bare_repositories, in_bare_repository};
pub use dotgit::is_dot_git;
pub use link::{LinkTarget, link_target};
pub use pattern::PatternError;
pub use risk::{ChangeFacts, RiskEntry, RiskTable};
mod acceptance;
mod hidden;
mod selector;
pub use acceptance::AcceptanceRules;
pub use hidden::{HiddenEntry, HiddenKind, HideError, HideRules, SearchPlan};
pub use selector::PathSelector;
mod environment;
mod limits;
pub use environment::{
    EnvironmentTable, InsideFacts, PassedVariable, WithheldVariable, inside_environment,
    withheld_names,
};
pub use limits::{HostFacts, LimitError, Widening, default_limits, narrow, validate, wider};
mod config;
mod narrowing;
pub use config::{
    ChangesSection, ConfigDocument, ConfigError, GcSection, KEYS, LimitsSection, MAX_CONFIG_BYTES,
    MemoryShare, Mentioned, MicrovmSection, MountError, ProfileDocument, ProviderSection,
    SandboxSection, UndoSection, WarnSection, nearest_key, parse_mount,
};
pub use narrowing::widenings;
