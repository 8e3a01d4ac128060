//! The limits of JSON from outside: the nesting of a document and the number of its values.
//!
//! The same limits apply to clients, models, tools, MCP servers, remote agents and files. The maximum nesting is well
//! below that of the parser for stored columns (128 levels), so that an accepted document can be read back with its
//! envelope. [`scan`] checks a text before anything is allocated for it; [`check`] checks a parsed value.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Invalid;
use super::field_path::{FieldPath, Segment};

/// The maximum nesting of a document; a text or a number has nesting 0.
pub const MAX_DEPTH: usize = 64;
/// The maximum number of values in a document, including containers and the keys of objects.
pub const MAX_VALUES: usize = 200_000;

/// The limit that a document exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitExceeded {
    /// The nesting exceeds [`MAX_DEPTH`].
    Depth,
    /// The number of values exceeds [`MAX_VALUES`].
    Values,
    /// A text contains U+0000, which Postgres cannot store.
    Nul,
}

impl fmt::Display for LimitExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Depth => write!(f, "nests deeper than {MAX_DEPTH} levels"),
            Self::Values => write!(f, "holds more than {MAX_VALUES} values"),
            Self::Nul => f.write_str("contains the character U+0000, which cannot be stored"),
        }
    }
}

impl LimitExceeded {
    /// Converts the error into one about `field`.
    pub fn of(self, field: impl Into<String>) -> Invalid {
        Invalid::new(field, self.to_string())
    }
}

/// The memory for one JSON value in addition to its text, in bytes: about the size of the parsed value with the
/// copies that are made of it.
pub const VALUE_BYTES: usize = 128;

/// Returns the maximum number of JSON values that may begin in a piece of text. Commas inside of strings are counted,
/// too.
pub fn count_values(piece: &[u8]) -> usize {
    piece
        .iter()
        .filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{'))
        .count()
}

/// Returns the approximate memory for a JSON text and its parsed value, in bytes.
pub fn parsed_bytes(text: &str) -> usize {
    text.len() + count_values(text.as_bytes()) * VALUE_BYTES
}

/// Checks a JSON text without parsing it, in one pass and without allocating.
///
/// The result for a text that is not JSON is arbitrary; the parser rejects it later.
///
/// # Errors
/// The first limit that the document exceeds.
pub fn scan(text: &[u8]) -> Result<(), LimitExceeded> {
    scan_to(text, MAX_DEPTH)
}

fn scan_to(text: &[u8], most: usize) -> Result<(), LimitExceeded> {
    let mut depth = 0_usize;
    let mut values = 1_usize;
    let mut bytes = text.iter().copied().enumerate();
    let mut in_string = false;
    let mut has_nul = false;
    while let Some((at, byte)) = bytes.next() {
        if in_string {
            match byte {
                b'"' => in_string = false,
                b'\\' => {
                    let escape = bytes.next().map(|(_, escaped)| escaped);
                    has_nul |= escape == Some(b'u') && text[at..].starts_with(b"\\u0000");
                }
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                values += 1;
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' | b':' => values += 1,
            _ => {}
        }
        if depth > most {
            return Err(LimitExceeded::Depth);
        }
        if values > MAX_VALUES {
            return Err(LimitExceeded::Values);
        }
    }
    // Returned last, because callers that replace or locate the character have to parse the document.
    if has_nul { Err(LimitExceeded::Nul) } else { Ok(()) }
}

/// Checks a value. It does not recurse, so a deeply nested value cannot exhaust the stack.
///
/// # Errors
/// The limit that the value exceeds.
pub fn check(value: &Value) -> Result<(), LimitExceeded> {
    check_to(value, MAX_DEPTH)
}

/// Checks a value against another maximum nesting.
///
/// # Errors
/// The limit that the value exceeds.
pub fn check_to(value: &Value, most: usize) -> Result<(), LimitExceeded> {
    let mut values = 0_usize;
    // Most values have no others in them, and need no list.
    let mut open = Vec::new();
    let mut next = Some((value, 0_usize));
    while let Some((value, depth)) = next {
        values += 1;
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => {
                values += fields.len();
                if fields.keys().any(|key| key.contains('\0')) {
                    return Err(LimitExceeded::Nul);
                }
                open.extend(fields.values().map(|value| (value, depth + 1)));
            }
            Value::String(text) if text.contains('\0') => return Err(LimitExceeded::Nul),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        let is_container = value.is_array() || value.is_object();
        if is_container && depth + 1 > most {
            return Err(LimitExceeded::Depth);
        }
        if values > MAX_VALUES || open.len() > MAX_VALUES {
            return Err(LimitExceeded::Values);
        }
        next = open.pop();
    }
    Ok(())
}

/// The number of levels that protocol envelopes and state fields may add around an outside value. The value itself is
/// checked against [`MAX_DEPTH`].
const ENVELOPE: usize = 16;

/// The error for JSON from an outside party. The text continues "the answer".
#[derive(Debug, thiserror::Error)]
pub enum ForeignJsonError {
    /// The JSON exceeds a limit.
    #[error("{0}")]
    Limit(LimitExceeded),
    /// The text is not JSON, or has an unexpected form.
    #[error("is not JSON ({0})")]
    Form(#[from] serde_json::Error),
}

/// Parses the JSON of a tool, an MCP server or a remote agent, within the limits. U+0000 is replaced by U+FFFD.
///
/// # Errors
/// See [`ForeignJsonError`].
pub fn read_foreign<T: DeserializeOwned>(text: &[u8]) -> Result<T, ForeignJsonError> {
    match scan_to(text, MAX_DEPTH + ENVELOPE) {
        Ok(()) => Ok(serde_json::from_slice(text)?),
        Err(LimitExceeded::Nul) => {
            let mut value: Value = serde_json::from_slice(text)?;
            admit_to(&mut value, MAX_DEPTH + ENVELOPE).map_err(ForeignJsonError::Limit)?;
            Ok(T::deserialize(value)?)
        }
        Err(exceeded) => Err(ForeignJsonError::Limit(exceeded)),
    }
}

/// Checks a value from an outside party and replaces U+0000 by U+FFFD. Like [`check`], it does not recurse.
///
/// # Errors
/// The limit that the value exceeds; never [`LimitExceeded::Nul`].
pub fn admit(value: &mut Value) -> Result<(), LimitExceeded> {
    admit_to(value, MAX_DEPTH)
}

fn admit_to(value: &mut Value, most: usize) -> Result<(), LimitExceeded> {
    let mut values = 0_usize;
    let mut open = Vec::new();
    let mut next = Some((value, 0_usize));
    while let Some((value, depth)) = next {
        values += 1;
        let is_container = value.is_array() || value.is_object();
        if is_container && depth + 1 > most {
            return Err(LimitExceeded::Depth);
        }
        match value {
            Value::Array(items) => open.extend(items.iter_mut().map(|item| (item, depth + 1))),
            Value::Object(fields) => {
                values += fields.len();
                if fields.keys().any(|key| key.contains('\0')) {
                    let renamed = std::mem::take(fields)
                        .into_iter()
                        .map(|(key, value)| (without_nul(key), value));
                    *fields = renamed.collect();
                }
                open.extend(fields.values_mut().map(|value| (value, depth + 1)));
            }
            Value::String(text) => replace_nul(text),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        if values > MAX_VALUES || open.len() > MAX_VALUES {
            return Err(LimitExceeded::Values);
        }
        next = open.pop();
    }
    Ok(())
}

/// Replaces U+0000 by U+FFFD.
pub fn replace_nul(text: &mut String) {
    if text.contains('\0') {
        *text = text.replace('\0', "\u{fffd}");
    }
}

/// Returns the text with U+0000 replaced by U+FFFD.
#[must_use]
pub fn without_nul(mut text: String) -> String {
    replace_nul(&mut text);
    text
}

/// Returns the path of the first U+0000 in a value, as in `messages[0].content`. In a key it is replaced by U+FFFD.
/// Like [`check`], it does not recurse.
pub fn find_nul(value: &Value) -> Option<FieldPath> {
    let mut path = FieldPath::default();
    let mut open = vec![(value, 0, None)];
    while let Some((value, depth, segment)) = open.pop() {
        path.0.truncate(depth);
        path.0.extend(segment);
        let below = path.0.len();
        match value {
            Value::String(text) if text.contains('\0') => return Some(path),
            Value::Array(items) => {
                let items = items.iter().enumerate().rev();
                open.extend(items.map(|(at, item)| (item, below, Some(Segment::Index(at)))));
            }
            Value::Object(fields) => {
                let segment = |key: &String| Segment::Key(without_nul(key.clone()));
                if let Some(key) = fields.keys().find(|key| key.contains('\0')) {
                    return Some(path.then(segment(key)));
                }
                open.extend(
                    fields
                        .iter()
                        .rev()
                        .map(|(key, value)| (value, below, Some(segment(key)))),
                );
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> String {
        format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels))
    }

    #[test]
    fn a_document_of_the_greatest_depth_is_accepted_and_one_level_more_is_not() {
        let deepest = nested(MAX_DEPTH);
        assert_eq!(scan(deepest.as_bytes()), Ok(()));
        assert_eq!(check(&serde_json::from_str(&deepest).unwrap()), Ok(()));
        let deeper = nested(MAX_DEPTH + 1);
        assert_eq!(scan(deeper.as_bytes()), Err(LimitExceeded::Depth));
        assert_eq!(
            check(&serde_json::from_str(&deeper).unwrap()),
            Err(LimitExceeded::Depth)
        );
    }

    #[test]
    fn brackets_in_texts_do_not_count() {
        let text = format!("{:?}", "[{\"".repeat(1000));
        assert_eq!(scan(text.as_bytes()), Ok(()));
    }

    #[test]
    fn a_document_of_too_many_values_is_refused() {
        let many = format!("[{}0]", "0,".repeat(MAX_VALUES));
        assert_eq!(scan(many.as_bytes()), Err(LimitExceeded::Values));
        assert_eq!(check(&serde_json::from_str(&many).unwrap()), Err(LimitExceeded::Values));
        let few = format!("[{}0]", "0,".repeat(1000));
        assert_eq!(scan(few.as_bytes()), Ok(()));
    }

    #[test]
    fn nul_is_found_in_keys_and_texts_only() {
        for text in ["\"a\\u0000b\"", "{\"\\u0000\":1}"] {
            assert_eq!(scan(text.as_bytes()), Err(LimitExceeded::Nul), "{text}");
            assert_eq!(
                check(&serde_json::from_str(text).unwrap()),
                Err(LimitExceeded::Nul),
                "{text}"
            );
        }
        let escaped_backslash = r#""\\u0000""#;
        assert_eq!(scan(escaped_backslash.as_bytes()), Ok(()));
        assert_eq!(check(&serde_json::from_str(escaped_backslash).unwrap()), Ok(()));
    }

    #[test]
    fn outside_json_has_its_nul_replaced_and_may_be_in_an_envelope() {
        let read: Value = read_foreign(b"{\"a\\u0000\": [\"x\\u0000y\"]}").unwrap();
        assert_eq!(read, serde_json::json!({"a\u{fffd}": ["x\u{fffd}y"]}));
        assert!(read_foreign::<Value>(nested(MAX_DEPTH + ENVELOPE).as_bytes()).is_ok());
        let deeper = nested(MAX_DEPTH + ENVELOPE + 1);
        assert_eq!(
            read_foreign::<Value>(deeper.as_bytes()).unwrap_err().to_string(),
            "nests deeper than 64 levels"
        );
        let hidden = deeper.replace('1', "\"\\u0000\"");
        assert_eq!(
            read_foreign::<Value>(hidden.as_bytes()).unwrap_err().to_string(),
            "nests deeper than 64 levels"
        );
        let mut kept: Value = serde_json::from_str(&nested(MAX_DEPTH)).unwrap();
        assert_eq!(admit(&mut kept), Ok(()));
        let mut refused: Value = serde_json::from_str(&nested(MAX_DEPTH + 1)).unwrap();
        assert_eq!(admit(&mut refused), Err(LimitExceeded::Depth));
    }

    #[test]
    fn the_path_of_nul_is_returned() {
        let path = |text: &str| find_nul(&serde_json::from_str(text).unwrap()).map(|path| path.to_string());
        assert_eq!(path(r#"{"a": [1, {"b": "x\u0000"}]}"#).as_deref(), Some("a[1].b"));
        assert_eq!(path(r#"{"a": {"b\u0000": 1}}"#).as_deref(), Some("a.\"b\u{fffd}\""));
        assert_eq!(path(r#"{"a": "fine"}"#), None);
    }
}
