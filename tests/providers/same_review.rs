//! The same work gives the same change set, wherever it was done.

use super::{ALL, for_all, run};
use crate::harness::{Lab, for_both};

/// Every kind that a path can be turned from and into, in the root and below.
const WORK: &str = r#"
set -e
echo new > added; : > empty; mkdir -p nested/deep; echo z > nested/deep/z; mkdir bare
echo more >> text; printf '\0\1bin' > text.bin
rm gone; rm -r tree; mkdir tree; echo other > tree/other
chmod 755 plain; chmod 644 runs
rm link; ln -s tree link; rm swap; mkdir swap; echo in > swap/in
rm -r turned; echo file > turned; rm -r pointed; ln -s text pointed
mv moved renamed
"#;

fn project(lab: &Lab) {
    for name in
        ["text", "gone", "plain", "swap", "tree/one", "tree/two/three", "turned/x", "pointed/y"]
    {
        lab.write(name, format!("{name}\none\ntwo\nthree\n"));
    }
    lab.write("moved", "a file that keeps its content\nwhen it is renamed\n");
    lab.write("runs", "#!/bin/sh\n");
    let script = "chmod 755 runs; ln -s text link";
    lab.program("sh").args(["-c", script]).directory(&lab.project).run().ok();
}

#[test]
fn diff_1_the_same_work_has_the_same_digest_on_every_provider() {
    for_both(|lab| {
        project(lab);
        let before = lab.tree();
        let (mut reference, mut special) = (None, None);
        for provider in ALL {
            let name = provider.replace(':', "-");
            let ran = run(lab, provider, &["--name", &name], WORK).run();
            if ran.code() == 125 && ran.errors().contains("does not work here") {
                crate::harness::skip(&ran.errors());
                continue;
            }
            ran.ok();
            let digest = |more: &str| {
                let diff = lab.diff(&name);
                let digest = diff["digest"].as_str().unwrap().to_owned();
                (digest, format!("{provider}{more}: {diff}"))
            };
            let (found, shown) = digest("");
            let reference = reference.get_or_insert_with(|| found.clone());
            assert_eq!(*reference, found, "{shown}");
            // gVisor keeps what is no file, directory or link to itself: the review never sees it.
            lab.exec_script(&name, "mkfifo pipe").run().ok();
            let (found, shown) = digest(" with a pipe");
            let special = special.get_or_insert_with(|| found.clone());
            match provider {
                "oci:runsc" => assert_eq!(*reference, found, "{shown}"),
                _ => assert_eq!(*special, found, "{shown}"),
            }
        }
        lab.tree().assert_equals(&before, "the project");
    });
}

#[test]
fn what_was_done_elsewhere_is_approved_and_undone_the_same_way() {
    for_all(|lab, provider| {
        project(lab);
        let before = lab.tree();
        run(lab, provider, &["--name", "s"], "echo more >> text; rm gone; echo n > new").run().ok();
        lab.skep(["approve", "s"]).run().ok();
        assert_eq!(std::fs::read_to_string(lab.project.join("new")).unwrap(), "n\n");
        assert!(!lab.project.join("gone").exists());
        lab.skep(["undo"]).run().ok();
        lab.tree().assert_equals(&before, "the project");
        // Rejecting goes through the mounted view of whoever made it.
        lab.skep(["exec", "s", "--", "true"]).run().ok();
        lab.skep(["reject", "s", "text"]).run().ok();
        let seen = lab.exec_script("s", "tail -n 1 text").run().ok().text();
        assert_eq!(seen, "three", "{provider}");
    });
}
