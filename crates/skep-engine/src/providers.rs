//! Choosing a provider: what was named is taken or refused, `auto` is the cheapest that holds what the
//! policy asks for. Nothing falls back by itself.
//!
//! Whether a provider works is found out by trying, which may take longer than a whole run. So the
//! answer is remembered in the state directory for a short time, a refusal for a shorter one: who
//! has just installed what was missing does not want to wait.

use crate::api::{Finding, ProviderView};
use crate::{Desk, Engine};
use serde::{Deserialize, Serialize};
use skep_policy::Settings;
use skep_provider::capabilities::Selection;
use skep_provider::{Look, Provider, ProviderError};
use skep_types::{Code, NetworkMode, Policy, Problem, Sandbox};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Clock ticks (hundredths of a second) for which a success is believed.
const BELIEVED: u64 = 60_00;
/// And a failure.
const FAILURE_BELIEVED: u64 = 10_00;

/// An answer that was found by trying.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    boot: String,
    ticks: u64,
    refusal: Option<Refusal>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Refusal {
    reason: String,
    remedy: String,
}

impl Remembered {
    fn is_fresh(&self, boot: &str, now: u64) -> bool {
        let limit = if self.refusal.is_some() { FAILURE_BELIEVED } else { BELIEVED };
        self.boot == boot && now >= self.ticks && now - self.ticks <= limit
    }
}

impl Desk {
    /// The provider that a word means.
    pub(crate) fn provider(&self, word: &str) -> Result<&dyn Provider, Problem> {
        let known = || format!("this skep has: {}", self.provider_words().join(", "));
        let mut all = self.providers.iter();
        all.find(|provider| provider.serves(word)).map(AsRef::as_ref).ok_or_else(|| {
            Problem::new(Code::ProviderUnavailable, format!("there is no provider `{word}`"))
                .hint(known())
        })
    }

    fn provider_words(&self) -> Vec<String> {
        self.providers.iter().flat_map(|provider| provider.words()).collect()
    }

    /// The word of the provider to take.
    pub(crate) fn choose_provider(
        &self,
        settings: &Settings,
        typed: Option<NetworkMode>,
    ) -> Result<String, Problem> {
        match settings.provider.as_str() {
            "auto" => self.choose_automatically(&settings.policy),
            word => {
                let provider = self.provider(word)?;
                let lack = provider.capabilities(word).lacks(&settings.policy, typed);
                if let Some(lack) = lack {
                    return Err(lacking(word, &lack));
                }
                self.try_out(provider, word).map_err(|refusal| unavailable(word, &refusal))?;
                Ok(word.to_owned())
            }
        }
    }

    /// Candidates in the order of the list, which is by what they cost; those with a kernel of
    /// their own only if that is required, because it costs seconds. The first that satisfies the
    /// policy and works is taken: all before it are either too weak for the policy or not there,
    /// and none after it is stronger in what was asked for.
    fn choose_automatically(&self, policy: &Policy) -> Result<String, Problem> {
        let mut refusals = Vec::new();
        let mut remedy = None;
        for selection in [Selection::Always, Selection::WhenRequired] {
            for provider in &self.providers {
                for word in provider.words() {
                    let capabilities = provider.capabilities(&word);
                    if capabilities.selection != selection {
                        continue;
                    }
                    if selection == Selection::WhenRequired && policy.require.is_empty() {
                        continue;
                    }
                    if let Some(lack) = capabilities.lacks(policy, None) {
                        refusals.push(format!("{word}: {lack}"));
                        continue;
                    }
                    match self.try_out(provider.as_ref(), &word) {
                        Ok(()) => return Ok(word),
                        Err(refusal) => {
                            refusals.push(format!("{word}: {}", refusal.reason));
                            remedy.get_or_insert(refusal.remedy);
                        }
                    }
                }
            }
        }
        let message = format!("no provider satisfies the policy here: {}", refusals.join("; "));
        Err(Problem::new(Code::ProviderUnavailable, message).hint(remedy.unwrap_or_else(|| {
            match policy.image {
                Some(_) => "an image needs a provider that is named: `--provider oci:runc`, `docker` or `microvm`".into(),
                None => "see `skep providers`; a weaker one is never taken by itself".into(),
            }
        })))
    }

    /// Whether it works: remembered, or tried now.
    fn try_out(&self, provider: &dyn Provider, word: &str) -> Result<(), Refusal> {
        let boot = skep_sys::process::boot_id().unwrap_or_default();
        let mut memory = self.read_probes();
        let now = skep_sys::process::ticks_since_boot();
        let key = provider.circumstances(word);
        if let Some(known) = memory.get(&key).filter(|known| known.is_fresh(&boot, now)) {
            return known.refusal.clone().map_or(Ok(()), Err);
        }
        let refusal = provider.probe(word).err().map(refusal);
        let ticks = skep_sys::process::ticks_since_boot();
        memory.insert(key, Remembered { boot, ticks, refusal: refusal.clone() });
        self.write_probes(&memory);
        refusal.map_or(Ok(()), Err)
    }

    fn probes(&self) -> PathBuf {
        self.layout().root().join("providers.json")
    }

    fn read_probes(&self) -> BTreeMap<String, Remembered> {
        let bytes = std::fs::read(self.probes()).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// What cannot be remembered is tried again.
    fn write_probes(&self, memory: &BTreeMap<String, Remembered>) {
        let temporary = self
            .layout()
            .root()
            .join(format!("providers.json.{}", rustix::process::getpid().as_raw_nonzero()));
        let Ok(text) = serde_json::to_vec(memory) else { return };
        if std::fs::write(&temporary, text).is_err()
            || std::fs::rename(&temporary, self.probes()).is_err()
        {
            let _ = std::fs::remove_file(&temporary);
        }
    }

    /// Every provider, what it can do and whether it works here, as far as a quick look tells.
    pub(crate) fn list_providers(&self) -> Vec<ProviderView> {
        let words = |provider| {
            let provider: &dyn Provider = provider;
            provider.words().into_iter().map(move |word| view(provider, word))
        };
        self.providers.iter().flat_map(|provider| words(provider.as_ref())).collect()
    }

    pub(crate) fn provider_findings(&self) -> Vec<Finding> {
        let finding = |view: ProviderView| Finding {
            name: format!("provider {}", view.name),
            ok: view.ok,
            tried: view.tried,
            how: format!("{}; boundary: {}", view.how, view.capabilities.boundary.as_str()),
            reason: view.reason,
            remedy: view.remedy,
        };
        self.list_providers().into_iter().map(finding).collect()
    }
}

impl Engine {
    pub(crate) fn facts_of(&self, sandbox: &Sandbox) -> BTreeMap<String, String> {
        match self.provider(&sandbox.provider) {
            Ok(provider) if self.is_running(sandbox) => provider.facts(&self.run_spec(sandbox)),
            _ => BTreeMap::new(),
        }
    }
}

fn view(provider: &dyn Provider, word: String) -> ProviderView {
    let view = ProviderView {
        capabilities: provider.capabilities(&word),
        ok: false,
        tried: true,
        how: "looked for what it needs".into(),
        reason: None,
        remedy: None,
        name: word,
    };
    match provider.look(&view.name) {
        Ok(Look { how, untried: None }) => ProviderView { ok: true, how, ..view },
        Ok(Look { how, untried: Some(reason) }) => ProviderView {
            tried: false,
            how,
            reason: Some(reason),
            remedy: Some(format!(
                "`skep doctor --try` tries it, and so does `--provider {}`",
                view.name
            )),
            ..view
        },
        Err(error) => {
            let Refusal { reason, remedy } = refusal(error);
            ProviderView { reason: Some(reason), remedy: Some(remedy), ..view }
        }
    }
}

fn refusal(error: ProviderError) -> Refusal {
    match error {
        ProviderError::Missing { reason, remedy, .. } => Refusal { reason, remedy },
        other => Refusal {
            reason: skep_types::chain(&other),
            remedy: "see `skep doctor` for what this host lacks".into(),
        },
    }
}

fn unavailable(word: &str, refusal: &Refusal) -> Problem {
    let message = format!("provider `{word}` does not work here: {}", refusal.reason);
    Problem::new(Code::ProviderUnavailable, message).hint(refusal.remedy.clone())
}

fn lacking(word: &str, lack: &str) -> Problem {
    let message = format!("provider `{word}` does not do this: {lack}");
    Problem::new(Code::MissingCapability, message)
        .hint("see `skep providers` for what each one can do, or leave `--provider` out")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_believed_for_a_shorter_time() {
        let refused = Refusal { reason: "no".into(), remedy: "do".into() };
        let at = |refusal| Remembered { boot: "b".into(), ticks: 100, refusal };
        assert!(at(None).is_fresh("b", 100 + BELIEVED));
        assert!(!at(None).is_fresh("b", 101 + BELIEVED));
        assert!(!at(Some(refused.clone())).is_fresh("b", 101 + FAILURE_BELIEVED));
        assert!(at(Some(refused)).is_fresh("b", 100 + FAILURE_BELIEVED));
        assert!(!at(None).is_fresh("another boot", 100));
        assert!(!at(None).is_fresh("b", 99));
    }
}
