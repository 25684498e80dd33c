//! Settings in force: built-in values, a profile, the user's file, the project's file and the
//! command line, put together in that order.
//!
//! Each source may say anything except the project's file: it comes with the code, which is not
//! trusted, so it may only narrow.

use crate::acceptance::AcceptanceRules;
use crate::config::{
    ConfigDocument, GcSection, PoolSection, QuotaSection, ServerSection, StoreSection,
};
use crate::draft::{Draft, Lists};
use crate::egress::{RuleError, RuleSet};
use crate::hidden::{HideError, HideRules};
use crate::limits::{HostFacts, LimitError, Widening, default_limits, share, validate};
use crate::narrowing::widenings;
use crate::origins::{Origin, Origins};
use crate::pattern::PatternError;
use crate::profiles::{DEFAULT_PROFILE, Profiles};
use skep_types::{ByteSize, Policy};
use std::collections::BTreeMap;
use std::time::Duration;

/// Why there are no settings.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// No such profile.
    #[error("there is no profile `{name}`; known are: {known}")]
    UnknownProfile {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A profile that builds on itself.
    #[error("profile `{0}` builds on itself")]
    ProfileCycle(String),
    /// A user's profile with a built-in name.
    #[error("profile `{0}` is built in and cannot be redefined; give yours another name")]
    ProfileRedefined(String),
    /// A setting that is not the project's to make.
    #[error("the project's `skep.toml` may not set `{0}`; it may only narrow the sandbox")]
    NotForProjects(String),
    /// A setting of the project's that widens.
    #[error("the project's `skep.toml` may only narrow: {}", join(.0))]
    Widens(Vec<Widening>),
    /// A rule that is none.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// A user's preset with a built-in name.
    #[error("preset `@{0}` is built in and cannot be redefined; give yours another name")]
    PresetRedefined(String),
    /// A limit that is none.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A glob that is none.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// Data that comes with skep; tests make sure that this cannot happen.
    #[error("cannot read built-in data: {0}")]
    BuiltinData(String),
}

fn join(widenings: &[Widening]) -> String {
    widenings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl From<HideError> for SettingsError {
    fn from(error: HideError) -> Self {
        match error {
            HideError::Pattern(error) => Self::Pattern(error),
        }
    }
}

/// Everything that can be set, typed and resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The policy of a sandbox made now.
    pub policy: Policy,
    /// Wall clock of execs over the API that name none.
    pub api_timeout: Option<Duration>,
    /// Presets of the user's own, by name without the `@`.
    pub egress_presets: BTreeMap<String, Vec<String>>,
    /// An upper larger than this is remarked upon.
    pub warn_upper_size: ByteSize,
    /// How many approvals can be undone.
    pub undo_keep: u64,
    /// For how long.
    pub undo_age: Duration,
    /// Approved sandboxes go after this.
    pub approved_age: Duration,
    /// Rejected ones after this.
    pub rejected_age: Duration,
    /// All sandboxes together.
    pub total_size: ByteSize,
    /// Warn when this much of `total_size` is used.
    pub total_warn_percent: u8,
    /// What is kept, and for how long.
    pub retention: Retention,
    /// How much there may be at once.
    pub quota: Quota,
    /// Where skep remembers.
    pub store: StoreSettings,
    /// Where a server sends traces.
    pub traces: Option<String>,
    /// Sandboxes that a server has ready, by name.
    pub pools: BTreeMap<String, PoolSection>,
    /// Which provider, or `auto`.
    pub provider: String,
    /// Whether software emulation may stand in for KVM.
    pub microvm_emulation: bool,
    /// The kernel of microVMs.
    pub microvm_kernel: Option<String>,
}

/// How long things are kept that grow with use. `None` is for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// Whether sandboxes without changes stay.
    pub keep_empty: bool,
    /// Whether unreviewed work may be archived, and then removed, to make room.
    pub archive_unreviewed: bool,
    /// Archives.
    pub archives: Option<Duration>,
    /// Events.
    pub events: Option<Duration>,
    /// Rows of deleted sandboxes.
    pub deleted: Duration,
    /// Execs that have ended, with their output.
    pub execs: Option<Duration>,
    /// The newest ended execs of a sandbox, however many there were.
    pub execs_keep: u64,
    /// Approvals that cannot be undone any more.
    pub history: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            keep_empty: false,
            archive_unreviewed: false,
            archives: Some(90 * DAY),
            events: Some(90 * DAY),
            deleted: 30 * DAY,
            execs: Some(30 * DAY),
            execs_keep: 1000,
            history: Some(730 * DAY),
        }
    }
}

/// How much there may be at once. `None` is no limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// Sandboxes.
    pub sandboxes: Option<u64>,
    /// Memory limits of the running ones together.
    pub memory: Option<ByteSize>,
    /// Changed files of all together.
    pub disk: Option<ByteSize>,
    /// Memory the host must have free.
    pub free_memory: Option<ByteSize>,
}

impl Default for Quota {
    fn default() -> Self {
        Self { sandboxes: None, memory: None, disk: None, free_memory: Some(ByteSize(64 << 20)) }
    }
}

/// Where skep remembers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSettings {
    /// A PostgreSQL instead of the file in the state directory.
    pub url: Option<String>,
    /// What this machine is called there; made up once where nobody says it.
    pub node: Option<String>,
    /// How long its lease is good for without a write.
    pub lease: Duration,
}

impl StoreSettings {
    /// The address without its password.
    pub fn shown_url(&self) -> Option<String> {
        let url = self.url.as_deref()?;
        let hidden = url.split_once("://").and_then(|(scheme, rest)| {
            let (who, place) = rest.split_once('@')?;
            let (user, _) = who.split_once(':')?;
            Some(format!("{scheme}://{user}:…@{place}"))
        });
        Some(match hidden {
            Some(hidden) => hidden,
            None if url.contains("password=") => "(holds a password)".to_owned(),
            None => url.to_owned(),
        })
    }
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self { url: None, node: None, lease: Duration::from_secs(60) }
    }
}

/// What settings are made from. Files are read and parsed by the caller.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sources<'a> {
    /// The host.
    pub host: HostFacts,
    /// `/etc/skep/config.toml`.
    pub system: Option<&'a ConfigDocument>,
    /// `~/.config/skep/config.toml`.
    pub user: Option<&'a ConfigDocument>,
    /// The project's `skep.toml`.
    pub project: Option<&'a ConfigDocument>,
    /// `SKEP_…` variables.
    pub environment: Option<&'a ConfigDocument>,
    /// What was typed.
    pub command_line: Option<&'a ConfigDocument>,
}

const DAY: Duration = Duration::from_secs(86_400);
const GIB: u64 = 1 << 30;

impl Settings {
    /// What is in force when nobody says anything.
    pub fn builtin(host: &HostFacts) -> Self {
        Self {
            policy: Policy { limits: default_limits(host), ..Policy::default() },
            api_timeout: Some(Duration::from_secs(3_600)),
            egress_presets: BTreeMap::new(),
            warn_upper_size: ByteSize(5 * GIB),
            undo_keep: 50,
            undo_age: 30 * DAY,
            approved_age: DAY,
            rejected_age: 7 * DAY,
            total_size: share(100 * GIB, 20, host.state_filesystem),
            total_warn_percent: 80,
            retention: Retention::default(),
            quota: Quota::default(),
            store: StoreSettings::default(),
            traces: None,
            pools: BTreeMap::new(),
            provider: "auto".into(),
            microvm_emulation: false,
            microvm_kernel: None,
        }
    }

    /// Puts the sources together, the later ones stronger:
    ///
    /// 1. built-in values, which depend on the host;
    /// 2. the profile (named on the command line, else in a variable, else in the user's file, else
    ///    in the system's), with what it builds on;
    /// 3. the system's file, then the user's;
    /// 4. the project's file, which may only narrow what 1 to 3 gave;
    /// 5. variables, then the command line, which are the user speaking and may widen again.
    pub fn resolve(sources: &Sources<'_>) -> Result<(Self, Origins), SettingsError> {
        let mut draft = Draft::new(Self::builtin(&sources.host));
        own_presets(&mut draft, sources)?;
        apply_profile(&mut draft, sources)?;
        if let Some(system) = sources.system {
            draft.apply(system, &Origin::System, Lists::Extend);
        }
        if let Some(user) = sources.user {
            draft.apply(user, &Origin::User, Lists::Extend);
        }
        if let Some(project) = sources.project {
            draft = narrowed_by_project(draft, project)?;
        }
        if let Some(variables) = sources.environment {
            draft.apply(variables, &Origin::Environment, Lists::Extend);
        }
        if let Some(typed) = sources.command_line {
            draft.apply(typed, &Origin::CommandLine, Lists::Extend);
        }
        let Draft { mut settings, origins } = draft;
        RuleSet::parse(&settings.policy.egress.allow)?;
        let egress = &mut settings.policy.egress;
        for secret in &mut egress.secrets {
            secret.in_body |= egress.secret_bodies.contains(&secret.name);
        }
        let limits = &mut settings.policy.limits;
        validate(limits)?;
        // Nobody inside gets as many as the caller has: what is shown is what is in force.
        limits.open_files = match (limits.open_files, sources.host.open_files) {
            (Some(asked), Some(most)) => Some(asked.min(most)),
            (asked, _) => asked,
        };
        HideRules::of(&settings.policy)?;
        AcceptanceRules::of(&settings.policy)?;
        Ok((settings, origins))
    }
}

/// Presets come first: profiles and every other source may name them.
fn own_presets(draft: &mut Draft, sources: &Sources<'_>) -> Result<(), SettingsError> {
    for (source, origin) in [(sources.system, Origin::System), (sources.user, Origin::User)] {
        for (name, rules) in source.iter().flat_map(|document| &document.egress.presets) {
            if RuleSet::parse(&[format!("@{name}")]).is_ok() {
                return Err(SettingsError::PresetRedefined(name.clone()));
            }
            draft.settings.egress_presets.insert(name.clone(), rules.clone());
            draft.origins.add_item("egress.presets", name.clone(), &origin);
        }
    }
    Ok(())
}

fn apply_profile(draft: &mut Draft, sources: &Sources<'_>) -> Result<(), SettingsError> {
    let named = |source: Option<&'_ ConfigDocument>, origin: Origin| {
        source.and_then(|document| document.profile.clone()).map(|name| (name, origin))
    };
    let (name, origin) = named(sources.command_line, Origin::CommandLine)
        .or_else(|| named(sources.environment, Origin::Environment))
        .or_else(|| named(sources.user, Origin::User))
        .or_else(|| named(sources.system, Origin::System))
        .unwrap_or_else(|| (DEFAULT_PROFILE.to_owned(), Origin::Builtin));
    let name = name.as_str();
    for (name, profile) in Profiles::of(sources.system, sources.user)?.lineage(name)? {
        let origin = Origin::Profile(name);
        if let Some(wanted) = &profile.memory_share {
            let percent = u64::from(wanted.percent);
            let memory = share(wanted.cap.0, percent, sources.host.memory);
            draft.settings.policy.limits.memory = Some(memory);
            draft.origins.set("limits.memory", &origin);
        }
        draft.apply_sections(
            &profile.limits,
            &profile.sandbox,
            &profile.changes,
            &origin,
            Lists::Extend,
        );
        draft.apply_egress(&profile.egress, &origin, Lists::Extend);
    }
    draft.settings.policy.profile = name.to_owned();
    draft.origins.set("profile", &origin);
    Ok(())
}

fn narrowed_by_project(outer: Draft, project: &ConfigDocument) -> Result<Draft, SettingsError> {
    if let Some(key) = not_for_projects(project) {
        return Err(SettingsError::NotForProjects(key.into()));
    }
    let mut inner = outer.clone();
    inner.apply(project, &Origin::Project, Lists::Narrow);
    let mut found = widenings(&outer.settings.policy, &inner.settings.policy);
    let warn = (outer.settings.warn_upper_size, inner.settings.warn_upper_size);
    if warn.1 > warn.0 {
        found.push(Widening {
            key: "warn.upper_size".into(),
            outer: format!("`{}`", warn.0),
            inner: format!("`{}`", warn.1),
        });
    }
    let api = (outer.settings.api_timeout, inner.settings.api_timeout);
    if api.0.is_some_and(|outer| api.1.is_none_or(|inner| inner > outer)) {
        let show = |limit: Option<Duration>| {
            limit.map_or_else(
                || "no limit".into(),
                |limit| format!("`{}`", skep_types::show_duration(limit)),
            )
        };
        let key = "limits.api_timeout".into();
        found.push(Widening { key, outer: show(api.0), inner: show(api.1) });
    }
    if found.is_empty() { Ok(inner) } else { Err(SettingsError::Widens(found)) }
}

/// Settings about the user's machine rather than about the sandbox, and variables: a project that
/// sets `ANTHROPIC_BASE_URL` would send the user's key to a host of its choice.
fn not_for_projects(project: &ConfigDocument) -> Option<&'static str> {
    let ConfigDocument { profile, sandbox, egress, undo, gc, provider, profiles, .. } = project;
    let (quota, store) = (&project.quota, &project.store);
    let present = [
        (profile.is_some(), "profile"),
        (!profiles.is_empty(), "profiles"),
        (!project.pools.is_empty(), "pools"),
        (!sandbox.env.is_empty(), "sandbox.env"),
        // A project that says where names lead, or whom to trust, could take what is sent there.
        (!egress.hosts.is_empty(), "egress.hosts"),
        (egress.resolvers.is_some(), "egress.resolvers"),
        (egress.extra_ca.is_some(), "egress.extra_ca"),
        (!egress.presets.is_empty(), "egress.presets"),
        (egress.secret_bodies.is_some(), "egress.secret_bodies"),
        (undo.keep.is_some(), "undo.keep"),
        (undo.age.is_some(), "undo.age"),
        (*gc != GcSection::default(), "gc"),
        (provider.name.is_some(), "provider.name"),
        (provider.microvm.emulation.is_some(), "provider.microvm.emulation"),
        (provider.microvm.kernel.is_some(), "provider.microvm.kernel"),
        (*quota != QuotaSection::default(), "quota"),
        (*store != StoreSection::default(), "store"),
        (project.server != ServerSection::default(), "server"),
    ];
    present.into_iter().find(|(present, _)| *present).map(|(_, key)| key)
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
