//! Rows of a query as values, and how an id is found by its start.

use super::fault::Outcome;
use super::session::{Parameters, Session};
use crate::rules::{id_range_end, no_such_id, only_id};
use crate::value::decode;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use tokio_postgres::Row;

/// A text of a caller's as PostgreSQL can keep it: its texts hold everything but NUL. Two texts stay
/// two texts.
pub(super) fn stored(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', '\\']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace('\\', "\\\\").replace('\0', "\\0"))
}

/// The text that was stored.
pub(super) fn original(stored: &str) -> String {
    let mut text = String::with_capacity(stored.len());
    let mut letters = stored.chars();
    while let Some(letter) = letters.next() {
        text.push(match letter {
            '\\' if letters.next() == Some('0') => '\0',
            other => other,
        });
    }
    text
}

fn value<T: DeserializeOwned>(table: &'static str, row: &Row) -> Outcome<T> {
    let id: String = row.try_get(0)?;
    let text: String = row.try_get(1)?;
    Ok(decode(table, &id, &text, row.try_get(2)?)?)
}

/// The values of a query that selects an id (as text), `value` and `sum`.
pub(super) fn rows<T: DeserializeOwned>(
    session: &mut Session,
    table: &'static str,
    sql: &str,
    parameters: Parameters<'_>,
) -> Outcome<Vec<T>> {
    session.query(sql, parameters)?.iter().map(|row| value(table, row)).collect()
}

/// The first value of such a query.
pub(super) fn first<T: DeserializeOwned>(
    session: &mut Session,
    table: &'static str,
    sql: &str,
    parameters: Parameters<'_>,
) -> Outcome<Option<T>> {
    session.first(sql, parameters)?.map(|row| value(table, &row)).transpose()
}

/// Whether a query finds anything.
pub(super) fn exists(
    session: &mut Session,
    sql: &str,
    parameters: Parameters<'_>,
) -> Outcome<bool> {
    Ok(session.first(sql, parameters)?.is_some())
}

/// How a table is searched by the start of an id; `$3` is the node of the caller.
pub(super) struct IdSearch {
    pub what: &'static str,
    /// Selects id, value and sum of the row whose id is `$1`, on the node `$2`.
    pub exact: &'static str,
    /// Selects up to ten ids from `$1` on and below `$2`, on the node `$3`.
    pub range: &'static str,
}

/// The value whose id is `text`, or the only one whose id starts so.
pub(super) fn by_id_prefix<T: DeserializeOwned>(
    session: &mut Session,
    table: &'static str,
    search: &IdSearch,
    text: &str,
    node: &str,
) -> Outcome<T> {
    let until = id_range_end(search.what, text)?;
    if let Some(found) = first(session, table, search.exact, &[&text, &node])? {
        return Ok(found);
    }
    let found = session.query(search.range, &[&text, &until, &node])?;
    let found: Vec<String> =
        found.iter().map(|row| row.try_get(0)).collect::<Result<_, tokio_postgres::Error>>()?;
    let id = only_id(search.what, text, found)?;
    let found = first(session, table, search.exact, &[&id, &node])?;
    found.ok_or_else(|| no_such_id(search.what, text).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back_and_none_holds_nul() {
        for text in ["", "a", "\0", "\\0", "\\\0", "a\\b\0c\\", "\\\\0\0\0"] {
            let kept = stored(text);
            assert!(!kept.contains('\0'));
            assert_eq!(original(&kept), text);
        }
    }
}
