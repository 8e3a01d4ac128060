//! The older transport *HTTP with SSE*: one event stream carries all answers, and its first event names the address to
//! which messages are posted.

use std::collections::VecDeque;
use std::sync::Arc;

use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Response, StatusCode, Url};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use tokio::sync::Semaphore;

use super::McpLimits;
use super::connection::{ConnectionError, Signals, abandoned};
use super::http::{Address, MAX_REPLIES, POST_TIMEOUT, too_long};
use super::message::{self, Incoming};
use super::pace::Pace;
use crate::domain::json_limits::read_foreign;
use crate::net::sse::Frames;

/// An open event stream, and the address for messages.
pub(super) struct SseTransport {
    messages: Arc<Messages>,
    stream: Stream,
    pace: Pace,
    signals: Arc<Signals>,
}

/// The address for messages.
struct Messages {
    address: Address,
    replies: Semaphore,
}

impl SseTransport {
    /// Opens the stream of a server and waits for the address for messages.
    pub(super) async fn open(
        mut address: Address,
        limits: McpLimits,
        signals: &Arc<Signals>,
    ) -> Result<Self, ConnectionError> {
        let get = address
            .client
            .get(address.url.clone())
            .headers(address.headers.clone())
            .header(ACCEPT, "text/event-stream");
        let response = get
            .send()
            .await
            .map_err(|_| ConnectionError::Unreachable("no connection".to_owned()))?;
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
        let messages = Messages {
            address,
            replies: Semaphore::new(MAX_REPLIES),
        };
        Ok(Self {
            messages: Arc::new(messages),
            stream,
            pace: Pace::new(),
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

impl Transport<RoleClient> for SseTransport {
    type Error = ConnectionError;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), ConnectionError>> + Send + 'static {
        let messages = Arc::clone(&self.messages);
        async move {
            let text = message::write(&message)?;
            let abandoned = abandoned(&message).unwrap_or_default();
            match message {
                ClientJsonRpcMessage::Request(_) => {
                    let posted = abandoned.run_until_cancelled(messages.post(text)).await;
                    posted.unwrap_or(Ok(()))
                }
                ClientJsonRpcMessage::Notification(_) => {
                    // A notification has no answer, and its failure no consequence.
                    let _ = messages.post(text).await;
                    Ok(())
                }
                ClientJsonRpcMessage::Response(_) | ClientJsonRpcMessage::Error(_) => {
                    if let Ok(_permit) = messages.replies.try_acquire() {
                        let _ = messages.post(text).await;
                    }
                    Ok(())
                }
            }
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            self.pace.wait().await;
            let Ok(event) = self.stream.next(|| self.signals.data_arrived()).await else {
                self.signals.closed.cancel();
                return None;
            };
            let Ok(message) = read_foreign(event.as_bytes()) else {
                self.pace.count();
                continue;
            };
            match message::read(message) {
                Incoming::Answer(_, answer) => return Some(answer),
                Incoming::Request(request) => {
                    self.pace.count();
                    return Some(request);
                }
                Incoming::ToolsChanged => {
                    self.pace.count();
                    self.signals.tools_changed.notify_one();
                }
                Incoming::Other => self.pace.count(),
            }
        }
    }

    async fn close(&mut self) -> Result<(), ConnectionError> {
        self.signals.closed.cancel();
        Ok(())
    }
}

impl Messages {
    /// Posts a message. Its answer comes over the stream.
    async fn post(&self, text: String) -> Result<(), ConnectionError> {
        let address = &self.address;
        let post = address
            .client
            .post(address.url.clone())
            .headers(address.headers.clone());
        let sent = post
            .header(CONTENT_TYPE, "application/json")
            .body(text)
            .timeout(POST_TIMEOUT)
            .send()
            .await;
        // The text of the error may contain the URL, which may contain a secret.
        let response = sent.map_err(|_| ConnectionError::Closed)?;
        check_status(&response, |status| status.is_success())
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
