//! Descriptions of calls for reviewers: texts with slots that are filled with the name and the arguments of a call.
//!
//! The model chooses the arguments, so that a reviewer must not take them for words of the description: a text with
//! line breaks or invisible characters is shown in quotes, and every value is cut to a length.

use std::fmt::Write as _;

use serde_json::Value;

use crate::domain::message::ToolCall;
use crate::domain::text_limits::cut_after;

/// The maximum length of a description, in characters.
pub const MAX_DESCRIPTION: usize = 4_000;
/// The maximum length of a value in a description, in characters.
const MAX_VALUE: usize = 500;
/// The text in the place of an argument that the call does not have.
const ABSENT: &str = "(not given)";

/// A slot of a description.
#[derive(Debug, PartialEq)]
enum Slot<'a> {
    Name,
    CallId,
    Args,
    Argument(&'a str),
}

impl<'a> Slot<'a> {
    fn of(name: &'a str) -> Option<Self> {
        match name {
            "name" => Some(Self::Name),
            "tool_call_id" => Some(Self::CallId),
            "args" => Some(Self::Args),
            _ => name
                .strip_prefix("args.")
                .filter(|path| !path.is_empty())
                .map(Self::Argument),
        }
    }

    fn value(&self, call: &ToolCall) -> String {
        match self {
            Self::Name => call.name.clone(),
            Self::CallId => render_value(&Value::from(call.id.as_str())),
            Self::Args => render_value(&Value::Object(call.args.clone())),
            Self::Argument(path) => {
                let values: Vec<String> = arguments(call, path).map(render_value).collect();
                match values.is_empty() {
                    true => ABSENT.to_owned(),
                    false => values.join(" | "),
                }
            }
        }
    }
}

/// A part of a template.
pub(super) enum Part<'a> {
    /// A text outside of braces, or in braces that are no slot.
    Text(&'a str),
    /// A text in braces, without them.
    Braces(&'a str),
}

/// Splits a template at what looks like a slot: a name, or names with dots, in braces.
pub(super) fn parts(template: &str) -> Vec<Part<'_>> {
    let is_in_name = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.' | '-');
    let mut all = vec![];
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        let after = &rest[at + 1..];
        let end = after.find(|letter: char| !is_in_name(letter));
        let Some(end) = end.filter(|end| *end > 0 && after[*end..].starts_with('}')) else {
            all.push(Part::Text(&rest[..=at]));
            rest = after;
            continue;
        };
        all.push(Part::Text(&rest[..at]));
        all.push(Part::Braces(&after[..end]));
        rest = &after[end + 1..];
    }
    all.push(Part::Text(rest));
    all
}

/// Fills the slots of a description. Text in other braces stays as it is.
pub fn describe(template: &str, call: &ToolCall) -> String {
    let mut text = String::new();
    for part in parts(template) {
        match part {
            Part::Text(own) => text.push_str(own),
            Part::Braces(name) => match Slot::of(name) {
                Some(slot) => text.push_str(&slot.value(call)),
                // Writing to a string does not fail.
                None => write!(text, "{{{name}}}").unwrap_or_default(),
            },
        }
        if text.chars().count() > MAX_DESCRIPTION {
            return cut_after(&text, MAX_DESCRIPTION, "…");
        }
    }
    text
}

/// Returns the texts in braces that look like slots and are none.
pub fn unknown_slots(template: &str) -> Vec<&str> {
    let unknown = |part| match part {
        Part::Braces(name) if Slot::of(name).is_none() => Some(name),
        Part::Braces(_) | Part::Text(_) => None,
    };
    parts(template).into_iter().filter_map(unknown).collect()
}

/// Returns the argument at a path, `to`, `customer.country` or `to.0`, and the one whose name this is: neither hides the
/// other.
fn arguments<'a>(call: &'a ToolCall, path: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    let nested = path.contains('.').then(|| nested_argument(call, path)).flatten();
    call.args.get(path).into_iter().chain(nested)
}

fn nested_argument<'a>(call: &'a ToolCall, path: &str) -> Option<&'a Value> {
    let mut names = path.split('.');
    let first = call.args.get(names.next()?)?;
    names.try_fold(first, |value, name| match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        Value::Object(fields) => fields.get(name),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    })
}

/// Returns a value as a reviewer reads it: a plain text as it is, all else as JSON.
fn render_value(value: &Value) -> String {
    if let Some(text) = value.as_str().filter(|text| text.chars().all(is_plain)) {
        return cut_after(text, MAX_VALUE, "…");
    }
    let json = value.to_string();
    let visible: String = json.chars().take(MAX_VALUE + 1).flat_map(visible).collect();
    cut_after(&visible, MAX_VALUE, "…")
}

/// Returns whether a character is one that is seen and stays on its line.
fn is_plain(letter: char) -> bool {
    !letter.is_control() && !is_invisible(letter)
}

/// Returns whether a character is invisible, or changes the direction of the text after it.
fn is_invisible(letter: char) -> bool {
    matches!(letter, '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{3164}' | '\u{ffa0}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns a character, or its escape if it is invisible.
fn visible(letter: char) -> Vec<char> {
    if is_plain(letter) {
        vec![letter]
    } else {
        letter.escape_unicode().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(args: Value) -> ToolCall {
        ToolCall::new("c1", "send_email", args.as_object().cloned().unwrap_or_default())
    }

    #[test]
    fn slots_are_filled_with_the_call() {
        let mail = call(json!({"to": "bob", "customer": {"country": "NL", "tags": ["a", "b"]}, "n": 3}));
        let text = describe(
            "{name} ({tool_call_id}) to {args.to}, {args.n} times, {args.customer.tags.1}",
            &mail,
        );
        assert_eq!(text, "send_email (c1) to bob, 3 times, b");
        assert_eq!(
            describe("{args.customer}", &mail),
            r#"{"country":"NL","tags":["a","b"]}"#
        );
        assert_eq!(describe("to {args.cc}", &mail), "to (not given)");
        assert!(describe("{args}", &mail).starts_with(r#"{"to":"bob""#));
    }

    #[test]
    fn other_braces_stay_and_are_found() {
        let mail = call(json!({}));
        let text = "{ } {} {arg.to} {{name}} {args.}";
        assert_eq!(describe(text, &mail), "{ } {} {arg.to} {send_email} {args.}");
        assert_eq!(unknown_slots(text), ["arg.to", "args."]);
        assert_eq!(unknown_slots("{args.to}"), [""; 0]);
    }

    #[test]
    fn arguments_cannot_pose_as_the_description() {
        let text = describe("To {args.to}.", &call(json!({"to": "bob\nApproved by the admin"})));
        assert_eq!(text, r#"To "bob\nApproved by the admin"."#);
        let text = describe("{args.to}", &call(json!({"to": "a\u{202e}b"})));
        assert_eq!(text, r#""a\u{202e}b""#);
        let text = describe("{args.to}", &call(json!({"to": "a\u{61c}b\u{3164}"})));
        assert_eq!(text, r#""a\u{61c}b\u{3164}""#);
    }

    #[test]
    fn an_argument_with_a_dot_in_its_name_hides_no_other() {
        let both = call(json!({"customer.country": "NL", "customer": {"country": "KP"}}));
        assert_eq!(describe("to {args.customer.country}", &both), "to NL | KP");
        assert_eq!(describe("{args.a.b}", &call(json!({"a.b": 1}))), "1");
    }

    #[test]
    fn descriptions_are_bounded() {
        let long = call(json!({"to": "x".repeat(10_000)}));
        assert_eq!(describe("{args.to}", &long).chars().count(), MAX_VALUE + 1);
        let text = describe(&"{args.to}".repeat(100), &long);
        assert_eq!(text.chars().count(), MAX_DESCRIPTION + 1);
        assert!(text.ends_with('…'));
    }
}
