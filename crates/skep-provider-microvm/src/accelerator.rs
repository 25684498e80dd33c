//! KVM or emulation: found by booting, remembered for this boot of the host.

use crate::{Emulation, Parts};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use skep_machine::{Accelerator, MachineError, qemu};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A guest that has not said so by then is not worth waiting for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Where the answer is remembered.
const MEMORY: &str = "kvm.json";

/// KVM if a guest boots with it, else emulation if that is allowed.
pub(crate) fn choose(images: &Path, parts: &Parts) -> Result<Accelerator, MachineError> {
    let refusal = match kvm(images, parts) {
        Ok(()) => return Ok(Accelerator::Kvm),
        Err(reason) => reason,
    };
    match parts.emulation {
        Emulation::Allowed => Ok(Accelerator::Emulation),
        Emulation::Refused => Err(without(refusal)),
    }
}

/// What is known without booting.
pub(crate) enum Known {
    /// A guest booted with KVM since the host did.
    Kvm,
    /// It cannot be used, and emulation may stand in.
    Emulation,
    /// Nobody has tried yet.
    Nothing,
}

/// The same answer as [`choose`] gives, as far as it can be given without booting a guest.
pub(crate) fn known(
    images: &Path,
    kernel: &Path,
    qemu: &Path,
    emulation: Emulation,
) -> Result<Known, MachineError> {
    let refusal = match may_open() {
        Err(reason) => reason,
        Ok(()) => match remembered(images, &question(kernel, qemu)) {
            None => return Ok(Known::Nothing),
            Some(None) => return Ok(Known::Kvm),
            Some(Some(reason)) => reason,
        },
    };
    match emulation {
        Emulation::Allowed => Ok(Known::Emulation),
        Emulation::Refused => Err(without(refusal)),
    }
}

fn without(reason: String) -> MachineError {
    MachineError::Missing {
        what: "KVM",
        reason,
        remedy:
            "allow emulation, which is much slower: `provider.microvm.emulation = true` in the \
                 settings, or SKEP_MICROVM_EMULATION=1"
                .into(),
    }
}

fn may_open() -> Result<(), String> {
    let opened = std::fs::File::options().read(true).write(true).open("/dev/kvm");
    opened.map(drop).map_err(|error| format!("`/dev/kvm`: {error}"))
}

/// What an answer holds for.
fn question(kernel: &Path, qemu: &Path) -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{} {} {}", boot.trim(), kernel.display(), qemu.display())
}

/// The refusal that was found, if any, where this was asked before.
fn remembered(images: &Path, asked: &str) -> Option<Option<String>> {
    let bytes = std::fs::read(images.join(MEMORY)).ok()?;
    let (question, answer): (String, Option<String>) = serde_json::from_slice(&bytes).ok()?;
    (question == asked).then_some(answer)
}

fn kvm(images: &Path, parts: &Parts) -> Result<(), String> {
    may_open()?;
    let asked = question(&parts.kernel.image, &parts.qemu);
    let refusal = remembered(images, &asked).unwrap_or_else(|| {
        let answer = boots(parts).err();
        // What cannot be remembered is tried again.
        if let Ok(text) = serde_json::to_vec(&(asked, &answer)) {
            let _ = std::fs::write(images.join(MEMORY), text);
        }
        answer
    });
    refusal.map_or(Ok(()), Err)
}

/// Boots a guest that only says that it is there.
fn boots(parts: &Parts) -> Result<(), String> {
    let arguments = qemu::probe_arguments(&parts.kernel.image, &parts.initramfs);
    let mut child = Command::new(&parts.qemu)
        .args(arguments)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("QEMU does not start: {error}"))?;
    let said = child.stdout.take().map(listen).unwrap_or_default();
    let _ = child.kill();
    let _ = child.wait();
    match said {
        true => Ok(()),
        false => Err("`/dev/kvm` is there, but no guest boots with it".into()),
    }
}

fn listen(mut output: std::process::ChildStdout) -> bool {
    let deadline = Instant::now() + PATIENCE;
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut watched = [PollFd::new(&output, PollFlags::IN)];
        if left.is_zero() || !poll(&mut watched, Some(&timeout)).is_ok_and(|ready| ready > 0) {
            return false;
        }
        match output.read(&mut buffer) {
            Ok(0) | Err(_) => return false,
            Ok(length) => text.extend_from_slice(&buffer[..length]),
        }
        if String::from_utf8_lossy(&text).contains(qemu::PROBE_ANSWER) {
            return true;
        }
    }
}
