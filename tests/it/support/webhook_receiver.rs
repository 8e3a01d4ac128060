//! A webhook receiver: records what is posted, and answers as the test says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adjutant::shutdown::Shutdown;
use axum::Router;
use axum::extract::{OriginalUri, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::watch;

use super::starts_service;

/// A webhook receiver.
pub(crate) struct WebhookReceiver {
    /// The address of the receiver.
    pub(crate) base: String,
    state: Arc<ReceiverState>,
    around: Shutdown,
}

#[derive(Default)]
struct ReceiverState {
    received: watch::Sender<Vec<ReceivedReport>>,
    answers: Mutex<VecDeque<u16>>,
    held: watch::Sender<bool>,
}

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedReport {
    /// The path and query.
    pub(crate) path: String,
    headers: HeaderMap,
    /// The body as text.
    pub(crate) text: String,
}

impl ReceivedReport {
    /// Returns the body as JSON.
    pub(crate) fn body(&self) -> Value {
        serde_json::from_str(&self.text).expect("JSON")
    }

    /// Returns a header, or an empty text.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }
}

impl WebhookReceiver {
    /// Starts a receiver.
    pub(crate) async fn start() -> Self {
        let state = Arc::new(ReceiverState::default());
        let around = Shutdown::new(Duration::from_secs(1));
        let router = Router::new().fallback(receive).with_state(Arc::clone(&state));
        let base = starts_service("webhook receiver", router, &around).await;
        Self { base, state, around }
    }

    /// Sets the statuses of the next responses; all others are 200.
    pub(crate) fn answers(&self, statuses: &[u16]) {
        self.state.answers.lock().unwrap().extend(statuses);
    }

    /// Holds all responses back until [`WebhookReceiver::lets_go`].
    pub(crate) fn holds(&self) {
        self.state.held.send_replace(true);
    }

    /// Releases the responses.
    pub(crate) fn lets_go(&self) {
        self.state.held.send_replace(false);
    }

    /// Returns the requests so far.
    pub(crate) fn received(&self) -> Vec<ReceivedReport> {
        self.state.received.borrow().clone()
    }

    /// Waits until `times` requests have been received, and returns them.
    pub(crate) async fn receives(&self, times: usize) -> Vec<ReceivedReport> {
        let mut received = self.state.received.subscribe();
        let wait = received.wait_for(|received| received.len() >= times);
        let received = tokio::time::timeout(Duration::from_secs(30), wait).await;
        received
            .unwrap_or_else(|_| panic!("not received {times} requests: {:#?}", self.received()))
            .expect("the receiver is running")
            .clone()
    }
}

impl Drop for WebhookReceiver {
    fn drop(&mut self) {
        self.around.force();
    }
}

async fn receive(
    State(state): State<Arc<ReceiverState>>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    text: String,
) -> Response {
    let path = uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    state
        .received
        .send_modify(|received| received.push(ReceivedReport { path, headers, text }));
    let mut held = state.held.subscribe();
    held.wait_for(|held| !held).await.expect("the receiver is running");
    let status = state.answers.lock().unwrap().pop_front().unwrap_or(200);
    let status = StatusCode::from_u16(status).expect("a status");
    if status.is_redirection() {
        return (status, [("location", "/elsewhere")]).into_response();
    }
    status.into_response()
}
