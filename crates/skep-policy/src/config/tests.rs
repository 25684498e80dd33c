//! What a config file may say, and how it is told that it may not.

use super::*;

fn parse(text: &str) -> Result<ConfigDocument, ConfigError> {
    ConfigDocument::parse(text.as_bytes(), "skep.toml")
}

#[test]
fn every_section_is_read() {
    let document = parse(
        r#"
        profile = "agent"
        [limits]
        memory = "2G"
        cpus = 1.5
        pids = 100
        timeout = "none"
        api_timeout = "30m"
        [sandbox]
        network = "none"
        mounts = ["/data:/data:ro"]
        home = [".cargo/bin"]
        env = { A = "b" }
        env_pass = ["MY_VAR"]
        require = ["memory"]
        scope = ["src"]
        [changes]
        deny = ["*.lock"]
        [warn]
        upper_size = "1G"
        [undo]
        keep = 5
        age = "7d"
        [gc]
        total_size = "10G"
        warn_percent = 50
        [provider]
        name = "namespace"
        microvm.emulation = true
        [profiles.mine]
        description = "small"
        from = "agent"
        memory_share = { cap = "1G", percent = 10 }
        limits.pids = 10
        sandbox.env = { X = "y" }
        "#,
    )
    .unwrap();
    assert_eq!(document.limits.memory, Some(Some(ByteSize(2 << 30))));
    assert_eq!(document.limits.timeout, Some(None));
    assert_eq!(document.limits.disk, None);
    assert_eq!(document.provider.microvm.emulation, Some(true));
    assert_eq!(document.profiles["mine"].limits.pids, Some(Some(10)));
    assert_eq!(document.sandbox.mounts.as_ref().unwrap().len(), 1);
}

#[test]
fn an_empty_file_says_nothing() {
    assert_eq!(parse("").unwrap(), ConfigDocument::default());
}

#[test]
fn unknown_keys_are_named_with_the_nearest_one() {
    for (text, message) in [
        (
            "[limits]\nmemroy = \"1G\"",
            "skep.toml has the unknown key `limits.memroy`; the nearest known one is `limits.memory`",
        ),
        (
            "[profiles.x.limits]\npid = 1",
            "skep.toml has the unknown key `profiles.x.limits.pid`; the nearest known one is `limits.pids`",
        ),
        ("zzzzqqq = 1", "skep.toml has the unknown key `zzzzqqq`"),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), message);
    }
}

#[test]
fn where_a_file_is_malformed_is_said() {
    for (text, message) in [
        (
            "[limits]\npids = \"many\"",
            "skep.toml:2:8: a whole number greater than zero, or \"none\", is expected (`pids`)",
        ),
        ("a = 1\nb = \"ä\" c", "skep.toml:2:9: "),
        ("store.url = \"postgres://u:secret", "skep.toml:1:"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
        assert!(!error.contains('\n') && !error.contains("secret"), "{error}");
    }
    let error = ConfigDocument::parse(b"a = 1\n\xff", "test").unwrap_err().to_string();
    assert!(error.starts_with("test:2:1: invalid utf-8"), "{error}");
}

#[test]
fn malformed_files_are_refused() {
    for bad in [
        "limits = 3",
        "[limits]\nmemory = 5",
        "[limits]\nmemory = \"0\"",
        "[limits]\nmemory = \"-1G\"",
        "[limits]\nmemory = \"5\"",
        "[limits]\nmemory = \"99999999999T\"",
        "[limits]\npids = 0",
        "[limits]\npids = -1",
        "[limits]\npids = 1.5",
        "[limits]\npids = \"many\"",
        "[limits]\ncpus = 0",
        "[limits]\ncpus = -0.5",
        "[limits]\ncpus = nan",
        "[limits]\ncpus = inf",
        "[limits]\ntimeout = \"0s\"",
        "[limits]\ntimeout = 10",
        "[gc]\nwarn_percent = 101",
        "[sandbox]\nnetwork = \"full\"",
        "[sandbox]\nmounts = [\"a:b\"]",
        "[sandbox]\nhome = [\"/etc\"]",
        "[sandbox]\nhome = [\".\"]",
        "[sandbox]\nhome = [\"../other\"]",
        "[sandbox]\nscope = [\"../x\"]",
        "[sandbox.env]\n\"A=B\" = \"x\"",
        "[sandbox]\nrequire = [\"magic\"]",
        "[undo]\nkeep = 0",
        "a = [",
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
    assert!(ConfigDocument::parse(b"\xff", "x").is_err());
    let huge = vec![b'#'; MAX_CONFIG_BYTES + 1];
    assert!(matches!(ConfigDocument::parse(&huge, "x"), Err(ConfigError::TooLarge { .. })));
    assert!(ConfigDocument::parse(&huge[1..], "x").is_ok());
}

#[test]
fn every_listed_key_is_really_read() {
    // A key in the list that the document does not know would be accepted and then ignored.
    for key in KEYS {
        let key = key.replace('*', "mine");
        let (section, name) = key.rsplit_once('.').unwrap_or(("", &key));
        // A table of names is a leaf, too; nothing in it fits an empty table.
        let by_name = ["egress.hosts", "egress.presets"].contains(&key.as_str());
        let value = if by_name { "{ mine = {} }" } else { "{}" };
        let text = if section.is_empty() {
            format!("{name} = {value}")
        } else {
            format!("[{section}]\n{name} = {value}")
        };
        // An empty table fits no leaf: the error must be about the value, not about the key.
        let error = parse(&text).unwrap_err().to_string();
        assert!(!error.contains("unknown"), "{key}: {error}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,80}") {
        let _ = parse(&text);
    }
}

#[test]
fn the_way_out_is_read_in_canonical_form() {
    let document = parse(
        "[egress]\nallow = [\"API.Example.org.\", \"@github\"]\nresolvers = [\"::1\", \"10.0.0.1:5353\"]\n\
         extra_ca = [\"/ca.pem\"]\n[egress.hosts]\n\"DB.test\" = \"10.0.0.2\"\n\"x.test\" = [\"8.8.8.8\", \"::2\"]\n",
    )
    .unwrap();
    assert_eq!(document.egress.allow.unwrap(), ["api.example.org", "@github"]);
    assert_eq!(document.egress.hosts["db.test"].len(), 1);
    assert_eq!(document.egress.hosts["x.test"].len(), 2);
    let servers: Vec<String> =
        document.egress.resolvers.unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(servers, ["[::1]:53", "10.0.0.1:5353"]);
    for bad in [
        "[egress]\nallow = [\"*\"]",
        "[egress]\nallow = \"a.test\"",
        "[egress]\nallow = [\"169.254.169.254:80\"]",
        "[egress]\nallowed = [\"a.test\"]",
        "[egress]\nsecrets = [\"X\"]",
        "[egress.hosts]\n\"a.test\" = \"nowhere\"",
        "[egress]\nresolvers = [\"dns.test\"]",
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
}
