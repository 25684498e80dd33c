//! What a new user does first.

use crate::harness::for_both;

#[test]
fn run_diff_approve_brings_exactly_the_reviewed_change() {
    for_both(|lab| {
        lab.write("a.txt", "one\n");
        let before = lab.tree();
        lab.skep(["run", "--name", "s", "--", "sh", "-c", "echo two > b.txt"]).run().ok();
        lab.tree().assert_equals(&before, "the project was changed without an approval");
        let diff = lab.diff("s");
        assert_eq!(diff["changes"].as_array().unwrap().len(), 1, "{diff}");
        assert_eq!(diff["changes"][0]["path"], "b.txt");
        assert_eq!(diff["changes"][0]["kind"], "added");
        let digest = diff["digest"].as_str().unwrap();
        lab.skep(["approve", "s", "--digest", digest]).run().ok();
        assert_eq!(lab.tree().get("b.txt").unwrap().bytes, b"two\n");
        assert_eq!(lab.tree().without("b.txt").differences(&before), Vec::<String>::new());
    });
}
