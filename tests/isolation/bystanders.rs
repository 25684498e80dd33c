//! Who is not ended for what others do: the room that a disk loses says nothing of who took it.

use super::evasion::{hit, perls};
use crate::harness::{Lab, for_both};
use std::io::Write as _;
use std::time::{Duration, Instant};

/// Passes files to itself and leaves each under way for a while, as a busy server does.
const PASSES: &str = "
import array, os, socket, sys, tempfile, time
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
open('begun', 'w').close()
until = time.time() + 2.5
while time.time() < until:
    with tempfile.TemporaryFile(dir='.') as file:
        file.write(b'x' * 1000); file.flush()
        a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [file.fileno()]))])
    time.sleep(0.05)
    _, control, _, _ = b.recvmsg(1, socket.CMSG_SPACE(4))
    os.close(array.array('i', control[0][2])[0])
";

/// Who keeps secrets shows nothing of itself to others, as an agent for keys does (`PR_SET_DUMPABLE`).
const SHUT: &str = "
import ctypes, time
ctypes.CDLL(None).prctl(4, 0)
open('begun', 'w').close()
time.sleep(2.5)
";

/// Somebody else on the same filesystem writes a few times the limit, from `begun` on.
fn write_beside(lab: &Lab, begun: &std::path::Path) {
    let until = Instant::now() + Duration::from_secs(20);
    while !begun.exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let path = lab.root.join("beside");
    let mut file = std::fs::File::create(&path).unwrap();
    for _ in 0..75 {
        file.write_all(&vec![7; 4 << 20]).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::remove_file(&path).unwrap();
}

/// Descriptors under way, and a program that nobody may read: both could hide files, and hide none.
#[test]
fn res_5_nobody_is_ended_for_what_others_write() {
    for_both(|lab| {
        let mount = perls(lab);
        let sleeps = "open F, '>', 'begun'; close F; select undef, undef, undef, 2.5";
        let commands = [
            ["/usr/bin/python3", "-c", PASSES],
            ["/perls/shut", "-e", sleeps],
            ["/usr/bin/python3", "-c", SHUT],
        ];
        for (index, command) in commands.iter().enumerate() {
            let name = format!("s{index}");
            lab.skep(["create", &name, "--disk", "60M", "--mount", &mount]).run().ok();
            let id = lab.sandbox(&name)["id"].as_str().unwrap().to_owned();
            let begun = lab.state.join("sandboxes").join(id).join("upper/begun");
            let ran = std::thread::scope(|scope| {
                scope.spawn(|| write_beside(lab, &begun));
                lab.skep(["exec", &name, "--json", "--"]).args(command).run()
            });
            assert_eq!(ran.json()["reason"], "exited", "{command:?}: {}", ran.describe());
            assert!(hit(&ran).is_empty(), "{}", ran.describe());
            lab.skep(["stop", &name]).run().ok();
        }
    });
}
