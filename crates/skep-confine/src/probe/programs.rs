//! Programs that probes use, and what some of them need. Whether a provider's own program is there and
//! works is the provider's to say.

use super::{Probe, ProbeContext};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::fs;
use std::path::PathBuf;

/// The first executable file of that name in the given directories.
pub(super) fn find(context: &ProbeContext, name: &str) -> Option<PathBuf> {
    let directories = context.program_directories.iter().filter(|path| path.is_absolute());
    directories.map(|directory| directory.join(name)).find(|path| {
        path.is_file() && accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
    })
}

/// Ranges of ids for `newuidmap`: needed for more than one user inside.
pub(super) fn id_ranges(context: &ProbeContext) -> Probe {
    const NAME: &str = "id ranges";
    if rustix::process::geteuid().is_root() {
        return Probe::works(NAME, "root needs none in /etc/subuid: it maps ids itself");
    }
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
