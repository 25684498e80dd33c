//! Ids: sixteen random characters each, with a type of their own, global from the start.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// A text that is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an id (16 characters of 0-9 and a-z)")]
pub struct IdError(pub String);

fn encode(random: [u8; 10]) -> String {
    let bits = random.iter().fold(0u128, |bits, byte| (bits << 8) | u128::from(*byte));
    (0..16).rev().map(|digit| ALPHABET[((bits >> (digit * 5)) & 31) as usize] as char).collect()
}

fn check(text: &str) -> Result<String, IdError> {
    let good = text.len() == 16 && text.bytes().all(|byte| ALPHABET.contains(&byte));
    if good { Ok(text.to_owned()) } else { Err(IdError(text.to_owned())) }
}

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// An id from ten random bytes.
            pub fn from_random(random: [u8; 10]) -> Self { Self(encode(random)) }
            /// The text of the id.
            pub fn as_str(&self) -> &str { &self.0 }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(&self.0) }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(&self.0) }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> { check(text).map(Self) }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

id_type! {
    /// Names one sandbox, for ever and everywhere.
    SandboxId
}
id_type! {
    /// Names one exec.
    ExecId
}
id_type! {
    /// Names one approval (or undo).
    ApprovalId
}
id_type! {
    /// Names a frozen layer, shared by the sandboxes that stand on it.
    LayerId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_become_a_valid_id() {
        let id = SandboxId::from_random([0xff, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(id.as_str().parse::<SandboxId>().unwrap(), id);
        assert!("../../etc/passwd".parse::<SandboxId>().is_err());
    }
}
