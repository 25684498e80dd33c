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
    surroundings: Option<Surroundings>,
    /// It listens there too, with TLS.
    port: Option<u16>,
}

/// A mount namespace of the engine's own: a script that makes it what it shall be, and goes on with the
/// rest of its words after `shift`; and its first words.
struct Surroundings {
    script: &'static str,
    words: [PathBuf; 2],
}

/// Covers one directory with another.
const SEEING: &str = "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"";
/// Takes the program away that redirects connections.
const NO_NFT: &str = "for program in /usr/sbin/nft /sbin/nft /usr/bin/nft; do
  if [ -f \"$program\" ]; then mount --bind /dev/null \"$program\" || exit 1; fi
done; shift 2 && exec \"$@\"";
/// Certificates of an authority, a server and a client. Words: a directory.
const CERTIFICATES: &str = "cd \"$1\" && exec 2>/dev/null
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca-key.pem -out ca.pem -days 2 -subj /CN=ca || exit 1
for who in server client; do
  openssl req -newkey rsa:2048 -nodes -keyout $who-key.pem -out $who.csr -subj /CN=$who || exit 1
  printf 'subjectAltName=IP:127.0.0.1\nextendedKeyUsage=%sAuth\n' $who > $who.ext
  openssl x509 -req -in $who.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 2 -extfile $who.ext \\
    -out $who-cert.pem || exit 1
done
mv client-cert.pem cert.pem && mv client-key.pem key.pem && chmod 644 *.pem";

impl Docker {
    /// Starts one; `None`, aloud, where it cannot be had.
    pub(crate) fn start() -> Option<Self> {
        Self::start_in(None, None)
    }

    /// The same, with a mount namespace of its own where there is another directory at a path: what, where.
    pub(crate) fn start_seeing(what: PathBuf, place: PathBuf) -> Option<Self> {
        Self::start_in(Some(Surroundings { script: SEEING, words: [what, place] }), None)
    }

    /// The same, on a host that has no `nft`; [`Docker::beside`] calls skep there.
    pub(crate) fn start_without_nft() -> Option<Self> {
        let words = [PathBuf::from("-"), PathBuf::from("-")];
        Self::start_in(Some(Surroundings { script: NO_NFT, words }), None)
    }

    /// The same, and it listens on a port with TLS.
    pub(crate) fn start_with_tls() -> Option<Self> {
        // Nobody else takes it until the engine does, with luck: there is no way to hand one on.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Self::start_in(None, Some(free.port()))
    }

    fn start_in(surroundings: Option<Surroundings>, port: Option<u16>) -> Option<Self> {
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
        let mut engine = Self { root, daemon: None, surroundings, port };
        if port.is_some() {
            fs::create_dir(engine.certificates()).unwrap();
            let mut make = Command::new("sh");
            make.args(["-c", CERTIFICATES, "sh"]).arg(engine.certificates());
            assert!(make.status().unwrap().success(), "openssl made no certificates");
        }
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
        if let Some(Surroundings { script, words }) = &self.surroundings {
            daemon.args(["unshare", "--mount", "--propagation", "private", "sh", "-c", script]);
            daemon.arg("sh").args(words);
        }
        // It ends with the test, also with one that is killed.
        let daemon = daemon
            .args(["/usr/bin/setpriv", "--pdeathsig", "TERM", "/usr/sbin/dockerd"])
            .args(["--host", &self.host(), "--data-root", &at("data"), "--exec-root", &at("exec")])
            .args(["--pidfile", &at("pid"), "--iptables=false", "--ip6tables=false"])
            .args(["--bridge=none", "--storage-driver=overlay2", "--shutdown-timeout=2"])
            .args(self.tls_arguments())
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

    fn tls_arguments(&self) -> Vec<String> {
        let Some(port) = self.port else { return Vec::new() };
        let at = |name: &str| self.certificates().join(name).display().to_string();
        let words =
            ["--tlsverify", "--tlscacert", &at("ca.pem"), "--tlscert", &at("server-cert.pem")];
        let more =
            ["--tlskey", &at("server-key.pem"), "--host", &format!("tcp://127.0.0.1:{port}")];
        words.iter().chain(&more).map(|word| (*word).to_owned()).collect()
    }

    /// Where the certificates are.
    pub(crate) fn certificates(&self) -> PathBuf {
        self.root.join("certificates")
    }

    /// Its port, for `DOCKER_HOST`.
    pub(crate) fn port_host(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port.unwrap())
    }

    /// The same call in the engine's mount namespace.
    pub(crate) fn beside(&self, call: super::Call, who: super::Who) -> super::Call {
        let inner = call.into_command();
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.pid()));
        command.arg(format!("--wd={}", inner.get_current_dir().unwrap().display()));
        command.arg(inner.get_program()).args(inner.get_args()).env_clear();
        for (name, value) in inner.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        super::Call::new(command).by(who)
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
