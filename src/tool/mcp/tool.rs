//! One tool of an MCP server.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::outcome::outcome;
use super::server::McpServer;
use crate::definition::{AfterCrash, OnError, mcp};
use crate::domain::call::Answer;
use crate::domain::machine::Failure;
use crate::domain::message::ToolCall;
use crate::domain::schema::Schema;
use crate::domain::state::State;
use crate::model::ToolSpec;
use crate::tool::{ArgumentCheck, CallOutcome, Halt, Scope, Tool};

/// The longest description that is passed on to models, in characters.
const LONGEST_DESCRIPTION: usize = 16_384;

/// A tool of an MCP server.
pub(super) struct McpTool {
    pub(super) server: Arc<McpServer>,
    /// Its name as the server knows it.
    pub(super) name: String,
    spec: Arc<ToolSpec>,
    check: ArgumentCheck,
}

impl McpTool {
    /// The tool that the server describes; none if it cannot be offered to models.
    ///
    /// A tool whose `execution.taskSupport` is `required` answers a plain `tools/call` with an error (MCP 2025-11-25, Tasks),
    /// so it is left out.
    pub(super) fn described(server: &Arc<McpServer>, tool: &Value) -> Option<Self> {
        let word = |name: &str| {
            tool.get(name)
                .and_then(Value::as_str)
                .filter(|text| !text.trim().is_empty())
        };
        let name = word("name")?;
        if tool.pointer("/execution/taskSupport").and_then(Value::as_str) == Some("required") {
            let server = &server.name;
            tracing::warn!(
                server,
                tool = name,
                "a tool that can only be called as a task of MCP is left out"
            );
            return None;
        }
        let parameters = match usable(tool.get("inputSchema")) {
            Ok(schema) => schema.clone(),
            Err(reason) => {
                let server = &server.name;
                tracing::warn!(
                    server,
                    tool = name,
                    reason,
                    "a tool without a usable `inputSchema` is left out"
                );
                return None;
            }
        };
        let title = tool.pointer("/annotations/title").and_then(Value::as_str);
        let description = word("description").or(word("title")).or(title).unwrap_or(name);
        let spec = Arc::new(ToolSpec {
            name: mcp::model_name(&server.name, name),
            description: description.chars().take(LONGEST_DESCRIPTION).collect(),
            parameters,
        });
        let check = ArgumentCheck::new(&spec);
        Some(Self {
            server: Arc::clone(server),
            name: name.to_owned(),
            spec,
            check,
        })
    }

    /// What the server is told of who calls, beside the arguments.
    fn about(scope: &Scope, call: &ToolCall) -> Value {
        let context = scope.own_context();
        json!({"adjutant/call": {
            "tool_call_id": call.id,
            "task_id": scope.task.map(|task| task.to_string()),
            "agent_name": scope.agent,
            "agent_path": scope.path.as_ref(),
            "thread_id": scope.thread,
            "run_id": scope.run,
            "context": (!context.is_empty()).then_some(context),
        }})
    }
}

/// The schema of a tool's arguments, when it can be used.
fn usable(schema: Option<&Value>) -> Result<&Value, String> {
    let schema = schema.filter(|schema| schema["type"] == "object");
    let schema = schema.ok_or_else(|| "it is not the schema of an object".to_owned())?;
    Schema::compile(schema).map_err(|error| error.to_string())?;
    Ok(schema)
}

#[async_trait]
impl Tool for McpTool {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    fn has_effects(&self) -> bool {
        true
    }

    fn after_crash(&self) -> AfterCrash {
        self.server.after_crash
    }

    fn on_error(&self) -> OnError {
        self.server.on_error
    }

    async fn call(&self, scope: &Scope, _: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        if let Err(text) = self.check.check(&call.args) {
            return Ok(CallOutcome::Answer(Answer::error(call, text)));
        }
        let params = json!({"name": self.name, "arguments": call.args, "_meta": Self::about(scope, call)});
        let asked = self.server.ask("tools/call", &params, self.server.timeout);
        let asked = scope.stop.run_until_cancelled(asked).await.ok_or(Halt::Stopped)?;
        let result = asked.and_then(|result| outcome(call, result));
        result.map_err(|failure| {
            Halt::Fail(Failure {
                message: self.named(&failure.message),
                ..failure
            })
        })
    }
}

impl McpTool {
    fn named(&self, what: &str) -> String {
        format!("`{}` of the MCP server `{}`: {what}", self.name, self.server.name)
    }
}
