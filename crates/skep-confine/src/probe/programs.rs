//! Probes of programs and services that some providers and fall-backs use.

use super::{Probe, ProbeContext};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

/// The first executable file of that name in the given directories.
pub(super) fn find(context: &ProbeContext, name: &str) -> Option<PathBuf> {
    let directories = context.program_directories.iter().filter(|path| path.is_absolute());
    directories.map(|directory| directory.join(name)).find(|path| {
        path.is_file() && accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
    })
}

/// Names, and what each is good for.
const PROGRAMS: &[(&str, &str)] = &[
    ("bwrap", "install bubblewrap to use the bubblewrap provider"),
    ("runc", "install runc to use it as an OCI runtime"),
    ("crun", "install crun to use it as an OCI runtime"),
    ("youki", "install youki to use it as an OCI runtime"),
    ("runsc", "install gVisor to use it as an OCI runtime"),
    ("qemu-system-x86_64", "install QEMU to use the microvm provider"),
];

pub(super) fn all(context: &ProbeContext) -> Vec<Probe> {
    let mut probes =
        vec![docker(&context.docker_socket), id_ranges(context), fuse_overlay(context)];
    probes.extend(PROGRAMS.iter().map(|(name, remedy)| match find(context, name) {
        Some(path) => Probe::works(name, path.display().to_string()),
        None => Probe::missing(name, "looked for the program", "not installed").or_else(*remedy),
    }));
    probes
}

/// Asks the engine whether it lives.
fn docker(socket: &Path) -> Probe {
    let ask = || -> io::Result<bool> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.set_write_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /_ping HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n")?;
        let mut answer = [0u8; 12];
        stream.read_exact(&mut answer)?;
        Ok(answer.starts_with(b"HTTP/1.") && answer.ends_with(b" 200"))
    };
    let how = format!("asked {}", socket.display());
    match ask() {
        Ok(true) => Probe::works("docker", how),
        Ok(false) => Probe::missing("docker", how, "it did not answer as a Docker engine does"),
        Err(error) => Probe::missing("docker", how, error.to_string()),
    }
    .or_else("start the Docker engine, and let this user reach its socket (group `docker`)")
}

/// Ranges of ids for `newuidmap`: needed for more than one user inside.
fn id_ranges(context: &ProbeContext) -> Probe {
    const NAME: &str = "id ranges";
    let how = "looked for newuidmap, newgidmap and ranges in /etc/subuid and /etc/subgid";
    for program in ["newuidmap", "newgidmap"] {
        if find(context, program).is_none() {
            return Probe::missing(NAME, how, format!("{program} is not installed"))
                .or_else("install uidmap (shadow)");
        }
    }
    let user = rustix::process::getuid().as_raw().to_string();
    for file in ["/etc/subuid", "/etc/subgid"] {
        let text = fs::read_to_string(file).unwrap_or_default();
        if !has_range(&text, &context.user_name, &user) {
            let reason = format!("{file} has no range of 65536 ids for `{}`", context.user_name);
            return Probe::missing(NAME, how, reason).or_else(format!(
                "`usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {}`",
                context.user_name
            ));
        }
    }
    Probe::works(NAME, how)
}

fn has_range(text: &str, name: &str, id: &str) -> bool {
    text.lines().any(|line| {
        let fields: Vec<&str> = line.trim().split(':').collect();
        match fields[..] {
            [who, _, count] if who == name || who == id => {
                count.parse::<u64>().is_ok_and(|count| count >= 65_536)
            }
            _ => false,
        }
    })
}

fn fuse_overlay(context: &ProbeContext) -> Probe {
    const NAME: &str = "fuse-overlayfs";
    let how = "looked for the program and /dev/fuse";
    let device = accessat(CWD, "/dev/fuse", Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS);
    match (find(context, NAME), device) {
        (None, _) => Probe::missing(NAME, how, "not installed")
            .or_else("install fuse-overlayfs, for hosts where overlay cannot be mounted"),
        (Some(_), Err(error)) => Probe::missing(NAME, how, format!("/dev/fuse: {error}"))
            .or_else("load the fuse module and let this user open /dev/fuse (mode 0666)"),
        (Some(path), Ok(())) => Probe::works(NAME, path.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_belongs_to_a_name_or_an_id_and_must_be_large_enough() {
        let text = "ann:100000:65536\n1001:200000:65536\nbob:300000:10\nbroken\n";
        assert!(has_range(text, "ann", "5"));
        assert!(has_range(text, "eve", "1001"));
        assert!(!has_range(text, "bob", "6"));
        assert!(!has_range(text, "broken", "7"));
    }
}
