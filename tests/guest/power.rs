//! A loss of power: what was reported as done is done; what was not is whole or absent.
//!
//! The guest's memory is lost with it, its disk is not: what the disk itself might still hold back is
//! not modelled.

use crate::harness::{Disk, long, skip};

/// A project of twenty files, of which one is deleted and the others are changed inside; one is made.
const WORK: &str = r#"
mkdir -p /home/project && cd /home/project
for i in $(seq 20); do echo "old $i" > file$i; done
sync
skep run --name work -- sh -c 'for i in $(seq 19); do echo "new $i" > file$i; done; rm file20; mkdir d; echo made > d/made' || echo "run failed"
"#;

/// Lets skep settle what was left, then says how many of the 21 paths are in which state.
const LOOK: &str = r#"
cd /home/project
skep ls || echo "ls failed"
old=0 new=0
for i in $(seq 19); do
    case "$(cat file$i)" in "old $i") old=$((old+1)) ;; "new $i") new=$((new+1)) ;; *) echo "file$i holds $(cat file$i)" ;; esac
done
[ -e file20 ] && old=$((old+1)) || new=$((new+1))
[ "$(cat d/made 2>/dev/null)" = made ] && new=$((new+1)) || old=$((old+1))
echo "old $old new $new"
[ "$(cat /home/unsynced 2>/dev/null)" = said ] && echo "the control was kept" || echo "the control was lost"
"#;

#[test]
fn heavy_i3_an_approval_that_was_reported_survives_a_loss_of_power() {
    let Some(disk) = disk() else { return };
    let approve = "skep approve work >/dev/null && echo said > /home/unsynced && echo approved";
    let mut guest = disk.boot(&format!("{WORK}{approve}; sleep 1000")).unwrap();
    guest.says("approved");
    guest.pull_the_plug();
    let undo =
        r#"skep undo >/dev/null || echo "undo failed"; cat file1; ls -d file20 d 2>/dev/null"#;
    let said = disk.boot(&format!("{LOOK}{undo}; echo end")).unwrap().ends();
    // The control shows that the plug was pulled: a plain write just before the report is gone.
    for line in ["old 0 new 21", "the control was lost", "old 1", "file20", "end"] {
        assert!(said.iter().any(|is| is == line), "no `{line}` in:\n{}", said.join("\n"));
    }
    let wrong = |line: &String| line == "d" || line.ends_with("failed");
    assert!(!said.iter().any(wrong), "{said:#?}");
}

#[test]
fn heavy_crash_6_a_loss_of_power_amid_an_approval_leaves_all_or_nothing() {
    let all = ["apply.publish:10", "apply.publish_sync", "apply.journal_written", "apply.synced"];
    let more = ["approve.committed", "apply.published:1", "apply.done", "approve.published"];
    let places = all.iter().take(if long() { all.len() } else { 2 });
    for place in places.chain(more.iter().take(if long() { more.len() } else { 0 })) {
        let Some(disk) = disk() else { return };
        let approve = format!(
            "SKEP_FAILPOINT={place}=stop skep approve work >/dev/null & \n\
             until grep -q 'State:.T' /proc/$!/status; do usleep 20000; done\n\
             echo stopped; sleep 1000"
        );
        let mut guest = disk.boot(&format!("{WORK}{approve}")).unwrap();
        guest.says("stopped");
        guest.pull_the_plug();
        // Whatever it was, the work can be approved (again) and ends as it should.
        let again = "skep approve work >/dev/null 2>&1; cat file1 d/made; echo end";
        let said = disk.boot(&format!("{LOOK}{again}")).unwrap().ends();
        let is = |line: &str| said.iter().any(|said| said == line);
        assert!(is("old 21 new 0") || is("old 0 new 21"), "{place}:\n{}", said.join("\n"));
        assert!(is("new 1") && is("made") && is("end"), "{place}:\n{}", said.join("\n"));
    }
}

fn disk() -> Option<Disk> {
    Disk::new(&[]).map_err(|reason| skip(&reason)).ok()
}
