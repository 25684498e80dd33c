//! Which provider is taken, which is refused, and that each tells what it is.

use super::{ALL, for_all, run};
use crate::harness::{for_both, outside};

const ISOLATION: [&str; 6] =
    ["filesystem", "network", "processes", "syscalls", "landlock", "kernel"];

#[test]
fn a_report_says_what_was_found_on_every_provider() {
    for_all(|lab, provider| {
        lab.skep(["create", "s", "--provider", provider]).run().ok();
        let sandbox = lab.skep(["show", "s", "--json"]).run().ok().json();
        assert_eq!(sandbox["provider"], provider, "{sandbox}");
        let keeper = sandbox["provider_facts"]["keeper_pid"].as_str().unwrap_or_default();
        let line = std::fs::read(format!("/proc/{keeper}/cmdline")).unwrap_or_default();
        assert!(line.starts_with(b"skep: keeper"), "{provider}: {}", sandbox["provider_facts"]);
        for layer in ISOLATION {
            let found = &sandbox["enforcement"][layer];
            let expected = match (provider, layer) {
                ("subprocess", _) => false,
                (_, "kernel") => provider == "oci:runsc",
                // gVisor's kernel has none.
                ("oci:runsc", "landlock") => false,
                _ => true,
            };
            assert_eq!(found["enforced"], expected, "{provider}, {layer}: {found}");
            assert_eq!(found["reason"].is_string(), !expected, "{provider}, {layer}: {found}");
        }
        // And it is so: asked from inside, by something else than skep.
        let seen = run(lab, provider, &[], "cat /proc/self/status").run().ok().text();
        // gVisor does not show whether new privileges can be gained.
        let filtered = seen.contains("Seccomp:\t2\n")
            && (seen.contains("NoNewPrivs:\t1\n") || provider == "oci:runsc");
        assert_eq!(filtered, provider != "subprocess", "{provider}: {seen}");
    });
}

#[test]
fn net_2_nothing_is_reached_from_any_provider_that_isolates() {
    for_all(|lab, provider| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let program = format!("import socket; socket.create_connection(('127.0.0.1', {port}), 2)");
        let ran = lab
            .skep(["run", "--provider", provider, "--", "/usr/bin/python3", "-c", &program])
            .run();
        // The provider without isolation is the control: there the same connection is made.
        assert_eq!(ran.code() == 0, provider == "subprocess", "{provider}: {}", ran.describe());
    });
}

#[test]
fn a_provider_that_cannot_do_what_is_asked_refuses() {
    for_both(|lab| {
        let refused = |line: &[&str], code: &str, says: &str| {
            let problem = lab.skep(["create", "--json"]).args(line).run().exits(5).problem();
            assert_eq!(problem["code"], code, "{problem}");
            let text = problem.to_string();
            assert!(text.contains(says), "{text}");
        };
        refused(&["--provider", "subprocess", "--net", "none"], "missing_capability", "--net none");
        refused(
            &["--provider", "subprocess", "--require", "filesystem"],
            "missing_capability",
            "filesystem",
        );
        refused(
            &["--provider", "oci:runc", "--system", "cow"],
            "missing_capability",
            "--system cow",
        );
        refused(&["--provider", "oci:/no/such"], "provider_unavailable", "not installed");
        refused(&["--provider", "oci:"], "provider_unavailable", "no runtime is named");
        refused(&["--provider", "nonsense"], "provider_unavailable", "bubblewrap");
        assert_eq!(lab.sandboxes().len(), 0);
        assert_eq!(outside::processes_of(&lab.root).len(), 0);
    });
}

#[test]
fn auto_takes_namespaces_and_never_a_plain_process() {
    for_both(|lab| {
        lab.create("s");
        assert_eq!(lab.sandbox("s")["provider"], "namespace");
        // A kernel of its own only for who asks for one.
        lab.skep(["create", "k", "--require", "kernel"]).run().ok();
        assert_eq!(lab.sandbox("k")["provider"], "oci:runsc");
        let listed = lab.skep(["providers", "--json"]).run().ok().json();
        let named = |name: &str| {
            let all = listed.as_array().unwrap().iter();
            all.into_iter()
                .find(|one| one["name"] == name)
                .unwrap_or_else(|| panic!("{listed}"))
                .clone()
        };
        for provider in ALL {
            assert_eq!(named(provider)["ok"], true, "{listed}");
        }
        assert_eq!(named("subprocess")["selection"], "named");
        assert_eq!(named("subprocess")["boundary"], "none");
        assert_eq!(named("namespace")["selection"], "always");
    });
}

/// Where not even a mount namespace can be had, the work is done on a copy elsewhere, and that is said.
#[test]
fn proc_14_without_namespaces_a_subprocess_works_on_a_copy_and_says_so() {
    for_both(|lab| {
        if lab.who.is_root() {
            return;
        }
        lab.write("a", "one\n");
        let skep = lab.skep([
            "run",
            "--name",
            "s",
            "--provider",
            "subprocess",
            "--",
            "sh",
            "-c",
            "pwd; echo two > a",
        ]);
        let command = skep.into_command();
        let mut words = vec![command.get_program().to_owned()];
        words.extend(command.get_args().map(ToOwned::to_owned));
        let script = "cd /proc/sys/user && echo 0 > max_user_namespaces && echo 0 > max_mnt_namespaces && cd - >/dev/null && exec \"$@\"";
        let ran = lab.program("unshare").args(["-U", "--map-root-user", "sh", "-c", script, "sh"]);
        let ran = ran.args(&words).directory(&lab.project).run().ok();
        assert!(ran.text().trim_end().ends_with("/upper"), "{}", ran.describe());
        assert_eq!(std::fs::read_to_string(lab.project.join("a")).unwrap(), "one\n");
        let report = lab.sandbox("s");
        let how = report["enforcement"]["filesystem"]["how"].as_str().unwrap().to_owned();
        assert!(how.contains("a copy at"), "{how}");
        assert_eq!(lab.diff("s")["changes"][0]["path"], "a");
    });
}

#[test]
fn a_provider_that_isolates_nothing_says_so_and_for_root_that_it_is_root() {
    for_both(|lab| {
        let warning = match lab.who.is_root() {
            true => "skep: `subprocess` isolates nothing: the command runs as root",
            false => "skep: `subprocess` isolates nothing: the command can do what you can do",
        };
        lab.skep(["run", "--provider", "subprocess", "--", "true"]).run().ok().says(warning);
        lab.skep(["create", "s", "--provider", "subprocess"]).run().ok().says(warning);
        lab.skep(["stop", "s"]).run().ok();
        lab.skep(["start", "s"]).run().ok().says(warning);
        let isolated = lab.skep(["run", "--", "true"]).run().ok();
        assert!(!isolated.errors().contains("isolates nothing"), "{}", isolated.describe());
    });
}
