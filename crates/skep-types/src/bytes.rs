//! Byte strings: names, arguments and paths are bytes on Linux, and must survive JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Bytes as the kernel knows them. In JSON a plain string when valid UTF-8, else `{"b64": "…"}`.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteString(Vec<u8>);

impl ByteString {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes as the standard library's string for the operating system.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// The bytes as a path.
    pub fn as_path(&self) -> &Path {
        Path::new(self.as_os_str())
    }

    /// Takes the bytes out.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Compared and hashed as its bytes are, so that a set of these is asked with bytes.
impl std::borrow::Borrow<[u8]> for ByteString {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for ByteString {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<&[u8]> for ByteString {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl From<&str> for ByteString {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<String> for ByteString {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

impl From<OsString> for ByteString {
    fn from(text: OsString) -> Self {
        Self(text.into_vec())
    }
}

impl From<&OsStr> for ByteString {
    fn from(text: &OsStr) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<&Path> for ByteString {
    fn from(path: &Path) -> Self {
        Self(path.as_os_str().as_bytes().to_vec())
    }
}

impl From<PathBuf> for ByteString {
    fn from(path: PathBuf) -> Self {
        Self(path.into_os_string().into_vec())
    }
}

impl fmt::Debug for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", crate::escape::visible(&self.0))
    }
}

/// Shown with every control, invisible or non-UTF-8 byte made visible.
impl fmt::Display for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::escape::visible(&self.0))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Encoded {
    b64: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Either {
    Text(String),
    Encoded(Encoded),
}

impl Serialize for ByteString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => Encoded { b64: STANDARD.encode(&self.0) }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ByteString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Either::deserialize(deserializer)? {
            Either::Text(text) => Ok(text.into()),
            Either::Encoded(Encoded { b64 }) => {
                STANDARD.decode(b64).map(Self).map_err(de::Error::custom)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_survive_json() {
        for bytes in [&b"plain"[..], b"", b"caf\xc3\xa9", b"\xff\x00\n"] {
            let before = ByteString::from(bytes);
            let json = serde_json::to_string(&before).unwrap();
            assert_eq!(serde_json::from_str::<ByteString>(&json).unwrap(), before);
        }
    }
}
