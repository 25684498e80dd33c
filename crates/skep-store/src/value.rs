//! Values as rows keep them: JSON with a checksum, and times that compare.

use crate::{Result, StoreError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use skep_types::ContentHash;

/// A value ready to be bound.
pub(crate) struct Encoded {
    pub value: String,
    pub sum: i64,
}

/// SQLite has no checksum on its pages, and PostgreSQL only where it was made with them; a flipped
/// bit inside a text would go unseen.
pub(crate) fn checksum(value: &[u8]) -> i64 {
    let hash = ContentHash::of(value);
    let mut first = [0; 8];
    first.copy_from_slice(&hash.as_bytes()[..8]);
    i64::from_le_bytes(first)
}

pub(crate) fn encode<T: Serialize>(what: &'static str, id: &str, value: &T) -> Result<Encoded> {
    let value = serde_json::to_string(value).map_err(|source| StoreError::Encode {
        what,
        id: id.to_owned(),
        source,
    })?;
    let sum = checksum(value.as_bytes());
    Ok(Encoded { value, sum })
}

pub(crate) fn decode<T: DeserializeOwned>(
    table: &'static str,
    id: &str,
    value: &str,
    sum: i64,
) -> Result<T> {
    let damaged = |detail: String| StoreError::Damaged { table, id: id.to_owned(), detail };
    if checksum(value.as_bytes()) != sum {
        return Err(damaged("its checksum does not match".to_owned()));
    }
    serde_json::from_str(value).map_err(|error| damaged(error.to_string()))
}

/// Microseconds since the epoch: RFC 3339 texts do not sort as times (`…:05Z` and `…:05.5Z`).
pub(crate) fn micros(text: &str) -> Result<i64> {
    let time: jiff::Timestamp =
        text.parse().map_err(|_| StoreError::BadTime { text: text.to_owned() })?;
    Ok(time.as_microsecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_compare_as_times() {
        let order = ["2026-01-01T00:00:05Z", "2026-01-01T00:00:05.5Z", "2026-01-01T01:00:06+01:00"];
        let times: Vec<i64> = order.iter().map(|text| micros(text).ok().unwrap()).collect();
        assert!(times.is_sorted(), "{times:?}");
        assert!(micros("yesterday").is_err());
    }
}
