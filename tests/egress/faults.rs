//! The egress process dies: nothing passes meanwhile, it comes back, and at last it does not.

use super::RAW;
use super::origin::Origin;
use crate::harness::{Lab, for_both, outside, wait_for};

/// The egress process of the lab's only sandbox, found by its command line.
fn egress(lab: &Lab) -> Option<i32> {
    let all = outside::processes_of(&lab.root).into_iter();
    all.into_iter().find(|one| one.command.contains("__egress")).map(|one| one.pid)
}

#[test]
fn net_18_a_killed_egress_process_fails_closed_and_comes_back() {
    for_both(|lab| {
        let origin = Origin::start("origin");
        let (port, rule) = (origin.port().to_string(), format!("127.0.0.1:{}", origin.port()));
        lab.skep(["create", "s", "--allow", &rule]).run().ok();
        let fetch = || {
            lab.skep(["exec", "s", "--", "/usr/bin/python3", "-c", RAW, "127.0.0.1", &port]).run()
        };
        assert!(fetch().ok().text().contains("origin"));
        let first = wait_for("the egress process", 10, || egress(lab));
        outside::kill(first);
        let again =
            wait_for("another egress process", 20, || egress(lab).filter(|pid| *pid != first));
        assert!(fetch().ok().text().contains("origin"));
        assert!(lab.skep(["net", "s"]).run().ok().errors().contains("started again"));
        // Killed as often as it comes: at last nobody listens, and connections are refused.
        let mut last = again;
        outside::kill(last);
        for _ in 0..4 {
            let before = last;
            last = wait_for("another one", 20, || egress(lab).filter(|pid| *pid != before));
            outside::kill(last);
        }
        let ran = wait_for("the doors to be closed", 20, || {
            Some(fetch()).filter(|ran| ran.errors().contains("refused"))
        });
        assert!(!ran.text().contains("origin"));
        assert_eq!(egress(lab), None);
        // The sandbox itself goes on, and a new start has a way out again.
        lab.skep(["exec", "s", "--", "true"]).run().ok();
        lab.skep(["stop", "s"]).run().ok();
        assert!(fetch().ok().text().contains("origin"));
    });
}

#[test]
fn net_18_nothing_of_it_outlives_the_keeper() {
    for_both(|lab| {
        lab.skep(["create", "s", "--allow", "a.test"]).run().ok();
        wait_for("the egress process", 10, || egress(lab));
        for keeper in lab.keepers() {
            outside::kill(keeper);
        }
        wait_for("its end", 10, || egress(lab).is_none().then_some(()));
        crate::harness::wait_for_empty("processes", 10, || outside::processes_of(&lab.root));
    });
}
