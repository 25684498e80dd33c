//! Sockets through which a host's agents lend their powers: none of them is there inside.

use crate::harness::{Lab, for_both, skip};
use std::path::Path;

/// A world of its own in which `/run` and `/tmp` are empty but for the lab, with sockets planted where
/// agents have them; then the same program in it and inside a sandbox. `$1` is the lab, `$2` and `$3` are
/// the ids of the caller, then come the sockets.
const WORLD: &str = "set -e
lab=$1 uid=$2 gid=$3
shift 3
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir /run/lab
mount --bind \"$lab\" /run/lab
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir -p \"$lab\"
mount --move /run/lab \"$lab\"
rmdir /run/lab
mkfifo /run/until
python3 \"$lab/project/agents.py\" serve \"$@\" < /run/until > /run/says &
exec 9> /run/until
until grep -q serving /run/says; do sleep 0.02; done
export SSH_AUTH_SOCK=/tmp/ssh-x/agent.7 GPG_AGENT_INFO=/run/x DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/7/bus
export WAYLAND_DISPLAY=wayland-0 DISPLAY=:42 XAUTHORITY=\"$lab/home/.Xauthority\" PULSE_SERVER=/run/user/7/pulse/native
export DOCKER_HOST=unix:///run/docker.sock CONTAINER_HOST=unix:///run/podman/podman.sock XDG_RUNTIME_DIR=/run/user/7
export NOTIFY_SOCKET=/run/systemd/notify
as() { setpriv --reuid \"$uid\" --regid \"$gid\" --clear-groups \"$@\" 9>&-; }
cd \"$lab/project\"
as python3 agents.py reach \"$@\" > control
as \"$lab/bin/skep\" run -- python3 agents.py reach \"$@\" 2> errors
exec 9>&-
wait";

/// Where they are found on hosts of today.
const SOCKETS: [&str; 17] = [
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/crio/crio.sock",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
    "/run/systemd/notify",
    "/run/user/7/bus",
    "/run/user/7/wayland-0",
    "/run/user/7/pulse/native",
    "/run/user/7/pipewire-0",
    "/run/user/7/gnupg/S.gpg-agent",
    "/run/user/7/podman/podman.sock",
    "/run/user/7/keyring/ssh",
    "/tmp/ssh-x/agent.7",
    "/tmp/.X11-unix/X42",
    "@/tmp/.X11-unix/X42",
];

fn lines<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.split(' ').next() == Some(word)).collect()
}

fn try_all(lab: &Lab) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/attack/agents.py");
    lab.write("agents.py", std::fs::read(script).unwrap());
    let canary = lab.write(lab.root.join("canary"), &lab.canary.text);
    let home = [".gnupg/S.gpg-agent", ".docker/run/docker.sock", ".ssh/agent.sock"];
    // In the home itself the lab allows no trace: a place beside it that is as little in the view.
    let beside = home.map(|path| lab.root.join("beside").join(path).display().to_string());
    let sockets: Vec<String> = SOCKETS.map(str::to_owned).into_iter().chain(beside).collect();
    let mut command = lab.in_a_world(WORLD);
    let (uid, gid) = lab.who.ids();
    command
        .arg(&lab.root)
        .args([uid.to_string(), gid.to_string()])
        .args(&sockets)
        .env("CANARY", canary);
    let ran = crate::harness::Call::new(command).by(lab.who).run();
    let read = |name: &str| std::fs::read_to_string(lab.project.join(name)).unwrap_or_default();
    // Control: whoever is outside gets a descriptor from each, and has the variables.
    let control = read("control");
    assert_eq!(lines(&control, "open").len(), sockets.len(), "{control}{}", ran.describe());
    assert_eq!(lines(&control, "variable").len(), 11, "{control}");
    let text = ran.text();
    assert!(text.ends_with("end"), "{}{}", ran.describe(), read("errors"));
    assert_eq!(lines(&text, "open"), Vec::<&str>::new());
    assert_eq!(lines(&text, "shut").len(), sockets.len(), "{text}");
    assert_eq!(lines(&text, "variable"), Vec::<&str>::new());
    std::fs::remove_dir_all(lab.root.join("beside")).unwrap();
}

#[test]
fn proc_11_no_agents_socket_is_inside_and_no_descriptor_comes_from_one() {
    if !crate::harness::running_as_root() {
        return skip("only root can plant sockets where agents of a host have them");
    }
    for_both(try_all);
}
