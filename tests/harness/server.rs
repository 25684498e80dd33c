//! A server of the lab's own, and plain HTTP to it by `curl`.

use super::call::Call;
use super::lab::Lab;
use super::wait::wait_for;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The bootstrap token of every lab.
pub(crate) const TOKEN: &str = "bootstrap-token-of-a-test-0123456789";

/// A running `skep serve`, over TCP and its unix socket.
pub(crate) struct Server<'a> {
    lab: &'a Lab,
    /// Its state directory.
    home: PathBuf,
    child: Child,
    /// Where it listens.
    pub(crate) port: u16,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    /// The body as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// Asserts a status.
    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Self {
        let body = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, status, "{body}");
        self
    }

    /// A header, in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let start = format!("{name}:");
        let line = self.headers.lines().find(|line| line.to_lowercase().starts_with(&start))?;
        Some(line[start.len()..].trim().to_owned())
    }
}

impl Lab {
    /// Where the lab's bootstrap token is.
    pub(crate) fn token_file(&self) -> PathBuf {
        let path = self.root.join("token");
        if !path.exists() {
            fs::write(&path, TOKEN).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            self.who.own(&path);
        }
        path
    }

    /// Starts a server and waits until it answers.
    pub(crate) fn serve(&self, more: &[&str]) -> Server<'_> {
        self.serve_in(&self.state, &[], more)
    }

    /// One with another state directory, and variables of its own.
    pub(crate) fn serve_in(
        &self,
        home: &Path,
        variables: &[(&str, &str)],
        more: &[&str],
    ) -> Server<'_> {
        self.serve_by(self.program(&self.binary), home, variables, more)
    }

    fn serve_by(
        &self,
        program: Call,
        home: &Path,
        variables: &[(&str, &str)],
        more: &[&str],
    ) -> Server<'_> {
        let port = free_port();
        let token = self.token_file();
        let log = fs::File::create(self.root.join("server.log")).unwrap();
        let mut command = program
            .args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--listen"])
            .arg(format!("unix:{}", home.join("skep.sock").display()))
            .arg("--token-file")
            .arg(token)
            .args(more)
            .into_command();
        command.env("SKEP_HOME", home).envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().unwrap();
        let server = Server { lab: self, home: home.to_owned(), child, port };
        wait_for("the server", 30, || {
            Command::new("curl")
                .args(["-sf", "-o", "/dev/null", &server.url("/health/live")])
                .status()
                .is_ok_and(|status| status.success())
                .then_some(())
        });
        server
    }

    /// One whose system calls on one file strace tampers with, in all of its processes: `inject` is said as
    /// strace takes it, and counts the calls of each process. Without one everything goes well.
    pub(crate) fn serve_meeting(&self, file: &Path, inject: Option<&str>) -> Server<'_> {
        let Some(inject) = inject else { return self.serve(&[]) };
        let calls = inject.split(':').next().unwrap_or_default();
        // The tracer is the grandchild: what is started here is the server itself.
        let strace = self.program("strace").args(["-D", "-f", "-qq", "-o"]);
        let strace = strace.arg(self.root.join("trace")).arg("-P").arg(file);
        let strace = strace.args(["-e", &format!("trace={calls}"), "-e"]);
        let strace = strace.arg(format!("inject={inject}")).arg(&self.binary);
        self.serve_by(strace, &self.state, &[], &[])
    }

    /// What the last server wrote to its log.
    pub(crate) fn server_log(&self) -> String {
        fs::read_to_string(self.root.join("server.log")).unwrap_or_default()
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Server<'_> {
    /// A URL of it.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// `unix://…`, for `--host`.
    pub(crate) fn socket(&self) -> String {
        format!("unix://{}", self.home.join("skep.sock").display())
    }

    /// The process.
    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// A request as `curl` takes it, without a token.
    pub(crate) fn bare(&self, arguments: &[&str], path: &str) -> Reply {
        let head = tempfile::NamedTempFile::new().unwrap();
        let done = Command::new("curl")
            .args(["-s", "--max-time", "60", "-D"])
            .arg(head.path())
            .args(arguments)
            .arg(self.url(path))
            .output()
            .unwrap();
        let headers = fs::read_to_string(head.path()).unwrap();
        let status = headers.lines().rfind(|line| line.starts_with("HTTP/"));
        let status = status.and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
        Reply { status, headers, body: done.stdout }
    }

    /// A request with a token.
    pub(crate) fn with(&self, token: &str, arguments: &[&str], path: &str) -> Reply {
        let authorization = format!("Authorization: Bearer {token}");
        let mut all = vec!["-H", authorization.as_str()];
        all.extend(arguments);
        self.bare(&all, path)
    }

    /// `GET` with the bootstrap token.
    pub(crate) fn get(&self, path: &str) -> Reply {
        self.with(TOKEN, &[], path)
    }

    /// `POST` of JSON with the bootstrap token.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, body, &[])
    }

    /// JSON by any method, with more headers.
    pub(crate) fn send(&self, method: &str, path: &str, body: &Value, more: &[&str]) -> Reply {
        let body = body.to_string();
        let mut all = vec!["-X", method, "-H", "Content-Type: application/json", "-d", &body];
        all.extend(more);
        self.with(TOKEN, &all, path)
    }

    /// Makes a sandbox of the lab's project.
    #[track_caller]
    pub(crate) fn create(&self, name: &str) -> Value {
        let body = serde_json::json!({ "name": name, "project": self.lab.project });
        self.post("/v1/sandboxes", &body).is(201).json()
    }

    /// Runs a script in a sandbox and waits for its end.
    #[track_caller]
    pub(crate) fn script(&self, name: &str, script: &str) -> Value {
        let body = serde_json::json!({ "command": ["sh", "-c", script], "wait": true });
        self.post(&format!("/v1/sandboxes/{name}/execs"), &body).is(200).json()
    }

    /// Kills it, and nothing else.
    pub(crate) fn kill(mut self) {
        self.kill_now();
    }

    /// The same, for one that is replaced by the next.
    pub(crate) fn kill_now(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end, and waits.
    #[track_caller]
    pub(crate) fn stop(mut self) {
        let pid = rustix::process::Pid::from_raw(self.pid()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        wait_for("the server to end", 30, || self.child.try_wait().unwrap());
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("-- log of the server\n{}", self.lab.server_log());
        }
    }
}
