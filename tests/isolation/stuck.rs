//! Processes that wait in the kernel for what never answers, where no signal reaches them.

use crate::harness::{Call, Lab, attack, for_both, skip, wait_for};
use serde_json::Value;

/// Mounts a filesystem that never answers a read where nobody else sees it, and uses it in a sandbox.
/// `$1` is the server, `$2` the lab, `$3` and `$4` are the ids of the caller.
const WORLD: &str = "set -e
server=$1 lab=$2 uid=$3 gid=$4
mount --make-rprivate /
mkdir \"$lab/hang\"
\"$server\" \"$lab/hang\" > \"$lab/says\" &
pid=$!
until grep -q mounted \"$lab/says\"; do sleep 0.02; done
skep() { setpriv --reuid \"$uid\" --regid \"$gid\" --clear-groups \"$lab/bin/skep\" \"$@\"; }
cd \"$lab/project\"
skep create s --mount \"$lab/hang:/mnt/hang:ro\" > /dev/null
for script in 'echo begun; exec cat /mnt/hang/file' 'echo begun; cat /mnt/hang/file & wait'; do
  code=0
  skep exec --json --timeout 500ms --grace 200ms s -- sh -c \"$script\" || code=$?
  test $code = 124
done
# The sandbox can be used on.
skep exec s -- true
# As long as they wait, a stop says so instead of saying that all are gone. It takes its time, so one caller does.
if [ $uid != 0 ]; then
  code=0
  skep stop s 2> \"$lab/stop\" || code=$?
  echo $code >> \"$lab/stop\"
fi
kill -9 $pid
wait $pid || true
umount -l \"$lab/hang\"";

fn hang(lab: &Lab) {
    let Some(server) = attack::program("hang") else { return };
    let mut command = lab.in_a_world(WORLD);
    let (uid, gid) = lab.who.ids();
    command.arg(server).arg(&lab.root);
    command.args([uid.to_string(), gid.to_string()]);
    let start = std::time::Instant::now();
    let ran = Call::new(command).by(lab.who).within(90).run().ok();
    let ends: Vec<Value> = serde_json::Deserializer::from_slice(&ran.stdout)
        .into_iter::<Value>()
        .map(Result::unwrap)
        .collect();
    assert_eq!(ends.len(), 2, "{}", ran.describe());
    for end in &ends {
        assert_eq!((&end["reason"], &end["stdout"]), (&"timeout".into(), &"begun\n".into()));
        let milliseconds = end["stats"]["duration_ms"].as_u64().unwrap();
        assert!(milliseconds < 8_000, "its end was told after {milliseconds} ms");
    }
    let message = ends[0]["message"].as_str().unwrap_or_default();
    assert!(message.contains("waits in the kernel"), "{}", ends[0]);
    println!("{:?}", start.elapsed());
    if !lab.who.is_root() {
        let stop = std::fs::read_to_string(lab.root.join("stop")).unwrap();
        let said = stop.contains("waits in the kernel") && !stop.trim_end().ends_with("\n0");
        assert!(said, "{stop}");
    }
    std::fs::remove_dir(lab.root.join("hang")).unwrap();
}

#[test]
fn res_10_one_that_waits_in_the_kernel_keeps_nobody_waiting_and_is_named() {
    if !crate::harness::running_as_root() {
        return skip("only root can mount a filesystem that hangs");
    }
    for_both(hang);
}

/// A newborn has the user of everybody inside, and can be stopped before it is anything. Nobody waits for it for
/// good, and who does so can be ended.
#[test]
fn res_11_who_stops_every_newborn_holds_nobody_up() {
    for_both(|lab| {
        lab.create("s");
        let stopper = "$SIG{TERM} = 'IGNORE'; open F, '>', 'begun'; close F; my $until = time + 60; \
                       while (time < $until) { kill 'STOP', -1; select undef, undef, undef, 0.00005 }";
        let exec = ["exec", "-d", "s", "--", "/usr/bin/perl", "-e", stopper];
        let exec = lab.skep(exec).run().ok().text();
        let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
        let begun = lab.state.join("sandboxes").join(id).join("upper/begun");
        wait_for("it to begin", 10, || begun.exists().then_some(()));
        let words = ["exec", "s", "--json", "--timeout", "1s", "--grace", "100ms", "--", "true"];
        let end = lab.skep(words).run().json();
        assert!(!end["message"].to_string().contains("waits in the kernel"), "{end}");
        lab.skep(["kill", exec.trim()]).run().ok();
        assert_eq!(lab.skep(["exec", "s", "--", "echo", "works"]).run().ok().text(), "works");
        lab.skep(["diff", "s"]).run();
        lab.skep(["stop", "s"]).run().ok();
    });
}
