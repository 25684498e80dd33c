//! Plain columns.

use super::style::Style;
use std::io::{self, Write};

/// Rows under a heading, aligned, two blanks between; the last column may be of any width.
pub(crate) fn table(style: Style, heading: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = Vec::new();
    // Writing to memory does not fail.
    let _ = write_table(style, heading, &|| rows.iter().cloned(), &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Which end of a cell is left out where there is no room for all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Its beginning: of a path the end tells more.
    Left,
    /// Its end.
    Right,
}

/// A column that is made narrower gets no narrower than this: less of it tells nothing.
const NARROWEST: usize = 10;

/// The same for a terminal of so many columns, if it is one: where lines would not fit, these columns are
/// cut, one after the other, as far as it takes.
pub(crate) fn fitted(
    style: Style,
    columns: Option<usize>,
    heading: &[&str],
    mut rows: Vec<Vec<String>>,
    cuts: &[(usize, Cut)],
) -> String {
    for (at, cut) in cuts {
        let widths = widths(heading, rows.iter().cloned());
        let over = columns.map_or(0, |columns| whole_width(&widths).saturating_sub(columns));
        let Some(own) = widths.get(*at).filter(|_| over > 0) else { continue };
        let room = own.saturating_sub(over).max(NARROWEST);
        for cell in rows.iter_mut().filter_map(|row| row.get_mut(*at)) {
            *cell = shortened(cell, room, *cut);
        }
    }
    table(style, heading, &rows)
}

/// Whether no line of a table is wider than a terminal of so many columns, if it is one.
pub(crate) fn fits(columns: Option<usize>, heading: &[&str], rows: &[Vec<String>]) -> bool {
    let width = whole_width(&widths(heading, rows.iter().cloned()));
    columns.is_none_or(|columns| width <= columns)
}

/// A text in so many columns, with `…` where something is left out.
fn shortened(text: &str, room: usize, cut: Cut) -> String {
    let all = width(text);
    let kept = room.saturating_sub(1);
    match cut {
        _ if all <= room => text.to_owned(),
        Cut::Left => ['…'].into_iter().chain(text.chars().skip(all - kept)).collect(),
        Cut::Right => text.chars().take(kept).chain(['…']).collect(),
    }
}

/// The same for rows without number: they are made twice, for the widths and to be written, and not
/// kept.
pub(crate) fn write_table<R: Iterator<Item = Vec<String>>>(
    style: Style,
    heading: &[&str],
    rows: &dyn Fn() -> R,
    out: &mut dyn Write,
) -> io::Result<()> {
    let widths = widths(heading, rows());
    let heading: Vec<String> = heading.iter().map(|cell| (*cell).to_owned()).collect();
    writeln!(out, "{}", style.bold(&line(&heading, &widths)))?;
    for row in rows() {
        writeln!(out, "{}", line(&row, &widths))?;
    }
    Ok(())
}

/// How wide each column is.
fn widths(heading: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Vec<usize> {
    let mut widths: Vec<usize> = heading.iter().map(|cell| width(cell)).collect();
    for row in rows {
        for (slot, cell) in widths.iter_mut().zip(&row) {
            *slot = (*slot).max(width(cell));
        }
    }
    widths
}

/// How wide a line is that fills every column.
fn whole_width(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)
}

fn line(row: &[String], widths: &[usize]) -> String {
    let mut text = String::new();
    for (cell, wanted) in row.iter().zip(widths) {
        if !text.is_empty() {
            text.push_str("  ");
        }
        text.push_str(cell);
        text.extend(std::iter::repeat_n(' ', wanted.saturating_sub(width(cell))));
    }
    text.trim_end().to_owned()
}

fn width(cell: &str) -> usize {
    cell.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".to_owned(), "ready".to_owned()], vec!["longer".into(), "x".into()]];
        let text = table(Style::PLAIN, &["NAME", "STATE"], &rows);
        assert_eq!(text, "NAME    STATE\na       ready\nlonger  x\n");
    }

    #[test]
    fn columns_give_way_one_after_the_other_and_only_on_a_terminal() {
        let rows =
            || vec![vec!["a-rather-long-name".to_owned(), "/home/u/projects/demo".to_owned()]];
        let heading = ["NAME", "PROJECT"];
        let cuts = [(1, Cut::Left), (0, Cut::Right)];
        let line = |columns| {
            let text = fitted(Style::PLAIN, columns, &heading, rows(), &cuts);
            text.lines().nth(1).unwrap().to_owned()
        };
        assert_eq!(line(None), "a-rather-long-name  /home/u/projects/demo");
        assert_eq!(line(Some(41)), line(None));
        assert_eq!(line(Some(34)), "a-rather-long-name  …projects/demo");
        assert_eq!(line(Some(26)), "a-rather-long…  …ects/demo");
        assert_eq!(line(Some(5)), "a-rather-…  …ects/demo");
        assert!(fits(Some(41), &heading, &rows()) && !fits(Some(40), &heading, &rows()));
    }
}
