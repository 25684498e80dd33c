//! Profiles: named policies, the built-in ones as data and the user's own.

use crate::config::{ConfigDocument, ProfileDocument};
use crate::settings::SettingsError;
use std::collections::BTreeMap;

const DATA: &str = include_str!(concat!(env!("OUT_DIR"), "/profiles.json"));

/// The profile that is used when none is named.
pub const DEFAULT_PROFILE: &str = "default";

#[derive(serde::Deserialize)]
struct DataFile {
    #[serde(rename = "version")]
    _version: u32,
    #[serde(flatten)]
    profiles: BTreeMap<String, ProfileDocument>,
}

/// The profiles that come with skep, by name.
pub fn builtin_profiles() -> Result<BTreeMap<String, ProfileDocument>, SettingsError> {
    serde_json::from_str::<DataFile>(DATA)
        .map(|data| data.profiles)
        .map_err(|error| SettingsError::BuiltinData(error.to_string()))
}

/// All profiles by name: the built-in ones, the system's and the user's.
pub fn all_profiles(
    system: Option<&ConfigDocument>,
    user: Option<&ConfigDocument>,
) -> Result<BTreeMap<String, ProfileDocument>, SettingsError> {
    let mut profiles = builtin_profiles()?;
    for (name, profile) in system.iter().chain(&user).flat_map(|source| &source.profiles) {
        // A redefined `default` would silently change what every other profile stands on.
        if profiles.insert(name.clone(), profile.clone()).is_some() {
            return Err(SettingsError::ProfileRedefined(name.clone()));
        }
    }
    Ok(profiles)
}

/// The profile called `name` and those it builds on, the most general first.
pub(crate) fn lineage<'a>(
    profiles: &'a BTreeMap<String, ProfileDocument>,
    name: &str,
) -> Result<Vec<(&'a str, &'a ProfileDocument)>, SettingsError> {
    let mut found: Vec<(&str, &ProfileDocument)> = Vec::new();
    let mut next = name.to_owned();
    loop {
        let (name, profile) =
            profiles.get_key_value(&next).ok_or_else(|| unknown(profiles, &next))?;
        if found.iter().any(|(seen, _)| seen == name) {
            return Err(SettingsError::ProfileCycle(name.clone()));
        }
        found.push((name, profile));
        match &profile.from {
            Some(from) => next = from.clone(),
            None if name == DEFAULT_PROFILE => break,
            None => next = DEFAULT_PROFILE.to_owned(),
        }
    }
    found.reverse();
    Ok(found)
}

fn unknown(profiles: &BTreeMap<String, ProfileDocument>, name: &str) -> SettingsError {
    let known: Vec<&str> = profiles.keys().map(String::as_str).collect();
    SettingsError::UnknownProfile { name: name.to_owned(), known: known.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_file_is_sound() {
        let profiles = builtin_profiles().unwrap();
        let names: Vec<&str> = profiles.keys().map(String::as_str).collect();
        assert_eq!(names, ["agent", "build", "debug", "default"]);
        for (name, profile) in &profiles {
            assert!(!profile.description.is_empty(), "{name}");
            assert!(lineage(&profiles, name).is_ok());
        }
    }

    #[test]
    fn no_profile_shows_a_place_where_credentials_are_kept() {
        for (name, profile) in builtin_profiles().unwrap() {
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
        let of = |text: &str| {
            let user = ConfigDocument::parse(text.as_bytes(), "config.toml").unwrap();
            all_profiles(None, Some(&user))
        };
        let profiles = of("profiles.mine.from = \"agent\"").unwrap();
        let names: Vec<&str> =
            lineage(&profiles, "mine").unwrap().iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["default", "agent", "mine"]);
        let cycle = of("profiles.a.from = \"b\"\nprofiles.b.from = \"a\"").unwrap();
        assert!(matches!(lineage(&cycle, "a"), Err(SettingsError::ProfileCycle(_))));
        assert!(matches!(lineage(&profiles, "nope"), Err(SettingsError::UnknownProfile { .. })));
        let again = of("profiles.default.description = \"mine\"");
        assert!(matches!(again, Err(SettingsError::ProfileRedefined(_))));
    }
}
