//! Middleware: a model makes up the results of tools, which are not called. For trying out an agent whose tools have
//! effects, or do not exist yet.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::model_call::ask_model;
use super::{AgentParts, MOST_NAMES, Middleware, MiddlewareModel, NextCall, read_settings};
use crate::definition::mcp::ToolNames;
use crate::definition::{Diagnostic, FieldPath, SystemPrompt};
use crate::domain::call::ToolOutput;
use crate::domain::message::{Message, ToolCall, ToolStatus};
use crate::model::ModelRequest;
use crate::tool::{CallOutcome, Halt};

/// The instructions of the model.
const INSTRUCTIONS: &str = "You stand in for a tool that is not called. Answer with what the tool would return for these \
    arguments, and with nothing else: no explanation, and no remark that it is made up.";

/// The tool emulation middleware.
#[derive(Clone, Default)]
pub struct ToolEmulation {
    settings: ToolEmulationSettings,
    tools: ToolNames,
    model: Option<MiddlewareModel>,
    answer_tools: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ToolEmulationSettings {
    /// The tools; all when empty.
    tools: Vec<String>,
    /// The model; the agent's when absent.
    model: Option<String>,
}

#[async_trait]
impl Middleware for ToolEmulation {
    fn name(&self) -> &str {
        "LLMToolEmulator"
    }

    fn configured(&self, settings: &Map<String, Value>) -> Result<Option<Arc<dyn Middleware>>, Vec<Diagnostic>> {
        let settings: ToolEmulationSettings = read_settings(settings)?;
        if settings.tools.len() > MOST_NAMES {
            let message = format!("must name at most {MOST_NAMES} tools");
            return Err(vec![Diagnostic::error(FieldPath::of(["tools"]), message)]);
        }
        Ok(Some(Arc::new(Self {
            tools: ToolNames::of(&settings.tools),
            settings,
            ..Self::default()
        })))
    }

    fn model_setting(&self) -> Option<&'static str> {
        Some("model")
    }

    fn tools_setting(&self) -> Option<&'static str> {
        Some("tools")
    }

    fn for_agent(&self, parts: &AgentParts<'_>) -> Option<Arc<dyn Middleware>> {
        Some(Arc::new(Self {
            model: Some(parts.model_named(self.settings.model.as_deref())),
            answer_tools: parts.answer_tools.to_vec(),
            ..self.clone()
        }))
    }

    async fn wrap_tool_call(&self, call: ToolCall, next: NextCall<'_>) -> Result<CallOutcome, Halt> {
        let (Some(model), Some(spec)) = (&self.model, next.spec) else {
            return next.call(call).await;
        };
        let is_listed = self.tools.is_empty() || self.tools.contains(&call.name);
        if !is_listed || self.answer_tools.contains(&call.name) {
            return next.call(call).await;
        }
        let text = format!(
            "The tool: {}\n{}\n\nThe arguments:\n{}",
            call.name,
            spec.description,
            Value::Object(call.args.clone())
        );
        let request = ModelRequest {
            system: SystemPrompt::Text(INSTRUCTIONS.to_owned()),
            messages: vec![Arc::new(Message::human(text))],
            ..ModelRequest::default()
        };
        let answer = ask_model(next.scope, model, request).await?;
        let result = Message::tool(&call, ToolStatus::Success, answer.content.text());
        Ok(CallOutcome::Answer(ToolOutput::message(result)))
    }
}
