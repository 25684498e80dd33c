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
