//! Incomplete JSON texts.

use serde_json::{Map, Value};

/// Reads arguments from an incomplete text. An incomplete part at the end is left out.
pub(super) fn arguments(text: &str) -> Map<String, Value> {
    let whole = JsonPrefix::of(text);
    let candidates = [whole.closed(text, text.len()), whole.closed(text, whole.safe)];
    candidates
        .iter()
        .find_map(|candidate| match serde_json::from_str(candidate) {
            Ok(Value::Object(arguments)) => Some(arguments),
            Ok(_) | Err(_) => None,
        })
        .unwrap_or_default()
}

/// The prefix of a JSON text: its open brackets, and the last position at which it could be closed.
struct JsonPrefix {
    open: Vec<u8>,
    in_text: bool,
    escaped: bool,
    safe: usize,
    open_at_safe: Vec<u8>,
}

impl JsonPrefix {
    fn of(text: &str) -> Self {
        let mut prefix = Self {
            open: vec![],
            in_text: false,
            escaped: false,
            safe: 0,
            open_at_safe: vec![],
        };
        for (at, byte) in text.bytes().enumerate() {
            prefix.take(at, byte);
        }
        prefix
    }

    fn take(&mut self, at: usize, byte: u8) {
        if self.in_text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_text = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => self.in_text = true,
            b'{' | b'[' => {
                self.open.push(if byte == b'{' { b'}' } else { b']' });
                self.mark(at + 1);
            }
            b'}' | b']' => {
                self.open.pop();
                self.mark(at + 1);
            }
            b',' => self.mark(at),
            _ => {}
        }
    }

    fn mark(&mut self, at: usize) {
        self.safe = at;
        self.open_at_safe.clone_from(&self.open);
    }

    /// The text up to `end`, with all brackets closed.
    fn closed(&self, text: &str, end: usize) -> String {
        let mut closed = text[..end].to_owned();
        let open = if end == self.safe {
            &self.open_at_safe
        } else {
            &self.open
        };
        if end == text.len() && self.in_text {
            if self.escaped {
                closed.pop();
            }
            closed.push('"');
        }
        closed.extend(open.iter().rev().map(|byte| char::from(*byte)));
        closed
    }
}

/// The length of a growing JSON text without the blanks between its parts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CompactLength {
    length: usize,
    in_text: bool,
    escaped: bool,
}

impl CompactLength {
    pub(super) fn take(&mut self, text: &str) {
        for byte in text.bytes() {
            if !self.in_text && byte.is_ascii_whitespace() {
                continue;
            }
            self.length += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_text => self.escaped = true,
                b'"' => self.in_text = !self.in_text,
                _ => {}
            }
        }
    }

    pub(super) fn length(self) -> usize {
        self.length
    }
}

/// The part of the JSON text `whole` after `prefix`, whose blanks may differ. `None` if `whole` does not start with
/// `prefix`.
pub(super) fn remainder<'a>(prefix: &str, whole: &'a str) -> Option<&'a str> {
    if prefix.is_empty() {
        return Some(whole);
    }
    if serde_json::from_str::<Value>(prefix).is_ok() {
        return Some("");
    }
    let mut rest = whole;
    let mut in_text = false;
    let mut escaped = false;
    for letter in prefix.chars() {
        if !in_text && letter.is_ascii_whitespace() {
            continue;
        }
        rest = rest.strip_prefix(letter)?;
        match letter {
            _ if escaped => escaped = false,
            '\\' if in_text => escaped = true,
            '"' => in_text = !in_text,
            _ => {}
        }
    }
    Some(rest)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn incomplete_arguments_are_read_as_far_as_possible() {
        let cases = [
            ("", json!({})),
            ("{\"que", json!({})),
            ("{\"query\":", json!({})),
            ("{\"query\": \"q", json!({"query": "q"})),
            ("{\"query\": \"a\\", json!({"query": "a"})),
            ("{\"a\": 1, \"b", json!({"a": 1})),
            ("{\"a\": [1, {\"b\": \"c\"", json!({"a": [1, {"b": "c"}]})),
            ("{\"a\": [1], \"b\":", json!({"a": [1]})),
            ("{\"a\": \"x\"}", json!({"a": "x"})),
        ];
        for (text, expected) in cases {
            assert_eq!(Value::Object(arguments(text)), expected, "{text}");
        }
    }

    #[test]
    fn the_compact_length_ignores_blanks_between_parts() {
        let mut dense = CompactLength::default();
        for piece in ["{ \"a", "\": \"x \\\" y", "\", \"b\": [1, ", "2]}"] {
            dense.take(piece);
        }
        assert_eq!(dense.length(), "{\"a\":\"x \\\" y\",\"b\":[1,2]}".len());
    }

    #[test]
    fn the_remainder_continues_a_prefix_with_any_spacing() {
        let whole = "{\"a\":\"x y\",\"b\":[1,2]}";
        let cases = [
            ("", Some(whole)),
            ("{\"a\": \"x", Some(" y\",\"b\":[1,2]}")),
            ("{ \"a\": \"x y\", \"b\": [1, ", Some("2]}")),
            ("{\"a\": \"x y\", \"b\": [1, 2]}", Some("")),
            ("{\"c", None),
        ];
        for (prefix, expected) in cases {
            assert_eq!(remainder(prefix, whole), expected, "{prefix}");
        }
    }
}
