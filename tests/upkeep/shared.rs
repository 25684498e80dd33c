//! Two state directories, one PostgreSQL.

use crate::harness::postgres::Postgres;
use crate::harness::{Lab, for_both};
use std::path::Path;

fn names(lab: &Lab, home: &Path, url: &str) -> Vec<String> {
    let list = lab.skep(["ls", "--json", "--home"]).arg(home).env("SKEP_STORE", url).run().ok();
    let json = list.json();
    let rows = json.as_array().cloned().unwrap_or_default();
    rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn store_9_two_state_directories_on_one_database_touch_only_their_own() {
    for_both(|lab| {
        let Some(server) = Postgres::start() else { return };
        let url = server.url("s");
        lab.write("a", "a\n");
        let before = lab.tree();
        let homes = [lab.state.clone(), lab.root.join("other")];
        for (home, name) in homes.iter().zip(["one", "two"]) {
            let skep =
                |words: &[&str]| lab.skep(["--home"]).arg(home).args(["--store", &url]).args(words);
            skep(&["create", name]).run().ok();
            skep(&["exec", name, "--", "sh", "-c", "echo b > b"]).run().ok();
            let diff = skep(&["diff", name, "--json"]).run().ok().json();
            assert_eq!(diff["changes"][0]["path"], "b");
        }
        assert!(!homes[0].join("skep.db").exists(), "nothing is remembered beside it");
        assert_eq!(names(lab, &homes[0], &url), ["one"]);
        assert_eq!(names(lab, &homes[1], &url), ["two"]);
        // Reconcile and gc of one leave the other's alone; so does a command by name.
        let first = |words: &[&str]| {
            lab.skep(["--home"]).arg(&homes[0]).args(["--store", &url]).args(words)
        };
        first(&["gc"]).run().ok();
        first(&["rm", "two", "--discard"]).run().exits(5).says("is on node");
        assert_eq!(server.sql("SELECT count(*) FROM s.sandboxes WHERE state = 'ready'"), "2");
        for (home, name) in homes.iter().zip(["one", "two"]) {
            let skep = lab.skep(["--home"]).arg(home).args(["--store", &url]);
            skep.args(["rm", name, "--discard"]).run().ok();
        }
        lab.tree().assert_equals(&before, "the project was changed");
        lab.skep(["ls"]).env("SKEP_STORE", "postgresql://192.0.2.1/x").run().exits(2);
    });
}
