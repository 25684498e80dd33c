//! A PostgreSQL of a test's own: in a temporary directory, on a private socket, as an unprivileged
//! user; stopped at the end.

// Each test program that includes this file uses another part of it.
#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// `nobody` on Debian; PostgreSQL refuses to run as root.
const NOBODY: u32 = 65_534;

/// A running server.
pub(crate) struct Postgres {
    root: PathBuf,
    bin: PathBuf,
    server: Option<Child>,
}

impl Postgres {
    /// Starts one; `None` where Debian's package is not installed.
    pub(crate) fn start() -> Option<Self> {
        let bin = programs()?;
        let root = tempfile::Builder::new().prefix("skep-pg-").tempdir_in("/tmp").unwrap().keep();
        if is_root() {
            std::os::unix::fs::chown(&root, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
        let mut server = Self { root, bin, server: None };
        let data = server.data("data");
        let options = ["--no-sync", "--auth=trust", "--username=skep", "--encoding=UTF8"];
        let done = server.command("initdb").args(options).arg("-D").arg(data).output().unwrap();
        assert!(done.status.success(), "initdb: {}", String::from_utf8_lossy(&done.stderr));
        server.resume();
        Some(server)
    }

    fn data(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A program of the package, as the user the server runs as.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        command.current_dir("/").env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C");
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// Starts the server again on what it kept.
    pub(crate) fn resume(&mut self) {
        assert!(self.server.is_none());
        self.server = Some(self.run("data", "5432"));
        self.wait_until_ready("5432");
    }

    fn run(&self, data: &str, port: &str) -> Child {
        let log = fs::File::create(self.root.join(format!("{data}.log"))).unwrap();
        self.command("postgres")
            .arg("-D")
            .arg(self.data(data))
            .args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=8MB"])
            .args(["-c", "max_connections=80", "-p", port, "-c"])
            .arg(format!("unix_socket_directories={}", self.root.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    fn wait_until_ready(&self, port: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let mut ready = self.command("pg_isready");
            let ready = ready.arg("-q").arg("-h").arg(&self.root).args(["-p", port]);
            if ready.status().unwrap().success() {
                return;
            }
            assert!(Instant::now() < deadline, "PostgreSQL did not start: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.root.join("data.log")).unwrap_or_default()
    }

    /// The server's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.server.as_ref().unwrap().id()
    }

    /// Ends it at once, as a crash would.
    pub(crate) fn crash(&mut self) {
        self.end("immediate");
    }

    /// Somebody has killed it. (`pg_ctl` would wait a minute for a process that nobody has taken note of.)
    pub(crate) fn killed(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.wait();
        }
    }

    fn end(&mut self, mode: &str) {
        let Some(mut server) = self.server.take() else { return };
        let mut stop = self.command("pg_ctl");
        let stop = stop.args(["stop", "-s", "-w", "-m", mode, "-D"]).arg(self.data("data"));
        let _ = stop.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        let _ = server.wait();
    }

    /// A real standby that follows this server, on a second port of the same socket directory.
    pub(crate) fn standby(&self) -> Standby<'_> {
        let data = self.data("standby");
        let mut copy = self.command("pg_basebackup");
        let copy = copy.args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-U", "skep", "-h"]);
        let done = copy.arg(&self.root).arg("-D").arg(data).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let server = self.run("standby", "5433");
        self.wait_until_ready("5433");
        Standby { primary: self, server }
    }

    /// The directory of its socket.
    pub(crate) fn socket_directory(&self) -> &Path {
        &self.root
    }

    /// The address, for tables in the schema of this name, which is made.
    pub(crate) fn url(&self, schema: &str) -> String {
        self.sql(&format!("CREATE SCHEMA IF NOT EXISTS {schema}"));
        self.url_at(&self.root, schema)
    }

    /// The same database through a socket in another directory.
    pub(crate) fn url_at(&self, directory: &Path, schema: &str) -> String {
        format!(
            "postgresql:///postgres?host={}&user=skep&options=-csearch_path%3D{schema}",
            directory.display()
        )
    }

    /// Runs SQL by `psql`, an oracle that is not skep; the answer without decoration.
    pub(crate) fn sql(&self, sql: &str) -> String {
        let done = self
            .command("psql")
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "skep", "-h"])
            .arg(&self.root)
            .args(["-d", "postgres", "-c", sql])
            .output()
            .unwrap();
        assert!(done.status.success(), "{sql}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.end("fast");
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}

/// A standby; stopped when dropped.
pub(crate) struct Standby<'a> {
    primary: &'a Postgres,
    server: Child,
}

impl Standby<'_> {
    /// Its address, for tables in this schema.
    pub(crate) fn url(&self, schema: &str) -> String {
        format!("{}&port=5433", self.primary.url_at(&self.primary.root, schema))
    }

    /// Makes it a server that takes changes.
    pub(crate) fn promote(&self) {
        let mut promote = self.primary.command("pg_ctl");
        let promote = promote.args(["promote", "-s", "-w", "-D"]).arg(self.primary.data("standby"));
        assert!(promote.status().unwrap().success());
    }
}

impl Drop for Standby<'_> {
    fn drop(&mut self) {
        let mut stop = self.primary.command("pg_ctl");
        let stop = stop.args(["stop", "-s", "-w", "-m", "fast", "-D"]);
        let _ = stop.arg(self.primary.data("standby")).stderr(Stdio::null()).status();
        let _ = self.server.wait();
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where Debian puts the server's programs; the newest version.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        versions.map(|entry| entry.path().join("bin")).filter(|bin| bin.is_dir()).collect();
    found.sort();
    match found.pop() {
        Some(bin) => Some(bin),
        None => {
            let strict = std::env::var_os("SKEP_TEST_STRICT").is_some();
            assert!(!strict, "PostgreSQL is not installed; see ci/provision");
            println!("skipped: PostgreSQL is not installed");
            None
        }
    }
}
