//! What the share daemon shares, and what it is given for it.
//!
//! Without an image that is the view without the host's kernel. With one the view is QEMU's alone: the
//! tree of the guest is put together from the image, which stands beside the view, and from those
//! places of the view that are not the system's: the project, the home, `/tmp`.

use crate::qemu;
use rustix::fd::OwnedFd;
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    mount_remount,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Where the view has the image that the guest shall see.
pub const IMAGE: &str = "/.skep-image";
/// Where the tree of the guest is put together.
pub const TREE: &str = "/.skep-tree";

/// Files of the view that say what skep says, whatever the image does.
const OWN_FILES: [&str; 2] = ["/etc/hosts", "/etc/resolv.conf"];

/// What a guest sees of an image. Paths are relative to its root, parents first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedImage {
    /// Entries that are shown as they are.
    pub pieces: Vec<PathBuf>,
    /// Directories around them that have other things in them too.
    pub directories: Vec<PathBuf>,
    /// Links in those, and what they say.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// Absolute places of the view that the guest sees as they are there. No link of the image lies on
    /// the way to them.
    pub places: Vec<PathBuf>,
}

impl SharedImage {
    fn assemble(&self) -> io::Result<()> {
        let tree = Path::new(TREE);
        let plain = MountFlags::NOSUID | MountFlags::NODEV;
        mount("none", tree, "tmpfs", plain, Some(c"mode=755,size=16m"))?;
        for directory in self.directories.iter().map(PathBuf::as_path) {
            std::fs::create_dir(tree.join(directory))?;
        }
        for name in qemu::OWN_OF_THE_GUEST {
            std::fs::create_dir(tree.join(name))?;
        }
        for (at, points_to) in &self.links {
            std::os::unix::fs::symlink(points_to, tree.join(at))?;
        }
        for piece in &self.pieces {
            show(&Path::new(IMAGE).join(piece), &tree.join(piece))?;
        }
        let inner = |place: &&PathBuf| {
            self.places.iter().any(|other| place.starts_with(other) && *place != other)
        };
        for place in self.places.iter().filter(|place| !inner(place)) {
            show(place, &inside(place))?;
        }
        show_own_files(plain)?;
        Ok(mount_remount(tree, plain | MountFlags::RDONLY, "")?)
    }
}

/// Those of the view have no names any more, and what has none cannot be mounted once more: copies stand in
/// for them, over the image, which was shown by now.
fn show_own_files(plain: MountFlags) -> io::Result<()> {
    mount("none", IMAGE, "tmpfs", plain, Some(c"mode=755,size=64k"))?;
    for file in OWN_FILES.map(Path::new) {
        let content = std::fs::read(file).unwrap_or_default();
        let copy = Path::new(IMAGE).join(file.file_name().unwrap_or_default());
        std::fs::write(&copy, content)?;
        show(&copy, &inside(file))?;
    }
    Ok(())
}

fn inside(place: &Path) -> PathBuf {
    Path::new(TREE).join(place.strip_prefix("/").unwrap_or(place))
}

/// Shows one thing at another place, with everything mounted below it.
fn show(what: &Path, at: &Path) -> io::Result<()> {
    put(what, at).map_err(|error| {
        let message = format!("cannot show `{}` at `{}`: {error}", what.display(), at.display());
        io::Error::new(error.kind(), message)
    })
}

fn put(what: &Path, at: &Path) -> io::Result<()> {
    if !what.is_dir() {
        if at.symlink_metadata().is_err() {
            File::create(at)?;
        }
        return Ok(mount_bind(what, at)?);
    }
    std::fs::create_dir_all(at)?;
    Ok(mount_bind_recursive(what, at)?)
}

/// Makes the tree that is shared, in the mount namespace of the share daemon alone. Whoever is root in
/// the guest asks the daemon for any path, and `/proc` would hand out the memory of the daemon itself.
pub(crate) fn make_tree(image: Option<&SharedImage>) -> io::Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let tree = match image {
        None => "/",
        Some(image) => {
            image.assemble()?;
            TREE
        }
    };
    mount_bind_recursive(tree, qemu::SHARED_TREE)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    for name in qemu::OWN_OF_THE_GUEST {
        let place = Path::new(qemu::SHARED_TREE).join(name);
        match mount("none", &place, "tmpfs", flags, Some(c"mode=555,size=4k")) {
            Ok(()) => {}
            // A view without it.
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Covers what is shared of a directory with an empty one.
pub(crate) fn empty(directory: &Path) -> io::Result<()> {
    let place = Path::new(qemu::SHARED_TREE).join(directory.strip_prefix("/").unwrap_or(directory));
    Ok(mount("none", &place, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=777"))?)
}

/// A socket with a name that only this network namespace knows, and a connection to it.
pub(crate) fn sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    let socket = || {
        let flags = SocketFlags::CLOEXEC;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
    };
    let listener = socket()?;
    rustix::net::bind(&listener, &SocketAddrUnix::new_unnamed())?;
    rustix::net::listen(&listener, 1)?;
    let name = SocketAddrUnix::try_from(rustix::net::getsockname(&listener)?)?;
    let connection = socket()?;
    rustix::net::connect(&connection, &name)?;
    Ok((listener, connection))
}

/// The share daemon gives up supplementary groups and ends if it cannot; in a user namespace of one
/// id nobody can. It is told that it could: the groups are the caller's own, and every other provider
/// leaves them to the processes inside too.
pub(crate) fn keep_groups() -> io::Result<()> {
    use skep_sys::seccomp::Instruction;
    const LOAD_NUMBER: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    if rustix::process::getgroups()?.is_empty() {
        return Ok(());
    }
    let step = |code, jump_false, value| Instruction { code, jump_true: 0, jump_false, value };
    skep_sys::seccomp::set_mode_filter(&[
        step(LOAD_NUMBER, 0, 0),
        step(JUMP_IF_EQUAL, 1, libc::SYS_setgroups as u32),
        step(RETURN, 0, libc::SECCOMP_RET_ERRNO),
        step(RETURN, 0, libc::SECCOMP_RET_ALLOW),
    ])
}
