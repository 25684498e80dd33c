//! Images that are not here: fetched from a registry, once, with progress.

use super::for_both;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A registry of this host with the image `small:1`.
struct Registry {
    process: Child,
    /// `localhost:PORT/small`.
    name: String,
    /// `sha256:…` of the image.
    digest: String,
}

impl Registry {
    fn of(tree: &Path) -> Self {
        let script = include_str!("registry.py");
        let mut command = Command::new("/usr/bin/python3");
        command.arg("-c").arg(script).arg(tree).stdout(Stdio::piped()).stdin(Stdio::null());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (port, digest) = line.trim().split_once(' ').unwrap();
        Self { name: format!("localhost:{port}/small"), digest: digest.to_owned(), process }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// By name and by digest, typed or in the settings; and what is here is not fetched again.
#[test]
fn an_image_that_is_missing_is_fetched_with_progress_and_once() {
    for_both(|lab, engine| {
        let tree = crate::providers::images::tree(lab, "small");
        let registry = Registry::of(&tree);
        let by_name = format!("{}:1", registry.name);
        let by_digest = format!("{}@{}", registry.name, registry.digest);
        for reference in [&by_name, &by_digest] {
            let line = [
                "run",
                "--provider",
                "docker",
                "--image",
                reference,
                "--",
                "cat",
                "/etc/only-here",
            ];
            let ran = lab.skep(line).within(60).run().ok().says("Downloaded newer image");
            assert_eq!(ran.text(), "in the image");
            lab.skep(line).within(60).run().ok().says_not("Download");
            lab.skep(["image", "rm", reference]).run().ok();
            let left: Value = lab.skep(["image", "ls", "--json"]).run().ok().json();
            assert!(!left.to_string().contains(&registry.name), "{left}");
        }
        // Which provider it is for may stand in the settings.
        let line = ["run", "--image", &by_name, "--", "cat", "/etc/only-here"];
        let set = lab.skep(line).env("SKEP_PROVIDER_NAME", "docker").within(60).run().ok();
        assert_eq!(set.says("Downloaded newer image").text(), "in the image");
        engine.ask(&["rmi", &by_name]);
        let other = format!("{}:2", registry.name);
        let line = ["run", "--provider", "docker", "--image", &other, "--", "true"];
        let refused = lab.skep(line).within(60).run().exits(125).says("could not fetch the image");
        refused.says("skep image import");
    });
}
