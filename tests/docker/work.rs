//! The same work has the same review as on the host.

use super::{for_both, lab, run};
use crate::foundation::another;
use crate::harness::{Docker, EVERY_KIND, Who, plant_every_kind, skip};

#[test]
fn diff_1_the_same_work_has_the_same_digest_in_a_container() {
    for_both(|lab, _| {
        plant_every_kind(lab);
        let matrix = crate::foundation::change_matrix::plant(lab);
        let before = lab.tree();
        let work = format!("{EVERY_KIND}mkfifo pipe\n{matrix}");
        lab.skep(["run", "--name", "here", "--", "sh", "-c", &work]).run().ok();
        run(lab, &["--name", "there"], &work).run().ok();
        let (here, there) = (lab.diff("here"), lab.diff("there"));
        assert_eq!(here["digest"], there["digest"], "{here}\n{there}");
        lab.tree().assert_equals(&before, "the project");
    });
}

#[test]
fn what_was_done_in_a_container_is_approved_rejected_and_undone() {
    for_both(|lab, _| {
        plant_every_kind(lab);
        let before = lab.tree();
        run(lab, &["--name", "s"], "echo more >> text; rm gone; echo n > new").run().ok();
        lab.skep(["approve", "s"]).run().ok();
        assert_eq!(std::fs::read_to_string(lab.project.join("new")).unwrap(), "n\n");
        assert!(!lab.project.join("gone").exists());
        lab.skep(["undo"]).run().ok();
        lab.tree().assert_equals(&before, "the project");
        // Rejecting goes through the view that is mounted in the container.
        lab.skep(["exec", "s", "--", "true"]).run().ok();
        lab.skep(["reject", "s", "text"]).run().ok();
        assert_eq!(lab.exec_script("s", "tail -n 1 text").run().ok().text(), "three");
    });
}

#[test]
fn a_sandboxs_own_directory_is_where_commands_start_in_a_container() {
    for_both(|lab, _| {
        let sub = lab.directory("sub");
        let sub = sub.to_str().unwrap();
        lab.skep(["create", "s", "--provider", "docker", "--workdir", "sub"]).run().ok();
        assert_eq!(lab.skep(["exec", "s", "--", "pwd"]).run().ok().text(), sub);
        let named = ["exec", "s", "--workdir", "/tmp", "--", "pwd"];
        assert_eq!(lab.skep(named).run().ok().text(), "/tmp");
        lab.skep(["exec", "s", "--workdir", "/nowhere", "--", "pwd"]).run().exits(125);
    });
}

#[test]
fn fs_1_links_made_in_a_container_lead_no_file_operation_out() {
    for_both(|lab, _| {
        lab.skep(["create", "s", "--provider", "docker"]).run().ok();
        crate::server::files::links_lead_nowhere(lab);
    });
}

/// A path that would be options of the mount, if it were put there.
#[test]
fn a_project_named_like_mount_options_is_only_a_project() {
    for_both(|lab, _| {
        let odd = lab.directory("a,lowerdir=:b c/inner");
        lab.write("a,lowerdir=:b c/inner/file", "one\n");
        let call = lab.skep(["run", "--name", "s", "--provider", "docker", "--project"]).arg(&odd);
        call.directory(&odd).args(["--", "sh", "-c", "echo two >> file"]).run().ok();
        let diff = lab.diff("s");
        assert_eq!(diff["changes"][0]["path"], "file", "{diff}");
        assert_eq!(std::fs::read_to_string(odd.join("file")).unwrap(), "one\n");
    });
}

#[test]
fn hidden_files_stay_hidden_and_layers_are_seen() {
    for_both(|lab, _| {
        lab.write(".env", "TOKEN=canary-of-the-project\n");
        lab.write("file", "one\n");
        let seen = run(lab, &["--name", "s"], "cat .env 2>/dev/null; echo two >> file; cat file");
        assert_eq!(seen.run().ok().text(), "one\ntwo");
        if lab.skep(["show", "s", "--json"]).run().ok().json()["driver"] == "copy" {
            return;
        }
        lab.skep(["snapshot", "s", "first"]).run().ok();
        let seen = lab.exec_script("s", "echo three >> file; cat file").run().ok().text();
        assert_eq!(seen, "one\ntwo\nthree");
        lab.skep(["restore", "s", "first"]).run().ok();
        assert_eq!(lab.exec_script("s", "cat file").run().ok().text(), "one\ntwo");
    });
}

#[test]
fn root_works_in_anothers_project_in_a_container() {
    let Ok(user) = Who::user() else { return skip("no ordinary user can be had") };
    let Some(engine) = Docker::start() else { return };
    let lab = lab(Who::root().unwrap(), &engine);
    plant_every_kind(&lab);
    another::give(&lab.project, user.ids());
    another::work_is_the_owners(&lab, "s", |script| run(&lab, &["--name", "s"], script));
    lab.audit();
    engine.assert_empty();
}
