//! A tool of an MCP server.

use std::pin::pin;
use std::sync::Arc;

use async_trait::async_trait;
use rmcp::model::{CallToolRequest, CallToolRequestParams, MetaObject, RequestMetaObject};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::elicitation;
use super::input::{CallInput, Requirement};
use super::listed_tool::ListedMcpTool;
use super::notices::CallNotices;
use super::outcome::outcome;
use super::request_headers::ArgumentHeaders;
use super::server::{CallEnd, McpServer};
use crate::definition::{AfterCrash, OnError};
use crate::domain::call::{DelegationResult, ToolOutput};
use crate::domain::interrupt::Question;
use crate::domain::machine::Failure;
use crate::domain::message::ToolCall;
use crate::domain::state::State;
use crate::domain::trace::{SpanContext, SpanData, SpanKind};
use crate::model::ToolSpec;
use crate::tool::halt::Halt;
use crate::tool::outcome::CallOutcome;
use crate::tool::read_access::CallToken;
use crate::tool::scope::Scope;
use crate::tool::toolbox::Tool;

/// The field of `_meta` that asks for lines of the server's log, from version 2026-07-28 of the protocol on. Before, the server
/// decides.
const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// A tool of an MCP server.
pub(super) struct McpTool {
    server: Arc<McpServer>,
    listed: Arc<ListedMcpTool>,
}

impl McpTool {
    /// Returns the tool with this entry in the list of its server.
    pub(super) fn new(server: &Arc<McpServer>, listed: Arc<ListedMcpTool>) -> Self {
        Self {
            server: Arc::clone(server),
            listed,
        }
    }

    /// Returns the tool's name at the server.
    pub(super) fn name(&self) -> &str {
        &self.listed.name
    }

    /// Returns the `_meta` of a call: its ids, its agent, the context of the run and that of the trace.
    fn meta(
        scope: &Scope,
        call: &ToolCall,
        token: Option<&CallToken>,
        trace: Option<&SpanContext>,
    ) -> RequestMetaObject {
        let context = scope.own_context();
        let mut own = json!({
            "tool_call_id": call.id,
            "task_id": scope.task.map(|task| task.to_string()),
            "agent_name": scope.agent,
            "agent_path": scope.path.as_ref(),
            "thread_id": scope.thread,
            "run_id": scope.run,
            "context": (!context.is_empty()).then_some(context),
        });
        if !scope.delegations.is_empty() {
            own["delegations"] = scope.delegations.iter().map(DelegationResult::for_tool).collect();
        }
        if let Some(token) = token {
            own["read_access"] = token.for_tool();
        }
        let mut meta = MetaObject::new();
        meta.insert("adjutant/call".to_owned(), own);
        meta.insert(LOG_LEVEL.to_owned(), "info".into());
        for (name, value) in trace.into_iter().flat_map(SpanContext::headers) {
            meta.insert(name.to_owned(), value.into());
        }
        RequestMetaObject(meta)
    }
}

/// The answer of the server to a call.
enum Answer {
    /// The result.
    Result(Value),
    /// The questions that humans have to answer first.
    Questions(Vec<Question>),
}

/// Replaces the token of the call in what the server has sent.
fn without_token(token: Option<&CallToken>, value: Value) -> Value {
    match token {
        Some(token) => token.hide_in_value(value),
        None => value,
    }
}

#[async_trait]
impl Tool for McpTool {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.listed.spec
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
        if let Err(text) = self.listed.check.check(&call.args) {
            return Ok(CallOutcome::Answer(ToolOutput::error(call, text)));
        }
        let server = &self.server;
        let token = CallToken::issue(
            scope,
            &self.listed.spec.name,
            &server.read_access,
            server.longest_call(),
        )
        .await?;
        let outcome = self.request(scope, call, token.as_ref()).await;
        if let Some(token) = token {
            token.end().await;
        }
        outcome
    }
}

impl McpTool {
    /// Makes the call.
    async fn request(&self, scope: &Scope, call: &ToolCall, token: Option<&CallToken>) -> Result<CallOutcome, Halt> {
        let mut params = CallToolRequestParams::new(self.listed.name.clone()).with_arguments(call.args.clone());
        let mut span = self.begin_span(scope);
        let context = span.as_ref().map(|span| &span.context).or(scope.trace.context());
        params.meta = Some(Self::meta(scope, call, token, context));
        let answer = self.answer(scope, call, token, params);
        let answer = scope.stop.run_until_cancelled(answer).await.ok_or(Halt::Stopped)?;
        let result = match answer {
            Ok(Answer::Result(result)) => outcome(call, without_token(token, result)),
            Ok(Answer::Questions(questions)) => {
                scope.trace.end(span);
                let hidden = |question: Question| Question {
                    value: without_token(token, question.value),
                    ..question
                };
                return Err(Halt::Ask(questions.into_iter().map(hidden).collect()));
            }
            Err(failure) => Err(failure),
        };
        if let (Some(span), Err(failure)) = (&mut span, &result) {
            span.fail(failure.class.clone());
        }
        scope.trace.end(span);
        result.map_err(|failure| {
            let failure = Failure {
                message: self.with_names(&failure.message),
                ..failure
            };
            Halt::Fail(match token {
                Some(token) => token.hide_in_failure(failure),
                None => failure,
            })
        })
    }

    /// Makes the call, and sends to clients meanwhile what the server tells about it.
    async fn answer(
        &self,
        scope: &Scope,
        call: &ToolCall,
        token: Option<&CallToken>,
        params: CallToolRequestParams,
    ) -> Result<Answer, Failure> {
        let notices = CallNotices::new(&scope.ownership);
        // Also if the run stops.
        let _end = notices.end_on_drop();
        let event_of = |name: &str, mut payload: Value| {
            payload["lc_agent_name"] = json!(scope.agent);
            payload["tool_call_id"] = json!(call.id);
            payload["tool_name"] = json!(call.name);
            without_token(token, json!({"name": name, "payload": payload}))
        };
        let mut sending = pin!(notices.send_to(&scope.progress, event_of));
        let mut answering = Box::pin(self.result_or_questions(scope, params, &notices));
        tokio::select! {
            biased;
            answer = answering.as_mut() => {
                notices.end();
                sending.await;
                answer
            }
            () = sending.as_mut() => answering.await,
        }
    }

    /// Makes the call, and makes it again while its result requires only what is known. All of this takes no longer than
    /// one call may take.
    async fn result_or_questions(
        &self,
        scope: &Scope,
        params: CallToolRequestParams,
        notices: &CallNotices,
    ) -> Result<Answer, Failure> {
        let arguments = params.arguments.clone().unwrap_or_default();
        let headers = ArgumentHeaders::of(&self.listed.spec.parameters, &arguments);
        let mut input = CallInput::of(&scope.answers);
        let begun = Instant::now();
        loop {
            let mut request = CallToolRequest::new(input.add_to(params.clone()));
            request.extensions.insert(headers.clone());
            request.extensions.insert(notices.clone());
            let limit = self.server.left_since(begun);
            let result = match self.server.call(request, &scope.answers, limit).await? {
                CallEnd::Result(result) => result,
                CallEnd::Asked(asked) => {
                    let question = elicitation::question(&asked, scope.answers.len())?;
                    return Ok(Answer::Questions(vec![question]));
                }
            };
            match input.requirement(&result, self.server.may_ask())? {
                None => return Ok(Answer::Result(result)),
                Some(Requirement::Answers(questions)) => return Ok(Answer::Questions(questions)),
                Some(Requirement::Call(next)) => input = next,
            }
            sleep(input.pause()).await;
        }
    }

    /// Begins the span of a request to the server, by the semantic conventions for MCP.
    fn begin_span(&self, scope: &Scope) -> Option<SpanData> {
        let mut span = scope.trace.begin(SpanKind::Client)?;
        span.name = format!("tools/call {}", self.listed.name);
        span.set("mcp.method.name", "tools/call");
        span.set("gen_ai.operation.name", "execute_tool");
        span.set("gen_ai.tool.name", self.listed.name.clone());
        span.set("adjutant.mcp.server", self.server.name.clone());
        Some(span)
    }

    fn with_names(&self, what: &str) -> String {
        format!(
            "`{}` of the MCP server `{}`: {what}",
            self.listed.name, self.server.name
        )
    }
}
