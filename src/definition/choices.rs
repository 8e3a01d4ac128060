//! The choices of a run among the parts of an agent that are configurable.
//!
//! The choice is in the `context` of the run, or of the assistant for all of its runs, so it is stored with the run and
//! holds when the run is resumed. It concerns the main agent, and the fields that its subagents inherit.

use serde_json::{Map, Value, json};

use super::agent::AgentDefinition;
use super::configurable::Configurable;
use super::model_names::ModelNames;
use super::prompt::SystemPrompt;

/// The entry of the context with the chosen model.
pub(super) const MODEL: &str = "model";
/// The entry of the context with the chosen tools.
pub(super) const TOOLS: &str = "tools";
/// The maximum length of a slot's text, in characters.
pub(super) const MAX_SLOT_CHARS: usize = 4_000;

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

    fn prompts_mut(&mut self) -> impl Iterator<Item = &mut SystemPrompt> {
        let below = self.subagents.iter_mut().map(|subagent| &mut subagent.system_prompt);
        [&mut self.system_prompt]
            .into_iter()
            .chain(&mut self.general_purpose_subagent.system_prompt)
            .chain(below)
    }
}

/// Returns an agent whose models, tools and prompt can be chosen, with further fields.
#[cfg(test)]
pub(super) fn agent_with_choices(more: &Value) -> AgentDefinition {
    let mut all = json!({"model": ["lab:a", "lab:b"], "tools": ["find", "send"],
        "system_prompt": "You help {user} with {\"json\": 1} and {other}.",
        "configurable": {"models": ["lab:b", "lab:c"], "tools": ["send"], "prompt_slots": {"user": "people"}}});
    let fields = all.as_object_mut().expect("an object");
    fields.extend(more.as_object().cloned().unwrap_or_default());
    serde_json::from_value(all).expect("a definition")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(value: &Value) -> Map<String, Value> {
        agent_with_choices(&json!({})).choices_of(value.as_object().expect("an object"))
    }

    #[test]
    fn a_choice_changes_the_first_model_the_optional_tools_and_the_slots() {
        let agent = agent_with_choices(&json!({}));
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
        let agent = agent_with_choices(&json!({}));
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
        let configured = agent_with_choices(&json!({})).configured(&chosen);
        assert_eq!(configured.model.first(), "lab:a");
        assert_eq!(configured.tools, ["find", "send"]);
    }

    #[test]
    fn the_schema_of_the_context_has_the_choices_beside_its_own_entries() {
        let agent = agent_with_choices(&json!({"context_schema": {"type": "object", "required": ["team"],
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
}
