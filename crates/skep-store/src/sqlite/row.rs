//! Rows: a value as JSON with a checksum, and how an id is found by its start.

use super::fault::{Fault, Outcome};
use crate::StoreError;
use rusqlite::{OptionalExtension as _, Params, Row, Transaction, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use skep_types::ContentHash;

/// A value ready to be bound.
pub(super) struct Encoded {
    pub value: String,
    pub sum: i64,
}

/// SQLite has no checksum on its pages; a flipped bit inside a text would go unseen.
pub(super) fn checksum(value: &str) -> i64 {
    let hash = ContentHash::of(value.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hash.as_bytes()[..8]);
    i64::from_le_bytes(first)
}

pub(super) fn encode<T: Serialize>(what: &'static str, id: &str, value: &T) -> Outcome<Encoded> {
    let value = serde_json::to_string(value).map_err(|source| StoreError::Encode {
        what,
        id: id.to_owned(),
        source,
    })?;
    let sum = checksum(&value);
    Ok(Encoded { value, sum })
}

pub(super) fn decode<T: DeserializeOwned>(
    table: &'static str,
    id: &str,
    value: &str,
    sum: i64,
) -> Outcome<T> {
    let damaged = |detail: String| StoreError::Damaged { table, id: id.to_owned(), detail };
    if checksum(value) != sum {
        return Err(damaged("its checksum does not match".to_owned()).into());
    }
    Ok(serde_json::from_str(value).map_err(|error| damaged(error.to_string()))?)
}

fn triple(row: &Row<'_>) -> rusqlite::Result<(String, String, i64)> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
}

/// The values of a query that selects an id (as text), `value` and `sum`.
pub(super) fn rows<T: DeserializeOwned>(
    tx: &Transaction<'_>,
    table: &'static str,
    sql: &str,
    parameters: impl Params,
) -> Outcome<Vec<T>> {
    let mut statement = tx.prepare(sql)?;
    let found = statement.query_map(parameters, triple)?;
    let mut values = Vec::new();
    for row in found {
        let (id, value, sum) = row?;
        values.push(decode(table, &id, &value, sum)?);
    }
    Ok(values)
}

/// The first value of such a query.
pub(super) fn first<T: DeserializeOwned>(
    tx: &Transaction<'_>,
    table: &'static str,
    sql: &str,
    parameters: impl Params,
) -> Outcome<Option<T>> {
    let found = tx.query_row(sql, parameters, triple).optional()?;
    found.map(|(id, value, sum)| decode(table, &id, &value, sum)).transpose()
}

/// How a table is searched by the start of an id.
pub(super) struct IdSearch {
    pub what: &'static str,
    /// Selects id, value and sum of the row whose id is `?1`.
    pub exact: &'static str,
    /// Selects up to ten ids from `?1` on and below `?2`.
    pub range: &'static str,
}

/// The value whose id is `text`, or the only one whose id starts so.
pub(super) fn by_id_prefix<T: DeserializeOwned>(
    tx: &Transaction<'_>,
    table: &'static str,
    search: &IdSearch,
    text: &str,
) -> Outcome<T> {
    let not_found =
        || Fault::from(StoreError::NotFound { what: search.what, name: text.to_owned() });
    // Also keeps the end of the range simple: every character of an id is below `{`.
    if text.is_empty()
        || !text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
    {
        return Err(not_found());
    }
    if let Some(value) = first(tx, table, search.exact, params![text])? {
        return Ok(value);
    }
    let mut statement = tx.prepare(search.range)?;
    let found: Vec<String> = statement
        .query_map(params![text, format!("{text}{{")], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    match found.as_slice() {
        [] => Err(not_found()),
        [id] => first(tx, table, search.exact, params![id])?.ok_or_else(not_found),
        _ => Err(StoreError::Ambiguous {
            what: search.what,
            prefix: text.to_owned(),
            candidates: found,
        }
        .into()),
    }
}

/// Microseconds since the epoch: RFC 3339 texts do not sort as times (`…:05Z` and `…:05.5Z`).
pub(super) fn micros(text: &str) -> Outcome<i64> {
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
