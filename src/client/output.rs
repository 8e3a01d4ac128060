//! Standard output and standard error. A closed pipe is an error that ends the command quietly.

use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use super::error::ClientResult;
use super::escape;
use super::table::Table;
use crate::config;
use crate::config::client::OutputFormat;

/// The width of a terminal that does not tell it.
const DEFAULT_WIDTH: usize = 80;

/// Writes to standard output, and flushes.
pub(super) fn print(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}

/// Writes to standard error. Errors are ignored: what is said there is for people who have gone.
pub(super) fn inform(text: &str) {
    let mut output = io::stderr().lock();
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}

/// Returns the width of the terminal; `None` if standard output is none.
pub(super) fn width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let size = terminal_size::terminal_size();
    let width = size.map(|(width, _)| usize::from(width.0)).filter(|width| *width >= 20);
    Some(width.unwrap_or(DEFAULT_WIDTH))
}

/// Returns whether colours are wanted on a stream that is, or is not, a terminal.
pub(super) fn has_colours(is_terminal: bool) -> bool {
    is_terminal && config::variable("NO_COLOR").is_none() && config::variable("TERM").is_none_or(|term| term != "dumb")
}

/// Prints a list: as a table, or its items as JSON.
pub(super) fn print_list(format: OutputFormat, items: &[Value], table: impl FnOnce() -> Table) -> ClientResult<()> {
    match format {
        OutputFormat::Table => print(&table().render(width()))?,
        OutputFormat::Json => print(&pretty(&Value::Array(items.to_vec())))?,
        OutputFormat::Jsonl => {
            let lines = items.iter().map(|item| escape::json(&item.to_string()) + "\n");
            print(&lines.collect::<String>())?;
        }
    }
    Ok(())
}

/// Prints one thing: as a text, or as JSON.
pub(super) fn print_one(format: OutputFormat, item: &Value, text: impl FnOnce() -> String) -> ClientResult<()> {
    match format {
        OutputFormat::Table => print(&text())?,
        OutputFormat::Json => print(&pretty(item))?,
        OutputFormat::Jsonl => print(&(escape::json(&item.to_string()) + "\n"))?,
    }
    Ok(())
}

/// Returns JSON of several lines.
pub(super) fn pretty(value: &Value) -> String {
    escape::json(&format!("{value:#}\n"))
}

/// Returns lines of a label and a text, aligned.
pub(super) fn fields(fields: &[(&str, String)]) -> String {
    let widest = fields.iter().map(|field| field.0.len()).max().unwrap_or_default();
    let lines = fields.iter().filter(|field| !field.1.is_empty()).map(|field| {
        let label = field.0;
        let text = escape::text(&field.1).replace('\n', &format!("\n{}", " ".repeat(widest + 2)));
        format!("{label:widest$}  {text}\n")
    });
    lines.collect()
}
