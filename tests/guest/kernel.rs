//! Debian's kernel, with version 2 of cgroups alone: the same sandbox as on a newer one.

use crate::harness::{Disk, skip};

/// Root, and a user below a part of the cgroup tree that was handed over.
const BOTH: &str = r#"
mkdir -p /home/bee && chown bee:bee /home/bee
echo "+cpu +memory +pids +io" > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/system /sys/fs/cgroup/bee
echo "+cpu +memory +pids +io" > /sys/fs/cgroup/bee/cgroup.subtree_control
mkdir /sys/fs/cgroup/bee/shell
chown bee:bee /sys/fs/cgroup/bee /sys/fs/cgroup/bee/cgroup.procs /sys/fs/cgroup/bee/cgroup.subtree_control /sys/fs/cgroup/bee/shell /sys/fs/cgroup/bee/shell/cgroup.procs
echo $$ > /sys/fs/cgroup/system/cgroup.procs
cat > /home/work <<'WORK'
mkdir -p $HOME/project && cd $HOME/project
export SKEP_HOME=$HOME/state
who=$(id -un)
echo one > a
skep run --name w -- sh -c 'echo two >> a; mkdir d; echo new > d/new' 2>/dev/null || echo "$who: run $?"
flat() { tr -d ' \n'; echo; }
skep show w --json | flat > show
grep -o '"driver":"[a-z-]*"' show | sed "s/^/$who: /"
grep -o 'cgroupv[12][^,;"]*' show | sort -u | sed "s/^/$who: /"
skep approve w >/dev/null 2>&1 && [ "$(cat a d/new)" = "$(printf 'one\ntwo\nnew')" ] && echo "$who: approved"
skep run --json --memory 64M -- dd if=/dev/zero of=/dev/null bs=100M count=1 2>/dev/null | flat | grep -o '"reason":"[a-z_]*"' | sed "s/^/$who: memory /"
skep run --json --pids 12 --name p --keep -- sh -c 'for i in $(seq 40); do sleep 1 & done; wait' 2>/dev/null | flat | grep -o '"limits_hit":\[[^]]*\]' | sed "s/^/$who: tasks /"
if [ $who = root ]; then
    skep create many >/dev/null 2>&1
    for i in $(seq 14); do skep exec many -- sh -c "echo $i > f$i"; skep stop many 2>/dev/null; skep snapshot many s$i >/dev/null 2>&1 || echo "layer $i failed"; done
    skep exec many -- cat f1 f7 f14 | flat | sed "s/^/layers /"
    skep rm --discard many >/dev/null 2>&1
fi
skep rm --discard w p >/dev/null 2>&1
find /sys/fs/cgroup -name '*skep*' -mindepth 1 | sed "s/^/$who left /"
WORK
(echo 0 > /sys/fs/cgroup/system/cgroup.procs; sh /home/work)
(echo 0 > /sys/fs/cgroup/bee/shell/cgroup.procs; exec su bee -c 'HOME=/home/bee sh /home/work')
echo end
"#;

#[test]
fn heavy_debians_kernel_has_the_overlay_and_the_limits_for_both() {
    let Some(disk) = Disk::new(&[]).map_err(|reason| skip(&reason)).ok() else { return };
    let said = disk.boot(BOTH).unwrap().ends();
    let all = said.join("\n");
    for who in ["root", "bee"] {
        for line in [
            "\"driver\":\"overlay-userns\"",
            "cgroupv2",
            "approved",
            "memory \"reason\":\"oom\"",
            "tasks \"limits_hit\":[\"pids\"]",
        ] {
            let line = format!("{who}: {line}");
            assert!(said.contains(&line), "no `{line}` in:\n{all}");
        }
    }
    // Fourteen layers in a string that takes fifteen: they were merged on the way.
    assert!(said.iter().any(|line| line == "layers 1714"), "{all}");
    assert!(said.iter().any(|line| line == "end"), "{all}");
    assert!(!said.iter().any(|line| line.contains("left") || line.contains("failed")), "{all}");
}
