//! Rules and hosts: what is taken has one form, and reads back as itself; an authority is a host and
//! a port, or nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_policy::egress::{Host, Rule};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(rule) = Rule::parse(text) {
        assert_eq!(Rule::parse(&rule.to_string()).as_ref(), Ok(&rule));
    }
    if let Ok(host) = Host::parse(text) {
        let shown = host.to_string();
        assert!(shown.bytes().all(|byte| byte.is_ascii_graphic()));
        assert_eq!(Host::parse(&shown).as_ref(), Ok(&host));
    }
    if let Ok((host, Some(port))) = Host::parse_authority(text) {
        assert_eq!(Host::parse_authority(&format!("{host}:{port}")), Ok((host, Some(port))));
    }
});
