//! Middleware: a model chooses the tools that the agent's model is offered.
//!
//! The choice is made once for each message of a human and stored in a private field of the state, so that the requests
//! of one turn have the same tools. It is made anew when the agent has got tools since. A tool that is not offered can
//! still be called.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::forced_call::ForcedCall;
use super::{AgentParts, MOST_NAMES, Middleware, MiddlewareModel, ModelAnswer, NextModel, read_settings};
use crate::definition::mcp::ToolNames;
use crate::definition::{Diagnostic, FieldPath, MOST_RETRIES};
use crate::domain::machine::Failure;
use crate::domain::message::Message;
use crate::domain::state::{State, Update};
use crate::domain::text_limits::first_chars;
use crate::model::{ModelRequest, ToolSpec};
use crate::tool::{Halt, Scope};

/// The private field with the choice.
const FIELD: &str = "_selected_tools";
/// The class of the failure if the model makes no choice.
const FAILURE: &str = "ToolSelectionError";
/// The characters of a tool's description that the choosing model reads.
const SHOWN_DESCRIPTION: usize = 300;
/// The characters of the human's message that the choosing model reads.
const SHOWN_MESSAGE: usize = 20_000;
/// The instructions of the choosing model.
const INSTRUCTIONS: &str = "Choose the tools that an agent needs to do what the user asks. Choose those that are likely \
    to be needed, the most important first, and no others.";

/// The tool selection middleware.
#[derive(Clone, Default)]
pub struct ToolSelection {
    settings: ToolSelectionSettings,
    always: ToolNames,
    model: Option<MiddlewareModel>,
    answer_tools: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ToolSelectionSettings {
    /// The model that chooses; the agent's when absent.
    model: Option<String>,
    /// The maximum number of tools to choose; no limit when absent.
    max_tools: Option<usize>,
    /// The tools that are offered beside those that are chosen.
    always_include: Vec<String>,
    /// The instructions of the choosing model.
    system_prompt: Option<String>,
    /// The number of attempts after the first one, if the model makes no choice.
    max_retries: u32,
    /// The reaction when the model makes no choice in all attempts.
    on_parsing_failure: OnNoSelection,
}

impl Default for ToolSelectionSettings {
    fn default() -> Self {
        Self {
            model: None,
            max_tools: None,
            always_include: vec![],
            system_prompt: None,
            max_retries: 1,
            on_parsing_failure: OnNoSelection::default(),
        }
    }
}

/// The effect of an answer that is no choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OnNoSelection {
    /// The run fails.
    #[default]
    Error,
    /// All tools are offered.
    Continue,
}

#[async_trait]
impl Middleware for ToolSelection {
    fn name(&self) -> &str {
        "LLMToolSelectorMiddleware"
    }

    fn configured(&self, settings: &Map<String, Value>) -> Result<Option<Arc<dyn Middleware>>, Vec<Diagnostic>> {
        let settings: ToolSelectionSettings = read_settings(settings)?;
        let mut findings = vec![];
        let mut wrong = |field: &str, message: String| {
            findings.push(Diagnostic::error(FieldPath::of([field]), message));
        };
        if settings.max_tools == Some(0) {
            wrong("max_tools", "must be a whole number of at least 1".to_owned());
        }
        if settings.max_retries > MOST_RETRIES {
            wrong("max_retries", format!("must be at most {MOST_RETRIES}"));
        }
        if settings.always_include.len() > MOST_NAMES {
            wrong("always_include", format!("must name at most {MOST_NAMES} tools"));
        }
        if !findings.is_empty() {
            return Err(findings);
        }
        Ok(Some(Arc::new(Self {
            always: ToolNames::of(&settings.always_include),
            settings,
            ..Self::default()
        })))
    }

    fn model_setting(&self) -> Option<&'static str> {
        Some("model")
    }

    fn tools_setting(&self) -> Option<&'static str> {
        Some("always_include")
    }

    fn for_agent(&self, parts: &AgentParts<'_>) -> Option<Arc<dyn Middleware>> {
        Some(Arc::new(Self {
            model: Some(parts.model_named(self.settings.model.as_deref())),
            answer_tools: parts.answer_tools.to_vec(),
            ..self.clone()
        }))
    }

    async fn wrap_model_call(&self, mut request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let is_free =
            |tool: &&Arc<ToolSpec>| !self.always.contains(&tool.name) && !self.answer_tools.contains(&tool.name);
        let candidates: Vec<Arc<ToolSpec>> = request.tools.iter().filter(is_free).cloned().collect();
        let asked = next.state.messages.newest(Message::is_human);
        let asked = asked.or_else(|| next.state.left_request());
        let (Some(asked), Some(model)) = (asked, &self.model) else {
            return next.ask(request).await;
        };
        if self.settings.max_tools.is_some_and(|most| candidates.len() <= most) || candidates.is_empty() {
            return next.ask(request).await;
        }
        let names: BTreeSet<&str> = candidates.iter().map(|tool| tool.name.as_str()).collect();
        let made = earlier_choice(next.state, &asked, &names);
        let is_new = made.is_none();
        let chosen = match made {
            Some(chosen) => Some(chosen),
            None => self.choose(next.scope, model, &candidates, &asked).await?,
        };
        let Some(chosen) = chosen else {
            return next.ask(request).await;
        };
        let record = json!({"message": asked.id, "among": names, "tools": chosen});
        request
            .tools
            .retain(|tool| !names.contains(tool.name.as_str()) || chosen.contains(&tool.name));
        let mut answer = next.ask(request).await?;
        if is_new {
            answer.extra.merge(Update::field(FIELD, record));
        }
        Ok(answer)
    }
}

impl ToolSelection {
    /// Asks the model for a choice; returns `None` if all tools are to be offered.
    async fn choose(
        &self,
        scope: &Scope,
        model: &MiddlewareModel,
        candidates: &[Arc<ToolSpec>],
        asked: &Message,
    ) -> Result<Option<Vec<String>>, Halt> {
        let names: Vec<&str> = candidates.iter().map(|tool| tool.name.as_str()).collect();
        let tools: Vec<String> = candidates
            .iter()
            .map(|tool| format!("- {}: {}", tool.name, first_chars(&tool.description, SHOWN_DESCRIPTION)))
            .collect();
        let most = self.settings.max_tools.map(|most| format!(" Choose at most {most}."));
        let text = format!(
            "The tools:\n{}\n\nThe message of the user:\n{}\n\nWhich tools are needed?{}",
            tools.join("\n"),
            first_chars(&asked.content.text(), SHOWN_MESSAGE),
            most.unwrap_or_default()
        );
        let form = ToolSpec {
            name: "select_tools".to_owned(),
            description: "Names the tools that are needed, the most important first.".to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {"tools": {"type": "array", "items": {"type": "string", "enum": names}}},
                "required": ["tools"],
            }),
        };
        let question = ForcedCall {
            model,
            instructions: self.settings.system_prompt.as_deref().unwrap_or(INSTRUCTIONS),
            text,
            form,
        };
        let mut problem = String::new();
        for _ in 0..=self.settings.max_retries {
            match question.ask(scope).await? {
                Ok(args) => return Ok(Some(self.first(&args))),
                Err(reason) => problem = reason,
            }
        }
        match self.settings.on_parsing_failure {
            OnNoSelection::Continue => Ok(None),
            OnNoSelection::Error => {
                let message = format!("the model that chooses the tools gave no choice: {problem}");
                Err(Halt::Fail(Failure::new(FAILURE, message)))
            }
        }
    }

    fn first(&self, args: &Map<String, Value>) -> Vec<String> {
        let tools = args.get("tools").and_then(Value::as_array);
        let mut chosen: Vec<String> = vec![];
        for name in tools.into_iter().flatten().filter_map(Value::as_str) {
            if !chosen.iter().any(|other| other == name) {
                chosen.push(name.to_owned());
            }
        }
        chosen.truncate(self.settings.max_tools.unwrap_or(usize::MAX));
        chosen
    }
}

/// Returns the choice that was made for this message, unless there are other tools now.
fn earlier_choice(state: &State, asked: &Message, names: &BTreeSet<&str>) -> Option<Vec<String>> {
    let made = state.fields.get(FIELD)?;
    let is_same = made["message"] == json!(asked.id) && made["among"] == json!(names);
    let tools = made["tools"].as_array().filter(|_| is_same)?;
    Some(tools.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_holds_for_its_message_and_its_tools() {
        let asked = Message::human("find it").with_id("h1");
        let names = BTreeSet::from(["a", "b"]);
        let mut state = State::default();
        state.apply(&Update::field(
            FIELD,
            json!({"message": "h1", "among": ["a", "b"], "tools": ["b"]}),
        ));
        assert_eq!(earlier_choice(&state, &asked, &names), Some(vec!["b".to_owned()]));
        assert_eq!(earlier_choice(&state, &asked, &BTreeSet::from(["a"])), None);
        assert_eq!(
            earlier_choice(&state, &Message::human("and").with_id("h2"), &names),
            None
        );
    }

    #[test]
    fn the_first_of_the_tools_are_taken_once_each() {
        let settings = json!({"max_tools": 2});
        let settings: ToolSelectionSettings = serde_json::from_value(settings).expect("settings");
        let policy = ToolSelection {
            settings,
            ..ToolSelection::default()
        };
        let args = json!({"tools": ["b", "b", "a", "c"]});
        assert_eq!(policy.first(args.as_object().expect("an object")), ["b", "a"]);
    }

    #[test]
    fn settings_beyond_their_bounds_are_refused() {
        let settings = json!({"max_tools": 0, "max_retries": 11, "always_include": vec!["x"; 257]});
        let settings = settings.as_object().cloned().unwrap_or_default();
        let findings = ToolSelection::default().configured(&settings).err().unwrap_or_default();
        let fields: Vec<String> = findings.iter().map(|finding| finding.field.to_string()).collect();
        assert_eq!(fields, ["max_tools", "max_retries", "always_include"]);
    }
}
