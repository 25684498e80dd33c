//! Secrets in the project: shown as absent, whatever is tried.

use crate::harness::{Lab, for_both, wait_for};
use std::time::Duration;

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

/// What editors and people leave beside a secret, and the names that a plain `.env` has elsewhere.
#[test]
fn hidden_too_is_a_copy_of_a_secret() {
    let secret =
        [".env~", ".env-prod", ".env_local", "a/server.pem~", "a/tls.key.bak", "gcp-key.json"];
    let swapped = [".server.pem.swp", "a/.id_rsa.swp", "#tls.key#"];
    let seen = [".env.example~", ".envrc", "a/main.rs~", "a/auth.json"];
    for_both(|lab| {
        for path in secret.iter().chain(&swapped) {
            lab.write(path, &lab.canary.text);
        }
        for path in seen {
            lab.write(path, "plain\n");
        }
        let read = "find . -type f -exec cat {} +";
        let ran = lab.skep(["run", "--", "sh", "-c", read]).run().ok();
        assert!(!lab.canary.is_in(&ran.stdout), "{}", ran.describe());
        assert_eq!(ran.text().matches("plain").count(), seen.len(), "{}", ran.describe());
        // Control: shown on request, each alone.
        for path in secret {
            let ran = lab.skep(["run", "--show", path, "--", "cat", path]).run().ok();
            assert!(lab.canary.is_in(&ran.stdout), "{path}: {}", ran.describe());
        }
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

/// More than is gone through without a memory.
fn crowd(lab: &Lab) {
    for number in 0..1_500 {
        let place = lab.project.join(format!("crowd/d{}", number / 10));
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join(format!("file-{number}")), "").unwrap();
    }
}

/// Until a search believes that nothing more comes with the same change time.
fn settle(lab: &Lab) {
    let made = lab.project.join("crowd/d7").metadata().unwrap().modified().unwrap();
    let old = || made.elapsed().is_ok_and(|age| age > Duration::from_millis(2_050));
    wait_for("the project to settle", 5, || old().then_some(()));
}

/// Wherever it is, at the first start and at later ones, which look at what has changed only.
#[test]
fn hidden_is_every_secret_of_a_large_project_at_every_start() {
    for_both(|lab| {
        crowd(lab);
        let deep = "packages/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/.env";
        let mut places = vec![deep, "crowd/d149/key.pem", "dist/.env"];
        let cat = |places: &[&str], options: &[&str]| {
            let words = ["run"].iter().chain(options).chain(&["--", "cat"]).chain(places);
            lab.skep(words.copied()).run()
        };
        let remembered = lab.state.join("searched");
        for (round, new) in
            [None, Some("crowd/d7/.env"), Some("crowd/new/deep/id_rsa")].into_iter().enumerate()
        {
            places.extend(new);
            for place in if round == 0 { places.as_slice() } else { new.as_slice() } {
                lab.write(place, &lab.canary.text);
            }
            let ran = cat(&places, &["--require", "filesystem"]);
            assert_eq!(ran.code(), 1, "{}", ran.describe());
            assert!(!lab.canary.is_in(&ran.stdout), "{}", ran.describe());
            assert!(!ran.errors().contains("search for secrets"), "{}", ran.describe());
            assert_eq!(std::fs::read_dir(&remembered).unwrap().count(), 1);
            if round == 0 {
                settle(lab);
                cat(&places, &[]);
            }
        }
        // Control: shown, all of them are read.
        let ran = cat(&places, &["--show", ".env", "--show", "*.pem", "--show", "id_rsa"]).ok();
        assert_eq!(ran.text().matches(&lab.canary.text).count(), places.len());
        // A memory that was damaged is none.
        for file in std::fs::read_dir(&remembered).unwrap() {
            std::fs::write(file.unwrap().path(), "skeplook and something").unwrap();
        }
        let ran = cat(&places, &[]);
        assert!(ran.code() == 1 && !lab.canary.is_in(&ran.stdout), "{}", ran.describe());
    });
}

/// A thousand of them, some where their owner may not write.
#[test]
fn hidden_are_many_and_those_in_directories_that_nobody_may_write() {
    use std::os::unix::fs::PermissionsExt as _;
    for_both(|lab| {
        for number in 0..1_000 {
            lab.write(format!("keys/{}/{number}.pem", number / 100), &lab.canary.text);
        }
        lab.write("shut/below/.env", &lab.canary.text);
        lab.write("shut/plain", "plain\n");
        for place in ["shut/below", "shut"] {
            let mode = std::fs::Permissions::from_mode(0o555);
            std::fs::set_permissions(lab.project.join(place), mode).unwrap();
        }
        let script =
            "find . -name '*.pem' -o -name '.env'; stat -c %a shut shut/below; cat shut/plain";
        let ran = lab.skep(["run", "--", "sh", "-c", script]).run().ok();
        assert_eq!(ran.text(), "555\n555\nplain", "{}", ran.describe());
        for place in ["shut", "shut/below"] {
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(lab.project.join(place), mode).unwrap();
        }
    });
}

/// A directory that can be entered and not listed: a name in it can be guessed.
#[test]
fn hidden_where_nothing_can_be_listed_is_said_or_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    crate::harness::for_each([crate::harness::Who::user()], |lab| {
        lab.write("shut/.env", &lab.canary.text);
        let place = lab.project.join("shut");
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o311)).unwrap();
        let said = "the search for secrets could not list `shut`";
        let ran = lab.skep(["run", "--", "true"]).run().ok();
        assert!(ran.errors().contains(&format!("skep: {said}")), "{}", ran.describe());
        let ran = lab.skep(["run", "--json", "--", "true"]).run().ok();
        let reason = ran.json()["enforcement"]["filesystem"]["reason"].to_string();
        assert!(reason.contains(said), "{reason}");
        let refused = lab.skep(["run", "--require", "filesystem", "--", "true"]).run();
        assert_eq!(refused.code(), 5, "{}", refused.describe());
        let refused = lab.skep(["run", "--hide", "*.sql", "--", "true"]).run();
        assert_eq!(refused.code(), 5, "{}", refused.describe());
        let hidden = lab.skep(["run", "--hide", "shut", "--", "cat", "shut/.env"]).run();
        assert!(hidden.code() == 5 || !lab.canary.is_in(&hidden.stdout), "{}", hidden.describe());
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o755)).unwrap();
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
        // Control: without a glob those that the built-in list leaves alone are read.
        let ran = all(&[]);
        assert_eq!(ran.text().matches(&lab.canary.text).count(), 2, "{}", ran.describe());
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

/// What was typed to be hidden is hidden, also where it leads over a link or was written absolutely.
#[test]
fn a_path_to_hide_is_followed_to_where_it_leads() {
    for_both(|lab| {
        lab.write("real/secret.txt", "SECRET");
        lab.write("real/plain.txt", "plain");
        std::os::unix::fs::symlink("real", lab.project.join("conf")).unwrap();
        lab.own_below(&lab.project);
        let absolute = lab.project.join("real/secret.txt").display().to_string();
        let through = lab.project.join("conf/secret.txt").display().to_string();
        for hide in ["conf/secret.txt", &absolute, &through, "conf"] {
            let line =
                ["run", "--hide", hide, "--", "sh", "-c", "cat real/secret.txt conf/secret.txt"];
            let seen = lab.skep(line).run();
            assert_eq!(seen.text(), "", "{hide}");
        }
        let control = lab.run_script("cat real/secret.txt").run().ok();
        assert_eq!(control.text(), "SECRET");
    });
}

/// A secret that came while the sandbox ran, which goes back to a snapshot and is started again for it;
/// a check of an approval, which sees the project as it is now.
#[test]
fn hidden_too_is_what_came_before_a_restore_and_before_a_check() {
    for_both(|lab| {
        lab.write(".env", "first\n");
        lab.create("s");
        lab.exec_script("s", "echo 1 > one").run().ok();
        lab.skep(["snapshot", "s", "then"]).run().ok();
        lab.exec_script("s", "echo 2 > two").run().ok();
        lab.write("sub/.env", &lab.canary.text);
        let check = ["approve", "s", "one", "--check", "! cat sub/.env"];
        lab.skep(check).run().ok();
        lab.skep(["restore", "s", "then"]).run().ok();
        let ran = lab.exec_script("s", "cat sub/.env; cat one").run().ok();
        assert_eq!(ran.text(), "1", "{}", ran.describe());
        let shown = lab.skep(["show", "s", "--json"]).run().ok().json();
        let how = shown["enforcement"]["filesystem"]["how"].to_string();
        assert!(how.contains("2 paths hidden"), "{how}");
    });
}

/// A directory of secrets that is a link to one in the project, as those make who keep them together.
#[test]
fn hidden_is_a_link_with_the_name_of_a_hidden_directory_and_where_it_leads() {
    for_both(|lab| {
        lab.write("kept/aws/credentials", &lab.canary.text);
        lab.write("kept/plain", "plain\n");
        std::os::unix::fs::symlink("kept/aws", lab.project.join(".aws")).unwrap();
        std::os::unix::fs::symlink("kept/plain", lab.project.join("link")).unwrap();
        let script = "cat .aws/credentials kept/aws/credentials; cat link";
        let ran = lab.run_script(script).run().ok();
        assert!(!lab.canary.is_in(&ran.stdout), "{}", ran.describe());
        assert_eq!(ran.text(), "plain");
        // Control: shown on request.
        let shown = lab.skep(["run", "--show", ".aws", "--", "cat", "kept/aws/credentials"]).run();
        assert!(lab.canary.is_in(&shown.ok().stdout));
    });
}

/// Absolute, over another link, and a single file: what a hidden name leads to is as secret.
#[test]
fn hidden_is_where_a_hidden_link_leads_by_whatever_way() {
    for_both(|lab| {
        for name in ["real/aws/credentials", "far/x/config", "real/dev.settings"] {
            lab.write(name, &lab.canary.text);
        }
        lab.write("real/.env.example", "template\n");
        let link = |to: &str, at: &str| {
            std::os::unix::fs::symlink(to, lab.project.join(at)).unwrap();
        };
        link(lab.project.join("real/aws").to_str().unwrap(), ".aws");
        link("far", "over");
        link("over/x", ".kube");
        link("real/dev.settings", ".env");
        link("real/.env.example", ".env.local");
        let script = "cat real/aws/credentials; cat far/x/config; cat real/dev.settings; \
                      cat real/.env.example";
        let ran = lab.run_script(script).run().ok();
        assert!(!lab.canary.is_in(&ran.stdout), "{}", ran.describe());
        assert_eq!(ran.text(), "template");
        // Control: shown on request.
        let line = ["run", "--show", "real/dev.settings", "--", "cat", "real/dev.settings"];
        assert!(lab.canary.is_in(&lab.skep(line).run().ok().stdout));
    });
}

#[test]
fn hidden_twice_is_hidden_once() {
    for_both(|lab| {
        lab.write("secret/a", &lab.canary.text);
        lab.write(".ssh/id_rsa", &lab.canary.text);
        let hide = ["--hide", "secret", "--hide", "secret/a", "--hide", ".ssh/id_rsa"];
        let call = lab.skep(["run"]).args(hide).args(["--", "cat", "secret/a", ".ssh/id_rsa"]);
        let ran = call.run().exits(1);
        assert!(!lab.canary.is_in(&ran.stdout), "{}", ran.describe());
    });
}

/// Runs a script as root in a mount namespace of its own.
fn apart(lab: &Lab, script: &str) -> crate::harness::Ran {
    lab.program("unshare").args(["-m", "--propagation", "private", "sh", "-ec", script]).run()
}

/// Where a directory does not say what its entries are (ext4 without `filetype`), they are asked.
#[test]
fn hidden_is_every_secret_where_directories_do_not_tell_types() {
    crate::harness::for_each([crate::harness::Who::root()], |lab| {
        let image = lab.write(lab.root.join("image"), "");
        let file = std::fs::File::options().write(true).open(&image).unwrap();
        file.set_len(32 << 20).unwrap();
        let options = ["-q", "-F", "-O", "^filetype"];
        lab.program("mkfs.ext4").args(options).arg(&image).run().ok();
        let (skep, image, at) = (lab.binary.display(), image.display(), lab.project.display());
        let make = format!(
            "mount -o loop {image} {at}; cd {at}; mkdir -p sub/deep .aws; \
             for f in .env sub/.env sub/deep/key.pem .aws/credentials; do echo {} > $f; done; \
             echo plain > sub/deep/plain",
            lab.canary.text
        );
        if apart(lab, &format!("mount -o loop {image} {at}")).code() != 0 {
            return crate::harness::skip("no loop device can be mounted");
        }
        let look = "cat .env sub/.env sub/deep/key.pem .aws/credentials; cat sub/deep/plain";
        let ran = apart(lab, &format!("{make}; {skep} run -- sh -c '{look}'")).ok();
        assert!(!lab.canary.is_in(&ran.stdout), "{}", ran.describe());
        assert_eq!(ran.text(), "plain");
        // Control: it is the hiding that hides.
        let shown = format!("{make}; {skep} run --show sub/deep/key.pem -- cat sub/deep/key.pem");
        assert!(lab.canary.is_in(&apart(lab, &shown).ok().stdout));
        // A directory of directories can be deleted and approved there, too.
        let work = "mkdir -p d/e/1 d/e/2; touch d/e/1/x d/e/2/y";
        let script = format!(
            "{make}; {work}; {skep} run --name s -- rm -rf d; {skep} approve s; test ! -e d"
        );
        apart(lab, &script).ok();
    });
}

/// The view is of one filesystem. What a mount covers on the host is not shown instead.
#[test]
fn hidden_is_what_a_mount_covers() {
    crate::harness::for_each([crate::harness::Who::root()], |lab| {
        lab.write("sub/.env", &lab.canary.text);
        lab.write("sub/plain", "covered\n");
        lab.write("beside", "beside\n");
        let (skep, at) = (lab.binary.display(), lab.project.display());
        let look = "cat sub/.env sub/plain; cat beside";
        let ran = apart(lab, &format!("{skep} run -- sh -c '{look}'")).ok();
        assert_eq!(ran.text(), "covered\nbeside", "the control: without a mount");
        let ran = apart(lab, &format!("mount -t tmpfs x {at}/sub; {skep} run -- sh -c '{look}'"));
        assert_eq!(ran.ok().text(), "beside");
    });
}

/// A path that was spelled out is hidden before there is anything at it.
#[test]
fn a_path_to_hide_that_appears_later_stays_out_of_sight() {
    for_both(|lab| {
        lab.write("sub/plain", "x");
        lab.skep(["create", "s", "--hide", "sub/later.txt", "--hide", "/later"]).run().ok();
        lab.exec_script("s", "echo other > beside").run().ok();
        lab.write("sub/later.txt", "SECRET");
        lab.write("later", "SECRET");
        lab.write("seen", "seen");
        let seen = lab.exec_script("s", "cat sub/later.txt later seen; true").run().ok();
        assert_eq!(seen.text(), "seen");
        assert_eq!(lab.diff("s")["changes"].as_array().unwrap().len(), 1);
        lab.skep(["approve", "s"]).run().ok();
        assert_eq!(std::fs::read_to_string(lab.project.join("later")).unwrap(), "SECRET");
    });
}

/// What is hidden in the project is not shown by a mount of the same directory under another name.
#[test]
fn a_mount_around_the_project_shows_nothing_that_is_hidden() {
    for_both(|lab| {
        lab.write(".env", "SECRET");
        lab.write("sub/id_rsa", "SECRET");
        lab.write("open/a", "a\n");
        lab.own_below(&lab.project);
        let project = lab.project.display().to_string();
        let parent = lab.project.parent().unwrap().display().to_string();
        let read = |flag: &str, what: String| {
            let script =
                "cat /x/.env /x/*/.env /x/id_rsa /x/*/id_rsa /datasets/x/id_rsa 2>/dev/null; true";
            lab.skep(["run", "--rm", flag, &what, "--", "sh", "-c", script])
        };
        for (flag, what) in [
            ("--mount", format!("{project}:/x:ro")),
            ("--mount", format!("{parent}:/x:ro")),
            ("--mount", format!("{project}/sub:/x:ro")),
            ("--dataset", format!("x={project}/sub")),
        ] {
            let ran = lab.without_effect(read(flag, what));
            assert_eq!(ran.code(), 5, "{}", ran.describe());
            ran.says("--show");
        }
        // Controls: where nothing hidden lies, and where it was asked for.
        read("--mount", format!("{project}/open:/x:ro")).run().ok();
        let (place, script) = (format!("{project}/sub:/x:ro"), "cat /x/id_rsa");
        let words =
            ["run", "--rm", "--show", "sub/id_rsa", "--mount", &place, "--", "sh", "-c", script];
        assert!(lab.skep(words).run().ok().text().contains("SECRET"));
    });
}
