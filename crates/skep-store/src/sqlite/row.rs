//! Rows of a query as values, and how an id is found by its start.

use super::fault::Outcome;
use crate::rules::{id_range_end, no_such_id, only_id};
use crate::value::decode;
use rusqlite::{OptionalExtension as _, Params, Row, Transaction, params};
use serde::de::DeserializeOwned;

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
    let mut statement = tx.prepare_cached(sql)?;
    let found = statement.query_map(parameters, triple)?;
    let mut values = Vec::new();
    for row in found {
        let (id, value, sum) = row?;
        values.push(decode(table, &id, &value, sum)?);
    }
    Ok(values)
}

/// Those of the rows that are sound. For whoever reads what is known to be damaged, and said so.
pub(super) fn sound_rows<T: DeserializeOwned>(
    tx: &Transaction<'_>,
    table: &'static str,
    sql: &str,
    parameters: impl Params,
) -> Outcome<Vec<T>> {
    let mut statement = tx.prepare_cached(sql)?;
    let found = statement.query_map(parameters, triple)?;
    let found: Vec<_> = found.collect::<rusqlite::Result<_>>()?;
    let sound = found.iter().filter_map(|(id, value, sum)| decode(table, id, value, *sum).ok());
    Ok(sound.collect())
}

/// The first value of such a query.
pub(super) fn first<T: DeserializeOwned>(
    tx: &Transaction<'_>,
    table: &'static str,
    sql: &str,
    parameters: impl Params,
) -> Outcome<Option<T>> {
    let found = tx.prepare_cached(sql)?.query_row(parameters, triple).optional()?;
    Ok(found.map(|(id, value, sum)| decode(table, &id, &value, sum)).transpose()?)
}

/// Runs a statement that is used more than once: compiled the first time, kept for the next.
pub(super) fn execute(
    tx: &Transaction<'_>,
    sql: &str,
    parameters: impl Params,
) -> rusqlite::Result<usize> {
    tx.prepare_cached(sql)?.execute(parameters)
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
    let until = id_range_end(search.what, text)?;
    if let Some(value) = first(tx, table, search.exact, params![text])? {
        return Ok(value);
    }
    let mut statement = tx.prepare(search.range)?;
    let found: Vec<String> = statement
        .query_map(params![text, until], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let id = only_id(search.what, text, found)?;
    let found = first(tx, table, search.exact, params![id])?;
    found.ok_or_else(|| no_such_id(search.what, text).into())
}
