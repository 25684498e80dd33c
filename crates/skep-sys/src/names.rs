//! Looking up users and hosts in a program that was linked statically.
//!
//! The C library reads `/etc/nsswitch.conf` and loads a shared library for every service that it
//! names and does not contain (`systemd`, `sss`, `resolve` …). Such a library brings a second C
//! library along, whose thread data a static program does not have: the first call into it is a
//! segmentation fault.

use std::ffi::CStr;

#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
mod c_library {
    use std::ffi::{c_char, c_int};

    unsafe extern "C" {
        pub fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
    }
}

/// What the C library can do by itself: files for users and groups, files and DNS for hosts.
const BUILT_IN: [(&CStr, &CStr); 3] =
    [(c"passwd", c"files"), (c"group", c"files"), (c"hosts", c"files dns")];

/// Keeps later look-ups of users and hosts to what the C library contains, where it is part of the
/// program; elsewhere nothing is changed. To be called before a library that may ask for either
/// (gitoxide for a home, a database client for a user); costs little from the second time on.
pub fn keep_built_in() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        BUILT_IN.into_iter().for_each(|(database, services)| set(database, services))
    });
}

#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
fn set(database: &CStr, services: &CStr) {
    // SAFETY: both are NUL-terminated and live for ever; the function takes a lock of its own. That
    // it fails for want of memory leaves things as they were.
    unsafe { c_library::__nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
}

#[cfg(not(all(target_env = "gnu", target_feature = "crt-static")))]
fn set(_: &CStr, _: &CStr) {}
