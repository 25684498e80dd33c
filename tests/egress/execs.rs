//! The log says which exec made a connection, or nothing, and cannot be talked into another.

use crate::harness::{Lab, Who, for_both, for_each, wait_for};
use serde_json::Value;

/// Tries each address given, transparently, by the proxy and by name, and waits for the refusal.
const TRY: &str = r#"
import os,socket,sys
host=sys.argv[1]
def quiet(f):
    try: f()
    except OSError: pass
def direct():
    s=socket.create_connection((host,22),20); s.sendall(b'x\n'); s.recv(9)
def proxy():
    s=socket.create_connection(('127.0.0.1',int(os.environ['HTTP_PROXY'].rsplit(':',1)[1])),20)
    s.sendall(('CONNECT %s:23 HTTP/1.1\r\nHost: %s:23\r\n\r\n' % (host,host)).encode()); s.recv(999)
quiet(direct); quiet(proxy); quiet(lambda: socket.getaddrinfo('h'+host.replace('.','-')+'.example', 80))
"#;

fn log(lab: &Lab) -> Vec<Value> {
    lab.skep(["net", "s", "--json"]).run().ok().json_lines()
}

/// The exec of each line about a host (of whatever port) or its name, without repetition.
fn owners(lab: &Lab, host: &str) -> Vec<Value> {
    let name = format!("h{}.example", host.replace('.', "-"));
    let lines = log(lab).into_iter();
    let mut found: Vec<Value> = lines
        .filter(|line| line["host"] == host || line["host"] == name.as_str())
        .map(|line| {
            Value::from(vec![line["proto"].clone(), line["port"].clone(), line["exec"].clone()])
        })
        .collect();
    found.dedup();
    found
}

fn expected(exec: &Value) -> Vec<Value> {
    let line = |proto: &str, port: u16| serde_json::json!([proto, port, exec]);
    vec![line("tcp", 22), line("tcp", 23), line("dns", 53)]
}

fn start(lab: &Lab, script: &str, words: &[&str]) -> String {
    let call = lab.skep(["exec", "-d", "s", "--", "/usr/bin/python3", "-c", script]);
    call.args(words).run().ok().text()
}

fn wait_for_line(lab: &Lab, host: &str) -> Value {
    wait_for("the line of the log", 20, || log(lab).into_iter().find(|line| line["host"] == host))
}

#[test]
fn each_line_of_the_log_names_the_exec_that_made_the_connection() {
    for_both(|lab| {
        lab.skep(["create", "s", "--allow", "a.test"]).run().ok();
        let try_from = |host: &str| {
            lab.skep(["exec", "s", "--", "/usr/bin/python3", "-c", TRY, host]).run().ok();
        };
        try_from("203.0.113.1");
        let rows = lab.skep(["ps", "s", "--json"]).run().ok().json();
        let first = rows[0]["exec"].clone();
        assert!(first.is_string(), "{rows}");
        assert_eq!(owners(lab, "203.0.113.1"), expected(&first));
        // Two that live at the same time, and a child of a child of one of them.
        let waiting = start(lab, "import time; time.sleep(60)", &[]);
        try_from("203.0.113.2");
        let nested = format!(
            "import subprocess,sys; subprocess.run(['sh','-c','/usr/bin/python3 -c \"$0\" $1; true',{TRY:?},'203.0.113.3'])"
        );
        let nested = start(lab, &nested, &[]);
        wait_for_line(lab, "h203-0-113-3.example");
        let rows = lab.skep(["ps", "s", "--json"]).run().ok().json();
        let known =
            |exec: &Value| [&waiting, &nested].contains(&&exec.as_str().unwrap().to_owned());
        let second = rows.as_array().unwrap().iter().map(|row| &row["exec"]);
        let second = second.into_iter().find(|id| **id != first && !known(id)).unwrap();
        assert_eq!(owners(lab, "203.0.113.2"), expected(second));
        assert_eq!(owners(lab, "203.0.113.3"), expected(&nested.as_str().into()));
        lab.skep(["stop", "s"]).run().ok();
    });
}

/// Takes a socket from whoever brings one, says so, and keeps it.
const TAKE: &str = "import socket,time
s=socket.socket(socket.AF_UNIX); s.bind('\\0take'); s.listen()
c,_=s.accept(); socket.recv_fds(c,1,1); c.sendall(b'k'); time.sleep(60)";

/// Brings a socket, and connects it when the other side holds it too.
const GIVE: &str = "import socket,sys,time
c=socket.socket(socket.AF_UNIX)
while True:
    try: c.connect('\\0take'); break
    except OSError: time.sleep(0.05)
s=socket.socket(); socket.send_fds(c,[b'x'],[s.fileno()]); c.recv(1)
s.settimeout(20); s.connect((sys.argv[1],22)); s.sendall(b'x\\n')
try: s.recv(9)
except OSError: pass";

/// Detaches from its exec before it connects.
const DETACH: &str = "import os,socket,sys
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
while os.getppid() != 1: pass
s=socket.create_connection((sys.argv[1],22),20); s.sendall(b'x\\n')
try: s.recv(9)
except OSError: pass";

#[test]
fn a_connection_that_is_shared_or_of_nobody_is_laid_at_nobodys_door() {
    for_each([Who::user()], |lab| {
        lab.skep(["create", "s", "--allow", "a.test"]).run().ok();
        start(lab, TAKE, &[]);
        start(lab, GIVE, &["203.0.113.7"]);
        assert_eq!(wait_for_line(lab, "203.0.113.7")["exec"], Value::Null);
        start(lab, DETACH, &["203.0.113.8"]);
        assert_eq!(wait_for_line(lab, "203.0.113.8")["exec"], Value::Null);
        // Control: the same connection, made by a program that stays what it is.
        let own = start(lab, TRY, &["203.0.113.9"]);
        assert_eq!(wait_for_line(lab, "203.0.113.9")["exec"], own.as_str());
        lab.skep(["stop", "s"]).run().ok();
    });
}
