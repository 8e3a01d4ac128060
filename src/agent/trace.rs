//! The spans of an agent's work: model calls and tool calls, by the semantic conventions of OpenTelemetry for GenAI.
//!
//! Nothing of this happens when traces are off or the trace is not sampled. Spans have contents, such as messages and
//! arguments, only if the settings ask for them.

use serde_json::{Map, Value, json};

use super::Loop;
use super::calls::PreparedCall;
use super::journal::ExitReason;
use super::subagent::ChildResult;
use crate::definition::SystemPrompt;
use crate::domain::call::{CallStatus, ToolOutput};
use crate::domain::event::AnswerHead;
use crate::domain::id::{RunId, TaskId};
use crate::domain::machine::Machine;
use crate::domain::message::{Content, Message, Role, ToolCall, ToolStatus};
use crate::domain::state::State;
use crate::domain::text_limits::first_chars;
use crate::domain::trace::{AttributeValue, SpanData, SpanId, SpanKind, TraceScope};
use crate::middleware::ModelAnswer;
use crate::model::{ModelRequest, span_provider_name};
use crate::tool::{CallOutcome, Halt};

/// The most characters of a tool's name in a span. Models make names up.
const MAX_NAME_CHARS: usize = 128;
/// The class of an error that a tool reports in its result.
const TOOL_ERROR: &str = "tool_error";
/// The class of the end of cancelled work.
const CANCELLED: &str = "cancelled";

impl Loop<'_> {
    /// Begins the span of a model call.
    pub(super) fn begin_chat(&self, request: &ModelRequest, head: &AnswerHead) -> Option<SpanData> {
        let mut span = self.scope.trace.begin(SpanKind::Client)?;
        span.name = format!("chat {}", head.model);
        span.set("gen_ai.operation.name", "chat");
        span.set("gen_ai.provider.name", span_provider_name(&head.provider).into_owned());
        span.set("gen_ai.request.model", head.model.clone());
        span.set("gen_ai.request.stream", true);
        self.set_place(&mut span);
        span.set("langsmith.span.kind", "llm");
        set_settings(&mut span, &request.settings);
        if let Some(limit) = self.scope.trace.content_bytes() {
            if !request.system.is_blank() {
                let parts = json!([{"type": "text", "content": cut(system_text(&request.system), limit)}]);
                span.set("gen_ai.system_instructions", parts.to_string());
            }
            let messages = request.messages.iter().map(AsRef::as_ref);
            span.set("gen_ai.input.messages", messages_text(messages, limit));
        }
        Some(span)
    }

    /// Returns the request with the context of its span, if the settings allow to pass it on to providers.
    pub(super) fn passing_trace_on(&self, request: ModelRequest, chat: Option<&SpanData>) -> ModelRequest {
        let context = self.scope.trace.model_context();
        let context = context.map(|context| chat.map_or(context, |span| &span.context).clone());
        ModelRequest {
            trace: context,
            ..request
        }
    }

    /// Ends the span of a model call.
    pub(super) fn end_chat(&self, span: Option<SpanData>, answer: &Result<ModelAnswer, Halt>) {
        let Some(mut span) = span else { return };
        match answer {
            Ok(answer) => set_answer(&mut span, &answer.message, self.scope.trace.content_bytes()),
            Err(halt) if !self.fail_by(&mut span, halt) => return,
            Err(_) => {}
        }
        self.scope.trace.end(Some(span));
    }

    /// Makes a call in its span. A call that is delegated gets its span when the subagent ends.
    pub(super) async fn make_in_span(&self, mut job: PreparedCall, state: &State) -> Result<CallOutcome, Halt> {
        let Some(task) = job.scope.task.filter(|_| self.scope.trace.context().is_some()) else {
            return self.make(job, state).await;
        };
        job.scope.trace = self.trace_of_call(task);
        let span = self.begin_call(&job.call, task);
        let outcome = self.make(job, state).await;
        let Some(mut span) = span else { return outcome };
        match &outcome {
            Ok(CallOutcome::Delegate(_)) => return outcome,
            Ok(CallOutcome::Answer(answer)) => set_result(&mut span, answer, self.scope.trace.content_bytes()),
            Err(halt) if !self.fail_by(&mut span, halt) => return outcome,
            Err(_) => {}
        }
        self.scope.trace.end(Some(span));
        outcome
    }

    /// Begins the span of a delegated call, which lasts until the subagent ends or waits.
    pub(super) fn begin_delegation(&self, call: &ToolCall, task: Option<TaskId>) -> Option<SpanData> {
        self.begin_call(call, task?)
    }

    /// Ends the span of a delegated call.
    pub(super) fn end_delegation(&self, span: Option<SpanData>, result: &Result<ChildResult, ExitReason>) {
        let Some(mut span) = span else { return };
        match result {
            Ok(ChildResult::Answer(answer)) => set_result(&mut span, answer, self.scope.trace.content_bytes()),
            Ok(ChildResult::ForTool(result)) => {
                let is_error = result.status == ToolStatus::Error;
                set_outcome(
                    &mut span,
                    is_error,
                    result.content.text(),
                    self.scope.trace.content_bytes(),
                );
            }
            Ok(ChildResult::Parked { .. }) => span.set("adjutant.waits", true),
            Err(ExitReason::Cancelled) if !self.leave.is_cancelled() => span.fail(CANCELLED),
            // Another process continues the run, and records the span with the same id.
            Err(ExitReason::Cancelled | ExitReason::LeaseLost | ExitReason::Unavailable | ExitReason::Fault(_)) => {
                return;
            }
        }
        self.scope.trace.end(Some(span));
    }

    /// Records the span of a delegation that a limit refused.
    pub(super) fn record_refused_delegation(&self, machine: &Machine, at: usize) {
        if !self.scope.trace.is_recorded() {
            return;
        }
        let Some(call) = machine.call(at) else {
            return;
        };
        let span = self.begin_call(&call, machine.call_task(at));
        if let (Some(mut span), Some(CallStatus::Answered(answer))) = (span, machine.call_status(at)) {
            set_result(&mut span, answer, self.scope.trace.content_bytes());
            self.scope.trace.end(Some(span));
        }
    }

    /// Returns the trace of a subagent below this agent.
    pub(super) fn trace_of_child(&self, child: RunId) -> TraceScope {
        self.scope.trace.at(|| SpanId::of_child(child, self.scope.run))
    }

    fn trace_of_call(&self, task: TaskId) -> TraceScope {
        self.scope.trace.at(|| SpanId::of_call(task, self.scope.run))
    }

    fn begin_call(&self, call: &ToolCall, task: TaskId) -> Option<SpanData> {
        let id = || SpanId::of_call(task, self.scope.run);
        let mut span = self.scope.trace.begin_as(id, SpanKind::Internal)?;
        let name = first_chars(&call.name, MAX_NAME_CHARS).to_owned();
        span.name = format!("execute_tool {name}");
        span.set("gen_ai.operation.name", "execute_tool");
        span.set("gen_ai.tool.name", name);
        span.set("gen_ai.tool.type", "function");
        span.set("gen_ai.tool.call.id", call.id.clone());
        self.set_place(&mut span);
        span.set("langsmith.span.kind", "tool");
        if let Some(limit) = self.scope.trace.content_bytes() {
            let arguments = Value::Object(call.args.clone()).to_string();
            span.set("gen_ai.tool.call.arguments", cut(arguments, limit));
        }
        Some(span)
    }

    /// Sets the attributes that say where the work happens.
    fn set_place(&self, span: &mut SpanData) {
        let thread = self.scope.thread.to_string();
        span.set("gen_ai.agent.name", self.scope.agent.clone());
        span.set("session.id", thread.clone());
        span.set("gen_ai.conversation.id", thread);
    }

    /// Sets how work ended without a result. Returns false if the span is not to be recorded, because the server stops
    /// and another process repeats the work.
    fn fail_by(&self, span: &mut SpanData, halt: &Halt) -> bool {
        match halt {
            Halt::Ask(_) => span.set("adjutant.waits", true),
            Halt::Fail(failure) => span.fail(failure.class.clone()),
            Halt::Stopped if self.leave.is_cancelled() => return false,
            Halt::Stopped => span.fail(CANCELLED),
        }
        true
    }
}

/// Sets the parameters of a request.
fn set_settings(span: &mut SpanData, settings: &Map<String, Value>) {
    for (name, key) in [
        ("temperature", "gen_ai.request.temperature"),
        ("top_p", "gen_ai.request.top_p"),
    ] {
        let value = settings.get(name).and_then(Value::as_f64);
        span.set_some(key, value.map(AttributeValue::Decimal));
    }
    let limit = settings.get("max_tokens").and_then(Value::as_u64);
    span.set_some("gen_ai.request.max_tokens", limit);
}

/// Sets what a model answered.
fn set_answer(span: &mut SpanData, message: &Message, content_bytes: Option<usize>) {
    let metadata = |keys: [&str; 2]| {
        let mut values = keys
            .iter()
            .filter_map(|key| message.response_metadata.get(*key)?.as_str());
        values.next().map(str::to_owned)
    };
    span.set_some("gen_ai.response.model", metadata(["model_name", "model"]));
    let reason = metadata(["finish_reason", "stop_reason"]);
    let reasons = reason.clone().map(|reason| AttributeValue::Texts(vec![reason]));
    span.set_some("gen_ai.response.finish_reasons", reasons);
    span.set_some("gen_ai.response.id", message.id.clone());
    if let Role::Ai {
        usage_metadata: Some(usage),
        ..
    } = &message.role
    {
        for (pointer, key) in [
            ("/input_tokens", "gen_ai.usage.input_tokens"),
            ("/output_tokens", "gen_ai.usage.output_tokens"),
            (
                "/input_token_details/cache_read",
                "gen_ai.usage.cache_read.input_tokens",
            ),
            (
                "/input_token_details/cache_creation",
                "gen_ai.usage.cache_creation.input_tokens",
            ),
        ] {
            span.set_some(key, usage.pointer(pointer).and_then(Value::as_u64));
        }
    }
    if let Some(limit) = content_bytes {
        let mut output = message_json(message, limit);
        output["finish_reason"] = json!(reason.unwrap_or_else(|| "stop".to_owned()));
        span.set("gen_ai.output.messages", json!([output]).to_string());
    }
}

/// Sets the result of a tool call.
fn set_result(span: &mut SpanData, answer: &ToolOutput, content_bytes: Option<usize>) {
    let is_error = |message: &Message| {
        matches!(
            message.role,
            Role::Tool {
                status: ToolStatus::Error,
                ..
            }
        )
    };
    let messages = &answer.writes.messages;
    let texts: Vec<String> = messages.iter().map(|message| message.content.text()).collect();
    let has_failed = messages.iter().any(|message| is_error(message));
    set_outcome(span, has_failed, texts.join("\n"), content_bytes);
}

fn set_outcome(span: &mut SpanData, has_failed: bool, text: String, content_bytes: Option<usize>) {
    if has_failed {
        span.fail(TOOL_ERROR);
    }
    if let Some(limit) = content_bytes {
        span.set("gen_ai.tool.call.result", cut(text, limit));
    }
}

/// Sets the last message of a human and the last one of the agent, as the contents of an agent's span.
pub fn set_conversation(span: &mut SpanData, state: &State, limit: usize) {
    for (key, message) in [
        ("gen_ai.input.messages", state.messages.newest(Message::is_human)),
        ("gen_ai.output.messages", state.messages.newest(Message::is_ai)),
    ] {
        span.set_some(
            key,
            message.map(|message| json!([message_json(&message, limit)]).to_string()),
        );
    }
}

/// Returns the text of the instructions.
fn system_text(system: &SystemPrompt) -> String {
    let blocks = system.blocks();
    let texts: Vec<&str> = blocks.iter().map(|block| block.text.as_str()).collect();
    texts.join("\n\n")
}

/// Returns messages as the semantic conventions write them, the newest ones up to about `limit` bytes.
fn messages_text<'a>(messages: impl DoubleEndedIterator<Item = &'a Message>, limit: usize) -> String {
    let mut left = limit;
    let mut texts = vec![];
    for message in messages.rev() {
        let text = message_json(message, left).to_string();
        if text.len() > left && !texts.is_empty() {
            break;
        }
        left = left.saturating_sub(text.len());
        texts.push(text);
    }
    texts.reverse();
    format!("[{}]", texts.join(","))
}

/// Returns a message as the semantic conventions write it. Texts are cut off at `limit` bytes.
fn message_json(message: &Message, limit: usize) -> Value {
    let role = match &message.role {
        Role::Human => "user",
        Role::System => "system",
        Role::Ai { .. } => "assistant",
        Role::Tool { .. } => "tool",
        Role::Remove => "remove",
    };
    if let Role::Tool { tool_call_id, .. } = &message.role {
        let response = cut(message.content.text(), limit);
        return json!({"role": role, "parts": [{"type": "tool_call_response", "id": tool_call_id, "response": response}]});
    }
    let text = message.content.text();
    let mut parts = vec![];
    if !text.is_empty() {
        parts.push(json!({"type": "text", "content": cut(text, limit)}));
    }
    if let Content::Blocks(blocks) = &message.content {
        // Files and images are named by their type alone.
        let others = blocks.iter().filter_map(|block| block["type"].as_str());
        parts.extend(others.filter(|kind| *kind != "text").map(|kind| json!({"type": kind})));
    }
    for call in message.tool_calls() {
        let arguments = Value::Object(call.args.clone()).to_string();
        let arguments = match arguments.len() <= limit {
            true => Value::Object(call.args.clone()),
            false => cut(arguments, limit).into(),
        };
        parts.push(json!({"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments}));
    }
    json!({"role": role, "parts": parts})
}

/// Cuts a text off at `limit` bytes.
fn cut(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_written_as_the_conventions_say() {
        let call = ToolCall::new("c1", "search", Map::from_iter([("q".to_owned(), json!("otters"))]));
        let messages = [
            Message::human("hello"),
            Message::calling([call.clone()]),
            Message::tool(&call, ToolStatus::Success, "found"),
        ];
        let text = messages_text(messages.iter(), 10_000);
        let written: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            written,
            json!([
                {"role": "user", "parts": [{"type": "text", "content": "hello"}]},
                {"role": "assistant", "parts": [
                    {"type": "tool_call", "id": "c1", "name": "search", "arguments": {"q": "otters"}}]},
                {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "found"}]},
            ])
        );
    }

    #[test]
    fn contents_are_bounded_and_remain_json() {
        let messages: Vec<Message> = (0..100)
            .map(|n| Message::human(format!("{n} {}", "é".repeat(500))))
            .collect();
        let text = messages_text(messages.iter(), 4096);
        assert!(text.len() < 8192, "{}", text.len());
        let written: Vec<Value> = serde_json::from_str(&text).expect("JSON");
        let last = written.last().expect("the newest message is there")["parts"][0]["content"].to_string();
        assert!(last.contains("99 "), "{last}");
        assert!(written.len() < 10);
    }
}
