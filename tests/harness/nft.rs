//! Callers on a host without `nft`, with or without interfaces of user space (TUN), whatever this host has.

use super::call::Call;
use super::lab::Lab;
use super::who::running_as_root;
use std::ffi::OsStr;

/// For `unshare -m sh -c … sh tun|none UID GID PROGRAM…`: covers the program in a mount namespace of the call's own,
/// then becomes the caller.
pub(crate) const WITHOUT_NFT: &str = "set -e
mount --make-rprivate /
for program in /usr/sbin/nft /sbin/nft /usr/bin/nft; do
  if [ -f \"$program\" ]; then mount --bind /dev/null \"$program\"; fi
done
case $1 in
  tun) device=$(mktemp -u); mknod -m 666 \"$device\" c 10 200; mount --bind \"$device\" /dev/net/tun; rm \"$device\";;
  none) mount --bind /dev/null /dev/net/tun;;
esac
uid=$2 gid=$3
shift 3
exec setpriv --reuid \"$uid\" --regid \"$gid\" --clear-groups \"$@\"";

impl Lab {
    /// A call of skep that finds neither `nft` nor TUN; the reason where that cannot be arranged.
    pub(crate) fn skep_without_nft(&self, arguments: &[&str]) -> Result<Call, String> {
        self.skep_on_a_host_with("none", arguments)
    }

    /// A call of skep that finds no `nft`, and TUN as hosts have it: everybody may use it.
    pub(crate) fn skep_with_tun(&self, arguments: &[&str]) -> Result<Call, String> {
        self.skep_on_a_host_with("tun", arguments)
    }

    fn skep_on_a_host_with(&self, tun: &str, arguments: &[&str]) -> Result<Call, String> {
        if !running_as_root() {
            return Err("only root can take a program away from an ordinary user".to_owned());
        }
        if !std::path::Path::new("/dev/net/tun").exists() {
            return Err("this kernel has no TUN".to_owned());
        }
        let mut command = self.in_a_world(WITHOUT_NFT);
        let (uid, gid) = self.who.ids();
        command.arg(tun).args([uid.to_string(), gid.to_string()]).arg(&self.binary);
        command.args(arguments.iter().map(OsStr::new));
        Ok(Call::new(command).by(self.who))
    }
}
