//! Errors as clients see them. Only this module maps an error to an HTTP status.
//!
//! A *refusal* is an error that the client can fix: 4xx with a stable `code`. A *fault* is an error of the server: it
//! is logged once with its cause under an id, and the client gets only the id.

use std::borrow::Cow;
use std::panic::Location;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::diagnostic::DiagnosticView;
use crate::auth::KeyError;
use crate::db::{DbError, warn_of};
use crate::domain::Invalid;
use crate::domain::access::Action;
use crate::domain::id::{AssistantId, CheckpointId, InterruptId, ThreadId};
use crate::domain::identity::Tenant;
use crate::domain::item::ItemError;
use crate::domain::quota::{QuotaKind, QuotaReached};
use crate::domain::text_limits::first_chars;
use crate::runtime::{
    AssignedToOthers, AssistantError, CallFileError, CancelError, CronError, DefinitionError, DeleteRunError,
    ResolveError, RevokeError, StartError, StateWriteError, StoreError,
};

/// The code of a stream that cannot be resumed where the client left it.
pub const RESUME_GAP: &str = "resume_gap";

/// The code of an answer to an interrupt that no longer waits for one.
const INTERRUPT_STALE: &str = "interrupt_stale";

/// Returns the beginning of a text of the request, for an error.
pub(super) fn shortened(text: &str) -> &str {
    first_chars(text, 200)
}

/// An error response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: Cow<'static, str>,
    findings: Vec<DiagnosticView>,
    gap: Option<Gap>,
    /// The name of the quota that is used up, or of the limit that is reached.
    limit: Option<Box<str>>,
    /// The number of seconds after which the client may retry; sent as `Retry-After`.
    retry_after: Option<u32>,
}

/// The body of every error response.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    /// The error in words.
    #[schema(example = "Thread with ID 01a1fd43-90ce-76f5-ad04-88b7c3403157 not found")]
    pub detail: String,
    /// The stable error code.
    #[schema(example = "thread_not_found")]
    pub code: String,
    /// The diagnostics of an agent definition.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<DiagnosticView>>)]
    pub findings: Vec<DiagnosticView>,
    /// The name of the quota that is used up, or of the limit that is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "per_tenant.tokens_per_day")]
    pub limit: Option<String>,
    /// For a stream that cannot be resumed: the last sequence number that the client has seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<i64>,
    /// For a stream that cannot be resumed: the first sequence number that is still stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_available_seq: Option<i64>,
}

/// A pruned part of a thread's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The last sequence number that the client has seen.
    pub since: i64,
    /// The first sequence number that is still stored.
    pub min_available_seq: i64,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            findings: vec![],
            gap: None,
            limit: None,
            retry_after: None,
        }
    }

    /// Adds the header `Retry-After`, in seconds.
    #[must_use]
    pub fn with_retry_after(self, seconds: u32) -> Self {
        Self {
            retry_after: Some(seconds),
            ..self
        }
    }

    /// Names the limit that is reached.
    #[must_use]
    fn at_limit(self, name: &str) -> Self {
        Self {
            limit: Some(name.into()),
            ..self
        }
    }

    /// Names the item of a list that the error is about.
    pub fn of_item(self, at: usize) -> Self {
        Self {
            message: format!("[{at}]: {}", self.message).into(),
            ..self
        }
    }

    /// No route matches the path and method.
    pub fn no_route() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "Not Found")
    }

    /// The server is shutting down; the run continues on another server.
    pub fn shutting_down() -> Self {
        let text = "The server is restarting. The run continues; join it again.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_leaving", text)
    }

    /// The server works on runs only.
    pub fn not_served() -> Self {
        let text = "This server has the role `worker`: it works on runs and answers `/ok`, `/ready` and `/metrics` only. \
            Send the request to a server with the role `api` or `all`.";
        Self::new(StatusCode::NOT_FOUND, "not_served_here", text)
    }

    /// The server is about to stop, or its database does not answer or takes no writes.
    pub fn not_ready(reason: &'static str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", reason)
    }

    /// The resource does not exist. The text does not name it, as the SDKs expect for runs and assistants.
    pub fn not_found(code: &'static str) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, "Not Found")
    }

    /// The request has no valid credential.
    pub fn unauthenticated() -> Self {
        let message =
            "Authentication required: send an API key as `x-api-key`, or a token as `Authorization: Bearer …`";
        Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", message)
    }

    /// The request has no token of a call that is being made.
    pub fn no_call() -> Self {
        let message = "Send the token of a call that is being made as `Authorization: Bearer …`: this one is unknown, or its \
            call is over";
        Self::new(StatusCode::UNAUTHORIZED, "call_over", message)
    }

    /// The tool has not declared that it reads this.
    pub fn not_declared(what: &str) -> Self {
        let message = format!("Not allowed: {what} is not in the `read_access` of this tool");
        Self::new(StatusCode::FORBIDDEN, "not_declared", message)
    }

    /// The credentials of the request cannot be checked now. The cause was logged.
    pub fn authentication_unavailable() -> Self {
        let message = "Your credentials cannot be checked now. Try again.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "authentication_unavailable", message).with_retry_after(5)
    }

    /// No role or scope of the caller allows the action.
    pub fn forbidden(action: Action) -> Self {
        let message = format!("Not allowed: your roles or the scopes of your key do not include `{action}`");
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// A policy forbids the action.
    pub fn forbidden_by_policy(action: Action) -> Self {
        let message = format!("Not allowed: a policy of this server forbids `{action}` here");
        Self::new(StatusCode::FORBIDDEN, "forbidden_by_policy", message)
    }

    /// The route has no access rule.
    pub fn no_access_rule() -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", "Not allowed")
    }

    /// The thread does not exist.
    pub fn no_thread(id: ThreadId) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "thread_not_found",
            format!("Thread with ID {id} not found"),
        )
    }

    /// The thread or the assistant of a new run does not exist.
    pub fn no_thread_or_assistant() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "thread_or_assistant_not_found",
            "Thread or assistant not found.",
        )
    }

    /// The checkpoint does not exist.
    pub fn no_checkpoint(id: CheckpointId) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "checkpoint_not_found",
            format!("Checkpoint with ID {id} not found"),
        )
    }

    /// The interrupt does not exist.
    pub fn no_interrupt() -> Self {
        Self::new(StatusCode::NOT_FOUND, "interrupt_not_found", "Interrupt not found")
    }

    /// The remembered decision does not exist.
    pub fn no_approval() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "approval_not_found",
            "Remembered decision not found",
        )
    }

    /// The caller answers an interrupt that is assigned to others.
    fn interrupt_assigned(assigned: &AssignedToOthers) -> Self {
        let message = format!("Not allowed: {assigned}");
        Self::new(StatusCode::FORBIDDEN, "interrupt_assigned", message)
    }

    /// The caller would continue a thread beside an interrupt that is assigned to others.
    fn waits_for_approvers(assigned: &AssignedToOthers) -> Self {
        let message = format!(
            "Not allowed while the thread waits for an answer: {assigned}. Wait for it, or withdraw the question with a \
             new message as `input`. `command.update`, `command.goto`, checkpoints and writes into the state are no answer."
        );
        Self::new(StatusCode::FORBIDDEN, "interrupt_assigned", message)
    }

    /// The thread already exists.
    pub fn thread_exists(id: ThreadId) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "thread_exists",
            format!("Thread with ID {id} already exists"),
        )
    }

    /// The idempotency key belongs to another request.
    pub fn key_reused() -> Self {
        let message = "Idempotency-Key: was used for another request. Use a new key for a new request.";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reused", message)
    }

    /// The body is not valid JSON, for this reason.
    pub fn bad_json(reason: &serde_json::Error) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_json",
            format!("Invalid JSON in request body: {reason}"),
        )
    }

    /// There is no body, and the request needs the expected value.
    pub fn no_body(expected: &str) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_json",
            format!("Invalid JSON in request body: it is empty, and must be {expected}"),
        )
    }

    /// The body is larger than allowed.
    pub fn too_large() -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body_too_large",
            "The request body is larger than this server accepts: `max_body_bytes` in the section [server] of its \
             configuration",
        )
    }

    /// The body ended early.
    pub fn incomplete_body() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "broken_body", "The request body ended early")
    }

    /// An id is malformed.
    pub fn bad_id(kind: &str) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_id",
            format!("Invalid {kind} ID: must be a UUID"),
        )
    }

    /// A checkpoint id is malformed.
    pub fn bad_checkpoint_id() -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_id", "Invalid checkpoint ID")
    }

    /// A query parameter has an invalid value; `expected` says what it must be.
    pub fn bad_parameter(name: &str, value: &str, expected: &str) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_parameter",
            format!("Invalid {name} {value}: {expected}"),
        )
    }

    /// The request has both `configurable` and `context`.
    pub fn two_contexts() -> Self {
        let message = "Cannot specify both configurable and context. Prefer setting context alone.";
        Self::new(StatusCode::BAD_REQUEST, "two_contexts", message)
    }

    /// The patch is empty.
    pub fn empty_patch() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "empty_patch", "Request body cannot be empty")
    }

    /// No agent has this graph id.
    pub fn no_graph<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Self {
        let known = known.collect::<Vec<_>>().join(", ");
        let message = format!(
            "Invalid assistant: '{name}'. Must be either:\n- A valid assistant UUID, or\n\
             - One of the registered graphs: {known}"
        );
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown_graph", message)
    }

    /// The agent definition of an assistant is no longer configured.
    pub fn no_agent(graph_id: &str) -> Self {
        let message = format!("Graph '{graph_id}' not found: this server is not configured to run it");
        Self::new(StatusCode::NOT_FOUND, "graph_not_found", message)
    }

    /// The tenant of the thread may not use a model of the agent.
    pub fn model_not_allowed(message: String) -> Self {
        Self::new(StatusCode::FORBIDDEN, "model_not_allowed", message)
    }

    /// The tenant of the caller has no agent of this name.
    pub fn agent_not_allowed(graph_id: &str) -> Self {
        let message = format!(
            "Agent '{graph_id}' is not among `agents` in the section of your tenant, `[tenants.NAME]`, in the server's \
             configuration"
        );
        Self::new(StatusCode::FORBIDDEN, "agent_not_allowed", message)
    }

    /// The server failed. Logs `cause` under an id; the client gets only the id.
    #[track_caller]
    #[expect(
        clippy::disallowed_methods,
        reason = "the id of a fault is for logs; nothing is ordered or tested by it"
    )]
    pub fn fault(cause: &dyn std::fmt::Display) -> Self {
        let id = Uuid::new_v4();
        tracing::error!(fault = %id, at = %Location::caller(), %cause, "request failed");
        let message = format!("Internal server error (fault {id})");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// A quota is used up. What money can change is answered 402, stored bytes are answered 507, everything else 429.
    pub fn quota_reached(reached: &QuotaReached) -> Self {
        let status = match reached.kind {
            QuotaKind::Cost => StatusCode::PAYMENT_REQUIRED,
            QuotaKind::StoredBytes => StatusCode::INSUFFICIENT_STORAGE,
            QuotaKind::Requests
            | QuotaKind::RunsAtWork
            | QuotaKind::RunsWaiting
            | QuotaKind::OpenStreams
            | QuotaKind::DefinedAgents
            | QuotaKind::Tokens => StatusCode::TOO_MANY_REQUESTS,
        };
        Self::new(status, "quota_exceeded", reached.to_string())
            .with_retry_after(whole_seconds(reached.retry_after))
            .at_limit(&reached.name())
    }

    /// The client's address has sent too many credentials that are not valid.
    pub fn too_many_failed_authentications(wait: Duration) -> Self {
        const LIMIT: &str = "failed_authentications_per_minute";
        let message = format!(
            "Too many authentications from your address have failed: the limit is `{LIMIT}` of the section [quotas]. Send \
             the request again a little later."
        );
        let code = "too_many_failed_authentications";
        Self::new(StatusCode::TOO_MANY_REQUESTS, code, message)
            .with_retry_after(whole_seconds(wait))
            .at_limit(LIMIT)
    }

    /// The priority is above 0, and the caller is an ordinary user.
    pub fn no_priority() -> Self {
        let message = "priority: may be above 0 only for callers with the role `developer`, `operator` or `admin`";
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// The thread or client has as many open streams as allowed. `scope` is `thread` or `client`.
    pub fn too_many_streams(scope: &str, limit: usize) -> Self {
        let message = format!("This {scope} has {limit} open streams, and more are not allowed. Close one first.");
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", message).with_retry_after(1);
        error.at_limit(&format!("max_streams_per_{scope}"))
    }

    /// The MCP session does not exist for the client.
    pub fn no_mcp_session() -> Self {
        let message = "This client has no such MCP session. Send `initialize` without the header Mcp-Session-Id.";
        Self::new(StatusCode::NOT_FOUND, "mcp_session_not_found", message)
    }

    /// The client has as many MCP sessions in use as allowed, or the server has.
    pub fn too_many_mcp_sessions(limit: usize) -> Self {
        let message = format!(
            "All MCP sessions of this client ({limit} at most) or of this server are in use. End one first, by DELETE."
        );
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_mcp_sessions", message).with_retry_after(1);
        error.at_limit("mcp_sessions")
    }

    /// The client has cancelled a call of an agent.
    pub fn mcp_call_cancelled() -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "call_cancelled",
            "The call was cancelled, and so is its run.",
        )
    }

    /// A request to the MCP server is not one of its protocol.
    pub fn mcp_refused(status: StatusCode, message: String) -> Self {
        Self::new(status, "invalid_mcp_request", message)
    }

    /// A web page of a foreign origin sends a request that may change data.
    pub fn foreign_origin(origin: &str) -> Self {
        let message = format!(
            "Requests from {origin} are not allowed: the origin is not in `cors_origins` of the section [server] of \
             the server's configuration"
        );
        Self::new(StatusCode::FORBIDDEN, "foreign_origin", message)
    }

    /// The `Host` of the request is not one of the server's names.
    pub fn unknown_host(host: &str) -> Self {
        let message = format!(
            "The host {host:?} is not allowed: it is not in `hosts` of the section [server] of the server's \
             configuration"
        );
        Self::new(StatusCode::MISDIRECTED_REQUEST, "unknown_host", message)
    }

    /// The request names no host.
    pub fn no_host() -> Self {
        let message =
            "The request names no host: send the header `Host` with a name of this server, such as `localhost`";
        Self::new(StatusCode::MISDIRECTED_REQUEST, "unknown_host", message)
    }

    /// A page of this origin must not act for users of the tenant.
    pub fn origin_of_others(origin: &str, tenant: &Tenant) -> Self {
        let message = format!(
            "Requests from {origin} are not allowed for the tenant `{tenant}`: the origin is neither in `cors_origins` of \
             the section [tenants.{tenant}] nor, without that list, of [server] in the server's configuration"
        );
        Self::new(StatusCode::FORBIDDEN, "foreign_origin", message)
    }

    /// The host is not one of those of the tenant.
    pub fn host_of_others(host: &str, tenant: &Tenant) -> Self {
        let message = format!(
            "The host {host:?} is not allowed for the tenant `{tenant}`: it is neither in `hosts` of the section \
             [tenants.{tenant}] nor, without that list, of [server] in the server's configuration"
        );
        Self::new(StatusCode::MISDIRECTED_REQUEST, "unknown_host", message)
    }

    /// The content type is not JSON.
    pub fn not_json(given: Option<&str>) -> Self {
        let given = given.map_or_else(|| "none was sent".to_owned(), |given| format!("got {given:?}"));
        let message = format!("Content-Type: must be application/json, {given}");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// The body is compressed.
    pub fn compressed(given: &str) -> Self {
        let message = format!("Content-Encoding: must be absent, got {given:?}; send the body without compression");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// The body did not arrive in time.
    pub fn slow_body(limit: &str) -> Self {
        let message = format!("The request body did not arrive in time: {limit}");
        Self::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
    }

    /// The memory for request bodies is exhausted.
    pub fn bodies_busy() -> Self {
        let message = "The server is busy with the bodies of other requests. Try again.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "bodies_busy", message).with_retry_after(1)
    }

    /// The server shuts down before the body has arrived.
    pub fn body_aborted() -> Self {
        let message = "The server is shutting down and did not wait for the request body. Try again.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_leaving", message).with_retry_after(1)
    }

    /// The memory for large responses is exhausted.
    pub fn answers_busy() -> Self {
        let message =
            "The server is busy with other large answers. Try again, or request less with `limit` or `select`.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "answers_busy", message).with_retry_after(1)
    }

    /// Other searches of the caller hold all connections that one user may hold.
    pub fn searches_busy() -> Self {
        let message = "The server is busy with other searches of yours. Try again when they are answered.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "searches_busy", message).with_retry_after(1)
    }

    /// The database does not answer, is locked, or takes too long. Logs `cause`.
    #[track_caller]
    pub fn database_unavailable(cause: &DbError) -> Self {
        warn_of!(cause, at = %Location::caller(), "database unavailable");
        let message = "The database is not available or takes too long. Try again. The change may have been made: with an \
                       `Idempotency-Key` a repeated request is not executed twice.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "database_unavailable", message).with_retry_after(2)
    }

    /// The request took longer than `limit` seconds.
    pub fn deadline_exceeded(limit: f64, may_have_been_done: bool) -> Self {
        let rest = match may_have_been_done {
            true => {
                "The change may have been made, or may still be. Check, or send the request again with the same \
                 `Idempotency-Key`: it is not executed twice."
            }
            false => "Try again, or request less.",
        };
        let message = format!("The request took longer than {limit} s. {rest}");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "deadline_exceeded", message).with_retry_after(2)
    }

    /// The log no longer contains the event after which the client wants to resume. `name` is the field or header of
    /// the request.
    pub fn resume_gap(name: &str, gap: Gap) -> Self {
        let Gap {
            since,
            min_available_seq,
        } = gap;
        let message = format!(
            "{name}: the log no longer contains the events after {since}; it starts at {min_available_seq}. Read the \
             state of the thread, and stream from there or from now on."
        );
        Self {
            gap: Some(gap),
            ..Self::new(StatusCode::CONFLICT, RESUME_GAP, message)
        }
    }

    /// The request for a thread's stream is invalid.
    pub fn bad_stream_request(reason: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_stream_request", reason)
    }

    /// The request for a WebSocket is not one, for this reason.
    pub fn no_web_socket(status: StatusCode, reason: &str) -> Self {
        let message = format!(
            "This GET opens a WebSocket, but it is refused: {reason}. For server-sent events send a POST to this path, or \
             GET /threads/{{thread_id}}/stream"
        );
        Self::new(status, "no_web_socket", message)
    }

    /// The command is not valid JSON.
    pub fn bad_command() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_json", "Invalid JSON body")
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns whether the server cannot answer at the moment, and another one may.
    pub fn is_unavailable(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE
    }

    /// The stable error code.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// The error in words.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let detail = self.message.into_owned();
        let code = self.code.to_owned();
        let since = self.gap.map(|gap| gap.since);
        let min_available_seq = self.gap.map(|gap| gap.min_available_seq);
        let body = ErrorBody {
            detail,
            code,
            findings: self.findings,
            limit: self.limit.map(String::from),
            since,
            min_available_seq,
        };
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer realm=\"adjutant\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

impl From<Invalid> for ApiError {
    fn from(error: Invalid) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", error.to_string())
    }
}

impl From<KeyError> for ApiError {
    #[track_caller]
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::Invalid(error) => error.into(),
            KeyError::NoKey => Self::not_found("key_not_found"),
            KeyError::Revoked => Self::new(StatusCode::CONFLICT, "key_revoked", error.to_string()),
            KeyError::TooMany => Self::new(StatusCode::CONFLICT, "too_many_keys", error.to_string()),
            KeyError::TooManyTickets => {
                let refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_tickets", error.to_string());
                refusal.with_retry_after(60).at_limit("unused_tickets")
            }
            KeyError::Off => Self::new(StatusCode::CONFLICT, "auth_disabled", error.to_string()),
            KeyError::Unavailable(cause) => {
                tracing::warn!(at = %Location::caller(), %cause, "database of API keys unavailable");
                let message = "The database is not available or takes too long. Try again.";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "database_unavailable", message).with_retry_after(2)
            }
        }
    }
}

impl From<DbError> for ApiError {
    #[track_caller]
    fn from(error: DbError) -> Self {
        match error {
            DbError::Unfit(why) => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unfit", why),
            DbError::Busy | DbError::Closed | DbError::Sealed(_) | DbError::Unavailable(_) => {
                Self::database_unavailable(&error)
            }
            DbError::Conflict(_)
            | DbError::NoRow
            | DbError::Corrupt { .. }
            | DbError::Unbound
            | DbError::Panicked(_)
            | DbError::CannotOpen(_)
            | DbError::InUse { .. } => Self::fault(&error),
        }
    }
}

const BUSY: &str = "Thread is already running a task. Wait for it to finish or choose a different multitask strategy.";

impl From<StartError> for ApiError {
    #[track_caller]
    fn from(error: StartError) -> Self {
        match error {
            StartError::NoThread(_) => Self::no_thread_or_assistant(),
            StartError::Forbidden(action) => Self::forbidden(action),
            StartError::ForbiddenByPolicy(action) => Self::forbidden_by_policy(action),
            StartError::NoAssistant(name) if name.parse::<AssistantId>().is_ok() => Self::no_thread_or_assistant(),
            StartError::NoAssistant(name) => Self::no_graph(&name, std::iter::empty()),
            StartError::NoAgent { graph_id, .. } => Self::no_agent(&graph_id),
            StartError::ModelNotAllowed(message) => Self::model_not_allowed(message),
            StartError::PriorityNotAllowed => Self::no_priority(),
            StartError::NoCheckpoint(id) => Self::no_checkpoint(id),
            StartError::Busy => Self::new(StatusCode::CONFLICT, "thread_busy", BUSY),
            StartError::QueueFull(_) => {
                let message = format!("{error}. The limit is `max_queued_runs` in the section `[runtime]`");
                let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message).with_retry_after(5);
                error.at_limit("max_queued_runs")
            }
            StartError::ThreadFull(_) => {
                let message = format!("{error}. The limit is `max_queued_runs_per_thread` in the section `[runtime]`");
                let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "thread_queue_full", message).with_retry_after(5);
                error.at_limit("max_queued_runs_per_thread")
            }
            StartError::QuestionPending(ids) => {
                let message = format!("The thread has open interrupts: {}", list(&ids));
                Self::new(StatusCode::CONFLICT, "interrupt_pending", message)
            }
            StartError::AssignedToOthers(assigned) => Self::interrupt_assigned(&assigned),
            StartError::WaitsForApprovers(assigned) => Self::waits_for_approvers(&assigned),
            StartError::NoOpenInterrupt => {
                let message = "The thread has no open interrupt that `command.resume` could answer. Send `input` instead: \
                               a new input, or null to continue from the state of the thread.";
                Self::new(StatusCode::CONFLICT, "no_open_interrupt", message)
            }
            StartError::StaleInterrupt(id, what) => {
                let message = format!("command.resume.{id}: the interrupt can no longer be answered: it is {what}");
                Self::new(StatusCode::CONFLICT, INTERRUPT_STALE, message)
            }
            StartError::AmbiguousAnswer(ids) => {
                let message = format!(
                    "When there are multiple pending interrupts, you must specify the interrupt id when resuming: \
                     {{\"resume\": {{\"<interrupt id>\": answer}}}}. Pending are: {}",
                    list(&ids)
                );
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "ambiguous_resume", message)
            }
            StartError::Quota(reached) => Self::quota_reached(&reached),
            StartError::Invalid(error) => error.into(),
            StartError::ResumeNeedsThread => {
                let message = "You must provide a thread_id when resuming.";
                Self::new(StatusCode::BAD_REQUEST, "resume_needs_thread", message)
            }
            StartError::Fault(error) => error.into(),
        }
    }
}

/// Returns a time in whole seconds, rounded up and at least 1.
fn whole_seconds(time: Duration) -> u32 {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    u32::try_from(seconds).unwrap_or(u32::MAX).max(1)
}

fn list(ids: &[InterruptId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl From<CancelError> for ApiError {
    #[track_caller]
    fn from(error: CancelError) -> Self {
        match error {
            CancelError::NoRun => Self::new(StatusCode::NOT_FOUND, "run_not_found", "No runs found to cancel."),
            CancelError::Over => {
                let message = "No matching runs to cancel. Please verify the thread ID and run IDs are correct, \
                               and the runs haven't been deleted or completed.";
                Self::new(StatusCode::NOT_FOUND, "run_over", message)
            }
            CancelError::NoUndo => {
                let message = "action: rollback is not possible for a child run; use interrupt";
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "no_rollback_of_subagent", message)
            }
            CancelError::Fault(error) => error.into(),
        }
    }
}

impl From<DeleteRunError> for ApiError {
    #[track_caller]
    fn from(error: DeleteRunError) -> Self {
        match error {
            DeleteRunError::NoRun => Self::new(StatusCode::NOT_FOUND, "run_not_found", "Run not found"),
            DeleteRunError::Waits(interrupt) => {
                let message = format!(
                    "The run cannot be deleted: its interrupt {interrupt} waits for an answer. Answer the interrupt, cancel \
                     the subagent that raised it, or withdraw it with a new message as `input`. Then delete the run."
                );
                Self::new(StatusCode::CONFLICT, "run_unfinished", message)
            }
            DeleteRunError::Continued(other) => {
                let message = format!(
                    "The run cannot be deleted: the run {other} continues its work. Wait for that run, or cancel it. Then \
                     delete this one."
                );
                Self::new(StatusCode::CONFLICT, "run_unfinished", message)
            }
            DeleteRunError::Fault(error) => error.into(),
        }
    }
}

impl From<CronError> for ApiError {
    #[track_caller]
    fn from(error: CronError) -> Self {
        match error {
            CronError::NoCron => Self::not_found("cron_not_found"),
            CronError::NoThread(id) => Self::no_thread(id),
            CronError::Refused(StartError::NoAssistant(name)) => Self::new(
                StatusCode::NOT_FOUND,
                "assistant_not_found",
                format!("Assistant '{name}' not found"),
            ),
            CronError::Stale => {
                let message = "Other clients keep changing the cron. Try again.";
                Self::new(StatusCode::CONFLICT, "cron_changed", message)
            }
            CronError::Invalid(error) => error.into(),
            CronError::Refused(error) => error.into(),
            CronError::Fault(error) => error.into(),
        }
    }
}

impl From<CallFileError> for ApiError {
    #[track_caller]
    fn from(error: CallFileError) -> Self {
        match error {
            CallFileError::NotReadable(path) => Self::not_declared(&format!("the file `{}`", shortened(&path))),
            CallFileError::Forbidden(reason) => {
                let message = format!("Not allowed by the permissions of the agent that makes the call: {reason}");
                Self::new(StatusCode::FORBIDDEN, "forbidden_to_agent", message)
            }
            CallFileError::Failed(reason) => {
                let message = format!("The workspace of the agent that makes the call cannot be read: {reason}");
                Self::new(StatusCode::FAILED_DEPENDENCY, "workspace_failed", message)
            }
            CallFileError::NoAgent => {
                let message = "The agent that makes the call is not configured on this server any more";
                Self::new(StatusCode::CONFLICT, "agent_gone", message)
            }
            CallFileError::Fault(error) => error.into(),
        }
    }
}

impl From<RevokeError> for ApiError {
    fn from(error: RevokeError) -> Self {
        match error {
            RevokeError::NoDecision => Self::no_approval(),
            RevokeError::AssignedToOthers(_) => {
                let message = format!("Not allowed: {error}");
                Self::new(StatusCode::FORBIDDEN, "interrupt_assigned", message)
            }
            RevokeError::Fault(error) => error.into(),
        }
    }
}

impl From<ResolveError> for ApiError {
    #[track_caller]
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::NoInterrupt => Self::no_interrupt(),
            ResolveError::NoAgent => {
                let message = "The assistant of the interrupted run was deleted, or its agent is no longer configured";
                Self::new(StatusCode::CONFLICT, "agent_gone", message)
            }
            ResolveError::ModelNotAllowed(message) => Self::model_not_allowed(message),
            ResolveError::Stale(what) => {
                let message = format!("The interrupt can no longer be answered: it is {what}");
                Self::new(StatusCode::CONFLICT, INTERRUPT_STALE, message)
            }
            ResolveError::AssignedToOthers(assigned) => Self::interrupt_assigned(&assigned),
            ResolveError::Invalid(error) => error.into(),
            ResolveError::Quota(reached) => Self::quota_reached(&reached),
            ResolveError::Busy => Self::new(StatusCode::CONFLICT, "thread_busy", BUSY),
            ResolveError::Elsewhere(message) => Self::new(StatusCode::BAD_GATEWAY, "peer_unavailable", message),
            ResolveError::Fault(error) => error.into(),
        }
    }
}

impl From<AssistantError> for ApiError {
    #[track_caller]
    fn from(error: AssistantError) -> Self {
        let new = |status, code, message: String| Self::new(status, code, message);
        match error {
            AssistantError::NoAssistant(id) => new(
                StatusCode::NOT_FOUND,
                "assistant_not_found",
                format!("Assistant with ID {id} not found"),
            ),
            AssistantError::NoVersion(id, number) => {
                let message = format!("Version {number} not found for assistant {id}");
                new(StatusCode::NOT_FOUND, "version_not_found", message)
            }
            AssistantError::Exists(id) => new(
                StatusCode::CONFLICT,
                "assistant_exists",
                format!("Assistant {id} already exists"),
            ),
            AssistantError::NoGraph { graph_id, known } => {
                let message = format!("Graph '{graph_id}' not found. Expected one of: {}", known.join(", "));
                new(StatusCode::NOT_FOUND, "graph_not_found", message)
            }
            AssistantError::Automatic(graph_id) => {
                let message = format!("The default assistant of the definition '{graph_id}' cannot be deleted");
                new(StatusCode::CONFLICT, "assistant_automatic", message)
            }
            AssistantError::TwoContexts => Self::two_contexts(),
            AssistantError::Invalid(error) => error.into(),
            AssistantError::Fault(error) => error.into(),
        }
    }
}

impl From<DefinitionError> for ApiError {
    #[track_caller]
    fn from(error: DefinitionError) -> Self {
        match error {
            DefinitionError::NoAgent(graph_id) => Self::new(
                StatusCode::NOT_FOUND,
                "agent_not_found",
                format!("Agent '{graph_id}' not found"),
            ),
            DefinitionError::NoVersion(graph_id, number) => {
                let message = format!("Version {number} not found for agent '{graph_id}'");
                Self::new(StatusCode::NOT_FOUND, "version_not_found", message)
            }
            DefinitionError::InFile { graph_id, place } => {
                let message = format!("Agent '{graph_id}' is defined in {place}; change it there");
                Self::new(StatusCode::CONFLICT, "agent_in_file", message)
            }
            DefinitionError::Taken(graph_id) => {
                let message = format!("The name '{graph_id}' is taken; choose another for the agent");
                Self::new(StatusCode::CONFLICT, "agent_name_taken", message)
            }
            DefinitionError::Disabled => Self::new(StatusCode::FORBIDDEN, "agents_api_disabled", error.to_string()),
            DefinitionError::TooMany => {
                Self::new(StatusCode::CONFLICT, "too_many_agents", error.to_string()).at_limit("agents")
            }
            DefinitionError::Quota(reached) => Self::quota_reached(&reached),
            DefinitionError::Unusable(remarks) => {
                let message = remarks.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
                let findings = remarks.into_iter().map(DiagnosticView::from).collect();
                Self {
                    findings,
                    ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_definition", message)
                }
            }
            DefinitionError::Fault(error) => error.into(),
        }
    }
}

impl From<StateWriteError> for ApiError {
    #[track_caller]
    fn from(error: StateWriteError) -> Self {
        match error {
            StateWriteError::NoThread(id) => Self::no_thread(id),
            StateWriteError::NoCheckpoint(id) => Self::no_checkpoint(id),
            StateWriteError::NoNode(node) => Self::new(
                StatusCode::BAD_REQUEST,
                "unknown_node",
                format!("Node {node} does not exist"),
            ),
            StateWriteError::InFlight(runs) => {
                let runs = runs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let message = format!("Thread has in-flight runs: {runs}");
                Self::new(StatusCode::CONFLICT, "thread_busy", message)
            }
            StateWriteError::WaitsForApprovers(assigned) => Self::waits_for_approvers(&assigned),
            StateWriteError::Invalid(error) => error.into(),
            StateWriteError::Fault(error) => error.into(),
        }
    }
}

impl From<ItemError> for ApiError {
    fn from(error: ItemError) -> Self {
        match error {
            ItemError::NoNamespace => Self::new(StatusCode::BAD_REQUEST, "empty_namespace", error.to_string()),
            ItemError::Reserved => Self::new(StatusCode::BAD_REQUEST, "reserved_namespace", error.to_string()),
            ItemError::Invalid(error) => error.into(),
        }
    }
}

impl From<StoreError> for ApiError {
    #[track_caller]
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Invalid(error) => error.into(),
            StoreError::Embedding(error) => {
                tracing::warn!(%error, "embedding model of the store failed");
                let text = format!(
                    "The embedding model failed ({}). Nothing was stored; try again.",
                    error.class()
                );
                Self::new(StatusCode::FAILED_DEPENDENCY, "embedding_failed", text)
            }
            StoreError::Fault(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use serde_json::{Value, json};

    use super::*;

    async fn response_of(error: impl Into<ApiError>) -> (u16, Value) {
        let response = error.into().into_response();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 10_000)
            .await
            .expect("the body is in memory");
        (status, serde_json::from_slice(&body).expect("the body is JSON"))
    }

    #[tokio::test]
    async fn an_error_is_a_text_and_a_stable_code() {
        let id = ThreadId::mint();
        let body = json!({"detail": format!("Thread with ID {id} not found"), "code": "thread_not_found"});
        assert_eq!(response_of(ApiError::no_thread(id)).await, (404, body));
    }

    #[tokio::test]
    async fn a_fault_shows_an_id_and_nothing_else() {
        let (status, body) = response_of(ApiError::fault(&"password of the database")).await;
        assert_eq!(status, 500);
        assert!(
            body["detail"]
                .as_str()
                .is_some_and(|text| text.starts_with("Internal server error (fault "))
        );
        assert!(!body.to_string().contains("password"));
    }

    #[tokio::test]
    async fn an_ambiguous_answer_lists_the_open_interrupts() {
        let ids = ["a", "b"].map(|id| InterruptId(id.to_owned())).to_vec();
        let (status, body) = response_of(StartError::AmbiguousAnswer(ids)).await;
        assert_eq!(status, 422);
        assert_eq!(&body["code"], &json!("ambiguous_resume"));
        assert!(
            body["detail"]
                .as_str()
                .is_some_and(|text| text.ends_with("Pending are: a, b"))
        );
    }

    #[tokio::test]
    async fn an_answer_without_an_open_interrupt_is_a_conflict() {
        let (status, body) = response_of(StartError::NoOpenInterrupt).await;
        assert_eq!(status, 409);
        assert_eq!(&body["code"], &json!("no_open_interrupt"));
        assert!(
            body["detail"]
                .as_str()
                .is_some_and(|text| text.contains("Send `input` instead"))
        );
    }

    #[tokio::test]
    async fn an_unknown_assistant_is_404_and_an_unknown_graph_422() {
        let uuid = AssistantId::of_graph("x").to_string();
        assert_eq!(response_of(StartError::NoAssistant(uuid)).await.0, 404);
        assert_eq!(response_of(StartError::NoAssistant("nosuch".into())).await.0, 422);
    }

    #[tokio::test]
    async fn a_busy_thread_is_a_conflict() {
        assert_eq!(response_of(StartError::Busy).await.0, 409);
        assert_eq!(response_of(StateWriteError::InFlight(vec![])).await.0, 409);
        assert_eq!(response_of(ResolveError::Stale("dropped")).await.0, 409);
        let late = StartError::StaleInterrupt(InterruptId("a".to_owned()), "resolved");
        assert_eq!(response_of(late).await.0, 409);
        let needed = DeleteRunError::Waits(InterruptId("a".to_owned()));
        assert_eq!(response_of(needed).await.0, 409);
    }
}
