//! Middleware: the agent has skills, whose instructions it reads when it needs them.
//!
//! The agent's instructions list the skills with their descriptions. A skill's own instructions are read by the agent
//! when needed, or are in the conversation from the start if a client has pinned the skill. Some tools are only
//! available after a skill that includes them was read.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::{Contribution, HookResult, Middleware, ModelAnswer, NextCall, NextModel};
use crate::definition::builtins;
use crate::definition::mcp::ToolNames;
use crate::definition::skill::Skill;
use crate::definition::{BundledFiles, SkillSource};
use crate::domain::call::ToolOutput;
use crate::domain::field::{FieldRule, FieldVisibility, Merge};
use crate::domain::graph::Field;
use crate::domain::machine::HookPoint;
use crate::domain::message::{Message, Role, ToolCall, ToolStatus};
use crate::domain::path::normalise;
use crate::domain::state::{Encoding, PINNED_SKILLS, SKILLS, State, Update};
use crate::model::ModelRequest;
use crate::tool::files::{FileAccess, FileWorkspace, reader};
use crate::tool::{CallOutcome, Halt, Scope, Tool};

mod catalog;
mod wording;

use catalog::Catalog;

/// The private field with the errors of the search for skills.
const ERRORS: &str = "skills_load_errors";
/// The private field that identifies the sources of the skills in the state.
const ORIGIN: &str = "_skills_origin";
/// The private field with the skills that disclosed tools, and the message by which each was read.
pub const DISCLOSED: &str = "_skill_tools_disclosed";
/// The tool that reads the instructions of a skill.
const READ_FILE: &str = "read_file";
/// The key that marks the message with a pinned skill.
const PINNED: &str = "pinned_skill";

/// The skills middleware.
pub struct Skills {
    catalog: Catalog,
    /// The tools that are hidden until a skill discloses them.
    hidden: ToolNames,
    /// The tool that reads skills, for an agent without file tools.
    reader: Option<Arc<dyn Tool>>,
}

impl Skills {
    /// Creates the middleware for the skills in `sources`, which are folders in `workspace`. The files of the definition
    /// belong to the workspace. `hidden` are the tools that a skill has to disclose.
    pub fn new(
        sources: &[SkillSource],
        enclosed: &BundledFiles,
        workspace: Arc<dyn FileWorkspace>,
        hidden: &[String],
    ) -> Self {
        let hidden = ToolNames::of(hidden);
        Self {
            catalog: Catalog::new(sources, enclosed, workspace),
            hidden,
            reader: None,
        }
    }

    /// Adds a tool that reads skills in `workspace`, for an agent without file tools.
    #[must_use]
    pub fn with_reader(self, workspace: &Arc<dyn FileWorkspace>) -> Self {
        Self {
            reader: Some(reader(workspace)),
            ..self
        }
    }

    /// Searches for skills, unless this thread has searched the same sources.
    async fn find_skills(&self, scope: &Scope, state: &State) -> Update {
        let is_known = state.fields.get(SKILLS).is_some_and(Value::is_array);
        let origin = Value::from(self.catalog.origin.as_str());
        if is_known && state.fields.get(ORIGIN) == Some(&origin) {
            return Update::none();
        }
        let (skills, errors) = self.catalog.load(FileAccess { scope, state }).await;
        let fields = [(SKILLS, json!(skills)), (ERRORS, json!(errors)), (ORIGIN, origin)];
        Update {
            fields: fields.map(|(name, value)| (name.to_owned(), value)).into(),
            ..Update::none()
        }
    }

    /// Adds the instructions of the pinned skills to the conversation.
    async fn pinned(&self, scope: &Scope, state: &State) -> Update {
        let Some(Value::Array(names)) = state.fields.get(PINNED_SKILLS) else {
            return Update::none();
        };
        let known = skills(state);
        let mut seen = BTreeSet::new();
        let mut update = Update::field(PINNED_SKILLS, Value::Null);
        for name in names.iter().filter_map(Value::as_str).filter(|name| seen.insert(*name)) {
            let Some(skill) = known.iter().find(|skill| skill.name == name) else {
                continue;
            };
            let read = self
                .catalog
                .workspace
                .read(FileAccess { scope, state }, &skill.path)
                .await;
            let file = read.unwrap_or_else(|reason| {
                tracing::warn!(skill = skill.name, reason, "a pinned skill cannot be read");
                None
            });
            let Some(file) = file.filter(|file| file.encoding == Encoding::Utf8) else {
                continue;
            };
            let mut message = Message::human(wording::pinned(skill, &file.content.text()));
            let about = json!({"name": skill.name, "path": skill.path, "description": skill.description});
            message.set_source(PINNED);
            message.additional_kwargs.insert("skill".to_owned(), about);
            update.merge(Update::messages([message]));
            update.merge(self.disclosure(skill, &json!({"pinned": true})));
        }
        update
    }

    /// Records that a skill was read, if it discloses a tool.
    fn disclosure(&self, skill: &Skill, by: &Value) -> Update {
        if !ToolNames::of(&skill.include_tools).overlaps(&self.hidden) {
            return Update::none();
        }
        let rule = FieldRule {
            merge: Merge::ByKey,
            visibility: FieldVisibility::Private,
        };
        let rules = [(DISCLOSED.to_owned(), rule)].into();
        Update {
            rules,
            ..Update::field(DISCLOSED, json!({skill.name.as_str(): by}))
        }
    }

    /// Returns the tools disclosed by skills that are still in the conversation.
    fn disclosed(&self, state: &State, messages: &[Arc<Message>]) -> ToolNames {
        let Some(Value::Object(read)) = state.fields.get(DISCLOSED) else {
            return ToolNames::default();
        };
        let still_there = |skill: &Skill| {
            read.get(&skill.name)
                .is_some_and(|by| match by.get("call").and_then(Value::as_str) {
                    Some(call) => messages.iter().any(|message| message.answers() == Some(call)),
                    None => messages.iter().any(|message| is_pinned(message, &skill.name)),
                })
        };
        let known = skills(state);
        ToolNames::of(
            known
                .iter()
                .filter(|skill| still_there(skill))
                .flat_map(|skill| &skill.include_tools),
        )
    }
}

/// Returns the skills that were found on this thread.
fn skills(state: &State) -> Vec<Skill> {
    let found = state.fields.get(SKILLS).cloned().unwrap_or_default();
    serde_json::from_value(found).unwrap_or_default()
}

fn is_pinned(message: &Message, skill: &str) -> bool {
    let about = message.additional_kwargs.get("skill");
    message.source() == Some(PINNED) && about.and_then(|about| about.get("name")?.as_str()) == Some(skill)
}

#[async_trait]
impl Middleware for Skills {
    fn name(&self) -> &str {
        builtins::SKILLS
    }

    fn hook_points(&self) -> &[HookPoint] {
        &[HookPoint::BeforeAgent, HookPoint::BeforeModel]
    }

    fn contribution(&self) -> Contribution {
        let schema = json!({"title": "Pinned Skills", "type": "array", "items": {"type": "string"}});
        let fields = vec![Field {
            name: PINNED_SKILLS,
            schema,
        }];
        Contribution {
            tools: self.reader.clone().into_iter().collect(),
            prompt: None,
            fields,
        }
    }

    async fn hook(&self, point: HookPoint, scope: &Scope, state: &State) -> Result<HookResult, Halt> {
        Ok(match point {
            HookPoint::BeforeAgent => self.find_skills(scope, state).await,
            HookPoint::BeforeModel => self.pinned(scope, state).await,
            HookPoint::AfterModel | HookPoint::AfterAgent => Update::none(),
        }
        .into())
    }

    async fn wrap_model_call(&self, mut request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let errors = next
            .state
            .fields
            .get(ERRORS)
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default();
        if let Some(section) = wording::section(&self.catalog.sources, &skills(next.state), errors) {
            request.add_to_system(&section);
        }
        if !self.hidden.is_empty() {
            let disclosed = self.disclosed(next.state, &request.messages);
            request
                .tools
                .retain(|tool| !self.hidden.contains(&tool.name) || disclosed.contains(&tool.name));
        }
        next.ask(request).await
    }

    async fn wrap_tool_call(&self, call: ToolCall, next: NextCall<'_>) -> Result<CallOutcome, Halt> {
        let messages = &next.state.messages;
        let has_disclosed = |messages: &[Arc<Message>]| self.disclosed(next.state, messages).contains(&call.name);
        // The skill was mostly read lately.
        if self.hidden.contains(&call.name) && !has_disclosed(messages.recent()) && !has_disclosed(&messages.all()) {
            let text = format!(
                "Error: {} is not a valid tool. Read the skill that works with it first.",
                call.name
            );
            return Ok(CallOutcome::Answer(ToolOutput::error(&call, text)));
        }
        next.call(call).await
    }

    fn receive(&self, _: &Scope, state: &State, call: &ToolCall, mut answer: ToolOutput) -> ToolOutput {
        if call.name != READ_FILE || self.hidden.is_empty() {
            return answer;
        }
        let has_read = answer.writes.messages.iter().any(|message| {
            message.answers() == Some(call.id.as_str())
                && matches!(
                    message.role,
                    Role::Tool {
                        status: ToolStatus::Success,
                        ..
                    }
                )
        });
        let path = call
            .args
            .get("file_path")
            .and_then(Value::as_str)
            .and_then(|path| normalise(path).ok());
        let skill = skills(state)
            .into_iter()
            .find(|skill| Some(&skill.path) == path.as_ref());
        if let Some(skill) = skill.filter(|_| has_read) {
            answer.writes.merge(self.disclosure(&skill, &json!({"call": call.id})));
        }
        answer
    }
}

#[cfg(test)]
mod tests;
