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

/// The same for rows without number: they are made twice, for the widths and to be written, and not
/// kept.
pub(crate) fn write_table<R: Iterator<Item = Vec<String>>>(
    style: Style,
    heading: &[&str],
    rows: &dyn Fn() -> R,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut widths: Vec<usize> = heading.iter().map(|cell| width(cell)).collect();
    for row in rows() {
        for (slot, cell) in widths.iter_mut().zip(&row) {
            *slot = (*slot).max(width(cell));
        }
    }
    let heading: Vec<String> = heading.iter().map(|cell| (*cell).to_owned()).collect();
    writeln!(out, "{}", style.bold(&line(&heading, &widths)))?;
    for row in rows() {
        writeln!(out, "{}", line(&row, &widths))?;
    }
    Ok(())
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
}
