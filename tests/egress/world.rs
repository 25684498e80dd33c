//! A small internet of a test's own (`world.py`), and sandboxes that live in it.
//!
//! It is a network namespace with public addresses on its loopback. skep is called in it, so what
//! is the host's network for a sandbox is this one: rules, names and addresses are what they would
//! be outside, nothing of the machine's network is touched, and every packet can be looked at.

use crate::harness::{Call, Lab, WITHOUT_NFT, Who, running_as_root, skip};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub(super) const ORIGIN: &str = "93.184.216.34";
pub(super) const OTHER: &str = "93.184.216.35";
pub(super) const NAMES: &str = "93.184.216.53";

const PROGRAM: &str = include_str!("world.py");

pub(super) struct World<'a> {
    pub(super) lab: &'a Lab,
    /// What it made: certificates, keys, repositories.
    pub(super) place: PathBuf,
    process: Child,
    talk: RefCell<(Option<ChildStdin>, BufReader<ChildStdout>)>,
    settings: PathBuf,
    /// How connections are led to the proxy in it.
    pub(super) method: Cell<Method>,
}

/// What the host of a world has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// `nft`, as this host.
    Redirect,
    /// No `nft`, and interfaces of user space.
    Tun,
}

/// Runs a test as root and as an ordinary user, each in a world with these services.
#[track_caller]
pub(super) fn in_world(services: &[&str], test: impl Fn(&World<'_>)) {
    in_world_as([Who::root(), Who::user()], services, test);
}

/// The same, for whom it is enough to be one of them.
#[track_caller]
pub(super) fn in_world_as<const N: usize>(
    callers: [Result<Who, String>; N],
    services: &[&str],
    test: impl Fn(&World<'_>),
) {
    if !running_as_root() {
        return skip("a network namespace with public addresses needs root");
    }
    crate::harness::for_each(callers, |lab| test(&World::start(lab, services)));
}

impl<'a> World<'a> {
    fn start(lab: &'a Lab, services: &[&str]) -> Self {
        let place = lab.root.join("world");
        std::fs::create_dir(&place).unwrap();
        let owner = match Who::user() {
            Ok(who) => who.ids().0.to_string(),
            Err(reason) => panic!("{reason}"),
        };
        let mut process = Command::new("unshare")
            .args(["--net", "/usr/bin/python3", "-c", PROGRAM])
            .arg(&place)
            .arg(owner)
            .args(services)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the world did not start");
        lab.write("ca.crt", std::fs::read(place.join("ca.pem")).unwrap());
        let settings = lab.root.join("config");
        let text = format!("[egress]\nresolvers = [\"{NAMES}:53\"]\n");
        lab.write(settings.join("skep/config.toml"), text);
        Self {
            lab,
            place,
            process,
            talk: RefCell::new((input, output)),
            settings,
            method: Cell::new(Method::Redirect),
        }
    }

    /// Adds to the user's settings.
    pub(super) fn settings(&self, text: &str) {
        let text = format!("[egress]\nresolvers = [\"{NAMES}:53\"]\n{text}");
        self.lab.write(self.settings.join("skep/config.toml"), text);
    }

    /// A call of skep in this world, by the lab's caller.
    pub(super) fn skep<I: IntoIterator<Item: AsRef<OsStr>>>(&self, arguments: I) -> Call {
        let typed = self.lab.skep(arguments).into_command();
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.process.id()));
        let (uid, gid) = self.lab.who.ids();
        match self.method.get() {
            Method::Redirect => {
                command.arg("setpriv").arg(format!("--reuid={uid}")).arg(format!("--regid={gid}"));
                command.arg("--clear-groups");
            }
            Method::Tun => {
                command.args(["unshare", "-m", "sh", "-c", WITHOUT_NFT, "sh", "tun"]);
                command.args([uid.to_string(), gid.to_string()]);
            }
        }
        command.arg(typed.get_program()).args(typed.get_args());
        command.env_clear().current_dir(&self.lab.project);
        for (name, value) in typed.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command.env("XDG_CONFIG_HOME", &self.settings);
        Call::new(command).by(self.lab.who)
    }

    /// `skep run --allow RULE… -- sh -c SCRIPT`.
    pub(super) fn run(&self, rules: &[&str], script: &str) -> crate::harness::Ran {
        self.call(rules, script).run()
    }

    pub(super) fn call(&self, rules: &[&str], script: &str) -> Call {
        let flags = rules.iter().flat_map(|rule| ["--allow", rule]);
        self.skep(["run"]).args(flags).args(["--", "sh", "-c", script])
    }

    /// A process in it that is no sandbox's.
    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// What has been heard so far.
    pub(super) fn heard(&self) -> Value {
        let mut talk = self.talk.borrow_mut();
        let (input, output) = &mut *talk;
        writeln!(input.as_mut().unwrap(), "?").unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Where packets went, each place once.
    pub(super) fn packets(&self) -> Vec<String> {
        let mut packets: Vec<String> =
            serde_json::from_value(self.heard()["packets"].clone()).unwrap();
        packets.sort();
        packets.dedup();
        packets
    }

    /// The requests that reached a web server.
    pub(super) fn requests(&self) -> Vec<Value> {
        self.heard()["requests"].as_array().unwrap().clone()
    }
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        // Its input ends, and so does it, with all it started.
        self.talk.borrow_mut().0 = None;
        let _ = self.process.wait();
    }
}
