//! A hundred attempts to get out, by one program (`tests/attack/escape.c`), run inside a sandbox,
//! in a user namespace without any fence (the control), and under bubblewrap (a test of the test).

use crate::harness::{Call, Lab, attack, for_both, skip};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;

/// What a run of the program said: name of the attempt, and how it was refused (`None`: it worked).
pub(crate) fn attempts(call: Call) -> BTreeMap<String, Option<String>> {
    let ran = call.run();
    let text = ran.text();
    // The last attempt is to kill number 1: where that works nobody is left to tell.
    let killed = text.lines().last().is_some_and(|line| line.contains(" shadow"));
    assert!(
        killed || text.lines().any(|line| line == "end"),
        "it did not get to its end: {}",
        ran.describe()
    );
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        match (words.next(), words.next(), words.next()) {
            (Some("open"), Some(name), None) => found.insert(name.to_owned(), None),
            (Some("shut"), Some(name), Some(why)) => {
                found.insert(name.to_owned(), Some(why.to_owned()))
            }
            _ => None,
        };
    }
    if killed {
        found.insert("kill-init".to_owned(), None);
    }
    found
}

pub(crate) fn open(found: &BTreeMap<String, Option<String>>) -> Vec<&str> {
    found.iter().filter(|(_, why)| why.is_none()).map(|(name, _)| name.as_str()).collect()
}

/// The program, where the caller can run it.
pub(crate) fn place(lab: &Lab) -> Option<PathBuf> {
    let program = attack::program("escape")?;
    let copy = lab.project.join("escape");
    std::fs::copy(program, &copy).unwrap();
    lab.who.own(&copy);
    Some(copy)
}

#[test]
fn proc_4_to_12_a_hundred_ways_out_are_shut() {
    for_both(|lab| {
        let Some(program) = place(lab) else { return };
        let before = lab.tree();
        let found = attempts(lab.skep(["run", "--"]).arg(&program));
        assert_eq!(open(&found), Vec::<&str>::new(), "these worked");
        assert!(found.len() > 90, "only {} attempts were made", found.len());
        // Calls that do not exist say so; a filter that is only an allow list would say EPERM.
        for name in ["io_uring", "unknown-600", "unknown-1023", "clone3-user"] {
            assert_eq!(found[name].as_deref(), Some("ENOSYS"), "{name}");
        }
        for name in ["keyctl", "bpf", "unshare-user", "mount-tmpfs", "i386-mount", "tiocsti-high"] {
            assert_eq!(found[name].as_deref(), Some("EPERM"), "{name}");
        }
        lab.tree().assert_equals(&before, "the project was changed");
    });
}

/// The program itself refuses to be run by the root of a host: most of it would work.
#[test]
fn the_attacks_are_never_made_on_the_host() {
    crate::harness::for_each([crate::harness::Who::root()], |lab| {
        let Some(program) = place(lab) else { return };
        let ran = lab.program(&program).arg("2").run().exits(9);
        assert!(!ran.text().contains("shut"), "{}", ran.describe());
    });
}

/// The same program where nothing is fenced: what works here was refused above by skep and not by
/// luck. A user namespace of its own, so that it works without harm and without being root.
#[test]
fn proc_4_to_12_control_in_a_bare_namespace_most_of_it_works() {
    for_both(|lab| {
        let Some(program) = place(lab) else { return };
        let call = lab
            .program("unshare")
            .args(["-Urmpfn", "--mount-proc", "sh", "-c", "\"$0\" 1; :"])
            .arg(&program);
        let found = attempts(call);
        let expected = [
            "init-environment",
            "init-root",
            "init-descriptors",
            "init-ptrace",
            "init-getfd",
            "init-namespace-mnt",
            "unshare-user",
            "unshare-mount",
            "clone-user",
            "clone3-user",
            "mount-tmpfs",
            "mount-bind",
            "mount-proc",
            "fsopen",
            "chroot",
            "userfaultfd",
            "io_uring",
            "keyctl",
            "add_key",
            "i386-unshare",
            "tiocsti",
            "tiocsti-high",
            "af_packet",
            "netlink-netfilter",
            "raw-socket",
            "new-privileges",
        ];
        let open = open(&found);
        let missing: Vec<_> = expected.iter().filter(|name| !open.contains(name)).collect();
        assert!(missing.is_empty(), "these do not work even unfenced: {missing:?}");
    });
}

/// bubblewrap makes the same view but has no filter unless it is given one: the program must see
/// both.
#[test]
fn proc_4_to_12_bubblewrap_is_told_apart() {
    for_both(|lab| {
        let Some(program) = place(lab) else { return };
        if !std::path::Path::new("/usr/bin/bwrap").exists() {
            return skip("bwrap is not installed");
        }
        let call = lab
            .program("bwrap")
            .args(["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"])
            .args(["--tmpfs", "/tmp", "--ro-bind"])
            .args([&program, &PathBuf::from("/tmp/escape")])
            .args(["--cap-drop", "ALL", "--chdir", "/tmp", "/tmp/escape"]);
        let found = attempts(call);
        for name in ["write-system", "write-etc", "umount", "init-memory", "network"] {
            assert!(found[name].is_some(), "{name} worked under bubblewrap");
        }
        for name in ["unshare-user", "io_uring", "keyctl", "tiocsti", "userfaultfd"] {
            assert!(found[name].is_none(), "{name} is shut under bubblewrap: {:?}", found[name]);
        }
    });
}

/// Listeners of the host: an abstract socket, one in the project, a TCP port.
struct Host {
    name: String,
    path: PathBuf,
    port: u16,
    _listeners: (UnixListener, UnixListener, TcpListener),
}

impl Host {
    fn listen(lab: &Lab) -> Self {
        let name = format!("skep-test-{}", lab.root.file_name().unwrap().display());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let path = lab.project.join("s");
        let listeners = (
            UnixListener::bind_addr(&address).unwrap(),
            UnixListener::bind(&path).unwrap(),
            TcpListener::bind("127.0.0.1:0").unwrap(),
        );
        lab.who.own(&path);
        let port = listeners.2.local_addr().unwrap().port();
        Self { name, path, port, _listeners: listeners }
    }

    /// Nobody has knocked.
    fn assert_quiet(&self) {
        self._listeners.0.set_nonblocking(true).unwrap();
        self._listeners.1.set_nonblocking(true).unwrap();
        self._listeners.2.set_nonblocking(true).unwrap();
        assert!(self._listeners.0.accept().is_err(), "the abstract socket was reached");
        assert!(self._listeners.1.accept().is_err(), "the socket in the project was reached");
        assert!(self._listeners.2.accept().is_err(), "the port was reached");
    }

    fn words(&self) -> Vec<String> {
        vec![
            format!("ABSTRACT={}", self.name),
            format!("SOCKET={}", self.path.display()),
            format!("PORT={}", self.port),
        ]
    }
}

#[test]
fn proc_10_sockets_of_the_host_cannot_be_reached() {
    for_both(|lab| {
        let Some(program) = place(lab) else { return };
        let host = Host::listen(lab);
        let flags = host.words().into_iter().flat_map(|word| ["--env".to_owned(), word]);
        let found = attempts(lab.skep(["run"]).args(flags).arg("--").arg(&program));
        for name in ["abstract-socket", "path-socket", "host-port"] {
            assert!(found[name].is_some(), "{name} worked");
        }
        host.assert_quiet();
        // Control: outside, the same words reach all three.
        let found = attempts(lab.program("env").args(host.words()).arg(&program).arg("sockets"));
        for name in ["abstract-socket", "path-socket", "host-port"] {
            assert!(found[name].is_none(), "{name} does not work outside: {:?}", found[name]);
        }
    });
}

/// A segment of shared memory, removed at the end.
struct Segment(i32);

impl Segment {
    const MAKE: &str = "import ctypes,sys; c=ctypes.CDLL(None); \
        i=c.shmget(int(sys.argv[1]),4096,0o1666); print(i); sys.exit(i<0)";

    fn new(lab: &Lab, key: i32) -> Self {
        let ran = lab.program("/usr/bin/python3").args(["-c", Self::MAKE, &key.to_string()]).run();
        Self(ran.ok().text().parse().unwrap())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let _ = std::process::Command::new("ipcrm").args(["-m", &self.0.to_string()]).output();
    }
}

#[test]
fn proc_10_shared_memory_of_the_host_is_another() {
    for_both(|lab| {
        let Some(program) = place(lab) else { return };
        let mut bytes = [0; 4];
        std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
        let key = i32::from_le_bytes(bytes) & 0x7fff_ffff;
        let _segment = Segment::new(lab, key);
        let word = format!("SHMEM={key}");
        let found = attempts(lab.skep(["run", "--env", &word, "--"]).arg(&program));
        assert_eq!(found["host-shared-memory"].as_deref(), Some("ENOENT"));
        let found = attempts(lab.program("env").arg(&word).arg(&program).arg("sockets"));
        assert!(found["host-shared-memory"].is_none(), "{:?}", found["host-shared-memory"]);
    });
}
