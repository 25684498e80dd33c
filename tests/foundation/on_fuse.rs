//! A project, and a state directory, on a filesystem that a program serves.

use crate::harness::{Tree, for_both, skip};
use std::fs;

/// In a mount namespace of its own, as the caller: the project is served by fuse-overlayfs, worked on,
/// reviewed, applied and undone. `$1` is the lab's place, `$2` the program.
const STORY: &str = r#"
cd "$1"
skep=$2
fuse-overlayfs -o lowerdir=below,upperdir=above,workdir=work project
cd project
stat -f -c %T . > ../filesystem
"$skep" run --name s -- sh -ec 'echo more >> a; rm d/b; echo n > d/new; mkdir e; echo x > e/x; mv c moved; ln -s a l'
"$skep" show s --json > ../shown
"$skep" diff s --json > ../diff
cp -a . ../untouched
"$skep" approve s
cp -a . ../applied
"$skep" undo
cp -a . ../undone
"$skep" create t
echo host >> a
"$skep" exec t -- sh -c 'echo inside >> a'
if "$skep" approve t; then echo "the host's line was overwritten"; exit 9; fi
grep -q host a
"$skep" rm --discard t
mkdir state
chmod 700 state
cd ../elsewhere
code=0
SKEP_HOME=$1/project/state "$skep" create z 2> ../refused || code=$?
echo $code >> ../refused
cd ..
fusermount3 -u project
"#;

#[test]
fn fs_12_a_project_on_fuse_is_worked_on_and_a_state_directory_there_is_refused() {
    for_both(|lab| {
        let below = lab.root.join("below");
        for name in ["a", "c", "d/b"] {
            lab.write(below.join(name), format!("{name} of the project\n"));
        }
        for name in ["above", "work", "elsewhere"] {
            lab.directory(lab.root.join(name));
        }
        let plain = Tree::read(&below);
        let call = match lab.shell_with_fuse(STORY) {
            Ok(call) => call.arg(&lab.root).arg(&lab.binary),
            Err(reason) => return skip(&reason),
        };
        call.within(120).run().ok();
        let read = |name: &str| fs::read_to_string(lab.root.join(name)).unwrap();
        let json = |name: &str| -> serde_json::Value { serde_json::from_str(&read(name)).unwrap() };
        assert_eq!(read("filesystem"), "fuseblk\n", "the project is on FUSE");
        // Started by root the owners cannot be mapped there, so that a copy has to do, and is said.
        let shown = json("shown");
        let driver = if lab.who.is_root() { "copy" } else { "overlay-userns" };
        assert_eq!(shown["driver"], driver, "{shown}");
        let diff = json("diff");
        let kinds = diff["changes"].as_array().unwrap().iter();
        let kinds: Vec<_> = kinds
            .map(|one| (one["path"].as_str().unwrap(), one["kind"].as_str().unwrap()))
            .collect();
        let wanted = [
            ("a", "modified"),
            ("d/b", "deleted"),
            ("d/new", "added"),
            ("e/x", "added"),
            ("l", "added"),
            ("moved", "renamed"),
        ];
        assert_eq!(kinds, wanted);
        // The same work in a plain copy is the oracle.
        let copy = lab.root.join("oracle");
        lab.program("cp").args(["-a"]).arg(&below).arg(&copy).run().ok();
        let work =
            "echo more >> a; rm d/b; echo n > d/new; mkdir e; echo x > e/x; mv c moved; ln -s a l";
        lab.program("sh").args(["-ec", work]).directory(&copy).run().ok();
        let tree = |name: &str| Tree::read(&lab.root.join(name));
        tree("untouched").assert_equals(&plain, "nothing was approved yet");
        tree("applied").assert_equals(&tree("oracle"), "applied");
        tree("undone").assert_equals(&plain, "undone");
        let refused = read("refused");
        assert!(refused.contains("FUSE") && refused.ends_with("5\n"), "{refused}");
    });
}
