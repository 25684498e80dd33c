//! Secrets in the project: shown as absent, whatever is tried.

use crate::harness::{Lab, for_both};

fn plant(lab: &Lab) {
    let secret = format!("TOKEN={}\n", lab.canary.text);
    for path in [".env", "deep/below/.env.local", "keys/server.pem", "keys/note.txt", "id_rsa"] {
        lab.write(path, if path == "keys/note.txt" { "plain\n" } else { secret.as_str() });
    }
}

#[test]
fn hidden_files_are_absent_and_cannot_be_brought_back() {
    for_both(|lab| {
        plant(lab);
        let before = lab.tree();
        let script = "grep -r canary . ; cat .env id_rsa deep/below/.env.local; ln .env a; ln -s .env b; cat b; \
            mv keys moved; ls -A moved; cat moved/server.pem; cp -r deep copy; ls -A copy/below; \
            rm -rf deep; mkdir -p deep/below; ls -A deep/below; \
            mkdir x; mv x .env 2>&1; rmdir .env; ls -A; \
            for p in /proc/[0-9]*; do cat $p/root$PWD/.env $p/cwd/.env; done; \
            setfattr -n user.overlay.opaque -v n . ; exec 9<. ; cat /proc/self/fd/9/.env; true";
        let ran = lab.skep(["run", "--name", "s", "--", "sh", "-c", script]).run().ok();
        assert!(!lab.canary.is_in(&ran.stdout), "{}", ran.describe());
        assert!(!lab.canary.is_in(&ran.stderr), "{}", ran.describe());
        assert!(ran.text().contains("note.txt"), "{}", ran.describe());
        let diff = lab.skep(["diff", "s", "--json"]).run();
        assert!(!lab.canary.is_in(&diff.stdout), "the diff shows a hidden file");
        lab.tree().assert_equals(&before, "the project was changed");
        // Control: shown on request, so it was the hiding that hid it.
        let ran = lab.skep(["run", "--show", ".env", "--", "cat", ".env"]).run().ok();
        assert!(lab.canary.is_in(&ran.stdout), "{}", ran.describe());
    });
}

/// A file that hides in the name of another case, or is made between create and exec.
#[test]
fn hidden_by_a_pattern_of_the_caller_too() {
    for_both(|lab| {
        lab.write("data/customers.csv", &lab.canary.text);
        let ran = lab.skep(["run", "--hide", "*.csv", "--", "cat", "data/customers.csv"]).run();
        assert_ne!(ran.code(), 0);
        assert!(!lab.canary.is_in(&ran.stdout));
        let ran = lab.skep(["run", "--", "cat", "data/customers.csv"]).run().ok();
        assert!(lab.canary.is_in(&ran.stdout));
    });
}

#[test]
fn hidden_too_is_what_came_into_the_project_since_the_last_start() {
    for_both(|lab| {
        lab.write("a", "a\n");
        lab.create("s");
        lab.write("new/.env", "canary\n");
        lab.skep(["stop", "s"]).run().ok();
        let ran = lab.exec_script("s", "ls -A new; cat new/.env").run();
        assert!(
            !ran.text().contains(".env") && !ran.text().contains("canary"),
            "{}",
            ran.describe()
        );
    });
}

/// More than the search for the built-in list looks at.
fn crowd(lab: &Lab) {
    for number in 0..2_500 {
        std::fs::write(lab.project.join(format!("file-{number}")), "").unwrap();
    }
}

/// What was not searched is not hidden, and it is said: when it is made, in the report, in JSON.
#[test]
fn hidden_by_a_search_that_ended_early_is_said_and_what_is_named_is_hidden_anyway() {
    for_both(|lab| {
        let reason = |name: &str| lab.sandbox(name)["enforcement"]["filesystem"]["reason"].clone();
        let stopped = "the search for secrets stopped after 2000 entries";
        lab.write("deep/er/.env", "SECRET=1\n");
        let made = lab.skep(["create", "small"]).run().ok();
        assert!(reason("small").is_null() && !made.errors().contains("secrets"));
        assert_ne!(lab.exec_script("small", "cat deep/er/.env").run().code(), 0);
        crowd(lab);
        let made = lab.skep(["create", "large"]).run().ok();
        assert!(made.errors().starts_with(&format!("skep: {stopped}")), "{}", made.describe());
        assert!(made.errors().contains("--hide GLOB"), "{}", made.describe());
        let said = reason("large").to_string();
        assert!(said.contains(stopped), "{said}");
        let ran = lab.skep(["run", "--", "true"]).run().ok();
        assert!(ran.errors().contains(&format!("skep: {stopped}")), "{}", ran.describe());
        let ran = lab.skep(["run", "--json", "--", "true"]).run().ok();
        let said = ran.json()["enforcement"]["filesystem"]["reason"].to_string();
        assert!(said.contains(stopped), "{said}");
        let refused = lab.skep(["run", "--require", "filesystem", "--", "true"]).run();
        assert_eq!(refused.code(), 5, "{}", refused.describe());
        assert!(refused.errors().contains("--hide"), "{}", refused.describe());
        lab.skep(["create", "named", "--hide", "deep/er/.env"]).run().ok();
        assert_ne!(lab.exec_script("named", "cat deep/er/.env").run().code(), 0);
    });
}

/// What the caller typed is searched for in the whole project, whatever its size and wherever.
#[test]
fn hidden_by_a_glob_of_the_caller_is_everything_it_matches_in_a_large_project() {
    for_both(|lab| {
        crowd(lab);
        let deep = "packages/1/2/3/4/5/6/7/8/9/10/11/12/13/.env";
        let places = [
            "packages/api/config/.env",
            "packages/a/node_modules/b/.env",
            "packages/.git/.env",
            deep,
        ];
        for place in places {
            lab.write(place, &lab.canary.text);
        }
        let all = |options: &[&str]| {
            let words = ["run"].iter().chain(options).chain(&["--", "cat"]).chain(&places);
            lab.skep(words.copied()).run()
        };
        // Control: without a glob all of them are read.
        let ran = all(&[]).ok();
        assert_eq!(
            ran.text().matches(&lab.canary.text).count(),
            places.len(),
            "{}",
            ran.describe()
        );
        for glob in ["**/.env", ".env", "packages/**/.env", "*.env"] {
            for options in [&["--hide", glob][..], &["--hide", glob, "--require", "filesystem"]] {
                let ran = all(options);
                assert_eq!(ran.code(), 1, "{}", ran.describe());
                assert!(!lab.canary.is_in(&ran.stdout), "{glob}: {}", ran.describe());
                assert!(!ran.errors().contains("search for secrets"), "{}", ran.describe());
            }
        }
        // As a setting.
        let hide = "SKEP_SANDBOX_HIDE";
        let ran = lab.skep(["run", "--", "cat", deep]).env(hide, ".env").run();
        assert!(ran.code() == 1 && !lab.canary.is_in(&ran.stdout), "{}", ran.describe());
        // At a later start too.
        lab.skep(["create", "again", "--hide", "**/.env"]).run().ok();
        lab.skep(["stop", "again"]).run().ok();
        lab.write("packages/new/.env", &lab.canary.text);
        let ran = lab.exec_script("again", "cat packages/new/.env packages/api/config/.env").run();
        assert!(ran.code() == 1 && !lab.canary.is_in(&ran.stdout), "{}", ran.describe());
    });
}
