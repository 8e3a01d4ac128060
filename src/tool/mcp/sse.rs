//! The older transport *HTTP with SSE*: one event stream carries all answers, and its first event names the address to
//! which messages are posted.

use std::collections::VecDeque;
use std::sync::Arc;

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use reqwest::{Response, StatusCode, Url};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;

use super::McpLimits;
use super::error::ConnectionError;
use super::http::{Address, POST_TIMEOUT, UnansweredPosts, too_long};
use super::inbox::Inbox;
use super::message;
use super::signals::{Signals, abandoned, note_call};
use crate::net::sse::Frames;

/// An open event stream, and the address for messages.
pub(super) struct SseTransport {
    /// The address for messages.
    address: Arc<Address>,
    unanswered: Arc<UnansweredPosts>,
    stream: Stream,
    inbox: Inbox,
    signals: Arc<Signals>,
}

impl SseTransport {
    /// Opens the stream of a server and waits for the address for messages.
    pub(super) async fn open(
        mut address: Address,
        limits: McpLimits,
        signals: &Arc<Signals>,
    ) -> Result<Self, ConnectionError> {
        let authorization = address.authorization().await?;
        let get = address
            .client
            .get(address.url.clone())
            .headers(address.headers.clone())
            .header(ACCEPT, "text/event-stream");
        let get = authorization
            .iter()
            .fold(get, |get, value| get.header(AUTHORIZATION, value));
        let response = get
            .send()
            .await
            .map_err(|_| ConnectionError::Unreachable("no connection".to_owned()))?;
        address.forget_refused(authorization.as_ref(), response.status()).await;
        check_status(&response, |status| status == StatusCode::OK)?;
        let mut stream = Stream {
            response,
            frames: Frames::up_to(usize::MAX),
            events: VecDeque::new(),
            max_message: limits.max_message_bytes,
        };
        let path = stream.next(|| {}).await?;
        // The headers may contain secrets, so they are sent to this origin only.
        address.url = address_for_messages(&address.url, &path)
            .ok_or_else(|| ConnectionError::InvalidAnswer("it does not name the address for messages".to_owned()))?;
        Ok(Self {
            address: Arc::new(address),
            unanswered: Arc::default(),
            stream,
            inbox: Inbox::new(signals),
            signals: Arc::clone(signals),
        })
    }
}

fn address_for_messages(stream: &Url, path: &str) -> Option<Url> {
    let url = stream.join(path.trim()).ok()?;
    (url.origin() == stream.origin()).then_some(url)
}

fn check_status(response: &Response, is_expected: impl Fn(StatusCode) -> bool) -> Result<(), ConnectionError> {
    let status = response.status();
    if is_expected(status) {
        return Ok(());
    }
    let problem = format!("it answered with status {}", status.as_u16());
    Err(ConnectionError::InvalidAnswer(problem))
}

/// Posts a request. A server that requires further scopes gets it again with a token that has them, once.
async fn post_request(address: &Address, text: String) -> Result<(), ConnectionError> {
    let post = async |text: String, authorization: Option<HeaderValue>| {
        let posted = address.post(text, authorization).timeout(POST_TIMEOUT).send().await;
        // The text of the error may contain the URL, which may contain a secret.
        posted.map_err(|_| ConnectionError::Closed)
    };
    let Some(tokens) = &address.tokens else {
        let response = post(text, None).await?;
        return check_status(&response, |status| status.is_success());
    };
    let token = tokens.header().await?;
    let response = post(text.clone(), Some(token.clone())).await?;
    address.forget_refused(Some(&token), response.status()).await;
    let repeat = async |token: HeaderValue| post(text, Some(token)).await;
    let response = tokens
        .repeat_with_scopes(&token, response, |response| response, repeat)
        .await?;
    check_status(&response, |status| status.is_success())
}

impl Transport<RoleClient> for SseTransport {
    type Error = ConnectionError;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), ConnectionError>> + Send + 'static {
        note_call(&message, &self.signals);
        let address = Arc::clone(&self.address);
        let unanswered = Arc::clone(&self.unanswered);
        async move {
            let text = message::write(&message)?;
            let Some(abandoned) = abandoned(&message) else {
                let authorization = address.authorization().await?;
                unanswered.post(&message, address.post(text, authorization)).await;
                return Ok(());
            };
            let posted = post_request(&address, text);
            abandoned.run_until_cancelled(posted).await.unwrap_or(Ok(()))
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            self.inbox.ready().await;
            let Ok(event) = self.stream.next(|| self.signals.data_arrived()).await else {
                self.signals.closed.cancel();
                return None;
            };
            if let Some(message) = self.inbox.read(event.as_bytes()) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), ConnectionError> {
        self.signals.closed.cancel();
        Ok(())
    }
}

/// The event stream of a server.
struct Stream {
    response: Response,
    /// Without a limit of its own, so that a too long event ends the stream instead of being skipped.
    frames: Frames,
    /// The events that were read and not returned.
    events: VecDeque<String>,
    max_message: usize,
}

impl Stream {
    /// Returns the data of the next event; calls `data_arrived` for each piece. The future may be dropped at any time.
    async fn next(&mut self, data_arrived: impl Fn()) -> Result<String, ConnectionError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            let chunk = self.response.chunk().await.map_err(|_| ConnectionError::Closed)?;
            let chunk = chunk.ok_or(ConnectionError::Closed)?;
            data_arrived();
            let frames = self.frames.take(&chunk);
            self.events.extend(frames.into_iter().map(|frame| frame.data));
            if self.frames.pending() > self.max_message {
                return Err(too_long(self.max_message));
            }
        }
    }
}
