//! The MCP server at `/mcp`: every agent that a caller may run is a tool of it.
//!
//! `rmcp` reads and writes the protocol: its messages, versions, streams and sessions. The rest is as for every other
//! endpoint: the caller is authenticated, a rule allows the request, bodies and open streams are limited, and a tool call
//! creates the run that `POST /runs` would create.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use http_body::Body as HttpBody;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;

mod agent_call;
mod agent_tools;
mod elicitation;
mod late_response;
mod sessions;

use super::ApiSettings;
use super::access::Api;
use super::body_guard::hold_until_sent;
use super::client::ClientId;
use super::error::{ApiError, ErrorBody};
use super::extract::within_limits;
use super::wire::server_sent_event::ServerSentEvent;
use agent_tools::AgentServer;
use sessions::McpSessions;

/// The longest text of an error that `rmcp` returns, in bytes.
const MAX_ERROR_TEXT: usize = 64 * 1024;

/// The MCP server.
pub(super) struct McpEndpoint {
    service: StreamableHttpService<AgentServer, LocalSessionManager>,
    sessions: Arc<McpSessions>,
}

impl McpEndpoint {
    /// Creates the server without sessions.
    pub(super) fn new(settings: &ApiSettings) -> Self {
        let manager = Arc::new(sessions::session_manager());
        // Host names and origins are checked for all endpoints before a request comes here.
        let config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .disable_allowed_origins()
            .with_sse_keep_alive(Some(settings.heartbeat))
            .with_max_request_body_bytes(settings.bodies.max);
        Self {
            service: StreamableHttpService::new(|| Ok(AgentServer), Arc::clone(&manager), config),
            sessions: Arc::new(McpSessions::new(manager)),
        }
    }

    /// Handles a request of a caller. Its handler finds the caller's [`Api`] in the extensions.
    async fn handle(&self, api: Api, mut request: Request) -> Response {
        request.extensions_mut().insert(api);
        translate(self.service.handle(request).await).await
    }
}

/// Sends messages to the MCP server: requests such as `tools/call`, notifications, and answers to its questions.
///
/// The tools are the agents that the caller may run. A call creates a run and returns its last answer.
#[utoipa::path(post, path = "/mcp", tag = "MCP", request_body = Object,
    responses((status = 200, description = "The response, after notifications about the progress",
            body = ServerSentEvent, content_type = "text/event-stream", headers(("mcp-session-id" = String))),
        (status = 202, description = "The notification or the answer is accepted"),
        (status = 400, description = "The message is refused, with an error of JSON-RPC or of this API", body = Object),
        (status = 404, description = "The session or the method does not exist", body = Object),
        (status = 406, description = "The client does not accept JSON and event streams", body = ErrorBody),
        (status = 415, description = "The body is not a message in JSON", body = ErrorBody),
        (status = 429, description = "The client has reached its limit of sessions or open streams", body = ErrorBody)))]
pub(super) async fn post(
    api: Api,
    client: ClientId,
    Extension(endpoint): Extension<Arc<McpEndpoint>>,
    request: Request,
) -> Result<Response, ApiError> {
    let permit = api.open_stream(None, client)?;
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, api.settings.bodies.max)
        .await
        .map_err(|_| ApiError::incomplete_body())?;
    within_limits(&body)?;
    let used = endpoint.sessions.begin_request(&parts.headers, client)?;
    let opening = match used.is_none() && is_initialize(&body) {
        true => Some(endpoint.sessions.make_room(client).await?),
        false => None,
    };
    let beat = api.settings.heartbeat;
    let request = Request::from_parts(parts, Body::from(body));
    let handler = Arc::clone(&endpoint);
    let handling = Box::pin(async move { handler.handle(api, request).await });
    let response = late_response::start_within(beat, handling).await;
    if opening.is_some() {
        endpoint.sessions.add(response.headers(), client);
    }
    drop(opening);
    Ok(permit.hold(hold_until_sent(response, used)))
}

/// Opens the stream on which the MCP server sends messages that belong to no request of the client.
#[utoipa::path(get, path = "/mcp", tag = "MCP",
    responses((status = 200, description = "The messages", body = ServerSentEvent, content_type = "text/event-stream"),
        (status = 400, description = "There is no session id", body = Object),
        (status = 404, description = "The session does not exist", body = ErrorBody),
        (status = 405, description = "The protocol version has no sessions", body = ErrorBody),
        (status = 406, description = "The client does not accept event streams", body = ErrorBody),
        (status = 429, description = "The client has reached its limit of open streams", body = ErrorBody)))]
pub(super) async fn get(
    api: Api,
    client: ClientId,
    Extension(endpoint): Extension<Arc<McpEndpoint>>,
    request: Request,
) -> Result<Response, ApiError> {
    let permit = api.open_stream(None, client)?;
    let used = endpoint.sessions.begin_request(request.headers(), client)?;
    let events = api.events.clone();
    let response = endpoint.handle(api, request).await;
    // The stream has no end of its own.
    let response = response.map(|body| {
        let shutdown = async move { events.shutdown_started().await };
        Body::from_stream(body.into_data_stream().take_until(Box::pin(shutdown)))
    });
    Ok(permit.hold(hold_until_sent(response, used)))
}

/// Ends a session of the MCP server. Runs of calls that have no result yet are cancelled.
#[utoipa::path(delete, path = "/mcp", tag = "MCP",
    responses((status = 202, description = "The session is ended"),
        (status = 400, description = "There is no session id", body = Object),
        (status = 404, description = "The session does not exist", body = ErrorBody),
        (status = 405, description = "The protocol version has no sessions", body = ErrorBody)))]
pub(super) async fn delete(
    api: Api,
    client: ClientId,
    Extension(endpoint): Extension<Arc<McpEndpoint>>,
    request: Request,
) -> Result<Response, ApiError> {
    let _used = endpoint.sessions.begin_request(request.headers(), client)?;
    Ok(endpoint.handle(api, request).await)
}

/// Returns whether a message opens a session.
fn is_initialize(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Head {
        method: Option<String>,
    }
    let head = serde_json::from_slice::<Head>(body);
    head.is_ok_and(|head| head.method.as_deref() == Some("initialize"))
}

/// Translates a response of `rmcp`. Its errors in plain text become errors of this API; those of JSON-RPC stay.
async fn translate<B>(response: http::Response<B>) -> Response
where
    B: HttpBody<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let response = response.map(Body::new);
    let status = response.status();
    if status.is_success() || has_type(response.headers(), "application/json") {
        return response;
    }
    let (parts, body) = response.into_parts();
    let text = to_bytes(body, MAX_ERROR_TEXT).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let error = match status {
        StatusCode::NOT_FOUND => ApiError::no_mcp_session(),
        status if status.is_server_error() => ApiError::fault(&text),
        status => ApiError::mcp_refused(status, text),
    };
    let mut response = error.into_response();
    if let Some(allowed) = parts.headers.get(header::ALLOW) {
        response.headers_mut().insert(header::ALLOW, allowed.clone());
    }
    response
}

/// Returns whether a message has a body of this media type.
fn has_type(headers: &HeaderMap, media_type: &str) -> bool {
    let given = headers.get(header::CONTENT_TYPE).and_then(|given| given.to_str().ok());
    given.is_some_and(|given| given.split(';').next().is_some_and(|given| given.trim() == media_type))
}
