//! What a sandbox may reach: rules, addresses, verdicts.
//!
//! A [`Rule`] is parsed once; [`RuleSet::decide`] answers a [`Question`] with a [`Verdict`] that
//! carries its reason ([`reason`]) and the way to allow it. The same [`Host`] form is used by
//! the command line, the configuration and the proxy, so that one spelling cannot be allowed and
//! another one dialled. Nothing is resolved or dialled here.
//!
//! ```
//! use skep_policy::egress::{Name, Protocol, Question, RuleSet};
//! let rules = RuleSet::parse(&["*.example.org", "@github"])?;
//! let name = Name::parse("API.example.org.").unwrap();
//! let question = Question { name: Some(&name), address: None, port: 443, protocol: Protocol::Tls };
//! assert!(rules.decide(&question).is_allowed());
//! # Ok::<(), skep_policy::egress::RuleError>(())
//! ```

mod class;
mod decide;
mod host;
mod narrowing;
mod placeholder;
mod presets;
pub mod reason;
mod rule;

pub use class::{AddressClass, classify, is_metadata_name};
pub use decide::{LabelledRule, Question, RuleSet, Verdict};
pub use host::{Host, HostError, Name, parse_port};
pub use narrowing::{added_rules, covers};
pub use placeholder::{SHORTEST, placeholder};
pub use presets::{Preset, presets};
pub use rule::{Network, Ports, Protocol, Rule, RuleError, Target};
