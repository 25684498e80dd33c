//! Paths in messages: any bytes, also those that are no text.

use skep_types::ByteString;
use std::path::PathBuf;

/// One path.
pub mod one {
    use super::{ByteString, PathBuf};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// As bytes.
    pub fn serialize<S: Serializer>(path: &std::path::Path, to: S) -> Result<S::Ok, S::Error> {
        ByteString::from(path).serialize(to)
    }

    /// From bytes.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Ok(ByteString::deserialize(from)?.as_path().to_owned())
    }
}

/// A list of paths.
pub mod many {
    use super::{ByteString, PathBuf};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// As bytes.
    pub fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        let paths: Vec<ByteString> = paths.iter().map(|path| path.as_path().into()).collect();
        paths.serialize(to)
    }

    /// From bytes.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
        let paths = Vec::<ByteString>::deserialize(from)?;
        Ok(paths.iter().map(|path| path.as_path().to_owned()).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Message {
        #[serde(with = "super::one")]
        one: PathBuf,
        #[serde(with = "super::many")]
        many: Vec<PathBuf>,
    }

    #[test]
    fn a_path_that_is_no_text_survives() {
        let odd = PathBuf::from(std::ffi::OsStr::from_bytes(b"/a\xff\n:,b"));
        let message = Message { one: odd.clone(), many: vec![odd, "/plain".into()] };
        let text = serde_json::to_string(&message).unwrap();
        assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), message);
    }
}
