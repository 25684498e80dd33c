//! `/proc/self/mountinfo` and `/proc/self/cgroup` as values: which hierarchies are mounted, and
//! where this process is in each.

use super::Version;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountedHierarchy {
    pub version: Version,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Which directory of the hierarchy that shows.
    pub root: PathBuf,
    /// v1 controllers; empty for v2, whose files tell.
    pub controllers: Vec<String>,
}

/// Mount points escape blank, tab, newline and backslash as `\` and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| *first == b'\\');
        let octal = digits
            .filter(|digits| digits.iter().all(|digit| (b'0'..b'8').contains(digit)))
            .map(|digits| {
                digits.iter().fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'))
            })
            .and_then(|value| u8::try_from(value).ok());
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// The cgroup hierarchies in a mountinfo file.
pub(super) fn mounted_hierarchies(mountinfo: &[u8]) -> Vec<MountedHierarchy> {
    mountinfo.split(|byte| *byte == b'\n').filter_map(mounted_hierarchy).collect()
}

fn mounted_hierarchy(line: &[u8]) -> Option<MountedHierarchy> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let (root, mount_point) = (fields.get(3)?, fields.get(4)?);
    // Optional fields end with a lone dash; then type, source and options of the filesystem.
    let dash = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
    let version = match *fields.get(dash + 1)? {
        b"cgroup" => Version::V1,
        b"cgroup2" => Version::V2,
        _ => return None,
    };
    let options = String::from_utf8_lossy(fields.get(dash + 3)?).into_owned();
    let controllers = match version {
        Version::V2 => Vec::new(),
        Version::V1 => options.split(',').map(str::to_owned).collect(),
    };
    Some(MountedHierarchy {
        version,
        mount_point: unescape(mount_point),
        root: unescape(root),
        controllers,
    })
}

/// Where this process is in the hierarchy with one of `controllers` (v1), or in the unified one.
pub(super) fn own_path(self_cgroup: &str, hierarchy: &MountedHierarchy) -> Option<PathBuf> {
    self_cgroup.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, names, path) = (fields.next()?, fields.next()?, fields.next()?);
        let here = match hierarchy.version {
            Version::V2 => number == "0" && names.is_empty(),
            Version::V1 => names
                .split(',')
                .any(|name| !name.is_empty() && hierarchy.controllers.iter().any(|c| c == name)),
        };
        here.then(|| PathBuf::from(path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HYBRID: &str = "\
23 1 0:20 / /sys rw - sysfs sysfs rw
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
33 31 0:30 /docker/x /mnt/cg\\040roup rw,relatime - cgroup cgroup rw,cpu,cpuacct
40 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn a_mixed_host_is_understood() {
        let found = mounted_hierarchies(HYBRID.as_bytes());
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].mount_point, PathBuf::from("/sys/fs/cgroup/memory"));
        assert_eq!(found[1].mount_point, PathBuf::from("/mnt/cg roup"));
        assert_eq!(found[1].root, PathBuf::from("/docker/x"));
        let own = "4:memory:/a/b\n1:cpu,cpuacct:/docker/x/y\n0::/user.slice\n";
        let paths: Vec<_> = found.iter().map(|h| own_path(own, h).unwrap()).collect();
        let expected = ["/a/b", "/docker/x/y", "/user.slice"].map(PathBuf::from);
        assert_eq!(paths, expected);
    }

    #[test]
    fn a_name_that_contains_a_controller_is_not_that_controller() {
        let memory = mounted_hierarchies(HYBRID.as_bytes()).remove(0);
        assert_eq!(own_path("4:memoryx:/a\n5:name=memory:/b\n", &memory), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..400),
            text in ".{0,200}",
        ) {
            for hierarchy in mounted_hierarchies(&bytes) {
                own_path(&text, &hierarchy);
            }
        }

        #[test]
        fn an_escaped_path_comes_back(name in proptest::collection::vec(1u8..=255, 1..40)) {
            let escaped: Vec<u8> = name.iter().flat_map(|byte| match byte {
                b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
                other => vec![*other],
            }).collect();
            prop_assert_eq!(unescape(&escaped).into_os_string().into_vec(), name);
        }
    }
}
