//! A whole machine of its own: another kernel, its own disk, and a power cord that can be pulled.
//!
//! Some promises cannot be asked on the host: what a loss of power leaves, what a kernel with
//! quotas or with version 2 of cgroups alone does. A guest is QEMU in software with Debian's
//! kernel (unpacked by `ci/provision`), a disk made from a directory, and a script as its whole
//! user space. What the script prints is read here; [`Guest::pull_the_plug`] ends the machine
//! with everything that was not written to the disk yet.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Where `ci/provision tests` unpacks the kernel.
const KERNEL: &str = "/var/lib/skep/kernel";

/// In the order in which they can be loaded; what a kernel has built in is not there.
const MODULES: &[&str] = &[
    "virtio",
    "virtio_ring",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_blk",
    "quota_tree",
    "quota_v2",
    "overlay",
    "bfq",
];

/// A disk with a small system and the binary on it; outlives the machines that use it.
#[derive(Debug)]
pub(crate) struct Disk {
    directory: tempfile::TempDir,
}

/// A running machine. Ends with this value.
#[derive(Debug)]
pub(crate) struct Guest {
    machine: Child,
    lines: Receiver<String>,
    /// Everything it said so far.
    pub(crate) console: Vec<String>,
}

impl Disk {
    /// A disk whose system has busybox, the binary and `files` (path inside, content). The
    /// filesystem keeps quotas by project.
    pub(crate) fn new(files: &[(&str, &str)]) -> Result<Self, String> {
        Self::made(files, &["-O", "quota,project", "-E", "quotatype=prjquota"], &[])
    }

    /// A disk on which `chattr +F` makes a directory that does not tell names apart by case.
    pub(crate) fn folding() -> Result<Self, String> {
        let options = ["-O", "quota,project,casefold", "-E", "quotatype=prjquota,encoding=utf8"];
        Self::made(&[], &options, &[("/usr/bin/chattr", "usr/bin/chattr")])
    }

    fn made(
        files: &[(&str, &str)],
        options: &[&str],
        programs: &[(&str, &str)],
    ) -> Result<Self, String> {
        let directory = tempfile::Builder::new().prefix("skep-guest-").tempdir_in("/tmp").unwrap();
        let root = directory.path().join("root");
        for name in ["bin", "usr/bin", "proc", "sys", "dev", "tmp", "run", "root", "etc", "var"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        let busybox = Path::new("/bin/busybox");
        if !busybox.exists() {
            return Err("needs busybox-static".into());
        }
        fs::copy(busybox, root.join("bin/busybox")).unwrap();
        for name in run(Command::new(busybox).arg("--list")).lines() {
            let _ = std::os::unix::fs::symlink("busybox", root.join("bin").join(name));
        }
        with_libraries(Path::new(env!("CARGO_BIN_EXE_skep")), &root, "bin/skep");
        for (program, name) in programs {
            with_libraries(Path::new(program), &root, name);
        }
        fs::write(
            root.join("etc/passwd"),
            "root:x:0:0::/root:/bin/sh\nbee:x:1000:1000::/home/bee:/bin/sh\n",
        )
        .unwrap();
        fs::write(root.join("etc/group"), "root:x:0:\nbee:x:1000:\n").unwrap();
        for (path, content) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let image = directory.path().join("disk");
        let mut make = Command::new("/usr/sbin/mkfs.ext4");
        make.arg("-q").args(options).arg("-d");
        run(make.arg(&root).arg(&image).arg("1G"));
        fs::remove_dir_all(&root).unwrap();
        Ok(Self { directory })
    }

    /// Boots a machine on this disk. `script` is all that runs in it, as root, with `skep` in the
    /// path; when it ends, the machine is switched off in an orderly way.
    pub(crate) fn boot(&self, script: &str) -> Result<Guest, String> {
        let (kernel, modules) = kernel()?;
        let initramfs = self.directory.path().join("initramfs");
        first_root(&initramfs, &modules, script);
        let drive =
            format!("file={},format=raw,if=virtio", self.directory.path().join("disk").display());
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-machine", "q35", "-cpu", "max", "-m", "1024", "-nographic", "-no-reboot"])
            .args(["-nic", "none", "-drive", &drive, "-append", "console=ttyS0 quiet panic=-1"])
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(&initramfs)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut machine =
            command.spawn().map_err(|error| format!("cannot start qemu-system-x86_64: {error}"))?;
        let output = BufReader::new(machine.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Guest { machine, lines, console: Vec::new() })
    }
}

impl Guest {
    /// Waits for a line that is exactly this.
    #[track_caller]
    pub(crate) fn says(&mut self, wanted: &str) {
        assert!(self.read_until(|line| line == wanted), "never said `{wanted}`:\n{}", self.text());
    }

    /// Reads until the machine is off.
    pub(crate) fn ends(mut self) -> Vec<String> {
        self.read_until(|_| false);
        std::mem::take(&mut self.console)
    }

    /// The loss of power: what the guest's kernel has not written yet is gone.
    pub(crate) fn pull_the_plug(mut self) {
        self.machine.kill().unwrap();
        self.machine.wait().unwrap();
    }

    fn read_until(&mut self, wanted: impl Fn(&str) -> bool) -> bool {
        let deadline = Instant::now() + Duration::from_secs(300);
        while let Ok(line) =
            self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            let found = wanted(&line);
            self.console.push(line);
            if found {
                return true;
            }
        }
        false
    }

    fn text(&self) -> String {
        self.console.join("\n")
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.machine.kill();
        let _ = self.machine.wait();
    }
}

/// The image and the modules that are there.
fn kernel() -> Result<(PathBuf, Vec<PathBuf>), String> {
    let missing = || format!("needs a kernel below `{KERNEL}` (ci/provision tests)");
    let boot = fs::read_dir(format!("{KERNEL}/boot")).map_err(|_| missing())?;
    let image = boot.flatten().map(|entry| entry.path());
    let image = image.filter(|path| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"vmlinuz-"))
    });
    let image = image.max().ok_or_else(missing)?;
    let found = run(Command::new("find").args([&format!("{KERNEL}/lib/modules"), "-name", "*.ko"]));
    let modules = MODULES.iter().filter_map(|name| {
        let file = format!("/{name}.ko");
        found.lines().find(|path| path.ends_with(&file)).map(PathBuf::from)
    });
    Ok((image, modules.collect()))
}

/// The first root: loads the modules, mounts the disk and hands over to the script on it.
fn first_root(to: &Path, modules: &[PathBuf], script: &str) {
    let place = tempfile::tempdir().unwrap();
    let root = place.path();
    for name in ["bin", "disk", "dev"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    let mut start = String::from("#!/bin/busybox sh\nb=/bin/busybox\n");
    // Which needs which differs between versions of a kernel.
    let mut names = Vec::new();
    for module in modules {
        let name = module.file_name().unwrap().to_str().unwrap();
        fs::copy(module, root.join(name)).unwrap();
        names.push(format!("/{name}"));
    }
    let names = names.join(" ");
    start +=
        &format!("for round in 1 2 3; do for m in {names}; do $b insmod $m 2> /null; done; done\n");
    start += "$b mount -t devtmpfs dev /dev\nuntil [ -b /dev/vda ]; do $b usleep 20000; done\n$b mount -t ext4 -o prjquota /dev/vda /disk\n\
        $b cp /script /disk/script\nexec $b switch_root /disk /bin/sh /script\n";
    let script = format!("{SET_UP}{script}\nsync\npoweroff -f\n");
    for (name, text) in [("init", &start), ("script", &script)] {
        fs::write(root.join(name), text).unwrap();
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let pack = "find . | busybox cpio -o -H newc 2>/dev/null";
    let packed = Command::new("sh").args(["-c", pack]).current_dir(root).output().unwrap();
    fs::write(to, packed.stdout).unwrap();
}

/// What an ordinary system has done before anybody logs in.
const SET_UP: &str = "export PATH=/bin HOME=/root SKEP_HOME=/home/state LANG=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs -o mode=755 run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
ip link set lo up
exec </dev/null
echo
";

/// Copies a program and what it is linked with.
fn with_libraries(program: &Path, root: &Path, name: &str) {
    fs::copy(program, root.join(name)).unwrap();
    for word in run(Command::new("ldd").arg(program)).split_whitespace() {
        if let Some(relative) = word.strip_prefix('/') {
            let to = root.join(relative);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(word, to).unwrap();
        }
    }
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
