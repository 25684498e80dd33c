//! `--system cow`: a system that can be changed inside, while nothing reaches the host and nothing
//! that only root may read is read.

use crate::harness::{Call, Canary, Lab, Who, for_both, for_each, skip};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

/// CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SETGID and SETUID.
const FOR_PACKAGES: &str = "00000000000000db";

fn call(lab: &Lab, arguments: &[&str]) -> Option<Call> {
    match lab.who.is_root() {
        true => Some(lab.skep(arguments)),
        false => lab.skep_with_fuse(arguments).map_err(|reason| skip(&reason)).ok(),
    }
    .map(|call| call.within(180))
}

fn create(lab: &Lab, name: &str, more: &[&str]) -> bool {
    let arguments: Vec<&str> =
        ["create", name, "--system", "cow"].iter().chain(more).copied().collect();
    call(lab, &arguments).map(|call| call.run().ok()).is_some()
}

/// Files of the host that a test puts there and takes away again.
struct Planted(Vec<PathBuf>);

impl Drop for Planted {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = fs::remove_file(path);
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// What is installed takes room and is under the limit: it is in the sizes, and remarked upon.
#[test]
fn what_is_written_to_the_system_is_in_its_size() {
    for_both(|lab| {
        let settings = lab.home.join(".config/skep/config.toml");
        fs::create_dir_all(settings.parent().unwrap()).unwrap();
        fs::write(&settings, "[warn]\nupper_size = \"3M\"\n").unwrap();
        lab.own_below(&lab.home);
        if !create(lab, "cow", &["--user", "root"]) {
            return;
        }
        let bytes = || lab.sandbox("cow")["system_bytes"].as_u64().unwrap();
        assert!(bytes() < 1 << 20, "{}", bytes());
        lab.exec_script("cow", "head -c 5000000 /dev/zero > /usr/lib/skep-big").run().ok();
        assert!((5_000_000..7_000_000).contains(&bytes()), "{}", bytes());
        let shown = lab.skep(["show", "cow"]).run().ok().text();
        assert!(shown.contains("4.8 MiB in the copy of the system"), "{shown}");
        assert!(shown.contains("`warn.upper_size`"), "{shown}");
        assert!(lab.skep(["ls"]).run().ok().text().contains("4.8 MiB"));
        fs::remove_dir_all(settings.parent().unwrap()).unwrap();
        lab.skep(["rm", "--discard", "cow"]).run().ok();
    });
}

#[test]
fn what_is_written_to_the_system_stays_inside_and_is_no_change_of_the_project() {
    for_both(|lab| {
        lab.write("a", "1\n");
        let look = || {
            let hosts = fs::read("/etc/hosts").unwrap();
            let made = ["/usr/skep-made", "/etc/skep-made", "/var/lib/skep-made"];
            (
                hosts,
                made.map(|path| fs::symlink_metadata(path).is_ok()),
                fs::metadata("/usr/bin/env").is_ok(),
            )
        };
        let before = look();
        assert_eq!(before.1, [false; 3]);
        if !create(lab, "cow", &[]) {
            return;
        }
        let script = "echo changed >> /etc/hosts; rm /usr/bin/env; echo z > a
for d in /usr /etc /var/lib; do echo made > $d/skep-made; done; cat /usr/skep-made; tail -1 /etc/hosts";
        let ran = lab.exec_script("cow", script).run().ok();
        assert_eq!(ran.text(), "made\nchanged");
        assert_eq!(look(), before, "the host was changed");
        let diff = lab.diff("cow");
        assert_eq!(diff["changes"].as_array().unwrap().len(), 1, "{diff}");
        // It is kept as long as the sandbox is.
        lab.skep(["stop", "cow"]).run().ok();
        let Some(start) = call(lab, &["start", "cow"]) else { return };
        start.run().ok();
        let kept = "cat /var/lib/skep-made; test ! -e /usr/bin/env && echo gone";
        assert_eq!(lab.exec_script("cow", kept).run().ok().text(), "made\ngone");
        assert_eq!(look(), before, "the host was changed");
        // The control: without it, the system is read-only.
        lab.create("plain");
        let ran =
            lab.exec_script("plain", "echo x > /usr/skep-made || echo x > /etc/skep-made").run();
        assert_ne!(ran.code(), 0);
    });
}

#[test]
fn nothing_that_only_root_may_read_is_read_inside() {
    for_both(|lab| {
        if !rustix::process::geteuid().is_root() {
            return skip("only root can plant secrets in /etc");
        }
        let (secret, open) = (Canary::new(), Canary::new());
        let name = &secret.text[..16];
        let at = |place: &str| PathBuf::from(format!("{place}/skep-test-{name}"));
        let (file, group, folder, public) =
            (at("/etc"), at("/var/lib"), at("/usr/share"), at("/etc/default"));
        let _planted = Planted(vec![file.clone(), group.clone(), folder.clone(), public.clone()]);
        let plant = |path: &PathBuf, text: &str, mode: u32| {
            fs::write(path, text).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        plant(&file, &secret.text, 0o600);
        plant(&group, &secret.text, 0o640);
        fs::create_dir(&folder).unwrap();
        plant(&folder.join("in"), &secret.text, 0o644);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        plant(&public, &open.text, 0o644);
        if !create(lab, "cow", &["--user", "root"]) {
            return;
        }
        let paths =
            [&file, &group, &folder.join("in"), &public].map(|path| path.display().to_string());
        let script = format!(
            "cat {} /etc/shadow /etc/gshadow /etc/sudoers 2>/dev/null; cat {} > copy; \
             chmod 777 {} 2>/dev/null; cat {} 2>/dev/null; true",
            paths.join(" "),
            paths[0],
            paths[0],
            paths[0]
        );
        let ran = lab.exec_script("cow", &script).run();
        let told = [&ran.stdout[..], &ran.stderr[..]].concat();
        assert!(!secret.is_in(&told), "{}", ran.describe());
        assert!(!ran.text().contains("root:"), "{}", ran.describe());
        // The control: what everybody may read is read, by the same command.
        assert!(open.is_in(&ran.stdout), "{}", ran.describe());
        assert!(secret.found_below(&lab.state).is_empty());
    });
}

#[test]
fn a_package_is_installed_inside_and_not_on_the_host() {
    for_both(|lab| {
        if !std::path::Path::new("/usr/bin/dpkg-deb").exists() {
            return skip("dpkg is not installed");
        }
        let control = "Package: skep-test-package\nVersion: 1\nArchitecture: all\n\
                       Maintainer: Nobody <nobody@example.org>\nDescription: a test\n";
        lab.write("package/DEBIAN/control", control);
        let tool = lab.write("package/usr/bin/skep-test-tool", "#!/bin/sh\necho installed\n");
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        let build = ["--root-owner-group", "-b", "package", "test.deb"];
        lab.program("dpkg-deb").args(build).run().ok();
        let status = fs::read("/var/lib/dpkg/status").unwrap();
        if !create(lab, "cow", &["--user", "root"]) {
            return;
        }
        let script = "dpkg -i test.deb >&2 && skep-test-tool";
        let ran = lab.exec_script("cow", script).within(180).run().ok();
        assert_eq!(ran.text(), "installed");
        assert!(!std::path::Path::new("/usr/bin/skep-test-tool").exists());
        assert_eq!(fs::read("/var/lib/dpkg/status").unwrap(), status);
    });
}

#[test]
fn capabilities_are_kept_for_a_root_with_a_system_to_change_and_for_nobody_else() {
    for_both(|lab| {
        let effective = |name: &str| {
            let ran = lab.exec_script(name, "grep CapEff /proc/self/status").run().ok();
            ran.text().split_whitespace().last().unwrap().to_owned()
        };
        let processes = |name: &str| {
            let shown = lab.skep(["show", name, "--json"]).run().ok().json();
            shown["enforcement"]["processes"]["how"].as_str().unwrap().to_owned()
        };
        lab.skep(["create", "root", "--user", "root"]).run().ok();
        assert_eq!(effective("root"), "0000000000000000");
        if !create(lab, "cow", &[]) || !create(lab, "both", &["--user", "root"]) {
            return;
        }
        assert_eq!(effective("cow"), "0000000000000000");
        assert_eq!(effective("both"), FOR_PACKAGES);
        assert!(processes("cow").contains("no capabilities"));
        assert!(processes("both").contains("CAP_DAC_OVERRIDE"));
    });
}

#[test]
fn an_ordinary_user_without_fuse_overlayfs_is_refused_with_the_remedy() {
    for_each([Who::user()], |lab| {
        let arguments = ["run", "--system", "cow", "--", "true"];
        match lab.skep_without_fuse(&arguments) {
            Ok(call) => {
                let ran = lab.without_effect(call).exits(5);
                ran.says("`--system cow` cannot be enforced here").says("/dev/fuse");
            }
            Err(reason) => skip(&reason),
        }
    });
}

/// A copy cannot be kept inside of what it is a copy of.
#[test]
fn a_state_in_a_directory_of_the_system_is_refused_with_the_remedy() {
    for_each([Who::root()], |lab| {
        let place = tempfile::Builder::new().prefix("skep-lab-").tempdir_in("/var/tmp").unwrap();
        let asked = ["create", "s", "--system", "cow"];
        let ran = lab.skep(asked).env("SKEP_HOME", place.path()).run().exits(5);
        assert!(ran.errors().contains("skep's state lies in `/var`"), "{}", ran.describe());
        assert!(ran.errors().contains("SKEP_HOME"), "{}", ran.describe());
        let listed = lab.skep(["ls", "--all", "--json"]).env("SKEP_HOME", place.path()).run().ok();
        assert_eq!(listed.json(), serde_json::json!([]));
    });
}

#[test]
fn res_5_what_is_written_to_the_system_is_counted() {
    for_both(|lab| {
        if !create(lab, "cow", &["--disk", "16M"]) {
            return;
        }
        let fill =
            "i = 0\nwhile True:\n  open(f'/usr/skep{i}', 'wb').write(bytes(4 << 20)); i += 1";
        let command = ["exec", "--json", "--timeout", "30s", "cow", "--", "/usr/bin/python3", "-c"];
        let end = lab.skep(command).arg(fill).run().json();
        assert_eq!(end["reason"], "disk_limit", "{end}");
        // The way out: who makes room is not ended for what was written before. Then the control:
        // below the limit nobody is ended.
        lab.exec_script("cow", "rm /usr/skep*").run().ok();
        let little = "import time; open('/usr/skep', 'wb').write(bytes(4 << 20)); time.sleep(0.3)";
        assert_eq!(lab.skep(command).arg(little).run().json()["reason"], "exited");
        let shown = lab.sandbox("cow");
        assert_eq!(shown["enforcement"]["disk"]["enforced"], true, "{shown}");
    });
}

#[test]
fn a_fork_takes_a_changed_system_along_and_a_snapshot_says_that_it_does_not() {
    for_both(|lab| {
        if !create(lab, "cow", &["--user", "root"]) {
            return;
        }
        let change =
            "echo made > /usr/skep-made; rm /usr/bin/env; echo changed >> /etc/hosts; echo 1 > a";
        lab.exec_script("cow", change).run().ok();
        lab.without_effect(lab.skep(["snapshot", "cow", "s"])).exits(5).says("`skep fork` takes");
        let Some(fork) = call(lab, &["fork", "cow", "--name", "other"]) else { return };
        fork.run().ok();
        lab.exec_script("cow", "echo later > /usr/skep-made").run().ok();
        let Some(start) = call(lab, &["start", "other"]) else { return };
        start.run().ok();
        let look = "cat /usr/skep-made a; test ! -e /usr/bin/env && echo gone; tail -1 /etc/hosts";
        assert_eq!(lab.exec_script("other", look).run().ok().text(), "made\n1\ngone\nchanged");
        assert_eq!(lab.exec_script("cow", "cat /usr/skep-made").run().ok().text(), "later");
    });
}

/// What `/etc/subuid` lends the ordinary caller of the tests.
fn lent() -> bool {
    let lent = |path| fs::read_to_string(path).is_ok_and(|text: String| text.contains("skeptest:"));
    let tools = ["/usr/bin/newuidmap", "/usr/bin/newgidmap"];
    lent("/etc/subuid")
        && lent("/etc/subgid")
        && tools.iter().all(|tool| fs::metadata(tool).is_ok())
}

/// Files of subordinate ids are made inside, counted, reviewed, approved and removed.
#[test]
fn subordinate_ids_are_users_inside_and_leave_nothing_that_cannot_be_reviewed_or_removed() {
    for_each([Who::user()], |lab| {
        if !lent() {
            return skip("`skeptest` has no subordinate ids, or newuidmap is missing");
        }
        lab.write("a", "1\n");
        if !create(lab, "cow", &["--user", "root", "--disk", "32M"]) {
            return;
        }
        let how = lab.sandbox("cow")["enforcement"]["processes"]["how"].to_string();
        assert!(how.contains("subordinate ids"), "{how}");
        let script = "mkdir d && echo new > d/f && chown -R 33:33 d && chmod 700 d && chmod 600 d/f
setpriv --reuid 33 --regid 33 --clear-groups sh -c 'id -u; echo more > d/g; chmod 0 d/g'; stat -c %u d";
        assert_eq!(lab.exec_script("cow", script).run().ok().text(), "33\n33");
        let upper = lab.state.join("sandboxes");
        let owner = lab.program("find").arg(&upper).args(["-name", "d", "-printf", "%U"]).run();
        assert!(owner.text().parse::<u32>().unwrap() >= 100_000, "{}", owner.describe());
        // What lies in a directory that only a subordinate id can read is counted.
        let fill = "import os; os.setgid(33); os.setuid(33)\ni = 0\nwhile True:\n  \
                    open(f'd/{i}', 'wb').write(bytes(4 << 20)); i += 1";
        let command = ["exec", "--json", "--timeout", "30s", "cow", "--", "/usr/bin/python3", "-c"];
        let end = lab.skep(command).arg(fill).run().json();
        assert_eq!(end["reason"], "disk_limit", "{end}");
        lab.exec_script("cow", "rm -f d/[0-9]*").run().ok();
        lab.skep(["stop", "cow"]).run().ok();
        let paths: Vec<_> = lab.diff("cow")["changes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|change| change["path"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(paths, ["d/f", "d/g"]);
        lab.skep(["approve", "cow"]).run().ok();
        assert_eq!(fs::read(lab.project.join("d/f")).unwrap(), b"new\n");
        let mine =
            std::os::unix::fs::MetadataExt::uid(&fs::metadata(lab.project.join("d/f")).unwrap());
        assert_eq!(mine, lab.who.ids().0, "what is approved belongs to the caller");
        lab.skep(["rm", "--discard", "cow"]).run().ok();
    });
}

/// More users are not more processes.
#[test]
fn res_1_many_users_inside_are_one_sum() {
    for_each([Who::user()], |lab| {
        if !lent() || !create(lab, "cow", &["--user", "root", "--pids", "64", "--best-effort"]) {
            return;
        }
        let bomb = "import os, time
for i in range(1, 40):
    if os.fork() == 0:
        os.setgid(i); os.setuid(i)
        for _ in range(50):
            try:
                if os.fork() == 0: time.sleep(60); os._exit(0)
            except OSError: pass
        time.sleep(60)
time.sleep(60)";
        let command = ["exec", "--json", "--timeout", "30s", "cow", "--", "/usr/bin/python3", "-c"];
        let end = lab.skep(command).arg(bomb).run().json();
        assert_eq!(end["reason"], "pids_limit", "{end}");
    });
}
