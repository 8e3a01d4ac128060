//! Middleware: the agent keeps a list of todos.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Contribution, Middleware, open_calls, read_settings};
use crate::definition::{Diagnostic, builtins};
use crate::domain::call::ToolOutput;
use crate::domain::graph::Field;
use crate::domain::message::{Message, ToolCall, ToolStatus};
use crate::domain::state::{State, Update};
use crate::model::ToolSpec;
use crate::tool::literal::python;
use crate::tool::{CallOutcome, Halt, Scope, Tool};

/// The name of the tool, and of the field that it writes.
const TOOL: &str = "write_todos";
const FIELD: &str = "todos";

const DESCRIPTION: &str = "Writes the list of what is to be done for the present request, replacing the list before. \
    Use it for work of several steps: write the steps down first, mark one `in_progress` when you begin it and \
    `completed` as soon as it is done, and add or drop steps as you learn more. Leave it alone for simple requests. \
    Call it at most once in a message.";

const PROMPT: &str = "Plan work of several steps with `write_todos`, and keep the list true while you work.";

/// The todo middleware.
#[derive(Clone)]
pub struct Todos {
    tool: Arc<WriteTodos>,
    settings: Settings,
}

/// The settings of the policy.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    /// The text about planning in the instructions; a standard text when absent, and none when blank.
    system_prompt: Option<String>,
}

impl Todos {
    /// Creates the middleware.
    pub fn new() -> Self {
        Self {
            tool: Arc::new(WriteTodos { spec: Arc::new(spec()) }),
            settings: Settings::default(),
        }
    }
}

impl Default for Todos {
    fn default() -> Self {
        Self::new()
    }
}

impl Middleware for Todos {
    fn name(&self) -> &str {
        builtins::TODOS
    }

    fn configured(&self, settings: &Map<String, Value>) -> Result<Option<Arc<dyn Middleware>>, Vec<Diagnostic>> {
        Ok(Some(Arc::new(Self {
            settings: read_settings(settings)?,
            ..self.clone()
        })))
    }

    fn contribution(&self) -> Contribution {
        let schema = self.tool.spec.parameters["properties"][FIELD].clone();
        let prompt = self.settings.system_prompt.as_deref().unwrap_or(PROMPT);
        Contribution {
            tools: vec![self.tool.clone()],
            prompt: (!prompt.trim().is_empty()).then(|| prompt.to_owned()),
            fields: vec![Field { name: FIELD, schema }],
        }
    }
}

struct WriteTodos {
    spec: Arc<ToolSpec>,
}

fn spec() -> ToolSpec {
    let parameters = json!({
        "type": "object",
        "properties": {"todos": {"type": "array", "items": {
            "type": "object",
            "properties": {
                "content": {"type": "string", "description": "What is to be done."},
                "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
            },
            "required": ["content", "status"],
        }}},
        "required": ["todos"],
    });
    ToolSpec {
        name: TOOL.to_owned(),
        description: DESCRIPTION.to_owned(),
        parameters,
    }
}

#[async_trait]
impl Tool for WriteTodos {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    async fn call(&self, _: &Scope, state: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        if open_calls(state).iter().filter(|other| other.name == TOOL).count() > 1 {
            let text = "Error: `write_todos` was called more than once in one message, and each call replaces the whole \
                list. None of them was carried out. Call it once, with the whole list.";
            return Ok(CallOutcome::Answer(ToolOutput::error(call, text)));
        }
        let todos = call.args.get(FIELD).cloned().unwrap_or_else(|| Value::Array(vec![]));
        let text = format!("The todo list is now {}", python(&todos));
        let mut answer = ToolOutput::message(Message::tool(call, ToolStatus::Success, text));
        answer.writes.merge(Update::field(FIELD, todos));
        Ok(CallOutcome::Answer(answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::FieldPath;
    use crate::domain::message::Role;
    use crate::domain::time::Timestamp;

    fn call(id: &str) -> ToolCall {
        let todos = json!([{"content": "plan", "status": "pending"}]);
        ToolCall::new(id, TOOL, Map::from_iter([(FIELD.to_owned(), todos)]))
    }

    async fn outcome(calls: Vec<ToolCall>) -> CallOutcome {
        let first = calls[0].clone();
        let role = Role::Ai {
            tool_calls: calls,
            invalid_tool_calls: vec![],
            usage_metadata: None,
        };
        let state = State {
            messages: vec![Arc::new(Message::new(role, ""))].into(),
            ..State::default()
        };
        Todos::new()
            .tool
            .call(&Scope::sample(Timestamp(0)), &state, &first)
            .await
            .expect("an outcome")
    }

    #[tokio::test]
    async fn the_list_is_written_and_repeated() {
        let text = "The todo list is now [{'content': 'plan', 'status': 'pending'}]";
        let mut expected = ToolOutput::message(Message::tool(&call("a"), ToolStatus::Success, text));
        expected.writes.merge(Update::field(
            "todos",
            json!([{"content": "plan", "status": "pending"}]),
        ));
        assert_eq!(outcome(vec![call("a")]).await, CallOutcome::Answer(expected));
    }

    #[test]
    fn the_text_about_planning_can_be_set_or_left_out() {
        let configured = |settings: Value| {
            let settings = settings.as_object().cloned().unwrap_or_default();
            Todos::new()
                .configured(&settings)
                .map(|policy| policy.expect("a policy").contribution().prompt)
        };
        assert_eq!(configured(json!({})), Ok(Some(PROMPT.to_owned())));
        assert_eq!(
            configured(json!({"system_prompt": "Plan."})),
            Ok(Some("Plan.".to_owned()))
        );
        assert_eq!(configured(json!({"system_prompt": " "})), Ok(None));
        let findings = configured(json!({"system_prompt": 7})).unwrap_err();
        assert_eq!(findings[0].field, FieldPath::of(["system_prompt"]));
    }

    #[tokio::test]
    async fn two_lists_in_one_message_are_both_refused() {
        let CallOutcome::Answer(answer) = outcome(vec![call("a"), call("b")]).await else {
            panic!("no answer")
        };
        assert!(matches!(
            answer.writes.messages[0].role,
            Role::Tool {
                status: ToolStatus::Error,
                ..
            }
        ));
        assert!(answer.writes.fields.is_empty());
    }
}
