//! A tool as its MCP server describes it.

use std::sync::Arc;

use serde_json::Value;

use crate::definition::mcp;
use crate::domain::schema::Schema;
use crate::domain::text_limits::first_chars;
use crate::model::ToolSpec;
use crate::tool::arguments::ArgumentCheck;

/// The maximum length of a description that is passed to models, in characters.
const MAX_DESCRIPTION_CHARS: usize = 16_384;

/// A tool in the list of an MCP server.
pub(super) struct ListedMcpTool {
    /// The tool's name at the server.
    pub(super) name: String,
    pub(super) spec: Arc<ToolSpec>,
    pub(super) check: ArgumentCheck,
}

impl ListedMcpTool {
    /// Creates a tool from an entry of `tools/list` of the server with this name; `None` if it cannot be offered to models.
    ///
    /// A tool whose `execution.taskSupport` is `required` answers a plain `tools/call` with an error (MCP 2025-11-25,
    /// Tasks), so it is skipped.
    pub(super) fn from_listing(server: &str, tool: &Value) -> Option<Self> {
        let text = |name: &str| {
            tool.get(name)
                .and_then(Value::as_str)
                .filter(|text| !text.trim().is_empty())
        };
        let name = text("name")?;
        if tool.pointer("/execution/taskSupport").and_then(Value::as_str) == Some("required") {
            tracing::warn!(
                server,
                tool = name,
                "skipped an MCP tool that can only be called as a task"
            );
            return None;
        }
        let parameters = match usable_schema(tool.get("inputSchema")) {
            Ok(schema) => schema.clone(),
            Err(reason) => {
                tracing::warn!(
                    server,
                    tool = name,
                    reason,
                    "skipped an MCP tool without a usable `inputSchema`"
                );
                return None;
            }
        };
        let title = tool.pointer("/annotations/title").and_then(Value::as_str);
        let description = text("description").or(text("title")).or(title).unwrap_or(name);
        let spec = Arc::new(ToolSpec {
            name: mcp::model_name(server, name),
            description: first_chars(description, MAX_DESCRIPTION_CHARS).to_owned(),
            parameters,
        });
        let check = ArgumentCheck::new(&spec);
        Some(Self {
            name: name.to_owned(),
            spec,
            check,
        })
    }
}

/// Returns the schema of a tool's arguments, or the reason why it cannot be used.
fn usable_schema(schema: Option<&Value>) -> Result<&Value, String> {
    let schema = schema.filter(|schema| schema["type"] == "object");
    let schema = schema.ok_or_else(|| "it is not the schema of an object".to_owned())?;
    Schema::compile(schema).map_err(|error| error.to_string())?;
    Ok(schema)
}
