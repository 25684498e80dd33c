//! The same work gives the same change set, wherever it was done.

use super::{ALL, for_all, run};
use crate::harness::{EVERY_KIND, for_both, plant_every_kind};

#[test]
fn diff_1_the_same_work_has_the_same_digest_on_every_provider() {
    for_both(|lab| {
        plant_every_kind(lab);
        let before = lab.tree();
        let (mut reference, mut special) = (None, None);
        for provider in ALL {
            let name = provider.replace(':', "-");
            let ran = run(lab, provider, &["--name", &name], EVERY_KIND).run();
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
        plant_every_kind(lab);
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
