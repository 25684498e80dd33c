//! What a mount must not hand over: the project past its review, and skep's own state.

use crate::harness::{Lab, for_both, for_each, skip};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

fn mount(source: &Path, rest: &str) -> String {
    format!("{}:/mnt/there{rest}", source.display())
}

/// Who looks at somebody else's sandbox sees what was opened.
#[test]
fn what_was_opened_of_the_host_is_in_the_report() {
    for_both(|lab| {
        lab.write(".env", "x\n");
        let shared = lab.root.join("shared");
        lab.directory(&shared);
        let mount = format!("{}:/shared:rw", shared.display());
        lab.skep(["create", "s", "--mount", &mount, "--show", ".env"]).run().ok();
        let how = lab.sandbox("s")["enforcement"]["filesystem"]["how"].to_string();
        assert!(how.contains(&format!("`{}` at `/shared` (rw)", shared.display())), "{how}");
        assert!(how.contains("shown on request: `.env`"), "{how}");
        let reason = lab.sandbox("s")["enforcement"]["filesystem"]["reason"].to_string();
        let hole = format!("can be written inside: `{}` at `/shared`", shared.display());
        assert!(reason.contains(&hole), "{reason}");
        // Also after another start.
        lab.skep(["stop", "s"]).run().ok();
        lab.skep(["start", "s"]).run().ok();
        assert_eq!(lab.sandbox("s")["enforcement"]["filesystem"]["how"].to_string(), how);
        lab.create("plain");
        let how = lab.sandbox("plain")["enforcement"]["filesystem"]["how"].to_string();
        assert!(!how.contains("of the host also") && !how.contains("shown on request"), "{how}");
    });
}

/// Shows a directory in a sandbox and then mounts something in it, on a host that tells its namespaces of its mounts.
/// `$1` is the lab, `$2` and `$3` are the ids of the caller.
const MOUNTED_LATER: &str = "set -e
lab=$1 uid=$2 gid=$3
mount --make-rprivate /
skep() { setpriv --reuid \"$uid\" --regid \"$gid\" --clear-groups \"$lab/bin/skep\" \"$@\"; }
mkdir \"$lab/shared\"
mount -t tmpfs later \"$lab/shared\"
mount --make-shared \"$lab/shared\"
mkdir \"$lab/shared/disk\"
mount --rbind /dev /dev
mount --make-shared /dev
echo later > \"$lab/other\"
cd \"$lab/project\"
# The second is begun before it is known what for.
skep create s --mount \"$lab/shared:/mnt/there\" > /dev/null
skep run -- true 2> /dev/null
skep create t > /dev/null
# Control: another namespace is told.
unshare -m --propagation unchanged sleep 60 &
control=$!
while test $(readlink /proc/$control/ns/mnt) = $(readlink /proc/self/ns/mnt); do sleep 0.02; done
mount -t tmpfs -o mode=777 later \"$lab/shared/disk\"
echo secret > \"$lab/shared/disk/file\"
mount --bind \"$lab/other\" /dev/full
nsenter -t $control -m cat \"$lab/shared/disk/file\" /dev/full
kill $control
for name in s t; do
  skep exec $name -- sh -c 'head -c 5 /dev/full | tr \"\\0\" z; grep -cE \" (shared|master):\" /proc/self/mountinfo || true'
done
umount /dev/full
code=0
skep exec s -- sh -c 'echo inside > /mnt/there/disk/made' 2> /dev/null || code=$?
echo $code $(skep exec s -- ls /mnt/there/disk) end
test ! -e \"$lab/shared/disk/made\" && echo untouched
skep rm s t > /dev/null
umount -R \"$lab/shared\"; rmdir \"$lab/shared\"";

/// It would come in without what makes a mount harmless: to be written, with its devices.
#[test]
fn what_the_host_mounts_later_does_not_come_in() {
    if !crate::harness::running_as_root() {
        return skip("only root can mount something in what a sandbox shows");
    }
    for_both(|lab| {
        let mut command = lab.in_a_world(MOUNTED_LATER);
        let (uid, gid) = lab.who.ids();
        command.arg(&lab.root).args([uid.to_string(), gid.to_string()]);
        let ran = crate::harness::Call::new(command).by(lab.who).run().ok();
        let lines: Vec<String> = ran.text().lines().map(str::to_owned).collect();
        assert_eq!(
            lines,
            ["secret", "later", "zzzzz0", "zzzzz0", "2 end", "untouched"],
            "{}",
            ran.describe()
        );
    });
}

/// What is required is no longer so where something of the host can be written, whoever asked for that.
#[test]
fn proc_14_a_required_view_has_no_writable_mount() {
    for_both(|lab| {
        let shared = lab.root.join("shared");
        lab.directory(&shared);
        let (rw, ro) = (mount(&shared, ":rw"), mount(&shared, ":ro"));
        let write = ["--", "sh", "-c", "echo two > /mnt/there/a"];
        let call = lab.skep(["run", "--json", "--require", "filesystem", "--mount", &rw]);
        let ran = call.args(write).run();
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        assert_eq!(ran.problem()["code"], "missing_capability");
        assert!(ran.problem()["message"].to_string().contains("shared"), "{}", ran.describe());
        assert!(!shared.join("a").exists());
        // The mount from a setting is no other.
        let call = lab.skep(["run", "--require", "filesystem", "--", "true"]);
        let ran = call.env("SKEP_SANDBOX_MOUNTS", &rw).run();
        assert_eq!(ran.code(), 5, "{}", ran.describe());
        // Control: what is not required may be opened, and what is read-only is no hole.
        lab.skep(["run", "--mount", &rw]).args(write).run().ok();
        assert!(shared.join("a").exists());
        lab.skep(["run", "--require", "filesystem", "--mount", &ro, "--", "true"]).run().ok();
    });
}

#[test]
fn fs_7_a_writable_mount_may_not_overlap_the_project() {
    for_both(|lab| {
        lab.write("src/a", "one\n");
        for source in [lab.project.clone(), lab.root.clone(), lab.project.join("src")] {
            let words = ["run", "--json", "--mount", &mount(&source, ":rw")];
            let call = lab.skep(words).args(["--", "sh", "-c", "echo two > /mnt/there/a"]);
            let ran = lab.without_effect(call);
            assert_eq!(ran.code(), 5, "{}", ran.describe());
            assert_eq!(ran.problem()["code"], "refused");
        }
        // Control: beside the project it can be written, and around it read.
        let beside = lab.root.join("beside");
        std::fs::create_dir(&beside).unwrap();
        lab.who.own(&beside);
        let words = ["run", "--mount", &mount(&beside, ":rw"), "--", "sh", "-c"];
        lab.skep(words).arg("echo two > /mnt/there/a").run().ok();
        assert_eq!(std::fs::read(beside.join("a")).unwrap(), b"two\n");
        lab.skep(["run", "--mount", &mount(&lab.root, ":ro"), "--", "ls", "/mnt/there"]).run().ok();
    });
}

#[test]
fn fs_6_the_state_directory_cannot_be_mounted_and_is_covered_in_what_is() {
    for_both(|lab| {
        lab.create("other");
        lab.exec_script("other", "echo precious > work").run().ok();
        for source in [lab.state.clone(), lab.state.join("sandboxes")] {
            let ran = lab.skep(["run", "--mount", &mount(&source, ":ro"), "--", "true"]).run();
            assert_eq!(ran.code(), 5, "{}", ran.describe());
        }
        let words = ["run", "--mount", &mount(&lab.root, ":ro"), "--", "sh", "-c"];
        let script =
            "ls /mnt/there; echo -; ls -A /mnt/there/state; grep -r precious /mnt/there/state";
        let text = lab.skep(words).arg(script).run().text();
        assert!(text.contains("project") && text.ends_with('-'), "{text}");
    });
}

/// A directory below `/opt`, which is shown inside; removed at the end.
struct Below(PathBuf);

impl Drop for Below {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn fs_6_a_state_directory_in_a_system_directory_is_covered() {
    for_both(|lab: &Lab| {
        if !rustix::process::geteuid().is_root() {
            return skip("only root can make a directory in /opt");
        }
        let name = lab.root.file_name().unwrap().display().to_string();
        let below = Below(PathBuf::from("/opt").join(name));
        std::fs::create_dir(&below.0).unwrap();
        lab.who.own(&below.0);
        std::fs::write(below.0.join("public"), "").unwrap();
        let state = below.0.join("state");
        let script = format!("ls {0}; echo -; ls -A {0}/state", below.0.display());
        let call = lab.skep(["run", "--rm", "--", "sh", "-c", &script]).env("SKEP_HOME", &state);
        let text = call.run().ok().text();
        assert_eq!(text, "public\nstate\n-");
        assert!(state.join("skep.db").exists());
    });
}

/// The host's network is asked for by name; the session's sockets are not.
#[test]
fn proc_10_the_hosts_network_does_not_bring_its_abstract_sockets() {
    for_each([crate::harness::Who::user()], |lab| {
        let name = lab.root.file_name().unwrap().display().to_string();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _listener = UnixListener::bind_addr(&address).unwrap();
        let program = format!(
            "import socket\ns = socket.socket(socket.AF_UNIX)\ntry: s.connect('\\0{name}'); print('reached')\n\
             except OSError as e: print(e.errno)"
        );
        let inside = lab.skep(["run", "--json", "--net", "host", "--", "/usr/bin/python3", "-c"]);
        let end = inside.arg(&program).run().ok().json();
        let fence = end["enforcement"]["landlock"]["how"].as_str().unwrap().to_owned();
        if !fence.contains("abstract sockets") {
            return skip("this Landlock has no scopes");
        }
        assert_eq!(end["stdout"], "1\n", "{end}");
        let outside = lab.program("/usr/bin/python3").args(["-c", &program]).run().ok();
        assert_eq!(outside.text(), "reached");
    });
}

/// The second fence is on commands themselves: `/run` is theirs, and mounted so that it could be written; no rule says so.
#[test]
fn proc_5_commands_wear_the_landlock_fence() {
    for_both(|lab| {
        let end = lab.skep(["run", "--json", "--", "sh", "-c", "touch /tmp/x && touch /run/x"]);
        let end = end.run().json();
        if end["enforcement"]["landlock"]["enforced"] != true {
            return skip("this kernel has no Landlock");
        }
        assert_eq!(end["exit_code"], 1, "{end}");
        assert!(end["stderr"].as_str().unwrap().contains("/run/x"), "{end}");
        assert!(end["stderr"].as_str().unwrap().contains("Permission denied"), "{end}");
    });
}

/// What the hide list names is not seen in a piece that was named for other reasons.
#[test]
fn fs_6_credentials_in_a_piece_of_the_home_are_not_seen() {
    for_both(|lab| {
        for path in [".config/gh/hosts.yml", ".config/app/.env", ".config/app/settings"] {
            lab.write(lab.home.join(path), "planted\n");
        }
        let others = [".docker/daemon.json", ".aws/config"];
        let others = others.map(|path| lab.write(lab.home.join(path), "planted\n"));
        let see = |pieces: &str| {
            let config = lab.home.join(".config/skep/config.toml");
            lab.write(config, format!("[sandbox]\nhome = [{pieces}]\n"));
            let script = "cd \"$HOME\" && grep -rl planted .config .docker .aws 2>/dev/null | sort";
            let text = lab.run_script(script).run().text();
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        // `.aws` is on the list too, but was asked for.
        let seen = see("\".config\", \".docker\", \".aws\"");
        assert_eq!(seen, [".aws/config", ".config/app/settings", ".docker/daemon.json"]);
        // Control: so is whatever else is named.
        let seen = see("\".config\", \".config/gh\"");
        assert_eq!(seen, [".config/app/settings", ".config/gh/hosts.yml"]);
        for directory in [".config/gh", ".config/app", ".config/skep"] {
            std::fs::remove_dir_all(lab.home.join(directory)).unwrap();
        }
        others.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    });
}

/// Plants a piece of the home with a secret among other things; who wants `.docker` sees the rest.
pub(crate) fn plant_docker_settings(lab: &Lab) {
    let secret = lab.home.join(".docker/config.json");
    std::fs::rename(&secret, lab.root.join("before")).unwrap();
    lab.write(secret, "planted before\n");
    lab.write(lab.home.join(".docker/daemon.json"), "plain\n");
    lab.write(lab.home.join(".docker/contexts/meta"), "below\n");
    std::os::unix::fs::symlink("daemon.json", lab.home.join(".docker/link")).unwrap();
    lab.write(lab.home.join(".config/skep/config.toml"), "[sandbox]\nhome = [\".docker\"]\n");
    lab.own_below(&lab.home);
}

/// What the lab has planted is there again.
pub(crate) fn take_docker_settings_away(lab: &Lab) {
    let settings = lab.home.join(".docker");
    for name in ["daemon.json", "link", "config.json"] {
        std::fs::remove_file(settings.join(name)).unwrap();
    }
    for directory in [settings.join("contexts"), lab.home.join(".config/skep")] {
        std::fs::remove_dir_all(directory).unwrap();
    }
    std::fs::rename(lab.root.join("before"), settings.join("config.json")).unwrap();
}

/// As `docker login` and every other program does it.
pub(crate) fn log_in_anew(lab: &Lab) {
    let new = lab.write(lab.home.join(".docker/new"), "planted after\n");
    std::fs::rename(new, lab.home.join(".docker/config.json")).unwrap();
}

/// The kernel takes mounts away from a name that is given to another file outside.
#[test]
fn fs_6_a_credential_that_is_written_anew_outside_is_not_seen() {
    for_both(|lab| {
        plant_docker_settings(lab);
        lab.skep(["create", "s"]).run().ok();
        let script = "cd ~/.docker; cat daemon.json contexts/meta; cat config.json new 2>/dev/null; readlink link";
        for _turn in 0..2 {
            let ran = lab.exec_script("s", script).run().ok();
            assert_eq!(ran.text(), "plain\nbelow\ndaemon.json", "{}", ran.describe());
            log_in_anew(lab);
        }
        // What is shown stays read-only, and what is written beside it reaches nobody.
        let script =
            "cd ~/.docker; echo x > config.json; echo x 2>/dev/null > daemon.json || echo refused";
        assert_eq!(lab.exec_script("s", script).run().ok().text(), "refused");
        let outside = std::fs::read_to_string(lab.home.join(".docker/config.json")).unwrap();
        assert_eq!(outside, "planted after\n");
        lab.skep(["rm", "--discard", "s"]).run().ok();
        take_docker_settings_away(lab);
    });
}

/// Whoever reaches skep's sockets approves in the user's name.
#[test]
fn fs_6_a_piece_of_the_home_does_not_show_skeps_own_state() {
    for_both(|lab| {
        let state = lab.home.join(".local/state/skep");
        let run = |piece: &str, script: &str| {
            let config = format!("[sandbox]\nhome = [\"{piece}\"]\n");
            lab.write(lab.home.join(".config/skep/config.toml"), config);
            lab.own_below(&lab.home);
            lab.skep(["run", "--", "sh", "-c", script]).env("SKEP_HOME", &state).run()
        };
        lab.write(lab.home.join(".local/mark"), "seen");
        std::os::unix::fs::symlink(".local", lab.home.join("link")).unwrap();
        // Control: the piece is shown, and the state exists there.
        let ran = run(".local", "cat ~/.local/mark; ls -A ~/.local/state/skep | wc -l").ok();
        assert_eq!(
            ran.text().split_whitespace().collect::<String>(),
            "seen0",
            "{}",
            ran.describe()
        );
        assert!(state.join("skep.db").exists());
        for piece in ["link", ".local/state/skep", ".local/state/skep/sandboxes"] {
            let ran = run(piece, "echo ran");
            assert!(matches!(ran.code(), 5 | 125), "{piece}: {}", ran.describe());
            assert!(!ran.text().contains("ran"), "{piece}: {}", ran.describe());
        }
        std::fs::remove_file(lab.home.join(".config/skep/config.toml")).unwrap();
        std::fs::remove_dir(lab.home.join(".config/skep")).unwrap();
        std::fs::remove_file(lab.home.join("link")).unwrap();
        std::fs::remove_dir_all(lab.home.join(".local")).unwrap();
    });
}
