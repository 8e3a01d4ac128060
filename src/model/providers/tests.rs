//! A small HTTP server with prepared replies, and helpers for the tests of all wire formats.

use std::collections::VecDeque;
use std::sync::MutexGuard;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use futures::{StreamExt, stream};
use serde_json::{Value, json};

use super::*;
use crate::domain::message::{Message, Role, ToolCall, ToolStatus};
use crate::model::{ModelEvent, ModelRequest, ToolSpec};

mod caching;
mod empty_texts;
mod names;
mod plain_chats;
mod replay;
mod responses;
mod wires;

/// A prepared reply.
pub(super) struct Reply {
    status: u16,
    headers: Vec<(&'static str, &'static str)>,
    body: String,
    cut: bool,
}

impl Reply {
    /// A stream of these frames; a frame that begins with a word and a colon names its event.
    pub(super) fn stream(frames: &[&str]) -> Self {
        let body = frames.iter().map(|frame| format!("{frame}\n\n")).collect();
        Self {
            status: 200,
            headers: vec![("content-type", "text/event-stream")],
            body,
            cut: false,
        }
    }

    /// A stream of these frames whose connection breaks at the end.
    pub(super) fn cut(frames: &[&str]) -> Self {
        Self {
            cut: true,
            ..Self::stream(frames)
        }
    }

    pub(super) fn error(status: u16, headers: &[(&'static str, &'static str)], body: Value) -> Self {
        let headers = headers
            .iter()
            .copied()
            .chain([("content-type", "application/json")])
            .collect();
        Self {
            status,
            headers,
            body: body.to_string(),
            cut: false,
        }
    }
}

/// A request that the server received.
pub(super) struct Received {
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Value,
}

#[derive(Clone, Default)]
pub(super) struct Fake {
    replies: Arc<Mutex<VecDeque<Reply>>>,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Fake {
    fn replies(&self) -> MutexGuard<'_, VecDeque<Reply>> {
        self.replies.lock().expect("no test panics with the lock")
    }

    fn received(&self) -> MutexGuard<'_, Vec<Received>> {
        self.received.lock().expect("no test panics with the lock")
    }

    pub(super) fn last(&self) -> Received {
        self.received().pop().expect("a request")
    }

    pub(super) fn count(&self) -> usize {
        self.received().len()
    }

    pub(super) fn prepare(&self, reply: Reply) {
        self.replies().push_back(reply);
    }
}

async fn serve(State(fake): State<Fake>, uri: Uri, headers: HeaderMap, body: String) -> Response {
    let body = serde_json::from_str(&body).unwrap_or(Value::Null);
    fake.received().push(Received { uri, headers, body });
    let reply = fake.replies().pop_front().expect("a prepared reply");
    let mut response = Response::builder().status(reply.status);
    for (name, value) in reply.headers {
        response = response.header(name, value);
    }
    let end: Option<Result<String, std::io::Error>> =
        reply.cut.then(|| Err(std::io::Error::other("the connection broke")));
    response
        .body(Body::from_stream(
            stream::iter([Ok(reply.body)].into_iter().chain(end)).then(async |part| {
                // The earlier parts must reach the client before the connection breaks.
                if part.is_err() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                part
            }),
        ))
        .expect("a response")
}

/// Creates a model of this kind, without retries, whose provider returns these replies.
pub(super) async fn fake(kind: ProviderKind, replies: Vec<Reply>) -> (Arc<dyn Model>, Fake) {
    fake_with(kind, RequestSettings::default(), replies).await
}

/// Creates such a model with these settings of its requests.
pub(super) async fn fake_with(
    kind: ProviderKind,
    requests: RequestSettings,
    replies: Vec<Reply>,
) -> (Arc<dyn Model>, Fake) {
    let (providers, fake) = fake_provider(kind, requests, replies).await;
    (providers.model("lab:m-1").expect("a model"), fake)
}

/// Creates a provider `lab` of this kind with these settings of its requests, which returns these replies.
pub(super) async fn fake_provider(
    kind: ProviderKind,
    requests: RequestSettings,
    replies: Vec<Reply>,
) -> (Providers, Fake) {
    let fake = Fake {
        replies: Arc::new(Mutex::new(replies.into())),
        ..Fake::default()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let app = Router::new().fallback(serve).with_state(fake.clone());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let base_url = Some(if kind == ProviderKind::OpenAi {
        format!("{address}/v1")
    } else {
        address
    });
    let config = ProviderConfig {
        kind,
        base_url,
        api_key: ApiKeySource::Inline("sk-secret".into()),
        windows: ContextWindows::default(),
        requests,
    };
    let none = RetryPolicy {
        max_retries: 0,
        ..RetryPolicy::default()
    };
    let providers = Providers::new([("lab".to_owned(), config)].into(), |_| None).with_retries(none);
    (providers, fake)
}

pub(super) fn request(messages: Vec<Message>) -> ModelRequest {
    let tool = ToolSpec {
        name: "look".to_owned(),
        description: "looks".to_owned(),
        parameters: json!({"type": "object", "properties": {"q": {"type": "string"}}}),
    };
    ModelRequest {
        system: "be brief".into(),
        messages: messages.into_iter().map(Arc::new).collect(),
        tools: vec![Arc::new(tool)],
        ..ModelRequest::default()
    }
}

/// Asks the model; returns the deltas and the end of the answer.
pub(super) async fn ask(
    model: &Arc<dyn Model>,
    request: ModelRequest,
) -> (Vec<ModelEvent>, Result<Message, ModelError>) {
    let mut answer = match model.ask(request).await {
        Ok(answer) => answer,
        Err(error) => return (Vec::new(), Err(error)),
    };
    let mut events = Vec::new();
    while let Some(item) = answer.next().await {
        match item {
            Ok(ModelEvent::Done(message)) => return (events, Ok(*message)),
            Ok(event) => events.push(event),
            Err(error) => return (events, Err(error)),
        }
    }
    panic!("the answer ended without its end after {events:?}")
}

pub(super) fn text_of(events: &[ModelEvent]) -> String {
    events
        .iter()
        .filter_map(|event| {
            if let ModelEvent::Text(text) = event {
                Some(text.as_str())
            } else {
                None
            }
        })
        .collect()
}

/// Returns the calls in the chunks, by index: id, name and arguments.
pub(super) fn calls_of(events: &[ModelEvent]) -> Vec<(String, String, String)> {
    let mut calls: Vec<(String, String, String)> = Vec::new();
    for event in events {
        let ModelEvent::CallChunk { index, id, name, args } = event else {
            continue;
        };
        if *index == calls.len() {
            calls.push((
                id.clone().expect("the first chunk has an id"),
                name.clone().expect("and a name"),
                String::new(),
            ));
        } else {
            assert!(id.is_none() && name.is_none());
        }
        calls[*index].2.push_str(args);
    }
    calls
}
