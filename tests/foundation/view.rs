//! What can be seen and reached from inside: files of the host, its processes, the environment,
//! descriptors.

use crate::harness::{Lab, Tree, attack, for_both, outside};
use std::fs;
use std::process::{Child, Stdio};

/// Prints what it can read of the files named by its arguments.
const READ_ALL: &str =
    "for file; do cat -- \"$file\" 2>/dev/null && printf '\\nREAD %s\\n' \"$file\"; done; true";

/// Places of the host that hold secrets, each really there.
fn secret_places(lab: &Lab) -> Vec<String> {
    let other = lab.write(lab.root.join("other-project/src/main.rs"), &lab.canary.text);
    let mut places: Vec<_> = lab.canary.plant(&lab.home);
    lab.own_below(&lab.home);
    places.extend([other, lab.state.join("skep.db"), "/etc/shadow".into(), "/etc/gshadow".into()]);
    places.iter().map(|path| path.to_str().unwrap().to_owned()).collect()
}

#[test]
fn fs_6_secrets_of_the_host_cannot_be_read() {
    for_both(|lab| {
        lab.write("a", "a");
        lab.create("other");
        lab.exec_script("other", "echo text > written-by-the-other").run().ok();
        let mut places = secret_places(lab);
        let upper = lab.state.join("sandboxes").join(lab.sandbox("other")["id"].as_str().unwrap());
        places.push(upper.join("upper/written-by-the-other").to_str().unwrap().to_owned());
        let names: Vec<_> = places.iter().map(String::as_str).collect();

        let line = ["run", "--", "sh", "-c", READ_ALL, "sh"];
        let inside = lab.skep(line).args(&names).run().ok();
        assert_eq!(inside.text(), "", "{}", inside.describe());
        let list = "ls -A \"$HOME\" /home /root /mnt /media /srv \"$1\" 2>/dev/null; true";
        let state = lab.state.to_str().unwrap();
        let listed = lab.skep(["run", "--", "sh", "-c", list, "sh", state]).run().ok();
        for name in [".ssh", ".aws", "skep.db", "other-project"] {
            assert!(!listed.text().contains(name), "{}", listed.describe());
        }
        // Control: the same script outside reads all of them but what only root may read.
        let plain = lab.program("sh").args(["-c", READ_ALL, "sh"]).args(&names).run().ok();
        let readable = if lab.who.is_root() { names.len() } else { names.len() - 2 };
        // The data base holds this very script, so only whole lines count.
        let lines = plain.stdout.split(|byte| *byte == b'\n');
        let read = lines.filter(|line| line.starts_with(b"READ /")).count();
        assert_eq!(read, readable, "{}", plain.describe());
        assert!(lab.canary.is_in(&plain.stdout));
    });
}

/// Writes a marker below every directory that it can find a way to, and tries to change `a`.
const WRITE_EVERYWHERE: &str = r#"
try() { (echo hacked > "$1/a") 2>/dev/null; (echo hacked > "$1/planted") 2>/dev/null; }
cut -d' ' -f4,5 /proc/self/mountinfo | while read -r root point; do
    try "$root"; try "$point"; try "/proc/1/root$root"; try "/proc/self/root/..$root"
done
for process in /proc/[0-9]*; do
    for way in cwd root "root$PWD" fd/0 fd/3 fd/4 fd/5 fd/8; do try "$process/$way"; done
done
try "/proc/1/root$1"; try "$1"
mount -o remount,rw / 2>/dev/null; umount -l "$1" 2>/dev/null && try "$1"
true"#;

#[test]
fn fs_7_the_real_project_cannot_be_written_by_any_route() {
    for_both(|lab| {
        lab.write("a", "base\n");
        lab.write("d/b", "base\n");
        let before = lab.tree();
        let project = lab.project.to_str().unwrap().to_owned();
        let line = ["run", "--name", "s", "--", "sh", "-c", WRITE_EVERYWHERE, "sh", &project];
        lab.skep(line).run().ok();
        lab.tree().assert_equals(&before, "the project was changed without an approval");
        // The script did run: its write to the copy is there.
        let diff = lab.diff("s");
        let changed = diff["changes"].as_array().unwrap().iter().any(|row| row["path"] == "a");
        assert!(changed, "{diff}");
        // Control: the same script outside changes the project.
        let line = "echo hacked > \"$1/a\"";
        lab.program("sh").args(["-c", line, "sh", &project]).run().ok();
        assert_ne!(lab.tree(), before);
    });
}

#[test]
fn proc_1_only_the_standard_streams_are_open() {
    for_both(|lab| {
        let Some(program) = attack::program("fd-list") else { return };
        lab.create("s");
        let mount = format!("{}:/attack", program.display());
        lab.skep(["create", "t", "--mount", &mount]).run().ok();
        let expected = "0\n1\n2";
        let once = |name: &str| lab.skep(["exec", name, "--", "/attack"]);
        assert_eq!(once("t").run().ok().text(), expected);
        let run = ["run", "--mount", &mount, "--", "/attack"];
        assert_eq!(lab.skep(run).run().ok().text(), expected);
        assert_eq!(lab.skep(run).arg("with an argument").input("x").run().ok().text(), expected);
        // While others are being started at the same moment.
        let children: Vec<_> = (0..8).map(|_| once("t").spawn()).collect();
        for child in children {
            let output = child.wait_with_output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), expected);
        }
        // A caller that leaks a descriptor of its own; control: the program does see it outside.
        let leak = |line: &[&str]| {
            let script = "exec 9</etc/hostname; exec \"$@\"";
            lab.program("sh").args(["-c", script, "sh"]).args(line).run().ok().text()
        };
        let binary = lab.binary.to_str().unwrap();
        assert_eq!(leak(&[binary, "exec", "t", "--", "/attack"]), expected);
        assert_eq!(leak(&[&[binary], &run[..]].concat()), expected);
        assert!(leak(&[program.to_str().unwrap()]).starts_with("0\n1\n2\n9"));
    });
}

#[test]
fn proc_1_a_working_directory_through_a_descriptor_stays_inside() {
    for_both(|lab| {
        lab.create("s");
        for fd in ["0", "3", "4", "7", "8"] {
            let place = format!("/proc/self/fd/{fd}");
            let ran = lab.skep(["exec", "s", "--workdir", &place, "--", "/bin/pwd"]).run();
            let inside = ran.text() == "/" || ran.text().starts_with(lab.project.to_str().unwrap());
            assert!(ran.code() == 125 || inside, "{}", ran.describe());
        }
    });
}

#[test]
fn proc_2_the_environment_is_an_allow_list() {
    for_both(|lab| {
        let script = "cat /proc/*/environ; env; set";
        let inside = lab.run_script(script).run();
        assert!(!lab.canary.is_in(&inside.stdout), "{}", inside.describe());
        let names = lab.run_script("env | cut -d= -f1 | sort").run().ok().text();
        let allowed = [
            "COLORTERM",
            "DEBIAN_FRONTEND",
            "HOME",
            "LANG",
            "LANGUAGE",
            "LOGNAME",
            "NO_COLOR",
            "PATH",
            "PWD",
            "SHELL",
            "TERM",
            "TMPDIR",
            "TZ",
            "USER",
            "OLDPWD",
            "SHLVL",
            "_",
        ];
        for name in names.lines() {
            assert!(
                allowed.contains(&name) || name.starts_with("SKEP_") || name.starts_with("LC_"),
                "`{name}` is seen inside"
            );
        }
        assert!(!names.contains("SKEP_HOME") && !names.contains("SKEP_TEST_CANARY"), "{names}");
        let init = lab.run_script("tr '\\0' '\\n' < /proc/1/environ").run();
        assert!(!lab.canary.is_in(&init.stdout), "{}", init.describe());
        // Control: outside the same words show the canary.
        assert!(lab.canary.is_in(&lab.program("sh").args(["-c", "env"]).run().ok().stdout));
        // What is asked for does arrive, exactly.
        let line = ["run", "--env", "A=b=c d\n", "--env", "EMPTY=", "--", "env"];
        let text = lab.skep(line).run().ok().text();
        assert!(text.contains("A=b=c d\n") && text.contains("EMPTY="), "{text}");
    });
}

/// A process of the host that nobody may find, ended on drop.
struct Bystander(Child);

impl Bystander {
    fn start(lab: &Lab) -> Self {
        let mut command = lab.program("sleep").arg("987654321").into_command();
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn proc_3_processes_of_the_host_cannot_be_seen_signalled_or_traced() {
    for_both(|lab| {
        let Some(program) = attack::program("reach") else { return };
        let mut bystander = Bystander::start(lab);
        lab.create("other");
        lab.skep(["exec", "-d", "other", "--", "sleep", "123456789"]).run().ok();
        let mount = format!("{}:/attack", program.display());
        lab.skep(["create", "s", "--mount", &mount]).run().ok();

        let seen =
            lab.exec_script("s", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").run().ok().text();
        assert!(!seen.contains("987654321") && !seen.contains("123456789"), "{seen}");
        let count = lab.exec_script("s", "ls -d /proc/[0-9]* | wc -l").run().ok().text();
        assert!(count.parse::<u32>().unwrap() <= 4, "{count} processes are seen inside");

        // Every number of the host's that matters: the bystander, the keepers, the tests themselves.
        let keepers = lab.keepers();
        assert_eq!(keepers.len(), 2, "{keepers:?}");
        let own = std::process::id() as i32;
        let targets = [bystander.0.id() as i32, own].into_iter().chain(keepers.iter().copied());
        for target in targets {
            let text =
                lab.skep(["exec", "s", "--", "/attack", &target.to_string()]).run().ok().text();
            let reached: Vec<_> = text.lines().filter(|line| line.ends_with(" ok")).collect();
            assert_eq!(reached, Vec::<&str>::new(), "{text}");
        }
        // The sandbox's own pid 1 is skep's: it can be seen, not touched.
        let text = lab.skep(["exec", "s", "--", "/attack", "1"]).run().ok().text();
        for way in ["ptrace", "process_vm_readv", "mem", "pidfd_getfd"] {
            assert!(!text.contains(&format!("{way} ok")), "{text}");
        }
        lab.exec_script("s", "kill -9 -1; true").run();
        lab.skep(["exec", "s", "--", "true"]).run();
        assert!(bystander.lives());
        assert_eq!(outside::processes_with("123456789").len(), 1, "the other sandbox's process");
        // Control: outside, the same program reaches its own user's process.
        let target = bystander.0.id().to_string();
        let text = lab.program(&program).arg(&target).run().ok().text();
        assert!(text.contains("kill ok") && text.contains("environ ok"), "{text}");
    });
}

#[test]
fn the_home_is_empty_and_writes_to_it_are_lost() {
    for_both(|lab| {
        let script = "ls -A \"$HOME\"; echo x > \"$HOME/x\" && test -w /tmp && test -w /dev/shm && \
            ! touch /usr/x 2>/dev/null && ! touch /etc/x 2>/dev/null && ! touch /x 2>/dev/null";
        let ran = lab.run_script(script).run().ok();
        assert_eq!(ran.text(), "", "{}", ran.describe());
        assert!(Tree::read(&lab.home).get("x").is_none());
        assert!(fs::symlink_metadata("/usr/x").is_err());
    });
}
