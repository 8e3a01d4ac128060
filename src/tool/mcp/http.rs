//! The transport *streamable HTTP*: one POST for each message, whose answer is a JSON object or an event stream that
//! contains it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ErrorCode, GetMeta, JsonRpcError, RequestId, ServerJsonRpcMessage,
};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc};

use super::McpLimits;
use super::error::ConnectionError;
use super::inbox::Inbox;
use super::message::{self, Incoming, is_answer};
use super::notices::OpenCalls;
use super::oauth::AccessTokens;
use super::request_headers::{PROTOCOL, add_request_headers};
use super::signals::{Signals, abandoned};
use crate::domain::json_limits::read_foreign;
use crate::domain::text_limits::first_chars;
use crate::model::pieces::{PieceLimits, PieceReader};
use crate::net::sse::Frames;
use crate::tool::remote::without_secrets;

const SESSION: &str = "mcp-session-id";
/// The maximum number of characters of an error response that are shown.
const MAX_ERROR_CHARS: usize = 2_000;
/// The statuses by which a server may say that it does not know the version of the protocol any more.
const UNKNOWN_VERSION: [StatusCode; 3] = [
    StatusCode::BAD_REQUEST,
    StatusCode::NOT_FOUND,
    StatusCode::METHOD_NOT_ALLOWED,
];
/// The maximum number of messages that were read and not handled.
const MAX_UNHANDLED: usize = 64;
/// The maximum number of replies to requests of the server that are under way; further ones are not sent.
const MAX_REPLIES: usize = 16;
/// The timeout of a POST that has no answer in its response.
pub(super) const POST_TIMEOUT: Duration = Duration::from_secs(30);

/// The address of a server, and what is sent to it with every message.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) client: Client,
    pub(super) url: Url,
    /// The headers of every message. They may contain secrets.
    pub(super) headers: HeaderMap,
    /// The access tokens, if the server requires OAuth.
    pub(super) tokens: Option<AccessTokens>,
}

impl Address {
    /// Returns the value of the header `authorization`, if the server requires OAuth.
    ///
    /// # Errors
    /// If there is no access token.
    pub(super) async fn authorization(&self) -> Result<Option<HeaderValue>, ConnectionError> {
        match &self.tokens {
            Some(tokens) => tokens.header().await.map(Some),
            None => Ok(None),
        }
    }

    /// Forgets the access token that was sent if the response refuses it, so that the next message has another one.
    pub(super) async fn forget_refused(&self, sent: Option<&HeaderValue>, status: StatusCode) {
        if status == StatusCode::UNAUTHORIZED
            && let Some((tokens, sent)) = self.tokens.as_ref().zip(sent)
        {
            tokens.forget(sent).await;
        }
    }

    /// Returns the request that sends a message with this value of the header `authorization`.
    pub(super) fn post(&self, text: String, authorization: Option<HeaderValue>) -> RequestBuilder {
        let post = self.client.post(self.url.clone()).headers(self.headers.clone());
        let post = authorization
            .into_iter()
            .fold(post, |post, value| post.header(AUTHORIZATION, value));
        post.header(CONTENT_TYPE, "application/json").body(text)
    }
}

/// Sends messages that have no answer: notifications, and replies to requests of the server.
pub(super) struct UnansweredPosts {
    replies: Semaphore,
}

impl Default for UnansweredPosts {
    fn default() -> Self {
        Self {
            replies: Semaphore::new(MAX_REPLIES),
        }
    }
}

impl UnansweredPosts {
    /// Sends a message. A failure has no consequence.
    pub(super) async fn post(&self, message: &ClientJsonRpcMessage, post: RequestBuilder) {
        let is_notification = matches!(message, ClientJsonRpcMessage::Notification(_));
        let permit = self.replies.try_acquire();
        if is_notification || permit.is_ok() {
            let _ = post.timeout(POST_TIMEOUT).send().await;
        }
    }
}

/// A server behind streamable HTTP, with a session if it uses sessions.
pub(super) struct HttpTransport {
    server: Arc<Server>,
    received: mpsc::Receiver<ServerJsonRpcMessage>,
}

struct Server {
    address: Address,
    limits: McpLimits,
    /// The time that a call takes at most.
    longest_call: Duration,
    session: Mutex<Option<HeaderValue>>,
    /// The version of the protocol that the server has chosen in a handshake.
    protocol: OnceLock<HeaderValue>,
    unanswered: UnansweredPosts,
    received: mpsc::Sender<ServerJsonRpcMessage>,
    signals: Arc<Signals>,
}

impl HttpTransport {
    pub(super) fn new(address: Address, limits: McpLimits, longest_call: Duration, signals: &Arc<Signals>) -> Self {
        let (sender, received) = mpsc::channel(MAX_UNHANDLED);
        let server = Server {
            address,
            limits,
            longest_call,
            session: Mutex::default(),
            protocol: OnceLock::new(),
            unanswered: UnansweredPosts::default(),
            received: sender,
            signals: Arc::clone(signals),
        };
        Self {
            server: Arc::new(server),
            received,
        }
    }
}

impl Transport<RoleClient> for HttpTransport {
    type Error = ConnectionError;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), ConnectionError>> + Send + 'static {
        let server = Arc::clone(&self.server);
        async move {
            let text = message::write(&message)?;
            if let ClientJsonRpcMessage::Request(request) = &message
                && let Some(abandoned) = abandoned(&message)
            {
                let answered = server.exchange(&request.id, text, &request.request);
                return abandoned.run_until_cancelled(answered).await.unwrap_or(Ok(()));
            }
            // Without a handshake there are no notifications: a request is cancelled by the end of its response.
            if matches!(message, ClientJsonRpcMessage::Notification(_)) && server.protocol.get().is_none() {
                return Ok(());
            }
            let authorization = server.address.authorization().await?;
            server.unanswered.post(&message, server.post(text, authorization)).await;
            Ok(())
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        self.received.recv().await
    }

    async fn close(&mut self) -> Result<(), ConnectionError> {
        self.server.signals.closed.cancel();
        Ok(())
    }
}

impl Server {
    fn session(&self) -> Option<HeaderValue> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn post(&self, text: String, authorization: Option<HeaderValue>) -> RequestBuilder {
        let mut post = self.address.post(text, authorization);
        post = post.header(ACCEPT, "application/json, text/event-stream");
        if let Some(session) = self.session() {
            post = post.header(SESSION, session);
        }
        if let Some(protocol) = self.protocol.get() {
            post = post.header(PROTOCOL, protocol.clone());
        }
        post
    }

    /// Returns the time limits for the response to a request. Without a handshake many servers send the head of a response
    /// only with its first message, so a call has all of its time for it. The caller ends it.
    fn limits_for(&self, request: &ClientRequest) -> PieceLimits {
        let mut limits = self.limits.pieces;
        if has_version(request) && matches!(request, ClientRequest::CallToolRequest(_)) {
            limits.first.time = limits.first.time.max(self.longest_call);
        }
        limits
    }

    /// Sends a request and receives the head of its response. A server that refuses the access token gets the request
    /// again with a new one, once, and so does a server that requires further scopes.
    async fn open(&self, text: String, request: &ClientRequest) -> Result<PieceReader, ConnectionError> {
        let open = async |text: String, authorization: Option<HeaderValue>| {
            let post = add_request_headers(self.post(text, authorization), request);
            let post = pass_trace_on(post, request);
            PieceReader::open(post, self.limits_for(request))
                .await
                .map_err(ConnectionError::from)
        };
        let Some(tokens) = &self.address.tokens else {
            return open(text, None).await;
        };
        let mut token = tokens.header().await?;
        let mut response = open(text.clone(), Some(token.clone())).await?;
        if response.head().status() == StatusCode::UNAUTHORIZED {
            tokens.forget(&token).await;
            token = tokens.header().await?;
            response = open(text.clone(), Some(token.clone())).await?;
        }
        let repeat = async |token: HeaderValue| open(text, Some(token)).await;
        tokens
            .repeat_with_scopes(&token, response, PieceReader::head, repeat)
            .await
    }

    /// Sends request `id` and receives its answer.
    async fn exchange(&self, id: &RequestId, text: String, request: &ClientRequest) -> Result<(), ConnectionError> {
        let response = self.open(text, request).await.inspect_err(|error| {
            // A server that takes too long for one request, or requires further scopes for it, may still answer others.
            if !matches!(error, ConnectionError::TimedOut(_) | ConnectionError::ScopesMissing(_)) {
                self.signals.closed.cancel();
            }
        })?;
        if !has_version(request)
            && self.session().is_none()
            && let Some(session) = response.head().headers().get(SESSION)
        {
            let mut session = session.clone();
            session.set_sensitive(true);
            *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
        }
        if response.head().status() != StatusCode::OK {
            return self.refuse(id, request, response).await;
        }
        let kind = response.head().headers().get(CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream") {
            let calls = Arc::new(OpenCalls::of(request));
            return self.answer_in_stream(id, calls, response).await;
        }
        let body = read(response, self.limits.max_message_bytes).await?;
        let message =
            read_foreign(&body).map_err(|error| ConnectionError::InvalidAnswer(format!("the answer {error}")))?;
        match message::read(message) {
            Incoming::Answer(answer) if is_answer(&answer, id) => self.receive(answer).await,
            Incoming::Answer(_)
            | Incoming::Request(_)
            | Incoming::ToolsChanged
            | Incoming::Notice(_)
            | Incoming::Other => Err(ConnectionError::InvalidAnswer(
                "the answer is not one to the request".to_owned(),
            )),
        }
    }

    /// Reads the answer to request `id` in an event stream. What comes before it is bounded in size, but for notices about the
    /// call: they are bounded in their rate, and by the time of the call.
    async fn answer_in_stream(
        &self,
        id: &RequestId,
        calls: Arc<OpenCalls>,
        mut response: PieceReader,
    ) -> Result<(), ConnectionError> {
        let max = self.limits.max_message_bytes;
        let mut frames = Frames::up_to(max);
        let mut inbox = Inbox::of_response(&self.signals, calls);
        let mut length = 0;
        while let Some(chunk) = response.next().await? {
            length += chunk.len();
            if length > max {
                return Err(too_long(max));
            }
            for frame in frames.take(&chunk) {
                inbox.ready().await;
                match inbox.read(frame.data.as_bytes()) {
                    Some(answer) if is_answer(&answer, id) => return self.receive(answer).await,
                    Some(request @ ServerJsonRpcMessage::Request(_)) => self.receive(request).await?,
                    Some(_) | None => {}
                }
                if inbox.has_notice() {
                    length = frames.pending();
                }
            }
        }
        Err(ConnectionError::Closed)
    }

    async fn receive(&self, message: ServerJsonRpcMessage) -> Result<(), ConnectionError> {
        let protocol = message::protocol_version(&message);
        if let Some(Ok(protocol)) = protocol.map(|protocol| HeaderValue::from_str(protocol.as_str())) {
            let _ = self.protocol.set(protocol);
        }
        self.received.send(message).await.map_err(|_| ConnectionError::Closed)
    }

    /// Handles a response to request `id` that is no success. Without a handshake its body may be an error of JSON-RPC.
    async fn refuse(
        &self,
        id: &RequestId,
        request: &ClientRequest,
        response: PieceReader,
    ) -> Result<(), ConnectionError> {
        let status = response.head().status();
        if status == StatusCode::NOT_FOUND && self.session().is_some() {
            self.signals.closed.cancel();
            return Err(ConnectionError::SessionExpired);
        }
        // Only the first characters are shown, each of at most four bytes.
        let body = read(response, MAX_ERROR_CHARS * 4).await.unwrap_or_default();
        let error = read_error(&body, id).filter(|_| has_version(request));
        let knows_version = error
            .as_ref()
            .is_some_and(|error| error.error.code != ErrorCode::UNSUPPORTED_PROTOCOL_VERSION);
        let is_call = matches!(request, ClientRequest::CallToolRequest(_));
        if has_version(request) && is_call && !knows_version && UNKNOWN_VERSION.contains(&status) {
            // The next connection finds out which versions there are.
            self.signals.closed.cancel();
        }
        if let Some(mut error) = error {
            let text = error.error.message.into_owned();
            error.error.message = without_secrets(text, &self.address.headers).into();
            return self.receive(ServerJsonRpcMessage::Error(error)).await;
        }
        let body = without_secrets(String::from_utf8_lossy(&body).into_owned(), &self.address.headers);
        let excerpt = first_chars(&body, MAX_ERROR_CHARS);
        let problem = format!("it answered with status {}: {excerpt}", status.as_u16());
        Err(ConnectionError::InvalidAnswer(problem))
    }
}

/// Returns whether a request names its version of the protocol itself, since there was no handshake.
fn has_version(request: &ClientRequest) -> bool {
    request.get_meta().protocol_version().is_some()
}

/// Reads the error of JSON-RPC that answers request `id`; `None` if the body is none.
fn read_error(body: &[u8], id: &RequestId) -> Option<JsonRpcError> {
    match message::read(read_foreign(body).ok()?) {
        Incoming::Answer(ServerJsonRpcMessage::Error(error)) if error.id.as_ref() == Some(id) => Some(error),
        Incoming::Answer(_) | Incoming::Request(_) | Incoming::ToolsChanged | Incoming::Notice(_) | Incoming::Other => {
            None
        }
    }
}

/// Repeats the context of the trace that is in the `_meta` of a call in the headers, where gateways read it.
fn pass_trace_on(post: RequestBuilder, request: &ClientRequest) -> RequestBuilder {
    let ClientRequest::CallToolRequest(call) = request else {
        return post;
    };
    let Some(meta) = &call.params.meta else { return post };
    let headers = ["traceparent", "tracestate"].map(|name| (name, meta.0.0.get(name).and_then(Value::as_str)));
    headers
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .fold(post, |post, (name, value)| post.header(name, value))
}

/// Reads a body up to `max` bytes. A longer body is an error, unless the response itself is one.
async fn read(mut response: PieceReader, max: usize) -> Result<Vec<u8>, ConnectionError> {
    let is_whole = response.head().status() == StatusCode::OK;
    let mut body = Vec::new();
    while let Some(chunk) = response.next().await? {
        body.extend_from_slice(&chunk);
        if body.len() > max {
            return if is_whole { Err(too_long(max)) } else { Ok(body) };
        }
    }
    Ok(body)
}

pub(super) fn too_long(max: usize) -> ConnectionError {
    ConnectionError::InvalidAnswer(format!("the answer is longer than {max} bytes"))
}
