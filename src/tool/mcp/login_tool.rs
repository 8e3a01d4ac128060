//! The tool that stands where those of a server would be, while no operator has logged in to it. Without it an agent would
//! seem to have no such tools, and nobody would hear why.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;

use super::server::McpServer;
use crate::definition::mcp;
use crate::domain::call::ToolOutput;
use crate::domain::machine::Failure;
use crate::domain::message::ToolCall;
use crate::domain::state::State;
use crate::model::ToolSpec;
use crate::tool::halt::Halt;
use crate::tool::outcome::CallOutcome;
use crate::tool::scope::Scope;
use crate::tool::toolbox::Tool;

/// The tool of a server to which no operator has logged in. Its result is an error that names the command.
pub(super) struct LoginTool {
    server: Arc<McpServer>,
    spec: Arc<ToolSpec>,
    problem: String,
}

impl LoginTool {
    /// The tool's name at its server.
    pub(super) const NAME: &str = "login_required";

    /// Returns the tool of a server; none if nobody has to log in.
    pub(super) fn of(server: &Arc<McpServer>) -> Option<Self> {
        let problem = format!("the MCP server `{}` {}", server.name, server.login_required()?);
        let description = format!("The tools of a server are missing: {problem}. Tell the user so.");
        let spec = ToolSpec {
            name: mcp::model_name(&server.name, Self::NAME),
            description,
            parameters: json!({"type": "object", "properties": {}}),
        };
        Some(Self {
            server: Arc::clone(server),
            spec: Arc::new(spec),
            problem,
        })
    }
}

#[async_trait]
impl Tool for LoginTool {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    async fn call(&self, _: &Scope, _: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        // Someone may have logged in meanwhile.
        self.server.connect_soon();
        let failure = Failure::new("McpLoginError", self.problem.clone());
        let output = ToolOutput::error(call, self.problem.clone()).with_failure(failure);
        Ok(CallOutcome::Answer(output))
    }
}
