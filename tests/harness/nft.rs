//! Callers on a host without `nft`, whatever this host has.

use super::call::Call;
use super::lab::Lab;
use super::who::running_as_root;
use std::ffi::OsStr;
use std::process::Command;

/// Covers the program in a mount namespace of the call's own, then becomes the caller.
const PRELUDE: &str = "set -e
mount --make-rprivate /
for program in /usr/sbin/nft /sbin/nft /usr/bin/nft; do
  if [ -f \"$program\" ]; then mount --bind /dev/null \"$program\"; fi
done
uid=$1 gid=$2
shift 2
exec setpriv --reuid \"$uid\" --regid \"$gid\" --clear-groups \"$@\"";

impl Lab {
    /// A call of skep that finds no `nft`; the reason where that cannot be arranged.
    pub(crate) fn skep_without_nft(&self, arguments: &[&str]) -> Result<Call, String> {
        if !running_as_root() {
            return Err("only root can take a program away from an ordinary user".to_owned());
        }
        let mut command = Command::new("unshare");
        self.dress(&mut command);
        // Root until the namespace stands.
        std::os::unix::process::CommandExt::uid(&mut command, 0);
        std::os::unix::process::CommandExt::gid(&mut command, 0);
        let (uid, gid) = self.who.ids();
        command.args(["-m", "sh", "-c", PRELUDE, "sh"]);
        command.args([uid.to_string(), gid.to_string()]).arg(&self.binary);
        command.args(arguments.iter().map(OsStr::new));
        Ok(Call::new(command).by(self.who))
    }
}
