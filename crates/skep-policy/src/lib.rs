//! Pure decisions with reasons: risk classes, acceptance rules, hide lists, profiles and narrowing.
//!
//! Everything skep decides without touching anything is decided here. Values come in, a decision
//! with its reason comes out; there is no I/O, no clock, no environment. Whoever acts on a
//! decision (the workspace, the keeper, the command line) lives elsewhere, so each rule can be
//! tested by calling a function.
//!
//! - [`RiskTable`]: how careful to be with a change, by its final state.
//! - [`AcceptanceRules`]: which changes may be approved at all, and by which rule.
//! - [`PathSelector`]: which paths a person means on the command line.
//! - [`HideRules`]: which files of the project are shown as absent inside.
//! - [`Settings`]: built-in values, profile, user's file, project's file and command line put
//!   together, each value with its [`Origin`]. A project's file may only narrow.
//! - [`widenings`]: in what one policy lets more through than another; for a project's file, and
//!   for an agent that asks for a child sandbox.
//! - [`inside_environment`]: the variables programs inside start with.
//! - [`egress`]: what can be reached: hosts, rules, kinds of addresses, verdicts.
//! - [`narrow`] and [`validate`]: limits of a part are never more than those of the whole.
//!
//! The lists themselves are data, in `resources/*.toml`, embedded at build time. Every entry has
//! a reason, and (where it matches paths or names) a sample that a test tries at the root and
//! five directories down. To change what counts as risky or secret, edit the data.
//!
//! Two rules run through all of it. What *takes away* (hide, deny, never) matches generously:
//! at any depth, everything below included, letter case and invisible characters ignored where
//! that could deceive. What *gives* (allow, select) matches exactly what it says. And where data
//! or a rule cannot be read, the answer is the strict one.
//!
//! ```
//! use skep_policy::{ConfigDocument, HideRules, Settings, Sources};
//! use skep_types::RelPath;
//!
//! let rules = HideRules::new::<&str>(&[], &[])?;
//! let path = RelPath::parse(b"services/api/.env.production")?;
//! assert_eq!(rules.hides(&path, false), Some("variables with passwords and tokens"));
//!
//! let project = ConfigDocument::parse(b"[sandbox]\nnetwork = \"host\"", "skep.toml")?;
//! let refused = Settings::resolve(&Sources { project: Some(&project), ..Sources::default() });
//! assert_eq!(
//!     refused.unwrap_err().to_string(),
//!     "the project's `skep.toml` may only narrow: \
//!      `sandbox.network` would widen from `none` to `host`",
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What is deliberately not here: whether a limit *can* be enforced on a host (that is found by
//! probes, in `skep-confine`), and any look into DNS (that is `skep-egress`).

mod acceptance;
mod bare;
mod books;
mod config;
mod dotgit;
mod draft;
pub mod egress;
mod environment;
mod hidden;
mod limits;
mod link;
mod names;
mod narrowing;
mod origins;
mod outward;
mod pattern;
mod profiles;
mod risk;
mod rows;
mod selector;
mod settings;
mod system_secrets;

pub use acceptance::{AcceptanceRules, RulesApart, keep_rules};
pub use bare::{bare_repositories, in_bare_repository};
pub use books::{GitBooks, moves_reference};
pub use config::{
    ChangesSection, ConfigDocument, ConfigError, EgressSection, GcSection, KEYS, LimitsSection,
    MAX_CONFIG_BYTES, MemoryShare, Mentioned, MicrovmSection, MountError, PoolSection,
    ProfileDocument, ProviderSection, SandboxSection, UndoSection, WarnSection, nearest_key,
    parse_mount,
};
pub use config::{
    InForce, Kind, ProjectMay, QuotaSection, Setting, StoreSection, TABLE, config_file,
    example_file, json_schema, reference_page,
};
pub use dotgit::is_dot_git;
pub use environment::{
    EnvironmentTable, InsideFacts, PassedVariable, WithheldVariable, inside_environment,
    is_passed_by_default, withheld_names,
};
pub use hidden::{HiddenEntry, HiddenKind, HideError, HideRules, SearchPlan};
pub use limits::{HostFacts, LimitError, Widening, default_limits, narrow, validate, wider};
pub use link::{LinkTarget, link_target};
pub use narrowing::widenings;
pub use origins::{Origin, Origins, SettingRow};
pub use outward::{
    OutwardError, canonical_rules, parse_plain_secret, parse_published_port, parse_secret,
    unreachable_secret, with_own_presets,
};
pub use pattern::{PatternError, is_wild};
pub use profiles::DEFAULT_PROFILE;
pub use risk::{ChangeFacts, RiskEntry, RiskTable, TEXT_NO_MORE, TEXT_NOT_SHOWN, hides};
pub use selector::PathSelector;
pub use settings::{Quota, Retention, Settings, SettingsError, Sources, StoreSettings};
pub use system_secrets::{NameMatch, SystemSecret, SystemSecretsError, system_secrets};
