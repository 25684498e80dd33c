//! `skep cp`: in and out, and nowhere else.

use crate::harness::for_both;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

#[test]
fn files_and_trees_are_copied_in_and_out_exactly() {
    for_both(|lab| {
        lab.write("old", "old\n");
        lab.write("dir/kept", "kept\n");
        lab.write("dir/gone", "gone\n");
        lab.write(".env", "SECRET=1\n");
        lab.up("s");
        lab.inside(
            "s",
            "echo new > dir/new; rm dir/gone; chmod 750 dir/new; ln -s /etc/passwd dir/link; \
             mkfifo dir/fifo; printf 'a\\000b' > dir/bytes; chmod 4755 dir/bytes",
        );
        let out = lab.directory(lab.root.join("out"));
        let target = |name: &str| out.join(name);
        lab.skep(["cp", "s:old"]).arg(target("single")).run().ok();
        assert_eq!(fs::read(target("single")).unwrap(), b"old\n");
        let ran = lab.skep(["cp", "--json", "s:dir"]).arg(&out).run().ok().json();
        assert_eq!(ran["skipped"].as_array().unwrap().len(), 1, "{ran}");
        let mut names: Vec<_> =
            fs::read_dir(target("dir")).unwrap().map(|one| one.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["bytes", "kept", "link", "new"]);
        assert_eq!(fs::read(target("dir/bytes")).unwrap(), b"a\0b");
        let mode = |name: &str| fs::metadata(target(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("dir/bytes"), mode("dir/new")), (0o755, 0o750));
        assert_eq!(fs::read_link(target("dir/link")).unwrap().to_str(), Some("/etc/passwd"));
        // And in again, by another name; what is hidden inside is not there to be copied.
        lab.skep(["cp"]).arg(target("dir")).arg("s:copied").run().ok();
        let text = lab
            .inside("s", "cat copied/new copied/kept; stat -c %a copied/new; readlink copied/link");
        assert_eq!(text.text(), "new\nkept\n750\n/etc/passwd");
        assert_eq!(lab.skep(["cp", "s:.env"]).arg(target("env")).run().code(), 3);
        assert!(!lab.project.join("copied").exists());
        // Into a sandbox at rest too, and it is work to review.
        lab.skep(["stop", "s"]).run().ok();
        lab.skep(["cp"]).arg(target("single")).arg("s:dir").run().ok();
        assert!(super::desk::paths(&lab.diff("s")).contains(&"dir/single".to_owned()));
        assert_eq!(lab.sandbox("s")["state"], "stopped");
    });
}

/// Whoever names `/dev/null` as the place wants nothing kept, and root would lose the device.
#[test]
fn a_copy_takes_the_place_of_a_file_and_of_nothing_else() {
    for_both(|lab| {
        lab.write("f", "new\n");
        lab.up("s");
        let out = lab.directory(lab.root.join("out"));
        let place = |name: &str| out.join(name);
        let make = "echo old > file; mkfifo fifo; ln -s file link; ln -s nowhere dangling; mkdir d; ln -s d to-d";
        lab.program("sh").args(["-ec", &format!("cd \"$0\"; {make}")]).arg(&out).run().ok();
        let kinds = || {
            ["fifo", "link", "dangling"]
                .map(|name| fs::symlink_metadata(place(name)).unwrap().file_type())
        };
        let before = kinds();
        for name in ["fifo", "link", "dangling"] {
            let ran = lab.skep(["cp", "s:f"]).arg(place(name)).run();
            assert_eq!(ran.code(), 4, "{name}: {}", ran.describe());
            assert!(ran.errors().contains(name) && ran.errors().contains("name another place"));
        }
        assert_eq!(kinds(), before);
        assert_eq!(fs::read(place("file")).unwrap(), b"old\n");
        // The control; and a directory is one also by a link.
        lab.skep(["cp", "s:f"]).arg(place("file")).run().ok();
        lab.skep(["cp", "s:f"]).arg(place("to-d")).run().ok();
        for name in ["file", "d/f"] {
            assert_eq!(fs::read(place(name)).unwrap(), b"new\n");
        }
    });
}

#[test]
fn copies_leave_neither_the_workspace_nor_the_asked_place() {
    for_both(|lab| {
        lab.write("f", "project\n");
        lab.up("s");
        let secret = lab.write(lab.root.join("secret"), "secret\n");
        let out = lab.directory(lab.root.join("out"));
        lab.inside(
            "s",
            &format!(
                "ln -s {} link; ln -s {} up; echo evil > e",
                secret.display(),
                lab.root.display()
            ),
        );
        // A link is a link, and no way.
        lab.skep(["cp", "s:link"]).arg(out.join("link")).run().ok();
        assert!(fs::symlink_metadata(out.join("link")).unwrap().is_symlink());
        assert_eq!(lab.skep(["cp", "s:up/secret"]).arg(out.join("x")).run().code(), 3);
        for path in ["s:../secret", "s:/etc/passwd", "s:a/../../secret"] {
            let ran = lab.skep(["cp", path]).arg(out.join("x")).run();
            assert_eq!(ran.code(), 2, "{path}: {}", ran.describe());
        }
        // Over a link on the host: it stays, and so does what it points to.
        symlink(&secret, out.join("planted")).unwrap();
        lab.who.own(&out.join("planted"));
        assert_eq!(lab.skep(["cp", "s:e"]).arg(out.join("planted")).run().code(), 4);
        assert_eq!(fs::read(&secret).unwrap(), b"secret\n");
        assert!(fs::symlink_metadata(out.join("planted")).unwrap().is_symlink());
        // In through a link inside that leads out.
        let ran = lab.skep(["cp"]).arg(&secret).arg("s:up/planted").run();
        assert_ne!(ran.code(), 0, "{}", ran.describe());
        assert!(!lab.root.join("planted").exists());
        // Not into the project, by no name of it, and not into the state.
        symlink(&lab.project, lab.root.join("alias")).unwrap();
        for place in [lab.project.join("f"), lab.root.join("alias/f"), lab.state.join("f")] {
            let ran = lab.skep(["cp", "s:e"]).arg(&place).run();
            assert_eq!(ran.code(), 5, "{place:?}: {}", ran.describe());
        }
        assert_eq!(lab.bytes("f"), b"project\n");
        // Nothing is half there, and a directory is not put over another.
        fs::create_dir(out.join("taken")).unwrap();
        lab.who.own(&out.join("taken"));
        lab.inside("s", "mkdir taken; echo x > taken/x");
        assert_eq!(lab.skep(["cp", "s:taken"]).arg(&out).run().code(), 4);
        assert_eq!(fs::read_dir(out.join("taken")).unwrap().count(), 0);
        let left = fs::read_dir(&out).unwrap().map(|one| one.unwrap().file_name());
        assert_eq!(left.filter(|name| name.to_string_lossy().contains("skep")).count(), 0);
        assert_eq!(lab.skep(["cp", "a", "b"]).run().code(), 2);
        assert_eq!(lab.skep(["cp", "s:a", "s:b"]).run().code(), 2);
        assert_eq!(lab.skep(["cp", "nobody:a", "b"]).run().code(), 3);
    });
}
