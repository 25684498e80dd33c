//! A store that goes away and comes back under a living server.

use crate::harness::postgres::Postgres;
use crate::harness::{Reply, Server, TOKEN, Who, for_each, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::time::Duration;

/// How long after the requests the database dies, in each round.
const DEATHS: [u64; 8] = [20, 40, 60, 80, 30, 50, 70, 100];
/// Requests that met an outage, for there to be enough of them.
const ENOUGH: usize = 5;

/// Ends every process of it at once.
fn strike(database: &mut Postgres) {
    let postmaster = database.pid() as i32;
    let children = super::crash::children(postmaster);
    for pid in std::iter::once(&postmaster).chain(&children) {
        let _ = kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL);
    }
    database.killed();
    // The next one does not start while one of these holds the memory that they share.
    wait_for("all of the database to be gone", 10, || {
        let lives = |pid: &i32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        (!children.iter().any(lives)).then_some(())
    });
}

fn keyed(server: &Server<'_>, (path, body, key): &(String, Value, String)) -> Reply {
    server.send("POST", path, body, &["-H", &format!("Idempotency-Key: {key}")])
}

fn remove(server: &Server<'_>, name: &str) {
    let path = format!("/v1/sandboxes/{name}?discard=true");
    server.with(TOKEN, &["-X", "DELETE"], &path).is(204);
}

/// Does something with each, a few at a time.
fn at_once<T: Sync>(all: &[T], act: impl Fn(&T) + Sync) {
    std::thread::scope(|scope| {
        for part in all.chunks(all.len().div_ceil(6).max(1)) {
            let act = &act;
            scope.spawn(move || part.iter().for_each(act));
        }
    });
}

#[test]
fn store_3_what_an_outage_interrupts_can_be_asked_again_and_leaves_nothing() {
    for_each([Who::user()], |lab| {
        let Some(mut database) = Postgres::start() else { return };
        let url = database.url("s");
        let server = lab.serve_in(&lab.state, &[("SKEP_STORE", &url)], &[]);
        server.create("base");
        let mut asked = Vec::new();
        let mut failed = 0;
        for (round, pause) in DEATHS.into_iter().enumerate() {
            if failed >= ENOUGH {
                break;
            }
            let wanted: Vec<_> = (0..6)
                .map(|number| {
                    let key = format!("k{round}-{number}");
                    if number % 3 == 2 {
                        let body = json!({ "command": ["true"] });
                        return ("/v1/sandboxes/base/execs".to_owned(), body, key);
                    }
                    let body =
                        json!({ "project": lab.project, "name": format!("n{round}-{number}") });
                    ("/v1/sandboxes".to_owned(), body, key)
                })
                .collect();
            let answers: Vec<u16> = std::thread::scope(|scope| {
                let server = &server;
                let threads: Vec<_> = wanted
                    .iter()
                    .map(|one| scope.spawn(move || keyed(server, one).status))
                    .collect();
                std::thread::sleep(Duration::from_millis(pause));
                strike(&mut database);
                // A short outage is waited for; this one lasts until the requests were given up.
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            database.resume();
            failed += answers.iter().filter(|status| **status != 201).count();
            asked.extend(wanted);
        }
        println!("{failed} of {} requests met an outage", asked.len());
        assert!(failed > 0, "no request met an outage");
        // A retry with its key is what a client does then.
        at_once(&asked, |one| {
            let again = keyed(&server, one);
            // Of an exec it may not be known whether it began: that is said, and is not for ever under way.
            let unknown = one.0.ends_with("execs") && again.status == 409;
            assert!(again.status == 201 || unknown, "{one:?}: {again:?}");
        });
        wait_for("no row to be half made", 30, || {
            let list = server.get("/v1/sandboxes?state=creating").is(200).json();
            (list["items"] == json!([])).then_some(())
        });
        let all = server.get("/v1/sandboxes").is(200).json();
        assert_eq!(all["items"].as_array().unwrap().len(), 1 + asked.len() / 6 * 4);
        at_once(all["items"].as_array().unwrap(), |one| {
            remove(&server, one["name"].as_str().unwrap());
        });
        server.stop();
    });
}

#[test]
fn store_9_a_server_that_has_nothing_to_write_keeps_its_node() {
    for_each([Who::user()], |lab| {
        let Some(database) = Postgres::start() else { return };
        let url = database.url("s");
        let variables = [("SKEP_STORE", url.as_str()), ("SKEP_STORE_LEASE", "3s")];
        let server = lab.serve_in(&lab.state, &variables, &[]);
        server.create("live");
        let now = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint";
        let ends = || database.sql("SELECT expires_us FROM s.nodes").parse::<u64>().unwrap();
        let operations =
            || database.sql("SELECT count(*) FROM s.operations").parse::<u64>().unwrap();
        let (first, written) = (ends(), operations());
        wait_for("the lease to be renewed twice", 20, || {
            assert_eq!(database.sql(&format!("SELECT expires_us > {now} FROM s.nodes")), "t");
            std::thread::sleep(Duration::from_millis(100));
            (ends() > first + 3_000_000).then_some(())
        });
        // Said by a write every so often, not by each look.
        assert!(operations() <= written + 6, "{} writes", operations() - written);
        remove(&server, "live");
        server.stop();
    });
}
