//! The command line through a server: `--host` and its own engine say the same.

use crate::harness::{Call, Lab, Server, Who, for_both, for_each, wait_for};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn through(lab: &Lab, server: &Server<'_>, arguments: &[&str]) -> Call {
    lab.skep(arguments).env("SKEP_HOST", server.socket())
}

#[test]
fn the_basics_pass_through_a_server() {
    for_both(|lab| {
        lab.write("a.txt", "one\n");
        let server = lab.serve(&[]);
        let skep = |arguments: &[&str]| through(lab, &server, arguments);
        let ran = skep(&[
            "run",
            "--name",
            "s",
            "--",
            "sh",
            "-c",
            "cat; echo two > b.txt; echo e >&2; exit 3",
        ]);
        let ran = ran.input("given\n").run().exits(3);
        assert_eq!(ran.text(), "given");
        assert!(ran.errors().starts_with("e\n"), "{}", ran.describe());
        let diff = skep(&["diff", "s", "--json"]).run().ok().json();
        assert_eq!(diff, lab.diff("s"));
        let shown = skep(&["show", "s", "--json"]).run().ok().json();
        assert_eq!(shown["state"], "stopped");
        let names = |list: Value| -> Vec<String> {
            let all = list.as_array().unwrap().iter();
            all.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(skep(&["ls", "--all", "--json"]).run().ok().json()), ["s"]);
        let digest = diff["digest"].as_str().unwrap();
        skep(&["approve", "s", "--digest", digest]).run().ok();
        assert_eq!(lab.tree().get("b.txt").unwrap().bytes, b"two\n");
        skep(&["undo"]).run().ok();
        assert!(lab.tree().get("b.txt").is_none());
        skep(&["exec", "s", "--", "sh", "-c", "kill -9 $$"]).run().exits(137);
        let json = skep(&["exec", "--json", "s", "--", "printf", "\\377"]).run().ok().json();
        assert!(json["stdout_b64"].is_string(), "{json}");
        let id = skep(&["exec", "-d", "s", "--", "sh", "-c", "echo kept"]).run().ok().text();
        assert_eq!(skep(&["logs", "-f", &id]).run().ok().text(), "kept");
        skep(&["snapshot", "s", "one"]).run().ok();
        skep(&["fork", "s", "--name", "t"]).run().ok();
        skep(&["compare", "s", "t"]).run().ok();
        skep(&["stop", "t"]).run().ok();
        skep(&["reject", "t", "b.txt"]).run().ok();
        skep(&["events", "--json"]).run().ok();
        skep(&["show", "nothing"]).run().exits(3);
        skep(&["rm", "s"]).run().exits(4);
        skep(&["rm", "--discard", "s"]).run().ok();
        skep(&["run", "--timeout", "200ms", "--", "sleep", "60"]).run().exits(124);
        skep(&["run", "--", "/no/such/program"]).run().exits(127);
        skep(&["run", "--memory", "5", "--", "true"]).run().exits(2);
        server.stop();
        lab.skep(["ls"])
            .env("SKEP_HOST", format!("unix://{}/none", lab.root.display()))
            .run()
            .exits(1)
            .says("cannot reach");
    });
}

#[test]
fn a_wrong_name_changes_no_rules_of_another_sandbox_here_or_through_a_server() {
    for_both(|lab| {
        lab.create("netty");
        let before = lab.sandbox("netty")["network"].clone();
        assert_eq!(before["mode"], "none");
        let server = lab.serve(&[]);
        for remote in [false, true] {
            let skep = |arguments: &[&str]| match remote {
                true => through(lab, &server, arguments).run(),
                false => lab.skep(arguments).run(),
            };
            for verb in ["allow", "deny", "test"] {
                let ran = skep(&["net", verb, "nosuch", "127.0.0.1:1"]).exits(3);
                ran.says("there is no sandbox `nosuch`").says("`skep ls --all` lists them");
                skep(&["net", verb, "netty"]).exits(2).says("nothing stands behind it");
            }
        }
        server.stop();
        assert_eq!(lab.sandbox("netty")["network"], before);
    });
}

/// The client is killed, or the server is too: the command goes on, and then the sandbox ends.
#[test]
fn a_run_through_a_server_whose_client_was_killed_ends_when_its_command_does() {
    for_both(|lab| {
        for with_server in [false, true] {
            let server = lab.serve(&[]);
            let script = "echo x > begun; sleep 2; echo y > ended; exit 3";
            let line = ["run", "--name", "s", "--", "sh", "-c", script];
            let mut run = through(lab, &server, &line).spawn();
            let upper = wait_for("the sandbox", 20, || {
                let row = lab.sandboxes().pop()?;
                Some(lab.state.join("sandboxes").join(row["id"].as_str()?).join("upper"))
            });
            wait_for("its command", 20, || upper.join("begun").exists().then_some(()));
            run.kill().unwrap();
            run.wait().unwrap();
            let kept = match with_server {
                true => {
                    server.kill();
                    None
                }
                false => Some(server),
            };
            assert!(!upper.join("ended").exists(), "the control: it is at work");
            wait_for("the sandbox to stop", 20, || lab.keepers().is_empty().then_some(()));
            let row = wait_for("that to be noticed", 20, || {
                let row = lab.sandbox("s");
                (row["state"] == "stopped").then_some(row)
            });
            assert_eq!(row["state_reason"], "its command had ended, and whoever ran it was gone");
            let execs = lab.skep(["ps", "s", "--json"]).run().ok().json();
            assert_eq!(execs[0]["exit_code"], 3, "{execs:#}");
            assert_eq!(lab.diff("s")["totals"]["files"], 2);
            lab.skep(["rm", "--discard", "s"]).run().ok();
            kept.into_iter().for_each(Server::stop);
        }
        lab.audit_leftovers();
    });
}

#[test]
fn a_terminal_passes_through_a_server() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        let line = ["run", "-t", "--", "sh", "-c", "test -t 1 && echo yes"];
        let said = through(lab, &server, &line).run().ok();
        assert!(said.text().contains("yes"), "{}", said.describe());
        // Its end of input too, and a shell without a terminal.
        let script = "cat; read line; cat; echo; echo OVER";
        let call = through(
            lab,
            &server,
            &["run", "-t", "--name", "t", "--keep", "--", "sh", "-c", script],
        );
        let text = call.input("no newline").within(20).run().ok().text();
        assert!(text.contains("no newline") && text.contains("OVER"), "{text}");
        through(lab, &server, &["exec", "-t", "t", "--", "cat"]).within(20).run().ok();
        through(lab, &server, &["shell", "t"]).input("exit 6\n").within(20).run().exits(6);
        server.stop();
    });
}

/// Passes connections on, and adds up what the server has said.
fn between(lab: &Lab, server: &Server<'_>) -> (String, Arc<AtomicU64>) {
    let own = lab.root.join("between.sock");
    let behind = server.socket().trim_start_matches("unix://").to_owned();
    let (listener, said) = (UnixListener::bind(&own).unwrap(), Arc::new(AtomicU64::new(0)));
    let total = Arc::clone(&said);
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = UnixStream::connect(&behind) else { return };
            let (mut asks, mut hears) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut asks, &mut hears);
                let _ = hears.shutdown(Shutdown::Write);
            });
            let (total, mut server, mut client) = (Arc::clone(&total), server, client);
            std::thread::spawn(move || {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(length @ 1..) = server.read(&mut buffer) {
                    total.fetch_add(length as u64, Ordering::Relaxed);
                    if client.write_all(&buffer[..length]).is_err() {
                        return;
                    }
                }
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
    (format!("unix://{}", own.display()), said)
}

/// A line of a megabyte is twelve of JSON, and a run says only how many lines there are.
#[test]
fn a_run_through_a_server_does_not_fetch_the_lines_that_it_changed() {
    for_each([Who::root()], |lab| {
        lab.write("line", vec![1; 1 << 20]);
        let server = lab.serve(&[]);
        let (host, said) = between(lab, &server);
        let skep = |arguments: &[&str]| lab.skep(arguments).env("SKEP_HOST", &host);
        let script = "printf x | dd of=line conv=notrunc status=none";
        let ran = skep(&["run", "--name", "s", "--", "sh", "-c", script]).run().ok();
        ran.says("1 file changed, +1 -1");
        let of_the_run = said.swap(0, Ordering::Relaxed);
        assert!(of_the_run < 128 << 10, "{of_the_run} bytes");
        let whole = skep(&["diff", "s", "--json"]).within(300).run().ok().json();
        assert!(said.load(Ordering::Relaxed) > 4 << 20, "the control: what is asked for is sent");
        let brief = server.get("/v1/sandboxes/s/changes?brief=true").json();
        assert_eq!(brief["changes"][0]["hunks"], json!([]));
        assert_eq!((&brief["digest"], &brief["totals"]), (&whole["digest"], &whole["totals"]));
        server.stop();
    });
}

/// Tests of the command line that are not asked through a server, by their whole names, and why. The rest
/// of `foundation`, `review`, `isolation` and `upkeep` is, in the long run. A call that sets a variable of
/// skep's own, such as a failpoint, goes to no server, whatever the rest of its test does.
const NOT_THROUGH: &[(&str, &str)] = &[
    ("a_state_directory_that_cannot_be_written_is_an_error_without_effect", NO_START),
    ("a_state_directory_that_others_can_write_is_refused", NO_START),
    ("a_state_directory_inside_the_project_is_refused", NO_START),
    ("skep_failing_before_the_command_is_125", NO_START),
    ("unknown_settings_are_errors", "a server does not start with settings that are refused"),
    ("fs_12_any_name_of_a_project_works", "JSON has no path that is not text: refused by name"),
    ("doctor_runs_a_command_on_every_provider_when_it_is_asked_to", "`--try` is refused by name"),
    ("rules_of_a_sandbox_change_through_a_server_and_only_by_an_approver", OWN_SERVER),
    ("nothing_begins_while_somebody_looks", "what a server was asked for begins, whoever gave up"),
    ("work_past_its_time_to_live_is_archived_where_that_is_set", "the caller's setting, not its"),
    ("clean_5_work_that_became_a_layer_while_the_removal_waited_is_seen", "a worker waits, not we"),
    (
        "clean_5_what_is_written_while_its_time_ends_is_kept",
        "the server ends it first, and waits nowhere",
    ),
    ("crash_1_everything_killed_at_every_step_of_create", "the server is killed with the rest"),
    ("a_database_that_is_behind_its_journal_asks_too", "its database is replaced under it"),
    (
        "res_2_res_4_one_execs_limits_are_held_against_what_is_its_own",
        "a worker of this build is larger than the limit, and so is its fork until it executes",
    ),
    ("review::attention::", SETTLES),
    ("crash_4_a_damaged_journal_is_not_believed", SETTLES),
    ("crash_5_a_committed_approval_without_its_journal_needs_attention", SETTLES),
    ("crash_5_a_journal_that_cannot_be_looked_at_is_not_taken_for_gone", SETTLES),
    ("crash_5_a_roll_back_cut_short_amid_its_removals_is_ended_by_the_next", SETTLES),
    ("crash_5_an_approval_that_cannot_be_settled_is_told", SETTLES),
    ("server::", OWN_SERVER),
];

const OWN_SERVER: &str = "it has a server of its own";
const SETTLES: &str = "the server settles what a killed command left before the obstacle is there";

const NO_START: &str = "a server does not start on a state directory that is refused";

/// Asked through a server in every run: quick ones of each kind.
const ALWAYS: &[&str] = &[
    "foundation::execs::a_background_exec_is_listed_followed_and_killed",
    "foundation::execs::logs_follow_until_the_end",
    "foundation::exit_codes::arguments_reach_the_program_as_they_were_typed",
    "foundation::exit_codes::the_exit_code_is_the_commands_own_or_says_why_there_is_none",
    "foundation::lifecycle::a_frozen_sandbox_stands_still_until_it_is_thawed",
    "foundation::leftovers::a_killed_keeper_loses_the_exec_and_keeps_the_work",
    "foundation::lifecycle::a_run_without_changes_leaves_no_sandbox_and_keep_keeps_it",
    "foundation::lifecycle::illegal_moves_are_typed_and_change_nothing",
    "review::copy::files_and_trees_are_copied_in_and_out_exactly",
    "review::decisions::a_receipt_is_checked_by_another_program",
    "review::digest::an_old_digest_takes_no_merge_whoever_looked",
    "review::drift::diff_7_both_sides_of_one_file_are_merged_or_refused",
    "review::hunks::work_goes_on_after_a_partial_approval",
    "review::layers::forks_share_and_do_not_hurt_each_other",
    "review::pull::commits_made_inside_arrive_as_references",
    "review::rules::rules_typed_for_one_sandbox_decide_are_shown_and_go_along",
    "review::drift::diff_7_a_directory_deleted_inside_keeps_what_the_user_added",
    "review::undo::undo_restores_everything_exactly_and_can_be_undone",
    "upkeep::archive::clean_10_unreviewed_work_is_archived_when_asked_and_comes_back_the_same",
];

/// What they cannot see they infer from the room on the disk: as elsewhere (`.config/nextest.toml`) they run alone.
const ALONE: &[&str] = &["isolation::evasion::res_5", "isolation::bystanders::res_5"];

/// The same tests, with a server between: this program once more, with `SKEP_TEST_HOST=1`.
#[test]
fn heavy_the_same_suite_passes_through_a_server() {
    if !crate::harness::long() {
        return assert_passes(&["--test-threads", "3", "--exact"], ALWAYS, ALWAYS.len());
    }
    let most = ["foundation::", "review::", "isolation::", "upkeep::"];
    // Those of many cycles are of the engine, which is the same on both ways.
    let skipped = ["heavy_"].into_iter().chain(NOT_THROUGH.iter().map(|(name, _)| *name));
    let skipped: Vec<&str> = skipped.flat_map(|name| ["--skip", name]).collect();
    let others = ALONE.iter().flat_map(|name| ["--skip", name]);
    let together: Vec<&str> = skipped.iter().copied().chain(others).collect();
    assert_passes(&[&["--test-threads", "3"], together.as_slice()].concat(), &most, 500);
    assert_passes(&[&["--test-threads", "1"], skipped.as_slice()].concat(), ALONE, 10);
}

#[track_caller]
fn assert_passes(options: &[&str], tests: &[&str], wanted: usize) {
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(program);
    command.env("SKEP_TEST_HOST", "1").args(options).args(tests);
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    let start = said.find("failures:").unwrap_or(0);
    assert!(done.status.success(), "{}", &said[start..]);
    let passed = said.lines().filter(|line| line.ends_with("... ok")).count();
    assert!(passed >= wanted, "{passed} of {wanted}: {said}");
}
