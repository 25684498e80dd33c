//! The guest's initial file system: this program as its init, and modules.
//!
//! A `newc` archive, as the kernel's documentation describes it (initramfs buffer format). It is
//! named after its content, so that another program or kernel never meets an old one, and made
//! once.

use crate::kernel::Kernel;
use crate::{At, MachineError};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Where the guest's init lies in the archive; the kernel is told so.
pub const INIT: &str = "/skep-guest";

/// Directory of the modules in the archive; they are numbered in loading order.
pub const MODULES: &str = "/modules";

/// Directory of those that redirect connections.
pub const NETWORK_MODULES: &str = "/network";

/// How long one that is not the newest is kept.
const STALE: Duration = Duration::from_secs(3_600);

/// Writes the archive for `kernel` with `program` as init into `directory`, unless it is there.
pub fn prepare(directory: &Path, kernel: &Kernel, program: &Path) -> Result<PathBuf, MachineError> {
    let archive = build(kernel, program)?;
    let name = format!("{}.cpio", &blake3::hash(&archive).to_hex()[..32]);
    let path = directory.join(&name);
    // A host that lost its power may have the name and not all of the content.
    if path.metadata().is_ok_and(|found| found.len() == archive.len() as u64) {
        return Ok(path);
    }
    let step = || format!("write the guest's initial file system `{}`", path.display());
    std::fs::create_dir_all(directory).at(step)?;
    let temporary = directory.join(format!("{name}.{}", std::process::id()));
    let mut file =
        File::options().write(true).create_new(true).mode(0o644).open(&temporary).at(step)?;
    let written = file.write_all(&archive).and_then(|()| file.sync_all());
    let written = written.and_then(|()| std::fs::rename(&temporary, &path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written.at(step)?;
    forget_older(directory);
    Ok(path)
}

/// Each is as large as this program: those of earlier programs and kernels go when a new one comes. A
/// machine that runs has its own open; one that is being started has made it a moment ago.
fn forget_older(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let made = entry.metadata().and_then(|metadata| metadata.modified());
        let age = made.ok().and_then(|made| made.elapsed().ok());
        if age.is_some_and(|age| age > STALE) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn build(kernel: &Kernel, program: &Path) -> Result<Vec<u8>, MachineError> {
    let read = |path: &Path| std::fs::read(path).at(|| format!("read `{}`", path.display()));
    let mut archive = Archive::default();
    for directory in ["proc", "sys", "dev", "view", "control", "modules", "network"] {
        archive.directory(directory);
    }
    archive.file(INIT, 0o755, &read(program)?);
    for library in libraries(program)? {
        archive.parents(&library);
        archive.file(&library.to_string_lossy(), 0o755, &read(&library)?);
    }
    for (place, modules) in [(MODULES, &kernel.modules), (NETWORK_MODULES, &kernel.network)] {
        for (index, module) in modules.iter().enumerate() {
            archive.file(&format!("{place}/{index:03}.ko"), 0o644, &read(module)?);
        }
    }
    Ok(archive.finish())
}

/// What a dynamically linked program is loaded with; nothing for a static one. The loader itself
/// is asked: it alone knows where it looks.
pub fn libraries(program: &Path) -> Result<Vec<PathBuf>, MachineError> {
    let Some(loader) = interpreter(program)? else { return Ok(Vec::new()) };
    let listed = Command::new(&loader)
        .arg("--list")
        .arg(program)
        .env_clear()
        .output()
        .at(|| format!("ask `{}` for libraries", loader.display()))?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut found = vec![loader];
    // `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`
    for line in text.lines() {
        if let Some((_, target)) = line.split_once("=> ")
            && let Some(path) = target.split(" (").next().filter(|path| path.starts_with('/'))
            && !found.iter().any(|known| known == Path::new(path))
        {
            found.push(path.into());
        }
    }
    Ok(found)
}

/// The loader that an ELF program names (its `PT_INTERP`), if it is dynamic.
fn interpreter(program: &Path) -> Result<Option<PathBuf>, MachineError> {
    use std::os::unix::fs::FileExt;
    let step = || format!("read `{}`", program.display());
    let file = File::open(program).at(step)?;
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0).at(step)?;
    let word =
        |bytes: &[u8]| bytes.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    let (offset, size, count) =
        (word(&header[32..40]), word(&header[54..56]), word(&header[56..58]));
    for index in 0..count {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, offset + index * size).at(step)?;
        const INTERPRETER: u64 = 3;
        if word(&entry[0..4]) == INTERPRETER {
            let mut path = vec![0; word(&entry[32..40]).min(4096) as usize];
            file.read_exact_at(&mut path, word(&entry[8..16])).at(step)?;
            let text = String::from_utf8_lossy(&path).trim_end_matches('\0').to_owned();
            return Ok(Some(text.into()));
        }
    }
    Ok(None)
}

/// A `newc` archive in the making.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    made: std::collections::BTreeSet<PathBuf>,
}

impl Archive {
    fn directory(&mut self, path: &str) {
        if self.made.insert(path.trim_start_matches('/').into()) {
            self.entry(path, 0o040_755, &[]);
        }
    }

    fn parents(&mut self, path: &Path) {
        let mut parents: Vec<&Path> = path.ancestors().skip(1).collect();
        parents.reverse();
        for parent in parents {
            let name = parent.to_string_lossy();
            if !name.trim_start_matches('/').is_empty() {
                self.directory(&name);
            }
        }
    }

    fn file(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entry(path, 0o100_000 | mode, content);
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        let name = path.trim_start_matches('/');
        self.entries += 1;
        let links = if mode & 0o040_000 != 0 { 2 } else { 1 };
        let fields = [
            self.entries,
            mode,
            0,
            0,
            links,
            0,
            content.len() as u32,
            0,
            0,
            0,
            0,
            name.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_tool_reads_the_archive() {
        let directory = tempfile::tempdir().unwrap();
        let kernel = Kernel {
            image: "/dev/null".into(),
            release: "1".into(),
            modules: Vec::new(),
            network: Vec::new(),
        };
        let program = std::env::current_exe().unwrap();
        let earlier = ["stale.cpio", "recent.cpio"].map(|name| directory.path().join(name));
        for path in &earlier {
            std::fs::write(path, "of another program").unwrap();
        }
        let long_ago = std::time::SystemTime::now() - STALE * 2;
        File::options().write(true).open(&earlier[0]).unwrap().set_modified(long_ago).unwrap();
        let archive = prepare(directory.path(), &kernel, &program).unwrap();
        assert_eq!(earlier.map(|path| path.exists()), [false, true]);
        let listed = Command::new("busybox")
            .args(["cpio", "-t", "-F"])
            .arg(&archive)
            .output()
            .expect("busybox-static is among the packages of the tests");
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(text.lines().any(|line| line == "skep-guest"), "{text}");
        let again = prepare(directory.path(), &kernel, &program).unwrap();
        assert_eq!(archive, again);
    }

    #[test]
    fn a_dynamic_program_brings_its_loader() {
        let shell = Path::new("/bin/sh").canonicalize().unwrap();
        let libraries = libraries(&shell).unwrap();
        assert!(libraries.iter().any(|path| path.to_string_lossy().contains("ld-linux")));
        assert!(libraries.iter().any(|path| path.to_string_lossy().contains("libc.so")));
    }
}
