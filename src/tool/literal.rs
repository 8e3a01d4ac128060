//! JSON values in the spellings of Python agents: Python literals, and JSON with spaces as `json.dumps` writes it.
//!
//! Clients show these texts and models are trained on them, so they are part of the wire format.

use std::fmt::Write;

use serde_json::{Number, Value};

/// Returns the value as a Python literal: `{'to': 'a@b.c', 'now': True, 'cc': None}`.
pub fn python(value: &Value) -> String {
    let mut text = String::new();
    write_python(&mut text, value);
    text
}

/// Returns the strings as a Python list: `['/a.txt', '/b.txt']`.
pub fn python_list<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = items.into_iter().map(quoted).collect();
    format!("[{}]", quoted.join(", "))
}

/// Returns the value as JSON with a space after each comma and colon: `{"to": "a@b.c", "now": true}`.
pub fn spaced_json(value: &Value) -> String {
    let mut text = String::new();
    write_spaced(&mut text, value);
    text
}

fn write_python(text: &mut String, value: &Value) {
    match value {
        Value::Null => text.push_str("None"),
        Value::Bool(true) => text.push_str("True"),
        Value::Bool(false) => text.push_str("False"),
        Value::Number(number) => text.push_str(&python_number(number)),
        Value::String(content) => text.push_str(&quoted(content)),
        Value::Array(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                text.push_str(if at == 0 { "" } else { ", " });
                write_python(text, item);
            }
            text.push(']');
        }
        Value::Object(fields) => {
            text.push('{');
            for (at, (name, field)) in fields.iter().enumerate() {
                text.push_str(if at == 0 { "" } else { ", " });
                text.push_str(&quoted(name));
                text.push_str(": ");
                write_python(text, field);
            }
            text.push('}');
        }
    }
}

/// Returns a number as Python prints it: an exponent has a sign and at least two digits.
fn python_number(number: &Number) -> String {
    let Some(float) = number.as_f64().filter(|_| !number.is_i64() && !number.is_u64()) else {
        return number.to_string();
    };
    let text = format!("{float:?}");
    let Some((mantissa, exponent)) = text.split_once('e') else {
        return text;
    };
    let (sign, digits) = exponent
        .strip_prefix('-')
        .map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// Returns a Python string literal: in single quotes, unless the text contains those and no double quotes.
fn quoted(content: &str) -> String {
    let quote = if content.contains('\'') && !content.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut text = String::with_capacity(content.len() + 2);
    text.push(quote);
    for letter in content.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            _ if letter == quote => text.extend(['\\', letter]),
            // Writing to a string cannot fail.
            _ if letter.is_control() => drop(write!(text, "\\x{:02x}", u32::from(letter))),
            _ => text.push(letter),
        }
    }
    text.push(quote);
    text
}

fn write_spaced(text: &mut String, value: &Value) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => text.push_str(&value.to_string()),
        Value::Array(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                text.push_str(if at == 0 { "" } else { ", " });
                write_spaced(text, item);
            }
            text.push(']');
        }
        Value::Object(fields) => {
            text.push('{');
            for (at, (name, field)) in fields.iter().enumerate() {
                text.push_str(if at == 0 { "" } else { ", " });
                write_spaced(text, &Value::String(name.clone()));
                text.push_str(": ");
                write_spaced(text, field);
            }
            text.push('}');
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_look_as_python_prints_them() {
        let cases = [
            (json!({"to": "a@b.c", "body": "hi"}), "{'to': 'a@b.c', 'body': 'hi'}"),
            (
                json!([true, false, null, 1, -2, 0.5]),
                "[True, False, None, 1, -2, 0.5]",
            ),
            (json!("it's"), "\"it's\""),
            (json!("it's \"so\""), "'it\\'s \"so\"'"),
            (json!("a\\b\n\t\u{1}é"), "'a\\\\b\\n\\t\\x01é'"),
            (json!([1e16, 0.00005, 2.0]), "[1e+16, 5e-05, 2.0]"),
            (json!({}), "{}"),
        ];
        for (value, expected) in cases {
            assert_eq!(python(&value), expected);
        }
    }

    #[test]
    fn spaced_json_is_json() {
        let value = json!({"to": "a \"b\"", "list": [1, null, {"x": true}]});
        assert_eq!(
            spaced_json(&value),
            r#"{"to": "a \"b\"", "list": [1, null, {"x": true}]}"#
        );
    }

    #[test]
    fn a_list_of_names_is_quoted() {
        assert_eq!(python_list(["/a.txt", "/it's"]), "['/a.txt', \"/it's\"]");
    }
}
