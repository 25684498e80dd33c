//! An image is as little trusted as what runs in it: nothing of it is executed without the fences.

use super::{for_both, run};
use crate::harness::{Docker, Lab};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A small system, imported by the engine itself with these lines of a Dockerfile.
fn image(lab: &Lab, engine: &Docker, name: &str, says: &[&str], change: impl Fn(&Path)) {
    let tree = engine.place().join(format!("{name}-{}", lab.who.ids().0));
    for directory in ["bin", "etc", "run"] {
        fs::create_dir_all(tree.join(directory)).unwrap();
    }
    fs::copy("/bin/busybox", tree.join("bin/busybox")).unwrap();
    for tool in ["sh", "cat", "ls", "env"] {
        std::os::unix::fs::symlink("busybox", tree.join("bin").join(tool)).unwrap();
    }
    change(&tree);
    let archive = engine.place().join(format!("{name}.tar"));
    let packed =
        Command::new("tar").arg("-C").arg(&tree).arg("-cf").arg(&archive).arg(".").status();
    assert!(packed.unwrap().success());
    let mut words = vec!["import"];
    words.extend(says.iter().flat_map(|line| ["--change", line]));
    let archive = archive.display().to_string();
    words.extend([archive.as_str(), name]);
    engine.ask(&words);
}

/// A library that leaves a trace wherever it is loaded.
fn plant_library(tree: &Path) {
    let source = tree.join("evil.c");
    let text = "#include <fcntl.h>\n__attribute__((constructor)) static void f(void) \
        { open(\"/tmp/loaded\", O_CREAT | O_WRONLY, 0644); }\n";
    fs::write(&source, text).unwrap();
    let mut compiler = Command::new("gcc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(tree.join("evil.so")).arg(&source);
    assert!(compiler.status().unwrap().success());
}

#[test]
fn nothing_of_an_image_is_loaded_into_init_or_run_beside_it() {
    for_both(|lab, engine| {
        let says = ["ENV LD_PRELOAD=/evil.so", "HEALTHCHECK --interval=1s CMD /bin/sh -c :"];
        image(lab, engine, "preloads", &says, plant_library);
        image(lab, engine, "lists", &[], |tree| {
            plant_library(tree);
            fs::write(tree.join("etc/ld.so.preload"), "/evil.so\n").unwrap();
        });
        for name in ["preloads", "lists"] {
            let flags = ["--provider", "docker", "--image", name];
            lab.skep(["create", name]).args(flags).run().ok();
            let seen = lab.exec_script(name, "ls /tmp; env").run().ok().text();
            assert!(!seen.contains("loaded") && !seen.contains("evil"), "{name}: {seen}");
            let [container] = &engine.containers()[..] else { panic!("{:?}", engine.containers()) };
            let asked: Value = serde_json::from_str(&engine.ask(&["inspect", container])).unwrap();
            assert_eq!(asked[0]["Config"]["Healthcheck"]["Test"][0], "NONE", "{name}");
            assert_eq!(asked[0]["State"]["Health"], Value::Null, "{name}");
            lab.skep(["rm", "--discard", name]).run().ok();
        }
        // The control: where nobody clears it, the engine does run the check and set the variable.
        let plain = engine.ask(&["create", "preloads", "/bin/sh"]);
        let asked: Value = serde_json::from_str(&engine.ask(&["inspect", &plain])).unwrap();
        assert_eq!(asked[0]["Config"]["Env"][0], "LD_PRELOAD=/evil.so");
        assert_eq!(asked[0]["Config"]["Healthcheck"]["Test"][0], "CMD-SHELL");
        engine.ask(&["rm", &plain]);
        engine.ask(&["rmi", "preloads", "lists"]);
    });
}

#[test]
fn images_that_could_write_elsewhere_or_exchange_init_are_refused() {
    for_both(|lab, engine| {
        let link = |from: &'static str| {
            let to = lab.project.clone();
            move |tree: &Path| {
                let _ = fs::remove_dir(tree.join(from));
                std::os::unix::fs::symlink(&to, tree.join(from)).unwrap();
            }
        };
        image(lab, engine, "volume", &["VOLUME /data"], |_| {});
        image(lab, engine, "run", &[], link("run"));
        image(lab, engine, "preload", &[], link("etc/ld.so.preload"));
        let refused = run(lab, &["--image", "volume"], "true").run().exits(2);
        assert!(refused.errors().contains("a volume at `/data`"), "{}", refused.errors());
        // While it looks, the engine makes the places of mounts, as root: where a link leads into a
        // user's copy, what it made there is left to root (docs/design/docker.md).
        let links: &[&str] = if lab.who.is_root() { &["run", "preload"] } else { &[] };
        for &name in links {
            let refused = run(lab, &["--image", name], "true").run();
            // Or the engine itself cannot put a file in its place.
            let said = refused.errors();
            let is_why = said.contains("is a link") || said.contains("could not look at");
            assert!(refused.code() == 5 && is_why, "{name}: {said}");
        }
        engine.assert_empty();
        engine.ask(&["rmi", "volume", "run", "preload"]);
    });
}

#[test]
fn proc_4_to_12_a_hundred_ways_out_are_shut_in_a_container() {
    for_both(|lab, _| crate::providers::attacks::assert_as_said(lab, "docker"));
}
