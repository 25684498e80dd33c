//! How sources are put together, and what a project may not say.

use super::*;
use crate::environment::{InsideFacts, inside_environment};
use proptest::prelude::*;
use skep_types::NetworkMode;

fn document(text: &str) -> ConfigDocument {
    ConfigDocument::parse(text.as_bytes(), "test").unwrap()
}

fn resolve(user: &str, project: &str, typed: &str) -> Result<(Settings, Origins), SettingsError> {
    let (user, project, typed) = (document(user), document(project), document(typed));
    Settings::resolve(&Sources {
        host: HostFacts {
            memory: Some(64 << 30),
            state_filesystem: Some(1 << 40),
            ..HostFacts::default()
        },
        user: Some(&user),
        project: Some(&project),
        command_line: Some(&typed),
        ..Sources::default()
    })
}

#[test]
fn defaults_are_those_of_the_design() {
    let (settings, origins) = Settings::resolve(&Sources::default()).unwrap();
    let limits = &settings.policy.limits;
    assert_eq!(limits.memory, Some(ByteSize(8 << 30)));
    assert_eq!(limits.pids, Some(4_096));
    assert_eq!((limits.disk, limits.inodes), (Some(ByteSize(10 << 30)), Some(1_000_000)));
    assert_eq!((limits.cpus, limits.timeout), (None, None));
    assert_eq!(limits.open_files, Some(65_536));
    assert_eq!(settings.api_timeout, Some(Duration::from_secs(3_600)));
    assert_eq!((settings.undo_keep, settings.undo_age), (50, 30 * DAY));
    assert_eq!((settings.approved_age, settings.rejected_age), (DAY, 7 * DAY));
    assert_eq!((settings.total_size, settings.total_warn_percent), (ByteSize(100 << 30), 80));
    assert_eq!(settings.policy.network, NetworkMode::None);
    assert!(settings.policy.home.is_empty() && !settings.policy.allow_ptrace);
    assert_eq!(settings.policy.profile, "default");
    assert_eq!(origins.of("limits.memory"), &Origin::Builtin);
    let small = HostFacts { state_filesystem: Some(50 << 30), ..HostFacts::default() };
    assert!(Settings::builtin(&small).total_size <= ByteSize(10 << 30));
}

#[test]
fn later_sources_are_stronger_and_remembered() {
    let (settings, origins) = resolve(
        "profile = \"agent\"\nlimits.pids = 500\nlimits.output = \"1M\"\nsandbox.hide = [\"u\"]",
        "limits.pids = 400\nlimits.open_files = 100\nsandbox.hide = [\"p\"]",
        "limits.pids = 9000\nsandbox.hide = [\"c\"]",
    )
    .unwrap();
    assert_eq!(settings.policy.limits.pids, Some(9_000));
    assert_eq!(settings.policy.hide, ["u", "p", "c"]);
    for (key, origin) in [
        ("profile", Origin::User),
        ("limits.pids", Origin::CommandLine),
        ("limits.open_files", Origin::Project),
        ("limits.output", Origin::User),
        ("limits.disk", Origin::Profile("agent".into())),
        ("limits.memory", Origin::Profile("agent".into())),
        ("limits.grace", Origin::Builtin),
    ] {
        assert_eq!(origins.of(key), &origin, "{key}");
    }
    assert_eq!(origins.of_item("sandbox.hide", "p"), &Origin::Project);
    assert_eq!(origins.of_item("sandbox.home", ".rustup"), &Origin::Profile("agent".into()));
    let rows = settings.rows(&origins);
    let row = rows.iter().find(|row| row.key == "limits.open_files").unwrap();
    assert_eq!((row.value.as_str(), &row.origin), ("100", &Origin::Project));
    for key in crate::KEYS.iter().filter(|key| !key.contains('*') && !key.ends_with("inherit_env"))
    {
        assert!(rows.iter().any(|row| row.key == *key), "{key} is not shown");
    }
}

#[test]
fn the_command_line_chooses_the_profile_first() {
    let (settings, _) = resolve("profile = \"agent\"", "", "profile = \"debug\"").unwrap();
    assert_eq!(settings.policy.profile, "debug");
    assert!(settings.policy.allow_ptrace && settings.policy.home.is_empty());
    assert!(matches!(
        resolve("", "", "profile = \"nope\""),
        Err(SettingsError::UnknownProfile { .. })
    ));
}

#[test]
fn a_limit_can_be_lifted_by_the_user_only() {
    let (settings, _) = resolve("limits.memory = \"none\"", "", "").unwrap();
    assert_eq!(settings.policy.limits.memory, None);
    assert!(matches!(resolve("", "limits.memory = \"none\"", ""), Err(SettingsError::Widens(_))));
}

#[test]
fn the_build_profile_is_hermetic() {
    let (settings, _) = resolve("", "", "profile = \"build\"").unwrap();
    assert!(settings.policy.env_pass.is_empty() && settings.policy.home.is_empty());
    let host = [("TERM", "xterm"), ("LANG", "de_DE"), ("EDITOR", "vi"), ("TZ", "Asia/Tokyo")]
        .map(|(name, value)| (name.into(), value.into()));
    let inside = inside_environment(host, &settings.policy, &InsideFacts::default());
    let value = |name: &str| inside.get(name).map(ToString::to_string);
    assert_eq!(value("LANG").as_deref(), Some("C.UTF-8"));
    assert_eq!(value("TZ").as_deref(), Some("UTC"));
    assert_eq!(value("SOURCE_DATE_EPOCH").as_deref(), Some("315532800"));
    assert_eq!(value("EDITOR"), None);
}

#[test]
fn a_users_profile_builds_on_another() {
    let user = "profile = \"mine\"\n[profiles.mine]\nfrom = \"agent\"\nlimits.pids = 7\nsandbox.home = [\"tools\"]";
    let (settings, origins) = resolve(user, "", "").unwrap();
    assert_eq!(settings.policy.limits.pids, Some(7));
    assert!(settings.policy.home.contains(&"tools".into()));
    assert!(settings.policy.home.contains(&".rustup".into()));
    assert_eq!(origins.of("limits.pids"), &Origin::Profile("mine".into()));
}

#[test]
fn a_project_may_narrow() {
    let (settings, _) = resolve(
        "profile = \"agent\"\nchanges.allow = [\"src\", \"docs\"]\nsandbox.env_pass = [\"A\", \"B\"]\n\
         sandbox.mounts = [\"/data:/data:rw\"]",
        "[limits]\nmemory = \"1G\"\ntimeout = \"5m\"\ncpus = 0.5\napi_timeout = \"1m\"\n\
         [sandbox]\nhide = [\"private\"]\nhome = [\".cargo/bin\"]\nrequire = [\"memory\"]\nscope = [\"src\"]\n\
         mounts = [\"/data:/data:ro\"]\nenv_pass = [\"A\"]\n\
         [changes]\nallow = [\"src\"]\ndeny = [\"*.lock\"]\n[warn]\nupper_size = \"1G\"",
        "",
    )
    .unwrap();
    assert_eq!(settings.policy.home, [".cargo/bin".into()]);
    assert_eq!(settings.policy.allow_changes, ["src"]);
    assert_eq!(settings.policy.mounts[0].access, skep_types::Access::Ro);
    assert_eq!(settings.policy.limits.cpus, Some(0.5));
    assert_eq!(settings.policy.env_pass.len(), 1);
}

#[test]
fn a_project_may_not_widen() {
    for (text, key) in [
        ("limits.memory = \"63G\"", "limits.memory"),
        ("limits.pids = 4097", "limits.pids"),
        ("limits.disk = \"none\"", "limits.disk"),
        ("limits.api_timeout = \"2h\"", "limits.api_timeout"),
        ("sandbox.network = \"host\"", "sandbox.network"),
        ("sandbox.system = \"cow\"", "sandbox.system"),
        ("sandbox.user = \"root\"", "sandbox.user"),
        ("sandbox.ptrace = true", "sandbox.ptrace"),
        ("sandbox.best_effort = true", "sandbox.best_effort"),
        ("sandbox.show = [\".env\"]", "sandbox.show"),
        ("sandbox.home = [\".ssh\"]", "sandbox.home"),
        ("sandbox.mounts = [\"/etc:/x\"]", "sandbox.mounts"),
        ("sandbox.layers = [\"/opt/x\"]", "sandbox.layers"),
        ("sandbox.env_pass = [\"GITHUB_TOKEN\"]", "sandbox.env_pass"),
        ("warn.upper_size = \"6G\"", "warn.upper_size"),
    ] {
        match resolve("", text, "").unwrap_err() {
            SettingsError::Widens(found) => assert_eq!(found[0].key, key),
            other => panic!("{text}: {other}"),
        }
    }
    for (text, key) in [
        ("profile = \"agent\"", "profile"),
        ("sandbox.env.A = \"b\"", "sandbox.env"),
        ("undo.keep = 1", "undo.keep"),
        ("gc.total_size = \"1G\"", "gc"),
        ("provider.name = \"subprocess\"", "provider.name"),
        ("provider.microvm.emulation = true", "provider.microvm.emulation"),
        ("provider.microvm.kernel = \"/x\"", "provider.microvm.kernel"),
        ("profiles.x.description = \"y\"", "profiles"),
    ] {
        assert_eq!(resolve("", text, "").unwrap_err(), SettingsError::NotForProjects(key.into()));
    }
    let message = resolve("", "limits.pids = 5000", "").unwrap_err().to_string();
    assert_eq!(
        message,
        "the project's `skep.toml` may only narrow: `limits.pids` would widen from `4096` to `5000`"
    );
}

#[test]
fn a_project_cannot_turn_inheritance_back_on() {
    let error = resolve("sandbox.inherit_env = false", "sandbox.inherit_env = true", "");
    assert!(matches!(error, Err(SettingsError::Widens(_))));
    assert!(resolve("", "sandbox.inherit_env = false", "").unwrap().0.policy.env_pass.is_empty());
}

#[test]
fn bad_globs_are_refused_before_anything_is_made() {
    assert!(matches!(resolve("", "sandbox.hide = [\"a[\"]", ""), Err(SettingsError::Pattern(_))));
    assert!(matches!(resolve("changes.deny = [\"..\"]", "", ""), Err(SettingsError::Pattern(_))));
}

/// Lines of a config file that a project might try, good and bad.
fn lines() -> impl Strategy<Value = Vec<String>> {
    let line = prop_oneof![
        (1u64..40_000).prop_map(|count| format!("limits.pids = {count}")),
        (1u64..64).prop_map(|size| format!("limits.memory = \"{size}G\"")),
        (1u64..200).prop_map(|time| format!("limits.timeout = \"{time}m\"")),
        Just("limits.disk = \"none\"".to_owned()),
        prop_oneof![Just("none"), Just("host")]
            .prop_map(|mode| format!("sandbox.network = \"{mode}\"")),
        any::<bool>().prop_map(|on| format!("sandbox.ptrace = {on}")),
        any::<bool>().prop_map(|on| format!("sandbox.inherit_env = {on}")),
        "[a-c]{1,2}".prop_map(|name| format!("sandbox.hide = [\"{name}\"]")),
        "[a-c]{1,2}".prop_map(|name| format!("sandbox.show = [\"{name}\"]")),
        "[a-c]{1,2}".prop_map(|name| format!("sandbox.home = [\"{name}\"]")),
        "[a-c]{1,2}".prop_map(|name| format!("sandbox.scope = [\"{name}\"]")),
        "[a-c]{1,2}".prop_map(|name| format!("changes.allow = [\"{name}\"]")),
        "[a-c]{1,2}".prop_map(|name| format!("changes.deny = [\"{name}\"]")),
        "[A-C]{1,2}".prop_map(|name| format!("sandbox.env_pass = [\"{name}\"]")),
    ];
    proptest::collection::vec(line, 0..5).prop_map(|mut lines| {
        lines.sort();
        lines.dedup_by_key(|line| line.split('=').next().unwrap_or_default().to_owned());
        lines
    })
}

proptest! {
    #[test]
    fn whatever_a_project_says_never_widens(user in lines(), project in lines()) {
        let (user, project) = (user.join("\n"), project.join("\n"));
        let (without, _) = resolve(&user, "", "").unwrap();
        match resolve(&user, &project, "") {
            Ok((with, _)) => prop_assert!(widenings(&without.policy, &with.policy).is_empty()),
            Err(error) => prop_assert!(matches!(error, SettingsError::Widens(_)), "{}", error),
        }
    }
}

#[test]
fn a_project_may_take_rules_away_and_never_add_one() {
    let user = "[sandbox]\nnetwork = \"allow\"\n[egress]\nallow = [\"*.a.test\", \"b.test\"]\n";
    let resolve = |project: &str| {
        let user = ConfigDocument::parse(user.as_bytes(), "config.toml").unwrap();
        let project = ConfigDocument::parse(project.as_bytes(), "skep.toml").unwrap();
        let sources = Sources { user: Some(&user), project: Some(&project), ..Sources::default() };
        Settings::resolve(&sources).map(|(settings, _)| settings.policy)
    };
    let policy = resolve("[egress]\nallow = [\"x.a.test\"]\n").unwrap();
    assert_eq!(policy.egress.allow, ["x.a.test"]);
    assert_eq!(resolve("[egress]\nallow = []\n").unwrap().egress.allow, Vec::<String>::new());
    assert_eq!(resolve("[sandbox]\nnetwork = \"none\"\n").unwrap().network, NetworkMode::None);
    for wider in ["[egress]\nallow = [\"c.test\"]\n", "[sandbox]\nnetwork = \"host\"\n"] {
        assert!(matches!(resolve(wider), Err(SettingsError::Widens(_))), "{wider}");
    }
    for foreign in
        ["[egress.hosts]\n\"b.test\" = \"10.0.0.1\"\n", "[egress]\nextra_ca = [\"/x\"]\n"]
    {
        assert!(matches!(resolve(foreign), Err(SettingsError::NotForProjects(_))), "{foreign}");
    }
}

#[test]
fn a_rule_of_a_project_that_waits_for_a_network_widens_as_well() {
    let project = "egress.allow = [\"127.0.0.1:9947\"]\n";
    for user in ["", "sandbox.network = \"none\"\n", "sandbox.network = \"host\"\n"] {
        let resolved = resolve(user, project, "");
        assert!(matches!(resolved, Err(SettingsError::Widens(_))), "{user}: {resolved:?}");
    }
    // What the user would allow may be named, whether there is a network or not.
    let user = "egress.allow = [\"127.0.0.1:9947\", \"b.test\"]\n";
    assert!(resolve(user, project, "").is_ok());
}
