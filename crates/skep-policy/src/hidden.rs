//! Secrets on disk stay unread: which files of the project are shown as absent.
//!
//! The names are data (`resources/hidden.toml`). In order of strength: what the caller shows is
//! seen, what the caller hides is not, the built-in exceptions (templates, public keys) are seen,
//! the built-in list is not. A copy that a program left beside a file (`.env~`, `.server.pem.swp`)
//! counts as the file.

use crate::dotgit::folded_path;
use crate::names::{Edge, NameTable, Numbered};
use crate::pattern::{PatternError, PatternSet, Reach, parents};
use skep_types::{Policy, RelPath};

// `ENTRIES`, `COPIES`, `SKIPPED` and `FINGERPRINT`, made from the list by `build.rs`, and the tables of `BUILTIN`.
include!(concat!(env!("OUT_DIR"), "/hidden.rs"));

/// What an entry of the list may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HiddenKind {
    /// Anything but a directory (`.env` is also a common name for a Python environment).
    File,
    /// A directory, with everything below it.
    Dir,
    /// Either.
    Any,
}

/// One line of the built-in list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HiddenEntry {
    /// Which names; lower case.
    pub pattern: &'static str,
    /// What they may be.
    pub kind: HiddenKind,
    /// A path it hides.
    pub sample: &'static str,
    /// Why.
    pub reason: &'static str,
}

/// How a copy of a file is called.
struct CopyName {
    prefix: &'static str,
    suffix: &'static str,
}

struct Builtin {
    /// Entries that can be a directory: none has a wildcard in its last name, so asking about
    /// every parent of a path stays cheap.
    directories: NameTable,
    /// Entries that can be anything else.
    files: NameTable,
    except: NameTable,
}

impl Builtin {
    /// A path, and those of the files that it may be a copy of, a copy of a copy among them.
    fn originals(path: Vec<u8>) -> Vec<Vec<u8>> {
        let mut found = vec![path];
        let mut next = 0;
        while let Some(path) = found.get(next) {
            let last = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
            let (above, name) = path.split_at(last);
            let original = |copy: &CopyName| -> Option<Vec<u8>> {
                let rest = name.strip_suffix(copy.suffix.as_bytes())?;
                let rest = rest.strip_prefix(copy.prefix.as_bytes())?;
                (!rest.is_empty()).then(|| [above, rest].concat())
            };
            let more: Vec<Vec<u8>> = COPIES.iter().filter_map(original).collect();
            found.extend(more);
            next += 1;
        }
        found
    }
}

static BUILTIN: Builtin = Builtin {
    directories: NameTable::in_order(DIRECTORIES_PLAIN, DIRECTORIES_WILD),
    files: NameTable::in_order(FILES_PLAIN, FILES_WILD),
    except: NameTable::in_order(EXCEPT_PLAIN, EXCEPT_WILD),
};

/// Why there are no hide rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HideError {
    /// A pattern of the caller's.
    #[error(transparent)]
    Pattern(#[from] PatternError),
}

/// What is hidden, compiled.
#[derive(Clone)]
pub struct HideRules {
    builtin: &'static Builtin,
    hide: PatternSet,
    reasons: Vec<String>,
    show: PatternSet,
}

impl HideRules {
    /// The built-in list with the caller's additions and exceptions.
    ///
    /// In both, a single name matches at any depth and a directory means everything below it.
    pub fn new<T: AsRef<str>>(hide: &[T], show: &[T]) -> Result<Self, HideError> {
        let reason = |pattern: &T| format!("hidden by `{}`", pattern.as_ref());
        Ok(Self {
            builtin: &BUILTIN,
            hide: PatternSet::new(hide, Reach::Wide)?,
            reasons: hide.iter().map(reason).collect(),
            show: PatternSet::new(show, Reach::Wide)?,
        })
    }

    /// The rules of a policy.
    pub fn of(policy: &Policy) -> Result<Self, HideError> {
        Self::new(&policy.hide, &policy.show)
    }

    /// The built-in list.
    pub fn builtin_entries(&self) -> &[HiddenEntry] {
        ENTRIES
    }

    /// Why a path is hidden, or `None` when it is seen.
    ///
    /// A hidden directory is hidden as a whole, unless the caller shows a path inside it by
    /// spelling it from the root: then its other entries are hidden one by one.
    pub fn hides(&self, path: &RelPath, is_dir: bool) -> Option<&str> {
        if self.shows(path, is_dir) {
            return None;
        }
        self.hidden_by_caller(path).or_else(|| self.hidden_by_list(path, is_dir))
    }

    /// As [`HideRules::hides`], by the caller's patterns alone.
    pub fn hides_as_asked(&self, path: &RelPath, is_dir: bool) -> Option<&str> {
        if self.shows(path, is_dir) { None } else { self.hidden_by_caller(path) }
    }

    /// Whether the path is to be seen by its own name: the caller shows it, or it is called as a
    /// template is.
    pub fn is_shown(&self, path: &RelPath, is_dir: bool) -> bool {
        let folded = folded_path(path.as_bytes());
        self.shows(path, is_dir) || (!is_dir && !self.builtin.except.entry(&folded).is_empty())
    }

    fn shows(&self, path: &RelPath, is_dir: bool) -> bool {
        let shown_below = |shown: &RelPath| shown != path && shown.starts_with(path);
        path.is_root()
            || self.show.first(path).is_some()
            || (is_dir && self.show.literals().any(shown_below))
    }

    fn hidden_by_caller(&self, path: &RelPath) -> Option<&str> {
        self.hide.first(path).and_then(|rule| self.reasons.get(rule)).map(String::as_str)
    }

    /// Whether an entry of this name could be hidden where no directory above it is. No is certain,
    /// and found without a path; yes is a reason to ask [`HideRules::hides`].
    pub fn could_hide(&self, name: &[u8], is_dir: bool) -> bool {
        let own_rules = !self.reasons.is_empty() || self.show.literals().next().is_some();
        let table = if is_dir { &self.builtin.directories } else { &self.builtin.files };
        let could_match = |name: &Vec<u8>| table.could_match(name);
        own_rules
            || match is_dir {
                true => could_match(&folded_path(name)),
                false => Builtin::originals(folded_path(name)).iter().any(could_match),
            }
    }

    fn hidden_by_list(&self, path: &RelPath, is_dir: bool) -> Option<&'static str> {
        let folded = folded_path(path.as_bytes());
        let hidden_as = |bytes: &[u8], is_dir: bool| {
            let table = if is_dir { &self.builtin.directories } else { &self.builtin.files };
            table.entry(bytes).first().and_then(|index| ENTRIES.get(*index))
        };
        let above = parents(&folded).find_map(|parent| hidden_as(parent, true));
        let own = || {
            if is_dir {
                return hidden_as(&folded, true);
            }
            let names = Builtin::originals(folded.clone());
            let excepted = || names.iter().any(|name| !self.builtin.except.entry(name).is_empty());
            names.iter().find_map(|name| hidden_as(name, false)).filter(|_| !excepted())
        };
        above.or_else(own).map(|entry| entry.reason)
    }

    /// Everything that what is hidden depends on: two sets of rules with the same text hide the same.
    pub fn text(&self) -> String {
        // No pattern holds a NUL.
        format!(
            "{FINGERPRINT}\0\0{}\0\0{}",
            self.hide.texts().join("\0"),
            self.show.texts().join("\0")
        )
    }

    /// How to look for hidden files.
    pub fn search_plan(&self) -> SearchPlan {
        SearchPlan {
            exact: self.hide.literals().cloned().collect(),
            skip: SKIPPED.to_vec(),
            whole: self.hide.literals().count() < self.reasons.len(),
        }
    }
}

impl std::fmt::Debug for HideRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HideRules")
            .field("hide", &self.hide)
            .field("show", &self.show)
            .finish_non_exhaustive()
    }
}

/// A search for hidden files.
///
/// First look up `exact`: they are hidden wherever they are. Then go through the project, asking
/// [`HideRules::hides`] of every entry, not entering `skip`. What could not be searched is not
/// hidden: say so in the report.
///
/// A search of the `whole` project goes below `skip` too, asks [`HideRules::hides_as_asked`] there,
/// and must not go on without what it could not look at: what was typed holds, or it is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchPlan {
    /// Paths from the root, one lookup each.
    pub exact: Vec<RelPath>,
    /// Directories (by name, or by the last names of their path) that are not entered.
    pub skip: Vec<&'static str>,
    /// Whether the caller hides by names or wildcards that may match anywhere.
    pub whole: bool,
}

impl SearchPlan {
    /// Whether the built-in list does not count below this directory.
    pub fn skips(&self, directory: &RelPath) -> bool {
        self.skip.iter().any(|skipped| {
            let bytes = directory.as_bytes();
            bytes
                .strip_suffix(skipped.as_bytes())
                .is_some_and(|before| before.is_empty() || before.ends_with(b"/"))
        })
    }

    /// Whether the built-in list counts in this directory: not in one that is skipped, nor below.
    pub fn counts_in(&self, directory: &RelPath) -> bool {
        !self.skips(directory) && !directory.ancestors().any(|above| self.skips(&above))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::is_wild;

    fn rules(hide: &[&str], show: &[&str]) -> HideRules {
        HideRules::new(hide, show).unwrap()
    }

    fn hides(rules: &HideRules, path: &str, is_dir: bool) -> bool {
        rules.hides(&RelPath::parse(path.as_bytes()).unwrap(), is_dir).is_some()
    }

    #[test]
    fn every_entry_hides_its_sample_at_every_depth() {
        let rules = rules(&[], &[]);
        assert!(rules.builtin_entries().len() > 40);
        for entry in rules.builtin_entries() {
            assert_eq!(entry.pattern, entry.pattern.to_lowercase());
            assert!(entry.kind == HiddenKind::File || !is_wild(entry.pattern), "cheap to ask");
            for prefix in ["", "a/b/c/d/e/"] {
                for sample in [entry.sample.to_owned(), entry.sample.to_uppercase()] {
                    let at = format!("{prefix}{sample}");
                    assert!(hides(&rules, &at, false), "{at}");
                }
            }
        }
    }

    #[test]
    fn the_tables_are_in_the_order_in_which_they_are_searched() {
        let chosen = |but: HiddenKind| {
            let entries = ENTRIES.iter().enumerate().filter(move |(_, entry)| entry.kind != but);
            NameTable::numbered(entries.map(|(index, entry)| (index, entry.pattern.as_bytes())))
        };
        assert_eq!(BUILTIN.directories, chosen(HiddenKind::File));
        assert_eq!(BUILTIN.files, chosen(HiddenKind::Dir));
        let excepted = EXCEPT.iter().map(|pattern| pattern.as_bytes());
        assert_eq!(BUILTIN.except, NameTable::new(excepted));
    }

    #[test]
    fn what_is_no_secret_is_seen() {
        let rules = rules(&[], &[]);
        for seen in [
            "src/main.rs",
            ".env.example",
            "a/.env.sample",
            ".env.template",
            ".env.dist",
            ".npmrc",
            "id_rsa.pub",
            "a/id_ed25519.pub",
            "server.crt",
            "main.tfvars",
            "environment.ts",
            ".git/config",
            "keys.rs",
            ".envrc",
            ".env.production.example",
            ".envrc.example",
            ".env-example",
            ".env.example~",
            ".envrc~",
            "id_rsa.pub.bak",
            "main.rs~",
            ".main.rs.swp",
            "~",
            ".bak",
            "locales/en/auth.json",
            "cmd/kubeconfig.go",
        ] {
            assert!(!hides(&rules, seen, false), "{seen}");
        }
        assert!(!hides(&rules, ".env", true), "a Python environment");
        assert!(!hides(&rules, ".env/bin/python", false));
        assert!(hides(&rules, ".aws", true));
        assert!(!hides(&rules, ".aws", false));
        assert!(!hides(&rules, "", true));
    }

    #[test]
    fn a_copy_of_a_secret_is_as_secret() {
        let rules = rules(&[], &[]);
        for hidden in [
            ".env~",
            ".env-prod",
            ".env_local",
            ".envrc.local",
            "server.pem~",
            "a/tls.key.bak",
            "tls.KEY.Orig",
            ".server.pem.swp",
            ".id_rsa.swp",
            "#id_ed25519#",
            "secrets.yml.old.bak",
            "wallet.dat.~1~",
            ".docker/config.json.save",
        ] {
            assert!(hides(&rules, hidden, false), "{hidden}");
            let name = hidden.rsplit('/').next().unwrap();
            assert!(rules.could_hide(name.as_bytes(), false), "{hidden}");
        }
        assert!(!hides(&rules, ".aws~", true), "directories are not called so");
        let shown = super::tests::rules(&[], &["server.pem~"]);
        assert!(!hides(&shown, "server.pem~", false) && hides(&shown, "server.pem", false));
    }

    #[test]
    fn the_caller_shows_and_hides() {
        let rules = rules(&["internal", "*.sql", ".env.example"], &[".env.test", "/certs/dev.pem"]);
        assert!(!hides(&rules, "a/b/.env.test", false));
        assert!(!hides(&rules, "certs/dev.pem", false));
        assert!(hides(&rules, "other/certs/dev.pem", false));
        assert!(hides(&rules, "a/internal/b/c", false));
        assert!(hides(&rules, "dump.sql", false));
        assert!(hides(&rules, ".env.example", false), "what the caller hides beats the exception");
        let reason = rules.hides(&RelPath::parse(b"a/dump.sql").unwrap(), false);
        assert_eq!(reason, Some("hidden by `*.sql`"));
        let both = super::tests::rules(&["x"], &["x"]);
        assert!(!hides(&both, "x", false), "show is the stronger word");
    }

    #[test]
    fn a_path_shown_inside_a_hidden_directory_opens_only_itself() {
        let rules = rules(&[], &[".aws/config"]);
        assert!(!hides(&rules, ".aws", true));
        assert!(!hides(&rules, ".aws/config", false));
        assert!(hides(&rules, ".aws/credentials", false));
        assert!(hides(&rules, "a/.aws", true));
    }

    #[test]
    fn names_may_be_any_bytes() {
        let rules = rules(&[], &[]);
        let path = RelPath::root().join(b"\xff\n.pem").unwrap();
        assert_eq!(rules.hides(&path, false), Some("usually a private key"));
    }

    #[test]
    fn a_name_that_could_not_be_hidden_is_not() {
        let plain = rules(&[], &[]);
        for entry in plain.builtin_entries() {
            let sample = entry.sample.to_uppercase();
            let (file, dir) = (entry.kind != HiddenKind::Dir, entry.kind != HiddenKind::File);
            // The sample of a directory may be a file below it.
            let mut names = sample.split('/');
            assert!(!dir || names.any(|name| plain.could_hide(name.as_bytes(), true)), "{sample}");
            let last = sample.rsplit('/').next().unwrap();
            assert!(!file || plain.could_hide(last.as_bytes(), false), "{sample}");
        }
        for name in ["main.rs", "f12", "README.md", "x"] {
            assert!(!plain.could_hide(name.as_bytes(), false), "{name}");
        }
        assert!(rules(&["*.sql"], &[]).could_hide(b"x", false), "the caller's rules are asked");
        assert!(rules(&[], &[".aws/config"]).could_hide(b"x", false));
    }

    #[test]
    fn the_plan_knows_what_is_not_entered() {
        let plan = rules(&["a/b.txt", "secret", "*.x"], &[]).search_plan();
        assert_eq!(plan.exact, [RelPath::parse(b"a/b.txt").unwrap()]);
        let path = |text: &str| RelPath::parse(text.as_bytes()).unwrap();
        let skips = |text: &str| plan.skips(&path(text));
        assert!(skips("a/node_modules") && skips(".git") && skips("x/vendor/bundle"));
        assert!(!skips("a/my_node_modules") && !skips("src") && !skips("vendor"));
        assert!(!skips("dist") && !skips("a/build"), "copies of secrets end up there");
        assert!(plan.counts_in(&path("")) && plan.counts_in(&path("a/dist")));
        assert!(!plan.counts_in(&path(".git")) && !plan.counts_in(&path("a/node_modules/b/c")));
    }

    #[test]
    fn rules_are_told_apart_by_their_text() {
        let texts = [
            rules(&[], &[]).text(),
            rules(&["a"], &[]).text(),
            rules(&[], &["a"]).text(),
            rules(&["a", "b"], &[]).text(),
            rules(&["a"], &["b"]).text(),
        ];
        let different: std::collections::BTreeSet<_> = texts.iter().collect();
        assert_eq!(different.len(), texts.len());
        assert_eq!(texts[3], rules(&["a", "b"], &[]).text());
    }

    #[test]
    fn only_a_pattern_that_can_match_anywhere_has_the_whole_project_searched() {
        for listed in [&[][..], &["/.env"], &["a/b.txt", "./c/d/"]] {
            assert!(!rules(listed, &[]).search_plan().whole, "{listed:?}");
        }
        for whole in ["**/.env", ".env", "a/**/.env", "/*.sql", "a/?"] {
            assert!(rules(&["a/b.txt", whole], &[]).search_plan().whole, "{whole}");
        }
        let rules = rules(&["*.sql"], &["keep.sql"]);
        let asked = |text: &str| {
            rules.hides_as_asked(&RelPath::parse(text.as_bytes()).unwrap(), false).is_some()
        };
        assert!(asked("node_modules/a.sql") && !asked("keep.sql") && !asked(".env"));
    }

    #[test]
    fn bad_patterns_are_errors() {
        assert!(matches!(HideRules::new(&["a["], &[]), Err(HideError::Pattern(_))));
    }
}
