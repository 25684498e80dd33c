//! Files of a workspace over HTTP: what can be done with them, and that it stays inside.

use crate::harness::{Lab, Reply, Server, TOKEN, Who, for_both, for_each, wait_for};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

fn get(server: &Server<'_>, path: &str) -> Reply {
    server.get(&format!("/v1/sandboxes/s/files?path={path}"))
}

fn remove(server: &Server<'_>, query: &str) -> Reply {
    server.with(TOKEN, &["-X", "DELETE"], &format!("/v1/sandboxes/s/files?{query}"))
}

fn rename(server: &Server<'_>, from: &str, to: &str) -> Reply {
    server.post("/v1/sandboxes/s/files/move", &json!({ "from": from, "to": to }))
}

fn directory(server: &Server<'_>, path: &str, parents: bool) -> Reply {
    server.post("/v1/sandboxes/s/files/directory", &json!({ "path": path, "parents": parents }))
}

fn put_tar(server: &Server<'_>, tar: &Path, at: &str) -> Reply {
    let from = format!("@{}", tar.display());
    let kind = "Content-Type: application/x-tar";
    let bytes = ["-X", "PUT", "-H", kind, "--data-binary", &from];
    server.with(TOKEN, &bytes, &format!("/v1/sandboxes/s/files/tar?path={at}"))
}

/// The system's own tar is the oracle.
fn tar(lab: &Lab, arguments: &[&str]) -> String {
    let done = Command::new("tar").args(arguments).current_dir(&lab.root).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
fn files_are_moved_made_and_removed_inside_only() {
    for_both(|lab| {
        lab.write("a.txt", "one\n");
        lab.write("src/deep/b.txt", "two\n");
        let before = lab.tree();
        let server = lab.serve(&[]);
        server.create("s");
        // Of the project, and in a running and a stopped sandbox alike.
        for round in ["one", "two"] {
            let made = directory(&server, &format!("{round}/x/y"), true).is(201).json();
            assert_eq!((&made["kind"], &made["mode"]), (&json!("dir"), &json!("040755")));
            directory(&server, &format!("{round}/x"), false).is(409);
            directory(&server, &format!("{round}/x"), true).is(201);
            directory(&server, "nowhere/x", false).is(404);
            server.post("/v1/sandboxes/s/stop", &json!({})).is(200);
        }
        let moved = rename(&server, "src", "one/src").is(200).json();
        assert_eq!((&moved["entries"], &moved["bytes"]), (&json!(3), &json!(4)));
        assert_eq!(get(&server, "one/src/deep/b.txt").is(200).body, b"two\n");
        get(&server, "src/deep/b.txt").is(404);
        assert_eq!(
            server.script("s", "cat one/src/deep/b.txt; ls")["stdout"],
            "two\na.txt\none\ntwo\n"
        );
        assert_eq!(rename(&server, "a.txt", "one").is(409).json()["code"], "already_exists");
        assert_eq!(rename(&server, "one", "one/x/one").is(400).json()["code"], "usage");
        rename(&server, "nothing", "else").is(404);
        assert_eq!(remove(&server, "path=one").is(409).json()["code"], "conflict");
        remove(&server, "path=one&recursive=true").is(200);
        remove(&server, "path=two/x/y").is(200);
        remove(&server, "path=two/x/y").is(404);
        for root in ["", ".", "a/.."] {
            remove(&server, &format!("path={root}&recursive=true")).is(400);
        }
        for bad in ["../x", "/etc", "a/../../x"] {
            remove(&server, &format!("path={bad}")).is(400);
            rename(&server, "a.txt", bad).is(400);
            directory(&server, bad, true).is(400);
        }
        let kinds: Vec<_> = lab.diff("s")["changes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| (one["path"].as_str().unwrap().to_owned(), one["kind"].clone()))
            .collect();
        assert_eq!(
            kinds,
            [("src/deep/b.txt".to_owned(), json!("deleted")), ("two/x".to_owned(), json!("added"))]
        );
        lab.tree().assert_equals(&before, "the project was changed");
        server.stop();
    });
}

/// Links made inside that point at the host, in every place a path can go through one.
#[test]
fn fs_1_links_made_inside_lead_no_file_operation_out() {
    for_both(|lab| {
        lab.create("s");
        links_lead_nowhere(lab);
    });
}

/// The same of the sandbox `s`, wherever it runs.
pub(crate) fn links_lead_nowhere(lab: &Lab) {
    let outside = lab.directory(lab.root.join("outside/dir"));
    let canary = lab.write(lab.root.join("outside/canary"), "canary");
    let before = crate::harness::Tree::read(&lab.root.join("outside"));
    let server = lab.serve(&[]);
    let links = format!(
        "cd {2}; ln -s {0} out; ln -s {1} file; ln -s {1} upload; mkdir d; ln -s ../../outside d/up; echo mine > mine",
        lab.root.join("outside").display(),
        canary.display(),
        lab.project.display(),
    );
    assert_eq!(server.script("s", &links)["exit_code"], 0);
    // The control: the links do lead there, for whoever follows them.
    assert_eq!(std::fs::read(lab.root.join("project/../outside/canary")).unwrap(), b"canary");
    for path in ["out/canary", "out/dir", "d/up/canary"] {
        assert!(remove(&server, &format!("path={path}&recursive=true")).status >= 400, "{path}");
        assert!(rename(&server, path, "stolen").status >= 400, "{path}");
        assert!(rename(&server, "mine", path).status >= 400, "{path}");
        assert!(directory(&server, &format!("{path}/new"), true).status >= 400, "{path}");
        let packed = server.get(&format!("/v1/sandboxes/s/files/tar?path={path}"));
        assert!(packed.status >= 400, "{path}");
        let watched = server.get(&format!("/v1/sandboxes/s/files/watch?path={path}"));
        assert_eq!(watched.status, 404, "{path}");
    }
    for path in ["out/new", "upload", "d/up/canary", "../x", "/etc/skep-planted"] {
        let upload = ["-X", "PUT", "-H", "Content-Type: application/octet-stream", "-d", "planted"];
        server.with(TOKEN, &upload, &format!("/v1/sandboxes/s/files?path={path}"));
        assert_ne!(get(&server, path).body, b"canary", "{path}");
    }
    // A link itself is moved and packed as a link.
    rename(&server, "file", "other").is(200);
    let read = format!("readlink {}/other", lab.project.display());
    assert_eq!(server.script("s", &read)["stdout"], format!("{}\n", canary.display()));
    let packed = server.get("/v1/sandboxes/s/files/tar?path=").is(200).body;
    let file = lab.write(lab.root.join("packed.tar"), &packed);
    let list = tar(lab, &["-tvf", file.to_str().unwrap()]);
    assert!(list.contains(&format!("other -> {}", canary.display())), "{list}");
    assert!(!String::from_utf8_lossy(&packed).contains("canary\0\0canary"));
    assert!(!packed.windows(6).any(|bytes| bytes == b"canary" && !list.contains("canary")));
    // An archive whose names leave, or go through a link of its own or of the agent's.
    let evil = lab.directory(lab.root.join("evil"));
    std::os::unix::fs::symlink(&outside, evil.join("link")).unwrap();
    lab.write(evil.join("plain"), "evil");
    for (name, transform) in [
        ("up.tar", "s,plain,../../outside/evil,"),
        ("absolute.tar", "s,plain,/tmp/skep-evil,"),
        ("agent.tar", "s,plain,out/evil,"),
        ("deep.tar", "s,plain,d/up/evil,"),
    ] {
        let flag = format!("--transform={transform}");
        tar(lab, &["-cPf", name, "-C", "evil", &flag, "plain"]);
        let reply = put_tar(&server, &lab.root.join(name), "");
        assert!((400..500).contains(&reply.status), "{name}: {reply:?}");
    }
    tar(lab, &["-cf", "own.tar", "-C", "evil", "--transform=s,plain,link/evil,", "link", "plain"]);
    assert_eq!(put_tar(&server, &lab.root.join("own.tar"), "").is(400).json()["code"], "usage");
    crate::harness::Tree::read(&lab.root.join("outside"))
        .assert_equals(&before, "something got out");
    server.stop();
}

#[test]
fn a_tree_travels_as_a_tar() {
    for_both(|lab| {
        lab.write("kept.txt", "kept\n");
        let server = lab.serve(&[]);
        server.create("s");
        let from = lab.directory(lab.root.join("from/sub/empty"));
        let from = from.parent().unwrap().parent().unwrap();
        let long = "n".repeat(180);
        lab.write(from.join(&long), "long name");
        lab.write(from.join("sub/run.sh"), "#!/bin/sh\necho ran\n");
        lab.write(from.join("sub/big"), vec![7; 3 << 20]);
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::Permissions::from_mode(0o4755);
        std::fs::set_permissions(from.join("sub/run.sh"), mode).unwrap();
        std::os::unix::fs::symlink("run.sh", from.join("sub/link")).unwrap();
        let pipe = from.join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        tar(lab, &["-cf", "up.tar", "-C", "from", "."]);
        let report = put_tar(&server, &lab.root.join("up.tar"), "in/here").is(200).json();
        assert_eq!(report["entries"], 6, "{report}");
        assert!(report["skipped"][0].as_str().unwrap().contains("pipe"), "{report}");
        let script = "cd in/here && ./sub/link && stat -c %a sub/run.sh && ls sub";
        let ran = server.script("s", script);
        assert_eq!(ran["stdout"], "ran\n755\nbig\nempty\nlink\nrun.sh\n", "{ran}");
        let down = server.get("/v1/sandboxes/s/files/tar?path=in/here").is(200);
        assert_eq!(down.header("content-type").unwrap(), "application/x-tar");
        let down = lab.write(lab.root.join("down.tar"), &down.body);
        lab.directory(lab.root.join("to/x"));
        tar(lab, &["-xf", down.to_str().unwrap(), "-C", "to"]);
        std::fs::remove_dir(lab.root.join("to/x")).unwrap();
        std::fs::remove_file(&pipe).unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(from.join("sub/run.sh"), mode).unwrap();
        let read = |name: &str| crate::harness::Tree::read(&lab.root.join(name));
        lab.own_below(&lab.root.join("to"));
        lab.own_below(from);
        read("to").assert_equals(&read("from"), "what came back is another");
        let one = server.get("/v1/sandboxes/s/files/tar?path=kept.txt").is(200).body;
        let one = lab.write(lab.root.join("one.tar"), one);
        assert_eq!(tar(lab, &["-xOf", one.to_str().unwrap(), "kept.txt"]), "kept\n");
        // What is no tar, or cut off, writes nothing.
        let whole = std::fs::read(lab.root.join("up.tar")).unwrap();
        for (bytes, what) in [(&whole[..whole.len() / 2], "half"), (&b"nonsense"[..], "nonsense")] {
            let file = lab.write(lab.root.join("bad.tar"), bytes);
            let reply = put_tar(&server, &file, &format!("bad-{what}"));
            assert_eq!(reply.status, 400, "{what}: {reply:?}");
            get(&server, &format!("bad-{what}")).is(404);
        }
        let left = crate::harness::entries(&lab.state);
        let scratch = |path: &Path| path.to_string_lossy().contains("scratch-");
        assert!(!left.iter().any(|path| scratch(path)), "{left:?}");
        server.stop();
    });
}

/// Archives that no tar would write.
const FORGED: &str = r#"
import tarfile, io, os, sys
def entry(name, kind=tarfile.REGTYPE, data=b'', link='', size=None):
    info = tarfile.TarInfo(name); info.type = kind; info.linkname = link
    info.size = len(data) if size is None else size
    return info, data
def write(path, entries):
    with tarfile.open(path, 'w', format=tarfile.GNU_FORMAT) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
good = entry('good', data=b'good')
write('parent.tar', [good, entry('../../evil', data=b'x')])
write('absolute.tar', [good, entry('/tmp/skep-evil', data=b'x')])
write('link-then-file.tar', [good, entry('l', tarfile.SYMTYPE, link='/tmp'), entry('l/evil', data=b'x')])
write('two-links.tar', [good, entry('a', tarfile.SYMTYPE, link='.'), entry('a/b', tarfile.SYMTYPE, link='..'),
    entry('a/b/evil', data=b'x')])
write('hard-link.tar', [good, entry('h', tarfile.LNKTYPE, link='/etc/passwd')])
write('hard-link-up.tar', [good, entry('h', tarfile.LNKTYPE, link='../../canary')])
write('character-device.tar', [good, entry('d', tarfile.CHRTYPE)])
write('block-device.tar', [good, entry('d', tarfile.BLKTYPE)])
write('twice.tar', [good, entry('good', data=b'other')])
write('file-and-link.tar', [entry('x', data=b'x'), entry('x', tarfile.SYMTYPE, link='/etc/passwd'), good])
with open('size.tar', 'wb') as out:
    info, _ = entry('big', size=1 << 40); out.write(good[0].tobuf(tarfile.GNU_FORMAT) + b'good' + bytes(508))
    out.write(info.tobuf(tarfile.GNU_FORMAT) + b'short')
hole = open('hole', 'wb'); hole.truncate(3 << 30); hole.close()
os.system('tar --sparse -cf bomb.tar hole'); os.remove('hole')
print(' '.join(sorted(name for name in os.listdir('.') if name.endswith('.tar'))))
"#;

#[test]
fn fs_13_a_forged_archive_is_refused_whole_and_nothing_is_left() {
    for_both(|lab| {
        lab.write("kept.txt", "kept\n");
        let canary = lab.write(lab.root.join("canary"), "canary");
        let forged = lab.directory(lab.root.join("forged"));
        let made =
            Command::new("python3").args(["-c", FORGED]).current_dir(&forged).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let names = String::from_utf8(made.stdout).unwrap();
        let names: Vec<&str> = names.split_whitespace().collect();
        assert_eq!(names.len(), 12, "{names:?}");
        let (before, server) = (lab.tree(), lab.serve(&[]));
        server.create("s");
        for name in names {
            let reply = put_tar(&server, &forged.join(name), "in");
            assert_eq!(reply.status, 400, "{name}: {}", String::from_utf8_lossy(&reply.body));
            get(&server, "in").is(404);
            assert_eq!(server.script("s", "ls -A")["stdout"], "kept.txt\n", "{name}");
        }
        // The control: without the forged entries the same is unpacked.
        let good = lab.write(lab.root.join("good"), "good");
        tar(lab, &["-cf", "good.tar", "good"]);
        put_tar(&server, &lab.root.join("good.tar"), "in").is(200);
        assert_eq!(get(&server, "in/good").is(200).body, b"good");
        std::fs::remove_file(good).unwrap();
        assert_eq!(std::fs::read(canary).unwrap(), b"canary");
        assert!(!Path::new("/tmp/skep-evil").exists() && !lab.root.join("evil").exists());
        lab.tree().assert_equals(&before, "the project was changed");
        let left = crate::harness::entries(&lab.state);
        let scratch = |path: &Path| path.to_string_lossy().contains("scratch-");
        assert!(!left.iter().any(|path| scratch(path)), "{left:?}");
        server.stop();
    });
}

/// What is written inside comes out of every way as the same bytes.
#[test]
fn diff_18_odd_bytes_leave_by_tar_copy_and_approval_as_they_are() {
    for_both(|lab| {
        let odd: [(&str, &[u8]); 6] = [
            ("crlf", b"one\r\ntwo\r\n"),
            ("bom", b"\xef\xbb\xbfone\n"),
            ("utf16", b"\xff\xfeo\0n\0e\0\n\0"),
            ("no-end", b"one\ntwo"),
            ("nul", b"a\0b\n"),
            ("empty", b""),
        ];
        let (from, server) = (lab.directory(lab.root.join("odd")), lab.serve(&[]));
        odd.iter().for_each(|(name, bytes)| drop(lab.write(from.join(name), bytes)));
        server.create("s");
        tar(lab, &["-cf", "odd.tar", "-C", "odd", "."]);
        put_tar(&server, &lab.root.join("odd.tar"), "odd").is(200);
        let down = server.get("/v1/sandboxes/s/files/tar?path=odd").is(200).body;
        lab.write(lab.root.join("down.tar"), down);
        let out = lab.root.join("copied");
        lab.skep(["cp", "s:odd"]).arg(&out).run().ok();
        lab.skep(["approve", "s"]).run().ok();
        for (name, bytes) in odd {
            let line = ["-xOf", "down.tar", name];
            let one = Command::new("tar").args(line).current_dir(&lab.root).output().unwrap();
            assert_eq!(one.stdout, bytes, "{name} by tar");
            assert_eq!(
                get(&server, &format!("odd/{name}")).is(200).body,
                bytes,
                "{name} by itself"
            );
            assert_eq!(std::fs::read(out.join(name)).unwrap(), bytes, "{name} by cp");
            let applied = std::fs::read(lab.project.join("odd").join(name)).unwrap();
            assert_eq!(applied, bytes, "{name} by approval");
        }
        server.stop();
    });
}

/// The digest and the version that a client saw, a key that is used twice, and a sandbox past its time.
#[test]
fn diff_12_stale_repeated_and_late_approvals_have_one_outcome() {
    for_both(|lab| {
        lab.write("a", "old\n");
        let (before, server) = (lab.tree(), lab.serve(&[]));
        let body = json!({ "name": "s", "project": lab.project, "ttl": "2s" });
        let made = server.post("/v1/sandboxes", &body).is(201);
        let early =
            made.header("etag").unwrap_or_else(|| format!("\"{}\"", made.json()["version"]));
        server.script("s", "echo one > a");
        let digest = server.get("/v1/sandboxes/s/changes").is(200).json()["digest"].clone();
        server.script("s", "echo two > a");
        // Its time is over: it is stopped, and its unreviewed work is there.
        wait_for("the end of its time", 30, || {
            (server.get("/v1/sandboxes/s").is(200).json()["state"] == "stopped").then_some(())
        });
        let approve = |body: &Value, more: &[&str]| {
            server.send("POST", "/v1/sandboxes/s/approve", body, more)
        };
        let stale = approve(&json!({ "digest": digest }), &[]);
        assert_eq!(stale.is(409).json()["code"], "digest_mismatch");
        let header = format!("If-Match: {early}");
        assert_eq!(approve(&json!({}), &["-H", &header]).is(412).json()["code"], "stale_version");
        lab.tree().assert_equals(&before, "nothing was approved");
        let key = ["-H", "Idempotency-Key: one-approval"];
        let digest = server.get("/v1/sandboxes/s/changes").is(200).json()["digest"].clone();
        let first = approve(&json!({ "digest": digest }), &key).is(200).json();
        assert_eq!(std::fs::read(lab.project.join("a")).unwrap(), b"two\n");
        assert_eq!(approve(&json!({ "digest": digest }), &key).is(200).json(), first);
        assert_eq!(
            approve(&json!({ "digest": digest }), &[]).is(409).json()["code"],
            "digest_mismatch"
        );
        let history = lab.skep(["history", "--json"]).run().ok().json();
        assert_eq!(history.as_array().unwrap().len(), 1, "{history}");
        server.stop();
    });
}

/// Whoever looks: an approval by digest merges with what it names, and with nothing else.
#[test]
fn a_viewers_look_makes_no_merge_reviewed() {
    for_both(|lab| {
        lab.write("f", "1\n2\n3\n4\n5\n6\n7\n8\n9\n");
        let viewer = lab.skep(["token", "create", "--role", "viewer"]).run().ok().text();
        let server = lab.serve(&[]);
        server.create("s");
        let line = ["token", "create", "--role", "agent", "--sandbox", "s"];
        let agent = lab.skep(line).run().ok().text();
        server.script("s", "sed -i s/2/two/ f");
        let changes = "/v1/sandboxes/s/changes";
        let set = server.get(changes).is(200).json();
        assert_eq!(set.get("beside"), None, "{set}");
        lab.write("f", "1\n2\n3\n4\n5\n6\n7\n8\nnine\n");
        server.with(&viewer, &[], changes).is(200);
        server.with(&agent, &[], changes).is(200);
        let approve = |body: &Value| server.post("/v1/sandboxes/s/approve", body);
        let refused = approve(&json!({ "digest": set["digest"] })).is(409).json();
        assert_eq!(refused["code"], "conflict", "{refused}");
        assert!(refused["message"].as_str().unwrap().contains("the project moved"), "{refused}");
        // What stood beside it, said with the approval: of this state of the project and of no other.
        let worked = server.get(changes).is(200).json();
        let body = json!({ "digest": worked["digest"], "beside": worked["beside"] });
        approve(&json!({ "digest": worked["digest"] })).is(409);
        lab.write("f", "1\n2\n3\n4\n5\n6\n7\neight\nnine\n");
        approve(&body).is(409);
        lab.write("f", "1\n2\n3\n4\n5\n6\n7\n8\nnine\n");
        assert_eq!(approve(&json!({ "check": "" })).is(400).json()["code"], "usage");
        approve(&body).is(200);
        assert_eq!(
            std::fs::read(lab.project.join("f")).unwrap(),
            b"1\ntwo\n3\n4\n5\n6\n7\n8\nnine\n"
        );
        server.stop();
    });
}

/// The next event of a stream that `curl` prints.
fn next(lines: &mut impl BufRead) -> (String, Value) {
    let (mut name, mut line) = (String::new(), String::new());
    loop {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the stream ended");
        if let Some(event) = line.strip_prefix("event: ") {
            name = event.trim().to_owned();
        }
        if let Some(data) = line.strip_prefix("data: ") {
            return (name, serde_json::from_str(data).unwrap());
        }
    }
}

#[test]
fn changes_are_told_as_they_come() {
    for_both(|lab| {
        lab.write("src/a.txt", "one\n");
        let server = lab.serve(&[]);
        server.create("s");
        let url = server.url("/v1/sandboxes/s/files/watch?path=src");
        let mut curl = Command::new("curl")
            .args(["-sN", "--max-time", "60", "-D", "-", "-H"])
            .arg(format!("Authorization: Bearer {TOKEN}"))
            .arg(url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(curl.stdout.take().unwrap());
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(lines.read_line(&mut head).unwrap() > 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let mut told = |script: &str, path: &str, kind: &str| {
            server.script("s", script);
            let expected = json!({ "path": path, "kind": kind });
            // A write of several steps may be told more than once; nothing else is told.
            loop {
                let (name, change) = next(&mut lines);
                assert_eq!(name, "change", "{script}");
                assert!(change["path"].as_str().unwrap().starts_with("src/"), "{script}: {change}");
                if change == expected {
                    return;
                }
                assert_eq!(change["kind"], "modified", "{script}: {change}");
            }
        };
        told("echo new > src/b.txt; echo elsewhere > c.txt", "src/b.txt", "created");
        // Written in place through the mount: no notification comes from the upper for this.
        told("printf more >> src/b.txt", "src/b.txt", "modified");
        told("echo two > src/a.txt", "src/a.txt", "modified");
        told("rm src/b.txt", "src/b.txt", "deleted");
        told("rm src/a.txt", "src/a.txt", "deleted");
        server.with(TOKEN, &["-X", "DELETE"], "/v1/sandboxes/s?discard=true").is(204);
        assert_eq!(next(&mut lines).0, "end");
        assert!(curl.wait().unwrap().success());
        wait_for("the looker to end", 10, || {
            let looks = |process: &crate::harness::outside::Process| {
                let line = std::fs::read(format!("/proc/{}/cmdline", process.pid));
                line.unwrap_or_default().starts_with(b"skep: watch")
            };
            let left = crate::harness::outside::processes_of(&lab.root);
            (!left.iter().any(looks)).then_some(())
        });
        server.stop();
    });
}

/// A client that goes away takes its looker with it.
#[test]
fn a_watch_ends_with_its_client() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let watches = || {
            let all = crate::harness::outside::processes_of(&lab.root);
            let line = |pid: i32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            all.iter().filter(|one| line(one.pid).starts_with(b"skep: watch")).count()
        };
        let mut curl = Command::new("curl")
            .args(["-sN", "-o", "/dev/null", "-H"])
            .arg(format!("Authorization: Bearer {TOKEN}"))
            .arg(server.url("/v1/sandboxes/s/files/watch?path="))
            .spawn()
            .unwrap();
        wait_for("the looker", 10, || (watches() == 1).then_some(()));
        curl.kill().unwrap();
        curl.wait().unwrap();
        wait_for("the looker to end", 20, || (watches() == 0).then_some(()));
        server.stop();
    });
}
