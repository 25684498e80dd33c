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

/// KVM if a guest boots with it, else emulation if that is allowed.
pub(crate) fn choose(images: &Path, parts: &Parts) -> Result<Accelerator, MachineError> {
    let refusal = match kvm(images, parts) {
        Ok(()) => return Ok(Accelerator::Kvm),
        Err(reason) => reason,
    };
    match parts.emulation {
        Emulation::Allowed => Ok(Accelerator::Emulation),
        Emulation::Refused => Err(MachineError::Missing {
            what: "KVM",
            reason: refusal,
            remedy: "allow emulation, which is much slower: `provider.microvm.emulation = true` \
                     in the settings, or SKEP_MICROVM_EMULATION=1"
                .into(),
        }),
    }
}

fn kvm(images: &Path, parts: &Parts) -> Result<(), String> {
    let device = Path::new("/dev/kvm");
    if let Err(error) = std::fs::File::options().read(true).write(true).open(device) {
        return Err(format!("`/dev/kvm`: {error}"));
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let asked =
        format!("{} {} {}", boot.trim(), parts.kernel.image.display(), parts.qemu.display());
    let memory = images.join("kvm.json");
    let known: Option<(String, Option<String>)> =
        std::fs::read(&memory).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let refusal = match known {
        Some((question, answer)) if question == asked => answer,
        _ => {
            let answer = boots(parts).err();
            // What cannot be remembered is tried again.
            if let Ok(text) = serde_json::to_vec(&(asked, &answer)) {
                let _ = std::fs::write(&memory, text);
            }
            answer
        }
    };
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
