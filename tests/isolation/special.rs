//! Files that hang or answer for ever when they are opened: nobody opens them.

use crate::harness::{Lab, for_both};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mknodat};
use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Says which names in some directories were opened. A handle that only names a file does not count.
struct Watch(OwnedFd);

impl Watch {
    fn new() -> Self {
        Self(inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap())
    }

    fn also(&self, directory: &Path) {
        inotify::add_watch(&self.0, directory, WatchFlags::OPEN).unwrap();
    }

    fn opened(&self) -> BTreeSet<String> {
        let mut buffer = [MaybeUninit::uninit(); 64 << 10];
        let mut reader = Reader::new(&self.0, &mut buffer);
        let mut names = BTreeSet::new();
        while let Ok(event) = reader.next() {
            assert!(!event.events().contains(ReadFlags::QUEUE_OVERFLOW), "too many to tell");
            let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
            names.extend(name);
        }
        names
    }
}

fn make(lab: &Lab, name: &str, kind: FileType, device: u64) {
    let path = lab.project.join(name);
    mknodat(CWD, &path, kind, Mode::from_raw_mode(0o666), device).unwrap();
    lab.who.own(&path);
}

const SPECIAL: [&str; 7] = ["pipe", ".env", "socket", "zero", "made", "bound", "id_rsa"];

#[test]
fn res_8_special_files_are_reported_and_never_opened() {
    for_both(|lab| {
        make(lab, "pipe", FileType::Fifo, 0);
        make(lab, ".env", FileType::Fifo, 0);
        make(lab, "socket", FileType::Socket, 0);
        if crate::harness::running_as_root() {
            make(lab, "zero", FileType::CharacterDevice, makedev(1, 5));
        }
        lab.write("plain", "one\n");
        let watch = Watch::new();
        watch.also(&lab.project);
        // Control: an open is seen.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        drop(rustix::fs::open(lab.project.join("pipe"), flags, Mode::empty()).unwrap());
        assert!(watch.opened().contains("pipe"));
        lab.create("s");
        let script =
            "mkfifo made id_rsa; echo two > plain; rm pipe; echo file > pipe; mkfifo socket.new
            /usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"bound\")'";
        lab.exec_script("s", script).run().ok();
        let id = lab.sandbox("s")["id"].as_str().unwrap().to_owned();
        watch.also(&lab.state.join("sandboxes").join(id).join("upper"));
        let _ = watch.opened();
        let changes = lab.diff("s")["changes"].as_array().unwrap().clone();
        let special: Vec<&str> = changes
            .iter()
            .filter(|change| change["kind"] == "special")
            .filter_map(|change| change["path"].as_str())
            .collect();
        assert_eq!(special, ["bound", "id_rsa", "made", "pipe", "socket.new"]);
        let out = lab.root.join("out");
        for line in [
            &["diff", "s"][..],
            &["diff", "s", "--stat"],
            &["show", "s"],
            &["conflicts", "s"],
            &["snapshot", "s", "label"],
            &["fork", "s", "--name", "t"],
            &["compare", "s", "t"],
            &["cp", "s:.", out.to_str().unwrap()],
            &["approve", "s"],
            &["undo"],
            &["stop", "s"],
            &["start", "s"],
            &["reject", "s", "made", "bound"],
            &["gc"],
        ] {
            lab.skep(line).run().ok();
        }
        let opened = watch.opened();
        let touched: Vec<_> = SPECIAL.iter().filter(|name| opened.contains(**name)).collect();
        // `pipe` of the upper is a plain file now, and may be read.
        let touched: Vec<_> = touched.into_iter().filter(|name| **name != "pipe").collect();
        assert!(touched.is_empty(), "{touched:?} of {opened:?}");
        let copied = |name: &str| out.join(name).symlink_metadata().is_ok();
        assert!(copied("plain") && !copied("made") && !copied("bound") && !copied("zero"));
        assert!(!lab.project.join("made").exists(), "a pipe was applied");
        std::fs::remove_dir_all(&out).unwrap();
    });
}
