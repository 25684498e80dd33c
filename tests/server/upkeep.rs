//! What a server counts, keeps and forgets.

use crate::egress::origin::Origin;
use crate::harness::{Server, TOKEN, Who, entries, for_both, for_each, wait_for};
use serde_json::{Value, json};

#[test]
fn an_exec_that_is_waited_for_is_answered_whole_however_long_it_takes() {
    for_both(|lab| {
        let server = lab.serve(&[]);
        server.create("s");
        // Within its worker's patience, beyond it, and with more than a worker takes in.
        for (script, out, err) in [
            ("echo a; echo b >&2; exit 3", "a\n".to_owned(), "b\n"),
            ("echo a; sleep 0.1; echo c; echo b >&2; exit 3", "a\nc\n".to_owned(), "b\n"),
            ("head -c 300000 /dev/zero | tr '\\0' x; exit 3", "x".repeat(300_000), ""),
            ("cat; exit 3", String::new(), ""),
        ] {
            let exec = server.script("s", script);
            assert_eq!((&exec["stdout"], &exec["stderr"]), (&json!(out), &json!(err)), "{script}");
            let said = (&exec["exit_code"], &exec["running"], &exec["reason"]);
            assert_eq!(said, (&json!(3), &json!(false), &json!("exited")), "{script}");
            // What was answered is what is remembered, and was told.
            let path = format!("/v1/execs/{}", exec["id"].as_str().unwrap());
            let mut known = server.get(&path).is(200).json();
            for key in ["stdout", "stderr"] {
                known[key] = exec[key].clone();
            }
            assert_eq!(known, exec, "{script}");
            let events = server.get("/v1/events?limit=5000").is(200).json();
            let ended =
                |event: &&Value| event["kind"] == "exec.ended" && event["exec"] == exec["id"];
            assert_eq!(events.as_array().unwrap().iter().filter(ended).count(), 1, "{script}");
        }
        server.stop();
    });
}

fn rows(decisions: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let rows = decisions.as_array().unwrap().iter();
    let rows = rows.filter(|one| one["what"] != "sandbox");
    rows.map(|one| (text(&one["what"]), text(&one["name"]), text(&one["reason"]))).collect()
}

#[test]
fn clean_a_dry_run_tells_of_rows_too() {
    for_each([Who::user()], |lab| {
        let variables = [
            ("SKEP_GC_EXECS_KEEP", "1"),
            ("SKEP_GC_EVENTS_AGE", "1s"),
            ("SKEP_GC_DELETED_AGE", "1s"),
        ];
        let server = lab.serve_in(&lab.state, &variables, &[]);
        server.create("gone");
        server.with(TOKEN, &["-X", "DELETE"], "/v1/sandboxes/gone").is(204);
        server.create("s");
        for _ in 0..4 {
            server.script("s", "echo out");
        }
        let gc = |dry: bool| {
            server.post("/v1/gc", &json!({ "dry_run": dry, "only": ["rows"] })).is(200).json()
        };
        let told = wait_for("rows to be old", 20, || {
            let told = rows(&gc(true));
            told.iter().any(|row| row.0.contains("deleted")).then_some(told)
        });
        assert!(told.iter().any(|row| row.0 == "execs" && row.1 == "3"), "{told:?}");
        assert!(told.iter().any(|row| row.0 == "events"), "{told:?}");
        let execs = server.get("/v1/sandboxes/s/execs").is(200).json();
        assert_eq!(execs.as_array().unwrap().len(), 4, "a dry run removes nothing");
        let done = rows(&gc(false));
        assert_eq!(
            done.iter().map(|row| &row.0).collect::<Vec<_>>(),
            told.iter().map(|row| &row.0).collect::<Vec<_>>()
        );
        let execs = server.get("/v1/sandboxes/s/execs").is(200).json();
        assert_eq!(execs.as_array().unwrap().len(), 1);
        server.stop();
    });
}

#[test]
fn api_15_a_readiness_check_leaves_nothing_in_the_store() {
    for_both(|lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let events = || server.get("/v1/events?limit=5000").is(200).json();
        let before = events();
        assert_eq!(server.bare(&[], "/health/ready").status, 200);
        assert_eq!(events(), before);
        let ls = lab.skep(["ls", "--all", "--json"]).run().ok().json();
        assert_eq!(ls.as_array().unwrap().len(), 1, "{ls}");
        server.stop();
        let count = "import sqlite3,sys; d=sqlite3.connect(sys.argv[1]); \
             print([d.execute(f'select count(*) from {t}').fetchone()[0] for t in ('sandboxes','execs')])";
        let database = lab.state.join("skep.db");
        let counted = lab.program("python3").args(["-c", count]).arg(database).run().ok().text();
        assert_eq!(counted, "[1, 0]");
    });
}

#[test]
fn a_mistyped_section_is_an_error_and_the_owners_settings_are_the_owners() {
    for_each([Who::user()], |lab| {
        let create = |name: &str, value: &str| lab.skep(["create"]).env(name, value).run();
        create("SKEP_LIMIT_MEMORY", "64M").exits(2).says("SKEP_LIMITS_MEMORY");
        create("SKEP_NONSENSE", "1").exits(2).says("SKEP_NONSENSE");
        let settings = |doctor: &Value| {
            let all = doctor.as_array().unwrap().iter();
            all.clone().find(|one| one["name"] == "settings").unwrap().clone()
        };
        let server = lab.serve(&[]);
        assert_eq!(settings(&server.get("/v1/doctor").is(200).json())["ok"], true);
        let file = lab.home.join(".config/skep/config.toml");
        lab.write(&file, "limits.memroy = \"1G\"\n");
        let refused =
            server.post("/v1/sandboxes", &json!({ "project": lab.project })).is(503).json();
        assert_eq!(refused["code"], "unavailable", "{refused}");
        assert!(refused["message"].as_str().unwrap().contains("memroy"), "{refused}");
        let found = settings(&server.get("/v1/doctor").is(200).json());
        assert_eq!(found["ok"], false);
        assert!(found["reason"].as_str().unwrap().contains("memroy"), "{found}");
        std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
        server.create("s");
        server.stop();
    });
}

#[test]
fn an_approval_that_could_not_be_written_down_says_so_and_is_finished() {
    for_both(|lab| {
        for point in ["approve.published", "approve.settled"] {
            let armed = format!("{point}=eio");
            let server = lab.serve_in(&lab.state, &[("SKEP_FAILPOINT", &armed)], &[]);
            let name = point.replace('.', "-");
            server.create(&name);
            server.script(&name, &format!("echo new > {name}"));
            let path = format!("/v1/sandboxes/{name}/approve");
            let answer = server.post(&path, &json!({})).is(500).json();
            assert_eq!(answer["retryable"], false, "{answer}");
            let id = answer["details"]["approval"].as_str().unwrap().to_owned();
            assert!(lab.tree().get(&name).is_some());
            // Whoever looks next finishes it, and the sandbox is as if nothing had happened.
            wait_for("the approval to be finished", 20, || {
                let state =
                    server.get(&format!("/v1/approvals/{id}")).is(200).json()["state"].clone();
                (state == "applied").then_some(())
            });
            let state =
                server.get(&format!("/v1/sandboxes/{name}")).is(200).json()["state"].clone();
            assert_eq!(state, "approved", "{point}");
            server.stop();
        }
    });
}

fn verdicts(server: &Server<'_>, what: &str) -> f64 {
    let text = String::from_utf8(server.get("/metrics").is(200).body).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("skep_egress_verdicts_total"));
    let wanted = lines.filter(|line| line.contains(&format!("verdict=\"{what}\"")));
    wanted.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

#[test]
fn api_15_what_goes_out_is_counted_in_the_metrics() {
    for_both(|lab| {
        let origin = Origin::start("the-origin");
        let server = lab.serve(&[]);
        let allow = format!("127.0.0.1:{}", origin.port());
        let body = json!({ "name": "s", "project": lab.project, "allow": [allow] });
        server.post("/v1/sandboxes", &body).is(201);
        assert_eq!((verdicts(&server, "allow"), verdicts(&server, "deny")), (0.0, 0.0));
        let script = format!(
            "curl -sS -m 20 --noproxy '*' http://{allow}/; curl -sS -m 20 http://denied.test/"
        );
        let said = server.script("s", &script);
        assert!(said["stdout"].as_str().unwrap().contains("the-origin"), "{said}");
        // The log goes with the sandbox; what it said was counted before.
        server.with(TOKEN, &["-X", "DELETE"], "/v1/sandboxes/s?discard=true").is(204);
        assert!(verdicts(&server, "allow") >= 1.0);
        assert!(verdicts(&server, "deny") >= 1.0);
        let metrics = String::from_utf8(server.get("/metrics").is(200).body).unwrap();
        assert!(metrics.contains("# TYPE skep_egress_bytes histogram"), "{metrics}");
        server.stop();
    });
}

#[test]
fn res_the_output_of_all_execs_together_is_bounded() {
    for_both(|lab| {
        let server = lab.serve(&[]);
        let body = json!({ "name": "s", "project": lab.project, "limits": { "output": "64K" } });
        server.post("/v1/sandboxes", &body).is(201);
        let ran: Vec<_> =
            (0..40).map(|_| server.script("s", "head -c 60000 /dev/zero | tr '\\0' x")).collect();
        let directory = entries(&lab.state.join("sandboxes"))[0].join("execs");
        let logs = entries(&directory).into_iter().filter(|path| !path.ends_with("end"));
        let bytes: u64 = logs.map(|path| path.metadata().unwrap().len()).sum();
        assert!(bytes < (17 * 64) << 10, "{bytes} bytes of logs");
        let kept = |exec: &Value| {
            let path = format!("/v1/execs/{}/logs", exec["id"].as_str().unwrap());
            server.get(&path).is(200).json()["chunks"].as_array().unwrap().clone()
        };
        // Of the first it is said that it is gone; the last one is whole.
        assert_eq!(kept(&ran[0])[0]["stream"], "dropped");
        let last = kept(ran.last().unwrap());
        let bytes: usize = last.iter().map(|chunk| chunk["text"].as_str().unwrap().len()).sum();
        assert_eq!(bytes, 60_000);
        assert_eq!(ran[0]["exit_code"], 0);
        server.stop();
    });
}
