//! Somebody who wants to hear of runs: remembers what was posted, and answers as the scene says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adjutant::shutdown::Shutdown;
use axum::Router;
use axum::extract::{OriginalUri, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Listens on an address of its own.
pub(crate) struct Ear {
    /// Where it listens.
    pub(crate) base: String,
    desk: Arc<Desk>,
    around: Shutdown,
}

#[derive(Default)]
struct Desk {
    heard: watch::Sender<Vec<Heard>>,
    answers: Mutex<VecDeque<u16>>,
    held: watch::Sender<bool>,
}

/// What was posted.
#[derive(Debug, Clone)]
pub(crate) struct Heard {
    /// Path and query.
    pub(crate) path: String,
    headers: HeaderMap,
    /// The very text.
    pub(crate) text: String,
}

impl Heard {
    /// The JSON.
    pub(crate) fn body(&self) -> Value {
        serde_json::from_str(&self.text).expect("JSON")
    }

    /// A header.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }
}

impl Ear {
    /// Begins to listen.
    pub(crate) async fn opens() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().unwrap());
        let desk = Arc::new(Desk::default());
        let around = Shutdown::new(Duration::from_secs(1));
        let router = Router::new().fallback(hear).with_state(Arc::clone(&desk));
        around.spawn("ear", async move { axum::serve(listener, router).await });
        Self { base, desk, around }
    }

    /// The next posts are answered with these statuses; all others with 200.
    pub(crate) fn answers(&self, statuses: &[u16]) {
        self.desk.answers.lock().unwrap().extend(statuses);
    }

    /// Nobody is answered until [`Ear::lets_go`].
    pub(crate) fn holds(&self) {
        self.desk.held.send_replace(true);
    }

    /// Everybody is answered.
    pub(crate) fn lets_go(&self) {
        self.desk.held.send_replace(false);
    }

    /// What was heard so far.
    pub(crate) fn heard(&self) -> Vec<Heard> {
        self.desk.heard.borrow().clone()
    }

    /// Returns as soon as so much was heard.
    pub(crate) async fn hears(&self, times: usize) -> Vec<Heard> {
        let mut heard = self.desk.heard.subscribe();
        let wait = heard.wait_for(|heard| heard.len() >= times);
        let heard = tokio::time::timeout(Duration::from_secs(30), wait).await;
        heard
            .unwrap_or_else(|_| panic!("not heard {times} times: {:#?}", self.heard()))
            .expect("the ear is open")
            .clone()
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.around.force();
    }
}

async fn hear(
    State(desk): State<Arc<Desk>>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    text: String,
) -> Response {
    let path = uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    desk.heard
        .send_modify(|heard| heard.push(Heard { path, headers, text }));
    let mut held = desk.held.subscribe();
    held.wait_for(|held| !held).await.expect("the desk is there");
    let status = desk.answers.lock().unwrap().pop_front().unwrap_or(200);
    let status = StatusCode::from_u16(status).expect("a status");
    if status.is_redirection() {
        return (status, [("location", "/elsewhere")]).into_response();
    }
    status.into_response()
}
