//! How the share daemon and QEMU are started, as data.

use crate::initramfs::INIT;
use crate::share::SharedImage;
use crate::{Accelerator, MachineSpec};
use skep_types::SandboxName;
use std::ffi::OsString;
use std::path::Path;

/// The descriptor QEMU gets its end of the serial line as.
pub const SERIAL: i32 = 3;

/// The descriptor QEMU gets its connection to the share daemon as.
pub const SHARE_CONNECTION: i32 = 4;

/// The descriptor the share daemon gets its listening socket as.
pub const SHARE_LISTENER: i32 = 3;

/// Name of the serial port inside, below `/dev/virtio-ports` on systems with udev.
pub const PORT: &str = "skep";

/// Tag of the share.
pub const SHARE: &str = "view";

/// Where the share daemon finds what it shares, in a mount namespace of its own: the view without
/// [`OWN_OF_THE_GUEST`]. The directory is one that every view has.
pub const SHARED_TREE: &str = "/tmp";

/// Directories that a guest mounts itself. Those of the view are the host's kernel, and in its
/// `/proc` stand the daemon and QEMU with their memory: none of it is shared.
pub const OWN_OF_THE_GUEST: [&str; 3] = ["proc", "sys", "dev"];

/// Arguments of the share daemon.
///
/// `sandbox=chroot`: it already runs in namespaces of the sandbox and sees only the view.
/// Nothing is cached for longer than a second, so that what the host writes is seen.
pub fn share_arguments() -> Vec<OsString> {
    let socket = format!("--fd={SHARE_LISTENER}");
    let options = format!("source={SHARED_TREE},sandbox=chroot,cache=auto,no_writeback,no_xattr");
    [&socket, "-o", &options, "--thread-pool-size=4"].iter().map(OsString::from).collect()
}

/// What makes a machine what it is: a guest booted with another one is refused.
pub fn configuration(machine: &MachineSpec) -> String {
    let words = format!("{machine:?} {:?}", share_arguments());
    blake3::hash(words.as_bytes()).to_hex()[..32].to_owned()
}

/// Where a machine belongs.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The sandbox's name, which is the guest's host name.
    pub name: &'a SandboxName,
    /// The project's path.
    pub project: &'a Path,
    /// The image whose system it sees, if it is not the view's.
    pub image: Option<&'a SharedImage>,
    /// Whether the guest will be given a network.
    pub network: bool,
}

/// Arguments of QEMU: `q35` with virtio over PCI and nothing else on it.
pub fn arguments(machine: &MachineSpec, place: &Place<'_>) -> Vec<OsString> {
    let memory = machine.memory_mib;
    let text = |words: String| words.split(' ').map(OsString::from).collect::<Vec<_>>();
    let mut arguments = text(format!(
        "-nodefaults -no-user-config -no-reboot -display none -machine q35,accel={} -cpu {} \
         -smp {} -m {memory}M -object memory-backend-memfd,id=memory,size={memory}M,share=on \
         -numa node,memdev=memory -chardev stdio,id=console,signal=off -serial chardev:console \
         -chardev socket,id=share,fd={SHARE_CONNECTION} \
         -device vhost-user-fs-pci,chardev=share,tag={SHARE} -device virtio-serial-pci \
         -chardev socket,id=line,fd={SERIAL} -device virtserialport,chardev=line,name={PORT}",
        machine.accelerator.as_str(),
        match machine.accelerator {
            Accelerator::Kvm => "host",
            Accelerator::Emulation => "max",
        },
        machine.processors,
    ));
    arguments.push("-kernel".into());
    arguments.push(machine.kernel.clone().into());
    arguments.push("-initrd".into());
    arguments.push(machine.initramfs.clone().into());
    arguments.push("-append".into());
    arguments.push(command_line(machine, place).into());
    arguments
}

/// What a guest that is only asked whether it boots says on its console.
pub const PROBE_ANSWER: &str = "skep: this guest boots";

/// The word that has a guest load what redirects connections.
pub const NETWORK_WORD: &str = "skep.network";

/// The word on its command line that asks it.
pub const PROBE_WORD: &str = "skep.probe";

/// Arguments of QEMU for finding out whether KVM works.
pub fn probe_arguments(kernel: &Path, initramfs: &Path) -> Vec<OsString> {
    let words = "-nodefaults -no-user-config -no-reboot -display none -machine q35,accel=kvm \
                 -cpu host -m 256M -serial stdio -kernel";
    let mut arguments: Vec<OsString> = words.split_ascii_whitespace().map(Into::into).collect();
    arguments.extend([kernel.into(), "-initrd".into(), initramfs.into(), "-append".into()]);
    arguments.push(format!("console=ttyS0 quiet panic=-1 rdinit={INIT} {PROBE_WORD}").into());
    arguments
}

/// The guest kernel's command line. Under emulation on a busy machine the kernel may measure its
/// clocks wrongly or for ever, so it is told.
fn command_line(machine: &MachineSpec, place: &Place<'_>) -> String {
    use std::fmt::Write;
    use std::os::unix::ffi::OsStrExt;
    let mut line = format!(
        "console=ttyS0 quiet panic=-1 rdinit={INIT} random.trust_cpu=on no_timer_check \
         skep.configuration={} skep.name={} skep.project=",
        configuration(machine),
        place.name
    );
    for byte in place.project.as_os_str().as_bytes() {
        // Any byte may stand in a path, and a command line has only words.
        let _ = write!(line, "{byte:02x}");
    }
    if place.network {
        line.push(' ');
        line.push_str(NETWORK_WORD);
    }
    if machine.accelerator == Accelerator::Emulation {
        line.push_str(" tsc_early_khz=2000000 lpj=4000000");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> MachineSpec {
        MachineSpec {
            qemu: "/usr/bin/qemu-system-x86_64".into(),
            version: "QEMU emulator version 7".into(),
            share_daemon: "/usr/lib/qemu/virtiofsd".into(),
            kernel: "/boot/vmlinuz".into(),
            initramfs: "/state/images/initramfs/a.cpio".into(),
            image: None,
            accelerator: Accelerator::Emulation,
            memory_mib: 512,
            processors: 2,
            console: "/state/console.log".into(),
        }
    }

    fn name() -> SandboxName {
        SandboxName::parse("try").unwrap()
    }

    fn place<'a>(name: &'a SandboxName, project: &'a str) -> Place<'a> {
        Place { name, project: Path::new(project), image: None, network: false }
    }

    #[test]
    fn there_is_no_network_card_no_disk_and_no_monitor() {
        let arguments = arguments(&machine(), &place(&name(), "/p"));
        let text = format!("{arguments:?}");
        for word in ["-net", "-nic", "-drive", "-monitor", "-qmp", "hostfwd", "-usb"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
        assert!(text.contains("-nodefaults"));
    }

    #[test]
    fn another_memory_is_another_configuration() {
        let other = MachineSpec { memory_mib: 513, ..machine() };
        assert_ne!(configuration(&machine()), configuration(&other));
    }

    #[test]
    fn a_project_path_cannot_add_a_word_to_the_kernel_command_line() {
        let line = command_line(&machine(), &place(&name(), "/a b init=/evil"));
        assert!(!line.contains("init=/evil"));
    }
}
