//! A Docker engine of a test's own: Debian's, on a private socket and data root; stopped at the
//! end. Asked by its own command line, an oracle that is not skep.

use super::skip::skip;
use super::wait::wait_for;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running engine.
pub(crate) struct Docker {
    root: PathBuf,
    daemon: Option<Child>,
    other: Option<(PathBuf, PathBuf)>,
}

impl Docker {
    /// Starts one; `None`, aloud, where it cannot be had.
    pub(crate) fn start() -> Option<Self> {
        Self::start_seeing(None)
    }

    /// The same, with a mount namespace of its own where there is another directory at a path: what, where.
    pub(crate) fn start_seeing(other: Option<(PathBuf, PathBuf)>) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip("a Docker engine is started by root");
            return None;
        }
        if !PathBuf::from("/usr/sbin/dockerd").exists() {
            skip("the package docker.io is not installed; see `ci/provision providers`");
            return None;
        }
        let root =
            tempfile::Builder::new().prefix("skep-docker-").tempdir_in("/tmp").unwrap().keep();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
        let mut engine = Self { root, daemon: None, other };
        engine.resume();
        Some(engine)
    }

    /// Starts the engine (again) on what it kept.
    pub(crate) fn resume(&mut self) {
        assert!(self.daemon.is_none());
        // Those of dead processes: one that nobody has waited for yet still seems to run.
        for file in ["pid", "exec/containerd/containerd.pid"] {
            let _ = fs::remove_file(self.root.join(file));
        }
        let log = fs::File::create(self.root.join("log")).unwrap();
        let at = |name: &str| self.root.join(name).display().to_string();
        let mut daemon = Command::new("/usr/bin/env");
        if let Some((what, place)) = &self.other {
            let script = "mount --bind \"$0\" \"$1\" && shift && exec \"$@\"";
            daemon.args(["unshare", "--mount", "--propagation", "private", "sh", "-c", script]);
            daemon.arg(what).arg(place);
        }
        // It ends with the test, also with one that is killed.
        let daemon = daemon
            .args(["/usr/bin/setpriv", "--pdeathsig", "TERM", "/usr/sbin/dockerd"])
            .args(["--host", &self.host(), "--data-root", &at("data"), "--exec-root", &at("exec")])
            .args(["--pidfile", &at("pid"), "--iptables=false", "--ip6tables=false"])
            .args(["--bridge=none", "--storage-driver=overlay2", "--shutdown-timeout=2"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.daemon = Some(daemon);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.command(&["version"]).output().unwrap().status.success() {
            let log = || fs::read_to_string(self.root.join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "dockerd did not start: {}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
        // Whoever may use the socket: in place of a group.
        fs::set_permissions(self.root.join("sock"), fs::Permissions::from_mode(0o666)).unwrap();
    }

    /// Kills the engine; its containers stay.
    pub(crate) fn crash(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        let containerd = self.root.join("exec/containerd/containerd.pid");
        let containerd: i32 = fs::read_to_string(containerd).unwrap().trim().parse().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        // The kernel ends it with its parent; until then it would answer a new one.
        wait_for("containerd to end", 10, || {
            let stat = fs::read_to_string(format!("/proc/{containerd}/stat")).unwrap_or_default();
            (stat.is_empty() || stat.contains(") Z ")).then_some(())
        });
    }

    /// The engine's process.
    pub(crate) fn pid(&self) -> i32 {
        self.daemon.as_ref().unwrap().id() as i32
    }

    /// For `DOCKER_HOST`.
    pub(crate) fn host(&self) -> String {
        format!("unix://{}", self.root.join("sock").display())
    }

    /// `docker` with these words.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("/usr/bin/docker");
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", &self.root);
        command.args(["--host", &self.host()]).args(words);
        command
    }

    /// What `docker` answers.
    #[track_caller]
    pub(crate) fn ask(&self, words: &[&str]) -> String {
        let done = self.command(words).output().unwrap();
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    /// Ids of all containers there are.
    #[track_caller]
    pub(crate) fn containers(&self) -> Vec<String> {
        let listed = self.ask(&["ps", "--all", "--quiet", "--no-trunc"]);
        listed.lines().map(str::to_owned).collect()
    }

    /// Asserts that no container and no volume is left.
    #[track_caller]
    pub(crate) fn assert_empty(&self) {
        assert_eq!(self.containers(), Vec::<String>::new(), "containers are left");
        assert_eq!(self.ask(&["volume", "ls", "--quiet"]), "", "volumes are left");
    }

    /// A directory of its own, for files of a test.
    pub(crate) fn place(&self) -> &std::path::Path {
        &self.root
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let pid = rustix::process::Pid::from_raw(daemon.id() as i32).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = daemon.wait();
        }
        if !std::thread::panicking() {
            let mounted = || {
                let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
                mounts.contains(self.root.to_str().unwrap())
            };
            wait_for("the engine's mounts to go", 10, || {
                // The engine binds its data root onto itself.
                let _ = Command::new("umount").arg(self.root.join("data")).output();
                (!mounted()).then_some(())
            });
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}
