//! `setfsuid(2)` and `setfsgid(2)`: whose files this thread makes.

use std::marker::PhantomData;

/// While it lives, the files that this thread makes belong to another user, who must also be
/// allowed to make them: root's rights over files rest until it is dropped.
///
/// It stays in its thread, which is the only one it is about.
#[derive(Debug)]
pub struct FileIds {
    before: (libc::uid_t, libc::gid_t),
    _thread: PhantomData<*const ()>,
}

impl FileIds {
    /// Takes these ids on. Somebody without the right to do so keeps their own; only root has it.
    pub fn take_on(uid: u32, gid: u32) -> Self {
        // The group first: with the user goes the right to change it.
        let group = set_group(gid);
        let user = set_user(uid);
        Self { before: (user, group), _thread: PhantomData }
    }
}

impl Drop for FileIds {
    fn drop(&mut self) {
        set_user(self.before.0);
        set_group(self.before.1);
    }
}

/// Returns the user before.
fn set_user(uid: libc::uid_t) -> libc::uid_t {
    // SAFETY: takes a number and changes the credentials of the calling thread; no memory is touched.
    unsafe { libc::setfsuid(uid) as libc::uid_t }
}

/// Returns the group before.
fn set_group(gid: libc::gid_t) -> libc::gid_t {
    // SAFETY: as above.
    unsafe { libc::setfsgid(gid) as libc::gid_t }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn files_are_made_for_another_until_it_is_over() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = std::env::temp_dir().join(format!("skep-ids-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&directory, open).unwrap();
        let owner = |name: &str| {
            let path = directory.join(name);
            std::fs::write(&path, "").unwrap();
            let metadata = std::fs::metadata(path).unwrap();
            (metadata.uid(), metadata.gid())
        };
        let guard = FileIds::take_on(12_345, 23_456);
        assert_eq!(owner("theirs"), (12_345, 23_456));
        drop(guard);
        assert_eq!(owner("ours"), (0, 0));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
