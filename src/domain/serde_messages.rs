//! Readable messages for the errors of serde, whose own texts name Rust types.
//!
//! Values are not repeated unless they are enum values, since they may be secret.

use super::suggestion::suggestion;

/// Translates an error of serde to the terms of TOML; none if it is not about the type of a value.
pub fn for_toml(message: &str) -> Option<String> {
    if let Some((word, known)) = unknown(message, "unknown field `") {
        return Some(format!("unknown key; {}", suggestion(word, known, "allowed are")));
    }
    if let Some((word, known)) = unknown(message, "unknown variant `") {
        return Some(format!(
            "`{word}` is not allowed; {}",
            suggestion(word, known, "allowed are")
        ));
    }
    if let Some(name) = quoted(message, "missing field `") {
        return Some(format!("`{name}` must be given"));
    }
    if let Some(name) = quoted(message, "duplicate field `") {
        return Some(format!("`{name}` is given twice"));
    }
    if message.starts_with("data did not match any variant") {
        return Some("has none of the forms that are allowed here".to_owned());
    }
    if let Some((_, expected)) = split(message, "invalid value: ").or_else(|| split(message, "invalid length ")) {
        return Some(format!("must be {}", describe_type(expected)));
    }
    let (found, expected) = split(message, "invalid type: ")?;
    let found = found.split(['`', '"']).next().unwrap_or(found).trim();
    Some(format!(
        "must be {}, not {}",
        describe_type(expected),
        describe_type(found)
    ))
}

/// Translates a message for TOML to the terms of JSON. Text in backticks is quoted and stays the same.
pub fn for_json(words: &str) -> String {
    let parts = words.split('`').enumerate().map(|(at, part)| match at % 2 {
        0 => part
            .replace("a table", "an object")
            .replace("a text", "a string")
            .replace("must be a word", "must be a string")
            .replace("not nothing", "not null")
            .replace("a truth value", "true or false"),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("`")
}

fn split<'a>(message: &'a str, start: &str) -> Option<(&'a str, &'a str)> {
    message.strip_prefix(start)?.split_once(", expected ")
}

fn quoted<'a>(message: &'a str, start: &str) -> Option<&'a str> {
    Some(message.strip_prefix(start)?.split_once('`')?.0)
}

fn unknown<'a>(message: &'a str, start: &str) -> Option<(&'a str, Vec<&'a str>)> {
    let (word, rest) = message.strip_prefix(start)?.split_once('`')?;
    Some((word, rest.split('`').skip(1).step_by(2).collect()))
}

fn describe_type(word: &str) -> &str {
    match word {
        "map" | "a map" => "a table",
        "sequence" | "a sequence" => "a list",
        "a boolean" => "true or false",
        "boolean" => "a truth value",
        "string" | "a string" | "a borrowed string" | "a character" => "a text",
        "integer" | "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "floating point" => "a number with a fraction",
        "null" | "unit" | "unit value" => "nothing",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number from 0 up",
        "f32" | "f64" => "a number",
        "string only" | "string or map" => "a word",
        other if other.starts_with("struct ") => "a table",
        other if other.starts_with("tuple ") || other.starts_with("a tuple ") || other.starts_with("an array ") => {
            "a list of another length"
        }
        other if other.starts_with("enum ") || other.ends_with(" variant") => "a word",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_contain_no_terms_of_the_library() {
        for (message_of_serde, translated) in [
            (
                "invalid type: sequence, expected a map",
                "must be an object, not a list",
            ),
            (
                "invalid type: map, expected a sequence",
                "must be a list, not an object",
            ),
            (
                "invalid type: sequence, expected struct CommandBody",
                "must be an object, not a list",
            ),
            (
                "invalid type: string \"secret\", expected a boolean",
                "must be true or false, not a string",
            ),
            (
                "invalid type: integer `5`, expected a string",
                "must be a string, not a whole number",
            ),
            ("invalid type: null, expected i64", "must be a whole number, not null"),
            (
                "invalid type: floating point `1.5`, expected i64",
                "must be a whole number, not a number with a fraction",
            ),
            (
                "invalid value: integer `-1`, expected u8",
                "must be a whole number from 0 to 255",
            ),
            (
                "invalid length 0, expected struct Inner with 1 element",
                "must be an object",
            ),
            ("missing field `thread_ids`", "`thread_ids` must be given"),
            ("duplicate field `limit`", "`limit` is given twice"),
            (
                "unknown variant `rase`, expected `raise` or `do_nothing`",
                "`rase` is not allowed; did you mean `raise`? \
              allowed are: raise, do_nothing",
            ),
            (
                "data did not match any variant of untagged enum Ttl",
                "has none of the forms that are allowed here",
            ),
        ] {
            assert_eq!(
                for_toml(message_of_serde).map(|words| for_json(&words)).as_deref(),
                Some(translated),
                "{message_of_serde}"
            );
        }
        assert_eq!(for_toml("must be an IANA name"), None);
        assert_eq!(for_json("`a table` is a table"), "`a table` is an object");
    }
}
