//! Names that a terminal, a shell or a text format would trip over.

use super::desk::paths;
use crate::harness::for_both;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

const NAMES: [&[u8]; 20] = [
    b"new\nline",
    b"carriage\rreturn",
    b"tab\tname",
    b"\x1b[2Jclear",
    b"\x1b]52;c;Zm9v\x07clip",
    b"bell\x07",
    b"back\x08space",
    b"\xe2\x80\xaertl",
    b"zero\xe2\x80\x8bwidth",
    b"bad\xff\xfeutf8",
    b"-rf",
    b"--digest",
    b"quote'\"`",
    b"$(touch pwned)",
    b"star*",
    b"[abc]",
    b"<img src=x onerror=alert(1)>",
    b"back\\slash",
    b" ",
    b"..hidden..",
];

#[test]
fn diff_16_any_name_is_shown_safely_and_applied_exactly() {
    for_both(|lab| {
        let long = [b'n'; 255];
        let names: Vec<&[u8]> = NAMES.iter().copied().chain([&long[..]]).collect();
        let list: Vec<u8> = names.join(&0);
        lab.tool("names", list);
        let work = "import os\nfor n in open('/tools/names','rb').read().split(b'\\0'):\n \
                    open(n,'wb').write(b'content of '+n+b'\\n')\n os.makedirs(b'd/'+n)\n \
                    open(b'd/'+n+b'/f','wb').write(b'x\\n')\n os.symlink(n, b'd/'+n+b'/l')\n";
        lab.tool("work.py", work);
        lab.worked("s", "python3 /tools/work.py");
        let diff = lab.diff("s");
        assert_eq!(paths(&diff).len(), names.len() * 3);
        for line in [
            &["diff", "s"][..],
            &["diff", "s", "--stat"],
            &["diff", "s", "--name-only"],
            &["approve", "s", "--dry-run"],
            &["show", "s"],
            &["events"],
        ] {
            let ran = lab.skep(line).run().ok();
            for bytes in [&ran.stdout, &ran.stderr] {
                let raw = bytes.iter().find(|byte| **byte < 0x20 && !b"\n\t".contains(byte));
                assert_eq!(raw, None, "{line:?}");
                let text = String::from_utf8(bytes.clone()).unwrap();
                assert!(!text.contains(['\u{202e}', '\u{200b}', '\x7f']), "{line:?}");
            }
        }
        // One at a time by its name, the rest at once.
        let one = OsStr::from_bytes(names[9]);
        lab.skep(["approve", "s", "--json", "--"]).arg(one).run().ok();
        lab.skep(["approve", "s", "--", "--digest", "-rf", "star*"]).run().ok();
        lab.skep(["approve", "s", "--", "d/*/l"]).run();
        lab.approve(&["s", "--allow-risky", "*", "--allow-risky", "d/*/*"]);
        let tree = lab.tree();
        for name in &names {
            let node = tree.get(OsStr::from_bytes(name)).unwrap();
            assert_eq!(node.bytes, [b"content of ", *name, b"\n"].concat());
            let below = lab.project.join("d").join(OsStr::from_bytes(name));
            assert_eq!(std::fs::read_link(below.join("l")).unwrap().as_os_str().as_bytes(), *name);
        }
        assert_eq!(tree.nodes.len(), 2 + names.len() * 4, "and nothing else");
        for line in [&["history"][..], &["history", "--json"], &["events"], &["events", "--json"]] {
            let ran = lab.skep(line).run().ok();
            let raw = ran.stdout.iter().find(|byte| **byte < 0x20 && !b"\n\t".contains(byte));
            assert_eq!(raw, None, "{line:?}");
        }
        for _ in 0..4 {
            let _ = lab.skep(["undo"]).run();
        }
        assert_eq!(lab.tree().nodes.len(), 1, "{:?}", lab.tree());
    });
}

#[test]
fn diff_16_names_of_errors_are_shown_safely() {
    for_both(|lab| {
        let name = OsStr::from_bytes(b"\x1b[2J\nerror: fake\xe2\x80\xae");
        lab.write(name, "old\n");
        lab.worked("s", "for f in *; do echo new > \"$f\"; done");
        lab.write(name, "user\n");
        for line in [&["approve", "s"][..], &["diff", "s"], &["conflicts", "s"], &["rebase", "s"]] {
            let ran = lab.skep(line).run();
            for bytes in [&ran.stdout, &ran.stderr] {
                let text = String::from_utf8(bytes.clone()).unwrap();
                assert!(!text.contains(['\x1b', '\u{202e}']), "{line:?}: {text:?}");
                assert!(!text.contains("\nerror: fake"), "{line:?}: {text:?}");
            }
        }
    });
}
