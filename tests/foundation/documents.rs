//! The JSON that scripts rely on: every key of the command-line contract, by type.

use crate::harness::for_both;
use serde_json::Value;

/// `key: type` lines; `?` after a type lets it be null.
#[track_caller]
fn has(document: &Value, keys: &str) {
    for line in keys.split_whitespace() {
        let (key, kind) = line.split_once(':').unwrap();
        let value = document.get(key).unwrap_or_else(|| panic!("no `{key}` in {document}"));
        let (kind, nullable) = (kind.trim_end_matches('?'), kind.ends_with('?'));
        let fits = match kind {
            "string" => value.is_string(),
            "number" => value.is_u64() || value.is_i64(),
            "bool" => value.is_boolean(),
            "list" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("{other}"),
        };
        assert!(fits || (nullable && value.is_null()), "`{key}` is no {kind} in {document}");
    }
}

const LAYERS: [&str; 9] =
    ["filesystem", "network", "processes", "memory", "cpu", "pids", "disk", "syscalls", "kernel"];

#[track_caller]
fn is_report(enforcement: &Value) {
    for layer in LAYERS {
        has(&enforcement[layer], "enforced:bool how:string reason:string?");
    }
}

#[test]
fn a_sandbox_has_its_keys() {
    for_both(|lab| {
        lab.create("s");
        let keys = "id:string name:string state:string provider:string project:string \
            created_at:string version:number enforcement:object";
        let shown = lab.skep(["show", "s", "--json"]).run().ok().json();
        for document in [&lab.sandbox("s"), &shown] {
            has(document, keys);
            is_report(&document["enforcement"]);
            assert_eq!((&document["name"], &document["state"]), (&"s".into(), &"ready".into()));
        }
        // What the report says of itself: the layers this suite proves are the ones it claims.
        for layer in ["filesystem", "network", "processes", "syscalls"] {
            assert_eq!(shown["enforcement"][layer]["enforced"], true, "{layer}");
        }
        assert_eq!(shown["enforcement"]["kernel"]["enforced"], false);
        let created = lab.skep(["create", "t", "--json"]).run().ok().json();
        has(&created, keys);
    });
}

#[test]
fn an_exec_has_its_keys() {
    for_both(|lab| {
        let script = "echo out; echo err >&2; exit 3";
        let ran = lab.skep(["run", "--json", "--", "sh", "-c", script]).run().exits(3);
        let document = ran.json();
        has(
            &document,
            "sandbox:string exec:string exit_code:number signal:number? reason:string \
            limits_hit:list stdout:string stderr:string truncated:bool stats:object enforcement:object",
        );
        has(
            &document["stats"],
            "duration_ms:number cpu_ms:number memory_peak_bytes:number \
            stdout_bytes:number stderr_bytes:number",
        );
        assert_eq!((&document["stdout"], &document["stderr"]), (&"out\n".into(), &"err\n".into()));
        assert_eq!(document["stats"]["stdout_bytes"], 4);
        is_report(&document["enforcement"]);
        // Bytes that are no text come in base64.
        let line = ["run", "--json", "--", "printf", "\\377\\376"];
        let document = lab.skep(line).run().ok().json();
        assert_eq!(document["stdout_b64"], "//4=", "{document}");
    });
}

#[test]
fn a_change_set_has_its_keys() {
    for_both(|lab| {
        lab.write("text", "one\ntwo\nthree\n");
        lab.write("gone", "gone\n");
        lab.write("binary", b"\0\x01\x02");
        let script = "sed -i s/two/2/ text; rm gone; printf '\\0\\377' > binary; \
            printf x > \"$(printf 'odd\\377')\"; chmod 755 text; mkfifo pipe";
        lab.skep(["run", "--name", "s", "--", "sh", "-ec", script]).run().ok();
        let diff = lab.diff("s");
        has(
            &diff,
            "sandbox:string base:string digest:string changes:list conflicts:list totals:object",
        );
        has(&diff["totals"], "files:number added:number removed:number ignored:number");
        let changes = diff["changes"].as_array().unwrap();
        assert_eq!(changes.len(), 5, "{diff}");
        for change in changes {
            has(
                change,
                "path:string kind:string binary:bool size:number risk:string \
                risk_reasons:list ignored:bool hunks:list",
            );
            for hunk in change["hunks"].as_array().unwrap() {
                has(
                    hunk,
                    "id:string old_start:number old_lines:number new_start:number \
                    new_lines:number lines:list",
                );
            }
        }
        let row = |path: &str| changes.iter().find(|change| change["path"] == path).unwrap();
        assert_eq!(
            (&row("text")["old_mode"], &row("text")["new_mode"]),
            (&"100644".into(), &"100755".into())
        );
        let lines = &row("text")["hunks"][0]["lines"];
        assert!(lines.as_array().unwrap().contains(&"-two\n".into()), "{lines}");
        assert_eq!(row("binary")["binary"], true);
        assert_eq!(row("pipe")["kind"], "special");
        let odd = changes.iter().find(|change| change.get("path_bytes").is_some()).unwrap();
        assert_eq!(odd["path_bytes"], "b2Rk/w==", "{odd}");
    });
}

#[test]
fn an_approval_and_an_error_have_their_keys() {
    for_both(|lab| {
        lab.skep(["run", "--name", "s", "--", "sh", "-c", "echo x > x; echo y > y"]).run().ok();
        let digest = lab.diff("s")["digest"].clone();
        let ran = lab.skep(["approve", "s", "x", "--json"]).run().ok().json();
        assert_eq!(ran["applied"], serde_json::json!(["x"]), "{ran}");
        assert_eq!(ran["digest"], digest);
        assert!(ran["approval"].is_string() && ran.get("remaining").is_some(), "{ran}");
        assert!(ran.as_object().unwrap().contains_key("commit"), "{ran}");

        let ran = lab.skep(["show", "nobody", "--json"]).run().exits(3);
        assert!(ran.stdout.is_empty(), "{}", ran.describe());
        has(&ran.problem(), "code:string message:string hint:string? retryable:bool");
        assert!(ran.problem().as_object().unwrap().contains_key("details"));
        let ran = lab.skep(["approve", "s", "--json", "--digest", digest.as_str().unwrap()]).run();
        assert_eq!(ran.exits(4).problem()["code"], "digest_mismatch");
    });
}

#[test]
fn every_command_with_json_prints_json_and_nothing_else() {
    for_both(|lab| {
        lab.create("s");
        let exec = lab.skep(["exec", "-d", "s", "--", "echo", "x"]).run().ok().text();
        for line in [
            &["ls", "--json"][..],
            &["ls", "--all", "--json"],
            &["show", "s", "--json"],
            &["ps", "s", "--json"],
            &["doctor", "--json"],
            &["gc", "--dry-run", "--json"],
            &["config", "--json"],
            &["config", "--origin", "--json"],
            &["version", "--json"],
            &["providers", "--json"],
            &["history", "--json"],
            &["conflicts", "s", "--json"],
            &["stop", "s", "--json"],
            &["start", "s", "--json"],
            &["freeze", "s", "--json"],
            &["thaw", "s", "--json"],
        ] {
            lab.skep(line).run().ok().json();
        }
        for line in [&["events", "--json"][..], &["logs", &exec, "--json"]] {
            assert!(!lab.skep(line).run().ok().json_lines().is_empty());
        }
        lab.skep(["rm", "s", "--json"]).run().ok().json();
    });
}
