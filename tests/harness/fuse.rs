//! Callers with and without fuse-overlayfs at hand, whatever the host's `/dev/fuse` lets them do.
//!
//! The host's device is left as it is: a call gets a mount namespace of its own, with a node of the
//! wished mode bound over it.

use super::call::Call;
use super::lab::Lab;
use super::who::running_as_root;

/// Makes the node, then becomes the caller. `$1` is the mode, `$2` and `$3` are the ids.
const PRELUDE: &str = "set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /mnt
mknod -m \"$1\" /mnt/fuse c 10 229
mount --bind /mnt/fuse /dev/fuse
umount -l /mnt
uid=$2 gid=$3
shift 3
exec setpriv --reuid \"$uid\" --regid \"$gid\" --clear-groups \"$@\"";

impl Lab {
    /// A call of skep whose caller may open `/dev/fuse`; `None` (with the reason) where that cannot
    /// be arranged.
    pub(crate) fn skep_with_fuse(&self, arguments: &[&str]) -> Result<Call, String> {
        if !std::path::Path::new("/usr/bin/fuse-overlayfs").exists() {
            return Err("fuse-overlayfs is not installed".to_owned());
        }
        self.with_device("666", arguments)
    }

    /// A call of skep whose caller may not.
    pub(crate) fn skep_without_fuse(&self, arguments: &[&str]) -> Result<Call, String> {
        self.with_device("000", arguments)
    }

    /// A script of the caller's in one namespace of mounts, where `/dev/fuse` may be opened.
    pub(crate) fn shell_with_fuse(&self, script: &str) -> Result<Call, String> {
        if !std::path::Path::new("/usr/bin/fuse-overlayfs").exists() {
            return Err("fuse-overlayfs is not installed".to_owned());
        }
        Ok(self.in_namespace("666")?.args(["sh", "-ec", script, "sh"]))
    }

    fn with_device(&self, mode: &str, arguments: &[&str]) -> Result<Call, String> {
        Ok(self.in_namespace(mode)?.arg(&self.binary).args(arguments))
    }

    fn in_namespace(&self, mode: &str) -> Result<Call, String> {
        if !running_as_root() {
            return Err("only root can lend an ordinary user another /dev/fuse".to_owned());
        }
        let mut command = self.in_a_world(PRELUDE);
        let (uid, gid) = self.who.ids();
        command.arg(mode).args([uid.to_string(), gid.to_string()]);
        Ok(Call::new(command).by(self.who))
    }
}
