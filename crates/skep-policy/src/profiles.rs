//! Profiles: named policies, the built-in ones as data and the user's own.

use crate::config::{ConfigDocument, ProfileDocument};
use crate::settings::SettingsError;
use std::borrow::Cow;
use std::collections::BTreeMap;

// `PROFILES`: name and value of each, made from the list by `build.rs`.
include!(concat!(env!("OUT_DIR"), "/profiles.rs"));

/// The profile that is used when none is named.
pub const DEFAULT_PROFILE: &str = "default";

/// Whether a profile of this name comes with skep.
pub(crate) fn is_builtin(name: &str) -> bool {
    PROFILES.iter().any(|(known, _)| *known == name)
}

/// All profiles by name: the built-in ones, which are read when they are asked for, the system's and the user's.
#[derive(Debug)]
pub(crate) struct Profiles<'a>(BTreeMap<&'a str, &'a ProfileDocument>);

impl<'a> Profiles<'a> {
    pub(crate) fn of(
        system: Option<&'a ConfigDocument>,
        user: Option<&'a ConfigDocument>,
    ) -> Result<Self, SettingsError> {
        let mut own = BTreeMap::new();
        for (name, profile) in system.iter().chain(&user).flat_map(|source| &source.profiles) {
            // A redefined `default` would silently change what every other profile stands on.
            if is_builtin(name) || own.insert(name.as_str(), profile).is_some() {
                return Err(SettingsError::ProfileRedefined(name.clone()));
            }
        }
        Ok(Self(own))
    }

    fn named(&self, name: &str) -> Result<Cow<'a, ProfileDocument>, SettingsError> {
        if let Some(own) = self.0.get(name) {
            return Ok(Cow::Borrowed(*own));
        }
        let (_, text) =
            PROFILES.iter().find(|(known, _)| *known == name).ok_or_else(|| self.unknown(name))?;
        let read = serde_json::from_str(text).map(Cow::Owned);
        read.map_err(|error| SettingsError::BuiltinData(error.to_string()))
    }

    /// The profile called `name` and those it builds on, the most general first.
    pub(crate) fn lineage(
        &self,
        name: &str,
    ) -> Result<Vec<(String, Cow<'a, ProfileDocument>)>, SettingsError> {
        let mut found: Vec<(String, Cow<'a, ProfileDocument>)> = Vec::new();
        let mut next = name.to_owned();
        loop {
            if found.iter().any(|(seen, _)| *seen == next) {
                return Err(SettingsError::ProfileCycle(next));
            }
            let profile = self.named(&next)?;
            let from = match &profile.from {
                None if next == DEFAULT_PROFILE => None,
                from => Some(from.clone().unwrap_or_else(|| DEFAULT_PROFILE.to_owned())),
            };
            found.push((next, profile));
            match from {
                Some(from) => next = from,
                None => break,
            }
        }
        found.reverse();
        Ok(found)
    }

    fn unknown(&self, name: &str) -> SettingsError {
        let mut known: Vec<&str> = PROFILES.iter().map(|(name, _)| *name).collect();
        known.extend(self.0.keys());
        known.sort_unstable();
        SettingsError::UnknownProfile { name: name.to_owned(), known: known.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_file_is_sound() {
        let profiles = Profiles::of(None, None).unwrap();
        let names: Vec<&str> = PROFILES.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["agent", "build", "debug", "default"]);
        for name in names {
            assert!(!profiles.named(name).unwrap().description.is_empty(), "{name}");
            assert!(profiles.lineage(name).is_ok());
        }
    }

    #[test]
    fn no_profile_shows_a_place_where_credentials_are_kept() {
        let profiles = Profiles::of(None, None).unwrap();
        for (name, _) in PROFILES {
            let profile = profiles.named(name).unwrap().into_owned();
            for piece in profile.sandbox.home.unwrap_or_default() {
                for secret in [
                    ".ssh",
                    ".aws",
                    ".cargo/credentials.toml",
                    ".gitconfig",
                    ".netrc",
                    ".npmrc",
                    ".config/gh/hosts.yml",
                    ".docker/config.json",
                    ".kube/config",
                    ".gnupg",
                    ".claude/.credentials.json",
                    ".codex/auth.json",
                    ".pypirc",
                    ".gem/credentials",
                    ".local/share/keyrings/login.keyring",
                    ".config/gcloud/credentials.db",
                ] {
                    let shows = std::path::Path::new(secret).starts_with(piece.as_path());
                    assert!(!shows, "{name} shows {secret} through {piece}");
                }
            }
        }
    }

    #[test]
    fn lineages_end_at_default_and_cycles_are_refused() {
        let lineage = |text: &str, name: &str| {
            let user = ConfigDocument::parse(text.as_bytes(), "config.toml").unwrap();
            let found = Profiles::of(None, Some(&user))?.lineage(name)?;
            Ok::<_, SettingsError>(found.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
        };
        let mine = "profiles.mine.from = \"agent\"";
        assert_eq!(lineage(mine, "mine").unwrap(), ["default", "agent", "mine"]);
        let unknown = lineage(mine, "nope").unwrap_err().to_string();
        assert!(unknown.ends_with("known are: agent, build, debug, default, mine"), "{unknown}");
        let cycle = "profiles.a.from = \"b\"\nprofiles.b.from = \"a\"";
        assert!(matches!(lineage(cycle, "a"), Err(SettingsError::ProfileCycle(_))));
        let again = "profiles.default.description = \"mine\"";
        assert!(matches!(lineage(again, "default"), Err(SettingsError::ProfileRedefined(_))));
    }
}
