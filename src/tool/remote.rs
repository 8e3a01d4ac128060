//! Tools behind HTTP: one POST for each call.
//!
//! The request names the call (`Idempotency-Key`), the agent that makes it and its run. The response is a result, a
//! write into the state, a request to delegate, whose result may come back in another call, or questions to a human,
//! after whose answers the call is made again with them; anything else is a failure, which the loop turns into an error result. A response of several lines
//! (`application/x-ndjson`) may send progress to clients while the tool runs; its last line is the result.
//!
//! [`server`] learns the tools of a service that describes them itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url, redirect};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::read_access::CallToken;
use super::request_span::RequestSpan;
use super::{CallOutcome, Delegation, Halt, Scope, Tool};
use crate::definition::{AfterCrash, OnError, ReadAccess, ToolDefinition};
use crate::domain::Invalid;
use crate::domain::approvers::Approvers;
use crate::domain::backoff::Backoff;
use crate::domain::call::{DelegationResult, ToolOutput};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::input::read_initial;
use crate::domain::interrupt::{Question, QuestionKind};
use crate::domain::json_limits::read_foreign;
use crate::domain::machine::Failure;
use crate::domain::message::{Content, Message, Role, ToolCall, ToolStatus};
use crate::domain::run::AfterDelegation;
use crate::domain::schema::Schema;
use crate::domain::state::{State, Update, is_private};
use crate::model::ToolSpec;
use crate::model::pieces::{PieceError, PieceLimits, PieceReader};
use crate::net;

pub mod server;

/// The header by which a tool recognises a repeated call.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The header with the task id, which is unique even when a provider reuses call ids.
const TASK_ID: &str = "adjutant-task-id";
/// The default limit of a response, in bytes.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;
/// The maximum number of characters of an error response that are shown to the model.
const MAX_ERROR_CHARS: usize = 2_000;
/// The maximum number of questions of one call, over all of its attempts.
pub(super) const MAX_QUESTIONS: usize = 64;
/// The maximum size of a question and of the schema of its answer, in bytes.
pub(super) const MAX_QUESTION_BYTES: usize = 256 * 1024;
/// The maximum length of the key of a question, in bytes.
pub(super) const MAX_KEY_BYTES: usize = 256;
/// The media types of an answer that are understood.
const ACCEPTED: &str = "application/json, application/x-ndjson";
/// The statuses by which a service says that it has no such tool, or another version of it.
const STALE: [StatusCode; 3] = [StatusCode::NOT_FOUND, StatusCode::CONFLICT, StatusCode::GONE];

/// Creates an HTTP client for tools. It follows no redirects, which could send a call to another server.
///
/// # Errors
/// When TLS cannot be initialised.
pub fn client() -> Result<Client, reqwest::Error> {
    net::client_builder()
        .redirect(redirect::Policy::none())
        .connect_timeout(Duration::from_secs(10))
        .build()
}

/// The pauses before a call is made again.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(250), Duration::from_secs(10));
/// The statuses of a tool, or of a gateway before it, that is busy or not available for now.
const BUSY: [StatusCode; 4] = [
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];

/// An attempt at a call that had no result.
struct FailedAttempt {
    halt: Halt,
    /// True if a repeated call may succeed.
    may_retry: bool,
}

impl<T: Into<Halt>> From<T> for FailedAttempt {
    fn from(halt: T) -> Self {
        Self {
            halt: halt.into(),
            may_retry: false,
        }
    }
}

/// A tool behind HTTP.
pub struct RemoteTool {
    spec: Arc<ToolSpec>,
    client: Client,
    url: Url,
    headers: HeaderMap,
    timeout: Duration,
    max_retries: u32,
    max_answer_bytes: usize,
    pieces: PieceLimits,
    after_crash: AfterCrash,
    on_error: OnError,
    /// The name of the tool at its service, if models know it under another.
    own_name: Option<String>,
    /// Notified when the service says that it has no such tool.
    stale: Option<Arc<Notify>>,
    /// The fields of the state that are sent with a call.
    state_fields: Vec<String>,
    /// The parts of its run that a call may read.
    read_access: ReadAccess,
}

impl RemoteTool {
    /// Creates the tool `name` from its definition; `client` sends its requests (see [`client`]).
    ///
    /// # Errors
    /// The field of the definition that is invalid.
    pub fn new(name: &str, definition: &ToolDefinition, client: Client) -> Result<Self, Invalid> {
        let url = Url::parse(&definition.url).map_err(|error| Invalid::new("url", error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Invalid::new(
                "url",
                format!("begins with `{}:`, but must with `http:` or `https:`", url.scheme()),
            ));
        }
        if definition.parameters.get("type").and_then(Value::as_str) != Some("object") {
            return Err(Invalid::new(
                "parameters",
                "must be a JSON Schema with \"type\": \"object\"",
            ));
        }
        Schema::compile(&definition.parameters)
            .map_err(|error| Invalid::new("parameters", format!("is not a JSON Schema: {error}")))?;
        let timeout = Duration::try_from_secs_f64(definition.timeout_s)
            .ok()
            .filter(|timeout| !timeout.is_zero())
            .ok_or_else(|| Invalid::new("timeout_s", "must be a number of seconds above 0"))?;
        let spec = ToolSpec {
            name: name.to_owned(),
            description: definition.description.clone(),
            parameters: definition.parameters.clone(),
        };
        Ok(Self {
            spec: Arc::new(spec),
            client,
            url,
            headers: headers(&definition.headers.0)?,
            timeout,
            max_retries: definition.max_retries,
            max_answer_bytes: MAX_ANSWER_BYTES,
            pieces: PieceLimits::default(),
            after_crash: definition.after_crash,
            on_error: definition.on_error,
            own_name: None,
            stale: None,
            state_fields: vec![],
            read_access: definition.read_access.clone(),
        })
    }

    /// Sets the name under which the service knows the tool.
    #[must_use]
    pub fn with_own_name(self, name: &str) -> Self {
        Self {
            own_name: Some(name.to_owned()),
            ..self
        }
    }

    /// Has `stale` notified when the service answers a call by saying that it has no such tool.
    #[must_use]
    pub fn with_stale_signal(self, stale: Arc<Notify>) -> Self {
        Self {
            stale: Some(stale),
            ..self
        }
    }

    /// Has these fields of the state sent with each call. Private ones are left out.
    #[must_use]
    pub fn with_state_fields(self, fields: Vec<String>) -> Self {
        Self {
            state_fields: fields,
            ..self
        }
    }

    /// Sets the maximum size of a response, in bytes.
    #[must_use]
    pub fn with_longest_answer(self, max_answer_bytes: usize) -> Self {
        Self {
            max_answer_bytes,
            ..self
        }
    }

    /// Sets the time limits for the pieces of a response.
    #[must_use]
    pub fn with_pieces(self, pieces: PieceLimits) -> Self {
        Self { pieces, ..self }
    }

    /// Makes the call, and makes it again while that may help, all within the tool's time-out.
    async fn post(
        &self,
        scope: &Scope,
        state: &State,
        call: &ToolCall,
        token: Option<&CallToken>,
    ) -> Result<CallOutcome, Halt> {
        let body = self.request_body(scope, state, call, token)?;
        let end = Instant::now() + self.timeout;
        let max_retries = usize::try_from(self.max_retries).unwrap_or(0);
        for pause in BACKOFF.pauses_with_jitter().take(max_retries) {
            let left = end.saturating_duration_since(Instant::now());
            let failed = match self.attempt(scope, call, body.clone(), token, left).await {
                Ok(outcome) => return Ok(outcome),
                Err(failed) => failed,
            };
            if !failed.may_retry || Instant::now() + pause >= end {
                return Err(failed.halt);
            }
            tracing::debug!(
                tool = self.spec.name,
                halt = ?failed.halt,
                "the tool failed; calling again"
            );
            tokio::time::sleep(pause).await;
        }
        let left = end.saturating_duration_since(Instant::now());
        let last = self.attempt(scope, call, body, token, left).await;
        last.map_err(|failed| failed.halt)
    }

    /// Returns the body of a request, which is the same for all attempts.
    fn request_body(
        &self,
        scope: &Scope,
        state: &State,
        call: &ToolCall,
        token: Option<&CallToken>,
    ) -> Result<String, Failure> {
        let context = scope.own_context();
        let own = scope.answers.iter();
        let own = own.filter(|(question, _)| question.kind == QuestionKind::Question);
        let answers =
            own.map(|(question, response)| json!({"key": question.key, "value": question.value, "response": response}));
        let answers: Vec<Value> = answers.collect();
        let public = self.state_fields.iter().filter(|field| !is_private(field));
        let sent = public.filter_map(|field| Some((field.clone(), state.value(field)?.into_owned())));
        let body = CallBody {
            name: self.own_name.as_ref().unwrap_or(&call.name),
            args: &call.args,
            tool_call_id: &call.id,
            agent_name: &scope.agent,
            agent_path: &scope.path,
            thread_id: scope.thread,
            run_id: scope.run,
            context: (!context.is_empty()).then_some(&context),
            answers,
            delegations: scope.delegations.iter().map(DelegationResult::for_tool).collect(),
            read_access: token.map(CallToken::for_tool),
            state: (!self.state_fields.is_empty()).then(|| sent.collect()),
        };
        let body = serde_json::to_string(&body).map_err(|error| Failure::new("RuntimeError", error.to_string()))?;
        if !self.state_fields.is_empty() && body.len() > self.max_answer_bytes {
            let message = format!(
                "the state that the tool `{}` asks for is longer than {} bytes",
                self.spec.name, self.max_answer_bytes
            );
            return Err(Failure::new("ToolStateError", message));
        }
        Ok(body)
    }

    /// Makes one request, in a span of its own.
    async fn attempt(
        &self,
        scope: &Scope,
        call: &ToolCall,
        body: String,
        token: Option<&CallToken>,
        timeout: Duration,
    ) -> Result<CallOutcome, FailedAttempt> {
        let mut trace = RequestSpan::begin(&scope.trace, &self.url);
        let request = self.request(scope, call, body, timeout);
        let request = match self.headers.contains_key("traceparent") {
            true => request,
            false => trace.pass_on(request),
        };
        let outcome = self.send(scope, call, request, token, &mut trace).await;
        let failure = outcome.as_ref().err().and_then(|failed| failed.halt.failure());
        trace.end(&scope.trace, failure.map(|failure| failure.class.as_str()));
        outcome
    }

    fn request(&self, scope: &Scope, call: &ToolCall, body: String, timeout: Duration) -> RequestBuilder {
        self.client
            .post(self.url.clone())
            .headers(self.headers.clone())
            .header(IDEMPOTENCY_KEY, header_value(&call.id))
            .header(TASK_ID, scope.task.map(|task| task.to_string()).unwrap_or_default())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, ACCEPTED)
            .body(body)
            .timeout(timeout)
    }

    async fn send(
        &self,
        scope: &Scope,
        call: &ToolCall,
        request: RequestBuilder,
        token: Option<&CallToken>,
        trace: &mut RequestSpan,
    ) -> Result<CallOutcome, FailedAttempt> {
        let response = PieceReader::open(request, self.pieces)
            .await
            .map_err(|error| FailedAttempt {
                halt: self.unreachable(&error).into(),
                // A tool that was not reached has done nothing.
                may_retry: matches!(&error, PieceError::Broken(error) if error.is_connect()),
            })?;
        trace.set_status(response.head().status());
        let status = response.head().status();
        if status == StatusCode::OK && is_ndjson(response.head()) {
            let answer = self.read_lines(scope, &call.id, token, response).await?;
            return Ok(self.outcome(scope, call, answer).await?);
        }
        let text = hide(token, self.read(response).await?);
        if status != StatusCode::OK {
            if STALE.contains(&status) {
                self.stale.iter().for_each(|stale| stale.notify_one());
            }
            return Err(FailedAttempt {
                halt: self.refused(status, &text).into(),
                may_retry: BUSY.contains(&status),
            });
        }
        let answer = read_foreign(&text).map_err(|error| self.invalid_answer(&format!("the answer {error}")))?;
        Ok(self.outcome(scope, call, answer).await?)
    }

    /// Reads a response of several lines up to the line with the result. The lines before it are sent to clients at
    /// once.
    async fn read_lines(
        &self,
        scope: &Scope,
        call: &str,
        token: Option<&CallToken>,
        mut response: PieceReader,
    ) -> Result<Value, Failure> {
        let mut line = Vec::new();
        let mut length = 0;
        while let Some(chunk) = response.next().await.map_err(|error| self.unreachable(&error))? {
            length += chunk.len();
            if length > self.max_answer_bytes {
                return Err(self.too_long());
            }
            for part in chunk.split_inclusive(|byte| *byte == b'\n') {
                line.extend_from_slice(part);
                if line.ends_with(b"\n")
                    && let Some(result) = self
                        .read_line(scope, call, &hide(token, std::mem::take(&mut line)))
                        .await?
                {
                    return Ok(result);
                }
            }
        }
        let last = self.read_line(scope, call, &hide(token, line)).await?;
        last.ok_or_else(|| self.invalid_answer("the answer ended before the line with the result"))
    }

    /// Sends the progress in a line to clients, or returns the line if it is the result.
    async fn read_line(&self, scope: &Scope, call: &str, line: &[u8]) -> Result<Option<Value>, Failure> {
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        let mut line: Value =
            read_foreign(line).map_err(|error| self.invalid_answer(&format!("a line of the answer {error}")))?;
        let is_given = |name: &&str| line.get(*name).is_some_and(|value| !value.is_null());
        let is_result = ["content", "delegate", "interrupts", "error"].iter().any(is_given);
        let has_progress = ["custom", "output"].iter().any(|name| line.get(name).is_some());
        if is_result || !has_progress {
            return Ok(Some(line));
        }
        match line["output"].take() {
            Value::Null => {}
            Value::String(text) => scope.progress.send_output(call, text).await,
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                return Err(self.invalid_answer("`output` in a line of the answer is not a text"));
            }
        }
        match line["custom"].take() {
            Value::Null => {}
            Value::Array(values) => self.send_custom(scope, values).await,
            value @ Value::Object(_) => scope.progress.send(value).await,
            Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                return Err(self.invalid_answer("`custom` in a line of the answer is neither a list nor an object"));
            }
        }
        Ok(None)
    }

    async fn send_custom(&self, scope: &Scope, values: Vec<Value>) {
        for value in values {
            scope.progress.send(value).await;
        }
    }

    /// Reads the body up to the limit: all of a result, the beginning of an error.
    async fn read(&self, mut response: PieceReader) -> Result<Vec<u8>, Failure> {
        let is_ok = response.head().status() == StatusCode::OK;
        let mut body = Vec::new();
        while let Some(chunk) = response.next().await.map_err(|error| self.unreachable(&error))? {
            body.extend_from_slice(&chunk);
            // Only the first characters of an error are shown, each of at most four bytes.
            if !is_ok && body.len() >= MAX_ERROR_CHARS * 4 {
                break;
            }
            if body.len() > self.max_answer_bytes {
                return Err(self.too_long());
            }
        }
        Ok(body)
    }

    /// Converts a response into an outcome, and sends its `custom` values to clients.
    async fn outcome(&self, scope: &Scope, call: &ToolCall, answer: Value) -> Result<CallOutcome, Halt> {
        let fields = match answer {
            Value::String(text) => return Ok(result(call, text.into(), None, Update::none())),
            Value::Object(_) => answer,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
                let why = "the answer is neither a JSON string nor an object with `content`";
                return Err(self.invalid_answer(why).into());
            }
        };
        let answer: RemoteAnswer = serde_json::from_value(fields)
            .map_err(|error| self.invalid_answer(&format!("the answer has an unexpected form ({error})")))?;
        self.send_custom(scope, answer.custom).await;
        if let Some(error) = answer.error {
            return Err(self.failed(error).into());
        }
        if let Some(interrupts) = answer.interrupts {
            return Err(Halt::Ask(self.questions(scope, interrupts)?));
        }
        if let Some(request) = answer.delegate {
            let initial = read_initial(&request.initial_messages.unwrap_or_default())
                .map_err(|(at, why)| self.invalid_answer(&format!("`delegate.initial_messages[{at}]`: {why}")))?;
            let delegation = Delegation::to(request.subagent_type, request.description)
                .with_response_format(request.response_format);
            let delegation = delegation
                .with_initial_messages(initial)
                .with_system_prompt(request.system_prompt)
                .then(request.then);
            return Ok(CallOutcome::Delegate(delegation));
        }
        let Some(content) = answer.content else {
            let why = "the answer has none of `content`, `delegate`, `interrupts` and `error`";
            return Err(self.invalid_answer(why).into());
        };
        if let Some(field) = answer.update.fields.keys().find(|field| is_private(field)) {
            let why = format!("the answer writes the field `{field}`, which belongs to the server");
            return Err(self.invalid_answer(&why).into());
        }
        Ok(result(call, content, answer.artifact, answer.update))
    }

    /// Returns the questions of an answer that asks a human. A question without a key gets its number.
    fn questions(&self, scope: &Scope, interrupts: Vec<RemoteQuestion>) -> Result<Vec<Question>, Failure> {
        let answered = scope.answers.len();
        let count = answered + interrupts.len();
        if interrupts.is_empty() {
            return Err(self.invalid_answer("`interrupts` of the answer is empty"));
        }
        if count > MAX_QUESTIONS {
            let why = format!("the call asks {count} questions; at most {MAX_QUESTIONS} are allowed");
            return Err(self.invalid_answer(&why));
        }
        let mut questions = vec![];
        for (at, asked) in interrupts.into_iter().enumerate() {
            let question = question(answered + at + 1, asked);
            let question = question.map_err(|why| self.invalid_answer(&format!("`interrupts[{at}]` {why}")))?;
            if questions.iter().any(|other: &Question| other.key == question.key) {
                return Err(self.invalid_answer(&format!("`interrupts[{at}]` has the key of another question")));
            }
            questions.push(question);
        }
        Ok(questions)
    }

    /// Converts an error that the tool itself reports.
    fn failed(&self, error: RemoteError) -> Failure {
        let message = without_secrets(error.message, &self.headers);
        let kind = error.kind.map(|kind| format!("{kind}: ")).unwrap_or_default();
        let text: String = format!("{kind}{message}").chars().take(MAX_ERROR_CHARS).collect();
        Failure::new("ToolError", format!("the tool `{}` failed: {text}", self.spec.name))
    }

    fn unreachable(&self, error: &PieceError) -> Failure {
        let name = &self.spec.name;
        let error = match error {
            PieceError::Silent(limit) => {
                let message = format!("the tool `{name}` did not answer in time: {limit}");
                return Failure::new("ToolTimeoutError", message);
            }
            PieceError::Broken(error) => error,
        };
        // A timeout while connecting is a failed connection: the tool has not received the call.
        if error.is_timeout() && !error.is_connect() {
            let message = format!(
                "the tool `{name}` did not answer within {} s (its `timeout_s`)",
                self.timeout.as_secs_f64()
            );
            return Failure::new("ToolTimeoutError", message);
        }
        let what = if error.is_connect() {
            "could not be reached"
        } else {
            "closed the connection before its answer was complete"
        };
        Failure::new("ToolConnectionError", format!("the tool `{name}` {what}"))
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> Failure {
        let body = without_secrets(String::from_utf8_lossy(body).into_owned(), &self.headers);
        let excerpt: String = body.chars().take(MAX_ERROR_CHARS).collect();
        let message = format!(
            "the tool `{}` answered with status {}: {excerpt}",
            self.spec.name,
            status.as_u16()
        );
        Failure::new("ToolHttpError", message)
    }

    fn too_long(&self) -> Failure {
        self.invalid_answer(&format!("the answer is longer than {} bytes", self.max_answer_bytes))
    }

    fn invalid_answer(&self, why: &str) -> Failure {
        Failure::new(
            "ToolAnswerError",
            format!("the tool `{}` returned an invalid answer: {why}", self.spec.name),
        )
    }
}

#[async_trait]
impl Tool for RemoteTool {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    fn has_effects(&self) -> bool {
        true
    }

    fn after_crash(&self) -> AfterCrash {
        self.after_crash
    }

    fn on_error(&self) -> OnError {
        self.on_error
    }

    async fn call(&self, scope: &Scope, state: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        let token = CallToken::issue(scope, &self.spec.name, &self.read_access, self.timeout).await?;
        let outcome = tokio::select! {
            biased;
            () = scope.stop.cancelled() => Err(Halt::Stopped),
            outcome = self.post(scope, state, call, token.as_ref()) => outcome,
        };
        if let Some(token) = token {
            token.end().await;
        }
        outcome
    }
}

/// The body of a request for a call.
#[derive(Serialize)]
struct CallBody<'a> {
    name: &'a str,
    args: &'a Map<String, Value>,
    tool_call_id: &'a str,
    agent_name: &'a str,
    agent_path: &'a [String],
    thread_id: ThreadId,
    run_id: RunId,
    context: Option<&'a Map<String, Value>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    answers: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    delegations: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    read_access: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<Map<String, Value>>,
}

/// A response that is a JSON object.
#[derive(Deserialize)]
struct RemoteAnswer {
    content: Option<Content>,
    artifact: Option<Value>,
    #[serde(default)]
    update: Update,
    delegate: Option<DelegateRequest>,
    interrupts: Option<Vec<RemoteQuestion>>,
    error: Option<RemoteError>,
    #[serde(default)]
    custom: Vec<Value>,
}

/// A question to a human.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoteQuestion {
    #[serde(default)]
    key: Option<String>,
    value: Value,
    #[serde(default)]
    response_schema: Option<Value>,
    #[serde(default)]
    approvers: Approvers,
}

/// An error that the tool itself reports.
#[derive(Deserialize)]
struct RemoteError {
    #[serde(rename = "type")]
    kind: Option<String>,
    message: String,
}

/// Returns whether the response is newline-delimited JSON.
fn is_ndjson(response: &Response) -> bool {
    let kind = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    ["application/x-ndjson", "application/jsonl"]
        .iter()
        .any(|lines| kind.eq_ignore_ascii_case(lines))
}

/// A request to delegate to a subagent.
#[derive(Deserialize)]
struct DelegateRequest {
    description: String,
    subagent_type: String,
    #[serde(default)]
    system_prompt: Option<String>,
    #[serde(default)]
    response_format: Option<Value>,
    #[serde(default)]
    initial_messages: Option<Vec<Value>>,
    #[serde(default)]
    then: AfterDelegation,
}

/// Returns the question that a tool asks; `number` is its key if it has none.
///
/// # Errors
/// Why the question cannot be asked.
fn question(number: usize, asked: RemoteQuestion) -> Result<Question, String> {
    let key = asked.key.unwrap_or_else(|| number.to_string());
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(format!("must have a `key` of 1 to {MAX_KEY_BYTES} bytes"));
    }
    let schema = asked.response_schema.unwrap_or_else(|| json!({}));
    Schema::compile(&schema).map_err(|error| format!("has a `response_schema` that is no JSON Schema: {error}"))?;
    if asked.value.to_string().len().max(schema.to_string().len()) > MAX_QUESTION_BYTES {
        return Err(format!("is longer than {MAX_QUESTION_BYTES} bytes"));
    }
    if let Some(problem) = asked.approvers.problem() {
        return Err(format!("has `approvers` that cannot be: it {problem}"));
    }
    Ok(Question {
        kind: QuestionKind::Question,
        value: asked.value,
        schema,
        calls: vec![],
        key: Some(key),
        approvers: asked.approvers,
        ..Question::default()
    })
}

fn result(call: &ToolCall, content: Content, artifact: Option<Value>, update: Update) -> CallOutcome {
    let role = Role::Tool {
        tool_call_id: call.id.clone(),
        artifact,
        status: ToolStatus::Success,
    };
    let message = Message {
        name: Some(call.name.clone()),
        ..Message::new(role, content)
    };
    let mut answer = ToolOutput::message(message);
    answer.writes.merge(update);
    CallOutcome::Answer(answer)
}

/// Encodes a call id as a header value; bytes that a header cannot hold become `%xx`.
fn header_value(id: &str) -> String {
    id.bytes()
        .map(|byte| {
            if byte.is_ascii_graphic() {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

/// Replaces the token of the call in an answer.
fn hide(token: Option<&CallToken>, answer: Vec<u8>) -> Vec<u8> {
    match token {
        Some(token) => token.hide_in(answer),
        None => answer,
    }
}

/// Removes the values of `headers` from a server's text, so that a server that echoes a request does not pass secrets
/// to the model.
pub(super) fn without_secrets(mut text: String, headers: &HeaderMap) -> String {
    for secret in headers
        .values()
        .filter_map(|value| value.to_str().ok())
        .filter(|value| value.len() >= 4)
    {
        text = text.replace(secret, "***");
    }
    text
}

/// Parses the address of a service, below which its resources are.
///
/// # Errors
/// The reason why it is none.
pub(in crate::tool) fn base_url(given: &str) -> Result<Url, Invalid> {
    let url = Url::parse(given).map_err(|error| Invalid::new("url", error.to_string()))?;
    if url.cannot_be_a_base() {
        return Err(Invalid::new(
            "url",
            "must begin with http:// or https:// and name a host",
        ));
    }
    Ok(url)
}

/// Parses the headers of a definition.
///
/// # Errors
/// The header that is invalid or reserved.
pub(in crate::tool) fn headers(given: &BTreeMap<String, String>) -> Result<HeaderMap, Invalid> {
    let given = given.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    net::secret_headers(given, &[CONTENT_TYPE.as_str(), IDEMPOTENCY_KEY, TASK_ID])
}

#[cfg(test)]
mod tests;
