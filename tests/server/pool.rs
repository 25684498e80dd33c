//! Sandboxes made ahead: given to one, never to two, and never to somebody who asked for another.

use crate::harness::{Lab, Server, for_both, outside, wait_for, wait_for_empty};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;

fn pool(lab: &Lab, text: &str) {
    let path = lab.home.join(".config/skep/config.toml");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    lab.own_below(&lab.home.join(".config"));
}

/// The home is as it was.
fn no_pool(lab: &Lab) {
    fs::remove_dir_all(lab.home.join(".config/skep")).unwrap();
}

fn of_project(lab: &Lab, size: u64, more: &str) -> String {
    format!("[pools.warm]\nproject = \"{}\"\nsize = {size}\n{more}", lab.project.display())
}

fn figures(lab: &Lab) -> Value {
    lab.skep(["stats", "--json"]).run().ok().json()["pools"]["warm"].clone()
}

fn waiting(lab: &Lab, number: u64) {
    wait_for("sandboxes that wait", 60, || (figures(lab)["waiting"] == number).then_some(()));
}

/// Directories of sandboxes: what an `ls` outside sees.
fn directories(lab: &Lab) -> BTreeSet<String> {
    let entries = fs::read_dir(lab.state.join("sandboxes")).unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn create(lab: &Lab, server: &Server<'_>, body: Value) -> Value {
    let mut body = body;
    body["project"] = json!(lab.project);
    server.post("/v1/sandboxes", &body).is(201).json()
}

#[test]
fn a_sandbox_made_ahead_is_given_to_one_and_made_anew() {
    for_both(|lab| {
        lab.write("a.txt", "one");
        pool(lab, &of_project(lab, 2, ""));
        let server = lab.serve(&[]);
        waiting(lab, 2);
        // Nobody sees them before they are somebody's.
        assert_eq!(lab.sandboxes().len(), 0);
        let ahead = directories(lab);
        assert_eq!(ahead.len(), 2);
        // The project goes on meanwhile, and what it is now is the base.
        lab.write("a.txt", "two");
        let first = create(lab, &server, json!({ "name": "first" }));
        assert!(ahead.contains(first["id"].as_str().unwrap()), "{first}");
        assert_eq!(
            lab.exec_script("first", "cat a.txt; echo three > a.txt").run().ok().text(),
            "two"
        );
        let changes = lab.diff("first");
        assert_eq!(changes["changes"][0]["path"], "a.txt");
        lab.skep(["approve", "first"]).run().ok();
        assert_eq!(fs::read_to_string(lab.project.join("a.txt")).unwrap(), "three\n");
        // Another takes its place, and the newest is the one that was asked for last.
        waiting(lab, 2);
        assert_eq!(figures(lab)["claimed"], 1);
        assert_eq!(lab.skep(["show", "--json"]).run().ok().json()["name"], "first");
        server.stop();
        wait_for_empty("sandboxes that nobody has", 20, || {
            let own = first["id"].as_str().unwrap().to_owned();
            directories(lab).into_iter().filter(|id| *id != own).collect::<Vec<_>>()
        });
        no_pool(lab);
    });
}

#[test]
fn of_many_who_ask_at_once_each_gets_its_own() {
    for_both(|lab| {
        pool(lab, &of_project(lab, 3, ""));
        let server = lab.serve(&[]);
        waiting(lab, 3);
        let ahead = directories(lab);
        let ids: Vec<String> = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..6)
                .map(|_| {
                    scope.spawn(|| {
                        create(lab, &server, json!({}))["id"].as_str().unwrap().to_owned()
                    })
                })
                .collect();
            asking.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let different: BTreeSet<_> = ids.iter().cloned().collect();
        assert_eq!(different.len(), 6, "{ids:?}");
        assert!(different.is_superset(&ahead), "{ids:?} {ahead:?}");
        no_pool(lab);
    });
}

/// What differs in anything that a keeper is started with is made for whoever asks.
#[test]
fn who_asks_for_another_gets_another() {
    for_both(|lab| {
        lab.write("sub/plain", "x");
        pool(lab, &of_project(lab, 1, ""));
        let server = lab.serve(&[]);
        waiting(lab, 1);
        let ahead = directories(lab);
        let others = [
            json!({ "limits": { "pids": 50 } }),
            json!({ "hide": ["sub/plain"] }),
            json!({ "profile": "build" }),
            json!({ "exclusive": true }),
        ];
        for other in others {
            let made = create(lab, &server, other.clone());
            assert!(!ahead.contains(made["id"].as_str().unwrap()), "{other}");
        }
        // What shows pieces of the home is never made ahead.
        lab.directory(lab.home.join(".tools"));
        pool(lab, &of_project(lab, 1, "[sandbox]\nhome = [\".tools\"]\n"));
        wait_for("the pool to be emptied", 60, || (figures(lab)["waiting"] == 0).then_some(()));
        wait_for("the reason", 60, || {
            lab.server_log().contains("pieces of the home").then_some(())
        });
        fs::remove_dir(lab.home.join(".tools")).unwrap();
        pool(lab, &of_project(lab, 1, ""));
        waiting(lab, 1);
        let ahead = directories(lab);
        // A secret that came into the project since is hidden from whoever comes now.
        lab.write("sub/.env", "SECRET");
        let late = create(lab, &server, json!({ "name": "late" }));
        assert!(!ahead.contains(late["id"].as_str().unwrap()));
        assert_ne!(lab.exec_script("late", "cat sub/.env").run().code(), 0);
        no_pool(lab);
    });
}

#[test]
fn what_waits_goes_with_its_settings_and_with_its_server() {
    for_both(|lab| {
        pool(lab, &of_project(lab, 1, ""));
        let server = lab.serve(&[]);
        waiting(lab, 1);
        let old = directories(lab);
        // Made under another policy, the old one is of no use any more.
        pool(lab, &of_project(lab, 1, "[limits]\npids = 77\n"));
        wait_for("another one", 60, || {
            let now = directories(lab);
            (now.len() == 1 && now != old).then_some(())
        });
        pool(lab, "");
        wait_for_empty("sandboxes", 60, || directories(lab).into_iter().collect::<Vec<_>>());
        pool(lab, &of_project(lab, 1, ""));
        waiting(lab, 1);
        // Killed, it cannot take them along; whoever comes next does.
        server.kill();
        assert_eq!(lab.sandboxes().len(), 0);
        wait_for_empty("sandboxes", 20, || directories(lab).into_iter().collect::<Vec<_>>());
        wait_for_empty("processes", 20, || outside::processes_of(&lab.root));
        no_pool(lab);
    });
}
