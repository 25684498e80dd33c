//! A rejection is told inside.

use super::desk::{hunks, paths};
use crate::harness::{Lab, for_both};
use serde_json::Value;

fn feedback(lab: &Lab) -> Value {
    let ran = lab.skep(["exec", "s", "--", "cat", "/run/skep/feedback.json"]).run().ok();
    ran.json()
}

#[test]
fn reasons_are_readable_inside() {
    for_both(|lab| {
        for up in [true, false] {
            lab.write("a", "a\n");
            lab.write("f", (0..60).map(|n| format!("{n}\n")).collect::<String>());
            let work = "echo x > a; sed -i 's/^10$/x/; s/^50$/y/' f; echo n > n";
            if up {
                lab.up("s");
                lab.inside("s", work);
            } else {
                lab.worked("s", work);
            }
            let before = lab.tree();
            lab.skep(["reject", "s", "a", "--reason", "leave `a` alone: \u{e9}\"\n\x1b[1m"])
                .run()
                .ok();
            let id = hunks(&lab.diff("s"), Some("f"))[1].id.clone();
            lab.skep(["reject", "s", "--hunk", &id, "--reason", "second"]).run().ok();
            lab.tree().assert_equals(&before, "a rejection does not touch the project");
            let told = feedback(lab);
            assert_eq!(told["rejections"][0]["reason"], "leave `a` alone: \u{e9}\"\n\x1b[1m");
            assert_eq!(told["rejections"][0]["paths"][0], "a", "{told}");
            assert_eq!(told["rejections"][1]["reason"], "second");
            assert_eq!(told["rejections"][1]["hunks"][0], id, "{told}");
            assert_eq!(paths(&lab.diff("s")), ["f", "n"]);
            assert_eq!(lab.inside("s", "cat a; sed -n '11p;51p' f").text(), "a\nx\n50");
            // Everything: the state says so, and work brings it back.
            lab.skep(["reject", "s"]).run().ok();
            assert!(paths(&lab.diff("s")).is_empty());
            assert_eq!(lab.sandbox("s")["state"], "rejected");
            lab.inside("s", "echo again > a");
            assert_eq!(paths(&lab.diff("s")), ["a"]);
            lab.skep(["rm", "--discard", "s"]).run().ok();
        }
    });
}

#[test]
fn the_program_inside_cannot_forge_the_feedback() {
    for_both(|lab| {
        lab.write("a", "a\n");
        lab.up("s");
        lab.inside("s", "echo x > a");
        lab.skep(["reject", "s", "a", "--reason", "no"]).run().ok();
        let ran = lab
            .exec_script(
                "s",
                "echo forged > /run/skep/feedback.json || rm -f /run/skep/feedback.json",
            )
            .run();
        println!("{}", ran.describe());
        assert_eq!(feedback(lab)["rejections"][0]["reason"], "no");
    });
}

#[test]
fn a_rejected_path_does_not_bring_the_users_own_edit_back() {
    for_both(|lab| {
        let text: String = (0..60).map(|n| format!("{n}\n")).collect();
        lab.write("f", &text);
        lab.up("s");
        lab.inside("s", "sed -i 's/^10$/agent/' f");
        lab.diff("s");
        lab.write("f", text.replace("\n50\n", "\nuser\n"));
        lab.program("chmod").args(["755", "f"]).run().ok();
        lab.skep(["reject", "s", "f"]).run().ok();
        assert!(paths(&lab.diff("s")).is_empty());
        // The user thinks again: that is no change of the sandbox's to be approved.
        lab.write("f", &text);
        lab.program("chmod").args(["644", "f"]).run().ok();
        assert!(paths(&lab.diff("s")).is_empty());
        let before = lab.tree();
        lab.skep(["approve", "s"]).run().ok();
        lab.tree().assert_equals(&before, "nothing was approved");
    });
}
