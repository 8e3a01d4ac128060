//! The limits of JSON that comes from outside: how deeply a document nests and how many values it holds.
//!
//! One pair of numbers holds for everybody: clients, models, tools, MCP servers, remote agents and files. The depth is far
//! below what the reader of stored columns allows (128 levels), so that what was accepted, with the few levels of its
//! envelope, can be read back. [`scan`] judges a text before anything is allocated for it; [`check`] judges a value that
//! somebody else has parsed.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Invalid;
use super::field_path::{FieldPath, Segment};

/// How many levels a document may nest; a text or a number nests 0.
pub const MAX_DEPTH: usize = 64;
/// How many values a document may hold, containers and keys of objects included.
pub const MAX_VALUES: usize = 200_000;

/// Why a document is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitExceeded {
    /// It nests deeper than [`MAX_DEPTH`].
    Depth,
    /// It holds more values than [`MAX_VALUES`].
    Values,
    /// A text in it contains U+0000, which Postgres cannot store.
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
    /// The same as a refusal of `field`.
    pub fn of(self, field: impl Into<String>) -> Invalid {
        Invalid::new(field, self.to_string())
    }
}

/// What one JSON value takes beside its text, in bytes: about what it takes parsed, with the copies that are made of it on
/// its way.
pub const VALUE_BYTES: usize = 128;

/// How many JSON values may begin in a piece of a text. Texts with commas count for more than they hold.
pub fn count_values(piece: &[u8]) -> usize {
    piece
        .iter()
        .filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{'))
        .count()
}

/// About how much memory a JSON text takes with what is parsed of it, in bytes.
pub fn parsed_bytes(text: &str) -> usize {
    text.len() + count_values(text.as_bytes()) * VALUE_BYTES
}

/// Judges the text of a JSON document without parsing it, in one pass and without allocating.
///
/// A text that is no JSON passes or fails by chance; the parser that comes next refuses it.
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
    // Told last: whoever replaces it or names its place has to read the document.
    if has_nul { Err(LimitExceeded::Nul) } else { Ok(()) }
}

/// Judges a value. It is walked without recursion, so its own depth cannot exhaust the stack.
///
/// # Errors
/// A limit that the value exceeds.
pub fn check(value: &Value) -> Result<(), LimitExceeded> {
    check_to(value, MAX_DEPTH)
}

/// The same with another limit of the depth.
///
/// # Errors
/// A limit that the value exceeds.
pub fn check_to(value: &Value, most: usize) -> Result<(), LimitExceeded> {
    let mut values = 0_usize;
    let mut open = vec![(value, 0_usize)];
    while let Some((value, depth)) = open.pop() {
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
    }
    Ok(())
}

/// How many levels an outside party may put around what is kept of its answer: the envelopes of protocols, the fields of
/// a state. What is kept is judged by itself, by [`MAX_DEPTH`].
const ENVELOPE: usize = 16;

/// Why the JSON of an outside party is refused. It follows on "the answer".
#[derive(Debug, thiserror::Error)]
pub enum ForeignJsonError {
    /// It exceeds a limit.
    #[error("{0}")]
    Limit(LimitExceeded),
    /// It is no JSON, or not of the expected form.
    #[error("is not JSON ({0})")]
    Form(#[from] serde_json::Error),
}

/// Reads the JSON of a tool, an MCP server or a remote agent: within the limits, with U+FFFD in the place of U+0000.
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

/// Judges a value of an outside party, and puts U+FFFD in the place of U+0000. As [`check`], it does not recurse.
///
/// # Errors
/// A limit that the value exceeds; never [`LimitExceeded::Nul`].
pub fn admit(value: &mut Value) -> Result<(), LimitExceeded> {
    admit_to(value, MAX_DEPTH)
}

fn admit_to(value: &mut Value, most: usize) -> Result<(), LimitExceeded> {
    let mut values = 0_usize;
    let mut open = vec![(value, 0_usize)];
    while let Some((value, depth)) = open.pop() {
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
    }
    Ok(())
}

/// Puts U+FFFD in the place of U+0000.
pub fn replace_nul(text: &mut String) {
    if text.contains('\0') {
        *text = text.replace('\0', "\u{fffd}");
    }
}

/// The text with U+FFFD in the place of U+0000.
#[must_use]
pub fn without_nul(mut text: String) -> String {
    replace_nul(&mut text);
    text
}

/// Where in a value the character U+0000 stands first, as `messages[0].content`; none if it is nowhere. A key that contains
/// it has U+FFFD in its place. As [`check`], it does not recurse.
pub fn find_nul(value: &Value) -> Option<FieldPath> {
    let mut place = FieldPath::default();
    let mut open = vec![(value, 0, None)];
    while let Some((value, depth, segment)) = open.pop() {
        place.0.truncate(depth);
        place.0.extend(segment);
        let below = place.0.len();
        match value {
            Value::String(text) if text.contains('\0') => return Some(place),
            Value::Array(items) => {
                let items = items.iter().enumerate().rev();
                open.extend(items.map(|(at, item)| (item, below, Some(Segment::Index(at)))));
            }
            Value::Object(fields) => {
                let segment = |key: &String| Segment::Key(without_nul(key.clone()));
                if let Some(key) = fields.keys().find(|key| key.contains('\0')) {
                    return Some(place.then(segment(key)));
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
    fn the_character_zero_is_found_in_keys_and_texts_and_only_there() {
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
    fn of_an_outside_party_the_character_zero_is_replaced_and_the_limits_hold_around_an_envelope() {
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
    fn the_place_of_the_character_zero_is_told() {
        let place = |text: &str| find_nul(&serde_json::from_str(text).unwrap()).map(|place| place.to_string());
        assert_eq!(place(r#"{"a": [1, {"b": "x\u0000"}]}"#).as_deref(), Some("a[1].b"));
        assert_eq!(place(r#"{"a": {"b\u0000": 1}}"#).as_deref(), Some("a.\"b\u{fffd}\""));
        assert_eq!(place(r#"{"a": "fine"}"#), None);
    }
}
