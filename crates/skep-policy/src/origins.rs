//! Where each value in force comes from, for `skep config --origin`.

use std::collections::BTreeMap;
use std::fmt;

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Built in.
    Builtin,
    /// A profile.
    Profile(String),
    /// `/etc/skep/config.toml`.
    System,
    /// The user's config file.
    User,
    /// The project's `skep.toml`.
    Project,
    /// A `SKEP_…` variable.
    Environment,
    /// The command line.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builtin => f.write_str("built in"),
            Self::Profile(name) => write!(f, "profile `{name}`"),
            Self::System => f.write_str("system config"),
            Self::User => f.write_str("user config"),
            Self::Project => f.write_str("project `skep.toml`"),
            Self::Environment => f.write_str("environment"),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

/// The origin of every value. Elements of lists have one each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins {
    values: BTreeMap<String, Origin>,
    items: BTreeMap<(String, String), Origin>,
}

impl Origins {
    /// Where the value of a key comes from; built in when nobody said anything.
    pub fn of(&self, key: &str) -> &Origin {
        self.values.get(key).unwrap_or(&Origin::Builtin)
    }

    /// Where an element of a list comes from.
    pub fn of_item(&self, key: &str, item: &str) -> &Origin {
        let at = (key.to_owned(), item.to_owned());
        self.items.get(&at).unwrap_or(&Origin::Builtin)
    }

    pub(crate) fn set(&mut self, key: &str, origin: &Origin) {
        self.values.insert(key.to_owned(), origin.clone());
    }

    /// The first to name an element is its origin.
    pub(crate) fn add_item(&mut self, key: &str, item: String, origin: &Origin) {
        self.items.entry((key.to_owned(), item)).or_insert_with(|| origin.clone());
    }

    pub(crate) fn drop_item(&mut self, key: &str, item: &str) {
        self.items.remove(&(key.to_owned(), item.to_owned()));
    }
}

/// One line of `skep config --origin`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingRow {
    /// The key, as in a config file.
    pub key: String,
    /// The value in force, as people read it.
    pub value: String,
    /// Where it comes from.
    pub origin: Origin,
}
