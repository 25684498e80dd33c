//! Hunks, taken over and dropped one by one, in any order, byte by byte.

use super::desk::{HunkSeen, Random, hunks, paths};
use crate::harness::{Lab, for_both};
use std::collections::BTreeSet;

/// A text as lines, and edits far enough apart to be a hunk each.
struct Edited {
    base: Vec<Vec<u8>>,
    /// Line number, and what stands there instead. Each carries `edit-N;`.
    edits: Vec<(usize, Vec<Vec<u8>>)>,
}

impl Edited {
    /// The text with some of the edits made.
    fn with(&self, chosen: &BTreeSet<usize>) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, line) in self.base.iter().enumerate() {
            let edit = self.edits.iter().position(|(at, _)| *at == number);
            match edit.filter(|edit| chosen.contains(edit)) {
                Some(edit) => self.edits[edit].1.iter().for_each(|new| out.extend_from_slice(new)),
                None => out.extend_from_slice(line),
            }
        }
        out
    }

    fn all(&self) -> BTreeSet<usize> {
        (0..self.edits.len()).collect()
    }

    /// Which edit a hunk is.
    fn edit_of(&self, hunk: &HunkSeen) -> usize {
        let text = hunk.lines.concat();
        let found: Vec<usize> =
            (0..self.edits.len()).filter(|n| text.contains(&format!("edit-{n};"))).collect();
        assert_eq!(found.len(), 1, "one edit, one hunk: {hunk:?}");
        found[0]
    }
}

/// Numbered lines with an end, edited every 20 lines: replaced, grown, shrunk by turns.
fn edited(end: &str, edits: usize) -> Edited {
    let number = |n: usize| format!("line {n}{end}").into_bytes();
    let base: Vec<_> = (0..edits * 20 + 15).map(number).collect();
    let edit = |n: usize| {
        let new = match n % 3 {
            0 => vec![format!("edit-{n}; replaced{end}")],
            1 => vec![format!("edit-{n}; one{end}"), format!("two{end}"), format!("three{end}")],
            _ => vec![format!("edit-{n}; with -- and ++ and @@{end}")],
        };
        (n * 20 + 10, new.into_iter().map(String::into_bytes).collect())
    };
    Edited { base, edits: (0..edits).map(edit).collect() }
}

/// Approves and rejects hunk by hunk in random order, and looks after each step.
fn review_hunk_by_hunk(lab: &Lab, text: &Edited, random: &mut Random) {
    lab.write("dir/file", text.with(&BTreeSet::new()));
    lab.write("other", "other\n");
    lab.tool("new", text.with(&text.all()));
    lab.worked("s", "cat /tools/new > dir/file; echo more >> other");
    let first = hunks(&lab.diff("s"), Some("dir/file"));
    assert_eq!(first.len(), text.edits.len(), "{first:?}");
    let (mut approved, mut rejected) = (BTreeSet::new(), BTreeSet::new());
    let mut left = first;
    while !left.is_empty() {
        let hunk = left.swap_remove(random.below(left.len()));
        let edit = text.edit_of(&hunk);
        if random.chance(3) {
            lab.skep(["reject", "s", "--hunk", &hunk.id]).run().ok();
            rejected.insert(edit);
        } else {
            let digest = lab.diff("s")["digest"].as_str().unwrap().to_owned();
            lab.approve(&["s", "--hunk", &hunk.id, "--digest", &digest]);
            approved.insert(edit);
        }
        assert_eq!(lab.bytes("dir/file"), text.with(&approved), "exactly the approved hunks");
        let mut now = hunks(&lab.diff("s"), Some("dir/file"));
        let ids = |list: &[HunkSeen]| -> BTreeSet<String> {
            list.iter().map(|hunk| hunk.id.clone()).collect()
        };
        assert_eq!(ids(&now), ids(&left), "the diff is the old one minus what was decided");
        now.iter().for_each(|hunk| {
            text.edit_of(hunk);
        });
        left = std::mem::take(&mut now);
    }
    assert_eq!(paths(&lab.diff("s")), ["other"], "the rest stays in the sandbox");
    assert_eq!(lab.bytes("other"), b"other\n");
    lab.skep(["rm", "--discard", "s"]).run().ok();
}

#[test]
fn hunks_in_random_order_leave_exactly_the_rest() {
    for_both(|lab| {
        let mut random = Random::printed();
        review_hunk_by_hunk(lab, &edited("\n", 10), &mut random);
    });
}

#[test]
fn diff_18_hunks_of_odd_texts_are_byte_exact() {
    for_both(|lab| {
        let mut random = Random::printed();
        // Carriage returns; a byte order mark; bytes that are no UTF-8; NULs beyond the start.
        review_hunk_by_hunk(lab, &edited("\r\n", 4), &mut random);
        let mut marked = edited("\n", 4);
        marked.base[0].splice(0..0, *b"\xef\xbb\xbf");
        review_hunk_by_hunk(lab, &marked, &mut random);
        let mut bare = edited("\n", 4);
        bare.base.last_mut().unwrap().pop();
        review_hunk_by_hunk(lab, &bare, &mut random);
        // The last line itself is the edit, and loses its end.
        let mut last = edited("\n", 3);
        last.base.truncate(51);
        last.edits[2].1 = vec![b"edit-2; without an end".to_vec()];
        review_hunk_by_hunk(lab, &last, &mut random);
        let mut latin = edited(" caf\u{e9}\n", 4);
        latin.base[3] = b"caf\xe9 \xff\xfe\n".to_vec();
        review_hunk_by_hunk(lab, &latin, &mut random);
        let mut long = edited("\n", 3);
        long.base[12] = [vec![b'x'; 300_000], b"\n".to_vec()].concat();
        long.edits[1].1.push([vec![b'y'; 300_000], b"\n".to_vec()].concat());
        review_hunk_by_hunk(lab, &long, &mut random);
    });
}

#[test]
fn diff_18_nul_bytes_late_in_a_text_are_byte_exact() {
    for_both(|lab| {
        let mut random = Random::printed();
        let mut late = edited(&format!("{}\n", " ".repeat(400)), 3);
        late.base[60] = b"nul \0 byte\n".to_vec();
        review_hunk_by_hunk(lab, &late, &mut random);
    });
}

#[test]
fn diff_18_what_is_no_text_is_taken_over_whole() {
    for_both(|lab| {
        let utf16 = |text: &str| -> Vec<u8> {
            let units = std::iter::once(0xfeff).chain(text.encode_utf16());
            units.flat_map(u16::to_le_bytes).collect()
        };
        let cases: [(&str, Vec<u8>, Vec<u8>); 5] = [
            ("utf16", utf16("one\ntwo\n"), utf16("one\nthree\n")),
            ("nul", b"a\0b".to_vec(), b"a\0c\n".to_vec()),
            ("emptied", b"text\n".to_vec(), Vec::new()),
            ("filled", Vec::new(), b"no end".to_vec()),
            ("became-binary", b"text\n".to_vec(), b"te\0xt\n".to_vec()),
        ];
        for (name, old, new) in &cases {
            lab.write(name, old);
            lab.tool(name, new);
        }
        lab.worked("s", "for name in *; do cat /tools/$name > $name; done");
        let diff = lab.diff("s");
        for (name, old, new) in &cases {
            let change = super::desk::change(&diff, name);
            let binary = old.contains(&0) || new.contains(&0);
            assert_eq!(change["binary"], binary, "{change}");
            assert_eq!(change["hunks"].as_array().unwrap().is_empty(), binary, "{change}");
            assert_eq!(change["size"], new.len(), "{change}");
            lab.approve(&["s", name]);
            assert_eq!(lab.bytes(name), *new, "{name}");
        }
        assert!(paths(&lab.diff("s")).is_empty());
        for _ in &cases {
            lab.skep(["undo"]).run().ok();
        }
        cases.iter().for_each(|(name, old, _)| assert_eq!(lab.bytes(name), *old, "{name}"));
    });
}

#[test]
fn a_hunk_has_the_same_id_whatever_else_changed() {
    for_both(|lab| {
        let text = edited("\n", 6);
        lab.write("dir/file", text.with(&BTreeSet::new()));
        lab.tool("few", text.with(&[2, 4].into()));
        lab.tool("all", text.with(&text.all()));
        lab.worked("few", "cat /tools/few > dir/file");
        lab.worked("all", "cat /tools/all > dir/file; echo x > new; rm -f dir/none");
        let id = |name: &str, edit: usize| {
            let seen = hunks(&lab.diff(name), Some("dir/file"));
            seen.into_iter().find(|hunk| text.edit_of(hunk) == edit).unwrap().id
        };
        assert_eq!(id("few", 2), id("all", 2));
        assert_eq!(id("few", 4), id("all", 4));
        // Nor does it depend on what the user does meanwhile elsewhere in the file.
        let before = id("all", 4);
        let moved = [b"the user's line\n".to_vec(), text.with(&BTreeSet::new())].concat();
        lab.write("dir/file", &moved);
        assert_eq!(id("all", 4), before);
        lab.approve(&["all", "--hunk", &before]);
        let expected = [b"the user's line\n".to_vec(), text.with(&[4].into())].concat();
        assert_eq!(lab.bytes("dir/file"), expected);
        // The other sandbox has the same hunk: it is nothing new any more, its other one is.
        let left = hunks(&lab.diff("few"), Some("dir/file"));
        println!("left in few: {left:?}");
        lab.approve(&["few"]);
        let expected = [b"the user's line\n".to_vec(), text.with(&[2, 4].into())].concat();
        assert_eq!(lab.bytes("dir/file"), expected);
    });
}

#[test]
fn equal_hunks_of_one_file_are_told_apart() {
    for_both(|lab| {
        let block = "same\nsame\nsame\nsame\nold\nsame\nsame\nsame\nsame\nsame\n";
        let base = block.repeat(4);
        lab.write("f", &base);
        lab.worked("s", "sed -i s/old/new/ f");
        let seen = hunks(&lab.diff("s"), None);
        assert_eq!(seen.len(), 4);
        lab.approve(&["s", "--hunk", &seen[2].id]);
        let mut parts = vec![block.to_owned(); 4];
        parts[2] = block.replace("old", "new");
        assert_eq!(lab.bytes("f"), parts.concat().as_bytes());
        lab.approve(&["s", "--hunk", &seen[0].id]);
        parts[0] = block.replace("old", "new");
        assert_eq!(lab.bytes("f"), parts.concat().as_bytes());
        lab.skep(["reject", "s", "--hunk", &seen[3].id]).run().ok();
        assert_eq!(hunks(&lab.diff("s"), None).len(), 1);
        lab.approve(&["s"]);
        parts[1] = block.replace("old", "new");
        assert_eq!(lab.bytes("f"), parts.concat().as_bytes());
    });
}

/// What a program inside does after somebody has looked: the same line, in another place.
#[test]
fn an_id_that_was_read_does_not_come_to_mean_another_place() {
    for_both(|lab| {
        let middle: String = (0..14).map(|n| format!("line {n}\n")).collect();
        let base = format!("def is_guest():\n{middle}def is_admin():\n    pass\n");
        lab.write("auth.py", &base);
        lab.up("s");
        lab.inside("s", "sed -i '1a\\    return True' auth.py");
        let read = hunks(&lab.diff("s"), None)[0].id.clone();
        lab.inside("s", "sed -i 2d auth.py; sed -i '/is_admin/a\\    return True' auth.py");
        let moved = lab.without_effect(lab.skep(["approve", "s", "--hunk", &read]));
        assert_eq!(moved.code(), 3, "{}", moved.describe());
        let moved = lab.without_effect(lab.skep(["reject", "s", "--hunk", &read]));
        assert_eq!(moved.code(), 3, "{}", moved.describe());
        // And whoever takes the other one sees it.
        let other = hunks(&lab.diff("s"), None)[0].id.clone();
        let ran = lab.skep(["approve", "s", "--hunk", &other]).run().ok();
        let said = ran.errors();
        assert!(said.contains("\n def is_admin():\n+    return True\n"), "{said}");
    });
}

#[test]
fn ids_of_equal_hunks_stay_with_their_places() {
    for_both(|lab| {
        let block = |value: &str| format!("[part]\na\nb\nc\nd\n{value}\ne\nf\ng\nh\n");
        let text = |top: &str, values: [&str; 4]| top.to_owned() + &values.map(block).concat();
        let head = "1\n2\n3\n4\n5\n6\n7\n8\n";
        lab.write("f", text(head, ["value"; 4]));
        lab.up("s");
        let set = |top: &str, values: [&str; 4]| {
            lab.tool("new", text(top, values));
            lab.inside("s", "cat /tools/new > f");
            hunks(&lab.diff("s"), None)
        };
        let all = set(head, ["other"; 4]);
        assert_eq!(all.len(), 4);
        let some = set(head, ["value", "other", "value", "other"]);
        assert_eq!([&some[0].id, &some[1].id], [&all[1].id, &all[3].id]);
        let more = set(&format!("0\n{head}"), ["other"; 4]);
        let ids = |list: &[HunkSeen]| list.iter().map(|hunk| hunk.id.clone()).collect::<Vec<_>>();
        assert_eq!(ids(&more)[1..], ids(&all));
        // The second is taken; then the sandbox goes on. Nobody gets the id of another.
        lab.approve(&["s", "--hunk", &all[1].id]);
        let left = set(&format!("00\n{head}"), ["other"; 4]);
        assert_eq!(ids(&left)[1..], [&all[0], &all[2], &all[3]].map(|hunk| hunk.id.clone()));
        lab.approve(&["s", "--hunk", &all[3].id]);
        let expected = text(head, ["value", "other", "value", "other"]);
        assert_eq!(lab.bytes("f"), expected.as_bytes());
    });
}

#[test]
fn work_goes_on_after_a_partial_approval() {
    for_both(|lab| {
        let text = edited("\n", 5);
        lab.write("dir/file", text.with(&BTreeSet::new()));
        lab.tool("first", text.with(&[0, 1, 2].into()));
        lab.up("s");
        lab.inside("s", "cat /tools/first > dir/file");
        let id = |edit: usize| {
            let seen = hunks(&lab.diff("s"), Some("dir/file"));
            seen.into_iter().find(|hunk| text.edit_of(hunk) == edit).unwrap().id
        };
        lab.approve(&["s", "--hunk", &id(1)]);
        assert_eq!(lab.bytes("dir/file"), text.with(&[1].into()));
        // A new edit beside the ones that are left.
        lab.tool("second", text.with(&[0, 1, 2, 3].into()));
        lab.inside("s", "cat /tools/second > dir/file");
        assert_eq!(hunks(&lab.diff("s"), None).len(), 3, "0, 2 and 3 are pending");
        lab.approve(&["s", "--hunk", &id(3)]);
        assert_eq!(lab.bytes("dir/file"), text.with(&[1, 3].into()));
        // What was approved is taken back inside: that is a change, and is shown as one.
        lab.tool("third", text.with(&[0, 2, 3].into()));
        lab.inside("s", "cat /tools/third > dir/file");
        let seen = hunks(&lab.diff("s"), None);
        assert_eq!(seen.len(), 3, "{seen:?}");
        let back = seen.iter().find(|hunk| text.edit_of(hunk) == 1).unwrap();
        assert!(back.lines.iter().any(|line| line.starts_with("-edit-1;")), "{back:?}");
        lab.approve(&["s", "dir/file"]);
        assert_eq!(lab.bytes("dir/file"), text.with(&[0, 2, 3].into()));
        assert!(paths(&lab.diff("s")).is_empty());
    });
}

#[test]
fn hunks_that_are_none_are_refused() {
    for_both(|lab| {
        lab.write("f", "a\n");
        lab.worked("s", "echo b > f");
        let id = hunks(&lab.diff("s"), None)[0].id.clone();
        let unknown = lab.without_effect(lab.skep(["approve", "s", "--hunk", "0123456789abcdef"]));
        assert_eq!(unknown.code(), 3, "{}", unknown.describe());
        for typed in ["", "x", "../../../../etc", &id.to_uppercase(), &id[..15]] {
            if typed == id {
                continue;
            }
            let ran = lab.without_effect(lab.skep(["approve", "s", "--hunk", typed]));
            assert_eq!(ran.code(), 2, "{}", ran.describe());
        }
        // One good one beside a bad one: nothing at all.
        let both = ["approve", "s", "--hunk", &id, "--hunk", "0123456789abcdef"];
        assert_ne!(lab.without_effect(lab.skep(both)).code(), 0);
        let both = ["reject", "s", "--hunk", &id, "--hunk", "0123456789abcdef"];
        assert_ne!(lab.without_effect(lab.skep(both)).code(), 0);
        assert_eq!(hunks(&lab.diff("s"), None).len(), 1);
    });
}

/// `approve f --hunk H` is that hunk of that file; before, the summary said so and the file was taken.
#[test]
fn a_hunk_named_beside_its_path_is_all_that_is_taken_of_it() {
    for_both(|lab| {
        let text = edited("\n", 3);
        for (name, verb) in [("a", "approve"), ("r", "reject")] {
            lab.write("d/f", text.with(&BTreeSet::new()));
            lab.write("d/g", "g\n");
            lab.tool("new", text.with(&[0, 1, 2].into()));
            lab.up(name);
            lab.inside(name, "cat /tools/new > d/f; echo more >> d/g");
            let seen = hunks(&lab.diff(name), Some("d/f"));
            let id = seen.into_iter().find(|hunk| text.edit_of(hunk) == 1).unwrap().id;
            lab.skep([verb, name, "d", "--hunk", &id]).run().ok();
            let left = hunks(&lab.diff(name), None);
            assert_eq!(left.len(), 2, "{verb}: the two other hunks of d/f are left: {left:?}");
            let taken = if verb == "approve" { [1].into() } else { BTreeSet::new() };
            assert_eq!(lab.bytes("d/f"), text.with(&taken), "{verb}");
            lab.skep(["rm", "--discard", name]).run().ok();
        }
    });
}

#[test]
fn an_empty_path_is_no_path_and_never_everything() {
    for_both(|lab| {
        lab.write("f", "one\n");
        lab.up("s");
        lab.inside("s", "echo two >> f; echo n > n");
        for verb in ["approve", "reject", "diff"] {
            let ran = lab.without_effect(lab.skep([verb, "s", ""]));
            assert_eq!(ran.code(), 2, "{verb}: {}", ran.describe());
        }
        lab.without_effect(lab.skep(["approve", "s", "--check", ""])).exits(2);
        assert_eq!(lab.diff("s")["changes"].as_array().unwrap().len(), 2);
        // Control: the whole project has a name.
        lab.skep(["reject", "s", "."]).run().ok();
        assert_eq!(lab.diff("s")["changes"].as_array().unwrap().len(), 0);
    });
}

/// In a part that came with an approval, an id goes on meaning the place it was read at.
#[test]
fn an_id_in_a_part_that_was_approved_stays_at_its_place() {
    for_both(|lab| {
        let lines =
            |from: u32, to: u32| (from..to).map(|n| format!("line {n}\n")).collect::<String>();
        lab.write("f", lines(0, 40));
        let section = "[section]\na\nb\nc\nd\nVALUE\ne\nf\ng\nh\n";
        lab.tool("block", lines(0, 10) + &section.repeat(4) + &lines(10, 40));
        lab.up("s");
        lab.inside("s", "cat /tools/block > f; echo end >> f");
        let first = hunks(&lab.diff("s"), None);
        assert_eq!(first.len(), 2, "{first:?}");
        lab.approve(&["s", "--hunk", &first[0].id]);
        let edit = |which: &str| {
            let script = format!(
                "awk '/VALUE|OTHER/ {{ n++; $0 = index(\"{which}\", n) ? \"OTHER\" : \"VALUE\" }} {{ print }}' f > /tmp/f; cat /tmp/f > f"
            );
            lab.inside("s", &script);
            hunks(&lab.diff("s"), Some("f"))
        };
        let both = edit("13");
        assert_eq!(both.len(), 3, "{both:?}");
        let third = edit("3");
        assert_eq!(third.len(), 2, "{third:?}");
        assert_eq!(third[0].id, both[1].id, "the same change at the same place");
        assert_eq!(third[1].id, first[1].id, "and what was not taken");
        let ran = lab.skep(["approve", "s", "--hunk", &both[0].id]).run();
        assert_ne!(ran.code(), 0, "{}", ran.describe());
        lab.approve(&["s", "--hunk", &both[1].id]);
        let text = String::from_utf8(lab.bytes("f")).unwrap();
        let values: Vec<&str> =
            text.lines().filter(|line| ["VALUE", "OTHER"].contains(line)).collect();
        assert_eq!(values, ["VALUE", "VALUE", "OTHER", "VALUE"]);
    });
}

/// One hunk changes what was approved before, another stands elsewhere: approving the other leaves the id of
/// the first as it was read, however often that goes.
#[test]
fn an_id_stays_when_a_neighbour_is_approved() {
    for_both(|lab| {
        let section = |value: &str| format!("[section]\na\nb\nc\n{value}\nd\ne\nf\n");
        let text = |values: [&str; 4]| values.map(section).concat();
        lab.write("f", text(["v"; 4]));
        lab.up("s");
        let go_on = |values: [&str; 4]| {
            lab.tool("new", text(values));
            lab.inside("s", "cat /tools/new > f");
            hunks(&lab.diff("s"), Some("f"))
        };
        let first = go_on(["one", "v", "v", "v"]);
        lab.approve(&["s", "--hunk", &first[0].id]);
        let second = go_on(["two", "v", "new", "v"]);
        assert_eq!(second.len(), 2, "{second:?}");
        lab.approve(&["s", "--hunk", &second[1].id]);
        assert_eq!(hunks(&lab.diff("s"), Some("f"))[0].id, second[0].id);
        let third = go_on(["two", "last", "newer", "v"]);
        assert_eq!(third[0].id, second[0].id, "and the sandbox goes on elsewhere");
        lab.approve(&["s", "--hunk", &third[1].id]);
        let left = hunks(&lab.diff("s"), Some("f"));
        let ids = [&third[0].id, &third[2].id];
        assert_eq!(left.iter().map(|hunk| &hunk.id).collect::<Vec<_>>(), ids);
        lab.approve(&["s", "--hunk", &second[0].id]);
        assert_eq!(lab.bytes("f"), text(["two", "last", "new", "v"]).as_bytes());
    });
}

/// The mode comes with the last hunk, and is said where it comes.
#[test]
fn a_mode_is_said_with_the_hunk_that_brings_it() {
    for_both(|lab| {
        let text: String = (1..=40).map(|n| format!("{n}\n")).collect();
        lab.write("f", &text);
        lab.worked("s", "sed -i 's/^5$/five/; s/^30$/thirty/' f; chmod 755 f");
        for (said, mode) in [(false, 0o644), (true, 0o755)] {
            let diff = lab.diff("s");
            let hunk = diff["changes"][0]["hunks"][0]["id"].as_str().unwrap();
            let ran = lab.skep(["approve", "s", "--hunk", hunk]).run().ok();
            assert_eq!(ran.errors().contains("mode 0644 -> 0755"), said, "{}", ran.describe());
            let found = std::fs::metadata(lab.project.join("f")).unwrap().permissions();
            assert_eq!(std::os::unix::fs::PermissionsExt::mode(&found) & 0o777, mode);
        }
    });
}

/// The user changed the same line as one hunk; the other one, in the same file, is taken by its id.
#[test]
fn a_hunk_beside_one_in_conflict_is_taken() {
    for_both(|lab| {
        let text = |edits: &[(usize, &str)]| -> String {
            let find = |n: usize| edits.iter().find(|(at, _)| *at == n).map(|(_, text)| *text);
            (1..=60).map(|n| find(n).map_or(format!("{n}\n"), |text| format!("{text}\n"))).collect()
        };
        lab.write("f", text(&[]));
        lab.worked("s", "sed -i 's/^5$/five/; s/^40$/forty/' f");
        lab.write("f", text(&[(5, "user"), (20, "more")]));
        let shown = hunks(&lab.diff("s"), Some("f"));
        lab.conflicts(&["s"]);
        lab.conflicts(&["s", "--hunk", &shown[0].id]);
        lab.conflicts(&["s", "--hunk", &shown[0].id, "--hunk", &shown[1].id]);
        // By a digest only where that names the project's side, too: it is a merge.
        let diff = lab.diff("s");
        let digest = diff["digest"].as_str().unwrap();
        let (sandbox, _) = digest.split_once('+').unwrap();
        lab.conflicts(&["s", "--hunk", &shown[1].id, "--digest", sandbox]);
        lab.approve(&["s", "--hunk", &shown[1].id, "--digest", digest]);
        let merged = text(&[(5, "user"), (20, "more"), (40, "forty")]);
        assert_eq!(lab.bytes("f"), merged.as_bytes());
        let left = hunks(&lab.diff("s"), Some("f"));
        assert_eq!(left.iter().map(|hunk| &hunk.id).collect::<Vec<_>>(), [&shown[0].id]);
        lab.conflicts(&["s"]);
        lab.skep(["undo"]).run().ok();
        assert_eq!(lab.bytes("f"), text(&[(5, "user"), (20, "more")]).as_bytes());
        assert_eq!(hunks(&lab.diff("s"), Some("f")).len(), 2);
    });
}
