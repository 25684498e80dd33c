//! Random work in a real sandbox gives, approved, exactly what the same work gives in a plain copy.

use crate::harness::{Lab, Tree, for_both, long};
use std::fmt::Write as _;
use std::path::Path;

/// The interpreter of the operations, for sandbox and copy alike.
const INTERPRETER: &str = include_str!("work.py");
/// Seeds that once found something, and one that is always tried.
const SEEDS: [u64; 1] = [475_814];
/// Independent scripts per sandbox, and operations in each.
const SCRIPTS: usize = 40;
const OPERATIONS: usize = 30;

const WORDS: [&str; 14] = [
    "write", "write", "append", "replace", "remove", "mkdir", "symlink", "chmod", "move", "copy",
    "truncate", "again", "touch", "link",
];
/// A base has no hard links: an overlay gives the name that is written a file of its own, a plain
/// copy changes both. `diff_3_one_of_two_hard_links_is_changed_alone` says what skep does there.
const BASE_WORDS: &[&str] = WORDS.split_at(13).0;

/// Small and repeatable; the quality of its numbers does not matter.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % limit as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Few names on up to three levels, so that operations meet; some that are hard to handle.
    fn path(&mut self) -> Vec<u8> {
        const NAMES: [&[u8]; 8] =
            [b"a", b"b", b"a-b", b"a.b", b"c d", b"\xff\n", b"-f", b"\xe2\x80\xae"];
        let depth = 1 + self.below(3);
        let parts: Vec<_> = (0..depth).map(|_| self.pick(&NAMES)).collect();
        parts.join(&b'/')
    }

    fn content(&mut self) -> Vec<u8> {
        let size = self.pick(&[0, 1, 7, 100, 5000]);
        let text: &[&[u8]] = &[b"x\n", b"line\r\n", b"\0\xff", b"tail"];
        let mut bytes = Vec::new();
        while bytes.len() < size {
            bytes.extend_from_slice(self.pick(text));
        }
        bytes
    }

    fn operation(&mut self, words: &[&'static str]) -> (&'static str, Vec<Vec<u8>>) {
        let word = self.pick(words);
        let path = self.path();
        let second = match word {
            "write" | "append" | "replace" => Some(self.content()),
            "symlink" => Some(self.pick(&[&b"a"[..], b"b/../c d", b"no/where", b"\xff"]).to_vec()),
            "chmod" => Some(self.pick(&["644", "600", "755", "700", "444", "555"]).into()),
            "truncate" => Some(self.pick(&["0", "3", "9000"]).into()),
            "move" | "copy" | "link" => Some(self.path()),
            _ => None,
        };
        (word, std::iter::once(path).chain(second).collect())
    }

    /// Operations for each of the scripts' directories.
    fn scripts(&mut self, words: &[&'static str], operations: usize) -> Vec<String> {
        let script = |(random, at): (&mut Self, usize)| {
            let mut text = format!("in {}\n", hex(format!("s{at:03}").as_bytes()));
            for _ in 0..operations {
                let (word, arguments) = random.operation(words);
                let arguments: Vec<_> = arguments.iter().map(|bytes| hex(bytes)).collect();
                writeln!(text, "{word} {}", arguments.join(" ")).unwrap();
            }
            text
        };
        (0..SCRIPTS).map(|at| script((self, at))).collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The interpreter at work in a plain directory, with the rights that a sandbox gives: a caller who
/// is root has none of root's powers inside.
fn work_plainly(lab: &Lab, directory: &Path, operations: &Path) {
    let interpreter = lab.root.join("work.py");
    let call = if lab.who.is_root() {
        lab.program("setpriv").args(["--bounding-set=-all", "--inh-caps=-all", "python3"])
    } else {
        lab.program("python3")
    };
    call.arg(interpreter).arg(operations).directory(directory).run().ok();
}

fn operations_file(lab: &Lab, name: &str, scripts: &[String]) -> std::path::PathBuf {
    lab.write(lab.root.join(format!("tools/{name}")), scripts.concat())
}

/// Makes the base by random work, then tries random work on it.
fn try_seed(lab: &Lab, seed: u64) {
    println!("seed {seed}");
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    lab.write(lab.root.join("work.py"), INTERPRETER);
    lab.write(lab.root.join("tools/work.py"), INTERPRETER);
    std::fs::remove_dir_all(&lab.project).unwrap();
    (0..SCRIPTS).for_each(|at| drop(lab.directory(format!("s{at:03}"))));
    work_plainly(lab, &lab.project, &operations_file(lab, "base", &random.scripts(BASE_WORDS, 15)));

    let mut scripts = random.scripts(&WORDS, OPERATIONS);
    let operations = operations_file(lab, "operations", &scripts);
    scripts.reverse();
    operations_file(lab, "backwards", &scripts);
    let copy = lab.root.join("copy");
    lab.program("cp").args(["-a", "--"]).args([&lab.project, &copy]).run().ok();
    work_plainly(lab, &copy, &operations);
    let oracle = Tree::read(&copy);
    std::fs::remove_dir_all(&copy).unwrap();

    let mount = format!("{}:/tools", lab.root.join("tools").display());
    let run = |name: &str, operations: &str| {
        let line = ["run", "--keep", "--name", name, "--mount", &mount, "--"];
        lab.skep(line).args(["python3", "/tools/work.py", operations]).run().ok();
    };
    let before = lab.tree();
    run("forwards", "/tools/operations");
    run("backwards", "/tools/backwards");
    lab.tree().assert_equals(&before, "the project was changed without an approval");

    let digest = digest_in(lab, "forwards", "C", "UTC");
    assert_eq!(digest_in(lab, "forwards", "tr_TR.UTF-8", "Asia/Kolkata"), digest);
    assert_eq!(digest_in(lab, "backwards", "C", "UTC"), digest, "made in another order");
    lab.skep(["approve", "forwards", "--digest", &digest]).run().ok();
    lab.tree().assert_equals(&oracle, &format!("seed {seed}: project and copy"));
    assert_eq!(lab.diff("forwards")["changes"], serde_json::json!([]), "nothing is left to review");
    for name in ["forwards", "backwards"] {
        lab.skep(["rm", "--discard", name]).run().ok();
    }
}

fn digest_in(lab: &Lab, name: &str, locale: &str, zone: &str) -> String {
    let call = lab.skep(["diff", name, "--json"]).env("LC_ALL", locale).env("TZ", zone);
    call.run().ok().json()["digest"].as_str().unwrap().to_owned()
}

#[test]
fn heavy_diff_3_random_work_approved_equals_a_plain_copy() {
    let typed = std::env::var("SKEP_TEST_SEED").ok().and_then(|text| text.parse().ok());
    for_both(|lab| {
        let fresh: u64 = typed.unwrap_or_else(|| {
            std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 % 1_000_000
        });
        let rounds = if long() { 20 } else { 1 };
        let seeds = (0..rounds).map(|round| fresh + round);
        let stored = SEEDS.into_iter().filter(|_| typed.is_none());
        stored.chain(seeds).for_each(|seed| try_seed(lab, seed));
    });
}

#[test]
fn diff_3_no_work_is_an_empty_change_set() {
    for_both(|lab| {
        lab.write("a", "a");
        // Reading, listing and writing back the same bytes are no changes.
        let script = "cat a > /dev/null; ls -R > /dev/null; touch a; printf a > a; chmod 644 a";
        lab.skep(["run", "--keep", "--name", "s", "--", "sh", "-ec", script]).run().ok();
        assert_eq!(lab.diff("s")["changes"], serde_json::json!([]));
    });
}

#[test]
fn diff_3_one_of_two_hard_links_is_changed_alone() {
    for_both(|lab| {
        lab.write("one", "base\n");
        std::fs::hard_link(lab.project.join("one"), lab.project.join("two")).unwrap();
        lab.skep(["run", "--name", "s", "--", "sh", "-c", "echo new > one"]).run().ok();
        let diff = lab.diff("s");
        assert_eq!(diff["changes"].as_array().unwrap().len(), 1, "{diff}");
        lab.skep(["approve", "s"]).run().ok();
        // What was not reviewed is not changed, though the two were one file.
        assert_eq!(lab.tree().get("one").unwrap().bytes, b"new\n");
        assert_eq!(lab.tree().get("two").unwrap().bytes, b"base\n");
    });
}
