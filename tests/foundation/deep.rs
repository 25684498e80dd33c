//! Trees that nobody could make by typing.

use crate::harness::for_both;

const NEST: &str = "
import os
for i in range(450):
    os.mkdir('dddddddd')
    os.chdir('dddddddd')
open('bottom', 'w').write('x')
";

#[test]
fn a_tree_deeper_than_paths_go_does_not_stop_the_review_of_the_rest() {
    for_both(|lab| {
        lab.write("nest.py", NEST);
        let script = "/usr/bin/python3 nest.py && echo n > normal";
        lab.skep(["run", "--name", "s", "--", "sh", "-c", script]).run().ok();
        let diff = lab.diff("s");
        let changes = diff["changes"].as_array().unwrap();
        assert!(changes.iter().any(|change| change["kind"] == "special"), "{changes:?}");
        lab.skep(["approve", "s", "normal"]).run().ok();
        assert_eq!(std::fs::read_to_string(lab.project.join("normal")).unwrap(), "n\n");
        lab.skep(["rm", "--discard", "s"]).run().ok();
    });
}

/// What is too deep to be named goes as a whole, and the rest with it.
#[test]
fn a_tree_deeper_than_paths_go_can_be_rejected() {
    for_both(|lab| {
        lab.write("nest.py", NEST);
        lab.write("a", "a\n");
        // Shut on the way, too: an ordinary user could not even enter it.
        let script =
            "/usr/bin/python3 nest.py && echo n > normal && echo b > a && mkdir d && chmod 0 d";
        for name in ["running", "stopped"] {
            lab.create(name);
            lab.exec_script(name, script).run().ok();
        }
        lab.skep(["stop", "stopped"]).run().ok();
        for name in ["running", "stopped"] {
            lab.skep(["reject", name, "--reason", "too deep"]).run().ok();
            assert_eq!(lab.diff(name)["changes"].as_array().unwrap().len(), 0, "{name}");
            let seen = lab.exec_script(name, "cat a; ls").run().ok().text();
            assert_eq!(seen, "a\na\nnest.py", "{name}");
            lab.skep(["rm", "--discard", name]).run().ok();
        }
    });
}
