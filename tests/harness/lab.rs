//! One test's world.

use super::call::{Call, Ran};
use super::canary::{self, Canary};
use super::hosted::Hosted;
use super::outside;
use super::skip;
use super::tree::Tree;
use super::who::Who;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A project, a state directory, a home full of canaries and the binary, below one directory.
#[derive(Debug)]
pub(crate) struct Lab {
    /// Everything lies below it; mode 755.
    pub(crate) root: PathBuf,
    /// The project; calls are made from here.
    pub(crate) project: PathBuf,
    /// `HOME` of the caller.
    pub(crate) home: PathBuf,
    /// `SKEP_HOME`.
    pub(crate) state: PathBuf,
    /// The binary, where an ordinary user can run it.
    pub(crate) binary: PathBuf,
    /// Who calls.
    pub(crate) who: Who,
    /// What must never be seen inside or in an artefact.
    pub(crate) canary: Canary,
    /// Variables of every call besides the usual ones.
    pub(crate) variables: Vec<(String, String)>,
    home_before: Tree,
    network_before: Vec<String>,
    hosted: Hosted,
}

/// Runs a test as root and as an ordinary user, and audits each lab at its end.
#[track_caller]
pub(crate) fn for_both(test: impl Fn(&Lab)) {
    for_each([Who::root(), Who::user()], test);
}

/// Runs a test as each of these callers.
#[track_caller]
pub(crate) fn for_each<const N: usize>(callers: [Result<Who, String>; N], test: impl Fn(&Lab)) {
    for who in callers {
        match who {
            Ok(who) => {
                println!("as {who:?}");
                let lab = Lab::new(who);
                test(&lab);
                lab.audit();
            }
            Err(reason) => skip(&reason),
        }
    }
}

impl Lab {
    /// A new world.
    pub(crate) fn new(who: Who) -> Self {
        let root = tempfile::Builder::new().prefix("skep-lab-").tempdir_in("/tmp").unwrap().keep();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
        let root = fs::canonicalize(root).unwrap();
        let canary = Canary::new();
        let [project, home, state] = ["project", "home", "state"].map(|name| root.join(name));
        fs::create_dir(&project).unwrap();
        fs::create_dir(&home).unwrap();
        canary.plant(&home);
        let binary = root.join("bin/skep");
        fs::create_dir(root.join("bin")).unwrap();
        place_binary(&binary);
        let home_before = Tree::default();
        let network_before = outside::network();
        let hosted = Hosted::default();
        let mut lab = Self {
            root,
            project,
            home,
            state,
            binary,
            who,
            canary,
            variables: Vec::new(),
            home_before,
            network_before,
            hosted,
        };
        // The caller owns the place: staging beside the project needs a writable parent.
        who.own(&lab.root);
        lab.own_below(&lab.project);
        lab.own_below(&lab.home);
        lab.home_before = Tree::read(&lab.home);
        lab
    }

    /// A call of skep by the lab's caller from the project, with a clean environment full of
    /// canaries.
    ///
    /// With `SKEP_TEST_HOST=1` it is asked of a server of the lab's own, where the command can be.
    pub(crate) fn skep<I: IntoIterator<Item: AsRef<OsStr>>>(&self, arguments: I) -> Call {
        let mut command = Command::new(&self.binary);
        self.dress(&mut command);
        command.args(arguments);
        self.hosted.lead(self, &mut command);
        Call::new(command).by(self.who)
    }

    /// A call of another program by the lab's caller.
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Call {
        let mut command = Command::new(program);
        self.dress(&mut command);
        Call::new(command).by(self.who)
    }

    /// A script run as root, in a mount namespace of its own, by whom its arguments say skep is called: a world made for the
    /// caller. Give it to [`Call::new`] when they are added.
    pub(crate) fn in_a_world(&self, script: &str) -> Command {
        let mut command = Command::new("unshare");
        self.dress(&mut command);
        std::os::unix::process::CommandExt::uid(&mut command, 0);
        std::os::unix::process::CommandExt::gid(&mut command, 0);
        command.args(["-m", "bash", "-c", script, "bash"]);
        command
    }

    pub(crate) fn dress(&self, command: &mut Command) {
        self.who.dress(command);
        command.env_clear().current_dir(&self.project);
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        command.env("HOME", &self.home).env("SKEP_HOME", &self.state).env("LANG", "C.UTF-8");
        for name in canary::VARIABLES {
            command.env(name, &self.canary.text);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }

    /// `skep run -- sh -c SCRIPT` in the project.
    pub(crate) fn run_script(&self, script: &str) -> Call {
        self.skep(["run", "--", "sh", "-c", script])
    }

    /// `skep exec NAME -- sh -c SCRIPT`.
    pub(crate) fn exec_script(&self, name: &str, script: &str) -> Call {
        self.skep(["exec", name, "--", "sh", "-c", script])
    }

    /// Makes a sandbox of this name.
    #[track_caller]
    pub(crate) fn create(&self, name: &str) {
        assert_eq!(self.skep(["create", name]).run().ok().text(), name);
    }

    /// Writes a file of the project (or of the lab, by absolute path), owned by the caller.
    pub(crate) fn write(&self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.project.join(path);
        self.make_parents(&path);
        fs::write(&path, bytes).unwrap();
        self.who.own(&path);
        path
    }

    /// Makes a directory of the project, owned by the caller.
    pub(crate) fn directory(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = self.project.join(path);
        self.make_parents(&path.join("x"));
        path
    }

    fn make_parents(&self, path: &Path) {
        let mut missing = Vec::new();
        let mut at = path.parent().unwrap();
        while !at.exists() {
            missing.push(at.to_owned());
            at = at.parent().unwrap();
        }
        for directory in missing.iter().rev() {
            fs::create_dir(directory).unwrap();
            self.who.own(directory);
        }
    }

    /// Gives a directory and everything in it to the caller.
    pub(crate) fn own_below(&self, path: &Path) {
        self.who.own(path);
        if fs::symlink_metadata(path).unwrap().is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                self.own_below(&entry.unwrap().path());
            }
        }
    }

    /// The project as it is now.
    pub(crate) fn tree(&self) -> Tree {
        Tree::read(&self.project)
    }

    /// All sandboxes, as `skep ls --all --json` shows them.
    #[track_caller]
    pub(crate) fn sandboxes(&self) -> Vec<Value> {
        match self.skep(["ls", "--all", "--json"]).run().ok().json() {
            Value::Array(list) => list,
            other => panic!("no list: {other}"),
        }
    }

    /// One sandbox, as `skep ls` shows it.
    #[track_caller]
    pub(crate) fn sandbox(&self, name: &str) -> Value {
        let all = self.sandboxes();
        let found = all.into_iter().find(|one| one["name"] == name || one["id"] == name);
        found.unwrap_or_else(|| panic!("no sandbox `{name}`"))
    }

    /// `skep diff NAME --json`.
    #[track_caller]
    pub(crate) fn diff(&self, name: &str) -> Value {
        self.skep(["diff", name, "--json"]).run().ok().json()
    }

    /// The pid of the keeper: the process of skep that lives in the host's pid namespace and holds
    /// the sandbox. Found by its program and its parent, not by what skep says.
    pub(crate) fn keepers(&self) -> Vec<i32> {
        let of_binary = |process: &outside::Process| {
            let exe = fs::read_link(format!("/proc/{}/exe", process.pid)).unwrap_or_default();
            exe.starts_with(self.binary.parent().unwrap())
        };
        let ours: Vec<_> =
            outside::processes_of(&self.root).into_iter().filter(of_binary).collect();
        // Every keeper has the sandbox's pid 1 as its child, which runs the same program.
        let parent = |pid: i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let rest = stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned())?;
            rest.split(' ').nth(1)?.parse::<i32>().ok()
        };
        let parents: BTreeSet<i32> = ours.iter().filter_map(|one| parent(one.pid)).collect();
        // A server and its workers are parents too, and hold nothing.
        let serves = |pid: i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            super::hosted::serves(&line)
        };
        // So is pid 1, of a command that has not become its program yet.
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let inside = |pid: i32| namespace(&pid.to_string()) != namespace("self");
        let pids = ours.iter().map(|one| one.pid);
        pids.filter(|pid| parents.contains(pid) && !serves(*pid) && !inside(*pid)).collect()
    }

    /// Removes every sandbox and asserts that nothing is left of any: no process, mount, cgroup,
    /// network namespace or file; that the home is untouched; that no canary got into the state.
    #[track_caller]
    pub(crate) fn audit(&self) {
        self.audit_canaries();
        for sandbox in self.sandboxes() {
            let id = sandbox["id"].as_str().unwrap();
            self.skep(["rm", "--discard", id]).run().ok();
        }
        self.hosted.end();
        self.audit_leftovers();
    }

    /// Asserts that no canary is in the state directory. Part of [`Lab::audit`].
    #[track_caller]
    pub(crate) fn audit_canaries(&self) {
        let found = self.canary.found_below(&self.state);
        assert!(found.is_empty(), "canary in {found:?}");
    }

    /// Asserts that nothing is left when all sandboxes have been removed.
    #[track_caller]
    pub(crate) fn audit_leftovers(&self) {
        assert_eq!(self.sandboxes(), Vec::<Value>::new(), "sandboxes are left");
        super::wait_for_empty("processes", 10, || outside::processes_of(&self.root));
        assert_eq!(outside::mounts_of(&self.root), Vec::<String>::new(), "mounts are left");
        let ids = self.ids_ever();
        super::wait_for_empty("cgroups", 10, || outside::cgroups_of(&ids));
        assert_eq!(outside::network(), self.network_before, "network namespaces or links");
        for name in ["sandboxes", "trash", "locks", "news", "ways"] {
            let mut left = entries(&self.state.join(name));
            // One lock per project, and that of all keys, stay: they have no sandbox to go with.
            let stays = |name: &[u8]| name.starts_with(b"project-") || name == b"keys";
            left.retain(|path| !stays(path.file_name().unwrap().as_bytes()));
            assert_eq!(left, Vec::<PathBuf>::new(), "left in {name}");
        }
        Tree::read(&self.home).assert_equals(&self.home_before, "the home was changed");
    }

    /// Ids of every sandbox there ever was, from the events.
    pub(crate) fn ids_ever(&self) -> BTreeSet<String> {
        let events = self.skep(["events", "--json"]).run().ok().json_lines();
        let ids = events.iter().filter_map(|event| event["sandbox"].as_str());
        ids.map(str::to_owned).collect()
    }

    /// Runs a call that is expected to change nothing at all: not the project, not the list of
    /// sandboxes, not the processes.
    #[track_caller]
    pub(crate) fn without_effect(&self, call: Call) -> Ran {
        let listed = || {
            let mut sandboxes = self.sandboxes();
            // A look keeps the bytes of the base that it has read; the review is the same.
            for sandbox in sandboxes.iter_mut().filter_map(|sandbox| sandbox.as_object_mut()) {
                sandbox.remove("base_bytes");
            }
            sandboxes
        };
        let processes = || {
            let of_server = |pid: i32| {
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                super::hosted::wanted() && super::hosted::serves(&line)
            };
            let mut found = outside::processes_of(&self.root);
            found.retain(|one| !of_server(one.pid) && !counts(one));
            found
        };
        let look = || (self.tree(), listed());
        let before = (self.tree(), listed(), processes());
        let ran = call.run();
        let after = look();
        after.0.assert_equals(&before.0, "the project was changed");
        assert_eq!(after.1, before.1, "the list of sandboxes changed: {}", ran.describe());
        // One that was just ending is none that was left, before or after.
        let left = || Some(processes()).filter(|now| now.len() > before.2.len());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while let Some(now) = left() {
            let described = ran.describe();
            let late = std::time::Instant::now() > deadline;
            assert!(!late, "processes were left: {now:?} of {:?}: {described}", before.2);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        ran
    }
}

/// Whether it is the process that counts what lies in an upper: its keeper starts it a moment after a command began,
/// whatever is called meanwhile, and it ends with that keeper.
fn counts(process: &outside::Process) -> bool {
    process.command.starts_with("skep: count")
}

/// The entries of a directory; none if it is not there.
pub(crate) fn entries(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// A hard link where that is possible: the binary is large and the labs are many.
fn place_binary(to: &Path) {
    let from = env!("CARGO_BIN_EXE_skep");
    if fs::hard_link(from, to).is_err() {
        fs::copy(from, to).unwrap();
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.hosted.end();
        outside::kill_all(&self.root);
        for line in outside::mounts_of(&self.root) {
            if let Some(at) = line.split(' ').nth(4) {
                let _ = rustix::mount::unmount(at, rustix::mount::UnmountFlags::DETACH);
            }
        }
        if std::env::var_os("SKEP_TEST_KEEP").is_some() {
            println!("kept: {}", self.root.display());
            return;
        }
        remove_cgroups(&entries(&self.state.join("sandboxes")));
        remove(&self.root);
    }
}

/// cgroups of sandboxes that a failed test left; they are empty once the processes are gone.
fn remove_cgroups(sandboxes: &[PathBuf]) {
    for sandbox in sandboxes {
        let Some(id) = sandbox.file_name().and_then(OsStr::to_str) else { continue };
        for group in outside::cgroups_named(id) {
            for below in entries(&group) {
                let _ = fs::remove_dir(below);
            }
            let _ = fs::remove_dir(group);
        }
    }
}

/// Removes a tree, opening directories that were closed by their mode.
fn remove(path: &Path) {
    if fs::remove_dir_all(path).is_ok() {
        return;
    }
    let mut open = vec![path.to_owned()];
    while let Some(at) = open.pop() {
        if fs::symlink_metadata(&at).is_ok_and(|meta| meta.is_dir()) {
            let _ = fs::set_permissions(&at, fs::Permissions::from_mode(0o700));
            open.extend(entries(&at));
        }
    }
    let _ = fs::remove_dir_all(path);
}
