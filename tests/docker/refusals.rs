//! What cannot be had is refused, with the reason.

use super::{for_both, lab, run};
use crate::harness::{Docker, Who};

#[test]
fn engines_elsewhere_and_engines_that_are_not_there_are_refused() {
    crate::harness::for_both(|lab| {
        let with = |host: &str| run(lab, &[], "true").env("DOCKER_HOST", host).run().exits(5);
        let refused = with("tcp://127.0.0.1:2375");
        assert!(refused.errors().contains("without TLS"), "{}", refused.errors());
        // skep's own images need no engine.
        let listed = lab.skep(["image", "ls"]).env("DOCKER_HOST", "ssh://elsewhere").run().ok();
        listed.says("cannot be used");
        let refused = with("unix:///nowhere/docker.sock");
        assert!(refused.errors().contains("no Docker engine answers"), "{}", refused.errors());
        assert!(refused.errors().contains("DOCKER_HOST="), "{}", refused.errors());
        let create = lab.skep(["create", "--provider", "docker"]);
        create.env("DOCKER_HOST", "ssh://elsewhere").run().exits(5);
        lab.audit_leftovers();
    });
}

#[test]
fn what_a_container_cannot_do_is_refused_and_leaves_nothing() {
    for_both(|lab, engine| {
        lab.directory("part/of/it");
        for flags in [
            ["--net", "host"],
            ["--system", "cow"],
            ["--publish", "8080"],
            ["--scope", "part"],
            ["--require", "kernel"],
        ] {
            let create = lab.skep(["create", "--provider", "docker"]).args(flags).run();
            assert_eq!(create.code(), 5, "{flags:?}: {}", create.errors());
        }
        engine.assert_empty();
    });
}

#[test]
fn it_is_listed_with_what_it_can_do() {
    let Some(engine) = Docker::start() else { return };
    let lab = lab(Who::root().unwrap(), &engine);
    let listed = lab.skep(["providers", "--json"]).run().ok().json();
    let docker = listed.as_array().unwrap().iter().find(|one| one["name"] == "docker").unwrap();
    assert_eq!(docker["ok"], true, "{docker}");
    let doctor = lab.skep(["doctor", "--json"]).run().text();
    assert!(doctor.contains("docker"), "{doctor}");
}

/// Containers have the host's ids: nobody is root in them who is not root outside.
#[test]
fn another_user_than_the_callers_is_refused() {
    for_both(|lab, _| {
        let ran = run(lab, &["--user", "root"], "id -u").within(60).run();
        match lab.who.is_root() {
            true => assert_eq!(ran.ok().text(), "0"),
            false => drop(ran.exits(5).says("--user root")),
        }
    });
}

/// The client writes a reference into the path of its request.
#[test]
fn a_reference_reaches_images_and_nothing_else() {
    for_both(|lab, engine| {
        run(lab, &[], "true").within(60).run().ok();
        let image = engine.ask(&["images", "--quiet", "skep/host-view"]);
        let image = image.lines().next().unwrap().to_owned();
        engine.ask(&["create", "--name", "foreign", &image, "/bin/sh"]);
        engine.ask(&["volume", "create", "theirs"]);
        for reference in [
            "../containers/foreign?force=true&x=",
            "../volumes/theirs",
            "a/../../volumes/theirs",
            "",
        ] {
            lab.skep(["image", "rm", reference]).run().exits(2).says("is no image");
            let line = ["run", "--provider", "docker", "--image", reference, "--", "true"];
            lab.skep(line).run().exits(2);
        }
        let left = engine.ask(&["ps", "--all", "--format", "{{.Names}}"]);
        assert!(left.contains("foreign"), "{left}");
        assert!(engine.ask(&["volume", "ls", "--quiet"]).contains("theirs"));
        engine.ask(&["rm", "foreign"]);
        engine.ask(&["volume", "rm", "theirs"]);
    });
}
