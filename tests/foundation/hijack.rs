//! Programs that an attacker puts where a careless tool would find its helpers.

use crate::harness::for_both;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

const HELPERS: [&str; 22] = [
    "git",
    "diff",
    "patch",
    "mount",
    "umount",
    "bwrap",
    "newuidmap",
    "newgidmap",
    "fuse-overlayfs",
    "unshare",
    "nsenter",
    "ip",
    "nft",
    "cp",
    "rm",
    "mv",
    "tar",
    "sh",
    "less",
    "pager",
    "setfattr",
    "docker",
];

#[test]
fn fs_14_helpers_in_the_project_or_the_path_are_never_run() {
    for_both(|lab| {
        lab.write("a", "a\n");
        let marker = lab.root.join("hijacked");
        let places = ["node_modules/.bin", ".", "bin"];
        for place in places {
            for helper in HELPERS {
                let text = format!("#!/bin/sh\necho \"$0 $*\" >> {}\n", marker.display());
                let path = lab.write(format!("{place}/{helper}"), text);
                fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
        let project = lab.project.display();
        let path = format!("{project}/node_modules/.bin:.::{project}/bin:/usr/bin:/bin");
        let mut lines = vec![
            &["run", "--name", "s", "--", "/bin/sh", "-c", "echo b > a; echo n > n; rm bin/git"][..],
            &["create", "t"],
            &["exec", "t", "--", "/bin/true"],
            &["diff", "s"],
            &["diff", "s", "--stat"],
            &["approve", "s", "--dry-run"],
            &["approve", "s"],
            &["undo"],
            &["stop", "t"],
            &["start", "t"],
            &["doctor"],
            &["providers"],
            &["ls"],
            &["gc", "--dry-run"],
            &["config"],
            &["rm", "--discard", "t"],
        ];
        for line in lines.drain(..) {
            let ran = lab.skep(line).env("PATH", &path).env("PAGER", "pager").run();
            assert!(!marker.exists(), "{} ran {:?}", ran.describe(), fs::read_to_string(&marker));
        }
        // Control: somebody who looks along the path does run them.
        lab.program("/bin/sh").args(["-c", "git status"]).env("PATH", &path).run().ok();
        assert!(marker.exists());
    });
}
