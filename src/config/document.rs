//! A TOML document as a JSON value, with the positions of its fields.

use serde_json::{Map, Number, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Positions, Problem, TextPosition};
use crate::definition::FieldPath;

/// A parsed document.
#[derive(Debug, Default)]
pub(super) struct Document {
    /// The value.
    pub(super) value: Map<String, Value>,
    /// The positions of the fields.
    pub(super) positions: Positions,
    /// The syntax errors.
    pub(super) problems: Vec<Problem>,
}

/// Parses a document as far as possible.
pub(super) fn parse(file: &str, text: &str) -> Document {
    let (table, errors) = DeTable::parse_recoverable(text);
    let problems = errors.iter().map(|error| {
        let position = error.span().map(|span| position(text, span.start));
        let message = error.message().trim().replace('\n', ", ");
        let key = error
            .span()
            .and_then(|span| text.get(span))
            .map(str::trim)
            .filter(|key| !key.is_empty());
        let message = match key {
            Some(key) if message == "duplicate key" => format!("the key `{key}` is given twice"),
            Some(_) | None => message,
        };
        Problem::in_file(file, message).at(position)
    });
    let mut problems: Vec<Problem> = problems.collect();
    problems.sort_by_key(|problem| problem.position);
    problems.dedup();
    let mut walk = Walk {
        lines: Lines::of(text),
        positions: Positions::new(),
    };
    let value = walk.table(&FieldPath::default(), table.get_ref());
    Document {
        value,
        positions: walk.positions,
        problems,
    }
}

/// Returns the value of one expression, whose field is `path`, and adds the positions of the fields in it.
pub(super) fn value(text: &str, path: &FieldPath, value: &Spanned<DeValue<'_>>, positions: &mut Positions) -> Value {
    let mut walk = Walk {
        lines: Lines::of(text),
        positions: std::mem::take(positions),
    };
    let read = walk.value(path, value);
    *positions = walk.positions;
    read
}

/// Returns the line and column of a byte of `text`.
pub(super) fn position(text: &str, offset: usize) -> TextPosition {
    Lines::of(text).position(offset)
}

/// The lines of a text.
struct Lines<'t> {
    text: &'t str,
    /// The offsets at which the lines after the first begin.
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn of(text: &'t str) -> Self {
        let starts = text.match_indices('\n').map(|(at, _)| at + 1);
        Self {
            text,
            starts: starts.collect(),
        }
    }

    /// Returns the line and column of a byte.
    fn position(&self, offset: usize) -> TextPosition {
        let lines_before = self.starts.partition_point(|start| *start <= offset);
        let line_start = lines_before.checked_sub(1).map_or(0, |line| self.starts[line]);
        let before = self.text.get(line_start..offset).unwrap_or_default();
        (lines_before + 1, before.chars().count() + 1)
    }
}

struct Walk<'t> {
    lines: Lines<'t>,
    positions: Positions,
}

impl Walk<'_> {
    fn table(&mut self, path: &FieldPath, table: &DeTable<'_>) -> Map<String, Value> {
        let mut fields = Map::new();
        for (key, value) in table {
            let inner = path.then(key.get_ref().as_ref());
            self.positions
                .insert(inner.clone(), self.lines.position(key.span().start));
            fields.insert(key.get_ref().to_string(), self.value(&inner, value));
        }
        fields
    }

    fn value(&mut self, path: &FieldPath, value: &Spanned<DeValue<'_>>) -> Value {
        match value.get_ref() {
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Integer(number) => {
                let digits = i64::from_str_radix(number.as_str(), number.radix()).map(Number::from);
                digits.map_or_else(|_| Value::String(number.as_str().to_owned()), Value::Number)
            }
            DeValue::Float(number) => {
                let finite = number.as_str().parse().ok().and_then(Number::from_f64);
                finite.map_or_else(|| Value::String(number.as_str().to_owned()), Value::Number)
            }
            DeValue::Boolean(truth) => Value::Bool(*truth),
            DeValue::Datetime(time) => Value::String(time.to_string()),
            DeValue::Table(table) => Value::Object(self.table(path, table)),
            DeValue::Array(items) => {
                let mut values = Vec::new();
                for (at, item) in items.iter().enumerate() {
                    let inner = path.then(at);
                    self.positions
                        .insert(inner.clone(), self.lines.position(item.span().start));
                    values.push(self.value(&inner, item));
                }
                Value::Array(values)
            }
        }
    }
}
