//! What a sandbox finds of a network when it has none.

use crate::harness::for_both;

#[test]
fn the_hosts_resolver_and_names_are_not_seen() {
    for_both(|lab| {
        let host = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let script = "cat /etc/resolv.conf; echo --; cat /etc/hosts; echo x 2>/dev/null >>/etc/resolv.conf && echo WRITTEN; true";
        let text = lab.skep(["run", "--name", "bee", "--", "sh", "-c", script]).run().ok().text();
        for server in host.lines().filter_map(|line| line.strip_prefix("nameserver ")) {
            assert!(!text.contains(server), "{text}");
        }
        assert!(text.contains("127.0.0.1 localhost bee") && !text.contains("WRITTEN"), "{text}");
        // The control: with the host's network it is the host's file.
        let seen = lab.skep(["run", "--net", "host", "--", "cat", "/etc/resolv.conf"]).run().ok();
        assert_eq!(seen.text(), host.trim_end_matches('\n'));
    });
}
