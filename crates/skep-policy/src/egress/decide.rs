//! The decision: rules and a question in, a verdict with its reason out.

use super::class::{AddressClass, classify, is_metadata_name};
use super::host::{Host, Name};
use super::reason;
use super::rule::{Protocol, Rule, RuleError};
use super::{presets, rule};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// A rule, and the words it came from: `@github` brings several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledRule {
    /// What is shown: the preset's name, or the rule itself.
    pub label: String,
    /// What it allows.
    pub rule: Rule,
}

/// All that is allowed. Empty means nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleSet {
    rules: Vec<LabelledRule>,
}

/// What somebody inside wants.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The name they gave, proven to belong to the address by whoever asks.
    pub name: Option<&'a Name>,
    /// The address that will be dialled.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: u16,
    /// What is spoken.
    pub protocol: Protocol,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Yes, by this rule.
    Allow {
        /// The rule, as it was written.
        rule: String,
    },
    /// No.
    Deny {
        /// One of [`reason`].
        reason: &'static str,
        /// What to do about it.
        hint: String,
    },
}

impl Verdict {
    /// Whether it is yes.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow { .. })
    }

    /// A refusal.
    pub fn deny(reason: &'static str, hint: impl Into<String>) -> Self {
        Self::Deny { reason, hint: hint.into() }
    }
}

impl RuleSet {
    /// Reads rules and presets (`@name`), as a person writes them. All or nothing.
    pub fn parse<T: AsRef<str>>(texts: &[T]) -> Result<Self, RuleError> {
        let mut rules = Vec::new();
        for text in texts {
            let text = text.as_ref();
            if text.starts_with('@') {
                for rule in presets::rules(text)? {
                    rules.push(LabelledRule { label: text.to_owned(), rule });
                }
            } else {
                let rule = Rule::parse(text)?;
                rules.push(LabelledRule { label: rule.to_string(), rule });
            }
        }
        Ok(Self { rules })
    }

    /// The rules.
    pub fn rules(&self) -> impl Iterator<Item = &LabelledRule> {
        self.rules.iter()
    }

    /// Whether nothing can pass.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The canonical texts, presets by name, each once, in order: what is stored and shown.
    pub fn labels(&self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let labels = self.rules.iter().map(|labelled| &labelled.label);
        labels.filter(|label| seen.insert(*label)).cloned().collect()
    }

    /// Literal addresses that are not public, with their ports: what the sandbox's own network
    /// must hand over instead of keeping (`127.0.0.1:3000` means the host's).
    pub fn literals(&self) -> impl Iterator<Item = (IpAddr, u16)> {
        self.rules.iter().filter_map(|LabelledRule { rule, .. }| match (&rule.target, rule.ports) {
            (rule::Target::Address(address), rule::Ports::One(port))
                if classify(*address) != AddressClass::Public =>
            {
                Some((*address, port))
            }
            _ => None,
        })
    }

    /// Whether a name may be asked for in DNS: some rule speaks of it, on whatever port.
    pub fn decide_name(&self, name: &Name) -> Verdict {
        if is_metadata_name(name) {
            return metadata();
        }
        match self.rules.iter().find(|labelled| labelled.rule.names(name)) {
            Some(labelled) => allow(labelled),
            None => Verdict::deny(
                reason::NOT_ALLOWED,
                format!("no rule allows `{name}`; `--allow {name}` would"),
            ),
        }
    }

    /// Whether an address may be an answer for an allowed name: public, or named by a literal.
    /// The port is not known yet; it is asked for when the connection comes.
    pub fn decide_answer(&self, address: IpAddr) -> Verdict {
        let class = classify(address);
        match class.reason() {
            None => Verdict::Allow { rule: String::new() },
            Some(_) if class == AddressClass::Metadata => metadata(),
            Some(reason) => {
                let literal =
                    |own: &&LabelledRule| own.rule.is_literal() && own.rule.has_address(address);
                match self.rules.iter().find(literal) {
                    Some(labelled) => allow(labelled),
                    None => near(reason, address, None),
                }
            }
        }
    }

    /// Whether a connection, or a request on it, may go out.
    ///
    /// 1. A metadata service: never, by name or by address.
    /// 2. An address that is not public: only if a rule names that very address and port.
    /// 3. A rule that speaks of the name or of the address, of the port and of the protocol.
    ///
    /// Without an address (it is not known yet) only 1 and 3 are asked: whoever dials asks again.
    pub fn decide(&self, question: &Question<'_>) -> Verdict {
        let class = question.address.map(classify);
        if question.name.is_some_and(is_metadata_name) || class == Some(AddressClass::Metadata) {
            return metadata();
        }
        if let (Some(address), Some(reason)) =
            (question.address, class.and_then(AddressClass::reason))
        {
            let literal = |own: &LabelledRule| {
                own.rule.is_literal()
                    && own.rule.has_address(address)
                    && own.rule.has_port(question.port)
            };
            if !self.rules.iter().any(literal) {
                return near(reason, address, Some(question.port));
            }
        }
        self.by_rules(question)
    }

    fn by_rules(&self, question: &Question<'_>) -> Verdict {
        let speaks_of = |own: &&LabelledRule| {
            question.name.is_some_and(|name| own.rule.names(name))
                || question.address.is_some_and(|address| own.rule.has_address(address))
        };
        let mut named = false;
        let mut right_port = false;
        for labelled in self.rules.iter().filter(speaks_of) {
            named = true;
            if labelled.rule.has_port(question.port) {
                right_port = true;
                if labelled.rule.speaks(question.protocol, question.port) {
                    return allow(labelled);
                }
            }
        }
        refuse(question, named, right_port)
    }

    /// Whether some rule lets bytes for this destination pass unseen. Only a rule that says
    /// `tcp://` does.
    pub fn is_blind(&self, name: Option<&Name>, address: IpAddr, port: u16) -> bool {
        let question = Question { name, address: Some(address), port, protocol: Protocol::Tcp };
        self.decide(&question).is_allowed()
            && self.rules.iter().any(|own| {
                own.rule.is_blind()
                    && own.rule.has_port(port)
                    && (name.is_some_and(|name| own.rule.names(name))
                        || own.rule.has_address(address))
            })
    }
}

fn allow(labelled: &LabelledRule) -> Verdict {
    Verdict::Allow { rule: labelled.label.clone() }
}

fn metadata() -> Verdict {
    Verdict::deny(reason::METADATA, "a cloud's metadata service is never reachable")
}

fn near(reason: &'static str, address: IpAddr, port: Option<u16>) -> Verdict {
    let host = Host::Address(address);
    // There are addresses that no rule may name: nobody's, and many at once.
    let cure = match Rule::parse(&format!("{host}:{}", port.unwrap_or(1))) {
        Ok(_) => {
            let port = port.map_or_else(|| "PORT".to_owned(), |port| port.to_string());
            format!("`--allow {host}:{port}` would allow it")
        }
        Err(_) => "no rule can allow it".to_owned(),
    };
    Verdict::deny(reason, format!("`{host}` is not a public address ({reason}); {cure}"))
}

fn refuse(question: &Question<'_>, named: bool, right_port: bool) -> Verdict {
    let host = match (question.name, question.address) {
        (Some(name), _) => name.to_string(),
        (None, Some(address)) => Host::Address(address).to_string(),
        (None, None) => return Verdict::deny(reason::BAD_HOST, "the request names no host"),
    };
    let Question { port, protocol, .. } = question;
    if right_port {
        return Verdict::deny(
            reason::PROTOCOL_NOT_ALLOWED,
            format!(
                "`{host}:{port}` is allowed for another protocol than {protocol}; \
                 `--allow {protocol}://{host}:{port}` would allow it"
            ),
        );
    }
    let usual = matches!((port, protocol), (443, Protocol::Tls) | (80, Protocol::Http));
    let rule = if usual && !named { host.clone() } else { format!("{host}:{port}") };
    if named {
        let hint =
            format!("`{host}` is allowed on other ports; `--allow {rule}` would allow this one");
        return Verdict::deny(reason::PORT_NOT_ALLOWED, hint);
    }
    Verdict::deny(reason::NOT_ALLOWED, format!("no rule allows `{host}`; `--allow {rule}` would"))
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
