//! Tables that fit the terminal.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::escape;

/// The smallest width to which a column is cut.
const MIN_COLUMN: usize = 8;

/// The space between columns.
const COLUMN_GAP: &str = "  ";

/// A table for people. Its cells are escaped.
pub(super) struct Table {
    headers: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates an empty table.
    pub(super) fn new(headers: &[&'static str]) -> Self {
        Self {
            headers: headers.to_vec(),
            rows: vec![],
        }
    }

    /// Adds a row.
    pub(super) fn add(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| escape::line(cell)).collect());
    }

    /// Returns the text, cut to the width if there is one: the widest columns lose most.
    pub(super) fn render(&self, width: Option<usize>) -> String {
        let headers: Vec<String> = self.headers.iter().map(|&header| header.to_owned()).collect();
        let widths = self.widths(width);
        let mut text = String::new();
        for row in std::iter::once(&headers).chain(&self.rows) {
            let mut line = String::new();
            for (at, cell) in row.iter().enumerate() {
                let width = widths.get(at).copied().unwrap_or_default();
                let cell = cut(cell, width);
                if at > 0 {
                    line.push_str(COLUMN_GAP);
                }
                line.push_str(&cell);
                line.push_str(&" ".repeat(width.saturating_sub(cell.width())));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    fn widths(&self, width: Option<usize>) -> Vec<usize> {
        let widest = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(at));
            let longest = cells.map(|cell| cell.width()).max().unwrap_or_default();
            longest.max(self.headers.get(at).map_or(0, |header| header.width()))
        };
        let mut widths: Vec<usize> = (0..self.headers.len()).map(widest).collect();
        let Some(width) = width else { return widths };
        let gaps = COLUMN_GAP.len() * widths.len().saturating_sub(1);
        while widths.iter().sum::<usize>() + gaps > width {
            // Of columns of the same width, the last is cut first.
            let Some(widest) = widths.iter_mut().max() else { break };
            if *widest <= MIN_COLUMN {
                break;
            }
            *widest -= 1;
        }
        widths
    }
}

/// Cuts a text of one line to a width.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut used = 0;
    let mut short = String::new();
    for letter in text.chars() {
        used += letter.width().unwrap_or(0);
        if used + 1 > width {
            break;
        }
        short.push(letter);
    }
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["ID", "TEXT"]);
        table.add(vec!["1".to_owned(), "a long text\nof two lines".to_owned()]);
        table.add(vec!["22".to_owned(), "水獺水獺水獺水獺水獺".to_owned()]);
        table
    }

    #[test]
    fn a_table_fits_the_terminal() {
        let text = table().render(Some(16));
        assert!(text.lines().all(|line| line.width() <= 16), "{text}");
        assert_eq!(text.lines().next(), Some("ID  TEXT"));
        assert!(text.contains("a long text…"), "{text}");
    }

    #[test]
    fn without_a_terminal_nothing_is_cut() {
        assert!(table().render(None).contains("a long text of two lines"));
    }
}
