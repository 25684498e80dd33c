use super::*;

fn limits(text: &str) -> Result<Limits, String> {
    let body: LimitsBody = serde_json::from_str(text).map_err(|error| error.to_string())?;
    body.resolve().map_err(|problem| problem.message)
}

/// As far as the body tells; which numbers are limits is the engine's to say, for whoever asks.
#[test]
fn a_limit_is_a_limit_or_an_error() {
    assert_eq!(limits(r#"{"memory":"1K"}"#).unwrap().memory, Some(ByteSize(1024)));
    assert_eq!(limits("{}").unwrap(), Limits::default());
    for bad in [
        r#"{"memory":0}"#,
        r#"{"memory":"0"}"#,
        r#"{"memory":"-1G"}"#,
        r#"{"memory":1024}"#,
        r#"{"memory":"lots"}"#,
        r#"{"memroy":"1G"}"#,
        r#"{"cpus":"2"}"#,
        r#"{"pids":-1}"#,
        r#"{"pids":1.5}"#,
        r#"{"timeout":"0s"}"#,
        r#"{"timeout":5}"#,
    ] {
        assert!(limits(bad).is_err(), "{bad}");
    }
}

#[test]
fn gc_is_never_meant_by_accident() {
    for bad in ["{}", r#"{"dry_run":"no"}"#, r#"{"dry_run":false,"max-size":"1G"}"#] {
        assert!(serde_json::from_str::<GcBody>(bad).is_err(), "{bad}");
    }
}

fn widens(more: &str) -> bool {
    let text = format!(r#"{{ "project": "/p"{more} }}"#);
    serde_json::from_str::<CreateBody>(&text).unwrap().widens()
}

#[test]
fn what_leaves_the_fence_widens() {
    for word in ["subprocess", "docker", "oci:/tmp/x", "oci:sh", "oci:", "unheard-of", ""] {
        assert!(widens(&format!(r#", "provider": "{word}""#)), "{word}");
    }
    for wide in [
        r#", "allow": ["127.0.0.1:9"]"#,
        r#", "profile": "agent""#,
        r#", "image": "debian""#,
        r#", "network": "allow""#,
        r#", "network": "host""#,
        r#", "allow_changes": ["**"]"#,
    ] {
        assert!(widens(wide), "{wide}");
    }
    for narrow in [
        "",
        r#", "network": "none""#,
        r#", "provider": "oci:runsc""#,
        r#", "deny_changes": ["src"]"#,
    ] {
        assert!(!widens(narrow), "{narrow}");
    }
    let patch = |text| serde_json::from_str::<PatchBody>(text).unwrap().widens();
    assert!(patch(r#"{ "network": "allow" }"#) && patch(r#"{ "network": "host" }"#));
    assert!(patch(r#"{ "allow_changes": [] }"#) && patch(r#"{ "deny_changes": [] }"#));
    assert!(!patch(r#"{ "network": "none", "limits": { "memory": "2G" } }"#));
}
