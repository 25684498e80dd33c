//! Mounts as people write them: `SRC:DST[:ro|rw]`.

use serde::de::{self, Deserialize, Deserializer};
use skep_types::{Access, ByteString, Mount};

/// Why a mount was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// Not two or three parts.
    #[error("mount `{0}` is not of the form SRC:DST[:ro|rw]")]
    Malformed(ByteString),
    /// Another word than `ro` or `rw`.
    #[error("mount `{mount}` has the unknown access `{access}`; it is `ro` or `rw`")]
    Access {
        /// What was typed.
        mount: ByteString,
        /// Its third part.
        access: ByteString,
    },
    /// A relative path, or one with `..`.
    #[error("mount `{mount}` names `{path}`, which is not an absolute path without `..`")]
    Path {
        /// What was typed.
        mount: ByteString,
        /// Which part of it.
        path: ByteString,
    },
    /// The root of the filesystem, on either side.
    #[error("mount `{0}` names the root of the filesystem")]
    Root(ByteString),
}

/// Reads `SRC:DST[:ro|rw]`; both paths absolute, read-only unless said.
pub fn parse_mount(typed: &[u8]) -> Result<Mount, MountError> {
    let shown = || ByteString::from(typed);
    let parts: Vec<&[u8]> = typed.split(|byte| *byte == b':').collect();
    let (source, target, access) = match parts.as_slice() {
        [source, target] => (*source, *target, Access::Ro),
        [source, target, b"ro"] => (*source, *target, Access::Ro),
        [source, target, b"rw"] => (*source, *target, Access::Rw),
        [_, _, access] => {
            return Err(MountError::Access { mount: shown(), access: (*access).into() });
        }
        _ => return Err(MountError::Malformed(shown())),
    };
    for path in [source, target] {
        let climbs = path.split(|byte| *byte == b'/').any(|name| name == b"..");
        if !path.starts_with(b"/") || climbs || path.contains(&0) {
            return Err(MountError::Path { mount: shown(), path: path.into() });
        }
        if path.split(|byte| *byte == b'/').all(|name| matches!(name, b"" | b".")) {
            return Err(MountError::Root(shown()));
        }
    }
    Ok(Mount { source: source.into(), target: target.into(), access })
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<Option<Vec<Mount>>, D::Error> {
    let typed = Vec::<ByteString>::deserialize(input)?;
    let mounts = typed.iter().map(|mount| parse_mount(mount.as_bytes()));
    mounts.collect::<Result<_, _>>().map(Some).map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_or_three_parts() {
        let mount = parse_mount(b"/a:/b").unwrap();
        assert_eq!(mount, Mount { source: "/a".into(), target: "/b".into(), access: Access::Ro });
        assert_eq!(parse_mount(b"/a:/b:rw").unwrap().access, Access::Rw);
        assert_eq!(parse_mount(b"/\xff:/b:ro").unwrap().source, (&b"/\xff"[..]).into());
        for bad in [
            &b"/a"[..],
            b"a:/b",
            b"/a:b",
            b"/a:/b:rx",
            b"/a:/b:rw:x",
            b"/a/../b:/c",
            b"/:/b",
            b"/a://.",
        ] {
            assert!(parse_mount(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }
}
