//! Unreviewed work goes only into an archive, and comes back the same.

use crate::harness::{Lab, for_both};
use serde_json::Value;

fn work(lab: &Lab) -> Value {
    lab.write("kept", "kept\n");
    lab.write("gone", "gone\n");
    lab.write("dir/old", "old\n");
    lab.create("s");
    lab.exec_script("s", "echo more >> kept; rm gone; rm -r dir; mkdir dir; echo new > dir/new; ln -s kept link; chmod 755 kept")
        .run()
        .ok();
    let digest = lab.diff("s")["digest"].clone();
    lab.skep(["stop", "s"]).run().ok();
    digest
}

fn actions(ran: &Value) -> Vec<(String, String)> {
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    let rows = ran.as_array().unwrap().iter().filter(|row| row["what"] == "sandbox");
    rows.map(|row| (text(row, "name"), text(row, "action"))).collect()
}

#[test]
fn clean_10_unreviewed_work_is_archived_when_asked_and_comes_back_the_same() {
    for_both(|lab| {
        let digest = work(lab);
        let before = lab.tree();
        // Neither age nor size is a reason without the word for it.
        let plain =
            lab.skep(["gc", "--older-than", "1ms", "--max-size", "1K", "--json"]).run().ok();
        assert_eq!(actions(&plain.json()), [("s".into(), "keep".into())]);
        lab.skep(["gc", "--archive"]).run().exits(2);
        // A dry run does nothing.
        let asked = ["gc", "--older-than", "1ms", "--archive", "--json"];
        let dry = lab.skep(asked).arg("--dry-run").run().ok();
        assert_eq!(actions(&dry.json()), [("s".into(), "archive".into())]);
        assert_eq!(lab.diff("s")["digest"], digest);
        // Killed between the archive and the removal: the sandbox is still there.
        let killed = lab.skep(asked).env("SKEP_FAILPOINT", "gc.archive=kill").run();
        assert_ne!(killed.code(), 0);
        assert_eq!(lab.diff("s")["digest"], digest);
        lab.skep(asked).run().ok();
        assert!(lab.sandboxes().is_empty());
        let manifest = std::fs::read_dir(lab.state.join("archives")).unwrap().flatten();
        let name = manifest
            .filter_map(|entry| entry.file_name().into_string().ok())
            .find_map(|name| name.strip_suffix(".json").map(str::to_owned))
            .expect("an archive");
        // A flipped bit is found; nothing is made.
        let packed = lab.state.join("archives").join(format!("{name}.tar.zst"));
        let whole = std::fs::read(&packed).unwrap();
        let mut flipped = whole.clone();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        std::fs::write(&packed, &flipped).unwrap();
        lab.skep(["create", "back", "--from", &name]).run().exits(1).says("damaged");
        std::fs::write(&packed, &whole).unwrap();
        lab.skep(["create", "back", "--from", &name]).run().ok();
        assert_eq!(lab.diff("back")["digest"], digest, "the same work");
        lab.tree().assert_equals(&before, "the project was changed");
        lab.skep(["rm", "back", "--discard"]).run().ok();
    });
}

#[test]
fn clean_5_jobs_of_gc_run_alone() {
    for_both(|lab| {
        lab.write("a", "a\n");
        lab.create("empty");
        lab.skep(["stop", "empty"]).run().ok();
        lab.skep(["gc", "--only", "trash,layers,undo,archives,rows"]).run().ok();
        assert_eq!(lab.sandboxes().len(), 1, "its job was not asked for");
        lab.skep(["gc", "--only", "nonsense"]).run().exits(2);
        lab.skep(["gc"]).env("SKEP_GC_KEEP_EMPTY", "true").run().ok();
        assert_eq!(lab.sandboxes().len(), 1);
        lab.skep(["gc", "--only", "sandboxes"]).run().ok();
        assert!(lab.sandboxes().is_empty());
    });
}
