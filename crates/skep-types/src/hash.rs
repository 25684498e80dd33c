//! Content hashes and digests (BLAKE3, 32 bytes, shown in hexadecimal).

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;

/// A text that is not 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a digest (64 hexadecimal digits)")]
pub struct DigestError(pub String);

macro_rules! digest_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 32]);

        impl $name {
            /// From the 32 bytes of a hash.
            pub fn from_bytes(bytes: [u8; 32]) -> Self { Self(bytes) }
            /// The 32 bytes.
            pub fn as_bytes(&self) -> &[u8; 32] { &self.0 }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, "{self}") }
        }

        impl FromStr for $name {
            type Err = DigestError;
            fn from_str(text: &str) -> Result<Self, DigestError> {
                parse_hex(text).map(Self).ok_or_else(|| DigestError(text.to_owned()))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

digest_type! {
    /// Hash of a file's content, or of a symlink's target.
    ContentHash
}
digest_type! {
    /// Digest of a whole change set: what an approval names.
    ChangeSetDigest
}

impl ContentHash {
    /// The hash of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The first half: enough to tell things apart in a large table.
    pub fn half(&self) -> [u8; 16] {
        let mut half = [0; 16];
        half.copy_from_slice(&self.0[..16]);
        half
    }
}

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let bytes = text.as_bytes();
    if bytes.len() != 64 {
        return None;
    }
    let mut out = [0; 32];
    for (slot, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        let high = (pair[0] as char).to_digit(16)?;
        let low = (pair[1] as char).to_digit(16)?;
        *slot = (high * 16 + low) as u8;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trip() {
        let hash = ContentHash::of(b"honey");
        assert_eq!(hash.to_string().parse::<ContentHash>().unwrap(), hash);
        assert!("deadbeef".parse::<ContentHash>().is_err());
    }
}
