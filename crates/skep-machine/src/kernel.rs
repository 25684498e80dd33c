//! Finding a kernel for the guest.
//!
//! Any Linux kernel with virtio over PCI, FUSE and virtio-fs will do, built in or as modules. It
//! is looked for where `skep image kernel` unpacks one, in `/var/lib/skep/kernel` for the whole
//! machine, and in `/boot`; or it is the one that the settings name, and then no other.

use crate::{At, MachineError};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's name for its newest kernel for virtual machines.
const PACKAGE: &str = "linux-image-cloud-amd64";

/// A kernel and its modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The image.
    pub image: PathBuf,
    /// Its release, as in its file name.
    pub release: String,
    /// Modules to load, in order. What is built in has none.
    pub modules: Vec<PathBuf>,
    /// Those that redirect connections, in order, as far as there are any.
    pub network: Vec<PathBuf>,
}

/// What the guest needs, in the order in which it can mostly be loaded.
const MODULES: &[&str] = &[
    "virtio",
    "virtio_ring",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "fuse",
    "virtiofs",
    "virtio_console",
];

/// What redirects connections in it, likewise.
const NETWORK_MODULES: &[&str] = &[
    "crc32c_generic",
    "libcrc32c",
    "nfnetlink",
    "nf_defrag_ipv4",
    "nf_defrag_ipv6",
    "nf_conntrack",
    "nf_nat",
    "nf_tables",
    "nft_ct",
    "nft_chain_nat",
    "nft_redir",
];

/// The newest usable kernel below one of `roots` (each with `boot/` and `lib/modules/` or
/// `usr/lib/modules/`), the first root that has one wins. A kernel that cannot be read by this
/// user does not count.
pub fn find(roots: &[PathBuf]) -> Result<Kernel, MachineError> {
    let mut reasons = Vec::new();
    for root in roots {
        match in_root(root) {
            Ok(kernel) => return Ok(kernel),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(MachineError::Missing {
        what: "a kernel for the guest",
        reason: reasons.join("; "),
        remedy: "unpack one with `skep image kernel`".into(),
    })
}

/// The kernel at a path that was named: an image `vmlinuz-RELEASE` with its modules in `lib/modules/RELEASE`
/// beside it or beside the directory it lies in, or a directory as [`find`] takes it.
pub fn named(path: &Path) -> Result<Kernel, MachineError> {
    let wrong = |reason: String| {
        MachineError::Missing {
        what: "the kernel that `provider.microvm.kernel` names",
        reason,
        remedy: "name an image (`/boot/vmlinuz-RELEASE`) or a directory with `boot` and `lib/modules`, or take the setting out".into(),
    }
    };
    if !path.is_absolute() {
        return Err(wrong(format!("`{}` is no absolute path", path.display())));
    }
    if path.is_dir() {
        return in_root(path).map_err(wrong);
    }
    let name = path.file_name().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
    let Some(release) = name.strip_prefix("vmlinuz-").filter(|_| path.is_file()) else {
        let what = if path.is_file() { "is not called `vmlinuz-RELEASE`" } else { "is not there" };
        return Err(wrong(format!("`{}` {what}", path.display())));
    };
    let mut reason = String::new();
    for root in path.ancestors().skip(1).take(2) {
        match with_modules(root, release, path) {
            Ok((modules, network)) => {
                let (image, release) = (path.to_owned(), release.to_owned());
                return Ok(Kernel { image, release, modules, network });
            }
            Err(error) => reason = skep_types::chain(&error),
        }
    }
    Err(wrong(reason))
}

/// Unpacks the kernel of a Debian package into `root`, in place of what was there. Nothing of the
/// package is run, and nothing outside `root` is touched.
pub fn unpack(package: &Path, root: &Path) -> Result<Kernel, MachineError> {
    let step = || format!("unpack `{}`", package.display());
    let fresh = root.with_extension(format!("new-{}", std::process::id()));
    let old = root.with_extension(format!("old-{}", std::process::id()));
    std::fs::create_dir_all(&fresh).at(step)?;
    let unpacked =
        run("/usr/bin/dpkg-deb", &["-x".as_ref(), package.as_os_str(), fresh.as_os_str()])
            .and_then(|_| find(std::slice::from_ref(&fresh)));
    if let Err(error) = unpacked {
        let _ = std::fs::remove_dir_all(&fresh);
        return Err(error);
    }
    match std::fs::rename(root, &old) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).at(step),
        _ => {}
    }
    std::fs::rename(&fresh, root).at(step)?;
    // What is left of the old one is only space.
    let _ = std::fs::remove_dir_all(&old);
    find(std::slice::from_ref(&root.to_owned()))
}

/// Fetches Debian's kernel package for virtual machines into `directory` with this machine's own
/// package manager.
pub fn download(directory: &Path) -> Result<PathBuf, MachineError> {
    // The named package is empty and depends on the one that holds the kernel.
    let words = ["depends", "--important", PACKAGE];
    let listed = run("/usr/bin/apt-cache", &words.map(AsRef::as_ref))?;
    let package = listed
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .ok_or_else(|| MachineError::Missing {
            what: "the package of a kernel",
            reason: format!("the package lists do not know `{PACKAGE}`"),
            remedy: "run `apt-get update`, or name a package file: `skep image kernel --deb FILE`"
                .into(),
        })?;
    let step = || format!("download `{package}`");
    let status = Command::new("/usr/bin/apt-get")
        .args(["download", "-q", package])
        .current_dir(directory)
        .output()
        .at(step)?;
    let entries = std::fs::read_dir(directory).at(step)?;
    let mut found = entries.flatten().map(|entry| entry.path());
    found
        .find(|path| path.extension().is_some_and(|end| end == "deb"))
        .ok_or_else(|| std::io::Error::other(last_line(&status.stderr)))
        .at(step)
}

fn run(program: &str, arguments: &[&std::ffi::OsStr]) -> Result<String, MachineError> {
    let step = || format!("run `{program}`");
    let done = Command::new(program).args(arguments).output().at(step)?;
    if !done.status.success() {
        return Err(std::io::Error::other(last_line(&done.stderr))).at(step);
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

fn last_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().last().unwrap_or("it said nothing").to_owned()
}

fn in_root(root: &Path) -> Result<Kernel, String> {
    let boot = root.join("boot");
    let entries = std::fs::read_dir(&boot).map_err(|e| format!("`{}`: {e}", boot.display()))?;
    let mut images: Vec<(String, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((name.strip_prefix("vmlinuz-")?.to_owned(), entry.path()))
        })
        .collect();
    images.sort();
    let mut reason = format!("`{}` holds no vmlinuz-*", boot.display());
    for (release, image) in images.into_iter().rev() {
        match with_modules(root, &release, &image) {
            Ok((modules, network)) => return Ok(Kernel { image, release, modules, network }),
            Err(error) => reason = skep_types::chain(&error),
        }
    }
    Err(reason)
}

/// The modules, and those for a network.
fn with_modules(
    root: &Path,
    release: &str,
    image: &Path,
) -> Result<(Vec<PathBuf>, Vec<PathBuf>), MachineError> {
    std::fs::File::open(image).at(|| format!("read the kernel `{}`", image.display()))?;
    let directory = ["lib/modules", "usr/lib/modules"]
        .map(|place| root.join(place).join(release))
        .into_iter()
        .find(|directory| directory.is_dir())
        .ok_or_else(|| MachineError::Missing {
            what: "the modules of a kernel",
            reason: format!("there is no lib/modules/{release} in `{}`", root.display()),
            remedy: "install the package the kernel came with".into(),
        })?;
    let built_in = listed(&directory, "modules.builtin");
    let modules = all_modules(&directory, PLACES);
    let mut found = Vec::new();
    for name in MODULES {
        if let Some(path) = modules.iter().find(|path| module_name(path) == Some(name)) {
            found.push(path.clone());
        } else if !built_in.iter().any(|path| module_name(path) == Some(name)) && needed(name) {
            return Err(MachineError::Missing {
                what: "a module of the guest's kernel",
                reason: format!("`{}` has no {name}.ko", directory.display()),
                remedy: "use a kernel with virtio-fs".into(),
            });
        }
    }
    // A kernel without them, or with all of them built in, is found out by trying.
    let all = all_modules(&directory, NETWORK_PLACES);
    let find = |name: &&str| all.iter().find(|path| module_name(path) == Some(name)).cloned();
    Ok((found, NETWORK_MODULES.iter().filter_map(find).collect()))
}

/// The halves of the PCI driver are modules of their own only in newer kernels.
fn needed(name: &str) -> bool {
    !matches!(name, "virtio_pci_modern_dev" | "virtio_pci_legacy_dev")
}

fn listed(directory: &Path, list: &str) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(directory.join(list)).unwrap_or_default();
    text.lines().map(PathBuf::from).collect()
}

fn module_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()?.strip_suffix(".ko")
}

/// Only the directories that hold what we look for; a kernel has thousands of modules.
const PLACES: &[&str] = &["kernel/drivers/virtio", "kernel/fs/fuse", "kernel/drivers/char"];
const NETWORK_PLACES: &[&str] = &[
    "kernel/crypto",
    "kernel/lib",
    "kernel/net/netfilter",
    "kernel/net/ipv4/netfilter",
    "kernel/net/ipv6/netfilter",
];

fn all_modules(directory: &Path, places: &[&str]) -> Vec<PathBuf> {
    let entries = places.iter().filter_map(|place| std::fs::read_dir(directory.join(place)).ok());
    entries.flat_map(|entries| entries.flatten().map(|entry| entry.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plant(root: &Path, release: &str, modules: &[&str]) {
        let boot = root.join("boot");
        std::fs::create_dir_all(&boot).unwrap();
        std::fs::write(boot.join(format!("vmlinuz-{release}")), "kernel").unwrap();
        let directory = root.join("lib/modules").join(release);
        for place in ["kernel/drivers/virtio", "kernel/fs/fuse", "kernel/drivers/char"] {
            std::fs::create_dir_all(directory.join(place)).unwrap();
        }
        for module in modules {
            let place = directory.join("kernel/drivers/virtio").join(format!("{module}.ko"));
            std::fs::write(place, "module").unwrap();
        }
    }

    #[test]
    fn the_newest_kernel_with_all_modules_wins_and_they_are_in_loading_order() {
        let root = tempfile::tempdir().unwrap();
        plant(root.path(), "6.1.0", MODULES);
        plant(root.path(), "6.2.0", &["virtio"]);
        let kernel = find(&[root.path().into()]).unwrap();
        assert_eq!(kernel.release, "6.1.0");
        let names: Vec<_> = kernel.modules.iter().filter_map(|path| module_name(path)).collect();
        assert_eq!(names, MODULES);
    }

    #[test]
    fn the_kernel_that_was_named_is_taken_or_refused() {
        let root = tempfile::tempdir().unwrap();
        plant(root.path(), "6.1.0", MODULES);
        plant(root.path(), "6.2.0", MODULES);
        plant(root.path(), "6.3.0", &["virtio"]);
        let image = |release: &str| root.path().join("boot").join(format!("vmlinuz-{release}"));
        assert_eq!(named(&image("6.1.0")).unwrap().release, "6.1.0");
        assert_eq!(named(root.path()).unwrap().release, "6.2.0");
        std::fs::write(root.path().join("boot/bzImage"), "kernel").unwrap();
        for (wrong, why) in [
            (image("6.3.0"), "has no "),
            (image("6.4.0"), "is not there"),
            (root.path().join("boot/bzImage"), "is not called"),
            ("vmlinuz-6.1.0".into(), "no absolute path"),
        ] {
            let MachineError::Missing { reason, remedy, .. } = named(&wrong).unwrap_err() else {
                panic!("{wrong:?}")
            };
            assert!(reason.contains(why) && remedy.contains("vmlinuz-RELEASE"), "{reason}");
        }
    }

    #[test]
    fn without_a_kernel_the_remedy_is_named() {
        let root = tempfile::tempdir().unwrap();
        let error = find(&[root.path().into()]).unwrap_err();
        let MachineError::Missing { remedy, .. } = error else { panic!("{error:?}") };
        assert!(remedy.contains("skep image kernel"));
    }
}
