//! The way out of a container: skep's, where skep may make it, and refused elsewhere.

use super::{lab, run};
use crate::egress::everywhere::the_way_out;
use crate::harness::{Docker, Who, skip};

#[test]
fn the_way_out_of_a_container_is_that_of_every_sandbox() {
    let Some(engine) = Docker::start() else { return };
    let lab = lab(Who::root().unwrap(), &engine);
    the_way_out(&lab, "docker", &|call| call, "nft redirect to skep's proxy");
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
