//! Images without an engine: the system of a root filesystem that skep keeps itself, on runtimes; guests
//! are in `microvm.rs`.

use super::{for_these, run};
use crate::harness::{Call, Lab};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const RUNTIMES: [&str; 3] = ["oci:runc", "oci:crun", "oci:runsc"];

/// A small system, with something in it that no host has.
pub(crate) fn tree(lab: &Lab, name: &str) -> PathBuf {
    let tree = lab.root.join("trees").join(name);
    for directory in ["bin", "etc", "opt"] {
        fs::create_dir_all(tree.join(directory)).unwrap();
    }
    fs::write(tree.join("etc/only-here"), "in the image\n").unwrap();
    fs::write(tree.join("opt/private"), "of the image's root\n").unwrap();
    fs::copy("/bin/busybox", tree.join("bin/busybox")).unwrap();
    for tool in ["sh", "cat", "ls", "touch", "env", "id", "sleep", "mount", "echo", "rm"] {
        symlink("busybox", tree.join("bin").join(tool)).unwrap();
    }
    lab.own_below(&lab.root.join("trees"));
    tree
}

/// `skep image WORDS` where no engine answers.
pub(crate) fn image(lab: &Lab, words: &[&str]) -> Call {
    lab.skep(["image"]).args(words).env("DOCKER_HOST", "unix:///nowhere/docker.sock")
}

pub(crate) fn import(lab: &Lab, source: &Path, name: &str) -> String {
    let source = source.display().to_string();
    image(lab, &["import", &source, name]).run().ok().text()
}

#[test]
fn an_image_is_shown_without_an_engine_and_the_review_is_the_same() {
    for_these(&RUNTIMES, |lab, provider| {
        let tree = tree(lab, "small");
        let id = import(lab, &tree, "small:1");
        assert!(id.starts_with("blake3:"), "{id}");
        let packed = lab.root.join("trees/small.tar.gz");
        let tar =
            Command::new("tar").arg("-C").arg(&tree).arg("-czf").arg(&packed).arg(".").status();
        assert!(tar.unwrap().success());
        import(lab, &packed, "packed");
        let listed: Value = image(lab, &["ls", "--json"]).run().ok().json();
        let names: Vec<_> = listed.as_array().unwrap().iter().map(|one| &one["tags"][0]).collect();
        assert_eq!(names, ["packed:latest", "small:1"], "{listed}");
        lab.write("file", "one\n");
        lab.write(".env", "SECRET=1\n");
        let script = "cat /etc/only-here; ls /usr; ls -a; echo two >> file; \
            touch /etc/x || echo shut; echo x > /bin/sh; touch /tmp/a /var/tmp/a $HOME/a && cat file";
        for (name, image) in [("s", "small:1"), ("p", "packed"), ("i", id.trim())] {
            let flags = ["--name", name, "--image", image];
            let ran = run(lab, provider, &flags, script).run().ok();
            let said = ran.text();
            assert_eq!(
                said,
                "in the image\n.\n..\nfile\nshut\none\ntwo",
                "{provider}: {}",
                ran.errors()
            );
        }
        // The same work without an image has the same digest, and what was there is as it was.
        lab.skep(["run", "--name", "t", "--", "sh", "-c", "echo two >> file"]).run().ok();
        for name in ["s", "p", "i"] {
            assert_eq!(lab.diff(name)["digest"], lab.diff("t")["digest"], "{provider}");
        }
        assert_eq!(import(lab, &tree, "again"), id);
        for name in ["small:1", "again", "packed"] {
            image(lab, &["rm", name]).run().ok();
        }
        let kept = fs::read_dir(lab.state.join("images/rootfs")).unwrap().flatten();
        assert_eq!(kept.filter(|one| one.path().is_dir()).count(), 0);
    });
}

#[test]
fn an_image_in_use_is_not_removed_and_one_that_is_gone_is_missed() {
    for_these(&["oci:runc"], |lab, provider| {
        import(lab, &tree(lab, "small"), "small:1");
        lab.skep(["create", "s", "--provider", provider, "--image", "small:1"]).run().ok();
        image(lab, &["rm", "small:1"]).run().exits(4).says("in use");
        assert_eq!(lab.exec_script("s", "cat /etc/only-here").run().ok().text(), "in the image");
        lab.skep(["stop", "s"]).run().ok();
        image(lab, &["rm", "small:1"]).run().ok();
        lab.skep(["start", "s"]).run().exits(5).says("skep image import");
        let absent = ["create", "--provider", provider, "--image", "absent:1"];
        lab.skep(absent)
            .env("DOCKER_HOST", "unix:///nowhere/docker.sock")
            .run()
            .exits(5)
            .says("absent:1");
        // Half an archive is none, with or without an engine.
        fs::write(lab.root.join("half.tar"), [0; 100]).unwrap();
        let half = lab.root.join("half.tar").display().to_string();
        image(lab, &["import", &half, "half:1"]).run().exits(1);
        image(lab, &["import", &half, "../half"]).run().exits(2);
        assert_eq!(image(lab, &["ls", "--json"]).run().ok().text(), "[]");
    });
}

/// An image is as little trusted as what runs in it.
#[test]
fn nothing_of_an_image_is_loaded_into_init_or_leads_elsewhere() {
    for_these(&["oci:runc"], |lab, provider| {
        let evil = tree(lab, "evil");
        crate::docker::plant_library(&evil);
        fs::write(evil.join("etc/ld.so.preload"), "/evil.so\n").unwrap();
        import(lab, &evil, "evil");
        let ran = run(lab, provider, &["--image", "evil"], "ls /tmp; cat /etc/ld.so.preload; env");
        let said = ran.run().ok().text();
        assert!(!said.contains("loaded") && !said.contains("evil.so"), "{said}");
        // A link where something of skep's is mounted could lead it into the project.
        let link = tree(lab, "link");
        let home = lab.home.strip_prefix("/").unwrap();
        fs::create_dir_all(link.join(home).parent().unwrap()).unwrap();
        symlink("/etc", link.join(home)).unwrap();
        import(lab, &link, "link");
        run(lab, provider, &["--image", "link"], "true").run().exits(5).says("a link at");
        let run_link = tree(lab, "run");
        symlink("/tmp", run_link.join("run")).unwrap();
        let run_link = run_link.display().to_string();
        image(lab, &["import", &run_link, "run"]).run().exits(1).says("no link");
    });
}
