//! What all connections of one sandbox share: rules, names, secrets, the log, the list of what
//! is open.

use crate::audit::{Audit, Subject};
use crate::authority::Authority;
use crate::names::Names;
use crate::owner::Owners;
use crate::secrets::Secrets;
use skep_policy::egress::{Host, Name, Protocol, Question, RuleError, RuleSet, Verdict, reason};
use skep_types::{EgressConfig, EgressLimits, EgressPeer, EgressStats};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OnceCell, OwnedSemaphorePermit, Semaphore};

/// Why a gateway cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// A rule.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// A secret's host, or its placeholder.
    #[error("secret `{name}` cannot be used: {reason}")]
    Secret {
        /// Which.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The certificate authority.
    #[error("cannot make the sandbox's certificate authority")]
    Authority(#[from] rcgen::Error),
    /// TLS.
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
    /// The extra certificates.
    #[error("cannot read the extra certificate authorities")]
    ExtraAuthorities,
}

/// One sandbox's way out.
pub(crate) struct Gateway {
    rules: Mutex<Arc<RuleSet>>,
    secrets: Mutex<Arc<Secrets>>,
    pub(crate) names: Names,
    pub(crate) owners: Arc<Owners>,
    pub(crate) authority: Option<Authority>,
    pub(crate) limits: EgressLimits,
    /// Room for pipes between sockets through which much moves.
    pub(crate) pipes: Semaphore,
    /// Room for bodies that are searched for placeholders, in MiB.
    pub(crate) searched: Semaphore,
    audit: Audit,
    open: Mutex<HashMap<u64, Open>>,
    next: AtomicU64,
    allowed: AtomicU64,
    denied: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

struct Open {
    /// One, or several where requests share a connection (HTTP/2).
    purposes: Vec<Purpose>,
    cut: Arc<Cut>,
}

/// Tells everybody who works on a connection that it has to end, also those who ask later.
#[derive(Default)]
struct Cut {
    done: AtomicBool,
    notify: Notify,
}

impl Cut {
    fn now(&self) {
        self.done.store(true, Ordering::SeqCst);
        self.notify.notify_waiters();
    }
}

/// What an open connection was allowed for; asked again when the rules change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Purpose {
    pub(crate) name: Option<Name>,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) protocol: Protocol,
}

impl Purpose {
    pub(crate) fn question(&self) -> Question<'_> {
        Question {
            name: self.name.as_ref(),
            address: Some(self.address),
            port: self.port,
            protocol: self.protocol,
        }
    }
}

impl Gateway {
    /// For a process that may have so many `files` open.
    pub(crate) fn new(
        config: EgressConfig,
        audit: Audit,
        files: usize,
    ) -> Result<Arc<Self>, GatewayError> {
        let rules = RuleSet::parse(&config.rules)?;
        let names = Names::new(&config);
        let authority = if config.secrets.is_empty() {
            None
        } else {
            Some(Authority::new(&config.sandbox, &config.extra_ca, config.authority_key.as_ref())?)
        };
        let secrets = Secrets::new(config.secrets)?;
        Ok(Arc::new(Self {
            rules: Mutex::new(Arc::new(rules)),
            secrets: Mutex::new(Arc::new(secrets)),
            names,
            owners: Arc::new(Owners::new(config.attribute)),
            authority,
            limits: config.limits,
            pipes: Semaphore::new(pipes(files)),
            searched: Semaphore::new(MOST_SEARCHED_AT_ONCE),
            audit,
            open: Mutex::default(),
            next: AtomicU64::new(0),
            allowed: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
        }))
    }

    pub(crate) fn rules(&self) -> Arc<RuleSet> {
        lock(&self.rules).clone()
    }

    pub(crate) fn secrets(&self) -> Arc<Secrets> {
        lock(&self.secrets).clone()
    }

    pub(crate) fn head_patience(&self) -> Duration {
        Duration::from_secs(self.limits.head_seconds)
    }

    /// Puts new rules in force and cuts what they do not allow. All or nothing.
    pub(crate) fn update(&self, rules: &[String]) -> Result<usize, RuleError> {
        let rules = Arc::new(RuleSet::parse(rules)?);
        *lock(&self.rules) = rules.clone();
        Ok(self.cut_where(|purpose| !rules.decide(&purpose.question()).is_allowed()))
    }

    /// Forgets a secret, and cuts connections into which it may have been put.
    pub(crate) fn revoke(&self, name: &str) -> usize {
        let hosts = {
            let mut secrets = lock(&self.secrets);
            let (left, gone) = secrets.without(name);
            *secrets = Arc::new(left);
            gone
        };
        self.cut_where(|purpose| {
            purpose.name.as_ref().is_some_and(|name| hosts.iter().any(|host| host.names(name)))
        })
    }

    fn cut_where(&self, condition: impl Fn(&Purpose) -> bool) -> usize {
        let open = lock(&self.open);
        let meant = open.values().filter(|open| open.purposes.iter().any(&condition));
        meant.map(|open| open.cut.now()).count()
    }

    /// Ends everything, when the keeper is gone.
    pub(crate) fn cut_all(&self) {
        for open in lock(&self.open).values() {
            open.cut.now();
        }
    }

    /// Enters a connection in the list; it leaves when the ticket is dropped.
    pub(crate) fn enter(
        self: &Arc<Self>,
        room: OwnedSemaphorePermit,
        peer: Option<EgressPeer>,
    ) -> Ticket {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let cut = Arc::new(Cut::default());
        lock(&self.open).insert(id, Open { purposes: Vec::new(), cut: cut.clone() });
        let exec = Arc::new(OnceCell::new());
        if let Some(peer) = peer {
            // Asked at once, so that the answer comes while a host is dialled and spoken to.
            let (owners, exec) = (self.owners.clone(), exec.clone());
            tokio::spawn(async move { exec.get_or_init(|| owners.of(peer)).await.is_some() });
        }
        Ticket { gateway: self.clone(), id, cut, peer, exec, _room: room }
    }

    fn rule_of(&self, host: &Host) -> Option<String> {
        let rules = self.rules();
        match host {
            Host::Name(name) => match rules.decide_name(name) {
                Verdict::Allow { rule } => Some(rule),
                Verdict::Deny { .. } => None,
            },
            Host::Address(address) => {
                let own = rules.rules().find(|own| own.rule.has_address(*address));
                own.map(|own| own.label.clone())
            }
        }
    }

    /// Nothing passes any more.
    pub(crate) fn close_log(&self) {
        self.audit.close();
    }

    /// Notes that something did not get through. What is allowed and has no address, or does not take the
    /// connection, was not denied: it is noted as an allowed attempt that came to nothing.
    pub(crate) fn deny(&self, subject: &Subject, reason: &'static str) {
        if matches!(reason, reason::NO_ANSWER | reason::UNREACHABLE)
            && let Ok(host) = Host::parse(&subject.host)
            && let Some(rule) = self.rule_of(&host)
        {
            return self.allow(subject, &rule, Some(reason), (0, 0));
        }
        self.denied.fetch_add(1, Ordering::Relaxed);
        self.audit.deny(subject, reason);
    }

    pub(crate) fn allow(
        &self,
        subject: &Subject,
        rule: &str,
        reason: Option<&'static str>,
        bytes: (u64, u64),
    ) {
        self.allowed.fetch_add(1, Ordering::Relaxed);
        self.bytes_in.fetch_add(bytes.0, Ordering::Relaxed);
        self.bytes_out.fetch_add(bytes.1, Ordering::Relaxed);
        self.audit.allow(subject, rule, reason, bytes);
    }

    /// Notes that something goes on; it is counted when it has ended.
    pub(crate) fn note_open(&self, subject: &Subject, rule: &str, bytes: (u64, u64)) {
        self.audit.allow(subject, rule, Some(reason::OPEN), bytes);
    }

    pub(crate) fn stats(&self) -> EgressStats {
        EgressStats {
            open: lock(&self.open).len() as u64,
            allowed: self.allowed.load(Ordering::Relaxed),
            denied: self.denied.load(Ordering::Relaxed),
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
        }
    }
}

/// Descriptors for other things than connections and pipes.
const OTHER_FILES: usize = 64;
/// Bodies that are searched, all together, in MiB.
const MOST_SEARCHED_AT_ONCE: usize = 64;
/// Pipes at the same time; each has two descriptors.
const MOST_PIPES: usize = 64;

/// How many pipes there may be: none where descriptors are few.
fn pipes(files: usize) -> usize {
    if files >= 8 * MOST_PIPES { MOST_PIPES } else { 0 }
}

/// How many connections there may be. Each may need two descriptors.
pub(crate) fn connections(asked: usize, files: usize) -> usize {
    let fit = files.saturating_sub(OTHER_FILES + 2 * pipes(files)) / 2;
    asked.min(fit).max(1)
}

/// A connection in the list of open ones.
pub(crate) struct Ticket {
    gateway: Arc<Gateway>,
    id: u64,
    cut: Arc<Cut>,
    peer: Option<EgressPeer>,
    exec: Arc<OnceCell<Option<String>>>,
    _room: OwnedSemaphorePermit,
}

impl Ticket {
    /// Waits until it is known which exec the connection belongs to, or that this cannot be known.
    /// Called before the program hears anything: one that was refused, or got its answer, may be gone a
    /// moment later.
    pub(crate) async fn identify(&self) {
        if let Some(peer) = self.peer {
            self.exec.get_or_init(|| self.gateway.owners.of(peer)).await;
        }
    }

    /// The exec it belongs to, where that is known.
    pub(crate) fn exec(&self) -> Option<String> {
        self.exec.get().cloned().flatten()
    }

    /// Says what the connection is for from now on; whether that is still allowed.
    pub(crate) fn set_purpose(&self, purpose: Purpose) -> bool {
        self.enter_purpose(purpose, Vec::clear)
    }

    /// Says what else it is for: requests to other hosts may still be under way on it.
    pub(crate) fn add_purpose(&self, purpose: Purpose) -> bool {
        self.enter_purpose(purpose, |_| {})
    }

    /// Rules may have changed between the verdict and now: dialling takes its time, and a connection
    /// without a purpose is not cut. Whoever changes them puts them in force first and then looks
    /// through the list; here it is the other way round, so one of the two sees the other.
    fn enter_purpose(&self, purpose: Purpose, before: fn(&mut Vec<Purpose>)) -> bool {
        let still = purpose.clone();
        if let Some(open) = lock(&self.gateway.open).get_mut(&self.id) {
            before(&mut open.purposes);
            if !open.purposes.contains(&purpose) {
                open.purposes.push(purpose);
            }
        }
        let allowed = self.gateway.rules().decide(&still.question()).is_allowed();
        if !allowed {
            self.cut.now();
        }
        allowed
    }

    /// Comes back when the connection has to end.
    pub(crate) async fn cut(&self) {
        let mut notified = std::pin::pin!(self.cut.notify.notified());
        // Counted as waiting before the flag is read, so that no call falls between the two.
        notified.as_mut().enable();
        if !self.cut.done.load(Ordering::SeqCst) {
            notified.await;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        lock(&self.gateway.open).remove(&self.id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
