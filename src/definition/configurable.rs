//! The parts of an agent that each run may choose: the model, a part of the tools, and texts in the instructions.
//!
//! A definition says what may be chosen. The choice is in the `context` of the run, or of the assistant for all of its
//! runs, so it is stored with the run and holds when the run is resumed. It concerns the main agent, and the fields
//! that its subagents inherit.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::check::{ValidationContext, check_model};
use super::description::{Part, parts};
use super::diagnostic::{Diagnostic, FieldPath, suggestion};
use super::{AgentDefinition, ModelNames, SystemPrompt};

/// The entry of the context with the chosen model.
const MODEL: &str = "model";
/// The entry of the context with the chosen tools.
const TOOLS: &str = "tools";
/// The maximum number of models, of tools and of slots.
const MOST: usize = 64;
/// The maximum length of a slot's text, in characters.
const MAX_SLOT_CHARS: usize = 4_000;

/// The parts of an agent that runs may choose.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Configurable {
    /// The models that a run may have in the place of the agent's first one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// The tools of the agent that a run may leave out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// The texts that a run may write into the instructions, in the place of the name in braces; with their defaults.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub prompt_slots: BTreeMap<String, String>,
}

impl Configurable {
    /// Returns whether runs have no choice.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl AgentDefinition {
    /// Returns the JSON Schema of the entries of the context by which a run chooses; none if it has no choice.
    pub fn choices_schema(&self) -> Option<Value> {
        let Configurable {
            models,
            tools,
            prompt_slots,
        } = &self.configurable;
        let mut properties = Map::new();
        if !models.is_empty() {
            let first = self.model.first();
            let mut all = vec![first];
            all.extend(models.iter().map(String::as_str).filter(|model| *model != first));
            let schema = json!({"title": "Model", "type": "string", "enum": all, "default": first});
            properties.insert(MODEL.to_owned(), schema);
        }
        if !tools.is_empty() {
            let items = json!({"type": "string", "enum": tools});
            let schema =
                json!({"title": "Tools", "type": "array", "items": items, "uniqueItems": true, "default": tools});
            properties.insert(TOOLS.to_owned(), schema);
        }
        properties.extend(prompt_slots.iter().map(|(name, default)| {
            let schema = json!({"title": name, "type": "string", "maxLength": MAX_SLOT_CHARS, "default": default});
            (name.clone(), schema)
        }));
        (!properties.is_empty()).then(|| json!({"title": "Configurable", "type": "object", "properties": properties}))
    }

    /// Returns the JSON Schema of the context with the choices; none if any context is accepted.
    pub fn settings_schema(&self) -> Option<Value> {
        let choices = self.choices_schema();
        let (Some(Value::Object(mut own)), Some(choices)) = (self.context_schema.clone(), &choices) else {
            return choices.or_else(|| self.context_schema.clone());
        };
        let mut properties = own
            .get("properties")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        properties.extend(choices["properties"].as_object().cloned().unwrap_or_default());
        own.insert("properties".to_owned(), properties.into());
        Some(own.into())
    }

    /// Returns the entries of a context that choose something other than the default.
    pub fn choices_of(&self, context: &Map<String, Value>) -> Map<String, Value> {
        let schema = self.choices_schema().unwrap_or_default();
        let is_choice = |name: &str, value: &Value| match schema["properties"].get(name) {
            Some(choice) => choice["default"] != *value,
            None => false,
        };
        let chosen = context.iter().filter(|(name, value)| is_choice(name, value));
        chosen.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Returns the choices of a model that runs have: none, and each model in the place of the first one.
    pub fn model_choices(&self) -> impl Iterator<Item = Map<String, Value>> {
        let models = self.configurable.models.iter();
        let chosen = models.map(|model| Map::from_iter([(MODEL.to_owned(), Value::from(model.as_str()))]));
        std::iter::once(Map::new()).chain(chosen)
    }

    /// Returns the definition as a run with these choices has it. Choices that are not allowed change nothing; they were
    /// refused before.
    #[must_use]
    pub fn configured(&self, choices: &Map<String, Value>) -> Self {
        let mut agent = self.clone();
        let Configurable {
            models,
            tools,
            prompt_slots,
        } = &self.configurable;
        let model = choices.get(MODEL).and_then(Value::as_str);
        if let Some(model) = model.filter(|model| models.iter().any(|allowed| allowed == model)) {
            agent.choose_model(model);
        }
        if let Some(Value::Array(chosen)) = choices.get(TOOLS) {
            let is_left_out = |tool: &String| tools.contains(tool) && !chosen.iter().any(|own| own == tool);
            agent.tools.retain(|tool| !is_left_out(tool));
        }
        if !prompt_slots.is_empty() {
            let text_of = |name: &str| {
                let default = prompt_slots.get(name)?;
                Some(choices.get(name).and_then(Value::as_str).unwrap_or(default))
            };
            agent.prompts_mut().for_each(|prompt| prompt.fill(text_of));
        }
        agent
    }

    /// Puts a model in the place of the first one. The fallbacks stay.
    fn choose_model(&mut self, model: &str) {
        if model != self.model.first() {
            self.summarization = self.summarization.clone().for_another_model();
        }
        let others = self.model.fallbacks().iter().filter(|other| *other != model).cloned();
        self.model = ModelNames::from([model.to_owned()].into_iter().chain(others).collect::<Vec<_>>());
    }

    fn prompts(&self) -> impl Iterator<Item = &SystemPrompt> {
        let below = self.subagents.iter().map(|subagent| &subagent.system_prompt);
        [&self.system_prompt]
            .into_iter()
            .chain(&self.general_purpose_subagent.system_prompt)
            .chain(below)
    }

    fn prompts_mut(&mut self) -> impl Iterator<Item = &mut SystemPrompt> {
        let below = self.subagents.iter_mut().map(|subagent| &mut subagent.system_prompt);
        [&mut self.system_prompt]
            .into_iter()
            .chain(&mut self.general_purpose_subagent.system_prompt)
            .chain(below)
    }

    /// Checks what runs may choose.
    pub(super) fn check_configurable(&self, context: &ValidationContext) -> Vec<Diagnostic> {
        let top = FieldPath::of(["configurable"]);
        let Configurable { models, tools, .. } = &self.configurable;
        let mut findings = vec![];
        for (name, list) in [("models", models), ("tools", tools)] {
            let mut seen = BTreeSet::new();
            for (at, item) in list.iter().enumerate().filter(|(_, item)| !seen.insert(*item)) {
                let field = top.then(name).then(at);
                findings.push(Diagnostic::error(field, format!("`{item}` is listed twice")));
            }
            if list.len() > MOST {
                let message = format!("has {} entries; at most {MOST} are allowed", list.len());
                findings.push(Diagnostic::error(top.then(name), message));
            }
        }
        for (at, model) in models.iter().enumerate() {
            findings.extend(check_model(&top.then("models").then(at), model, context));
        }
        for (at, tool) in tools.iter().enumerate() {
            let problem = self.tool_problem(tool);
            findings.extend(problem.map(|problem| Diagnostic::error(top.then("tools").then(at), problem)));
        }
        findings.extend(self.check_slots(&top.then("prompt_slots")));
        findings.extend(self.check_conflicts());
        findings
    }

    /// Returns the reason why runs cannot leave out a tool.
    fn tool_problem(&self, tool: &str) -> Option<String> {
        if !self.tools.iter().any(|own| own == tool) {
            let known = suggestion(tool, self.tools.iter().map(String::as_str), "it has");
            return Some(format!("the agent has no tool `{tool}` in its `tools`; {known}"));
        }
        let ends = |subagent: &&super::SubagentDefinition| {
            let until = subagent.until_tool.as_ref().filter(|_| subagent.tools.is_none());
            until.is_some_and(|until| until.names().iter().any(|name| name == tool))
        };
        let subagent = self.subagents.iter().find(ends)?;
        Some(format!(
            "`{tool}` ends the work of the subagent `{}`, so it cannot be left out",
            subagent.name
        ))
    }

    fn check_slots(&self, top: &FieldPath) -> Vec<Diagnostic> {
        let slots = &self.configurable.prompt_slots;
        let mut findings = vec![];
        if slots.len() > MOST {
            let message = format!("has {} entries; at most {MOST} are allowed", slots.len());
            findings.push(Diagnostic::error(top.clone(), message));
        }
        let texts: Vec<&str> = self.prompts().flat_map(SystemPrompt::parts).collect();
        for (name, default) in slots {
            let field = top.then(name);
            if name == MODEL || name == TOOLS {
                let message = format!("`{name}` is the entry of the context by which a run chooses its {name}");
                findings.push(Diagnostic::error(field, message));
            } else if !is_slot_name(name) {
                let message = "must be a name of letters, digits and underscores, of at most 64";
                findings.push(Diagnostic::error(field, message));
            } else if default.chars().count() > MAX_SLOT_CHARS {
                let message = format!("has more than {MAX_SLOT_CHARS} characters");
                findings.push(Diagnostic::error(field, message));
            } else if !texts.iter().any(|text| text.contains(&format!("{{{name}}}"))) {
                let message = format!("no `system_prompt` of the agent or its subagents has `{{{name}}}`");
                findings.push(Diagnostic::warning(field, message));
            }
        }
        findings
    }

    /// Reports the entries of the context that the definition describes twice.
    fn check_conflicts(&self) -> Vec<Diagnostic> {
        let Some(described) = self.context_schema.as_ref().and_then(|schema| schema.get("properties")) else {
            return vec![];
        };
        let schema = self.choices_schema().unwrap_or_default();
        let choices = schema["properties"].as_object().into_iter().flat_map(Map::keys);
        let conflict = |name: &String| {
            let field = FieldPath::of(["context_schema", "properties"]).then(name);
            Diagnostic::error(field, "is described by `configurable` already; leave it out here")
        };
        choices
            .filter(|name| described.get(name).is_some())
            .map(conflict)
            .collect()
    }
}

impl SystemPrompt {
    /// Fills the slots for which there is a text. Text in other braces stays as it is.
    fn fill<'a>(&mut self, text_of: impl Fn(&str) -> Option<&'a str>) {
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
}

fn is_slot_name(name: &str) -> bool {
    let is_in_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    (1..=64).contains(&name.len()) && name.chars().all(is_in_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(more: &Value) -> AgentDefinition {
        let mut all = json!({"model": ["lab:a", "lab:b"], "tools": ["find", "send"],
            "system_prompt": "You help {user} with {\"json\": 1} and {other}.",
            "configurable": {"models": ["lab:b", "lab:c"], "tools": ["send"], "prompt_slots": {"user": "people"}}});
        let fields = all.as_object_mut().expect("an object");
        fields.extend(more.as_object().cloned().unwrap_or_default());
        serde_json::from_value(all).expect("a definition")
    }

    fn choices(value: &Value) -> Map<String, Value> {
        agent(&json!({})).choices_of(value.as_object().expect("an object"))
    }

    #[test]
    fn a_choice_changes_the_first_model_the_optional_tools_and_the_slots() {
        let agent = agent(&json!({}));
        let chosen = choices(&json!({"model": "lab:c", "tools": [], "user": "{other} Ann", "more": 1}));
        let configured = agent.configured(&chosen);
        assert_eq!(configured.model.all(), ["lab:c", "lab:b"]);
        assert_eq!(configured.tools, ["find"]);
        assert_eq!(
            configured.system_prompt.text(),
            "You help {other} Ann with {\"json\": 1} and {other}."
        );
        let other = agent.configured(&choices(&json!({"model": "lab:b"})));
        assert_eq!(other.model.all(), ["lab:b"], "no model is asked twice");
    }

    #[test]
    fn without_a_choice_the_defaults_hold() {
        let agent = agent(&json!({}));
        let same = choices(&json!({"model": "lab:a", "tools": ["send"], "user": "people"}));
        assert_eq!(same, Map::new());
        let configured = agent.configured(&same);
        assert_eq!(configured.model, agent.model);
        assert_eq!(configured.tools, agent.tools);
        assert!(configured.system_prompt.text().starts_with("You help people with"));
    }

    #[test]
    fn a_model_that_is_not_listed_is_not_taken() {
        let chosen = choices(&json!({"model": "lab:expensive", "tools": "send"}));
        let configured = agent(&json!({})).configured(&chosen);
        assert_eq!(configured.model.first(), "lab:a");
        assert_eq!(configured.tools, ["find", "send"]);
    }

    #[test]
    fn the_schema_of_the_context_has_the_choices_beside_its_own_entries() {
        let agent = agent(&json!({"context_schema": {"type": "object", "required": ["team"],
            "properties": {"team": {"type": "string"}}}}));
        let schema = agent.settings_schema().expect("a schema");
        assert_eq!(schema["required"], json!(["team"]));
        assert_eq!(schema["properties"]["team"], json!({"type": "string"}));
        assert_eq!(
            schema["properties"]["model"]["enum"],
            json!(["lab:a", "lab:b", "lab:c"])
        );
        assert_eq!(schema["properties"]["tools"]["items"]["enum"], json!(["send"]));
        assert_eq!(schema["properties"]["user"]["default"], "people");
        assert_eq!(
            agent.choices_schema().expect("a schema")["properties"]["team"],
            Value::Null
        );
    }

    #[test]
    fn mistakes_are_reported_with_their_fields() {
        let agent = agent(
            &json!({"context_schema": {"properties": {"model": {}}}, "configurable": {"models": ["lab:b", "lab:b"],
            "tools": ["sent"], "prompt_slots": {"tools": "", "not a name": "", "unused": ""}}}),
        );
        let context = ValidationContext {
            providers: BTreeSet::from(["lab".to_owned()]),
            ..ValidationContext::default()
        };
        let findings = agent.check_configurable(&context);
        let fields: Vec<String> = findings.iter().map(|finding| finding.field.to_string()).collect();
        assert_eq!(
            fields,
            [
                "configurable.models[1]",
                "configurable.tools[0]",
                "configurable.prompt_slots.\"not a name\"",
                "configurable.prompt_slots.tools",
                "configurable.prompt_slots.unused",
                "context_schema.properties.model",
            ]
        );
    }
}
