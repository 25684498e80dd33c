//! Servers on one PostgreSQL: each for its own node, and one that slept past its lease.

use crate::harness::postgres::Postgres;
use crate::harness::{Lab, Reply, Server, Who, for_each, outside, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::path::Path;

/// Everything of a server: itself and its workers, not the keepers.
fn family(server: &Server<'_>) -> Vec<i32> {
    let mut all = vec![server.pid()];
    all.extend(super::crash::children(server.pid()));
    all
}

fn signal(pids: &[i32], signal: Signal) {
    for pid in pids {
        kill_process(Pid::from_raw(*pid).unwrap(), signal).unwrap();
    }
}

fn create(server: &Server<'_>, lab: &Lab, name: &str) -> Reply {
    server.post("/v1/sandboxes", &json!({ "name": name, "project": lab.project }))
}

fn serve<'a>(lab: &'a Lab, home: &Path, node: &str, url: &str) -> Server<'a> {
    let variables = [("SKEP_STORE", url), ("SKEP_STORE_NODE", node), ("SKEP_STORE_LEASE", "3s")];
    lab.serve_in(home, &variables, &[])
}

#[test]
fn store_9_a_server_that_slept_past_its_lease_is_fenced() {
    for_each([Who::user()], |lab| {
        let Some(database) = Postgres::start() else { return };
        let url = database.url("s");
        lab.write("a", "a\n");
        let before = lab.tree();
        let homes = ["one", "two", "three"].map(|name| lab.root.join(name));
        let sleeper = serve(lab, &homes[0], "shared", &url);
        let other = serve(lab, &homes[2], "other", &url);
        create(&sleeper, lab, "mine").is(201);
        create(&other, lab, "theirs").is(201);
        sleeper.script("mine", "echo b > b");
        let epoch = || database.sql("SELECT epoch FROM s.nodes WHERE node = 'shared'");
        assert_eq!(epoch(), "1");
        // Whoever wants the node while its holder lives is refused.
        let variables = [("SKEP_STORE_NODE", "shared"), ("SKEP_STORE_LEASE", "3s")];
        let mut early = lab.skep(["gc", "--home"]).arg(&homes[1]).args(["--store", &url]);
        for (name, value) in variables {
            early = early.env(name, value);
        }
        early.run().exits(1).says("node");
        // Asleep, with a request on its way, past the lease.
        let asleep = family(&sleeper);
        signal(&asleep, Signal::STOP);
        let waiting = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| create(&sleeper, lab, "late"));
            wait_for("the lease to run out", 30, || {
                let left = "SELECT expires_us < (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint FROM s.nodes WHERE node = 'shared'";
                (database.sql(left) == "t").then_some(())
            });
            let heir = serve(lab, &homes[1], "shared", &url);
            create(&heir, lab, "heirs").is(201);
            assert_eq!(epoch(), "2");
            signal(&asleep, Signal::CONT);
            let late = waiting.join().unwrap();
            // It can never write again, whatever is asked of it; the heir can.
            for name in ["later", "latest"] {
                let refused = create(&sleeper, lab, name);
                assert!((400..600).contains(&refused.status), "{refused:?}");
            }
            let approve = sleeper.post("/v1/sandboxes/mine/approve", &json!({}));
            assert!(approve.status >= 400, "{approve:?}");
            create(&heir, lab, "more").is(201);
            for name in ["heirs", "more"] {
                let path = format!("/v1/sandboxes/{name}?discard=true");
                heir.with(crate::harness::TOKEN, &["-X", "DELETE"], &path).is(204);
            }
            heir.stop();
            late
        });
        assert!(waiting.status >= 400, "{waiting:?}");
        assert_eq!(epoch(), "2");
        let rows =
            "SELECT string_agg(name, ' ' ORDER BY name) FROM s.sandboxes WHERE state <> 'deleted'";
        assert_eq!(database.sql(rows), "mine theirs");
        lab.tree().assert_equals(&before, "an approval got through");
        // A third one, on a node of its own, was not in the way of either.
        create(&other, lab, "again").is(201);
        for name in ["theirs", "again"] {
            let path = format!("/v1/sandboxes/{name}?discard=true");
            other.with(crate::harness::TOKEN, &["-X", "DELETE"], &path).is(204);
        }
        other.stop();
        sleeper.kill();
        // What the sleeper's keeper held is the test's to end.
        outside::kill_all(&homes[0]);
    });
}
