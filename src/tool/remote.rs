//! Tools behind HTTP: one POST for each call.
//!
//! The request names the call (`Idempotency-Key`), the agent that makes it and its run. The response is a result, a
//! write into the state, a request to delegate, whose result may come back in another call, or questions to a human,
//! after whose answers the call is made again with them; anything else is a failure, which the loop turns into an error
//! result. A response of several lines (`application/x-ndjson`) may send progress to clients while the tool runs; its
//! last line is the result.
//!
//! Module `answer` reads the responses. [`server`] learns the tools of a service that describes them itself.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use reqwest::{Client, RequestBuilder, StatusCode, Url, redirect};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::halt::Halt;
use super::outcome::CallOutcome;
use super::read_access::CallToken;
use super::request_span::RequestSpan;
use super::scope::Scope;
use super::toolbox::Tool;
use crate::definition::{AfterCrash, OnError, ReadAccess, ToolDefinition};
use crate::domain::Invalid;
use crate::domain::backoff::Backoff;
use crate::domain::call::DelegationResult;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::interrupt::QuestionKind;
use crate::domain::machine::Failure;
use crate::domain::message::ToolCall;
use crate::domain::schema::Schema;
use crate::domain::state::{State, is_private};
use crate::model::ToolSpec;
use crate::model::pieces::{PieceError, PieceLimits, PieceReader};
use crate::net;

mod answer;
pub mod server;

use answer::AnswerReader;
pub(super) use answer::{MAX_KEY_BYTES, MAX_QUESTION_BYTES, MAX_QUESTIONS, without_secrets};

/// The header by which a tool recognises a repeated call.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The header with the task id, which is unique even when a provider reuses call ids.
const TASK_ID: &str = "adjutant-task-id";
/// The default limit of a response, in bytes.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;
/// The media types of an answer that are understood.
const ACCEPTED: &str = "application/json, application/x-ndjson";
/// The statuses by which a service says that it has no such tool, or another version of it.
const STALE: [StatusCode; 3] = [StatusCode::NOT_FOUND, StatusCode::CONFLICT, StatusCode::GONE];

/// Creates an HTTP client for tools. It follows no redirects, which could send a call to another server.
///
/// # Errors
/// When TLS cannot be initialised.
pub fn client() -> Result<Client, reqwest::Error> {
    let builder = net::client_builder()
        .redirect(redirect::Policy::none())
        .connect_timeout(Duration::from_secs(10));
    // Linux would give a connection up after the 30 s that reqwest sets, although the network may be back in time for the call.
    #[cfg(target_os = "linux")]
    let builder = builder.tcp_user_timeout(None::<Duration>);
    builder.build()
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
            .header(IDEMPOTENCY_KEY, &*header_value(&call.id))
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
        let reader = AnswerReader {
            tool: &self.spec.name,
            headers: &self.headers,
            token,
            timeout: self.timeout,
            max_bytes: self.max_answer_bytes,
            scope,
            call,
        };
        let response = PieceReader::open(request, self.pieces)
            .await
            .map_err(|error| FailedAttempt {
                halt: reader.unreachable(&error).into(),
                // A tool that was not reached has done nothing.
                may_retry: matches!(&error, PieceError::Broken(error) if error.is_connect()),
            })?;
        let status = response.head().status();
        trace.set_status(status);
        if status == StatusCode::OK {
            return Ok(reader.read(response).await?);
        }
        let refused = reader.read_refusal(response).await?;
        if STALE.contains(&status) {
            self.stale.iter().for_each(|stale| stale.notify_one());
        }
        Err(FailedAttempt {
            halt: refused.into(),
            may_retry: BUSY.contains(&status),
        })
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

/// Encodes a call id as a header value; bytes that a header cannot hold become `%xx`.
fn header_value(id: &str) -> Cow<'_, str> {
    if id.bytes().all(|byte| byte.is_ascii_graphic()) {
        return id.into();
    }
    let encoded = id.bytes().map(|byte| {
        if byte.is_ascii_graphic() {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    encoded.collect()
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
