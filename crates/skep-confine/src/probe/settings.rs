//! Probes of settings that explain other answers, and of devices.

use super::Probe;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::fs;

/// Ubuntu's restriction of user namespaces to programs with a profile.
pub(super) fn apparmor() -> Probe {
    const FILE: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
    let how = "read kernel.apparmor_restrict_unprivileged_userns";
    match fs::read_to_string(FILE) {
        Ok(text) if text.trim() != "0" => {
            let reason = "user namespaces of programs without a profile get no capabilities";
            Probe::missing("apparmor", how, reason).or_else("install a profile for skep with `userns,` in it, use the bubblewrap provider, or `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`")
        }
        _ => Probe::works("apparmor", "does not restrict user namespaces"),
    }
}

/// SELinux may refuse mounts and labels that everything else allows.
pub(super) fn selinux() -> Probe {
    match fs::read_to_string("/sys/fs/selinux/enforce") {
        Ok(text) if text.trim() == "1" => {
            Probe::missing("selinux", "read /sys/fs/selinux/enforce", "it is enforcing").or_else("if another probe fails, look for `denied` in the audit log (`ausearch -m avc -ts recent`)")
        }
        _ => Probe::works("selinux", "not enforcing"),
    }
}

/// The device only: whether a machine boots on it is asked by the microvm provider.
pub(super) fn kvm() -> Probe {
    let how = "asked for the right to open /dev/kvm; no guest was booted (see `provider microvm`)";
    match accessat(CWD, "/dev/kvm", Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS) {
        Ok(()) => Probe::works("kvm", how),
        Err(error) => Probe::missing("kvm", how, error.to_string())
            .or_else("load the kvm module and let this user use /dev/kvm (group `kvm`)"),
    }
}
