//! Looking up users and hosts in a program that may have been linked statically.
//!
//! The C library reads `/etc/nsswitch.conf` and loads a shared library for every service that it
//! names and does not contain (`systemd`, `sss`, `resolve` …). Such a library brings a second C
//! library along, whose thread data a static program does not have: the first call into it is a
//! segmentation fault.

use std::ffi::CStr;

#[cfg(target_env = "gnu")]
mod c_library {
    use std::ffi::{c_char, c_int};

    unsafe extern "C" {
        pub fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
    }
}

/// What the C library can do by itself: files for users and groups, files and DNS for hosts.
const BUILT_IN: [(&CStr, &CStr); 3] =
    [(c"passwd", c"files"), (c"group", c"files"), (c"hosts", c"files dns")];

/// Keeps later look-ups of users and hosts to what the C library contains. How the program is linked
/// is decided after this was compiled, and every build is to give the same answers. To be called before a library that may ask for either
/// (gitoxide for a home, a database client for a user); costs little from the second time on.
pub fn keep_built_in() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        BUILT_IN.into_iter().for_each(|(database, services)| set(database, services))
    });
}

#[cfg(target_env = "gnu")]
fn set(database: &CStr, services: &CStr) {
    // SAFETY: both are NUL-terminated and live for ever; the function takes a lock of its own. That
    // it fails for want of memory leaves things as they were.
    unsafe { c_library::__nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
}

#[cfg(not(target_env = "gnu"))]
fn set(_: &CStr, _: &CStr) {}
