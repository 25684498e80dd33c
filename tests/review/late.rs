//! What somebody inside may not know stays with the bases that have it: through approvals, undos, and states gone back to.

use super::desk::repository;
use super::insiders::{LINES, after, clean_files_are_listed, is_refused, pause};
use crate::harness::{Lab, for_both};

/// A project with one file that git has clean, and a sandbox in which the list of these is made.
fn begun(lab: &Lab) {
    lab.write("f", LINES);
    pause();
    repository(lab);
    lab.up("s");
}

/// Somebody who reads `f` now and writes it, with a line of its own, when told; its exec.
fn reader(lab: &Lab, who: &str) -> String {
    let script = format!(
        "cat f > /tmp/old-{who}; touch /tmp/read-{who}; {}; cat /tmp/old-{who} > f; echo {who} >> f; touch /tmp/written-{who}; sleep 600",
        after(&format!("/tmp/write-{who}"))
    );
    let exec = lab.skep(["exec", "-d", "s", "--", "sh", "-c", &script]).run().ok().text();
    lab.inside("s", &after(&format!("/tmp/read-{who}")));
    clean_files_are_listed(lab);
    exec.trim().to_owned()
}

fn writes(lab: &Lab, who: &str) {
    lab.inside("s", &format!("touch /tmp/write-{who}; {}", after(&format!("/tmp/written-{who}"))));
}

/// That it ended, in another state, and was approved there, tells nothing of the one that is gone back to.
#[test]
fn a_state_gone_back_to_is_as_late_as_it_was_whatever_was_approved_since() {
    for_both(|lab| {
        begun(lab);
        let exec = reader(lab, "A_0");
        lab.write("f", format!("H_1\n{LINES}"));
        lab.inside("s", "echo A_1 >> f");
        lab.approve(&["s"]);
        writes(lab, "A_0");
        is_refused(lab);
        lab.skep(["snapshot", "s", "stale"]).run().ok();
        lab.inside("s", "{ echo H_1; cat /tmp/old-A_0; echo A_1; } > f");
        lab.skep(["kill", &exec]).run().ok();
        pause();
        lab.inside("s", "sed -i s/7/A_7/ f");
        lab.approve(&["s"]);
        lab.skep(["restore", "s", "stale"]).run().ok();
        is_refused(lab);
    });
}

/// Two who know the file from two times: without your line, and with the line that you took back.
#[test]
fn a_line_that_you_took_back_is_not_brought_back_by_who_knew_it() {
    for_both(|lab| {
        begun(lab);
        reader(lab, "A_0");
        lab.write("f", format!("H_1\n{LINES}"));
        reader(lab, "A_1");
        lab.inside("s", "echo A_2 >> f");
        lab.approve(&["s"]);
        lab.write("f", format!("{LINES}A_2\n"));
        writes(lab, "A_0");
        lab.approve(&["s"]);
        assert_eq!(lab.bytes("f"), format!("{LINES}A_0\n").as_bytes());
        writes(lab, "A_1");
        is_refused(lab);
    });
}

#[test]
fn an_undo_makes_late_again_what_the_base_of_before_has() {
    for_both(|lab| {
        begun(lab);
        reader(lab, "A_0");
        lab.write("f", format!("H_1\n{LINES}"));
        lab.inside("s", "echo A_1 >> f");
        lab.approve(&["s"]);
        lab.write("f", format!("{LINES}A_1\n"));
        writes(lab, "A_0");
        lab.approve(&["s"]);
        lab.skep(["undo"]).run().ok();
        lab.write("f", format!("H_1\n{LINES}A_1\n"));
        is_refused(lab);
    });
}

/// Lines beside yours do not merge; yours are there all the same. And what cannot be read keeps nothing else late.
#[test]
fn a_line_beside_yours_is_a_change_like_any() {
    for_both(|lab| {
        lab.write("g", LINES);
        begun(lab);
        let exec = reader(lab, "A_0");
        let edited = LINES.replace('5', "H_5");
        lab.write("f", &edited);
        lab.write("g", &edited);
        lab.inside("s", "echo A_1 >> f; echo A_1 >> g");
        lab.approve(&["s"]);
        lab.inside("s", "sed -i s/6/A_6/ f");
        lab.approve(&["s"]);
        lab.inside("s", "sed -i s/H_5/5/ f");
        is_refused(lab);
        lab.inside("s", "sed -i s/^5/H_5/ f; head -c 1100000 /dev/zero >> g");
        lab.skep(["kill", &exec]).run().ok();
        pause();
        lab.inside("s", "sed -i s/H_5/A_5/ f");
        lab.approve(&["s", "f"]);
        let approved = edited.replace("H_5", "A_5").replace('6', "A_6");
        assert_eq!(lab.bytes("f"), format!("{approved}A_1\n").as_bytes());
    });
}
