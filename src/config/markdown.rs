//! A Markdown file with settings at its top: YAML between two `---` lines, and the text below.

use serde_json::{Map, Value};

use super::problem::{Places, Problem};
use crate::domain::definition::FieldPath;

/// What such a file says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Markdown {
    /// The settings.
    pub(super) settings: Map<String, Value>,
    /// Where the settings of the outermost level are.
    pub(super) places: Places,
    /// The text, without white space around it.
    pub(super) body: String,
}

/// Takes a file apart. A file without settings is all text.
///
/// # Errors
/// When the settings do not end, or are no YAML of names and values.
pub(super) fn parse(file: &str, text: &str) -> Result<Markdown, Problem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.split_inclusive('\n');
    let Some(first) = lines.next().filter(|line| line.trim_end() == "---") else {
        return Ok(Markdown { body: text.trim().to_owned(), ..Markdown::default() });
    };
    let mut end = first.len();
    for line in lines {
        if line.trim_end() == "---" {
            let (yaml, rest) = (text.get(first.len()..end), text.get(end + line.len()..));
            let settings = settings(file, yaml.unwrap_or_default())?;
            let places = places(yaml.unwrap_or_default(), 2);
            return Ok(Markdown { settings, places, body: rest.unwrap_or_default().trim().to_owned() });
        }
        end += line.len();
    }
    Err(Problem::in_file(file, "the settings at the top must end with a line `---`").at(Some((1, 1))))
}

fn settings(file: &str, yaml: &str) -> Result<Map<String, Value>, Problem> {
    mapping(file, yaml, "the settings at the top", 1)
}

/// Reads YAML of names and values that begins after so many lines of its file. `subject` begins the sentence that says
/// what is wrong.
///
/// # Errors
/// When it is no YAML, or not of names and values.
pub(super) fn mapping(file: &str, yaml: &str, subject: &str, before: usize) -> Result<Map<String, Value>, Problem> {
    if yaml.trim().is_empty() {
        return Ok(Map::new());
    }
    // Only `true` and `false` are truth values: a reviewer named `no` shall keep the name.
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    match serde_saphyr::from_str_with_options(yaml, options) {
        Ok(Value::Object(settings)) => Ok(settings),
        Ok(_) => {
            let message = format!("{subject} must be names and values (`name: value`)");
            Err(Problem::in_file(file, message).at(Some((before + 1, 1))))
        }
        Err(error) => {
            let position = error.location().map(|place| {
                let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
                (number(place.line()).saturating_add(before), number(place.column()))
            });
            let text = error.without_snippet().to_string();
            let message = text.lines().next().unwrap_or_default();
            // The position there is counted from the first setting and would only confuse.
            let message = message.split(" at line ").next().unwrap_or(message);
            Err(Problem::in_file(file, format!("{subject} cannot be read as YAML: {message}")).at(position))
        }
    }
}

/// The lines on which settings begin: those that start with a name and a colon.
///
/// `first` is the number of the first line of `yaml` in its file.
pub(super) fn places(yaml: &str, first: usize) -> Places {
    let mut places = Places::new();
    for (at, line) in yaml.lines().enumerate() {
        let name = line.split_once(':').map(|(name, _)| name.trim_end().trim_matches(['"', '\'']));
        if let Some(name) = name.filter(|_| !line.starts_with([' ', '\t', '#', '-'])) {
            places.entry(FieldPath::of([name])).or_insert((at + first, 1));
        }
    }
    places
}
