//! Images: imported without a network, listed, removed; half an import is none.

use super::lab;
use crate::harness::{Docker, Lab, Who};
use serde_json::Value;
use std::fs;
use std::process::Command;

fn with_engine(test: impl Fn(&Lab, &Docker)) {
    let Some(engine) = Docker::start() else { return };
    test(&lab(Who::root().unwrap(), &engine), &engine);
}

fn names(lab: &Lab) -> Vec<String> {
    let listed: Value = lab.skep(["image", "ls", "--json"]).run().ok().json();
    let images = listed.as_array().unwrap().iter();
    let in_engine = images.filter(|image| image["place"] == "docker");
    in_engine
        .flat_map(|image| image["tags"].as_array().unwrap().clone())
        .map(|tag| tag.as_str().unwrap().to_owned())
        .collect()
}

fn own_names(lab: &Lab) -> Vec<String> {
    let listed: Value = lab.skep(["image", "ls", "--json"]).run().ok().json();
    let own = listed.as_array().unwrap().iter().filter(|image| image["place"] == "skep");
    own.map(|image| image["tags"][0].as_str().unwrap().to_owned()).collect()
}

#[test]
fn directories_and_archives_become_images_and_go_again() {
    with_engine(|lab, engine| {
        let tree = engine.place().join("tree");
        fs::create_dir_all(tree.join("bin")).unwrap();
        fs::copy("/bin/busybox", tree.join("bin/busybox")).unwrap();
        std::os::unix::fs::symlink("busybox", tree.join("bin/sh")).unwrap();
        let tree = tree.display().to_string();
        let id = lab.skep(["image", "import", &tree, "small:1"]).run().ok().text();
        assert_eq!(engine.ask(&["images", "--quiet", "--no-trunc", "small:1"]), id.trim());
        assert_eq!((names(lab), own_names(lab)), (vec!["small:1".into()], vec!["small:1".into()]));
        // Here already: nothing is fetched.
        assert_eq!(lab.skep(["image", "pull", "small:1"]).run().ok().text(), id);
        let saved = engine.place().join("saved.tar").display().to_string();
        engine.ask(&["save", "--output", &saved, "small:1"]);
        lab.skep(["image", "rm", "small:1"]).run().ok();
        assert_eq!((names(lab), own_names(lab)), (vec![], vec![]));
        lab.skep(["image", "rm", "small:1"]).run().exits(3);
        // Saved images bring their names; giving one is refused.
        lab.skep(["image", "import", &saved, "other:1"]).run().exits(2);
        lab.skep(["image", "import", &saved]).run().ok();
        assert_eq!(names(lab), ["small:1"]);
        let plain = engine.place().join("plain.tar").display().to_string();
        let tar = ["-C", &tree, "-czf", &plain, "."];
        assert!(Command::new("tar").args(tar).status().unwrap().success());
        lab.skep(["image", "import", &plain, "packed"]).run().ok();
        assert_eq!(names(lab), ["packed:latest", "small:1"]);
    });
}

/// What one place has, a sandbox of the other gets; and removing removes both.
#[test]
fn images_pass_from_the_engine_to_runtimes_and_back() {
    super::for_both(|lab, engine| {
        let tree = crate::providers::images::tree(lab, "small").display().to_string();
        let here = |words: &[&str]| lab.skep(["image"]).args(words).run();
        let script = ["--", "cat", "/etc/only-here"];
        let shown = |provider: &str| {
            let line = ["run", "--provider", provider, "--image", "small:1"];
            assert_eq!(lab.skep(line).args(script).run().ok().text(), "in the image", "{provider}");
        };
        here(&["import", &tree, "small:1", "--place", "docker"]).ok();
        assert!(names(lab).contains(&"small:1".into()) && own_names(lab).is_empty());
        shown("oci:runc");
        assert_eq!(own_names(lab), ["small:1"]);
        engine.ask(&["rmi", "--force", "small:1"]);
        shown("docker");
        assert_eq!(names(lab).iter().filter(|name| *name == "small:1").count(), 1);
        here(&["rm", "small:1"]).ok();
        assert!(own_names(lab).is_empty() && !names(lab).contains(&"small:1".into()));
        engine.assert_empty();
    });
}

#[test]
fn half_an_import_is_none() {
    with_engine(|lab, engine| {
        let place = |name: &str| engine.place().join(name).display().to_string();
        let whole = place("whole.tar");
        let tar = ["-cf", &whole, "/usr/share/dict", "/usr/share/doc", "/usr/share/zoneinfo"];
        let _ = Command::new("tar").args(tar).output().unwrap();
        let bytes = fs::read(&whole).unwrap();
        fs::write(place("half.tar"), &bytes[..bytes.len() / 2 - 100]).unwrap();
        let refused = lab.skep(["image", "import", &place("half.tar"), "half:1"]).run();
        assert_eq!(refused.code(), 1, "{}", refused.errors());
        assert_eq!(names(lab), Vec::<String>::new());
        lab.skep(["image", "import", &place("nowhere.tar"), "half:1"]).run().exits(1);
        lab.skep(["image", "import", &whole, "bad name@x"]).run().exits(2);
        // No registry can be reached from here: the reason is the engine's.
        let refused = lab.skep(["image", "pull", "localhost:1/nothing:1"]).run().exits(1);
        assert!(refused.errors().contains("localhost:1"), "{}", refused.errors());
    });
}

/// A small form of it: the packages of the whole take minutes.
#[test]
fn long_the_agent_image_is_made_from_packages_and_works() {
    if !crate::harness::long() {
        return;
    }
    with_engine(|lab, engine| {
        let few = ["--package", "git", "--package", "python3-minimal"];
        let build = lab.skep(["image", "build", "agent", "small/agent:1"]).args(few).within(900);
        build.run().ok();
        let seen: Value = serde_json::from_str(&engine.ask(&["inspect", "small/agent:1"])).unwrap();
        let config = &seen[0]["Config"];
        assert_eq!(config["User"], "agent");
        assert_eq!(config["Entrypoint"][0], "/usr/local/bin/agent-entry");
        assert_eq!(config["Healthcheck"]["Test"][1], "/usr/local/bin/agent-health");
        let ran = ["run", "--rm", "--network", "none", "small/agent:1", "sh", "-c"];
        let ran = engine.ask(&[&ran[..], &["id -un; git --version"]].concat());
        assert!(ran.starts_with("agent\ngit version"), "{ran}");
        lab.write("file", "one\n");
        let flags = ["--name", "s", "--image", "small/agent:1"];
        let seen = super::run(lab, &flags, "git --version; cat /etc/os-release; echo two >> file");
        assert!(seen.run().ok().text().contains("git version"));
        assert_eq!(lab.diff("s")["changes"][0]["path"], "file");
        // The same image, from skep's own store.
        for provider in ["oci:runc", "oci:runsc", "microvm"] {
            let line = ["run", "--name", "o", "--provider", provider, "--image", "small/agent:1"];
            let call = lab.skep(line).args(["--", "sh", "-c", "git --version; echo two >> file"]);
            let ran = call.env("SKEP_MICROVM_EMULATION", "1").within(240).run().ok();
            assert!(ran.text().contains("git version"), "{provider}");
            assert_eq!(lab.diff("o")["digest"], lab.diff("s")["digest"], "{provider}");
            lab.skep(["rm", "--discard", "o"]).run().ok();
        }
    });
}

/// A whole system of its own: busybox, and nothing of the host's.
#[test]
fn a_sandbox_shows_the_system_of_its_image() {
    super::for_both(|lab, engine| {
        let tree = engine.place().join(format!("system-{}", lab.who.ids().0));
        fs::create_dir_all(tree.join("bin")).unwrap();
        fs::create_dir_all(tree.join("etc")).unwrap();
        fs::write(tree.join("etc/only-here"), "in the image\n").unwrap();
        fs::copy("/bin/busybox", tree.join("bin/busybox")).unwrap();
        for name in ["sh", "cat", "ls", "touch"] {
            std::os::unix::fs::symlink("busybox", tree.join("bin").join(name)).unwrap();
        }
        let tree = tree.display().to_string();
        lab.skep(["image", "import", &tree, "small:1"]).run().ok();
        lab.write("file", "one\n");
        let script = "cat /etc/only-here; ls /usr; echo two >> file; touch /etc/x; cat file";
        let ran = super::run(lab, &["--name", "s", "--image", "small:1"], script).run().ok();
        assert_eq!(ran.text(), "in the image\none\ntwo");
        assert!(ran.errors().contains("Read-only file system"), "{}", ran.errors());
        assert_eq!(lab.diff("s")["changes"][0]["path"], "file");
        // The same work without the image has the same digest.
        lab.skep(["run", "--name", "t", "--", "sh", "-c", "echo two >> file"]).run().ok();
        assert_eq!(lab.diff("s")["digest"], lab.diff("t")["digest"]);
        // Providers without images refuse it, and so does one that cannot find it.
        lab.skep(["create", "--image", "small:1"]).run().exits(5);
        let absent = ["create", "--provider", "docker", "--image", "localhost:1/absent:1"];
        lab.skep(absent).run().exits(1);
        lab.skep(["rm", "--discard", "s"]).run().ok();
        lab.skep(["image", "rm", "small:1"]).run().ok();
    });
}
