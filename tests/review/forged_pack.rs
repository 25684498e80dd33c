//! What comes from inside by `skep pull` is whatever somebody there wants to send: git runs a program of
//! the sandbox's own (`uploadpack.packObjectsHook` in its home) instead of packing.

use crate::harness::for_both;

/// Sends the pack that `/tmp/kind` names.
const HOOK: &str = r#"
import sys, os, zlib, hashlib, struct
kind = open("/tmp/kind").read().strip()
sys.stdin.buffer.read()
def head(kind, size):
    first = (kind << 4) | (size & 15); size >>= 4
    made = bytearray()
    while size:
        made.append(first | 128); first = size & 127; size >>= 7
    made.append(first)
    return bytes(made)
def varint(n):
    made = bytearray()
    while n > 127:
        made.append(n & 127 | 128); n >>= 7
    made.append(n)
    return bytes(made)
def pack(count, entries):
    body = b"PACK" + struct.pack(">II", 2, count) + b"".join(entries)
    return body + hashlib.sha1(body).digest()
blob = head(3, 1) + zlib.compress(b"x")
def offset(n):
    made = bytearray([n & 127]); n >>= 7
    while n:
        n -= 1; made.insert(0, n & 127 | 128); n >>= 7
    return bytes(made)
def bomb():
    # A chain: each object is the one before, sixteen million bytes at a time, many times over.
    base = b"x" * 0xffff00
    entries, sizes, places = [head(3, len(base)) + zlib.compress(base)], [len(base)], [12]
    at = 12 + len(entries[0])
    for level in range(4):
        copy, copies = bytes([0xf0, 0x00, 0xff, 0xff]), 100  # 0xffff00 bytes from the start
        delta = varint(sizes[-1]) + varint(0xffff00 * copies) + copy * copies
        entry = head(6, len(delta)) + offset(at - places[-1]) + zlib.compress(delta)
        places.append(at); entries.append(entry); at += len(entry); sizes.append(0xffff00 * copies)
    return pack(len(entries), entries)
made = {
    "count": lambda: pack(0x7fffffff, [blob]),
    "fewer": lambda: pack(1, [blob, blob]),
    "cut": lambda: pack(1, [blob])[:-25],
    "empty": lambda: b"",
    "garbage": lambda: os.urandom(100_000),
    "claims": lambda: pack(1, [head(3, 1 << 42) + zlib.compress(b"x")]),
    "base": lambda: pack(1, [head(7, 5) + b"\x11" * 20 + zlib.compress(b"\x01\x01\x90\x01")]),
    "before": lambda: pack(1, [head(6, 4) + b"\xff\xff\x7f" + zlib.compress(b"\x01\x01\x90\x01")]),
    "hash": lambda: pack(1, [blob])[:-1] + b"\0",
    "other": lambda: pack(1, [blob]),
    "bomb": bomb,
}[kind]()
sys.stdout.buffer.write(made)
"#;

/// Wrong counts, cut ends, wrong hashes, foreign and missing bases, sizes that are only claimed, objects
/// that nobody asked for, and a chain of small differences that would unfold to gigabytes.
const KINDS: [&str; 11] = [
    "count", "fewer", "cut", "empty", "garbage", "claims", "base", "before", "hash", "other",
    "bomb",
];

#[test]
fn diff_20_a_forged_pack_is_refused_in_bounded_memory() {
    for_both(|lab| {
        let git = |line: &[&str]| {
            let who = ["-c", "user.name=Host", "-c", "user.email=host@example"];
            lab.program("git").args(who).args(line).run().ok().text()
        };
        lab.write("f", "one\n");
        git(&["init", "-q", "-b", "main", "."]);
        git(&["add", "f"]);
        git(&["commit", "-qm", "one"]);
        lab.tool("hook.py", HOOK);
        lab.up("s");
        lab.inside(
            "s",
            "git config --global user.name A; git config --global user.email a@b; \
             echo two > f; git commit -qam two; \
             printf '#!/bin/sh\\nexec python3 /tools/hook.py\\n' > $HOME/hook; chmod +x $HOME/hook; \
             git config --global uploadpack.packObjectsHook $HOME/hook",
        );
        let before = lab.tree();
        for kind in KINDS {
            lab.inside("s", &format!("echo {kind} > /tmp/kind"));
            let line = format!("ulimit -v 1500000; exec {} pull s", lab.binary.display());
            let ran = lab.program("sh").args(["-c", &line]).within(60).run();
            assert!(matches!(ran.code(), 1 | 5), "{kind}: {}", ran.describe());
            assert!(ran.errors().contains("inside"), "{kind}: {}", ran.describe());
            // Neither a reference nor an object nor a file.
            lab.tree().assert_equals(&before, kind);
        }
        // Control: without the program in between the same commit comes.
        lab.inside("s", "git config --global --unset uploadpack.packObjectsHook");
        lab.skep(["pull", "s"]).run().ok();
        assert_eq!(git(&["log", "--format=%s", "refs/skep/s/main"]), "two\none");
    });
}
