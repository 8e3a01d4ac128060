//! The answer of a tool behind HTTP: a result, perhaps after lines with progress, a request to delegate, questions to a
//! human, or a failure.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::{Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::domain::approvers::Approvers;
use crate::domain::call::ToolOutput;
use crate::domain::input::read_initial;
use crate::domain::interrupt::{Question, QuestionKind};
use crate::domain::json_limits::read_foreign;
use crate::domain::machine::Failure;
use crate::domain::message::{Content, Message, Role, ToolCall, ToolStatus};
use crate::domain::run::AfterDelegation;
use crate::domain::schema::Schema;
use crate::domain::schema_text::SchemaText;
use crate::domain::state::{Update, is_private};
use crate::domain::text_limits::first_chars;
use crate::model::pieces::{PieceError, PieceReader};
use crate::net::was_given_up;
use crate::tool::halt::Halt;
use crate::tool::outcome::{CallOutcome, Delegation};
use crate::tool::read_access::CallToken;
use crate::tool::scope::Scope;

/// The maximum number of characters of an error response that are shown to the model.
pub(super) const MAX_ERROR_CHARS: usize = 2_000;
/// The maximum number of questions of one call, over all of its attempts.
pub(in crate::tool) const MAX_QUESTIONS: usize = 64;
/// The maximum size of a question and of the schema of its answer, in bytes.
pub(in crate::tool) const MAX_QUESTION_BYTES: usize = 256 * 1024;
/// The maximum length of the key of a question, in bytes.
pub(in crate::tool) const MAX_KEY_BYTES: usize = 256;

/// The reader of the answer to one request.
pub(super) struct AnswerReader<'a> {
    /// The name of the tool.
    pub(super) tool: &'a str,
    /// The headers of the request. Their values are hidden in failures.
    pub(super) headers: &'a HeaderMap,
    /// The token of the call, which is hidden in the answer.
    pub(super) token: Option<&'a CallToken>,
    /// The time-out of the call.
    pub(super) timeout: Duration,
    /// The maximum size of the answer, in bytes.
    pub(super) max_bytes: usize,
    /// The scope of the call.
    pub(super) scope: &'a Scope,
    /// The call.
    pub(super) call: &'a ToolCall,
}

impl AnswerReader<'_> {
    /// Reads a response with the status 200, and sends its progress to clients.
    pub(super) async fn read(&self, response: PieceReader) -> Result<CallOutcome, Halt> {
        let answer = if is_ndjson(response.head()) {
            self.read_lines(response).await?
        } else {
            let text = self.read_body(response).await?;
            read_foreign(&text).map_err(|error| self.invalid_answer(&format!("the answer {error}")))?
        };
        self.outcome(answer).await
    }

    /// Reads a response with another status.
    ///
    /// # Errors
    /// The failure to read it.
    pub(super) async fn read_refusal(&self, response: PieceReader) -> Result<Failure, Failure> {
        let status = response.head().status();
        let body = self.read_body(response).await?;
        Ok(self.refused(status, &body))
    }

    /// Reads a response of several lines up to the line with the result. The lines before it are sent to clients at
    /// once.
    async fn read_lines(&self, mut response: PieceReader) -> Result<Value, Failure> {
        let mut line = Vec::new();
        let mut length = 0;
        while let Some(chunk) = response.next().await.map_err(|error| self.unreachable(&error))? {
            length += chunk.len();
            if length > self.max_bytes {
                return Err(self.too_long());
            }
            for part in chunk.split_inclusive(|byte| *byte == b'\n') {
                line.extend_from_slice(part);
                if line.ends_with(b"\n")
                    && let Some(result) = self.read_line(&self.hide(std::mem::take(&mut line))).await?
                {
                    return Ok(result);
                }
            }
        }
        let last = self.read_line(&self.hide(line)).await?;
        last.ok_or_else(|| self.invalid_answer("the answer ended before the line with the result"))
    }

    /// Sends the progress in a line to clients, or returns the line if it is the result.
    async fn read_line(&self, line: &[u8]) -> Result<Option<Value>, Failure> {
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
            Value::String(text) => self.scope.progress.send_output(&self.call.id, text).await,
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                return Err(self.invalid_answer("`output` in a line of the answer is not a text"));
            }
        }
        match line["custom"].take() {
            Value::Null => {}
            Value::Array(values) => self.send_custom(values).await,
            value @ Value::Object(_) => self.scope.progress.send(value).await,
            Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                return Err(self.invalid_answer("`custom` in a line of the answer is neither a list nor an object"));
            }
        }
        Ok(None)
    }

    async fn send_custom(&self, values: Vec<Value>) {
        for value in values {
            self.scope.progress.send(value).await;
        }
    }

    /// Reads the body up to the limit: all of a result, the beginning of an error.
    async fn read_body(&self, mut response: PieceReader) -> Result<Vec<u8>, Failure> {
        let is_ok = response.head().status() == StatusCode::OK;
        let mut body = Vec::new();
        while let Some(chunk) = response.next().await.map_err(|error| self.unreachable(&error))? {
            body.extend_from_slice(&chunk);
            // Only the first characters of an error are shown, each of at most four bytes.
            if !is_ok && body.len() >= MAX_ERROR_CHARS * 4 {
                break;
            }
            if body.len() > self.max_bytes {
                return Err(self.too_long());
            }
        }
        Ok(self.hide(body))
    }

    /// Converts a response into an outcome, and sends its `custom` values to clients.
    async fn outcome(&self, answer: Value) -> Result<CallOutcome, Halt> {
        let fields = match answer {
            Value::String(text) => return Ok(result(self.call, text.into(), None, Update::none())),
            Value::Object(_) => answer,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
                let why = "the answer is neither a JSON string nor an object with `content`";
                return Err(self.invalid_answer(why).into());
            }
        };
        let answer: RemoteAnswer = serde_json::from_value(fields)
            .map_err(|error| self.invalid_answer(&format!("the answer has an unexpected form ({error})")))?;
        self.send_custom(answer.custom).await;
        if let Some(error) = answer.error {
            return Err(self.failed(error).into());
        }
        if let Some(interrupts) = answer.interrupts {
            return Err(Halt::Ask(self.questions(interrupts)?));
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
        Ok(result(self.call, content, answer.artifact, answer.update))
    }

    /// Returns the questions of an answer that asks a human. A question without a key gets its number.
    fn questions(&self, interrupts: Vec<RemoteQuestion>) -> Result<Vec<Question>, Failure> {
        let answered = self.scope.answers.len();
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
        let message = without_secrets(error.message, self.headers);
        let kind = error.kind.map(|kind| format!("{kind}: ")).unwrap_or_default();
        let text = format!("{kind}{message}");
        let text = first_chars(&text, MAX_ERROR_CHARS);
        Failure::new("ToolError", format!("the tool `{}` failed: {text}", self.tool))
    }

    /// Returns the failure of a request without a complete response.
    pub(super) fn unreachable(&self, error: &PieceError) -> Failure {
        let name = self.tool;
        let error = match error {
            PieceError::Silent(limit) => {
                let message = format!("the tool `{name}` did not answer in time: {limit}");
                return Failure::new("ToolTimeoutError", message);
            }
            PieceError::Broken(error) => error,
        };
        // A timeout while connecting is a failed connection: the tool has not received the call.
        if error.is_timeout() && !error.is_connect() && !was_given_up(error) {
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
        let body = without_secrets(String::from_utf8_lossy(body).into_owned(), self.headers);
        let excerpt = first_chars(&body, MAX_ERROR_CHARS);
        let message = format!(
            "the tool `{}` answered with status {}: {excerpt}",
            self.tool,
            status.as_u16()
        );
        Failure::new("ToolHttpError", message)
    }

    fn too_long(&self) -> Failure {
        self.invalid_answer(&format!("the answer is longer than {} bytes", self.max_bytes))
    }

    fn invalid_answer(&self, why: &str) -> Failure {
        Failure::new(
            "ToolAnswerError",
            format!("the tool `{}` returned an invalid answer: {why}", self.tool),
        )
    }

    /// Replaces the token of the call in an answer.
    fn hide(&self, answer: Vec<u8>) -> Vec<u8> {
        match self.token {
            Some(token) => token.hide_in(answer),
            None => answer,
        }
    }
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
    let schema = SchemaText::from(asked.response_schema.unwrap_or_else(|| json!({})));
    Schema::compile_once(&schema)
        .map_err(|error| format!("has a `response_schema` that is no JSON Schema: {error}"))?;
    if asked.value.to_string().len().max(schema.as_str().len()) > MAX_QUESTION_BYTES {
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

/// Removes the values of `headers` from a server's text, so that a server that echoes a request does not pass secrets
/// to the model.
pub(in crate::tool) fn without_secrets(mut text: String, headers: &HeaderMap) -> String {
    for secret in headers
        .values()
        .filter_map(|value| value.to_str().ok())
        .filter(|value| value.len() >= 4)
    {
        text = text.replace(secret, "***");
    }
    text
}
