//! Weights of reading and writing, on a disk of its own whose scheduler heeds them: a file in memory behind a loop
//! device, so that no disk of the host's is in the way.

use crate::harness::{Call, Lab, Who, for_both, for_each, skip};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A filesystem on a loop device. Goes with this value.
struct Weighed {
    place: tempfile::TempDir,
    device: String,
}

impl Weighed {
    fn new(scheduler: &str) -> Result<Self, String> {
        let place = tempfile::tempdir_in("/tmp").unwrap();
        let mut this = Self { place, device: String::new() };
        fs::create_dir(this.place.path().join("memory")).unwrap();
        fs::create_dir(this.at()).unwrap();
        let memory = this.place.path().join("memory");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=300m", "none"]).arg(&memory))?;
        let image = memory.join("disk");
        let made = fs::File::create(&image).and_then(|file| file.set_len(256 << 20));
        made.map_err(|error| error.to_string())?;
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
        let device = run(Command::new("losetup").args(["-f", "--show"]).arg(&image))?;
        this.device = device.trim().to_owned();
        this.schedule(scheduler)?;
        // New readers come first for some seconds otherwise, and a fast disk is never left waiting for the heavier.
        for (setting, value) in [("low_latency", "0"), ("strict_guarantees", "1")] {
            let path = format!("/sys/block/{}/queue/iosched/{setting}", this.name());
            fs::write(&path, value).map_err(|error| format!("cannot set {path}: {error}"))?;
        }
        run(Command::new("mount").arg(&this.device).arg(this.at()))?;
        Ok(this)
    }

    fn at(&self) -> PathBuf {
        self.place.path().join("at")
    }

    fn name(&self) -> &str {
        self.device.strip_prefix("/dev/").unwrap()
    }

    fn schedule(&self, scheduler: &str) -> Result<(), String> {
        let path = format!("/sys/block/{}/queue/scheduler", self.name());
        fs::write(&path, scheduler).map_err(|error| format!("cannot set {path}: {error}"))
    }
}

impl Drop for Weighed {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg(self.at()));
        if !self.device.is_empty() {
            let _ = run(Command::new("losetup").arg("-d").arg(&self.device));
        }
        let _ = run(Command::new("umount").arg(self.place.path().join("memory")));
    }
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Four readers past the page cache for two seconds, so that there is always one that waits; how often they got
/// through. All begin at the same moment.
const READS: &str = "
import mmap, os, threading, time
f = os.open('f', os.O_RDONLY | os.O_DIRECT); total = 0
begin = (int(time.time()) // 4 + 1) * 4; until = begin + 2
def read(n):
    global total
    block = mmap.mmap(-1, 262144)
    time.sleep(begin - time.time())
    while time.time() < until:
        os.preadv(f, [block], n % 30 * 262144); n += 1; total += 1
threads = [threading.Thread(target=read, args=(n,)) for n in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(total)
";

fn skep(lab: &Lab, disk: &Weighed, words: &[&str]) -> Call {
    lab.skep([OsStr::new("--home"), disk.at().join("state").as_os_str()]).args(words).within(60)
}

fn report(lab: &Lab, disk: &Weighed, name: &str) -> Value {
    skep(lab, disk, &["show", name, "--json"]).run().ok().json()["enforcement"]["io"].clone()
}

/// How much each of two sandboxes with these weights reads while the other one does, too.
fn read_beside(lab: &Lab, disk: &Weighed, weights: [&str; 2]) -> [u64; 2] {
    let names = ["one", "other"];
    for (name, weight) in names.iter().zip(weights) {
        skep(lab, disk, &["create", name, "--io-weight", weight]).run().ok();
        let said = report(lab, disk, name);
        assert_eq!(said["enforced"], true, "{said}");
        assert!(said["how"].as_str().unwrap().contains(disk.name()), "{said}");
        let fills = ["exec", name, "--", "sh", "-c", "head -c 8000000 /dev/zero > f; sync f"];
        skep(lab, disk, &fills).run().ok();
    }
    let read = std::thread::scope(|scope| {
        let reads = |name| skep(lab, disk, &["exec", name, "--", "python3", "-c", READS]);
        let readers = names.map(|name| scope.spawn(move || reads(name).run().ok().text()));
        readers.map(|reader| reader.join().unwrap().trim().parse().unwrap())
    });
    skep(lab, disk, &["rm", "--discard", "one", "other"]).run().ok();
    read
}

#[test]
fn heavy_res_14_a_weight_counts_where_the_disk_heeds_it_and_is_refused_elsewhere() {
    for_each([Who::root()], |lab| {
        let Some(disk) = Weighed::new("bfq").map_err(|reason| skip(&reason)).ok() else { return };
        let [much, little] = read_beside(lab, &disk, ["1000", "10"]);
        assert!(much > 3 * little, "{much} and {little} reads with weights of 1000 and 10");
        let [one, other] = read_beside(lab, &disk, ["100", "100"]);
        assert!(one < 3 * other && other < 3 * one, "control: {one} and {other} reads");
        // Taken away: with a scheduler that knows no weights the number is kept, and means nothing.
        disk.schedule("none").unwrap();
        let refused = skep(lab, &disk, &["create", "w", "--io-weight", "10", "--json"]).run();
        assert_eq!(refused.code(), 5, "{}", refused.describe());
        let problem = refused.problem().to_string();
        assert!(problem.contains("`none`") && problem.contains("bfq"), "{problem}");
        skep(lab, &disk, &["create", "w", "--io-weight", "10", "--best-effort"]).run().ok();
        let said = report(lab, &disk, "w");
        assert_eq!((&said["enforced"], &said["how"]), (&false.into(), &"nothing".into()), "{said}");
        skep(lab, &disk, &["rm", "--discard", "w"]).run().ok();
    });
}

/// Whoever cannot have a weight is told so, and who asks for none has no limit and no group more.
#[test]
fn res_14_without_a_disk_that_heeds_weights_nothing_is_claimed() {
    for_both(|lab| {
        let end = lab.skep(["run", "--json", "--", "true"]).run().ok().json();
        let io = &end["enforcement"]["io"];
        assert_eq!(
            (&io["enforced"], &io["reason"]),
            (&false.into(), &"no limit was asked for".into())
        );
        let ran = lab.without_effect(lab.skep(["run", "--require", "io", "--", "true"]));
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        for wrong in ["--io-weight=0", "--io-weight=-1", "--io-weight=1001", "--io-weight=1.5"] {
            let ran = lab.without_effect(lab.skep(["run", wrong, "--", "true"]));
            assert_eq!(ran.code(), 2, "{wrong}: {}", ran.describe());
        }
    });
}
