//! The way out of a container: skep's, where skep may make it, and refused elsewhere.

use super::{lab, run};
use crate::egress::RAW;
use crate::egress::everywhere::the_way_out;
use crate::egress::origin::Origin;
use crate::harness::{Docker, Who, skip};

#[test]
fn the_way_out_of_a_container_is_that_of_every_sandbox() {
    let Some(engine) = Docker::start() else { return };
    let lab = lab(Who::root().unwrap(), &engine);
    the_way_out(&lab, "docker", &|call| call, "nft redirect to skep's proxy");
    lab.audit();
    engine.assert_empty();
}

/// The same on a host that cannot redirect connections: by an interface of user space.
#[test]
fn the_way_out_of_a_container_without_nft_is_an_interface() {
    if !std::path::Path::new("/dev/net/tun").exists() {
        return skip("this kernel has no TUN");
    }
    let Some(engine) = Docker::start_without_nft() else { return };
    let lab = lab(Who::root().unwrap(), &engine);
    let origin = Origin::start("the-origin");
    let rule = format!("127.0.0.1:{}", origin.port());
    let create = lab.skep(["create", "s", "--provider", "docker", "--allow", &rule]);
    engine.beside(create, lab.who).within(60).run().ok();
    let report = lab.sandbox("s")["enforcement"]["network"].clone();
    assert_eq!(report["enforced"], true, "{report}");
    let how = report["how"].as_str().unwrap();
    assert!(how.contains("TUN") && how.contains("not installed"), "{how}");
    let raw = |host: &str, port: u16| {
        let port = port.to_string();
        lab.skep(["exec", "s", "--", "/usr/bin/python3", "-c", RAW, host, &port]).run()
    };
    assert!(raw("127.0.0.1", origin.port()).ok().text().contains("the-origin"));
    for (host, port) in [("93.184.216.34", 80), ("169.254.169.254", 80), ("203.0.113.9", 22)] {
        assert!(raw(host, port).text().contains(" 403"), "{host}");
    }
    let tested = lab.skep(["net", "test", "s", &rule, "denied.example", "--json"]).run();
    let probes = tested.exits(1).json();
    assert_eq!(
        (&probes[1]["reached"], &probes[3]["allowed"]),
        (&true.into(), &false.into()),
        "{probes}"
    );
    lab.audit();
    engine.assert_empty();
}

#[test]
fn a_user_who_may_not_enter_the_containers_network_is_told_so() {
    let Some(engine) = Docker::start() else { return };
    let who = match Who::user() {
        Ok(who) => who,
        Err(reason) => return skip(&reason),
    };
    let lab = lab(who, &engine);
    let refused = run(&lab, &["--allow", "example.com"], "true").run().exits(5);
    assert!(refused.errors().contains("only root may enter"), "{}", refused.errors());
    engine.assert_empty();
    lab.audit_leftovers();
}
