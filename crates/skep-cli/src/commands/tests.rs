//! Whole command lines against a double of the API: what is asked, printed and returned.

use crate::fake::{self, Done, FakeApi, skep, skep_in};
use crate::surroundings::Terminals;
use serde_json::Value;
use skep_types::{Code, EndReason, Problem};
use std::path::Path;

fn json(done: &Done) -> Value {
    serde_json::from_str(&done.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", done.stdout, done.stderr))
}

fn error_json(done: &Done) -> Value {
    serde_json::from_str(&done.stderr).unwrap_or_else(|error| panic!("{error}: {}", done.stderr))
}

fn without_changes() -> FakeApi {
    FakeApi { changes: fake::empty_change_set(), ..FakeApi::default() }
}

#[test]
fn run_keeps_what_changed_and_says_what_is_next() {
    let done = skep(FakeApi::default(), "skep run --name bar1 -- sh -c exit");
    assert_eq!((done.code, done.stdout.as_str()), (0, "hello\n"));
    assert_eq!(
        done.asked.lines(),
        ["create /p", "exec bar1 [\"sh\", \"-c\", \"exit\"] attach=true", "stop", "diff bar1"]
    );
    assert!(done.stderr.starts_with("to stderr\n! block"), "{}", done.stderr);
    assert!(done.stderr.contains("skep approve bar1"), "{}", done.stderr);
}

#[test]
fn run_without_changes_leaves_nothing_unless_kept() {
    let done = skep(without_changes(), "skep run -- true");
    assert_eq!(done.asked.lines().last().unwrap(), "remove made discard=false");
    assert!(done.stderr.contains("no changes"), "{}", done.stderr);
    let done = skep(without_changes(), "skep run --keep -- true");
    assert_eq!(done.asked.lines().last().unwrap(), "diff made");
}

#[test]
fn run_rm_never_drops_changes_without_discard() {
    let done = skep(FakeApi::default(), "skep run --rm --name bar1 -- true");
    assert_eq!(done.code, 0);
    assert_eq!(done.asked.lines().last().unwrap(), "diff bar1");
    assert!(done.stderr.contains("has changes and was not removed"), "{}", done.stderr);
    let done = skep(FakeApi::default(), "skep run --rm --discard --name bar1 -- true");
    assert_eq!(done.asked.lines().last().unwrap(), "remove bar1 discard=true");
}

#[test]
fn run_passes_the_code_on_and_says_the_reason() {
    let mut end = fake::end(137);
    end.reason = EndReason::Oom;
    let done = skep(FakeApi { end, ..without_changes() }, "skep -q run -- true");
    assert_eq!(done.code, 137);
    assert_eq!(done.stderr, "to stderr\nskep: the command ran out of memory (--memory)\n");
}

#[test]
fn run_json_is_one_document_and_nothing_else() {
    let api = FakeApi { prints: b"\xff".to_vec(), ..FakeApi::default() };
    let done = skep(api, "skep run --json -- true");
    let document = json(&done);
    assert_eq!(document["sandbox"], "made");
    assert_eq!(document["stdout_b64"], "/w==");
    assert_eq!(document["stderr"], "to stderr\n");
    assert_eq!(document["changes"]["files"], 7);
    assert_eq!(document["enforcement"]["network"]["enforced"], false);
    assert_eq!(done.stderr, "");
}

#[test]
fn run_that_cannot_start_has_its_own_codes() {
    let fails = |code, message: &str| FakeApi {
        create_fails: Some(Problem::new(code, message)),
        ..FakeApi::default()
    };
    assert_eq!(skep(fails(Code::Io, "x"), "skep run -- true").code, 125);
    assert_eq!(skep(fails(Code::MissingCapability, "x"), "skep run -- true").code, 5);
    assert_eq!(skep(fails(Code::Usage, "x"), "skep run -- true").code, 2);
    assert_eq!(skep(FakeApi::default(), "skep run").code, 2);
    let done = skep(fails(Code::MissingCapability, "no cgroup"), "skep run --json -- true");
    assert_eq!(error_json(&done)["error"]["code"], "missing_capability");
    let exec_fails = Some(Problem::new(Code::Io, "x"));
    let done = skep(FakeApi { exec_fails, ..FakeApi::default() }, "skep run -- true");
    assert_eq!(done.code, 125);
    assert_eq!(done.asked.lines(), ["create /p", "remove made discard=false"]);
}

#[test]
fn the_home_directory_is_no_project() {
    let done = skep_in(Path::new("/home/u"), FakeApi::default(), "skep run -- true");
    assert_eq!(done.code, 5);
    assert!(done.stderr.contains("hint: "), "{}", done.stderr);
    assert!(done.asked.lines().is_empty());
}

#[test]
fn exec_never_takes_a_command_for_a_name() {
    let done = skep(FakeApi::default(), "skep exec -- npm test");
    assert!(done.stderr.starts_with("sandbox: bar1\n"), "{}", done.stderr);
    assert_eq!(done.asked.lines(), ["exec bar1 [\"npm\", \"test\"] attach=true"]);
    let done = skep(FakeApi::default(), "skep exec older -- a -- b");
    assert_eq!(done.asked.lines(), ["exec older [\"a\", \"--\", \"b\"] attach=true"]);
    assert_eq!(skep(FakeApi::default(), "skep exec npm test").code, 2);
    assert_eq!(skep(FakeApi::default(), "skep exec nosuch -- true").code, 125);
}

#[test]
fn exec_in_the_background_prints_the_id() {
    let done = skep(FakeApi::default(), "skep exec -d bar1 -- sleep 1");
    assert_eq!(done.stdout.trim().len(), 16);
    assert!(done.asked.lines()[0].ends_with("attach=false"));
}

#[test]
fn the_first_word_is_a_name_only_if_a_sandbox_is_called_so() {
    for (line, expected) in [
        ("skep approve older a.txt", "approve older [`a.txt`]"),
        ("skep approve a.txt", "approve bar1 [`a.txt`]"),
        ("skep approve -s older bad*", "approve older [`bad*`]"),
        ("skep approve -- a.txt", "approve bar1 [`a.txt`]"),
    ] {
        let done = skep(FakeApi::default(), line);
        let asked = done.asked.lines().pop().unwrap();
        assert!(asked.starts_with(expected), "{line}: {asked} {}", done.stderr);
        assert!(asked.contains("digest=true"), "{asked}");
    }
    // Behind `--` even the name of a sandbox is a path.
    let done = skep(FakeApi::default(), "skep approve -- older");
    assert_eq!(done.code, 3);
    assert!(done.stderr.contains("no change of sandbox `bar1` is at `older`"), "{}", done.stderr);
}

#[test]
fn the_beginning_of_an_id_is_a_name_but_a_very_short_one_is_a_path() {
    let id = fake::sandbox("older").id;
    let line = format!("skep diff {} --name-only", &id.as_str()[..6]);
    assert_eq!(skep(FakeApi::default(), &line).asked.lines(), ["diff older"]);
    let line = format!("skep diff {}", &id.as_str()[..5]);
    assert_eq!(skep(FakeApi::default(), &line).code, 3);
}

#[test]
fn what_destroys_or_widens_wants_a_whole_name() {
    let id = fake::sandbox("older").id;
    let start = &id.as_str()[..8];
    for line in [
        "skep rm ID",
        "skep rm --discard ID",
        "skep rm -s ID",
        "skep stop ID",
        "skep restore ID label",
        "skep net allow ID example.org",
        "skep net allow -s ID example.org",
        "skep net learn ID --apply",
        "skep reject -s ID",
    ] {
        let done = skep(FakeApi::default(), &line.replace("ID", start));
        assert_eq!(done.code, 3, "{line}: {}", done.stderr);
        assert!(done.asked.lines().is_empty(), "{line}: {:?}", done.asked.lines());
        assert!(done.stderr.contains("begins the id of `older`"), "{line}: {}", done.stderr);
        let done = skep(FakeApi::default(), &line.replace("ID", id.as_str()));
        assert_ne!(done.code, 3, "{line}: {}", done.stderr);
    }
    let done = skep(FakeApi::default(), "skep rm --discard");
    assert_eq!(done.code, 2);
    assert!(done.asked.lines().is_empty());
    assert!(done.stderr.contains("skep rm --discard bar1"), "{}", done.stderr);
}

#[test]
fn paths_are_relative_to_where_one_stands() {
    let done = skep_in(Path::new("/p/.git"), FakeApi::default(), "skep approve bar1 hooks ../out");
    let asked = done.asked.lines().pop().unwrap();
    assert!(asked.starts_with("approve bar1 [`.git/hooks`, `out`]"), "{asked}");
    let done = skep(FakeApi::default(), "skep diff bar1 ../elsewhere");
    assert_eq!(done.code, 2);
}

#[test]
fn a_malformed_digest_is_another_digest() {
    let done = skep(FakeApi::default(), "skep approve bar1 --digest deadbeef --json");
    assert_eq!(done.code, 4);
    assert_eq!(error_json(&done)["error"]["code"], "digest_mismatch");
    assert!(done.asked.lines().is_empty());
    let digest = fake::change_set().digest;
    let done = skep(FakeApi::default(), &format!("skep approve bar1 --digest {digest} --json"));
    assert_eq!(done.code, 0);
    assert_eq!(done.asked.lines().len(), 1, "a named digest needs no second look");
    let done = skep(FakeApi::default(), &format!("skep approve bar1 --digest {digest}"));
    assert_eq!(done.code, 0);
    assert_eq!(done.asked.lines().len(), 2, "a second look is for the summary");
    assert!(done.stderr.contains("a.txt"), "{}", done.stderr);
}

#[test]
fn approve_shows_what_it_binds_to() {
    let done = skep(FakeApi::default(), "skep approve bar1 --allow-risky .git/hooks/post-commit");
    assert!(done.stderr.contains("! block     .git/hooks/post-commit"), "{}", done.stderr);
    assert!(done.stderr.contains(&fake::change_set().digest.to_string()), "{}", done.stderr);
    assert!(done.stderr.contains("undo with: skep undo"), "{}", done.stderr);
    let done = skep(FakeApi::default(), "skep approve bar1 --hunk 0123456789abcdef --json");
    assert_eq!(json(&done)["applied"], serde_json::json!(["a.txt"]));
    assert!(done.asked.lines().pop().unwrap().contains("[0123456789abcdef]"));
    assert_eq!(skep(FakeApi::default(), "skep approve bar1 --hunk nonsense").code, 2);
    assert_eq!(skep(FakeApi::default(), "skep approve bar1 --commit").code, 2);
}

#[test]
fn approve_passes_refusals_on() {
    let approve_fails = Some(Problem::new(Code::Risky, "risky").hint("--allow-risky PATH"));
    let done = skep(FakeApi { approve_fails, ..FakeApi::default() }, "skep approve bar1");
    assert_eq!(done.code, 5);
    assert!(done.stderr.ends_with("error: risky\nhint: --allow-risky PATH\n"), "{}", done.stderr);
}

#[test]
fn diff_in_its_forms() {
    let done = skep(FakeApi::default(), "skep diff bar1");
    assert!(done.stdout.contains("@@ -1 +1 @@ hunk 0123456789abcdef"), "{}", done.stdout);
    assert!(!done.stdout.contains("target/out.o"), "ignored ones are only counted");
    assert!(done.stderr.contains("1 ignored"), "{}", done.stderr);
    let done = skep(FakeApi::default(), "skep diff bar1 --ignored --name-only");
    assert!(done.stdout.contains("bad\\xff\n") && done.stdout.contains("target/out.o\n"));
    let done = skep(FakeApi::default(), "skep diff bar1 --json");
    assert_eq!(json(&done)["changes"].as_array().unwrap().len(), 8);
    let done = skep(FakeApi::default(), "skep diff bar1 --json a.txt");
    assert_eq!(json(&done)["changes"].as_array().unwrap().len(), 1);
    assert_eq!(skep(FakeApi::default(), "skep diff bar1 --stat --json").code, 2);
}

#[test]
fn sandboxes_as_json_have_the_promised_keys() {
    let done = skep(FakeApi::default(), "skep ls --all --json");
    let list = json(&done);
    assert_eq!(done.asked.lines(), ["list None"]);
    for line in ["skep show bar1 --json", "skep create --json x", "skep stop --json"] {
        let one = json(&skep(FakeApi::default(), line));
        for document in [&one, &list[0]] {
            for key in ["id", "name", "state", "provider", "project", "created_at", "version"] {
                assert!(!document[key].is_null(), "{line}: {key}");
            }
            for layer in [
                "filesystem",
                "network",
                "processes",
                "memory",
                "cpu",
                "pids",
                "disk",
                "syscalls",
                "kernel",
            ] {
                assert!(document["enforcement"][layer]["enforced"].is_boolean(), "{line}: {layer}");
            }
        }
    }
}

#[test]
fn no_sandbox_at_all_is_not_found() {
    let api = || FakeApi { sandboxes: Vec::new(), ..FakeApi::default() };
    assert_eq!(skep(api(), "skep diff").code, 3);
    assert_eq!(skep(api(), "skep show nosuch").code, 3);
    let done = skep(api(), "skep ls");
    assert_eq!((done.code, done.stdout.as_str()), (0, ""));
}

#[test]
fn labels_and_names_share_their_place() {
    for (line, expected) in [
        ("skep snapshot", "snapshot bar1 None"),
        ("skep snapshot older", "snapshot older None"),
        ("skep snapshot before", "snapshot bar1 Some(\"before\")"),
        ("skep snapshot older before", "snapshot older Some(\"before\")"),
        ("skep snapshot -s older bar1", "snapshot older Some(\"bar1\")"),
        ("skep restore before", "restore bar1 before"),
        ("skep restore older before", "restore older before"),
        ("skep restore -s older before", "restore older before"),
        ("skep template save older t1", "save older t1"),
        ("skep template save t1", "save bar1 t1"),
        ("skep fork older -n 3", "fork older 3"),
    ] {
        let done = skep(FakeApi::default(), line);
        assert_eq!(done.asked.lines(), [expected], "{line}: {}", done.stderr);
    }
    assert_eq!(skep(FakeApi::default(), "skep restore -s older a b").code, 2);
    assert_eq!(skep(FakeApi::default(), "skep restore").code, 2);
}

#[test]
fn logs_from_an_offset() {
    assert_eq!(skep(FakeApi::default(), "skep logs zzzz").code, 3);
    let id = skep(FakeApi::default(), "skep exec -d bar1 -- x").stdout;
    let id = id.trim();
    assert_eq!(skep(FakeApi::default(), &format!("skep logs {id}")).stdout, "hello\n");
    assert_eq!(skep(FakeApi::default(), &format!("skep logs -f --from 4 {id}")).stdout, "o\n");
    let done = skep(FakeApi::default(), &format!("skep logs --json {id}"));
    assert_eq!(done.stdout, "{\"offset\":0,\"stream\":\"stdout\",\"text\":\"hello\\n\"}\n");
    let api = FakeApi { drops_output: true, ..FakeApi::default() };
    let done = skep(api, &format!("skep logs -f {id}"));
    assert_eq!(done.stderr.matches("output from byte 6 on").count(), 1, "{}", done.stderr);
}

#[test]
fn the_rest_answers_in_text_and_json() {
    for line in [
        "skep ps",
        "skep doctor",
        "skep providers",
        "skep gc --dry-run",
        "skep stats",
        "skep events",
        "skep config --origin",
        "skep template ls",
        "skep conflicts",
        "skep rebase",
        "skep history",
        "skep compare bar1 older",
        "skep reject bar1 a.txt --reason no",
        "skep undo",
        "skep rm older",
        "skep version",
    ] {
        let done = skep(FakeApi::default(), line);
        assert_eq!(done.code, 0, "{line}: {}", done.stderr);
        assert!(!done.stdout.contains('\x1b'), "{line}: {}", done.stdout);
        let done = skep(FakeApi::default(), &format!("{line} --json"));
        assert_eq!(done.code, 0, "{line}: {}", done.stderr);
        json(&done);
    }
    let providers = skep(FakeApi::default(), "skep providers").stdout;
    assert!(providers.contains("remedy: apt install docker.io") && !providers.contains("overlay"));
}

#[test]
fn one_side_of_a_conflict() {
    let done = skep(FakeApi::default(), "skep conflicts bar1 a.txt --side base");
    assert_eq!(done.stdout, "base\n");
    assert_eq!(skep(FakeApi::default(), "skep conflicts bar1 a.txt --side project").code, 3);
    assert_eq!(skep(FakeApi::default(), "skep conflicts bar1 --side base").code, 2);
}

#[test]
fn scripts_and_pages_for_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let done = skep(FakeApi::default(), &format!("skep completion {shell}"));
        assert!(done.stdout.contains("approve"), "{shell}");
    }
    assert!(skep(FakeApi::default(), "skep man").stdout.contains("skep"));
    let page = skep(FakeApi::default(), "skep man run").stdout;
    assert!(page.contains("skep\\-run") && page.contains("\\-\\-memory"), "{page}");
    assert_eq!(skep(FakeApi::default(), "skep man nonsense").code, 3);
}

#[test]
fn mistakes_in_the_line_are_json_too_if_asked() {
    let done = skep(FakeApi::default(), "skep ls --json --nonsense");
    assert_eq!(done.code, 2);
    assert_eq!(error_json(&done)["error"]["code"], "usage");
    let done = skep(FakeApi::default(), "skep lss --json");
    assert_eq!(done.code, 2);
    assert!(error_json(&done)["error"]["hint"].as_str().unwrap().contains("ls"));
}

#[test]
fn a_mistyped_name_never_changes_the_rules_of_another_sandbox() {
    for (line, code, asked) in [
        ("skep net allow a.test", 0, &["egress bar1 +[\"a.test\"] -[]"][..]),
        ("skep net allow older a.test", 0, &["egress older +[\"a.test\"] -[]"]),
        ("skep net deny older @npm", 0, &["egress older +[] -[\"@npm\"]"]),
        ("skep net allow -s older db", 0, &["egress older +[\"db\"] -[]"]),
        ("skep net revoke TOKEN", 0, &["revoke bar1 TOKEN"]),
        ("skep net revoke older TOKEN", 0, &["revoke older TOKEN"]),
        ("skep --home /h net allow older a.test", 0, &["egress older +[\"a.test\"] -[]"]),
        ("skep net --home /h -q allow older a.test", 0, &["egress older +[\"a.test\"] -[]"]),
        ("skep net older allow a.test", 2, &[]),
        ("skep net --json allow older a.test", 2, &[]),
        ("skep net allow nosuch 127.0.0.1:1", 3, &[]),
        ("skep net deny nosuch a.test", 3, &[]),
        ("skep net test nosuch a.test", 3, &[]),
        ("skep net allow nosuch", 3, &[]),
        ("skep net allow older", 2, &[]),
        ("skep net deny older", 2, &[]),
        ("skep net test older", 2, &[]),
        ("skep net revoke older", 2, &[]),
    ] {
        let done = skep(FakeApi::default(), line);
        assert_eq!(done.code, code, "{line}: {}", done.stderr);
        assert_eq!(done.asked.lines(), asked, "{line}");
    }
}

#[test]
fn a_provider_that_isolates_nothing_is_never_used_without_a_word() {
    for line in ["skep run --provider subprocess -- true", "skep create --provider subprocess"] {
        let done = skep(without_changes(), line);
        assert!(
            done.stderr.starts_with("skep: `subprocess` isolates nothing: "),
            "{}",
            done.stderr
        );
        let root = rustix::process::geteuid().is_root();
        assert_eq!(done.stderr.contains("runs as root"), root, "{}", done.stderr);
    }
    let done = skep(without_changes(), "skep run -- true");
    assert!(!done.stderr.contains("isolates nothing"), "{}", done.stderr);
}

#[test]
fn a_command_that_is_not_found_is_named_with_what_may_be_the_matter() {
    let mut end = fake::end(127);
    end.reason = EndReason::StartFailed;
    end.message = Some("cannot run it: No such file".into());
    let said = |line| skep(FakeApi { end: end.clone(), ..without_changes() }, line).stderr;
    let text = said("skep run -- nosuch x");
    let named = "skep: the command `nosuch` could not be started: cannot run it: No such file\n";
    assert!(text.contains(named), "{text}");
    assert!(text.contains("hint: it is not on your PATH either"), "{text}");
    let text = said("skep exec bar1 -- a|b");
    assert!(text.contains("the command `a|b` could not") && text.contains("sh -c"), "{text}");
}

#[test]
fn a_mistyped_name_is_told_the_nearest() {
    for line in [
        "skep exec oldr -- true",
        "skep show oldr",
        "skep stop oldr",
        "skep rm oldr",
        "skep diff -s oldr",
        "skep reject -s oldr",
        "skep snapshot oldr label",
        "skep compare oldr bar1",
        "skep cp oldr:a /tmp/a",
    ] {
        let done = skep(FakeApi::default(), line);
        let hint = "hint: did you mean sandbox `older`? `skep ls --all` lists them\n";
        assert!(done.stderr.ends_with(hint), "{line}: {}", done.stderr);
        assert_eq!(done.asked.lines(), ["list Some(\"/p\")"], "{line}");
    }
    let done = skep(FakeApi::default(), "skep exec entirely-different -- true");
    assert!(!done.stderr.contains("did you mean"), "{}", done.stderr);
}

#[test]
fn an_error_does_not_begin_with_an_empty_line() {
    let forbidden = Problem::new(Code::Forbidden, "role `viewer` may not do this");
    let api = FakeApi { approve_fails: Some(forbidden), ..FakeApi::default() };
    let done = skep(api, "skep approve bar1 a.txt");
    assert_eq!(done.stderr, "error: role `viewer` may not do this\n");
}

#[test]
fn diff_names_the_newest_sandbox_once() {
    let terminals = |stdout| Terminals { stdin: false, stdout, stderr: true };
    let said = |stdout, line| fake::skep_at(terminals(stdout), FakeApi::default(), line).stderr;
    assert!(!said(true, "skep diff").contains("sandbox: bar1"));
    // The heading is elsewhere, or there is none.
    assert!(said(false, "skep diff").starts_with("sandbox: bar1\n"));
    assert!(said(true, "skep diff --name-only").starts_with("sandbox: bar1\n"));
    assert!(said(true, "skep conflicts").starts_with("sandbox: bar1\n"));
    assert!(!said(false, "skep diff bar1").contains("sandbox: bar1"));
}

#[test]
fn a_list_of_templates_that_is_empty_says_so() {
    let none = FakeApi { templates: Vec::new(), ..FakeApi::default() };
    let done = skep(none, "skep template ls");
    assert_eq!((done.code, done.stdout.as_str()), (0, ""));
    assert!(done.stderr.starts_with("no templates ("), "{}", done.stderr);
    let none = FakeApi { templates: Vec::new(), ..FakeApi::default() };
    assert_eq!(skep(none, "skep template ls --json").stdout, "[]\n");
}

#[test]
fn usage_lines_say_which_word_may_be_left_out() {
    for (line, usage) in [
        ("skep restore --help", "skep restore [OPTIONS] [NAME] LABEL\n"),
        ("skep snapshot --help", "skep snapshot [OPTIONS] [NAME] [LABEL]\n"),
        ("skep template save --help", "skep template save [OPTIONS] [NAME] TEMPLATE\n"),
    ] {
        let help = skep(FakeApi::default(), line).stdout;
        assert!(help.contains(&format!("Usage: {usage}")), "{help}");
    }
}
