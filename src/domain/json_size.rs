//! The size of values as JSON, exactly or without the punctuation.

use std::io::{Error, ErrorKind, Result, Write};

use serde::Serialize;
use serde_json::{Map, Value};

/// Returns the number of bytes that a value has as JSON; none if it has more than `limit`, or cannot be JSON.
pub fn json_size(value: &impl Serialize, limit: usize) -> Option<usize> {
    let mut counter = ByteCounter { count: 0, limit };
    serde_json::to_writer(&mut counter, value).ok()?;
    Some(counter.count)
}

/// Returns the size of a value, in bytes of texts, names and numbers, without the punctuation of JSON. Cheaper than
/// [`json_size`], and not exact.
pub fn value_size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 4,
        Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(value_size).sum::<usize>() + 2,
        Value::Object(fields) => fields_size(fields) + 2,
    }
}

/// Returns the size of the fields of an object, with their names, counted as [`value_size`] does.
pub fn fields_size(fields: &Map<String, Value>) -> usize {
    fields
        .iter()
        .map(|(name, value)| name.len() + 2 + value_size(value))
        .sum()
}

/// A writer that counts bytes up to a limit.
struct ByteCounter {
    count: usize,
    limit: usize,
}

impl Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.count += bytes.len();
        if self.count > self.limit {
            return Err(Error::from(ErrorKind::FileTooLarge));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_size_is_that_of_the_text() {
        for value in [json!(null), json!({"a": [1, 2.5, "\"ä\n"]}), json!("")] {
            let length = value.to_string().len();
            assert_eq!(json_size(&value, usize::MAX), Some(length));
            assert_eq!(json_size(&value, length), Some(length));
            assert_eq!(json_size(&value, length - 1), None);
        }
    }
}
