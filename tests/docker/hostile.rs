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
pub(crate) fn plant_library(tree: &Path) {
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

/// Removes what a test has put into the host's settings.
struct InSettings(std::path::PathBuf);

impl Drop for InSettings {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A cover over a single file is gone when somebody outside moves another into its place, as `passwd`
/// and `docker login` do.
#[test]
fn secrets_that_are_written_anew_outside_are_not_seen() {
    for_both(|lab, _| {
        crate::isolation::mounts::plant_docker_settings(lab);
        let root = lab.who.is_root();
        let name = format!("/etc/.skep-test-{}", std::process::id());
        let planted = InSettings(name.into());
        let plant = || {
            let new = InSettings(planted.0.with_extension("new"));
            std::fs::write(&new.0, "planted for root alone\n").unwrap();
            std::fs::set_permissions(&new.0, std::os::unix::fs::PermissionsExt::from_mode(0o600))
                .unwrap();
            std::fs::rename(&new.0, &planted.0).unwrap();
        };
        if root {
            plant();
        }
        lab.skep(["create", "s", "--provider", "docker"]).within(120).run().ok();
        let script = format!(
            "cat {} /etc/shadow 2>/dev/null; cd ~/.docker; cat daemon.json contexts/meta; \
             cat config.json 2>/dev/null; grep -c ^root: /etc/passwd",
            planted.0.display()
        );
        for _turn in 0..2 {
            let ran = lab.exec_script("s", &script).run().ok();
            assert_eq!(ran.text(), "plain\nbelow\n1", "{}", ran.describe());
            crate::isolation::mounts::log_in_anew(lab);
            if root {
                plant();
            }
        }
        lab.skep(["rm", "--discard", "s"]).run().ok();
        crate::isolation::mounts::take_docker_settings_away(lab);
    });
}
