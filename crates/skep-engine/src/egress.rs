//! The way out of a sandbox: its secrets at a start, its log, and changes while it runs.

use crate::api::{EgressChange, EgressChanged, EgressProbe, EgressView};
use crate::problems::{OrProblem, io_problem};
use crate::{Desk, Engine};
use serde_json::json;
use skep_policy::egress::{RuleSet, covers};
use skep_provider::{RunSecrets, RunSpec};
use skep_sys::failpoint;
use skep_types::{
    Code, EgressDeath, EgressEntry, NetworkMode, Policy, Problem, Sandbox, SandboxId, SecretSource,
    SecretValue,
};
use std::io::{Read, Seek, SeekFrom};

/// The log's name in a sandbox's directory.
pub(crate) const LOG: &str = "egress.jsonl";
/// At most this much of the log's end is read.
const LARGEST_LOG: u64 = 32 << 20;

impl Desk {
    /// What a provider must know to start a sandbox: with the values of its secrets, read anew.
    pub(crate) fn start_spec(&self, sandbox: &Sandbox) -> Result<RunSpec, Problem> {
        let mut spec = self.run_spec(sandbox);
        let policy = &sandbox.policy.egress;
        let mut secrets = RunSecrets::default();
        for secret in &policy.secrets {
            let value = self.secret(&secret.name, &secret.source)?;
            secrets.edge.insert(secret.name.clone(), value);
        }
        for secret in &policy.secret_env {
            let value = self.secret(&secret.name, &secret.source)?;
            secrets.plain.insert(secret.name.clone(), value);
        }
        spec.secrets = secrets;
        Ok(spec)
    }

    fn secret(&self, name: &str, source: &SecretSource) -> Result<SecretValue, Problem> {
        (self.config.secret)(source).map_err(|reason| {
            let message = format!("cannot read secret `{name}` from `{source}`: {reason}");
            Problem::new(Code::Refused, message)
                .hint("the value is kept nowhere, so it is read at every start of the sandbox")
        })
    }
}

impl Engine {
    pub(crate) fn egress_view(&self, id: &SandboxId) -> Result<EgressView, Problem> {
        let sandbox = self.load(id)?;
        let directory = self.layout().sandbox(&sandbox.id);
        Ok(EgressView {
            network: sandbox.policy.network,
            allow: sandbox.policy.egress.allow.clone(),
            entries: read_log(&directory.join(LOG))?,
            death: self.egress_death(&sandbox)?,
        })
    }

    /// How the egress process last died, if it did. The first to see it tells it by an event: the
    /// keeper, which saw it happen, knows nothing of the store.
    pub(crate) fn egress_death(&self, sandbox: &Sandbox) -> Result<Option<EgressDeath>, Problem> {
        if sandbox.policy.network != NetworkMode::Allow {
            return Ok(None);
        }
        let directory = self.layout().sandbox(&sandbox.id);
        let Ok(bytes) = std::fs::read(directory.join(EgressDeath::FILE)) else { return Ok(None) };
        // It may be half written; whoever looks next sees the whole.
        let Ok(death) = serde_json::from_slice::<EgressDeath>(&bytes) else { return Ok(None) };
        if std::fs::File::create_new(directory.join(death.told())).is_ok() {
            let data = json!({ "why": death.why, "deaths": death.deaths, "again": death.again });
            let event = self.event("egress.died", &sandbox.id, None, data);
            self.store.append_events(&[event]).or_problem()?;
        }
        Ok(Some(death))
    }

    /// Takes rules away and adds some, in the running sandbox and in its policy. Whoever dies in between leaves a
    /// sandbox that reaches no more than is written:
    ///
    /// 1. What is taken away is taken from the running sandbox.
    /// 2. The row says what holds from now on.
    /// 3. What is added is reached.
    pub(crate) fn change_egress_of(
        &self,
        id: &SandboxId,
        change: &EgressChange,
    ) -> Result<EgressChanged, Problem> {
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        let own = self.settings(None, None)?.0.egress_presets;
        let change = &EgressChange {
            allow: skep_policy::with_own_presets(&change.allow, &own),
            deny: skep_policy::with_own_presets(&change.deny, &own),
        };
        let had = &sandbox.policy.egress.allow;
        let rules = changed_rules(had, change)?;
        let less = EgressChange { allow: Vec::new(), deny: change.deny.clone() };
        let narrowed = changed_rules(had, &less)?;
        let running = self.is_running(&sandbox);
        let network = match sandbox.policy.network {
            NetworkMode::Host => return Err(host_network(&sandbox)),
            NetworkMode::None if running => return Err(no_network(&sandbox)),
            NetworkMode::None if rules.is_empty() => NetworkMode::None,
            NetworkMode::None | NetworkMode::Allow => NetworkMode::Allow,
        };
        let reach = |why: &[String], rules: &[String]| match running && !why.is_empty() {
            true => {
                let provider = self.provider(&sandbox.provider)?;
                provider.reach(&self.run_spec(&sandbox), rules).or_problem()
            }
            false => Ok(0),
        };
        let dies = |name| {
            failpoint::hit(name).map_err(|error| io_problem("change", self.layout().root(), &error))
        };
        let cut = reach(&change.deny, &narrowed)?;
        dies("egress.narrowed")?;
        let data = json!({ "allow": change.allow, "deny": change.deny, "cut": cut });
        let written = self.update(id, "egress.changed", data, &mut |row| {
            row.policy.egress.allow.clone_from(&rules);
            row.policy.network = network;
        })?;
        dies("egress.written")?;
        if let Err(problem) = reach(&change.allow, &rules) {
            // It is not reached, and so it is not written either.
            let data = json!({ "allow": [], "deny": change.allow, "cut": 0 });
            self.update(id, "egress.changed", data, &mut |row| {
                row.policy.egress.allow.clone_from(&narrowed);
            })?;
            return Err(problem);
        }
        Ok(EgressChanged { allow: rules, cut, version: written.version })
    }

    /// Forgets a secret, in the running sandbox and in its policy.
    pub(crate) fn revoke_secret_of(&self, id: &SandboxId, name: &str) -> Result<u64, Problem> {
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        if !sandbox.policy.egress.secrets.iter().any(|secret| secret.name == name) {
            if sandbox.policy.egress.secret_env.iter().any(|secret| secret.name == name) {
                let message = format!("the plain value of `{name}` is inside already");
                let hint = "what was given with `--secret-env` cannot be taken back";
                return Err(Problem::new(Code::Refused, message).hint(hint));
            }
            let message = format!("sandbox `{}` has no secret `{name}`", sandbox.name);
            return Err(Problem::new(Code::NotFound, message));
        }
        let cut = match self.is_running(&sandbox) {
            true => {
                let provider = self.provider(&sandbox.provider)?;
                provider.revoke(&self.run_spec(&sandbox), name).or_problem()?
            }
            false => 0,
        };
        let data = json!({ "secret": name, "cut": cut });
        self.update(id, "egress.revoked", data, &mut |row| {
            row.policy.egress.secrets.retain(|secret| secret.name != name);
        })?;
        Ok(cut)
    }

    /// Tries from inside whether hosts can be reached.
    pub(crate) fn probe_egress_of(
        &self,
        id: &SandboxId,
        targets: &[(String, u16)],
    ) -> Result<Vec<EgressProbe>, Problem> {
        let sandbox = self.ensure_running(self.load(id)?)?;
        let provider = self.provider(&sandbox.provider)?;
        provider.knock(&self.run_spec(&sandbox), targets).or_problem()
    }
}

/// Whether what was typed fits together; checked before anything is made.
pub(crate) fn check_policy(policy: &Policy) -> Result<(), Problem> {
    let usage = |message: String| Problem::new(Code::Usage, message);
    let egress = &policy.egress;
    if policy.network == NetworkMode::Host && !egress.publish.is_empty() {
        return Err(usage("`--publish` has nothing to do with `--net host`".into())
            .hint("a server inside listens on the host's own ports then"));
    }
    let literals = RuleSet::parse(&egress.allow)
        .map_err(|error| Problem::from_error(Code::Usage, &error))?
        .literals()
        .filter(|(address, _)| address.is_loopback())
        .map(|(_, port)| port)
        .collect::<Vec<_>>();
    if let Some(port) =
        egress.publish.iter().map(|port| port.inside).find(|port| literals.contains(port))
    {
        let message = format!("port {port} inside cannot be published and be the host's at once");
        return Err(usage(message).hint(format!(
            "a rule for a loopback address means the host's; publish another port, as in `--publish {port}:PORT`"
        )));
    }
    if let (Some(secret), false) = (egress.secrets.first(), policy.network == NetworkMode::Allow) {
        let message = format!("secret `{}` needs a way out", secret.name);
        return Err(
            usage(message).hint(format!("add `--allow {}`", secret.hosts.join(" --allow ")))
        );
    }
    let found = skep_policy::unreachable_secret(egress)
        .map_err(|error| Problem::from_error(Code::Usage, &error))?;
    if let Some((secret, host)) = found {
        let message =
            format!("secret `{}` is for `{host}`, which no rule allows in TLS", secret.name);
        let hint = "a secret goes out only in TLS that is not passed unseen (`tcp://`)";
        return Err(usage(message).hint(format!("add `--allow {host}`; {hint}")));
    }
    Ok(())
}

fn changed_rules(now: &[String], change: &EgressChange) -> Result<Vec<String>, Problem> {
    let parse = |texts: &[String]| {
        RuleSet::parse(texts).map_err(|error| Problem::from_error(Code::Usage, &error))
    };
    let mut rules = parse(now)?.labels();
    for text in &change.deny {
        let denied = parse(std::slice::from_ref(text))?;
        let before = rules.len();
        let mut kept = Vec::new();
        for label in rules {
            let held = parse(std::slice::from_ref(&label))?;
            let gone = held
                .rules()
                .all(|held| denied.rules().any(|denied| covers(&denied.rule, &held.rule)));
            if !gone {
                kept.push(label);
            }
        }
        rules = kept;
        if rules.len() == before {
            return Err(not_taken_away(text, now));
        }
    }
    for label in parse(&change.allow)?.labels() {
        if !rules.contains(&label) {
            rules.push(label);
        }
    }
    Ok(rules)
}

fn not_taken_away(text: &str, rules: &[String]) -> Problem {
    let hint = match rules.is_empty() {
        true => "nothing is allowed".to_owned(),
        false => format!("what is allowed, each to be denied as a whole: {}", rules.join(", ")),
    };
    Problem::new(Code::NotFound, format!("no rule is inside `{text}`")).hint(hint)
}

fn host_network(sandbox: &Sandbox) -> Problem {
    let message = format!("sandbox `{}` has the host's network; there are no rules", sandbox.name);
    Problem::new(Code::Refused, message)
}

fn no_network(sandbox: &Sandbox) -> Problem {
    let name = &sandbox.name;
    let message = format!("sandbox `{name}` was started without a way out");
    Problem::new(Code::IllegalState, message)
        .hint(format!("`skep stop {name}`, then this again, then `skep start {name}`"))
}

/// Whole lines of the log's end; a line being written is left out.
fn read_log(path: &std::path::Path) -> Result<Vec<EgressEntry>, Problem> {
    let failed = |error: std::io::Error| io_problem("read", path, &error);
    let mut file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let length = file.metadata().map_err(failed)?.len();
    let start = length.saturating_sub(LARGEST_LOG);
    file.seek(SeekFrom::Start(start)).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(LARGEST_LOG).read_to_end(&mut bytes).map_err(failed)?;
    let lines = bytes.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(now: &[&str], allow: &[&str], deny: &[&str]) -> Result<Vec<String>, Problem> {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let change = EgressChange { allow: texts(allow), deny: texts(deny) };
        changed_rules(&texts(now), &change)
    }

    #[test]
    fn rules_come_and_go() {
        assert_eq!(changed(&["a.test"], &["B.test."], &[]).unwrap(), ["a.test", "b.test"]);
        assert_eq!(changed(&["a.test"], &["a.test"], &[]).unwrap(), ["a.test"]);
        assert_eq!(changed(&["a.test", "b.a.test"], &[], &["*.a.test"]).unwrap(), ["a.test"]);
        assert_eq!(changed(&["@github", "a.test"], &[], &["@github"]).unwrap(), ["a.test"]);
    }

    #[test]
    fn a_part_of_a_rule_cannot_be_taken_away() {
        let problem = changed(&["*.a.test"], &[], &["b.a.test"]).unwrap_err();
        assert!(problem.hint.unwrap().contains("*.a.test"));
        assert!(changed(&[], &[], &["a.test"]).is_err());
        assert!(changed(&[], &["*"], &[]).is_err());
    }
}
