//! Skills: folders with instructions for one kind of task, described by the front matter of their `SKILL.md`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::front_matter::{self, FrontMatter};
use crate::domain::text_limits::first_chars;

/// The name of the file that makes a folder a skill.
pub const FILE: &str = "SKILL.md";
/// The maximum size of a `SKILL.md`, in bytes.
pub const LARGEST: usize = 1024 * 1024;
/// The maximum size of the front matter, in bytes.
const MAX_FRONT_MATTER_BYTES: usize = 64 * 1024;
/// The maximum length of a name, in characters.
const MAX_NAME_CHARS: usize = 64;
/// The maximum length of a description, in characters; the rest is cut off.
const MAX_DESCRIPTION_CHARS: usize = 1_024;
/// The maximum length of `compatibility`, in characters; the rest is cut off.
const MAX_COMPATIBILITY_CHARS: usize = 500;
/// The key of `metadata` with the names of tools that the skill discloses.
const INCLUDE_TOOLS: &str = "include_tools";

/// The front matter of a skill.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Skill {
    /// The name.
    pub name: String,
    /// The description, by which a model chooses the skill.
    pub description: String,
    /// The absolute path of the `SKILL.md`.
    pub path: String,
    /// The licence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// The requirements on the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compatibility: Option<String>,
    /// Additional metadata.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// The tools for which the skill is written. Shown, not enforced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_tools: Vec<String>,
    /// The tools that are hidden until the model has read the skill.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include_tools: Vec<String>,
}

impl Skill {
    /// Parses the text of the `SKILL.md` at `path`. Also returns warnings.
    ///
    /// # Errors
    /// Returns the reason why the file is no skill, continuing "the file …".
    pub fn read(path: &str, text: &str) -> Result<(Self, Vec<String>), String> {
        if text.len() > LARGEST {
            return Err(format!("has more than {LARGEST} bytes"));
        }
        let FrontMatter::Present { yaml, .. } = FrontMatter::of(text) else {
            return Err("must begin with settings between two lines `---`".to_owned());
        };
        let fields = parse_front_matter(yaml)?;
        let mut warnings = vec![];
        let name = required(&fields, "name")?;
        warnings.extend(name_warning(&name, path));
        let name = first_chars(&name, MAX_NAME_CHARS).to_owned();
        let described = required(&fields, "description")?;
        let description = first_chars(&described, MAX_DESCRIPTION_CHARS).to_owned();
        if description != described {
            warnings.push(format!(
                "its `description` is cut off after {MAX_DESCRIPTION_CHARS} characters"
            ));
        }
        let compatibility =
            scalar_text(fields.get("compatibility")).map(|text| first_chars(&text, MAX_COMPATIBILITY_CHARS).to_owned());
        let metadata = fields.get("metadata").and_then(Value::as_object);
        let pairs = metadata.into_iter().flatten().filter(|(key, _)| *key != INCLUDE_TOOLS);
        let skill = Self {
            name,
            description,
            path: path.to_owned(),
            license: scalar_text(fields.get("license")),
            compatibility,
            metadata: pairs
                .filter_map(|(key, value)| Some((key.clone(), scalar_text(Some(value))?)))
                .collect(),
            allowed_tools: names(fields.get("allowed-tools")),
            include_tools: names(metadata.and_then(|metadata| metadata.get(INCLUDE_TOOLS))),
        };
        Ok((skill, warnings))
    }
}

/// Returns the instructions of a skill: its text without the front matter.
pub fn instructions(text: &str) -> &str {
    match FrontMatter::of(text) {
        FrontMatter::Present { body, .. } | FrontMatter::Missing { body } => body.trim(),
        FrontMatter::Open => text.trim(),
    }
}

fn parse_front_matter(yaml: &str) -> Result<Map<String, Value>, String> {
    if yaml.len() > MAX_FRONT_MATTER_BYTES {
        return Err(format!("has more than {MAX_FRONT_MATTER_BYTES} bytes of front matter"));
    }
    match front_matter::yaml(yaml) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err("must have names and values in its front matter (`name: value`)".to_owned()),
        Err(error) => {
            let text = error.without_snippet().to_string();
            Err(format!(
                "has front matter that is no YAML: {}",
                text.lines().next().unwrap_or_default()
            ))
        }
    }
}

fn required(fields: &Map<String, Value>, key: &str) -> Result<String, String> {
    let text = scalar_text(fields.get(key)).filter(|text| !text.is_empty());
    text.ok_or_else(|| format!("must have a `{key}` in its front matter"))
}

/// Returns a scalar as text, on one line.
fn scalar_text(value: Option<&Value>) -> Option<String> {
    let text = match value? {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(truth) => truth.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    };
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Returns a list of names, given as a list or as text separated by spaces or commas.
fn names(value: Option<&Value>) -> Vec<String> {
    let words = |text: &str| -> Vec<String> {
        let parts = text.split(|c: char| c == ',' || c.is_whitespace());
        parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    match value {
        Some(Value::String(text)) => words(text),
        Some(Value::Array(items)) => items.iter().filter_map(|item| scalar_text(Some(item))).collect(),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => vec![],
    }
}

/// Returns a warning about a name, given the path of its file.
fn name_warning(name: &str, path: &str) -> Option<String> {
    let folder = path.rsplit('/').nth(1).unwrap_or_default();
    let is_plain = (1..=MAX_NAME_CHARS).contains(&name.chars().count())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if !is_plain {
        return Some(format!(
            "its `name` should be 1 to {MAX_NAME_CHARS} of a-z, 0-9 and `-`"
        ));
    }
    (name != folder).then(|| format!("its `name` should be that of its folder, `{folder}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/skills/web-research/SKILL.md";

    fn read(fields: &str) -> Result<(Skill, Vec<String>), String> {
        Skill::read(PATH, &format!("---\n{fields}\n---\n\nLook around.\n"))
    }

    #[test]
    fn the_front_matter_describes_the_skill() {
        let (skill, warnings) = read(
            "name: web-research\ndescription: |\n  Finds\n  sources.\nlicense: MIT\ncompatibility: needs a network\n\
             allowed-tools: lookup, send_email grep\nmetadata:\n  author: ann\n  version: 1.5\n  include_tools: [publish]",
        )
        .expect("a skill");
        assert_eq!(warnings, [""; 0]);
        assert_eq!(skill.name.as_str(), "web-research");
        assert_eq!(skill.description.as_str(), "Finds sources.");
        assert_eq!(skill.license.as_deref(), Some("MIT"));
        assert_eq!(skill.compatibility.as_deref(), Some("needs a network"));
        assert_eq!(skill.allowed_tools, ["lookup", "send_email", "grep"]);
        assert_eq!(skill.include_tools, ["publish"]);
        let pairs: Vec<(&str, &str)> = skill
            .metadata
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        assert_eq!(pairs, [("author", "ann"), ("version", "1.5")]);
    }

    #[test]
    fn an_unusual_name_yields_a_warning_and_a_long_description_is_cut() {
        for name in ["Web", "web_research", "other"] {
            let (skill, warnings) = read(&format!("name: {name}\ndescription: x")).expect("a skill");
            assert_eq!(skill.name.as_str(), name, "{warnings:?}");
            assert_eq!(warnings.len(), 1, "{warnings:?}");
        }
        let (skill, warnings) =
            read(&format!("name: web-research\ndescription: {}", "x".repeat(1_025))).expect("a skill");
        assert_eq!(skill.description.len(), 1_024);
        assert_eq!(warnings.len(), 1);
    }

    #[test]
    fn a_file_without_valid_front_matter_is_refused() {
        for (text, reason) in [
            ("Look around.", "between two lines"),
            ("---\nname: x\n", "between two lines"),
            ("---\nname: x\n---\n", "`description`"),
            ("---\ndescription: x\nname:\n---\n", "`name`"),
            ("---\n- x\n---\n", "names and values"),
            ("---\nname: [\n---\n", "no YAML"),
        ] {
            let error = Skill::read(PATH, text).expect_err(text);
            assert!(error.contains(reason), "{error}");
        }
        assert!(read(&format!("name: x\ndescription: {}", "y".repeat(MAX_FRONT_MATTER_BYTES))).is_err());
    }

    #[test]
    fn the_instructions_follow_the_front_matter() {
        assert_eq!(instructions("---\nname: x\n---\n\nLook around.\n"), "Look around.");
        assert_eq!(instructions("Look around."), "Look around.");
    }
}
