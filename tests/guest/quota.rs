//! A limit of the disk that the filesystem keeps: nothing is written above it, not for a moment.

use crate::harness::{Disk, skip};

#[test]
fn heavy_res_5_a_project_quota_is_never_late() {
    let Some(disk) = Disk::new(&[]).map_err(|reason| skip(&reason)).ok() else { return };
    let script = r#"
mkdir -p /home/project && cd /home/project
echo text > a; echo b > b
skep run --name held --disk 16M --keep -- sh -c 'i=0; while dd if=/dev/zero of=many$i bs=64k count=16 2>/dev/null; do i=$((i+1)); [ $i -lt 60 ] || break; done; sleep 5' >/dev/null 2>&1
echo "ended $?"
used=$(du -sk $SKEP_HOME/sandboxes/*/upper | cut -f1)
[ "$used" -gt 12000 ] && [ "$used" -le 16384 ] && echo "held exactly" || echo "used $used KiB"
skep show held --json | grep -o 'project quota on the upper' || skep show held --json | grep -o '[^;"]*project quota[^"]*'; grep vda /proc/mounts
skep run --name other --disk 16M --json -- sh -c 'echo more >> a; rm b; mkdir d; echo new > d/c; mv a z' | grep -o '"reason": *"exit"'
skep diff other | grep -c '^[a-z]* '
skep snapshot other one >/dev/null && skep exec other -- sh -c 'echo again >> z; mv d e' && echo snapped
skep fork other --name twin >/dev/null && skep exec twin -- sh -c 'echo twin > twin' && echo forked
skep restore other one >/dev/null && skep exec other -- cat z && echo restored
skep reject other z --reason no >/dev/null && echo rejected
skep approve other >/dev/null && cat d/c && [ ! -e b ] && echo approved
skep undo >/dev/null && cat b && echo undone
skep create files --disk 16M >/dev/null && skep exec files -- sh -c 'mkdir x && cd x && i=0; while : > f$i; do i=$((i+1)); [ $i -lt 400 ] || break; done; echo made $i'
skep rm --discard held other twin files >/dev/null && echo "left $(ls $SKEP_HOME/sandboxes | wc -l)"
echo end
"#;
    let said = disk.boot(script).unwrap().ends();
    let all = said.join("\n");
    for line in [
        "held exactly",
        "project quota on the upper",
        "snapped",
        "forked",
        "restored",
        "rejected",
        "new",
        "approved",
        "b",
        "undone",
        "made 400",
        "end",
    ] {
        assert!(said.iter().any(|is| is == line), "no `{line}` in:\n{all}");
    }
}
