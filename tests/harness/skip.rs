//! Skipping aloud.

/// Says why a test (or half of it) does not run here. With `SKEP_TEST_STRICT=1` that is a failure.
pub(crate) fn skip(reason: &str) {
    let strict = std::env::var_os("SKEP_TEST_STRICT").is_some_and(|value| value == "1");
    assert!(!strict, "would be skipped: {reason}");
    println!("skipped: {reason}");
}

/// Whether the long form of tests is asked for.
pub(crate) fn long() -> bool {
    soak() || std::env::var_os("SKEP_TEST_LONG").is_some_and(|value| value == "1")
}

/// Whether hours do not matter: what the long form samples is done whole.
pub(crate) fn soak() -> bool {
    std::env::var_os("SKEP_TEST_SOAK").is_some_and(|value| value == "1")
}
