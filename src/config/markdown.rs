//! A Markdown file with front matter: settings in YAML between two `---` lines, and the text below.

use serde_json::{Map, Value};

use super::problem::{Positions, Problem};
use crate::definition::FieldPath;
use crate::definition::front_matter::{self, FrontMatter};

/// The content of such a file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Markdown {
    /// The settings.
    pub(super) settings: Map<String, Value>,
    /// The positions of the top-level settings.
    pub(super) positions: Positions,
    /// The text, trimmed.
    pub(super) body: String,
}

/// Parses a file. A file without front matter is all text.
///
/// # Errors
/// If the front matter does not end, or is not a YAML mapping.
pub(super) fn parse(file: &str, text: &str) -> Result<Markdown, Problem> {
    match FrontMatter::of(text) {
        FrontMatter::Missing { body } => Ok(Markdown {
            body: body.trim().to_owned(),
            ..Markdown::default()
        }),
        FrontMatter::Open => {
            Err(Problem::in_file(file, "the settings at the top must end with a line `---`").at(Some((1, 1))))
        }
        FrontMatter::Present { yaml, body } => {
            let settings = settings(file, yaml)?;
            let positions = positions(yaml, 2);
            Ok(Markdown {
                settings,
                positions,
                body: body.trim().to_owned(),
            })
        }
    }
}

fn settings(file: &str, yaml: &str) -> Result<Map<String, Value>, Problem> {
    mapping(file, yaml, "the settings at the top", 1)
}

/// Parses a YAML mapping that begins after `before` lines of its file. `subject` begins the error message.
///
/// # Errors
/// If it is not a YAML mapping.
pub(super) fn mapping(file: &str, yaml: &str, subject: &str, before: usize) -> Result<Map<String, Value>, Problem> {
    if yaml.trim().is_empty() {
        return Ok(Map::new());
    }
    match front_matter::yaml(yaml) {
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
            // The position in the message is relative to the YAML and would be misleading.
            let message = message.split(" at line ").next().unwrap_or(message);
            Err(Problem::in_file(file, format!("{subject} cannot be read as YAML: {message}")).at(position))
        }
    }
}

/// Returns the lines of the top-level settings: those that start with a name and a colon.
///
/// `first` is the number of the first line of `yaml` in its file.
pub(super) fn positions(yaml: &str, first: usize) -> Positions {
    let mut positions = Positions::new();
    for (at, line) in yaml.lines().enumerate() {
        let name = line
            .split_once(':')
            .map(|(name, _)| name.trim_end().trim_matches(['"', '\'']));
        if let Some(name) = name.filter(|_| !line.starts_with([' ', '\t', '#', '-'])) {
            positions.entry(FieldPath::of([name])).or_insert((at + first, 1));
        }
    }
    positions
}
