//! Faults by `strace`: the Nth system call of a kind fails, or is the last thing that its process does.
//!
//! A run that counts comes first. What is then tried of each call: a few in every run; in the long run
//! each place it is made from; in a soak (`SKEP_TEST_SOAK=1`) every single one. Places are told apart by
//! the calls that went before, whose order is that of the code. (To walk the stack at each call, as
//! `strace -k` does, takes a minute for a thousand calls.)

use super::call::Ran;
use super::lab::Lab;
use super::skip::{long, skip, soak};
use std::collections::{BTreeMap, BTreeSet};

/// The calls by which something is written: what a death leaves is decided between two of these, so
/// that a death at every one of them is a death anywhere.
const WRITES: &[&str] = &[
    "renameat2",
    "rename",
    "renameat",
    "fsync",
    "fdatasync",
    "syncfs",
    "mkdirat",
    "mkdir",
    "unlinkat",
    "unlink",
    "rmdir",
    "fchmod",
    "fchmodat",
    "symlinkat",
    "linkat",
    "write",
    "pwrite64",
    "ftruncate",
    "copy_file_range",
    "ioctl",
    "fchown",
    "fchownat",
    "utimensat",
    "fallocate",
];

/// The calls by which something is looked at: these can only fail.
const LOOKS: &[&str] = &[
    "openat2",
    "openat",
    "getdents64",
    "readlinkat",
    "statx",
    "newfstatat",
    "fstat",
    "read",
    "pread64",
];

/// In every run: by these something is decided.
const SHORT: &[&str] =
    &["renameat2", "fsync", "mkdirat", "unlinkat", "write", "pwrite64", "openat2"];

/// What else a filesystem or a process may run out of, at the calls that meet it.
const SCARCE: [(&str, &str); 4] =
    [("openat2", "EMFILE"), ("renameat2", "EROFS"), ("fsync", "EDQUOT"), ("mkdirat", "EACCES")];

/// How many calls before it tell one place from another.
const BEFORE: usize = 2;

/// One fault.
#[derive(Debug)]
pub(crate) struct Fault {
    /// The system call.
    pub(crate) call: String,
    /// What becomes of it, as strace is told.
    pub(crate) how: String,
    /// Whether the process dies of it.
    pub(crate) dies: bool,
}

impl Fault {
    pub(crate) fn death(call: &str, nth: usize) -> Self {
        Self { call: call.into(), how: format!("signal=KILL:when={nth}"), dies: true }
    }

    /// An error; with a `+` from then on.
    pub(crate) fn failure(call: &str, nth: usize, error: &str) -> Self {
        let (error, more) = error.strip_suffix('+').map_or((error, ""), |error| (error, "+"));
        Self { call: call.into(), how: format!("error={error}:when={nth}{more}"), dies: false }
    }
}

/// For each call, the place that each passing came from.
pub(crate) type Places = BTreeMap<String, Vec<String>>;

/// A command of skep, to be cut short.
pub(crate) struct Sweep<'a> {
    lab: &'a Lab,
    line: &'a [&'a str],
    /// Whether its children are traced too. strace ends when they all have.
    follow: bool,
}

impl<'a> Sweep<'a> {
    /// The command alone, or with all that it starts. `None` where there is no strace.
    pub(crate) fn new(lab: &'a Lab, line: &'a [&'a str], follow: bool) -> Option<Self> {
        let ran = std::panic::catch_unwind(|| lab.program("strace").args(["true"]).run().code());
        if ran.is_ok_and(|code| code == 0) {
            return Some(Self { lab, line, follow });
        }
        skip("strace is needed to inject failing system calls");
        None
    }

    fn strace(&self, options: &[&str]) -> Ran {
        let trace = self.trace();
        let strace = self.lab.program("strace").args(["-qq", "-o", trace.to_str().unwrap()]);
        let strace = if self.follow { strace.arg("-f") } else { strace };
        let binary = self.lab.binary.to_str().unwrap();
        strace.args(options).arg(binary).args(self.line).within(300).run()
    }

    /// What strace wrote last.
    pub(crate) fn trace(&self) -> std::path::PathBuf {
        self.lab.root.join("trace")
    }

    /// A run in which all goes well: from where each call is made, in order.
    #[track_caller]
    pub(crate) fn places(&self) -> Places {
        let all: Vec<&str> = WRITES.iter().chain(LOOKS).copied().collect();
        self.strace(&["-e", &format!("trace={}", all.join(","))]).ok();
        let places = read_places(&std::fs::read_to_string(self.trace()).unwrap(), &all);
        let sum = |count: fn(&[String]) -> usize| -> usize {
            places.values().map(|passings| count(passings)).sum()
        };
        let (calls, kinds) = (sum(<[String]>::len), places.len());
        let distinct = sum(|passings| passings.iter().collect::<BTreeSet<_>>().len());
        println!("{:?}: {calls} calls of {kinds} kinds from {distinct} places", self.line);
        places
    }

    /// A run in which all goes well: the looks that name `part` in a path, each with the number that it
    /// has among the calls of its kind.
    #[track_caller]
    pub(crate) fn looks_at(&self, part: &str) -> Vec<(String, usize)> {
        self.strace(&["-y", "-e", &format!("trace={}", LOOKS.join(","))]).ok();
        let text = std::fs::read_to_string(self.trace()).unwrap();
        let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        let mut found = Vec::new();
        for line in text.lines() {
            let Some((process, call)) = call_of(line) else { continue };
            let count = counts.entry((process, call)).or_default();
            *count += 1;
            if line.contains(part) {
                found.push((call.to_owned(), *count));
            }
        }
        found
    }

    /// The command with one fault.
    pub(crate) fn meets(&self, fault: &Fault) -> Ran {
        let watch = format!("trace={}", fault.call);
        let inject = format!("inject={}:{}", fault.call, fault.how);
        self.strace(&["-y", "-e", &watch, "-e", &inject])
    }
}

/// The process and the call of a line. With `-f` a number stands before the call.
fn call_of(line: &str) -> Option<(&str, &str)> {
    let number = |word: &&str| word.bytes().all(|byte| byte.is_ascii_digit());
    let process = line.split_whitespace().next().filter(number).unwrap_or_default();
    let (call, _) = line[process.len()..].trim_start().split_once('(')?;
    Some((process, call))
}

/// What strace wrote: the calls of each process, each with those that went before it.
fn read_places(text: &str, calls: &[&str]) -> Places {
    let mut places = Places::new();
    let mut before: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in text.lines() {
        let Some((process, call)) = call_of(line) else { continue };
        if !calls.contains(&call) {
            continue;
        }
        let before = before.entry(process).or_default();
        places.entry(call.to_owned()).or_default().push(before.join(" "));
        before.push(call);
        if before.len() > BEFORE {
            before.remove(0);
        }
    }
    places
}

/// The faults to try; in the short run `few` of each call.
pub(crate) fn plan(places: &Places, few: usize) -> Vec<Fault> {
    let mut plan = Vec::new();
    for (call, passings) in places {
        let writes = WRITES.contains(&call.as_str());
        if !long() && !SHORT.contains(&call.as_str()) {
            continue;
        }
        let scarce = SCARCE.iter().filter(|(one, _)| one == call).map(|(_, error)| *error);
        let errors: Vec<&str> = match (writes, long()) {
            (true, true) => ["EIO", "ENOSPC", "EIO+"].into_iter().chain(scarce).collect(),
            _ => ["EIO"].into_iter().chain(scarce).collect(),
        };
        for (at, nth) in chosen(passings, few).into_iter().enumerate() {
            if writes {
                plan.push(Fault::death(call, nth));
            }
            // Each place meets one failure, the kinds taking turns; in a soak it meets them all.
            let turn = if soak() { &errors[..] } else { &errors[at % errors.len()..][..1] };
            plan.extend(turn.iter().map(|error| Fault::failure(call, nth, error)));
        }
    }
    plan
}

/// Which passings are tried, counted from one.
fn chosen(passings: &[String], few: usize) -> Vec<usize> {
    let count = passings.len();
    if soak() {
        return (1..=count).collect();
    }
    if !long() {
        // The last ones among them: those are nearest to what is made to last.
        let few = few.min(count);
        return (1..=few).map(|at| count - (few - at) * count / few).collect();
    }
    let mut seen = BTreeSet::new();
    let first = |(at, place): (usize, &String)| seen.insert(place.clone()).then_some(at + 1);
    passings.iter().enumerate().filter_map(first).collect()
}
