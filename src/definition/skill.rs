//! A skill: a folder with instructions for one kind of work, told by the settings at the top of its `SKILL.md`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::front_matter::{self, FrontMatter};

/// The file that makes a folder a skill.
pub const FILE: &str = "SKILL.md";
/// The largest `SKILL.md`, in bytes.
pub const LARGEST: usize = 1024 * 1024;
/// The largest settings at its top, in bytes.
const LARGEST_SETTINGS: usize = 64 * 1024;
/// The longest name, in characters.
const LONGEST_NAME: usize = 64;
/// The longest description, in characters; the rest is cut off.
const LONGEST_DESCRIPTION: usize = 1_024;
/// The longest word on compatibility, in characters; the rest is cut off.
const LONGEST_COMPATIBILITY: usize = 500;
/// The key of `metadata` that names the tools a skill discloses.
const INCLUDE_TOOLS: &str = "include_tools";

/// What is known of a skill before its instructions are read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Skill {
    /// What it is called.
    pub name: String,
    /// What it is for: all by which a model chooses.
    pub description: String,
    /// The absolute path of its `SKILL.md`.
    pub path: String,
    /// Under which terms it may be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// What it needs around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compatibility: Option<String>,
    /// What else its owner says about it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// The tools it is written for. Shown, not enforced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_tools: Vec<String>,
    /// The tools that are hidden until it was read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include_tools: Vec<String>,
}

impl Skill {
    /// Reads the text of the `SKILL.md` at `path`, together with what is odd about it.
    ///
    /// # Errors
    /// Why it is no skill, continuing "the file …".
    pub fn read(path: &str, text: &str) -> Result<(Self, Vec<String>), String> {
        if text.len() > LARGEST {
            return Err(format!("has more than {LARGEST} bytes"));
        }
        let FrontMatter::Present { yaml, .. } = FrontMatter::of(text) else {
            return Err("must begin with settings between two lines `---`".to_owned());
        };
        let settings = settings(yaml)?;
        let mut oddities = vec![];
        let name = required(&settings, "name")?;
        oddities.extend(name_oddity(&name, path));
        let name = cut(&name, LONGEST_NAME);
        let described = required(&settings, "description")?;
        let description = cut(&described, LONGEST_DESCRIPTION);
        if description != described {
            oddities.push(format!(
                "its `description` is cut off after {LONGEST_DESCRIPTION} characters"
            ));
        }
        let compatibility = word(settings.get("compatibility")).map(|text| cut(&text, LONGEST_COMPATIBILITY));
        let metadata = settings.get("metadata").and_then(Value::as_object);
        let pairs = metadata.into_iter().flatten().filter(|(key, _)| *key != INCLUDE_TOOLS);
        let skill = Self {
            name,
            description,
            path: path.to_owned(),
            license: word(settings.get("license")),
            compatibility,
            metadata: pairs
                .filter_map(|(key, value)| Some((key.clone(), word(Some(value))?)))
                .collect(),
            allowed_tools: names(settings.get("allowed-tools")),
            include_tools: names(metadata.and_then(|metadata| metadata.get(INCLUDE_TOOLS))),
        };
        Ok((skill, oddities))
    }
}

/// The instructions of a skill: its text without the settings at the top.
pub fn instructions(text: &str) -> &str {
    match FrontMatter::of(text) {
        FrontMatter::Present { body, .. } | FrontMatter::Missing { body } => body.trim(),
        FrontMatter::Open => text.trim(),
    }
}

fn settings(yaml: &str) -> Result<Map<String, Value>, String> {
    if yaml.len() > LARGEST_SETTINGS {
        return Err(format!("has more than {LARGEST_SETTINGS} bytes of settings"));
    }
    match front_matter::yaml(yaml) {
        Ok(Value::Object(settings)) => Ok(settings),
        Ok(_) => Err("must have names and values at its top (`name: value`)".to_owned()),
        Err(error) => {
            let text = error.without_snippet().to_string();
            Err(format!(
                "has settings that are no YAML: {}",
                text.lines().next().unwrap_or_default()
            ))
        }
    }
}

fn required(settings: &Map<String, Value>, key: &str) -> Result<String, String> {
    let text = word(settings.get(key)).filter(|text| !text.is_empty());
    text.ok_or_else(|| format!("must say its `{key}` at the top"))
}

/// A plain value as text, on one line.
fn word(value: Option<&Value>) -> Option<String> {
    let text = match value? {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(truth) => truth.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    };
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// A list of names: a list, or a text with spaces or commas between them.
fn names(value: Option<&Value>) -> Vec<String> {
    let words = |text: &str| -> Vec<String> {
        let parts = text.split(|c: char| c == ',' || c.is_whitespace());
        parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    match value {
        Some(Value::String(text)) => words(text),
        Some(Value::Array(items)) => items.iter().filter_map(|item| word(Some(item))).collect(),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => vec![],
    }
}

/// What is odd about a name, given the folder of its file.
fn name_oddity(name: &str, path: &str) -> Option<String> {
    let folder = path.rsplit('/').nth(1).unwrap_or_default();
    let is_plain = (1..=LONGEST_NAME).contains(&name.chars().count())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if !is_plain {
        return Some(format!("its `name` should be 1 to {LONGEST_NAME} of a-z, 0-9 and `-`"));
    }
    (name != folder).then(|| format!("its `name` should be that of its folder, `{folder}`"))
}

/// The first `most` characters.
fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/skills/web-research/SKILL.md";

    fn read(settings: &str) -> Result<(Skill, Vec<String>), String> {
        Skill::read(PATH, &format!("---\n{settings}\n---\n\nLook around.\n"))
    }

    #[test]
    fn the_settings_tell_what_a_skill_is() {
        let (skill, oddities) = read(
            "name: web-research\ndescription: |\n  Finds\n  sources.\nlicense: MIT\ncompatibility: needs a network\n\
             allowed-tools: lookup, send_email grep\nmetadata:\n  author: ann\n  version: 1.5\n  include_tools: [publish]",
        )
        .expect("a skill");
        assert_eq!(oddities, [""; 0]);
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
    fn an_odd_name_is_told_and_a_long_description_is_cut() {
        for name in ["Web", "web_research", "other"] {
            let (skill, oddities) = read(&format!("name: {name}\ndescription: x")).expect("a skill");
            assert_eq!(skill.name.as_str(), name, "{oddities:?}");
            assert_eq!(oddities.len(), 1, "{oddities:?}");
        }
        let (skill, oddities) =
            read(&format!("name: web-research\ndescription: {}", "x".repeat(1_025))).expect("a skill");
        assert_eq!(skill.description.len(), 1_024);
        assert_eq!(oddities.len(), 1);
    }

    #[test]
    fn what_lacks_its_settings_is_no_skill() {
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
        assert!(read(&format!("name: x\ndescription: {}", "y".repeat(LARGEST_SETTINGS))).is_err());
    }

    #[test]
    fn the_instructions_are_what_stands_below() {
        assert_eq!(instructions("---\nname: x\n---\n\nLook around.\n"), "Look around.");
        assert_eq!(instructions("Look around."), "Look around.");
    }
}
