//! The instructions of an agent: a text, or blocks of text, some of which are marked for the provider's cache.

use std::fmt::Write;

use serde::{Deserialize, Deserializer, Serialize};

use super::description::{Part, parts};
use super::diagnostic::{Diagnostic, FieldPath};
use super::limits::LARGEST_DEFINITION;
use super::untagged::{self, TextOrList};

/// The maximum number of blocks of the instructions of one agent.
const MOST_BLOCKS: usize = 64;
/// The maximum number of markers in one request.
pub const MOST_MARKERS: usize = 4;

/// The instructions of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum SystemPrompt {
    /// One text. Additions become a part of the text, after a blank line.
    Text(String),
    /// Several blocks, kept apart. Additions are blocks of their own at the end.
    Blocks(Vec<PromptBlock>),
}

/// A part of the instructions.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PromptBlock {
    /// The kind of the block.
    #[serde(rename = "type")]
    pub kind: BlockKind,
    /// The text.
    pub text: String,
    /// Lets the provider cache everything up to the end of this block for the next request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_control: Option<CacheControl>,
}

/// The kind of a block of instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockKind {
    /// A text.
    #[default]
    Text,
}

/// A marker for the provider's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CacheControl {
    /// The kind of caching.
    #[serde(rename = "type")]
    pub kind: CacheKind,
    /// The duration; five minutes when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<CacheTtl>,
}

/// The kind of caching of a marked prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheKind {
    /// For a limited time.
    #[default]
    Ephemeral,
}

/// The duration for which a provider caches a marked prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CacheTtl {
    /// Five minutes.
    #[serde(rename = "5m")]
    FiveMinutes,
    /// An hour.
    #[serde(rename = "1h")]
    OneHour,
}

impl Default for SystemPrompt {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl From<&str> for SystemPrompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<&str> for PromptBlock {
    fn from(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            ..Self::default()
        }
    }
}

impl SystemPrompt {
    /// Returns whether all texts are blank.
    pub fn is_blank(&self) -> bool {
        self.parts().is_empty()
    }

    /// Returns the texts that are not blank, in their order.
    pub fn parts(&self) -> Vec<&str> {
        let parts = match self {
            Self::Text(text) => vec![text.as_str()],
            Self::Blocks(blocks) => blocks.iter().map(|block| block.text.as_str()).collect(),
        };
        parts.into_iter().filter(|text| !text.trim().is_empty()).collect()
    }

    /// Returns one text, with a blank line between the blocks.
    pub fn text(&self) -> String {
        self.parts().join("\n\n")
    }

    /// Returns the blocks; a text is one block.
    pub fn blocks(&self) -> Vec<PromptBlock> {
        match self {
            Self::Text(text) if text.trim().is_empty() => vec![],
            Self::Text(text) => vec![text.as_str().into()],
            Self::Blocks(blocks) => blocks.clone(),
        }
    }

    /// Adds a section to the end, unless the section is blank.
    pub fn add(&mut self, section: &str) {
        match self {
            _ if section.trim().is_empty() => {}
            Self::Text(text) if text.trim().is_empty() => section.clone_into(text),
            Self::Text(text) => text.extend(["\n\n", section]),
            Self::Blocks(blocks) => blocks.push(section.into()),
        }
    }

    /// Adds other instructions to the end. If either has blocks, the result has blocks, too.
    pub fn append(&mut self, other: &Self) {
        match other {
            Self::Text(text) => self.add(text),
            Self::Blocks(more) => *self = Self::Blocks(self.blocks().into_iter().chain(more.clone()).collect()),
        }
    }

    /// Replaces `beginning` with `text`, if the instructions begin with it.
    pub fn replace_prefix(&mut self, beginning: &Self, text: &str) {
        match (self, beginning) {
            (Self::Text(whole), Self::Text(beginning)) if beginning.trim().is_empty() => {
                let mut begun = Self::Text(text.to_owned());
                begun.add(whole);
                *whole = begun.text();
            }
            (Self::Text(whole), Self::Text(beginning)) => {
                if let Some(rest) = whole.strip_prefix(beginning.as_str()) {
                    *whole = format!("{text}{rest}");
                }
            }
            (Self::Blocks(blocks), beginning) => {
                let beginning = beginning.blocks();
                if blocks.starts_with(&beginning) {
                    blocks.splice(..beginning.len(), [text.into()]);
                }
            }
            (Self::Text(_), Self::Blocks(_)) => {}
        }
    }

    /// Fills the slots for which there is a text. Text in other braces stays as it is.
    pub(super) fn fill<'a>(&mut self, text_of: impl Fn(&str) -> Option<&'a str>) {
        let texts: Vec<&mut String> = match self {
            Self::Text(text) => vec![text],
            Self::Blocks(blocks) => blocks.iter_mut().map(|block| &mut block.text).collect(),
        };
        for text in texts {
            let mut filled = String::new();
            for part in parts(text) {
                match part {
                    Part::Text(own) => filled.push_str(own),
                    Part::Braces(name) => match text_of(name) {
                        Some(chosen) => filled.push_str(chosen),
                        // Writing to a string does not fail.
                        None => write!(filled, "{{{name}}}").unwrap_or_default(),
                    },
                }
            }
            *text = filled;
        }
    }

    /// Checks the instructions in `field`.
    pub(super) fn check(&self, field: &FieldPath) -> Vec<Diagnostic> {
        let Self::Blocks(blocks) = self else { return vec![] };
        let blank = blocks
            .iter()
            .enumerate()
            .filter(|(_, block)| block.text.trim().is_empty());
        let blank = blank.map(|(at, _)| Diagnostic::error(field.then(at).then("text"), "must not be blank"));
        let mut findings: Vec<Diagnostic> = blank.collect();
        let mut error = |message: String| findings.push(Diagnostic::error(field.clone(), message));
        let size: usize = blocks.iter().map(|block| block.text.len()).sum();
        let markers = blocks.iter().filter(|block| block.cache_control.is_some()).count();
        if blocks.is_empty() {
            error("must be a text, or have at least one block".to_owned());
        }
        if blocks.len() > MOST_BLOCKS {
            error(format!(
                "has {} blocks; at most {MOST_BLOCKS} are allowed",
                blocks.len()
            ));
        }
        if size > LARGEST_DEFINITION {
            error(format!(
                "has {size} bytes of text in its blocks; at most {LARGEST_DEFINITION} are allowed"
            ));
        }
        if markers > MOST_MARKERS {
            error(format!(
                "has `cache_control` on {markers} blocks; at most {MOST_MARKERS} are allowed"
            ));
        }
        findings
    }
}

impl<'de> Deserialize<'de> for SystemPrompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a text or a list of blocks like { type = \"text\", text = \"…\" }";
        Ok(match untagged::read(deserializer, expected)? {
            TextOrList::Text(text) => Self::Text(text),
            TextOrList::List(blocks) => Self::Blocks(blocks),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::definition::ValidationContext;
    use crate::definition::validate::findings_of;

    fn findings(body: Value) -> Vec<String> {
        findings_of("a", body, &ValidationContext::of_tests())
    }

    fn reported(prompt: Value) -> Vec<String> {
        findings(json!({"model": "scripted:x", "system_prompt": prompt}))
    }

    fn prompt(value: Value) -> SystemPrompt {
        serde_json::from_value(value).expect("instructions")
    }

    #[test]
    fn blocks_are_read_and_written_as_they_are() {
        let value = json!([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
            {"type": "text", "text": "b"}]);
        assert_eq!(reported(value.clone()), [""; 0]);
        assert_eq!(serde_json::to_value(prompt(value.clone())).ok(), Some(value));
        assert_eq!(serde_json::to_value(prompt(json!("a"))).ok(), Some(json!("a")));
    }

    #[test]
    fn what_is_wrong_with_a_block_is_told_where_it_stands() {
        let marked = |count: usize| {
            json!(vec![
                json!({"text": "x", "cache_control": {"type": "ephemeral"}});
                count
            ])
        };
        let cases = [
            (json!(3), "system_prompt: must be a string or a list of blocks"),
            (json!([]), "system_prompt: must be a string, or have at least one block"),
            (json!([{"text": " "}]), "system_prompt[0].text: must not be blank"),
            (
                json!([{"text": "x"}, {"type": "text"}]),
                "system_prompt[1].text: must not be blank",
            ),
            (
                json!([{"type": "image", "text": "x"}]),
                "system_prompt[0].type: `image` is not allowed",
            ),
            (json!([{"text": 3}]), "system_prompt[0].text: must be a"),
            (json!(["x"]), "system_prompt[0]: must be "),
            (
                json!([{"text": "x", "texts": "y"}]),
                "system_prompt[0].texts: unknown key",
            ),
            (
                json!([{"text": "x", "cache_control": {"type": "forever"}}]),
                "system_prompt[0].cache_control.type: `forever` is not allowed",
            ),
            (
                json!([{"text": "x", "cache_control": {"type": "ephemeral", "ttl": "2h"}}]),
                "system_prompt[0].cache_control.ttl: `2h` is not allowed",
            ),
            (
                json!(vec![json!({"text": "x"}); 65]),
                "system_prompt: has 65 blocks; at most 64 are allowed",
            ),
            (
                marked(5),
                "system_prompt: has `cache_control` on 5 blocks; at most 4 are allowed",
            ),
        ];
        for (value, expected) in cases {
            let reported = reported(value);
            assert!(
                reported.len() == 1 && reported[0].starts_with(expected),
                "{expected}: {reported:#?}"
            );
        }
        assert_eq!(reported(marked(4)), [""; 0]);
    }

    #[test]
    fn those_of_subagents_are_looked_at_too() {
        let subagent = json!({"name": "b", "description": "Does all that is left.", "system_prompt": [{"text": ""}]});
        let body = json!({"model": "scripted:x", "subagents": [subagent],
            "general_purpose_subagent": {"system_prompt": []}});
        assert_eq!(
            findings(body),
            [
                "general_purpose_subagent.system_prompt: must be a string, or have at least one block",
                "subagents[0].system_prompt[0].text: must not be blank",
            ]
        );
    }

    #[test]
    fn what_is_added_to_a_text_is_text_and_to_blocks_a_block() {
        let text = prompt(json!("a"));
        let blocks = prompt(json!([{"text": "b"}, {"text": "c"}]));
        let added = |to: &SystemPrompt, more: &SystemPrompt| {
            let mut prompt = to.clone();
            prompt.append(more);
            prompt.add(" ");
            prompt
        };
        assert_eq!(added(&text, &text), prompt(json!("a\n\na")));
        assert_eq!(added(&SystemPrompt::default(), &text), text);
        assert_eq!(
            added(&text, &blocks),
            prompt(json!([{"text": "a"}, {"text": "b"}, {"text": "c"}]))
        );
        assert_eq!(added(&SystemPrompt::default(), &blocks), blocks);
        assert_eq!(added(&blocks, &text).text(), "b\n\nc\n\na");
        assert_eq!(added(&blocks, &text).parts(), ["b", "c", "a"]);
    }

    #[test]
    fn another_beginning_leaves_the_rest_as_it_is() {
        let mut text = prompt(json!("a\n\nrest"));
        text.replace_prefix(&"a".into(), "other");
        assert_eq!(text.text(), "other\n\nrest");
        let mut added = SystemPrompt::from("rest");
        added.replace_prefix(&"".into(), "other");
        assert_eq!(added.text(), "other\n\nrest");
        let own = prompt(json!([{"text": "a"}, {"text": "b"}]));
        let mut blocks = own.clone();
        blocks.add("rest");
        blocks.replace_prefix(&own, "other");
        assert_eq!(blocks.parts(), ["other", "rest"]);
        blocks.replace_prefix(&own, "more");
        assert_eq!(blocks.parts(), ["other", "rest"]);
    }
}
