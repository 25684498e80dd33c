//! Settings: their order, their errors, their pages; quotas.

use crate::harness::{Lab, for_both};
use std::path::Path;

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_pages_of_the_settings_are_those_of_the_code() {
    for_both(|lab| {
        for (flag, name) in [
            ("--reference", "docs/configuration.md"),
            ("--example", "resources/config.example.toml"),
            ("--schema", "resources/config.schema.json"),
        ] {
            let made = lab.skep(["config", flag]).run().ok().text();
            let same = made.trim_end() == file(name).trim_end();
            assert!(same, "write it anew: skep config {flag} > {name}");
        }
    });
}

fn value(lab: &Lab, call: crate::harness::Call, key: &str) -> (String, String) {
    let rows = call.args(["config", "--origin", "--json"]).run().ok().json();
    let row = rows.as_array().unwrap().iter().find(|row| row["key"] == key).cloned().unwrap();
    let _ = lab;
    (row["value"].as_str().unwrap().into(), row["origin"].as_str().unwrap().into())
}

#[test]
fn each_source_of_settings_is_stronger_than_the_one_before() {
    for_both(|lab| {
        let system = lab.root.join("system.toml");
        let key = "limits.pids";
        let skep = || lab.skep::<[&str; 0]>([]).env("SKEP_TEST_SYSTEM_CONFIG", &system);
        let got = |call| value(lab, call, key);
        assert_eq!(got(skep()), ("4096".into(), "built in".into()));
        std::fs::write(&system, "limits.pids = 3000\n").unwrap();
        lab.who.own(&system);
        assert_eq!(got(skep()), ("3000".into(), "system config".into()));
        let had_config = lab.home.join(".config").exists();
        let user = lab.home.join(".config/skep/config.toml");
        std::fs::create_dir_all(user.parent().unwrap()).unwrap();
        std::fs::write(&user, "limits.pids = 2000\n").unwrap();
        lab.who.own(&lab.home.join(".config"));
        assert_eq!(got(skep()), ("2000".into(), "user config".into()));
        lab.write("skep.toml", "limits.pids = 1000\n");
        assert_eq!(got(skep()), ("1000".into(), "project `skep.toml`".into()));
        let variable = || skep().env("SKEP_LIMITS_PIDS", "1500");
        assert_eq!(got(variable()), ("1500".into(), "environment".into()));
        // Unknown and invalid: named, with the nearest known one.
        let unknown = skep().env("SKEP_LIMITS_PIDZ", "1").arg("config").run().exits(2);
        assert!(unknown.errors().contains("SKEP_LIMITS_PIDS"), "{}", unknown.describe());
        std::fs::write(&system, "[limits]\npidz = 3\n").unwrap();
        let unknown = skep().arg("config").run().exits(2);
        let said = unknown.errors();
        assert!(said.contains("system.toml") && said.contains("limits.pids"), "{said}");
        std::fs::remove_file(&system).unwrap();
        lab.write("skep.toml", "quota.sandboxes = 5\n");
        skep().arg("config").run().exits(2).says("may not set");
        std::fs::remove_file(lab.project.join("skep.toml")).unwrap();
        if had_config {
            std::fs::remove_dir_all(user.parent().unwrap()).unwrap();
        } else {
            std::fs::remove_dir_all(lab.home.join(".config")).unwrap();
        }
    });
}

#[test]
fn quotas_refuse_with_a_code_of_their_own() {
    for_both(|lab| {
        lab.write("a", "a\n");
        lab.create("one");
        let refused = |name: &str, value: &str| {
            let call = lab.skep(["create", "two", "--json"]).env(name, value).run();
            assert_ne!(call.code(), 0, "{name}: {}", call.describe());
            let problem = call.problem();
            assert_eq!(problem["code"], "over_quota", "{problem}");
            assert_eq!(problem["retryable"], true);
        };
        refused("SKEP_QUOTA_SANDBOXES", "1");
        refused("SKEP_QUOTA_MEMORY", "1M");
        refused("SKEP_QUOTA_DISK", "1K");
        refused("SKEP_QUOTA_FREE_MEMORY", "9000T");
        assert_eq!(lab.sandboxes().len(), 1, "nothing was made");
        lab.skep(["create", "two"]).env("SKEP_QUOTA_SANDBOXES", "2").run().ok();
    });
}

/// Execs and their output, of a sandbox that lives on: the newest stay, the others go with their files.
#[test]
fn clean_10_ended_execs_do_not_pile_up() {
    for_both(|lab| {
        lab.create("s");
        for number in 0..6 {
            lab.exec_script("s", &format!("echo said {number}")).run().ok();
        }
        let running = lab.skep(["exec", "-d", "s", "--", "sleep", "600"]).run().ok().text();
        let files = || {
            let all = crate::harness::entries(&lab.state.join("sandboxes"));
            crate::harness::entries(&all[0].join("execs")).len()
        };
        let execs = || lab.skep(["ps", "s", "--json"]).run().ok().json().as_array().unwrap().len();
        assert_eq!(execs(), 7);
        let before = files();
        lab.skep(["gc", "--only", "rows"]).run().ok();
        assert_eq!((execs(), files()), (7, before), "by default nothing so young goes");
        let gc = lab.skep(["gc", "--only", "rows"]).env("SKEP_GC_EXECS_KEEP", "2").run().ok();
        assert!(gc.text().contains("execs") || gc.errors().contains("execs"), "{}", gc.describe());
        assert_eq!(execs(), 3, "two that ended, and the one that runs");
        assert!(files() < before, "{} of {before}", files());
        let left = lab.skep(["ps", "s", "--json"]).run().ok().json();
        let text = left.to_string();
        assert!(text.contains(&running) && text.contains("said 5") && !text.contains("said 0"));
        lab.skep(["gc", "--only", "rows"]).env("SKEP_GC_EXECS_AGE", "1ms").run().ok();
        assert_eq!(execs(), 1);
        lab.skep(["kill", &running]).run().ok();
    });
}

/// What a project's own file may not do: it comes with the project, from whoever wrote that.
#[test]
fn api_16_a_projects_file_may_only_narrow() {
    for_both(|lab| {
        let refused = |what: &str| {
            let ran = lab.skep(["create", "s"]).run();
            assert_ne!(ran.code(), 0, "{what}: {}", ran.describe());
            assert_eq!(lab.sandboxes().len(), 0, "{what}");
        };
        let file = lab.project.join("skep.toml");
        for text in [
            "sandbox.network = \"host\"\n",
            "sandbox.mounts = [\"/etc:/x\"]\n",
            "sandbox.best_effort = true\n",
            "sandbox.show = [\".env\"]\n",
            "sandbox.ptrace = true\n",
            "sandbox.env.LD_PRELOAD = \"/tmp/x.so\"\n",
            "limits.memory = \"none\"\n",
            "limits.pids = 999999999\n",
            "store.url = \"postgresql:///x\"\n",
            "unknown = 1\n",
            "= broken\n",
        ] {
            lab.write("skep.toml", text);
            refused(text);
        }
        lab.write("skep.toml", vec![b'#'; 1 << 20]);
        refused("a huge one");
        std::fs::remove_file(&file).unwrap();
        let elsewhere = lab.write(lab.root.join("other.toml"), "limits.pids = 100\n");
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        refused("a link");
        std::fs::remove_file(&file).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::RWXU).unwrap();
        refused("a pipe that nobody writes to");
        std::fs::remove_file(&file).unwrap();
        lab.write("skep.toml", "limits.pids = 100\n");
        lab.skep(["create", "s", "--best-effort"]).run().ok();
        std::fs::remove_file(&file).unwrap();
    });
}
