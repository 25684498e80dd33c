//! Every limit on a host that has version 2 of cgroups alone: as root, as a user to whom a part of the tree was handed
//! over (with the caller beside the groups, or in the very group that was handed over, as in a service or a scope),
//! and as a user who has none of it.

use crate::harness::{Disk, skip};

/// The tree, and what everybody does.
const WORK: &str = r#"
mkdir -p /home/bee && chown bee:bee /home/bee
cd /sys/fs/cgroup
echo "+cpu +memory +pids +io" > cgroup.subtree_control
mkdir system bee scope crowd
echo "+cpu +memory +pids +io" > bee/cgroup.subtree_control
mkdir bee/shell
for d in bee bee/shell scope crowd; do chown bee:bee $d $d/cgroup.procs $d/cgroup.subtree_control $d/cgroup.threads; done
echo $$ > system/cgroup.procs
cat > /home/work <<'WORK'
who=$1
mkdir -p $HOME/$who && cd $HOME/$who
export SKEP_HOME=$HOME/state-$who
flat() { tr -d ' \n'; echo; }
end() { flat | grep -o '"reason":"[a-z_]*"' | head -1 | sed "s/^/$who: $1 /"; }
number() { flat | grep -o "\"$1\":[0-9]*" | head -1 | sed "s/^.*:/$who: $2 /"; }
spin='while :; do :; done'
skep create s 2>/dev/null >/dev/null || echo "$who: create $?"
skep show s --json | flat > report
for layer in memory cpu pids io; do grep -o "\"$layer\":{\"enforced\":[a-z]*,\"how\":\"[^\"]*\"" report | sed "s/^/$who: /"; done
skep exec s --json --cpus 0.25 --timeout 4s -- sh -c "$spin" 2>/dev/null > rate
number cpu_ms rate < rate
skep exec s --json --cpu-time 1s --timeout 100s -- sh -c "$spin" 2>/dev/null | end time
skep exec s --json --memory 48M -- dd if=/dev/zero of=/dev/null bs=100M count=1 2>/dev/null | end memory
skep exec s --json --memory 48M -- sh -c 'dd if=/dev/zero of=/dev/shm/x bs=1M count=100' 2>/dev/null | end shm
skep exec s --json --pids 8 -- sh -c 'for i in $(seq 30); do sleep 1 & done; wait' 2>/dev/null | flat | grep -o '"limits_hit":\[[^]]*\]' | sed "s/^/$who: tasks /"
# Ignores what asks it to end, and leaves one behind that does so too.
stubborn='trap "" TERM; setsid sh -c "trap \"\" TERM; while :; do echo x >> beat; usleep 20000; done" & while :; do usleep 50000; done'
skep exec s --json --timeout 2s --grace 200ms -- sh -c "$stubborn" 2>/dev/null | end kill
size() { stat -c %s $SKEP_HOME/sandboxes/*/upper/$1 2>/dev/null || echo 0; }
one=$(size beat); sleep 1; [ "$one" -gt 0 ] && [ "$(size beat)" = "$one" ] && echo "$who: nobody goes on"
skep exec -d s -- sh -c 'while :; do echo x >> tick; usleep 20000; done' >/dev/null
until [ $(size tick) -gt 20 ]; do usleep 50000; done
skep freeze s 2>/dev/null; one=$(size tick); sleep 2; [ "$(size tick)" = "$one" ] && echo "$who: stands"
find /sys/fs/cgroup -path "*skep*" -name cgroup.freeze -exec cat {} + 2>/dev/null | sort | tail -1 | sed "s/^/$who: freezer /"
skep thaw s 2>/dev/null; until [ $(size tick) -gt $((one + 10)) ]; do usleep 50000; done; echo "$who: goes on"
skep stop s 2>/dev/null
ps -o args | grep -c '[t]ick' | sed "s/^/$who: left running /"
skep rm --discard s 2>/dev/null
skep run --memory 64M -- true 2>/dev/null; echo "$who: typed $?"
skep run --io-weight 10 -- true 2>/dev/null; echo "$who: weight $?"
find /sys/fs/cgroup -mindepth 1 -name 'skep*' ! -name skep-keeper | sed "s/^/$who: group left /"
WORK
"#;

const BOTH: &str = r#"
(echo 0 > system/cgroup.procs; cd; sh /home/work root)
(echo 0 > bee/shell/cgroup.procs; cd; exec su bee -c 'HOME=/home/bee sh /home/work delegated')
echo end
"#;

const OTHERS: &str = r#"
(echo 0 > system/cgroup.procs; cd; exec su bee -c 'HOME=/home/bee sh /home/work nothing')
# As a service that is its own group: nobody is in it but skep.
cat > /home/scope <<'SCOPE'
echo 0 > /sys/fs/cgroup/scope/cgroup.procs
export HOME=/home/bee SKEP_HOME=/home/bee/state-scope
mkdir -p $HOME/scope; cd $HOME/scope
exec su bee -c 'exec skep run --json --memory 48M --pids 20 --cpus 0.5 --require memory -- dd if=/dev/zero of=/dev/null bs=100M count=1'
SCOPE
sh /home/scope 2>&1 | tr -d ' \n' | grep -o '"reason":"oom"\|"message":"[^"]*"' | head -1 | sed "s/^/scope: /"
# With somebody else in that group nothing can be divided: it runs, is looked after, and says so.
cat > /home/crowd <<'CROWD'
echo 0 > /sys/fs/cgroup/crowd/cgroup.procs
su bee -c 'export HOME=/home/bee SKEP_HOME=/home/bee/state-crowd; mkdir -p $HOME/crowd; cd $HOME/crowd
skep run --json -- sh -c "sleep 1; echo ran" > out 2>&1; tr -d "\n" < out | grep -o "\"stdout\": *\"ran\|\"message\":[^,]*" | sed "s/^/crowd: /"
tr -d "\n" < out | grep -o "\"memory\": *{[^}]*}" | tr -s " " | sed "s/^/crowd: /"
skep run --memory 48M -- true 2>&1 | head -1 | sed "s/^/crowd: /"'
CROWD
sh /home/crowd
cat /sys/fs/cgroup/crowd/cgroup.type | sed 's/^/crowd: type /'
# A disk that heeds weights.
echo bfq > /sys/block/vda/queue/scheduler
mkdir -p /home/w; cd /home/w
skep run --json --io-weight 10 -- true 2>/dev/null | tr -d '\n' | grep -o '"io": *{[^}]*}' | tr -d ' ' | sed 's/^/weighed /'
echo end
"#;

/// The line after a prefix.
fn after<'a>(said: &'a [String], prefix: &str) -> Vec<&'a str> {
    said.iter().filter_map(|line| line.strip_prefix(prefix)).map(str::trim).collect()
}

fn boot(script: &str) -> Option<(Vec<String>, String)> {
    let disk = Disk::new(&[]).map_err(|reason| skip(&reason)).ok()?;
    let said = disk.boot(&format!("{WORK}{script}")).unwrap().ends();
    let all = said.join("\n");
    assert!(said.iter().any(|line| line == "end"), "{all}");
    assert!(!said.iter().any(|line| line.contains("group left")), "{all}");
    Some((said, all))
}

#[test]
fn heavy_every_limit_holds_with_cgroups_of_version_2_alone() {
    let Some((said, all)) = boot(BOTH) else { return };
    for who in ["root", "delegated"] {
        let has = |line: &str| {
            let line = format!("{who}: {line}");
            assert!(said.contains(&line), "no `{line}` in:\n{all}");
        };
        for line in [
            "time \"reason\":\"cpu_limit\"",
            "memory \"reason\":\"oom\"",
            "shm \"reason\":\"oom\"",
            "tasks \"limits_hit\":[\"pids\"]",
            "kill \"reason\":\"timeout\"",
            "nobody goes on",
            "stands",
            "freezer 1",
            "goes on",
            "left running 0",
            "typed 0",
            // The disk is not asked to heed any yet.
            "weight 5",
        ] {
            has(line);
        }
        for layer in ["memory", "pids"] {
            let found =
                after(&said, &format!("{who}: \"{layer}\":{{\"enforced\":true,\"how\":\"cgroupv2"));
            assert_eq!(found.len(), 1, "{layer} of {who}: {all}");
        }
        // A quarter of a processor for four seconds; emulation is slow, and so is its clock.
        let rate: u64 = after(&said, &format!("{who}: rate"))[0].parse().unwrap();
        assert!((300..=1_600).contains(&rate), "{rate} ms of {who}:\n{all}");
    }
}

#[test]
fn heavy_a_group_that_was_handed_over_is_divided_unless_others_are_in_it() {
    let Some((said, all)) = boot(OTHERS) else { return };
    let nothing = |line: &str| said.contains(&format!("nothing: {line}"));
    assert!(nothing("typed 5") && nothing("weight 5"), "{all}");
    assert!(nothing("stands") && nothing("goes on") && nothing("nobody goes on"), "{all}");
    assert!(nothing("left running 0"), "{all}");
    let polled = "nothing: \"memory\":{\"enforced\":false,\"how\":\"polledandendedwhenover\"";
    assert!(said.iter().any(|line| line == polled), "{all}");
    assert!(said.iter().any(|line| line == "scope: \"reason\":\"oom\""), "{all}");
    let crowd = after(&said, "crowd: ");
    assert!(crowd.contains(&"\"stdout\": \"ran") && crowd.contains(&"type domain"), "{all}");
    let polled = |line: &&str| line.contains("polled") && line.contains("other processes are in");
    assert!(crowd.iter().any(polled), "{all}");
    let refused = |line: &&str| line.contains("`memory` cannot be enforced here: other processes");
    assert!(crowd.iter().any(refused), "{all}");
    let weighed = after(&said, "weighed ");
    assert!(weighed.len() == 1 && weighed[0].contains("\"enforced\":true"), "{all}");
    assert!(weighed[0].contains("io.bfq.weight"), "{all}");
}
