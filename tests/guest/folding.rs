//! A project whose filesystem takes two names for one: `README` and `Readme`, composed and decomposed.

use crate::harness::{Disk, skip};

/// What stands in the project, as one line; the composed letter is shown as `NFC`.
const SHOWN: &str = r#"
nfc=$(printf '\303\251') nfd=$(printf 'e\314\201')
shown() { find . -type f | sort | while read -r f; do printf '%s=%s ' "${f#./}" "$(cat "$f")"; done | sed "s/$nfc/NFC/g; s/$nfd/NFD/g; s/ \$//"; echo; }
"#;

const WORK: &str = r#"
dmesg -n 1
mkdir -p /home/project && cd /home/project && /usr/bin/chattr +F .
echo old > README && [ "$(cat readme)" = old ] && echo "it folds"
echo composed > $nfc; mkdir dir; echo deep > dir/f
echo "before $(shown)"
try() {
    name=$1
    skep run --name $name -- sh -c "$2" >/dev/null 2>&1 || echo "$name: run $?"
    skep approve $name --json >/tmp/out 2>/tmp/err; echo "$name: $? $(shown)"
    [ "$name" = content ] && skep undo >/dev/null 2>&1 && echo "undone $(shown)"
    skep rm --discard $name >/dev/null 2>&1
}
try exists 'echo new > Readme'
try form "echo decomposed > $nfd"
try twice 'echo one > x; echo two > X; echo three > other'
try case 'mv README readme'
try parent 'mkdir Dir; echo new > Dir/f; echo n > Dir/n'
try content 'echo new > README; echo more > dir/more; rm dir/f'
ls -a /home | grep '^\.skep'
echo end
"#;

/// diff-19: never one name silently over another; all or nothing as anywhere.
#[test]
fn heavy_diff_19_names_that_are_one_to_the_filesystem_are_a_conflict() {
    let Some(disk) = Disk::folding().map_err(|reason| skip(&reason)).ok() else { return };
    let said = disk.boot(&format!("{SHOWN}{WORK}")).unwrap().ends();
    let all = said.join("\n");
    let before = "README=old dir/f=deep NFC=composed";
    let is = |line: &str| assert!(said.iter().any(|said| said == line), "no `{line}` in:\n{all}");
    is("it folds");
    is(&format!("before {before}"));
    for refused in ["exists", "form", "twice", "case", "parent"] {
        is(&format!("{refused}: 4 {before}"));
    }
    // Control: what collides with nothing is taken over, and comes back.
    is("content: 0 README=new dir/more=more NFC=composed");
    is(&format!("undone {before}"));
    is("end");
    assert!(!all.contains(".skep"), "{all}");
}
