//! From names to addresses: looked up once, checked, pinned.
//!
//! A name that no rule allows is never asked for outside. Every answer is checked, and one bad
//! address among them refuses all: a server that mixes its own address with somebody's private
//! one is up to something. What was given out stays pinned for [`PINNED`], whatever time to live
//! the answer had, so that the address that was checked is the one that is dialled.

use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{Resolver, TokioResolver};
use skep_policy::egress::{Name, Rule, RuleSet, Target, Verdict, reason};
use skep_types::{EgressConfig, EgressLimits};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long an answer is used again, and the time to live it is given out with.
pub(crate) const PINNED: Duration = Duration::from_secs(60);
/// How long a server is not asked again for a name, whatever it said.
const AGAIN: Duration = Duration::from_secs(5);
/// How long all servers together may take.
const PATIENCE: Duration = Duration::from_secs(8);
/// Names remembered; the oldest go first.
const MOST_NAMES: usize = 4096;
/// Addresses of one name; a reply must fit into a small packet.
const MOST_ADDRESSES: usize = 8;

/// Why there is no address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is not allowed.
    Denied {
        reason: &'static str,
        hint: String,
        /// Where it leads, if that is why.
        address: Option<IpAddr>,
    },
    /// It does not exist.
    Missing,
    /// Nobody answered.
    Failed,
}

impl Refusal {
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Denied { reason, .. } => reason,
            Self::Missing | Self::Failed => reason::NO_ANSWER,
        }
    }

    /// The address because of which it is refused.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Denied { address, .. } => *address,
            Self::Missing | Self::Failed => None,
        }
    }

    pub(crate) fn hint(&self) -> String {
        match self {
            Self::Denied { hint, .. } => hint.clone(),
            Self::Missing => "DNS failed: the name does not exist".into(),
            Self::Failed => "DNS failed: no name server answered".into(),
        }
    }
}

pub(crate) struct Names {
    hosts: BTreeMap<Name, Vec<IpAddr>>,
    resolver: Option<TokioResolver>,
    limits: EgressLimits,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    by_name: HashMap<Name, Pin>,
    by_address: HashMap<IpAddr, BTreeSet<Name>>,
    window: Option<(Instant, u32)>,
    /// What servers said lately, refusals too.
    said: HashMap<Name, (Instant, Result<Vec<IpAddr>, Refusal>)>,
}

struct Pin {
    addresses: Vec<IpAddr>,
    at: Instant,
}

/// An answer, and whether it was just made.
pub(crate) struct Found {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) fresh: bool,
}

impl Names {
    pub(crate) fn new(config: &EgressConfig) -> Self {
        let hosts = config.hosts.iter().filter_map(|(name, addresses)| {
            Name::parse(name).ok().map(|name| (name, addresses.clone()))
        });
        Self {
            hosts: hosts.collect(),
            resolver: resolver(&config.resolvers),
            limits: config.limits,
            table: Mutex::default(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names that were given out for an address.
    pub(crate) fn of_address(&self, address: IpAddr) -> Vec<Name> {
        self.table().by_address.get(&address).into_iter().flatten().cloned().collect()
    }

    /// Whether an allowed name leads to an address: pinned, or if not (this process may be
    /// younger than the program that asked), found by asking now.
    pub(crate) async fn leads_to(&self, rules: &RuleSet, name: &Name, address: IpAddr) -> bool {
        if self.table().by_address.get(&address).is_some_and(|names| names.contains(name)) {
            return true;
        }
        self.lookup(rules, name).await.is_ok_and(|found| found.addresses.contains(&address))
    }

    /// The checked addresses of a name.
    pub(crate) async fn lookup(&self, rules: &RuleSet, name: &Name) -> Result<Found, Refusal> {
        if let Verdict::Deny { reason, hint } = rules.decide_name(name) {
            return Err(Refusal::Denied { reason, hint, address: None });
        }
        let now = Instant::now();
        if let Some(pin) = self.table().by_name.get(name)
            && now.duration_since(pin.at) < PINNED
        {
            check(rules, &pin.addresses)?;
            return Ok(Found { addresses: pin.addresses.clone(), fresh: false });
        }
        let mut addresses = match self.hosts.get(name) {
            Some(addresses) => addresses.clone(),
            None => self.said_lately(rules, name, now).await?,
        };
        check(rules, &addresses)?;
        addresses.truncate(MOST_ADDRESSES);
        self.table().pin(name, &addresses, now);
        Ok(Found { addresses, fresh: true })
    }

    /// Names under a wildcard can carry data to whoever serves the zone: few and short ones.
    fn spend(&self, rules: &RuleSet, name: &Name, now: Instant) -> Result<(), Refusal> {
        let exact = |rule: &Rule| matches!(&rule.target, Target::Name(own) if own == name);
        if rules.rules().any(|labelled| exact(&labelled.rule)) {
            return Ok(());
        }
        let denied = |hint: String| Refusal::Denied { reason: reason::RATE, hint, address: None };
        if name.as_str().len() > self.limits.wildcard_name_bytes {
            return Err(denied(format!(
                "names under a wildcard may have {} bytes; allow this one by itself",
                self.limits.wildcard_name_bytes
            )));
        }
        let most = self.limits.wildcard_names_per_minute;
        let mut table = self.table();
        let (since, count) = table.window.unwrap_or((now, 0));
        let (since, count) =
            if now.duration_since(since).as_secs() >= 60 { (now, 0) } else { (since, count) };
        table.window = Some((since, count.saturating_add(1)));
        if count < most {
            return Ok(());
        }
        Err(denied(format!(
            "more than {most} new names a minute under wildcards; allow names by themselves"
        )))
    }

    /// What servers say, or said a moment ago: asking again and again from inside does not reach them.
    async fn said_lately(
        &self,
        rules: &RuleSet,
        name: &Name,
        now: Instant,
    ) -> Result<Vec<IpAddr>, Refusal> {
        if let Some((at, said)) = self.table().said.get(name)
            && now.duration_since(*at) < AGAIN
        {
            return said.clone();
        }
        self.spend(rules, name, now)?;
        let said = self.ask(name).await;
        let mut table = self.table();
        if table.said.len() >= MOST_NAMES {
            table.said.clear();
        }
        table.said.insert(name.clone(), (now, said.clone()));
        said
    }

    async fn ask(&self, name: &Name) -> Result<Vec<IpAddr>, Refusal> {
        let resolver = self.resolver.as_ref().ok_or(Refusal::Failed)?;
        // The dot at the end: no search list, no second try with a suffix.
        let asked = resolver.lookup_ip(format!("{name}."));
        match tokio::time::timeout(PATIENCE, asked).await {
            Ok(Ok(found)) => {
                // In the order of the answer: its server spreads its visitors by it.
                let mut addresses: Vec<IpAddr> = Vec::new();
                for address in found.iter().map(|ip| ip.to_canonical()) {
                    if !addresses.contains(&address) {
                        addresses.push(address);
                    }
                }
                if addresses.is_empty() { Err(Refusal::Missing) } else { Ok(addresses) }
            }
            Ok(Err(error)) if error.is_nx_domain() || error.is_no_records_found() => {
                Err(Refusal::Missing)
            }
            _ => Err(Refusal::Failed),
        }
    }
}

/// All of them, or none.
fn check(rules: &RuleSet, addresses: &[IpAddr]) -> Result<(), Refusal> {
    for address in addresses {
        if let Verdict::Deny { reason, hint } = rules.decide_answer(*address) {
            let reason = if reason == reason::METADATA { reason } else { reason::BAD_ANSWER };
            return Err(Refusal::Denied {
                reason,
                hint: format!("the name leads elsewhere: {hint}"),
                address: Some(*address),
            });
        }
    }
    Ok(())
}

impl Table {
    fn pin(&mut self, name: &Name, addresses: &[IpAddr], at: Instant) {
        if self.by_name.len() >= MOST_NAMES && !self.by_name.contains_key(name) {
            self.forget_oldest();
        }
        // Addresses given out before stay this name's: programs keep them for longer than told.
        let pin = self.by_name.entry(name.clone()).or_insert(Pin { addresses: Vec::new(), at });
        pin.at = at;
        pin.addresses = addresses.to_vec();
        for address in addresses {
            self.by_address.entry(*address).or_default().insert(name.clone());
        }
    }

    fn forget_oldest(&mut self) {
        let oldest =
            self.by_name.iter().min_by_key(|(_, pin)| pin.at).map(|(name, _)| name.clone());
        if let Some(name) = oldest {
            self.by_name.remove(&name);
            self.by_address.retain(|_, names| {
                names.remove(&name);
                !names.is_empty()
            });
        }
    }
}

fn resolver(servers: &[SocketAddr]) -> Option<TokioResolver> {
    if servers.is_empty() {
        return None;
    }
    let servers = servers.iter().map(|server| {
        let mut config = NameServerConfig::udp_and_tcp(server.ip());
        for connection in &mut config.connections {
            connection.port = server.port();
        }
        config
    });
    let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
    let mut builder = Resolver::builder_with_config(config, TokioRuntimeProvider::default());
    let options = builder.options_mut();
    options.use_hosts_file = ResolveHosts::Never;
    options.ip_strategy = hickory_resolver::config::LookupIpStrategy::Ipv4AndIpv6;
    options.timeout = Duration::from_secs(3);
    options.attempts = 1;
    // Answers are pinned here, by our own rules.
    options.cache_size = 0;
    builder.build().ok()
}
