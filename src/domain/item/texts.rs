//! Paths to the texts of an item's value that the vector index contains.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use crate::domain::Invalid;

/// The maximum length of a path, in bytes.
const MAX_PATH_BYTES: usize = 256;
/// The maximum number of paths for one item.
pub const MAX_PATHS: usize = 32;
/// The maximum number of texts of one item: as many as the embedding providers accept in one request.
pub const MAX_TEXTS: usize = 64;

/// A path to texts in a value: `$` is the whole value, `a.b` a field of a field, `list[0]` and `list[-1]` the first and
/// the last item, `list[*].name` a field of each item.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TextPath(Vec<PathStep>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum PathStep {
    Field(String),
    At(i64),
    Each,
}

impl TextPath {
    /// Parses a path.
    ///
    /// # Errors
    /// Returns the reason why the text is no valid path.
    pub fn read(text: &str) -> Result<Self, String> {
        if text.len() > MAX_PATH_BYTES || text.contains('\0') {
            return Err(format!("must be a path of at most {MAX_PATH_BYTES} bytes"));
        }
        let wrong = || format!("`{text}` must be a path, as in `$`, `title`, `author.name` or `notes[*].text`");
        let inner = match text.strip_prefix('$') {
            Some("") => return Ok(Self::default()),
            Some(rest) => rest.strip_prefix('.').ok_or_else(wrong)?,
            None => text,
        };
        let mut steps = vec![];
        for part in inner.split('.') {
            let (name, mut brackets) = part.split_at(part.find('[').unwrap_or(part.len()));
            if name.is_empty() {
                return Err(wrong());
            }
            steps.push(PathStep::Field(name.to_owned()));
            while !brackets.is_empty() {
                let (inside, rest) = brackets
                    .strip_prefix('[')
                    .and_then(|open| open.split_once(']'))
                    .ok_or_else(wrong)?;
                let step = if inside == "*" {
                    PathStep::Each
                } else {
                    PathStep::At(inside.parse().map_err(|_| wrong())?)
                };
                steps.push(step);
                brackets = rest;
            }
        }
        Ok(Self(steps))
    }

    /// Parses several paths.
    ///
    /// # Errors
    /// Returns the first invalid path, as an item of `field`.
    pub fn read_all(field: &str, texts: &[String]) -> Result<Vec<Self>, Invalid> {
        if texts.len() > MAX_PATHS {
            return Err(Invalid::new(field, format!("names more than {MAX_PATHS} fields")));
        }
        let read = |(at, text): (usize, &String)| {
            Self::read(text).map_err(|reason| Invalid::new(format!("{field}[{at}]"), reason))
        };
        texts.iter().enumerate().map(read).collect()
    }

    /// Adds the texts at this path to `found`, by their paths.
    fn collect(&self, value: &Value, found: &mut BTreeMap<String, String>) {
        walk(&self.0, value, String::new(), found);
    }
}

impl fmt::Display for TextPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("$");
        }
        for (at, step) in self.0.iter().enumerate() {
            match step {
                PathStep::Field(name) if at == 0 => f.write_str(name)?,
                PathStep::Field(name) => write!(f, ".{name}")?,
                PathStep::At(index) => write!(f, "[{index}]")?,
                PathStep::Each => f.write_str("[*]")?,
            }
        }
        Ok(())
    }
}

fn walk(steps: &[PathStep], value: &Value, path: String, found: &mut BTreeMap<String, String>) {
    let Some((step, rest)) = steps.split_first() else {
        if let Some(text) = text_of(value) {
            found.insert(if path.is_empty() { "$".to_owned() } else { path }, text);
        }
        return;
    };
    match (step, value) {
        (PathStep::Field(name), Value::Object(fields)) => {
            if let Some(inner) = fields.get(name) {
                let dot = if path.is_empty() { "" } else { "." };
                walk(rest, inner, format!("{path}{dot}{name}"), found);
            }
        }
        (PathStep::At(index), Value::Array(items)) => {
            let at = usize::try_from(*index).ok().or_else(|| {
                let back = usize::try_from(index.unsigned_abs()).ok()?;
                items.len().checked_sub(back)
            });
            if let Some((at, inner)) = at.and_then(|at| Some((at, items.get(at)?))) {
                walk(rest, inner, format!("{path}[{at}]"), found);
            }
        }
        (PathStep::Each, Value::Array(items)) => {
            for (at, inner) in items.iter().enumerate() {
                walk(rest, inner, format!("{path}[{at}]"), found);
            }
        }
        (PathStep::Field(_) | PathStep::At(_) | PathStep::Each, _) => {}
    }
}

/// Returns a value as text; none if it is empty.
fn text_of(value: &Value) -> Option<String> {
    let text = match value {
        Value::Null => return None,
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    };
    (!text.trim().is_empty()).then_some(text)
}

/// Returns the texts of `value` at `paths`, each with its path.
///
/// # Errors
/// Returns an error if there are too many.
pub fn texts(value: &Map<String, Value>, paths: &[TextPath]) -> Result<Vec<(String, String)>, Invalid> {
    let whole = Value::Object(value.clone());
    let mut found = BTreeMap::new();
    for path in paths {
        path.collect(&whole, &mut found);
    }
    if found.len() > MAX_TEXTS {
        let reason = format!("has {} texts to index, more than {MAX_TEXTS}", found.len());
        return Err(Invalid::new("value", reason));
    }
    Ok(found.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn places(paths: &[&str]) -> Vec<(String, String)> {
        let value = json!({"title": "Fish", "n": 7, "by": {"name": "al"}, "none": null, "blank": " ",
            "notes": [{"text": "one"}, {"text": "two"}, {}], "tags": ["a", "b"]});
        let paths: Vec<TextPath> = paths.iter().map(|path| TextPath::read(path).expect("a path")).collect();
        texts(value.as_object().expect("an object"), &paths).expect("few texts")
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
            .collect()
    }

    #[test]
    fn a_path_yields_texts_with_their_paths() {
        assert_eq!(
            places(&["title", "$.by.name", "n"]),
            pairs(&[("by.name", "al"), ("n", "7"), ("title", "Fish")])
        );
        assert_eq!(
            places(&["notes[*].text"]),
            pairs(&[("notes[0].text", "one"), ("notes[1].text", "two")])
        );
        assert_eq!(
            places(&["tags[-1]", "tags[1]", "tags[5]", "tags[-9]"]),
            pairs(&[("tags[1]", "b")])
        );
        assert_eq!(
            places(&["by", "tags"]),
            pairs(&[("by", r#"{"name":"al"}"#), ("tags", r#"["a","b"]"#)])
        );
        assert_eq!(places(&["none", "blank", "nowhere", "title.x", "by[0]"]), []);
        let whole = places(&["$"]);
        assert!(whole[0].0 == "$" && whole[0].1.contains("Fish"), "{whole:?}");
    }

    #[test]
    fn invalid_paths_are_refused() {
        for wrong in [
            "",
            ".",
            "a.",
            ".a",
            "$a",
            "a[",
            "a[x]",
            "a[0",
            "a[0]b",
            "[0]",
            &"a".repeat(300),
        ] {
            assert!(TextPath::read(wrong).is_err(), "{wrong}");
        }
        for path in ["$", "a.b[0][*].c", "a[-1]"] {
            assert_eq!(TextPath::read(path).expect("a path").to_string(), path);
        }
    }

    #[test]
    fn an_item_has_a_bounded_number_of_texts() {
        let value = json!({"tags": vec!["x"; 65]});
        let paths = [TextPath::read("tags[*]").expect("a path")];
        assert!(texts(value.as_object().expect("an object"), &paths).is_err());
    }
}
