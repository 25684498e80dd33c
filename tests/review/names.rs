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

/// The first word is a name or a path, and never by accident: what was a sandbox's name yesterday does not
/// approve or drop a path of another one today.
#[test]
fn a_word_that_was_a_sandboxs_name_decides_nothing_of_another() {
    for_both(|lab| {
        lab.worked("feature", "echo theirs > theirs");
        lab.skep(["rm", "--discard", "feature"]).run().ok();
        lab.worked("newest", "mkdir feature; echo one > feature/one; echo two > two");
        for verb in ["approve", "reject"] {
            for more in [&[][..], &["two"], &["--json"]] {
                let ran = lab.without_effect(lab.skep([verb, "feature"]).args(more)).exits(2);
                ran.says("`newest`").says("deleted").says("`-- feature`").says("`-s NAME`");
                let ran = lab.without_effect(lab.skep([verb, "nobody"]).args(more)).exits(3);
                ran.says("no sandbox `nobody`, and no change at path `nobody`").says("`newest`");
            }
            lab.without_effect(lab.skep([verb, "two*", "nobody"])).exits(3);
        }
        assert_eq!(paths(&lab.diff("newest")), ["feature/one", "two"]);
        // What is gone says so.
        lab.skep(["show", "feature"]).run().exits(3).says("it was deleted");
        // Said which: the path it is.
        lab.skep(["reject", "-s", "newest", "feature"]).run().ok();
        lab.skep(["approve", "--", "two"]).run().ok();
        assert_eq!(lab.bytes("two"), b"two\n");
        assert_eq!(paths(&lab.diff("newest")), [""; 0]);
        // A word that no sandbox ever had is the path, as ever.
        lab.skep(["exec", "newest", "--", "sh", "-c", "echo three > three"]).run().ok();
        lab.skep(["approve", "three"]).run().ok();
        assert_eq!(lab.bytes("three"), b"three\n");
    });
}

/// Whoever mistypes a name hears of the name, and of the one that is most like it.
#[test]
fn a_mistyped_name_is_told_apart_from_a_path() {
    for_both(|lab| {
        lab.worked("fix-parser", "echo x > x");
        lab.worked("other", "echo y > y");
        for line in [&["diff"][..], &["diff", "--stat"], &["approve"], &["reject"]] {
            let ran = lab.without_effect(lab.skep(line).args(["fix-parsr"])).exits(3);
            let ran =
                ran.says("there is no sandbox `fix-parsr`, and no change at path `fix-parsr` in");
            ran.says("`other`").says("did you mean sandbox `fix-parser`?");
        }
        let ran = lab.skep(["diff", "xyz"]).run().exits(3).says("there is no sandbox `xyz`");
        assert!(!ran.errors().contains("did you mean"), "{}", ran.describe());
        lab.skep(["diff", "sub/xyz"]).run().exits(3).says("no change of sandbox `other`");
    });
}

/// That the project did not move is no answer about a sandbox or a path that is not there.
#[test]
fn conflicts_of_what_is_not_there_are_refused() {
    for_both(|lab| {
        for name in ["f.txt", "g.txt", "other"] {
            lab.write(name, "project\n");
        }
        lab.worked("gone", "echo x > x");
        lab.skep(["rm", "--discard", "gone"]).run().ok();
        lab.worked("s", "echo agent > f.txt; echo agent > g.txt");
        for more in [&[][..], &["--json"]] {
            for word in ["nobody", "gone"] {
                let ran = lab.skep(["conflicts", word]).args(more).run().exits(3);
                ran.says("there is no sandbox").says("no change at path").says("`s`");
            }
            lab.skep(["conflicts", "gone"]).args(more).run().says("deleted");
            for words in
                [&["s", "nowhere"][..], &["s", "other"], &["f.txt", "nowhere"], &["no/where"]]
            {
                let ran = lab.skep(["conflicts"]).args(words).args(more).run().exits(3);
                ran.says("no change of sandbox `s`");
            }
            lab.skep(["conflicts", "*.rs"]).args(more).run().exits(3);
            lab.skep(["conflicts", "s"]).args(more).run().ok();
            lab.skep(["conflicts", "f.txt"]).args(more).run().ok();
        }
        // A glob is ours here as well.
        lab.write("g.txt", "user\n");
        for word in ["g.txt", "*.txt", "s"] {
            let listed = lab.skep(["conflicts", word, "--json"]).run().ok().json();
            assert_eq!(listed[0]["path"], "g.txt", "{word}: {listed}");
        }
        let listed = lab.skep(["conflicts", "f*", "--json"]).run().ok().json();
        assert_eq!(listed.to_string(), "[]");
        lab.skep(["history", "nowhere"]).run().ok().says("no approval touched `nowhere`");
    });
}

/// The id of a sandbox, or as much of it as means no other, is held like its name when it is deleted.
#[test]
fn a_word_that_was_a_sandboxs_id_decides_nothing_of_another() {
    for_both(|lab| {
        lab.worked("first", "echo x > x");
        let id = lab.skep(["show", "first", "--json"]).run().ok().json()["id"]
            .as_str()
            .unwrap()
            .to_owned();
        lab.skep(["rm", "--discard", "first"]).run().ok();
        let start = &id[..id.len() - 2];
        lab.worked("newest", &format!("echo one > {id}; echo two > {start}"));
        for verb in ["approve", "reject"] {
            for word in [&id[..], start] {
                let ran = lab.without_effect(lab.skep([verb, word])).exits(2);
                ran.says("`newest`").says("deleted").says("`-s NAME`");
            }
        }
        lab.skep(["show", &id]).run().exits(3).says("it was deleted");
        lab.skep(["approve", "--", &id, start]).run().ok();
        assert_eq!(lab.bytes(&id), b"one\n");
    });
}

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

/// In every output of skep's own that can reach a terminal: what one would act on, or not show, is made
/// plain; a document for programs means the same all the same, and bytes go out only where none looks.
#[test]
fn diff_17_documents_and_sides_have_nothing_that_a_terminal_acts_on() {
    for_both(|lab| {
        let name = "n\u{9b}31m\u{202e}\u{200b}\u{7f}";
        let text = "x\u{9b}31m \u{202e}\u{200b}\u{e0041}\u{7f} y\x1b[2J\n";
        lab.write(name, "old\n");
        lab.tool("text", text);
        lab.worked("s", "for f in n*; do cat /tools/text > \"$f\"; done");
        let bad = ['\u{9b}', '\u{202e}', '\u{200b}', '\u{e0041}', '\x1b'];
        let clean = |text: &str, what: &str| {
            assert!(!text.contains(bad), "{what}: {}", text.escape_debug());
        };
        let diff = lab.skep(["diff", "s", "--json"]).run().ok();
        clean(&diff.text(), "diff");
        let change = &diff.json()["changes"][0];
        assert_eq!(change["path"], name);
        assert_eq!(change["hunks"][0]["lines"][1], format!("+{text}"));
        let side = ["conflicts", "s", name, "--side", "sandbox"];
        assert_eq!(lab.skep(side).run().ok().stdout, text.as_bytes(), "a pipe gets the bytes");
        let mut terminal = crate::harness::Terminal::start(lab.skep(side), 24, 80);
        terminal.wait_to_show("\\u{202e}");
        assert!(terminal.end().success());
        let shown = terminal.screen();
        clean(&shown, "a side on a terminal");
        let approved = lab.skep(["approve", "s", "--json"]).run().ok();
        clean(&approved.text(), "approve");
        assert_eq!(approved.json()["applied"][0], name);
        let id = approved.json()["approval"].as_str().unwrap().to_owned();
        for line in [
            &["history", "--json"][..],
            &["show", "s", "--json"],
            &["receipt", &id],
            &["events", "--json"],
        ] {
            clean(&lab.skep(line).run().ok().text(), line[0]);
        }
    });
}

/// In a sub-directory a word means what stands there, before what stands at the root.
#[test]
fn a_word_means_what_stands_where_it_is_typed() {
    for_both(|lab| {
        lab.write("README.md", "root\n");
        lab.write("sub/README.md", "sub\n");
        lab.worked("s", "echo more >> README.md; echo x > shown");
        let below = lab.project.join("sub");
        for verb in ["diff", "approve", "reject"] {
            let ran = lab.without_effect(lab.skep([verb, "s", "README.md"]).directory(&below));
            assert_eq!(ran.code(), 3, "{verb}: {}", ran.describe());
        }
        // What was shown can be typed where nothing stands in its way; the root has a way of its own.
        lab.skep(["diff", "s", "shown"]).directory(&below).run().ok();
        lab.skep(["approve", "s", "/README.md"]).directory(&below).run().ok();
        assert_eq!(lab.bytes("README.md"), b"root\nmore\n");
        let outside = lab.without_effect(lab.skep(["approve", "s", "/etc/passwd"]));
        assert_eq!(outside.code(), 2, "{}", outside.describe());
        lab.skep(["reject", "s", "../shown"]).directory(&below).run().ok();
    });
}
