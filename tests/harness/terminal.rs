//! A real terminal for skep: a pty whose other end the test reads and types on.

use super::call::Call;
use rustix::fd::OwnedFd;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

/// A program on a terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    master: File,
    seen: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Terminal {
    /// Starts a call on a new terminal of this size. `setsid -c` makes it the controlling one, so
    /// that Ctrl-C and resizing reach the program as they would from a person.
    pub(crate) fn start(call: Call, rows: u16, columns: u16) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        resize(&master, rows, columns);
        let path = name.to_str().unwrap();
        let slave =
            || OpenOptions::new().read(true).write(true).custom_flags(NOCTTY).open(path).unwrap();
        let who = call.who();
        let inner = call.into_command();
        let mut command = std::process::Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(inner.get_program()).args(inner.get_args());
        if let Some(who) = who {
            who.dress(&mut command);
        }
        command.env_clear().env("TERM", "xterm");
        for (name, value) in inner.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        if let Some(directory) = inner.get_current_dir() {
            command.current_dir(directory);
        }
        command.stdin(Stdio::from(slave())).stdout(slave()).stderr(slave());
        let child = command.spawn().unwrap();
        let master = File::from(master);
        let seen = Arc::new(Mutex::new(Vec::new()));
        read_all(master.try_clone().unwrap(), Arc::clone(&seen));
        Self { master, seen, child }
    }

    /// Types.
    pub(crate) fn type_in(&mut self, bytes: impl AsRef<[u8]>) {
        self.master.write_all(bytes.as_ref()).unwrap();
    }

    /// Signals the program: `setsid` has become it.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Changes the size, as a window manager does.
    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        resize(&self.master, rows, columns);
    }

    /// What was shown so far.
    pub(crate) fn screen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    /// Waits until something is shown.
    #[track_caller]
    pub(crate) fn wait_to_show(&self, text: &str) {
        let start = std::time::Instant::now();
        while !self.screen().contains(text) {
            assert!(start.elapsed().as_secs() < 20, "`{text}` is not shown: {}", self.screen());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// How the terminal is set: what a program must leave as it found it.
    pub(crate) fn modes(&self) -> String {
        let modes = rustix::termios::tcgetattr(&self.master).unwrap();
        let (input, output) = (modes.input_modes, modes.output_modes);
        format!("{input:?} {output:?} {:?} {:?}", modes.control_modes, modes.local_modes)
    }

    /// Waits for the end.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        let start = std::time::Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed().as_secs() < 20, "does not end: {}", self.screen());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `O_NOCTTY`: the terminal is for the program, not for us.
const NOCTTY: i32 = 0o400;

fn resize(terminal: impl rustix::fd::AsFd, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}

fn read_all(mut master: File, seen: Arc<Mutex<Vec<u8>>>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        // The last holder of the other end gone is an error here (EIO), and the end.
        while let Ok(length @ 1..) = master.read(&mut buffer) {
            seen.lock().unwrap().extend_from_slice(&buffer[..length]);
        }
    });
}
