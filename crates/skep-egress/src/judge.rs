//! Where a connection is going, and whether it may: rules, names and addresses brought together.

use crate::gateway::{Gateway, Purpose};
use skep_policy::egress::{Host, Name, Protocol, Question, Verdict, reason};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// Addresses tried one after the other.
const MOST_TRIED: usize = 4;
/// How long one may take before the next is tried as well.
const NEXT_AFTER: Duration = Duration::from_millis(250);

/// Where somebody inside wants to go.
#[derive(Debug, Clone)]
pub(crate) struct Destination {
    /// The name, if they asked a proxy for it by name.
    pub(crate) name: Option<Name>,
    /// The address they dialled, or the checked addresses of the name.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) port: u16,
}

/// A yes: what may be dialled, and by which rule.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    pub(crate) name: Option<Name>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) port: u16,
    pub(crate) protocol: Protocol,
    pub(crate) rule: String,
}

/// A connection that was dialled before it was known what for, and where it leads.
pub(crate) type Dialled = Option<(TcpStream, IpAddr)>;

/// A no.
#[derive(Debug, Clone)]
pub(crate) struct Denial {
    pub(crate) reason: &'static str,
    pub(crate) hint: String,
    /// The address because of which a name is refused.
    pub(crate) address: Option<IpAddr>,
}

impl Denial {
    pub(crate) fn new(reason: &'static str, hint: impl Into<String>) -> Self {
        Self { reason, hint: hint.into(), address: None }
    }
}

impl Destination {
    /// How the log and answers call it when nothing better is known.
    pub(crate) fn shown(&self, gateway: &Gateway) -> String {
        if let Some(name) = &self.name {
            return name.to_string();
        }
        let Some(address) = self.addresses.first() else { return String::new() };
        match gateway.names.of_address(*address).first() {
            Some(name) => name.to_string(),
            None => Host::Address(*address).to_string(),
        }
    }
}

impl Gateway {
    /// Whether a connection may speak `protocol` with the host that it `claims` to want.
    ///
    /// - Asked by name (CONNECT, SOCKS): a claim must be that name, and each address that is
    ///   dialled must be allowed for it.
    /// - Dialled by address: a rule for the address allows it whatever it claims; else the
    ///   claimed name must be allowed *and* lead to that address.
    /// - Without a claim: raw bytes may go to an address that was given out for an allowed name;
    ///   TLS and HTTP without a name only where a rule names the address.
    pub(crate) async fn judge(
        &self,
        destination: &Destination,
        claim: Option<&Name>,
        protocol: Protocol,
    ) -> Result<Grant, Denial> {
        match &destination.name {
            Some(name) if claim.is_some_and(|claim| claim != name) => Err(Denial::new(
                reason::SERVER_NAME,
                format!("the connection was opened for `{name}` and asks for another host"),
            )),
            Some(name) => self.by_name(destination, name, protocol),
            None => self.by_address(destination, claim, protocol).await,
        }
    }

    fn by_name(
        &self,
        destination: &Destination,
        name: &Name,
        protocol: Protocol,
    ) -> Result<Grant, Denial> {
        let rules = self.rules();
        let mut granted = Vec::new();
        let mut by_rule = String::new();
        let mut denial = Denial::new(reason::NO_ANSWER, "the name has no address");
        for address in &destination.addresses {
            let question = Question {
                name: Some(name),
                address: Some(*address),
                port: destination.port,
                protocol,
            };
            match rules.decide(&question) {
                Verdict::Allow { rule } => {
                    granted.push(*address);
                    by_rule = rule;
                }
                Verdict::Deny { reason, hint } => denial = Denial::new(reason, hint),
            }
        }
        if granted.is_empty() {
            return Err(denial);
        }
        Ok(Grant {
            name: Some(name.clone()),
            addresses: granted,
            port: destination.port,
            protocol,
            rule: by_rule,
        })
    }

    async fn by_address(
        &self,
        destination: &Destination,
        claim: Option<&Name>,
        protocol: Protocol,
    ) -> Result<Grant, Denial> {
        let Some(address) = destination.addresses.first().copied() else {
            return Err(Denial::new(reason::BAD_HOST, "there is no address"));
        };
        let rules = self.rules();
        let ask = |name: Option<&Name>| {
            rules.decide(&Question {
                name,
                address: Some(address),
                port: destination.port,
                protocol,
            })
        };
        let grant = |name: Option<&Name>, rule: String| Grant {
            name: name.cloned(),
            addresses: vec![address],
            port: destination.port,
            protocol,
            rule,
        };
        // A rule for the address itself.
        let plain = ask(None);
        let by_rule = rules.rules().any(|labelled| labelled.rule.has_address(address));
        match (claim, plain) {
            (claim, Verdict::Allow { rule }) if by_rule => {
                match claim.map(|name| ask(Some(name))) {
                    Some(Verdict::Deny { reason, hint }) => Err(Denial::new(reason, hint)),
                    _ => Ok(grant(claim, rule)),
                }
            }
            (Some(name), _) => match ask(Some(name)) {
                Verdict::Allow { rule } if self.names.leads_to(&rules, name, address).await => {
                    Ok(grant(Some(name), rule))
                }
                Verdict::Allow { .. } => Err(Denial::new(
                    reason::ADDRESS_NOT_OF_NAME,
                    format!("`{name}` does not lead to {address}; let the program resolve it"),
                )),
                Verdict::Deny { reason, hint } => Err(Denial::new(reason, hint)),
            },
            (None, plain) => {
                let mut nearest = plain;
                for name in self.names.of_address(address) {
                    match ask(Some(&name)) {
                        Verdict::Allow { rule } if protocol == Protocol::Tcp => {
                            return Ok(grant(Some(&name), rule));
                        }
                        Verdict::Allow { .. } => {
                            let hint =
                                format!("the connection does not say that it is for `{name}`");
                            return Err(Denial::new(reason::SERVER_NAME, hint));
                        }
                        verdict @ Verdict::Deny { .. } => nearest = verdict,
                    }
                }
                match nearest {
                    Verdict::Allow { rule } => Ok(grant(None, rule)),
                    Verdict::Deny { reason, hint } => Err(Denial::new(reason, hint)),
                }
            }
        }
    }

    /// Whether anything at all could be allowed there; decides how patiently first bytes are
    /// waited for, and nothing else.
    pub(crate) fn could_allow(&self, destination: &Destination) -> Result<(), Denial> {
        let rules = self.rules();
        let mut names: Vec<Option<Name>> = match &destination.name {
            Some(name) => vec![Some(name.clone())],
            None => {
                let address = destination.addresses.first().copied();
                address
                    .map(|ip| self.names.of_address(ip))
                    .unwrap_or_default()
                    .into_iter()
                    .map(Some)
                    .collect()
            }
        };
        if destination.name.is_none() {
            names.push(None);
        }
        let mut denial = Denial::new(reason::BAD_HOST, "there is no address");
        for name in &names {
            for address in destination.addresses.iter().map(|ip| Some(*ip)).chain(
                // Not resolved yet: the name alone.
                destination.addresses.is_empty().then_some(None),
            ) {
                for protocol in [Protocol::Tls, Protocol::Http, Protocol::Tcp] {
                    let question =
                        Question { name: name.as_ref(), address, port: destination.port, protocol };
                    match rules.decide(&question) {
                        Verdict::Allow { .. } => return Ok(()),
                        Verdict::Deny { reason, hint } => denial = Denial::new(reason, hint),
                    }
                }
            }
        }
        Err(denial)
    }

    /// Dials for somebody who asked a proxy, if a rule allows the host and port whatever is said; the rest is
    /// judged by what is said. `None` where only a name that is said later could be allowed.
    pub(crate) async fn dial_ahead(&self, destination: &Destination) -> Result<Dialled, Denial> {
        for protocol in [Protocol::Tls, Protocol::Tcp, Protocol::Http] {
            if let Ok(grant) = self.judge(destination, None, protocol).await {
                return self.dial(&grant).await.map(Some);
            }
        }
        Ok(None)
    }

    /// Dials what was granted: exactly those addresses, in order, the next one when the one before has
    /// failed or takes its time.
    pub(crate) async fn dial(&self, grant: &Grant) -> Result<(TcpStream, IpAddr), Denial> {
        let patience = Duration::from_secs(self.limits.dial_seconds);
        match tokio::time::timeout(patience, first_of(&grant.addresses, grant.port)).await {
            Ok(Some(found)) => Ok(found),
            _ => Err(Denial::new(
                reason::UNREACHABLE,
                "it is allowed, and the other side does not take the connection",
            )),
        }
    }
}

/// The first of them that takes the connection (RFC 8305, 5, without its sorting).
async fn first_of(addresses: &[IpAddr], port: u16) -> Option<(TcpStream, IpAddr)> {
    let connect = move |address: IpAddr| async move {
        let socket = match address {
            IpAddr::V4(_) => TcpSocket::new_v4(),
            IpAddr::V6(_) => TcpSocket::new_v6(),
        };
        let socket = socket.ok()?;
        // skep's own listeners take nothing from here.
        skep_sys::from_inside::mark(&socket, address).ok()?;
        let stream = socket.connect(SocketAddr::new(address, port)).await.ok()?;
        let _ = stream.set_nodelay(true);
        Some((stream, address))
    };
    if let [only] = addresses {
        return connect(*only).await;
    }
    let mut rest = addresses.iter().take(MOST_TRIED);
    let mut under_way = JoinSet::new();
    loop {
        let next = rest.next();
        if let Some(address) = next {
            under_way.spawn(connect(*address));
        }
        let wait = if next.is_some() { NEXT_AFTER } else { Duration::MAX };
        match tokio::time::timeout(wait, under_way.join_next()).await {
            Ok(Some(Ok(Some(found)))) => return Some(found),
            Ok(None) => return None,
            Ok(Some(_)) | Err(_) => {}
        }
    }
}

impl Grant {
    /// For the list of open connections.
    pub(crate) fn purpose(&self, address: IpAddr) -> Purpose {
        Purpose { name: self.name.clone(), address, port: self.port, protocol: self.protocol }
    }

    /// How it is called in the log.
    pub(crate) fn shown(&self) -> String {
        match (&self.name, self.addresses.first()) {
            (Some(name), _) => name.to_string(),
            (None, Some(address)) => Host::Address(*address).to_string(),
            (None, None) => String::new(),
        }
    }
}
