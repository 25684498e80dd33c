//! The user saves a file in the very moment in which it is taken over.

use super::desk::Random;
use crate::harness::{Lab, for_both, long};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

/// Whether a text is in a file below a directory.
fn is_kept(directory: &Path, text: &[u8]) -> bool {
    fs::read_dir(directory).into_iter().flatten().flatten().any(|entry| {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => is_kept(&path, text),
            Ok(kind) if kind.is_file() => fs::read(&path).is_ok_and(|bytes| bytes == text),
            _ => false,
        }
    })
}

/// As editors do: in place, or by a new file that takes the name.
fn save(path: &Path, text: &str, in_place: bool) {
    if in_place {
        let mut file = fs::File::options().write(true).truncate(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    } else {
        let new = path.with_extension("save");
        fs::write(&new, text).unwrap();
        fs::rename(&new, path).unwrap();
    }
}

fn race(lab: &Lab, round: usize, random: &mut Random) -> bool {
    let (path, text) = (lab.project.join(format!("f{round}")), format!("user {round}\n"));
    let delay = Duration::from_micros(random.below(60_000) as u64);
    let in_place = random.chance(2);
    let saver = {
        let (path, text) = (path.clone(), text.clone());
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            save(&path, &text, in_place);
        })
    };
    let ran = lab.skep(["approve", "s", &format!("f{round}")]).run();
    saver.join().unwrap();
    let stands = fs::read(&path).unwrap();
    let applied = ran.code() == 0;
    assert!(applied || ran.code() == 4, "{}", ran.describe());
    let whole =
        [text.as_bytes(), format!("agent {round}\n").as_bytes()].contains(&stands.as_slice());
    assert!(whole, "a mix: {:?}", String::from_utf8_lossy(&stands));
    let kept = stands == text.as_bytes() || is_kept(&lab.state.join("approvals"), text.as_bytes());
    assert!(kept, "the save of round {round} (in place: {in_place}) is lost: {}", ran.describe());
    assert!(applied || stands == text.as_bytes(), "refused, and yet changed: {}", ran.describe());
    applied
}

/// A free-running loop: whatever the moment, the saved text is in the project or in a backup.
#[test]
fn heavy_diff_8_a_save_at_any_moment_is_kept() {
    for_both(|lab| {
        let rounds = if long() { 5_000 } else { 25 };
        let mut random = Random::printed();
        (0..rounds).for_each(|at| drop(lab.write(format!("f{at}"), "base\n")));
        lab.worked("s", "for f in f*; do echo agent ${f#f} > $f; done");
        let applied = (0..rounds).filter(|round| race(lab, *round, &mut random)).count();
        println!("{applied} of {rounds} were applied");
    });
}

/// Memory follows neither the number nor the size of files; a death midway leaves all or nothing.
#[test]
fn heavy_diff_11_many_and_large_files_in_bounded_memory() {
    if !long() {
        return println!("skipped: SKEP_TEST_LONG=1 runs it");
    }
    for_both(|lab| {
        lab.write("keep", "x\n");
        lab.worked(
            "s",
            "mkdir d; i=0; while [ $i -lt 20000 ]; do echo $i > d/f$i; i=$((i+1)); done; \
             dd if=/dev/urandom of=big bs=1M count=1024 status=none",
        );
        let limited = |line: &str| {
            let script = format!("ulimit -v 1500000; exec {} {line}", lab.binary.display());
            lab.program("sh").args(["-c", &script]).within(600).run()
        };
        let before = lab.tree();
        let killed =
            lab.skep(["approve", "s"]).env("SKEP_FAILPOINT", "apply.synced=kill").within(600);
        assert_ne!(killed.run().code(), 0);
        limited("ls").ok();
        lab.tree().assert_equals(&before, "cancelled before the commit point");
        limited("diff s --name-only").ok();
        limited("approve s").ok();
        assert_eq!(fs::read_dir(lab.project.join("d")).unwrap().count(), 20_000);
        assert_eq!(fs::metadata(lab.project.join("big")).unwrap().len(), 1 << 30);
        limited("undo").ok();
        lab.tree().assert_equals(&before, "undone");
    });
}
