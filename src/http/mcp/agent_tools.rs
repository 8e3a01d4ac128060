//! The tools of the MCP server: one for each agent that the caller may run.

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::request::Parts;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, Implementation, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Map, Value, json};

use super::agent_call::AgentCall;
use crate::db::RowAccess;
use crate::domain::access::Action;
use crate::domain::schema::can_be_embedded;
use crate::domain::trace::SpanContext;
use crate::http::access::Api;
use crate::http::error::ApiError;
use crate::runtime::{DefaultAssistant, ResourceRef, called_by};

/// The largest page of tools.
const MAX_PAGE: usize = 100;

/// The text that models read about the server.
const INSTRUCTIONS: &str = "Each tool is an agent. A call starts a conversation with it, and returns its answer and a \
    `thread_id`. To continue a conversation, call the same tool with that `thread_id`.";

/// The handler of the messages of one session, or of one request. It has no state: each message brings its caller.
pub(super) struct AgentServer;

impl ServerHandler for AgentServer {
    fn get_info(&self) -> ServerConfig {
        let mut info = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
        info.server_info = Implementation::new("adjutant", env!("CARGO_PKG_VERSION")).with_title("adjutant");
        info.instructions = Some(INSTRUCTIONS.to_owned());
        info
    }

    async fn on_initialized(&self, _: NotificationContext<RoleServer>) {}

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let api = api_of(&context)?;
        let after = request.and_then(|request| request.cursor);
        let listing = list(&api, after.as_deref());
        let listed = RowAccess::of_caller(&api.caller).scope(listing).await;
        listed.map_err(|error| protocol_error(&error))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let api = api_of(&context)?;
        let access = RowAccess::of_caller(&api.caller);
        let span = parts_of(&context).and_then(|parts| parts.extensions.get::<SpanContext>().cloned());
        let call = async {
            let agent = find(&api, &request.name)
                .await
                .map_err(|error| protocol_error(&error))?;
            let agent =
                agent.ok_or_else(|| ErrorData::invalid_params(format!("Unknown tool: {}", request.name), None))?;
            Ok(Box::pin(AgentCall::new(&api, context, agent).answer(request)).await)
        };
        // In the trace the run is below the request of the call.
        called_by(span, access.scope(Box::pin(call))).await
    }
}

/// Returns the head of the request that brought a message.
fn parts_of(context: &RequestContext<RoleServer>) -> Option<&Parts> {
    context.extensions.get::<Parts>()
}

/// Returns the parts of the server for the caller of a message.
fn api_of(context: &RequestContext<RoleServer>) -> Result<Api, ErrorData> {
    let api = parts_of(context).and_then(|parts| parts.extensions.get::<Api>());
    api.cloned()
        .ok_or_else(|| ErrorData::internal_error("the message has no caller", None))
}

/// Returns the error of JSON-RPC for an error that is about no call.
fn protocol_error(error: &ApiError) -> ErrorData {
    ErrorData::internal_error(error.message().to_owned(), Some(json!({"code": error.code()})))
}

/// Returns the tools of the caller, by name, after the one of this name.
async fn list(api: &Api, after: Option<&str>) -> Result<ListToolsResult, ApiError> {
    // Other callers have other tools, and agents come and go.
    let mut result = ListToolsResult {
        ttl_ms: Some(0),
        cache_scope: Some(CacheScope::Private),
        ..ListToolsResult::default()
    };
    if !api.may(Action::ThreadsCreateRun, ResourceRef::Collection).await? {
        return Ok(result);
    }
    let mut agents = api.assistants.default_assistants(&api.caller.tenant);
    agents.sort_by(|one, other| one.graph_id.cmp(&other.graph_id));
    agents.retain(|agent| after.is_none_or(|after| agent.graph_id.as_str() > after));
    for agent in agents {
        if result.tools.len() == MAX_PAGE {
            result.next_cursor = result.tools.last().map(|last| last.name.to_string());
            break;
        }
        if may_run(api, &agent).await? {
            result.tools.push(tool(api, &agent));
        }
    }
    Ok(result)
}

/// Returns the agent of this name, if the caller may run it.
async fn find(api: &Api, name: &str) -> Result<Option<DefaultAssistant>, ApiError> {
    let agents = api.assistants.default_assistants(&api.caller.tenant);
    let Some(agent) = agents.into_iter().find(|agent| agent.graph_id == name) else {
        // An agent that only other tenants have is refused like one that does not exist, but that is recorded.
        drop(api.check_agent(Action::ThreadsCreateRun, name));
        return Ok(None);
    };
    Ok(may_run(api, &agent).await?.then_some(agent))
}

async fn may_run(api: &Api, agent: &DefaultAssistant) -> Result<bool, ApiError> {
    api.may(Action::AssistantsRead, ResourceRef::Assistant(agent.id)).await
}

/// Returns the tool of an agent.
fn tool(api: &Api, agent: &DefaultAssistant) -> Tool {
    let record = api.definitions.agent(&agent.graph_id);
    let description = record.and_then(|record| record.version.definition.description.clone());
    let description = description.unwrap_or_else(|| format!("Runs the agent {}.", agent.name));
    let schemas = api.assistants.schemas(&api.caller.tenant, &agent.graph_id);
    let context = schemas.as_ref().and_then(|schemas| schemas.context.clone());
    let answer = schemas.and_then(|schemas| schemas.output.pointer("/properties/structured_response").cloned());
    let name: Cow<'static, str> = agent.graph_id.clone().into();
    Tool::new(name, description, Arc::new(input_schema(context)))
        .with_title(agent.name.clone())
        .with_raw_output_schema(Arc::new(output_schema(answer)))
}

/// Returns the schema of the arguments of a call.
fn input_schema(context: Option<Value>) -> Map<String, Value> {
    let context = context
        .filter(can_be_embedded)
        .unwrap_or_else(|| json!({"type": "object"}));
    object(json!({
        "type": "object",
        "properties": {
            "message": {"type": "string", "description": "The message to the agent: what it shall do, with all it has to know."},
            "thread_id": {"type": "string", "format": "uuid",
                "description": "The conversation to continue: the `thread_id` of an earlier result. A new one begins without it."},
            "context": context,
        },
        "required": ["message"],
        "additionalProperties": false,
    }))
}

/// Returns the schema of the structured content of a result.
fn output_schema(answer: Option<Value>) -> Map<String, Value> {
    let answer = answer.filter(can_be_embedded);
    let answer = answer.unwrap_or_else(|| json!({"description": "The last answer of the agent."}));
    let interrupt = json!({
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "value": {"description": "The question."},
            "response_schema": {"description": "The JSON Schema of a valid answer."},
            "resolve_url": {"type": "string", "description": "The path to which the answer is posted."},
        },
        "required": ["id", "value", "resolve_url"],
    });
    object(json!({
        "type": "object",
        "properties": {
            "thread_id": {"type": "string", "format": "uuid"},
            "run_id": {"type": "string", "format": "uuid"},
            "status": {"enum": ["success", "interrupted", "error", "timeout"]},
            "answer": answer,
            "interrupts": {"type": "array", "items": interrupt},
        },
        "required": ["thread_id", "run_id", "status"],
    }))
}

fn object(schema: Value) -> Map<String, Value> {
    match schema {
        Value::Object(fields) => fields,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_with_references_is_not_embedded() {
        let plain = json!({"type": "object", "properties": {"metal": {"type": "string"}}});
        assert_eq!(output_schema(Some(plain.clone()))["properties"]["answer"], plain);
        let referring = json!({"$defs": {"m": {}}, "properties": {"metal": {"$ref": "#/$defs/m"}}});
        let embedded = output_schema(Some(referring));
        assert!(embedded["properties"]["answer"].get("$defs").is_none());
        assert_eq!(input_schema(None)["required"], json!(["message"]));
    }
}
