//! A server that is replaced while it is asked: the listening socket stays, so nobody is turned away.

use crate::harness::{Lab, TOKEN, Who, for_each, outside, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Starts a server on a socket that somebody else holds, as systemd does.
fn activate(lab: &Lab, socket: &TcpListener, more: &[&str]) -> Child {
    let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"";
    let log = std::fs::File::options().append(true).create(true).open(lab.root.join("server.log"));
    let mut command = lab
        .program("sh")
        .args(["-c", script])
        .arg(&lab.binary)
        .args(["serve", "--token-file"])
        .arg(lab.token_file())
        .args(more)
        .into_command();
    let held = rustix::fd::OwnedFd::from(socket.try_clone().unwrap());
    command.stdin(Stdio::from(held)).stdout(Stdio::null()).stderr(log.unwrap());
    command.spawn().unwrap()
}

/// One request on a connection of its own; what was answered, or why nothing was.
fn ask(port: u16, line: &str, body: &str) -> Result<String, String> {
    let mut stream =
        TcpStream::connect(("127.0.0.1", port)).map_err(|e| format!("connect: {e}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let request = format!(
        "{line} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).map_err(|e| format!("write: {e}"))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|e| format!("read: {e}"))?;
    match answer.starts_with("HTTP/1.1 20") {
        true => Ok(answer),
        false => Err(format!("{line}: {answer:?}")),
    }
}

#[test]
fn a_replaced_server_turns_nobody_away() {
    for_each([Who::user()], |lab| {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let mut server = activate(lab, &socket, &[]);
        let create = format!("{{\"name\":\"s\",\"project\":{:?}}}", lab.project);
        ask(port, "POST /v1/sandboxes", &create).unwrap();
        let running = "{\"command\":[\"sh\",\"-c\",\"echo begun; exec sleep 600\"]}";
        ask(port, "POST /v1/sandboxes/s/execs", running).unwrap();
        let (over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
        let failures: Vec<String> = std::thread::scope(|scope| {
            let load: Vec<_> = (0..6)
                .map(|number| {
                    let (over, answered) = (&over, &answered);
                    scope.spawn(move || {
                        let mut failures = Vec::new();
                        while !over.load(Ordering::SeqCst) {
                            let (line, body) = match number {
                                0 => (
                                    "POST /v1/sandboxes/s/execs",
                                    "{\"command\":[\"true\"],\"wait\":true}",
                                ),
                                1 => ("GET /v1/sandboxes/s/changes", ""),
                                _ => ("GET /v1/sandboxes/s?brief=true", ""),
                            };
                            match ask(port, line, body) {
                                Ok(_) => drop(answered.fetch_add(1, Ordering::SeqCst)),
                                Err(why) => failures.push(why),
                            }
                        }
                        failures
                    })
                })
                .collect();
            for _ in 0..3 {
                let before = answered.load(Ordering::SeqCst);
                wait_for("requests", 60, || {
                    (answered.load(Ordering::SeqCst) > before + 40).then_some(())
                });
                let pid = Pid::from_raw(server.id() as i32).unwrap();
                kill_process(pid, Signal::TERM).unwrap();
                let ended = wait_for("the old server to end", 60, || server.try_wait().unwrap());
                assert!(ended.success(), "{ended}");
                server = activate(lab, &socket, &[]);
            }
            let before = answered.load(Ordering::SeqCst);
            wait_for("requests", 60, || {
                (answered.load(Ordering::SeqCst) > before + 40).then_some(())
            });
            over.store(true, Ordering::SeqCst);
            load.into_iter().flat_map(|one| one.join().unwrap()).collect()
        });
        assert!(failures.is_empty(), "{failures:#?}\n{}", lab.server_log());
        assert!(answered.load(Ordering::SeqCst) >= 160);
        // What ran inside was not touched by any of it.
        let execs = ask(port, "GET /v1/sandboxes/s/execs", "").unwrap();
        assert_eq!(execs.matches("\"running\":true").count(), 1, "{execs}");
        let pid = Pid::from_raw(server.id() as i32).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        wait_for("the server to end", 60, || server.try_wait().unwrap());
        assert_eq!(lab.keepers().len(), 1);
        drop(outside::processes_of(&lab.root));
    });
}

/// `--listen` did nothing where systemd had passed a socket in.
#[test]
fn what_is_typed_is_listened_on_beside_what_is_passed_in() {
    for_each([Who::user()], |lab| {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        lab.skep(["ls"]).run().ok();
        let beside = lab.state.join("beside.sock");
        let mut server =
            activate(lab, &socket, &["--listen", &format!("unix:{}", beside.display())]);
        ask(port, "GET /v1/sandboxes", "").unwrap();
        let host = format!("unix://{}", beside.display());
        lab.skep(["ls", "--all"]).env("SKEP_HOST", host).run().ok();
        kill_process(Pid::from_raw(server.id() as i32).unwrap(), Signal::TERM).unwrap();
        wait_for("the server to end", 60, || server.try_wait().unwrap());
        assert!(!beside.exists(), "a socket that nobody listens on");
    });
}

/// The units that are shipped: read by systemd's own checker, and what restarts depend on.
#[test]
fn the_shipped_units_are_sound() {
    let units = concat!(env!("CARGO_MANIFEST_DIR"), "/../../resources/systemd");
    let checker = std::process::Command::new("systemd-analyze").arg("--version").output();
    if checker.is_err() {
        crate::harness::skip("systemd-analyze is not installed");
        return;
    }
    for (kind, flag) in [("system", "--system"), ("user", "--user")] {
        let place = tempfile::tempdir().unwrap();
        for name in ["skep.service", "skep.socket"] {
            let text = std::fs::read_to_string(format!("{units}/{kind}/{name}")).unwrap();
            // The program is checked for being there.
            let text = text.replace("/usr/bin/skep", env!("CARGO_BIN_EXE_skep"));
            std::fs::write(place.path().join(name), text).unwrap();
        }
        let done = std::process::Command::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=no", flag])
            .arg(place.path().join("skep.service"))
            .arg(place.path().join("skep.socket"))
            .env("XDG_RUNTIME_DIR", place.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        let ours: Vec<_> = said.lines().filter(|line| line.contains("skep.")).collect();
        assert!(done.status.success() && ours.is_empty(), "{kind}: {said}");
        let service = std::fs::read_to_string(format!("{units}/{kind}/skep.service")).unwrap();
        // Keepers outlive the server: only the server itself is told to end.
        for needed in ["KillMode=process", "Delegate=yes", "Type=notify"] {
            assert!(service.lines().any(|line| line == needed), "{kind}: {needed}");
        }
        let words = service.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        let mut words = words.split(' ');
        assert_eq!(words.next(), Some("/usr/bin/skep"));
        let help = std::process::Command::new(env!("CARGO_BIN_EXE_skep"))
            .args(words)
            .arg("--help")
            .output()
            .unwrap();
        assert!(help.status.success(), "{kind}");
    }
}

/// Below a directory of its own, as packagers do it.
fn make(lab: Option<&Lab>, target: &str, place: &std::path::Path) {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut command = std::process::Command::new("make");
    if let Some(lab) = lab {
        command.env("HOME", &lab.home).env("SKEP_HOME", &lab.state);
    }
    let words = ["-s", "-C", root, target, "PREFIX=/opt/skep"];
    let made = command.args(words).arg(format!("DESTDIR={}", place.display())).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// What goes is what was installed. Work that nobody reviewed is not part of the program.
#[test]
fn clean_10_an_uninstall_takes_no_work_with_it() {
    for_each([Who::user()], |lab| {
        lab.write("a", "a\n");
        lab.run_script("echo work > b").run().ok();
        let (project, before) = (lab.tree(), lab.sandboxes());
        let place = tempfile::tempdir().unwrap();
        make(Some(lab), "install-units", place.path());
        let other = place.path().join("opt/skep/lib/systemd/system/other.service");
        std::fs::write(&other, "").unwrap();
        make(Some(lab), "uninstall", place.path());
        let left = std::process::Command::new("find")
            .arg(place.path())
            .args(["-type", "f"])
            .output()
            .unwrap();
        let left = String::from_utf8_lossy(&left.stdout).into_owned();
        assert_eq!(left.trim(), other.to_str().unwrap());
        lab.tree().assert_equals(&project, "the project was changed");
        assert_eq!(lab.sandboxes(), before);
        let name = before[0]["name"].as_str().unwrap();
        assert_eq!(lab.diff(name)["changes"][0]["path"], "b");
    });
}

/// They started `/usr/bin/skep`, wherever skep was, and nobody installed them.
#[test]
fn the_installed_units_start_what_is_installed() {
    let place = tempfile::tempdir().unwrap();
    make(None, "install-units", place.path());
    for kind in ["system", "user"] {
        let units = place.path().join("opt/skep/lib/systemd").join(kind);
        let service = std::fs::read_to_string(units.join("skep.service")).unwrap();
        assert!(service.contains("\nExecStart=/opt/skep/bin/skep serve\n"), "{service}");
        assert!(units.join("skep.socket").is_file());
    }
}
