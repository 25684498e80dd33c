//! Which directories can be projects: any name, but no unsafe place.

use crate::harness::{Lab, Tree, Who, for_both, for_each};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Names that a mount option string, a shell or a text format would trip over.
const NAMES: [&[u8]; 13] = [
    b"with space",
    b"colon:in:it",
    b"comma,in,it",
    b"back\\slash",
    b"new\nline",
    b"non-utf8-\xff\xfe",
    b",lowerdir=,upperdir=",
    b"x,lowerdir=/etc:y",
    b"-dash",
    b"quote'\"$(touch escaped)`",
    b"\xe2\x80\xaebidi\x1b[2J",
    b"%s%n\\072\\x2c",
    b"tab\tstar*?[a]",
];

/// A change, looked at, approved; the project is the directory itself.
#[track_caller]
fn whole_path(lab: &Lab, project: &Path) {
    let run = |line: &[&str]| lab.skep(line).directory(project).run();
    run(&["run", "--name", "s", "--", "sh", "-c", "cat a && pwd && echo b > b && rm a"]).ok();
    assert!(project.join("a").exists() && !project.join("b").exists());
    let diff = run(&["diff", "s", "--json"]).ok().json();
    assert_eq!(diff["changes"].as_array().unwrap().len(), 2, "{diff}");
    run(&["approve", "s"]).ok();
    assert!(!project.join("a").exists());
    assert_eq!(fs::read(project.join("b")).unwrap(), b"b\n");
    run(&["rm", "s"]).ok();
}

#[test]
fn fs_12_any_name_of_a_project_works() {
    for_both(|lab| {
        for name in NAMES {
            let project = lab.root.join("projects").join(OsStr::from_bytes(name));
            lab.write(project.join("a"), "a\n");
            println!("{project:?}");
            whole_path(lab, &project);
            // The command does run at that very path.
            let line = ["run", "--", "pwd"];
            let ran = lab.skep(line).directory(&project).run().ok();
            let expected = [project.as_os_str().as_bytes(), b"\n"].concat();
            assert_eq!(ran.stdout, expected, "{}", ran.describe());
        }
        let left = lab.root.join("projects");
        assert!(!Tree::read(&left).nodes.keys().any(|path| path.ends_with("escaped")));
    });
}

#[test]
fn fs_12_a_long_path_works() {
    for_both(|lab| {
        // Longer than a mount option string may be, within what a path may be.
        let part = "p".repeat(200);
        let deep = (0..15).fold(lab.root.clone(), |path, _| path.join(&part));
        lab.write(deep.join("a"), "a\n");
        whole_path(lab, &deep);
    });
}

#[test]
fn fs_12_a_project_named_through_a_link_is_its_real_directory() {
    for_both(|lab| {
        lab.write("a", "a\n");
        let link = lab.root.join("link");
        symlink(&lab.project, &link).unwrap();
        lab.skep(["create", "s", "--project", link.to_str().unwrap()]).run().ok();
        assert_eq!(lab.sandbox("s")["project"], lab.project.to_str().unwrap());
    });
}

#[test]
fn fs_12_a_project_swapped_after_create_is_not_written() {
    for_both(|lab| {
        lab.write("a", "a\n");
        lab.skep(["run", "--name", "s", "--", "sh", "-c", "echo b > a"]).run().ok();
        let away = lab.root.join("away");
        fs::rename(&lab.project, &away).unwrap();
        lab.write("a", "another project\n");
        let (before, before_away) = (lab.tree(), Tree::read(&away));
        let ran = lab.skep(["approve", "s"]).run();
        assert_eq!(ran.code(), 4, "{}", ran.describe());
        lab.tree().assert_equals(&before, "the swapped project was written");
        Tree::read(&away).assert_equals(&before_away, "the project that was moved away");
        // Brought back, it can be approved: the work is not lost.
        fs::remove_dir_all(&lab.project).unwrap();
        fs::rename(&away, &lab.project).unwrap();
        lab.skep(["approve", "s"]).run().ok();
        assert_eq!(lab.tree().get("a").unwrap().bytes, b"b\n");
    });
}

#[test]
fn fs_12_unsafe_projects_are_refused() {
    for_both(|lab| {
        lab.create("s");
        lab.skep(["rm", "s"]).run().ok();
        lab.directory(lab.state.join("below"));
        let unsafe_ones =
            [Path::new("/"), &lab.home, &lab.state, &lab.state.join("below"), &lab.root];
        for project in unsafe_ones {
            for line in [&["create", "--json"][..], &["run", "--json", "--", "true"]] {
                let named = lab.skep([line[0], "--project", project.to_str().unwrap()]);
                let ran = lab.without_effect(named.args(&line[1..]));
                assert_eq!(ran.code(), 5, "{}", ran.describe());
                assert!(!ran.problem()["hint"].is_null());
                let here = lab.skep(line).directory(project);
                assert_eq!(lab.without_effect(here).code(), 5, "from {project:?}");
            }
        }
        fs::remove_dir(lab.state.join("below")).unwrap();
    });
}

#[test]
fn fs_12_a_project_that_is_none_is_refused() {
    for_both(|lab| {
        let file = lab.write("file", "x");
        for (project, code) in [(file.to_str().unwrap(), 2), ("/nowhere/at/all", 3)] {
            let ran = lab.without_effect(lab.skep(["create", "--json", "--project", project]));
            assert_eq!(ran.code(), code, "{}", ran.describe());
        }
    });
}

#[test]
fn a_state_directory_inside_the_project_is_refused() {
    for_both(|lab| {
        lab.write("a", "a");
        let before = lab.tree();
        let state = lab.project.join("state");
        let ran = lab.skep(["run", "--json", "--", "true"]).env("SKEP_HOME", &state).run();
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        lab.tree().assert_equals(&before, "the refused state directory was made");
    });
}

/// Whatever the command: where there is none yet, none is made in a project. One that is there can
/// still be looked at, from wherever one stands.
#[test]
fn no_command_makes_a_state_directory_in_a_project() {
    for_both(|lab| {
        lab.write("a", "a");
        lab.directory("sub");
        let inside = |line: &[&str]| lab.skep(line).env("SKEP_HOME", lab.project.join("x/y"));
        for line in [&["ls"][..], &["gc"], &["stats"], &["token", "ls"], &["image", "kernel"]] {
            let from_below = inside(line).directory(lab.project.join("sub"));
            // Below a directory without a marker, the project is where one stands.
            from_below.env("SKEP_HOME", lab.project.join("sub/x")).run().exits(5).says("hint");
            inside(line).run().exits(5).says("it would lie in the project");
        }
        // Nor in a directory that is there already, empty or not, nor in the project itself.
        lab.write("full/b", "b");
        lab.own_below(&lab.project);
        let before = lab.tree();
        for place in ["sub", "full", "."] {
            let ran = lab.skep(["ls"]).env("SKEP_HOME", lab.project.join(place)).run();
            ran.exits(5).says("it would lie in the project");
        }
        fs::remove_dir_all(lab.project.join("full")).unwrap();
        lab.tree().assert_equals(&before.without("full"), "something was made");
        // From elsewhere: known by its marker.
        lab.write("skep.toml", "");
        let before = lab.tree();
        inside(&["ls"]).directory(&lab.home).run().exits(5).says("it would lie in the project");
        lab.tree().assert_equals(&before, "something was made");
        fs::remove_file(lab.project.join("skep.toml")).unwrap();
        // The control, and what is there already.
        inside(&["ls"]).directory(&lab.home).run().ok();
        inside(&["ls"]).run().ok();
        inside(&["run", "--", "true"]).run().exits(5);
        fs::remove_dir_all(lab.project.join("x")).unwrap();
    });
}

/// A directory that holds other things is not taken over, and its bits stay as they are.
#[test]
fn no_command_makes_a_state_directory_of_one_that_is_used() {
    use std::os::unix::fs::PermissionsExt as _;
    for_both(|lab| {
        let place = lab.root.join("etc");
        lab.write(place.join("passwd"), "a");
        lab.own_below(&place);
        let closed = || fs::metadata(&place).unwrap().permissions().mode() & 0o7777;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
        for line in [&["ls"][..], &["stats"], &["gc"]] {
            let ran = lab.skep(line).env("SKEP_HOME", &place).directory(&lab.home).run();
            ran.exits(5).says("holds other things");
        }
        assert_eq!(closed(), 0o755);
        assert_eq!(fs::read_dir(&place).unwrap().count(), 1);
        // Control: an empty one is taken, and closed.
        fs::remove_file(place.join("passwd")).unwrap();
        lab.skep(["ls"]).env("SKEP_HOME", &place).directory(&lab.home).run().ok();
        assert_eq!(closed(), 0o700);
    });
}

#[test]
fn a_project_inside_any_state_directory_is_refused() {
    for_both(|lab| {
        lab.write("a", "a");
        let other = lab.root.join("other");
        let elsewhere = |line: &[&str]| lab.skep(line).env("SKEP_HOME", &other);
        elsewhere(&["run", "--name", "s", "--", "sh", "-c", "mkdir d; echo n > d/n"]).run().ok();
        let mut sandboxes = fs::read_dir(other.join("sandboxes")).unwrap();
        let upper = sandboxes.next().unwrap().unwrap().path().join("upper");
        let before = Tree::read(&upper);
        for project in [&upper.join("d"), &upper, &other.join("layers"), &other] {
            for line in [&["create", "--json"][..], &["run", "--json", "--", "true"]] {
                let ran = lab.without_effect(lab.skep(line).directory(project));
                assert_eq!(ran.code(), 5, "{project:?}: {}", ran.describe());
                let problem = ran.problem();
                assert!(problem["message"].to_string().contains("skep's state"), "{problem}");
                assert!(!problem["hint"].is_null(), "{problem}");
            }
        }
        Tree::read(&upper).assert_equals(&before, "the other's work");
        elsewhere(&["rm", "--discard", "s"]).run().ok();
    });
}

/// This machine's kernel has no network filesystem. So the answer of `statfs` is exchanged on its way,
/// all else is real. That FUSE is refused is tried on a real one.
#[test]
fn a_state_directory_on_a_network_filesystem_is_refused_before_anything_is_made() {
    let kinds =
        [("NFS", 0x6969_u64), ("SMB", 0xfe53_4d42), ("CIFS", 0xff53_4d42), ("9p", 0x0102_1997)];
    for_both(|lab| {
        let state = lab.root.join("far/state");
        for (name, number) in kinds {
            let bytes: String = number.to_le_bytes().iter().map(|b| format!("{b:02x}")).collect();
            let inject = format!("inject=statfs:poke_exit=@arg2={bytes}");
            let line = ["-f", "-o", "/dev/null", "-e", "trace=statfs", "-e", &inject];
            let call = lab.program("strace").args(line).arg(&lab.binary).arg("ls");
            let ran = call.env("SKEP_HOME", &state).run().exits(5);
            ran.says(&format!("it lies on {name}; a local filesystem is needed")).says("hint");
            assert!(!lab.root.join("far").exists(), "{name}: something was made");
        }
        let plain = ["-f", "-o", "/dev/null", "-e", "trace=statfs"];
        let control = lab.program("strace").args(plain).arg(&lab.binary).arg("ls");
        control.env("SKEP_HOME", &state).run().ok();
        assert!(state.join("skep.db").exists());
    });
}

#[test]
fn fs_12_a_mount_inside_the_project_is_not_crossed_and_is_said() {
    for_each([Who::root()], |lab| {
        lab.write("a", "a\n");
        lab.directory("sub");
        let script = format!(
            "mount -t tmpfs none sub && echo secret > sub/inside && \
             {skep} run --name s -- sh -c 'cat sub/inside; mkdir sub; echo x > sub/y; echo b > a; true' && \
             {skep} diff s --json && {skep} approve s a >&2 && cat a >&2 && ls sub >&2",
            skep = lab.binary.display()
        );
        let line = ["--mount", "--propagation", "private", "sh", "-c", &script];
        let ran = lab.program("unshare").args(line).run().ok();
        assert!(!ran.text().contains("secret"), "{}", ran.describe());
        // The path is a conflict with its reason; everything else can be reviewed and approved.
        let diff = ran.json();
        let conflicts = diff["conflicts"].as_array().unwrap();
        assert!(conflicts.iter().any(|one| one["path"] == "sub/y"), "{diff}");
        let warnings = diff["warnings"].to_string();
        assert!(warnings.contains("sub"), "the mount is not listed: {diff}");
        assert!(ran.errors().contains("b\ninside\n"), "{}", ran.describe());
    });
}

#[test]
fn a_planted_marker_does_not_capture_the_project() {
    for_both(|lab| {
        // In the home, and in a directory that anybody may write.
        lab.directory(lab.home.join("work/sub"));
        let marker = lab.directory(lab.home.join(".git"));
        let here = lab.home.join("work/sub");
        lab.skep(["create", "s"]).directory(&here).run().ok();
        assert_eq!(lab.sandbox("s")["project"], here.to_str().unwrap());
        fs::remove_dir(marker).unwrap();
        lab.directory(lab.home.join("work/.git"));
        lab.skep(["create", "t"]).directory(&here).run().ok();
        assert_eq!(lab.sandbox("t")["project"], lab.home.join("work").to_str().unwrap());
        for name in ["s", "t"] {
            lab.skep(["rm", name]).run().ok();
        }
        fs::remove_dir_all(lab.home.join("work")).unwrap();
    });
}

/// Whether the system can be written is tried in places that are nobody's project.
#[test]
fn a_directory_of_the_system_as_project_has_nothing_of_ours_in_it() {
    for_both(|lab| {
        lab.skep(["run", "--project", "/etc", "--", "true"]).run().ok().says("no changes");
        let script = "test ! -e /etc/.skep-probe && touch /etc/new && ! touch /usr/new";
        let ran = lab.skep(["run", "--project", "/etc", "--json", "--", "sh", "-c", script]).run();
        assert_eq!(ran.ok().json()["enforcement"]["filesystem"]["enforced"], true);
    });
}
