//! A plain HTTP client for JSON.

use std::sync::{Arc, Mutex};

use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use super::sse::Sse;

/// A client of one server, whose address may change.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: Arc<Mutex<String>>,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The status.
    pub(crate) status: u16,
    /// The headers.
    pub(crate) headers: HeaderMap,
    /// The JSON body; a string if it is not JSON, null if it is empty.
    pub(crate) body: Value,
}

impl Client {
    /// Creates a client of the server at `base`.
    pub(crate) fn new(base: &str) -> Self {
        let http = adjutant::net::client_builder().no_proxy().build().expect("a client");
        Self {
            http,
            base: Arc::new(Mutex::new(base.to_owned())),
        }
    }

    /// Returns the address of the server.
    pub(crate) fn base(&self) -> String {
        self.base.lock().unwrap().clone()
    }

    /// Sets the new address of the server.
    pub(crate) fn moved_to(&self, base: &str) {
        *self.base.lock().unwrap() = base.to_owned();
    }

    /// Builds a request.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base()))
    }

    /// Sends a GET request.
    pub(crate) async fn get(&self, path: &str) -> Reply {
        reply(self.request(Method::GET, path)).await
    }

    /// Sends a POST request with a JSON body.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Reply {
        reply(self.request(Method::POST, path).json(&body)).await
    }

    /// Sends a PATCH request with a JSON body.
    pub(crate) async fn patch(&self, path: &str, body: Value) -> Reply {
        reply(self.request(Method::PATCH, path).json(&body)).await
    }

    /// Sends a PUT request with a JSON body.
    pub(crate) async fn put(&self, path: &str, body: Value) -> Reply {
        reply(self.request(Method::PUT, path).json(&body)).await
    }

    /// Sends a DELETE request.
    pub(crate) async fn delete(&self, path: &str) -> Reply {
        reply(self.request(Method::DELETE, path)).await
    }

    /// Sends a POST request whose response is an SSE stream.
    pub(crate) async fn post_stream(&self, path: &str, body: Value) -> Sse {
        Sse::open(
            self.request(Method::POST, path)
                .json(&body)
                .send()
                .await
                .expect("an answer"),
        )
        .await
    }

    /// Sends a GET request whose response is an SSE stream, which starts after this event.
    pub(crate) async fn get_stream(&self, path: &str, last_event_id: Option<&str>) -> Sse {
        let mut request = self.request(Method::GET, path);
        if let Some(id) = last_event_id {
            request = request.header("Last-Event-ID", id);
        }
        Sse::open(request.send().await.expect("an answer")).await
    }

    /// Creates a thread and returns its id.
    pub(crate) async fn thread(&self) -> String {
        let thread = self.post("/threads", json!({})).await.ok();
        thread["thread_id"].as_str().expect("an id").to_owned()
    }
}

/// Sends the request and reads the whole response.
pub(crate) async fn reply(request: RequestBuilder) -> Reply {
    let response = request.send().await.expect("an answer");
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let text = response.text().await.expect("a whole answer");
    let body = match text.trim() {
        "" => Value::Null,
        json => serde_json::from_str(json).unwrap_or(Value::String(text)),
    };
    Reply { status, headers, body }
}

impl Reply {
    /// Returns the body of a successful response; panics otherwise.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!(matches!(self.status, 200 | 202 | 204), "{self:?}");
        self.body
    }

    /// Returns the detail of an error with this status; panics otherwise.
    #[track_caller]
    pub(crate) fn refused(self, status: u16) -> String {
        assert_eq!(self.status, status, "{self:?}");
        self.body["detail"]
            .as_str()
            .unwrap_or_else(|| panic!("an error has a detail: {self:?}"))
            .to_owned()
    }

    /// Returns a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}
