//! The way out, while the sandbox runs: new rules, and a process that must not stay dead.
//!
//! Whatever happens here, nothing gets out that was not allowed: without the process connections
//! wait at the doors, and when it cannot be brought back, the doors are closed.

use super::Keeper;
use crate::failure::{Failure, Step};
use crate::network::process::{Egress, PATIENCE, host_loopback};
use crate::network::rules;
use crate::protocol::{Reply, ToInit};
use rustix::fd::AsFd;
use skep_knock::Question;
use skep_policy::egress::{RuleSet, added_rules};
use skep_types::{ByteString, EgressDeath, FromEgress, ToEgress};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How often the process is started again within [`FORGIVEN`].
const MOST_RESTARTS: u32 = 5;
/// After this long without a death the count starts anew.
const FORGIVEN: Duration = Duration::from_secs(600);
/// Before the first new start; then twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// What the keeper remembers about it.
#[derive(Debug, Default)]
pub(super) struct EgressState {
    /// What it was asked for and has not answered yet, in order.
    asked: VecDeque<Asked>,
    restarts: u32,
    deaths: u64,
    died_at: Option<Instant>,
    restart_at: Option<Instant>,
    /// By when it must have answered.
    answer_by: Option<Instant>,
    /// New rules that a guest has not taken in yet.
    ruling: VecDeque<Ruling>,
}

/// New rules on their way: who wants them, how many connections they cut, and what was before.
#[derive(Debug)]
struct Ruling {
    client: u64,
    cut: usize,
    before: Vec<String>,
}

#[derive(Debug)]
enum Asked {
    /// To serve again, after a death.
    Serve,
    /// New rules, for a client. Those from before, where the new ones only take away: they are what a
    /// new process would get already.
    Rules { client: u64, rules: Vec<String>, narrowed: Option<Vec<String>> },
    /// The old rules again, because of this, which a client is waiting to hear.
    Back { client: u64, failure: Failure },
    /// To forget a secret, for a client.
    Revoke { client: u64 },
}

impl Keeper<'_> {
    /// When something is due.
    pub(super) fn next_egress(&self) -> Option<Instant> {
        let state = &self.state.egress;
        [state.restart_at, state.answer_by].into_iter().flatten().min()
    }

    pub(super) fn meet_egress(&mut self, now: Instant) {
        if self.state.egress.answer_by.is_some_and(|by| now >= by) {
            self.egress_died("it did not answer");
        }
        if self.state.egress.restart_at.is_some_and(|at| now >= at) {
            self.state.egress.restart_at = None;
            self.restart_egress(now);
        }
    }

    fn restart_egress(&mut self, now: Instant) {
        let Some(egress) = &mut self.attendants.egress else { return };
        match egress.launch().and_then(|()| egress.configure()) {
            Ok(()) => {
                self.state.egress.asked.push_back(Asked::Serve);
                self.state.egress.answer_by = Some(now + PATIENCE);
                if let Some(membership) = &mut self.group {
                    membership.has_a_newcomer();
                }
            }
            Err(_) => self.egress_died("it could not be started"),
        }
    }

    /// The process has said something, or is gone.
    pub(super) fn hear_egress(&mut self) {
        // All there is: what was read already makes no socket readable.
        loop {
            let Some(egress) = &mut self.attendants.egress else { return };
            match egress.hear() {
                Ok(None) => return,
                Ok(Some(FromEgress::WhoHas { question, peers })) => {
                    self.tell_owners(question, &peers);
                }
                Ok(Some(message)) => self.egress_answered(message),
                Err(_) => return self.egress_died("it ended"),
            }
        }
    }

    fn egress_answered(&mut self, message: FromEgress) {
        let Some(asked) = self.state.egress.asked.pop_front() else { return };
        if self.state.egress.asked.is_empty() {
            self.state.egress.answer_by = None;
        }
        let Some(egress) = &mut self.attendants.egress else { return };
        match (asked, message) {
            (Asked::Serve, FromEgress::Ready { ca, key }) => {
                egress.config.authority_key = key;
                if egress.trust(ca.as_deref()).is_err() {
                    self.egress_died("its certificate could not be written");
                }
            }
            (Asked::Serve, _) => self.egress_died("it refused what it was told"),
            (Asked::Rules { client, rules, narrowed }, FromEgress::Ack { cut }) => {
                let redirected = egress.redirect(&rules);
                let held = std::mem::replace(&mut egress.config.rules, rules.clone());
                let before = narrowed.unwrap_or(held);
                match redirected.and_then(|()| self.redirect_in_guest(&before, &rules)) {
                    Ok(true) => {
                        self.state.egress.ruling.push_back(Ruling { client, cut, before });
                    }
                    Ok(false) => self.reply(client, &Ok(Reply::Reached { cut })),
                    Err(failure) => self.take_rules_back(client, before, failure),
                }
            }
            (Asked::Back { client, failure }, FromEgress::Ack { .. }) => {
                self.reply(client, &Err(failure));
            }
            // The rules that were in force are refused: whatever is in force now, it is not known.
            (Asked::Back { client, failure }, _) => {
                self.reply(client, &Err(failure));
                self.egress_died("it did not take its old rules back");
            }
            (Asked::Revoke { client }, FromEgress::Ack { cut }) => {
                self.reply(client, &Ok(Reply::Reached { cut }));
            }
            (asked @ (Asked::Rules { .. } | Asked::Revoke { .. }), other) => {
                let (client, before) = match asked {
                    Asked::Rules { client, narrowed, .. } => (client, narrowed),
                    Asked::Revoke { client } | Asked::Back { client, .. } => (client, None),
                    Asked::Serve => return,
                };
                if let Some(before) = before {
                    egress.config.rules = before;
                }
                let reason = match other {
                    FromEgress::Refused { message } => message,
                    other => format!("it answered {other:?}"),
                };
                self.reply(client, &Err(Failure::invalid(reason)));
            }
        }
    }

    /// A guest has rules of its own, which lead to the same doors; they change with the loopback
    /// addresses that mean the host's. Returns whether its answer is waited for.
    fn redirect_in_guest(&self, before: &[String], now: &[String]) -> Result<bool, Failure> {
        let literals = host_loopback(now)?;
        if self.vessel.machine().is_none() || host_loopback(before)? == literals {
            return Ok(false);
        }
        let order = ToInit::Rules(rules::changed(&literals));
        self.channel.send(&order, &[]).step(|| "tell the guest its rules".into())?;
        Ok(true)
    }

    /// The guest has taken them in, or not.
    pub(super) fn guest_ruled(&mut self, result: Result<(), Failure>) {
        let Some(Ruling { client, cut, before }) = self.state.egress.ruling.pop_front() else {
            return;
        };
        match result {
            Ok(()) => self.reply(client, &Ok(Reply::Reached { cut })),
            Err(failure) => self.take_rules_back(client, before, failure),
        }
    }

    /// New rules are in force as a whole or not at all: the process has them, the namespace does not.
    /// What they cut stays cut.
    fn take_rules_back(&mut self, client: u64, before: Vec<String>, failure: Failure) {
        let Some(egress) = &mut self.attendants.egress else {
            return self.reply(client, &Err(failure));
        };
        // Were this to fail too, loopback literals would lead to a proxy that refuses them.
        let _ = egress.redirect(&before);
        egress.config.rules.clone_from(&before);
        let told = egress.tell(&ToEgress::Update { rules: before });
        match told {
            Ok(()) => {
                self.state.egress.asked.push_back(Asked::Back { client, failure });
                self.state.egress.answer_by.get_or_insert(Instant::now() + PATIENCE);
            }
            Err(_) => {
                self.reply(client, &Err(failure));
                self.egress_died("it could not be told its old rules");
            }
        }
    }

    /// Ends what is left of it. It comes back after a pause, but not for ever.
    fn egress_died(&mut self, why: &str) {
        let now = Instant::now();
        let Some(egress) = &mut self.attendants.egress else { return };
        egress.end();
        let state = &mut self.state.egress;
        state.answer_by = None;
        if state.died_at.is_some_and(|before| now.duration_since(before) > FORGIVEN) {
            state.restarts = 0;
        }
        state.died_at = Some(now);
        state.deaths += 1;
        let again = state.restarts < MOST_RESTARTS;
        if again {
            state.restart_at = Some(now + FIRST_PAUSE * 2u32.pow(state.restarts));
            state.restarts += 1;
        } else {
            state.restart_at = None;
            egress.close();
        }
        let death = EgressDeath {
            why: why.to_owned(),
            restarts: state.restarts,
            again,
            deaths: state.deaths,
        };
        let asked = std::mem::take(&mut state.asked);
        self.record_egress_death(&death);
        for asked in asked {
            let gone = || Failure::invalid(format!("the egress process is gone: {why}"));
            match asked {
                Asked::Serve => {}
                // It is gone with all its connections, and whoever comes after it gets what is left: that is
                // what was asked for.
                Asked::Rules { client, rules, narrowed: Some(_) } => self.narrowed(client, &rules),
                Asked::Revoke { client } => self.reply(client, &Ok(Reply::Reached { cut: 0 })),
                Asked::Rules { client, .. } => self.reply(client, &Err(gone())),
                Asked::Back { client, failure } => self.reply(client, &Err(failure)),
            }
        }
    }

    /// Rules were taken away while there was no process: the namespace follows, as far as it can. What it
    /// still leads to the doors is refused there.
    fn narrowed(&mut self, client: u64, rules: &[String]) {
        if let Some(egress) = &mut self.attendants.egress {
            let _ = egress.redirect(rules);
        }
        self.reply(client, &Ok(Reply::Reached { cut: 0 }));
    }

    /// For whoever asks later: `skep show` and `skep net` say it, and an event tells it.
    fn record_egress_death(&self, death: &EgressDeath) {
        let path = self.spec.directory.join(EgressDeath::FILE);
        let _ = std::fs::write(path, crate::protocol::to_json(death));
    }

    /// A client wants other rules.
    pub(super) fn operate_reach(&mut self, client: u64, rules: Vec<String>) {
        // What is known to be impossible is refused before the process hears of it.
        let possible = self.attendants.egress.as_ref().map(|egress| egress.can_redirect(&rules));
        if let Some(Err(failure)) = possible {
            return self.reply(client, &Err(failure));
        }
        let message = ToEgress::Update { rules: rules.clone() };
        // What only takes away is so from now on, whatever becomes of the process.
        let narrowed = self.attendants.egress.as_mut().and_then(|egress| {
            only_narrows(&egress.config.rules, &rules)
                .then(|| std::mem::replace(&mut egress.config.rules, rules.clone()))
        });
        self.ask_egress(&message, Asked::Rules { client, rules, narrowed });
    }

    /// A client wants a secret to be forgotten. From now on it is: a process that comes later does not
    /// hear of it.
    pub(super) fn operate_revoke(&mut self, client: u64, name: String) {
        if let Some(egress) = &mut self.attendants.egress {
            egress.config.secrets.retain(|secret| secret.name != name);
        }
        self.ask_egress(&ToEgress::Revoke { name }, Asked::Revoke { client });
    }

    /// A client wants to know what is reached from inside; init finds out.
    pub(super) fn operate_knock(&mut self, client: u64, targets: Vec<(String, u16)>) {
        let connection = self.state.connections.get_mut(&client);
        let descriptors =
            connection.map(|client| std::mem::take(&mut client.descriptors)).unwrap_or_default();
        let sent = match &self.attendants.egress {
            None => Err(Failure::invalid("this sandbox runs without `--net allow`")),
            Some(egress) => {
                self.state.so_far.something_else();
                let order = ToInit::Knock(Question { targets, proxy: egress.doors.proxy });
                let answer: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                self.channel.send(&order, &answer).step(|| "ask init to knock".into())
            }
        };
        self.reply(client, &sent.map(|()| Reply::Done));
    }

    fn ask_egress(&mut self, message: &ToEgress, asked: Asked) {
        let told = match &self.attendants.egress {
            Some(egress) => egress.tell(message).step(|| "tell the egress process".into()),
            None => Err(Failure::invalid("this sandbox runs without `--net allow`")),
        };
        match (told, asked) {
            (Ok(()), asked) => {
                self.state.egress.asked.push_back(asked);
                self.state.egress.answer_by.get_or_insert(Instant::now() + PATIENCE);
            }
            // There is no process, or none that listens: the next one gets what is left.
            (Err(_), Asked::Rules { client, rules, narrowed: Some(_) }) => {
                self.narrowed(client, &rules);
                self.end_what_does_not_listen();
            }
            (Err(_), Asked::Revoke { client }) if self.attendants.egress.is_some() => {
                self.reply(client, &Ok(Reply::Reached { cut: 0 }));
                self.end_what_does_not_listen();
            }
            (Err(failure), Asked::Rules { client, .. } | Asked::Revoke { client }) => {
                self.reply(client, &Err(failure));
            }
            (Err(_), Asked::Serve | Asked::Back { .. }) => {}
        }
    }

    fn end_what_does_not_listen(&mut self) {
        let listens = self.attendants.egress.as_ref().is_none_or(|egress| egress.pid().is_none());
        if !listens {
            self.egress_died("it does not listen");
        }
    }

    /// Variables that lead programs inside to the proxy and to what they must trust.
    pub(super) fn egress_variables(&self) -> Vec<(String, String)> {
        let Some(egress) = &self.attendants.egress else { return Vec::new() };
        variables(egress)
    }

    /// Placeholders of secrets, and plain values where the caller insisted.
    pub(super) fn secret_variables(&self) -> Vec<(String, ByteString)> {
        let egress = self.attendants.egress.iter();
        let edge = egress.flat_map(|egress| &egress.config.secrets);
        let edge = edge.map(|secret| (secret.name.clone(), secret.placeholder.as_str().into()));
        let plain = self.spec.secrets.plain.iter();
        edge.chain(plain.map(|(name, value)| (name.clone(), value.expose().into()))).collect()
    }
}

/// Whether rules allow nothing that others do not. Such as cannot be read narrow nothing.
fn only_narrows(before: &[String], rules: &[String]) -> bool {
    match (RuleSet::parse(before), RuleSet::parse(rules)) {
        (Ok(before), Ok(rules)) => added_rules(&before, &rules).is_empty(),
        _ => false,
    }
}

/// Set in both spellings: some programs read only one.
fn variables(egress: &Egress) -> Vec<(String, String)> {
    let proxy = format!("http://127.0.0.1:{}", egress.doors.proxy);
    let local = "localhost,127.0.0.1,::1".to_owned();
    let mut variables: Vec<(String, String)> = Vec::new();
    let values = [
        ("HTTP_PROXY", &proxy),
        ("HTTPS_PROXY", &proxy),
        ("ALL_PROXY", &proxy),
        ("NO_PROXY", &local),
    ];
    for (name, value) in values {
        variables.push((name.to_owned(), value.clone()));
        variables.push((name.to_ascii_lowercase(), value.clone()));
    }
    if egress.opens_tls {
        let bundle = "/run/skep/ca.pem".to_owned();
        variables.extend(TRUST.iter().map(|name| ((*name).to_owned(), bundle.clone())));
    }
    variables
}

/// What common tools read to learn whom to trust: OpenSSL, curl, Node.js, Python's requests and
/// pip, cargo, git, the AWS tools, Deno.
const TRUST: &[&str] = &[
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
];
